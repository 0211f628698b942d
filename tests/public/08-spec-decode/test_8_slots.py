"""Task 08.8: what the draft model reads first, and how far it may go."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect

BLOCKS = [5, 9]
"""Two blocks of four slots: positions 0 to 7."""


def test_08_8_it_reads_what_the_target_read_and_the_newest(lab: Any) -> None:
    """A decode: the token computed in the step, and the one sampled from it."""
    got = lab.draft([lab.request("a", [1, 2, 3, 4, 5])], k=2)
    expect(
        got["counts"],
        [2],
        at="3 tokens computed before; the step computed the 4th, sampled the 5th",
    )


def test_08_8_rejected_drafts_are_not_read(lab: Any) -> None:
    """3 drafts, 1 accepted: the newest token of before, 1 draft, and the target's own."""
    step = [lab.request("a", [1, 2, 3, 4, 5], computed=2, scheduled=4, drafts=3, sampled=2)]
    expect(lab.draft(step, k=2)["counts"], [3], at="4 tokens computed, 2 drafts of them rejected")


def test_08_8_a_prompt_is_read_chunk_by_chunk(lab: Any) -> None:
    """Inside a prompt there is no newest token, but keys and values are needed later."""
    step = [lab.request("a", list(range(9)), computed=3, scheduled=4, sampled=0)]
    got = lab.draft(step, k=2)
    expect([got["counts"], got["limits"], got["drafts"]], [[4], [0], {}], at="a chunk of 4 tokens")


def test_08_8_drafts_need_slots(lab: Any) -> None:
    """d drafts write d - 1 slots behind the newest token's: the last draft is never fed."""
    for length, limit in ((4, 4), (5, 4), (6, 3), (7, 2), (8, 1)):
        step = [lab.request("a", range(length), blocks=BLOCKS)]
        at = f"{length} tokens, slots 0 to 7, k = 4"
        expect(lab.draft(step, k=4)["limits"], [limit], at=at)


def test_08_8_without_a_slot_the_newest_token_waits(lab: Any) -> None:
    """A prompt that fills its blocks: the newest token has no slot yet, and gets no other's."""
    step = [lab.request("a", range(9), computed=0, scheduled=8, blocks=BLOCKS)]
    got = lab.draft(step, k=3)
    expect(
        [got["counts"], got["limits"]], [[8], [0]], at="8 prompt tokens in 8 slots, and a 9th token"
    )


def test_08_8_positions_end(lab: Any) -> None:
    """The draft model's positions end before the target's: there it falls silent."""
    step = [lab.request("a", range(12), computed=5, scheduled=6)]
    got = lab.draft(step, k=3, max_model_len=10)
    expect(
        [got["counts"], got["limits"]], [[5], [0]], at="12 tokens, 10 positions, 5 computed before"
    )
    step = [lab.request("a", range(14))]
    got = lab.draft(step, k=3, max_model_len=10)
    expect([got["counts"], got["limits"]], [[0], [0]], at="14 tokens, 10 positions")


def test_08_8_no_draft_for_the_last_place(lab: Any) -> None:
    """The last token of a full text is sampled, never computed: no draft can stand there."""
    for length, limit in ((7, 2), (8, 1), (9, 0)):
        step = [lab.request("a", range(length))]
        expect(
            lab.draft(step, k=3, max_model_len=10)["limits"], [limit], at=f"{length} of 10 tokens"
        )


def test_08_8_each_request_on_its_own(lab: Any) -> None:
    """One is short of slots; the others are not affected."""
    step = [lab.request("a", range(8), blocks=BLOCKS), lab.request("b", range(6))]
    expect(lab.draft(step, k=3)["limits"], [1, 3], at="8 tokens in 8 slots, and 6 in 16")
