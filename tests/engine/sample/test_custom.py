"""What a hook is told of a batch's rows, and what it then knows of each."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.sample.custom import MoveDirectionality, process_dict_updates, update_of
from mini_vllm.sample.metadata import SamplingRow
from mini_vllm.sampling_params import SamplingParams

NAMES = "abcdefgh"
batches = st.lists(
    st.permutations(NAMES).flatmap(lambda p: st.integers(0, len(p)).map(lambda n: "".join(p[:n]))),
    max_size=8,
)


@settings(deadline=None)
@given(batches)
def test_what_is_known_goes_with_the_requests(stories: list[str]) -> None:
    """Any rows after any others. A request that was away is new when it comes back."""
    rows = {name: SamplingRow(SamplingParams(), [], [ord(name)]) for name in NAMES}
    known: dict[int, list[str]] = {}
    before: list[SamplingRow] = []
    owners: dict[str, list[str]] = {}
    for story in stories:
        after = [rows[name] for name in story]
        update = update_of(before, after)
        assert update.batch_size == len(story)
        assert {row for row, *_ in update.added}.isdisjoint(
            set(range(len(before))) - set(update.removed)
        )
        process_dict_updates(known, update, lambda _, __, output: [chr(output[0])])
        assert [known[row] for row in range(len(story))] == [[name] for name in story]
        assert len(known) == len(story)
        for row, name in enumerate(story):
            if name in owners and rows[name] in before:
                assert known[row] is owners[name]
        owners, before = {name: known[row] for row, name in enumerate(story)}, after


def test_nothing_moves_where_nothing_has_to() -> None:
    rows = [SamplingRow(SamplingParams(), [], [index]) for index in range(4)]
    update = update_of(rows, [rows[0], rows[3], rows[2]])
    assert (update.removed, update.added) == ([1], [])
    assert update.moved == [(3, 1, MoveDirectionality.UNIDIRECTIONAL)]
    assert MoveDirectionality.SWAP != MoveDirectionality.UNIDIRECTIONAL
