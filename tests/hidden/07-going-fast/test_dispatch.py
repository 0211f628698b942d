"""Steps of any size in any mode: which graph serves them, by lists that are filled in."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=120)
HERE = "mini_vllm.worker.cudagraph_dispatcher:"
PAIRS = {
    "NONE": ("NONE", "NONE"),
    "PIECEWISE": ("PIECEWISE", "PIECEWISE"),
    "FULL": ("FULL", "FULL"),
    "FULL_DECODE_ONLY": ("FULL", "NONE"),
    "FULL_AND_PIECEWISE": ("FULL", "PIECEWISE"),
}


def graphs_of(mode: str, sizes: list[int], max_num_reqs: int, query_len: int) -> set[Any]:
    """All graphs that are recorded: kind, tokens, requests, whether of decodes alone."""
    decodes, mixed = PAIRS[mode]
    found: set[Any] = set()
    for size in sizes:
        if mixed == "PIECEWISE":
            found.add((mixed, size, None, False))
        elif mixed == "FULL":
            found.add((mixed, size, min(size, max_num_reqs), False))
        if decodes != mixed and query_len <= size <= query_len * max_num_reqs:
            found.add(("FULL", size, size // query_len, True))
    return found


def right(
    mode: str, sizes: list[int], max_num_reqs: int, num_tokens: int, uniform: bool, query_len: int,
    disable_full: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """The first of the graphs that a step may take, the padding being that of the next size."""
    recorded = graphs_of(mode, sizes, max_num_reqs, query_len)
    size = next((size for size in sizes if size >= num_tokens), 0)
    decodes, mixed = PAIRS[mode]
    wanted: list[Any] = [(mixed, size, min(size, max_num_reqs), False), (mixed, size, None, False)]
    if uniform and decodes != mixed:
        wanted.insert(0, (decodes, size, size // query_len, True))
    for graph in wanted:
        if size and graph in recorded and not (disable_full and graph[0] == "FULL"):
            return tuple(graph)
    return ("NONE", num_tokens, None, False)


@many
@given(data=st.data())
def test_07_7_any_step(subject: Any, data: Any) -> None:
    """Sizes, limits, drafts and modes drawn; all steps of them."""
    query_len = data.draw(st.sampled_from([1, 1, 2, 3, 5]))
    unit = st.integers(1, 40).map(lambda n: n * query_len)
    sizes = sorted(data.draw(st.sets(unit, min_size=1, max_size=7)))
    max_num_reqs = data.draw(st.integers(1, 30))
    mode = data.draw(st.sampled_from(sorted(PAIRS)))
    p, expected = Program(), []
    for _ in range(8):
        uniform, disable_full = data.draw(st.booleans()), data.draw(st.booleans())
        largest = query_len * max_num_reqs if uniform else sizes[-1] + 3
        num_tokens = data.draw(st.integers(1, largest))
        answer = p.call(
            f"{HERE}dispatch",
            p.name(f"{HERE}CUDAGraphMode.{mode}"),
            sizes,
            max_num_reqs,
            num_tokens,
            uniform,
            query_len,
            disable_full,
        )
        padded = answer[1]
        p.see([answer[0].name, padded.num_tokens, padded.num_reqs, padded.uniform])
        step = (num_tokens, uniform, query_len, disable_full)
        expected.append(list(right(mode, sizes, max_num_reqs, *step)))
    assert subject.run(p) == expected


@many
@given(lens=st.lists(st.integers(1, 5), min_size=1, max_size=6), query_len=st.integers(1, 5))
def test_07_7_any_lengths(subject: Any, lens: list[int], query_len: int) -> None:
    """Whether all requests have as many tokens as a decode."""
    p = Program()
    as_many = [query_len + 1, *[query_len] * len(lens), query_len - 1]  # in sum, and not each
    cases = [lens, [query_len] * len(lens), [query_len, *lens], *([as_many] * (query_len > 1))]
    for lengths in cases:
        arguments = (sum(lengths), len(lengths), max(lengths), query_len)
        p.see(p.call(f"{HERE}is_uniform_decode", *arguments))
    assert subject.run(p) == [all(n == query_len for n in lengths) for lengths in cases]
