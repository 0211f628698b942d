"""How many requests fit: shapes, pools and prefixes drawn at random, and real pools filled up."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=40)
HERE = "mini_vllm.worker.capacity:"
ITEMS = {"int8": 1, "bfloat16": 2, "float32": 4, "float64": 8}


@many
@given(
    layers=st.integers(1, 200),
    heads=st.integers(1, 128),
    head_dim=st.integers(1, 600),
    dtype=st.sampled_from(sorted(ITEMS)),
    pads=st.integers(0, 3),
    planes=st.integers(1, 2),
    states=st.integers(0, 200),
)
def test_01_6_bytes_of_any_cache(
    subject: Any, layers: int, heads: int, head_dim: int, dtype: str, pads: int, planes: int,
    states: int,
) -> None:  # fmt: skip
    """All sizes differ; some layers keep a state, some a window."""
    states = min(states, layers)
    p = Program()
    kinds = ["mamba"] * states + ["sliding_window", "full", "chunked_local"] * layers
    kept = [p.new("mini_vllm.model.interface:LayerSpec", kind) for kind in kinds[:layers]]
    pad_bytes = pads * ITEMS[dtype]
    spec = p.new(
        "mini_vllm.model.interface:KVCacheSpec", layers, heads, head_dim, p.name(f"torch:{dtype}"),
        pad_bytes, planes, tuple(kept) if states or layers % 2 else (),
    )  # fmt: skip
    p.see(p.call(f"{HERE}bytes_per_token", spec))
    each = planes * heads * (head_dim + pads) * ITEMS[dtype]
    assert subject.run(p) == [(layers - states) * each]


@many
@given(memory=st.integers(-(10**6), 10**18), block=st.integers(1, 10**9))
@example(memory=10**18 - 1, block=3)
def test_01_6_blocks_of_any_memory(subject: Any, memory: int, block: int) -> None:
    """The largest number of blocks that is not beyond the memory, and an int."""
    p = Program()
    p.see(p.call(f"{HERE}num_blocks_in", memory, block))
    (blocks,) = subject.run(p)
    assert type(blocks) is int and blocks >= 0
    assert blocks * block <= max(memory, 0) < (blocks + 1) * block


def by_handing_out(num_blocks: int, block_size: int, num_tokens: int, shared: int) -> int:
    """Hand out blocks one by one: a token's block is new unless all of it is in the prefix."""
    free, served, cached = num_blocks - 1, 0, 0
    while True:
        needed, new_cached = 0, 0
        for first in range(0, num_tokens, block_size):
            last = first + block_size
            is_shared = last <= shared and last < num_tokens
            if not (is_shared and first // block_size < cached):
                needed += 1
            new_cached += is_shared
        if needed > free:
            return served
        free, served, cached = free - needed, served + 1, max(cached, new_cached)


@many
@example(num_blocks=10_241, block_size=16, num_tokens=131_072, share=0.3)
@example(num_blocks=1_001, block_size=256, num_tokens=257, share=0.0)
@example(num_blocks=5_000, block_size=128, num_tokens=40_001, share=0.5)
@given(
    num_blocks=st.integers(1, 60),
    block_size=st.integers(1, 40),
    num_tokens=st.integers(1, 120),
    share=st.floats(0, 1),
)
def test_01_6_requests_of_any_pool(
    subject: Any, num_blocks: int, block_size: int, num_tokens: int, share: float
) -> None:
    """As many as a loop that hands out blocks one by one can serve."""
    p, right = Program(), []
    for shared in {0, int(share * num_tokens), num_tokens - 1, num_tokens}:
        p.see(p.call(f"{HERE}requests_that_fit", num_blocks, block_size, num_tokens, shared))
        right.append(by_handing_out(num_blocks, block_size, num_tokens, shared))
    p.see(p.call(f"{HERE}requests_that_fit", num_blocks, block_size, num_tokens))
    right.append(by_handing_out(num_blocks, block_size, num_tokens, 0))
    assert subject.run(p) == right
