"""Slots and the oracle on random batches, beside the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=30)
HERE = "mini_vllm.attention.reference:"


def tensor(p: Program, values: Any, dtype: str = "float32") -> Any:
    return p.call("torch:tensor", values, dtype=p.name(f"torch:{dtype}"))


def numbers(seed: int, *shape: int) -> Any:
    """Normal numbers as nested lists."""
    return np.random.default_rng(seed).normal(size=shape).tolist()


def same(subject: Any, reference: Any, p: Program, tolerance: float = 1e-5) -> None:
    """Equal shapes, and numbers that differ by rounding only."""
    theirs = reference.run(p)
    assert not any(isinstance(value, dict) for value in theirs), theirs
    yours = subject.run(p)
    assert len(yours) == len(theirs), yours
    for mine, right in zip(yours, theirs, strict=True):
        assert type(mine) is type(right), mine
        if isinstance(right, np.ndarray):
            assert mine.dtype == right.dtype and mine.shape == right.shape
            assert np.allclose(mine, right, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert mine == right


@many
@given(data=st.data())
def test_04_1_any_batch(subject: Any, reference: Any, data: Any) -> None:
    """Random tables, block sizes and tokens, in any order."""
    block_size = data.draw(st.integers(1, 32))
    rows, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    block = st.integers(0, 2**31 // 32)
    table = data.draw(
        st.lists(st.lists(block, min_size=width, max_size=width), min_size=rows, max_size=rows)
    )
    token = st.tuples(st.integers(0, rows - 1), st.integers(0, width * block_size - 1))
    tokens = data.draw(st.lists(token, min_size=4, max_size=12))
    index = data.draw(st.sampled_from(["int32", "int64"]))
    p = Program()
    slots = p.call(
        HERE + "compute_slot_mapping",
        tensor(p, table, "int32"),
        tensor(p, [row for row, _ in tokens], index),
        tensor(p, [position for _, position in tokens], index),
        block_size,
    )
    p.see(slots)
    same(subject, reference, p)


@many
@given(data=st.data())
def test_04_3_gather_any_table(subject: Any, reference: Any, data: Any) -> None:
    """Any length, order of pages and type; garbage behind the last page."""
    block_size, blocks = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    seq_len = data.draw(st.integers(1, block_size * blocks))
    table = data.draw(st.permutations(range(blocks)))
    used = -(-seq_len // block_size)
    p = Program()
    dtype = data.draw(st.sampled_from(["float32", "float16"]))
    cache = tensor(p, numbers(seq_len, 2, blocks, block_size, 2, 3), dtype)
    entries = tensor(p, [*table[:used], *[10**6] * (blocks - used)], "int32")
    result = p.call(HERE + "gather_kv", cache, entries, seq_len)
    p.see(result[0])
    p.see(result[1])
    same(subject, reference, p)


@many
@given(data=st.data())
def test_04_3_any_mask(subject: Any, reference: Any, data: Any) -> None:
    """Any number of new tokens behind any number of computed ones, any window."""
    query_len, before = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 9))
    window = data.draw(st.one_of(st.none(), st.integers(1, 20)))
    p = Program()
    mask = p.call(HERE + "causal_mask", query_len, query_len + before, window)
    p.see(mask.tolist())
    same(subject, reference, p)


@many
@given(data=st.data())
def test_04_3_attend_any_shape(subject: Any, reference: Any, data: Any) -> None:
    """Any groups, sizes and dtypes; logits up to thousands."""
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    dim, length = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 12))
    new = data.draw(st.integers(1, length))
    dtype = data.draw(st.sampled_from(["float32", "float16"]))
    p = Program()
    query = tensor(p, numbers(1, new, kv_heads * group, dim), dtype)
    keys = tensor(p, numbers(2, length, kv_heads, dim), dtype)
    values = tensor(p, numbers(3, length, kv_heads, dim), dtype)
    visible = np.tril(np.ones((new, length), bool), length - new).tolist()
    mask = tensor(p, visible, "bool")
    scale = data.draw(st.sampled_from([0.125, 1.0, 300.0]))
    p.see(p.call(HERE + "attend", query, keys, values, mask, scale))
    same(subject, reference, p, 1e-5 if dtype == "float32" else 1.1e-3)


@many
@given(data=st.data())
def test_04_3_any_ragged_batch(subject: Any, reference: Any, data: Any) -> None:
    """Decodes first, then chunks and prompts; pages anywhere; sometimes a window."""
    decodes = data.draw(st.lists(st.integers(0, 9), max_size=3))
    chunk = st.tuples(st.integers(2, 6), st.integers(0, 9))
    chunks = data.draw(st.lists(chunk, min_size=0 if decodes else 1, max_size=3))
    requests = [(1, before) for before in decodes] + chunks
    block_size = data.draw(st.sampled_from([1, 4]))
    window = data.draw(st.one_of(st.none(), st.integers(1, 6)))
    query_lens, seq_lens = [n for n, _ in requests], [n + before for n, before in requests]
    needs = [-(-length // block_size) for length in seq_lens]
    ids = data.draw(st.permutations(range(1, sum(needs) + 1)))
    tables = [ids[sum(needs[:i]) : sum(needs[: i + 1])] for i in range(len(needs))]
    p = Program()
    metadata = p.call(
        "mini_vllm.attention.metadata:AttentionMetadata.from_lists",
        query_lens, seq_lens, [list(table) for table in tables], block_size,
    )  # fmt: skip
    query = tensor(p, numbers(5, sum(query_lens), 4, 3))
    cache = tensor(p, numbers(6, 2, sum(needs) + 1, block_size, 2, 3))
    p.see(p.call(HERE + "paged_attention", query, cache, metadata, 0.7, window))
    same(subject, reference, p)


# ------------------------------------------------------------------ what is handed over stays


@many
@given(data=st.data())
def test_04_1_tables_and_positions_stay(subject: Any, data: Any) -> None:
    """Every layer reads them after this."""
    block_size = data.draw(st.integers(1, 9))
    positions = data.draw(st.lists(st.integers(0, 4 * block_size - 1), min_size=1, max_size=9))
    index = data.draw(st.sampled_from(["int32", "int64"]))
    rows = [number % 2 for number in range(len(positions))]
    table = [[4, 3, 2, 2**31 - 1], [9, 8, 2**30 + 1, 6]]
    p = Program()
    given_tensors = [tensor(p, table, "int32"), tensor(p, rows, index), tensor(p, positions, index)]
    slots = p.call(HERE + "compute_slot_mapping", *given_tensors, block_size)
    for one in (slots, *given_tensors):
        p.see(one.tolist())
    right = [
        table[row][position // block_size] * block_size + position % block_size
        for row, position in zip(rows, positions, strict=True)
    ]
    assert subject.run(p) == [right, table, rows, positions]


def test_04_3_gathered_pages_are_a_copy(subject: Any) -> None:
    """To write to them writes to no cache, in however few pages they lie."""
    for table, seq_len in (([1], 3), ([1], 4), ([1, 2], 8), ([2, 1, 3], 9)):
        p = Program()
        cache = p.call("torch:ones", 2, 4, 4, 1, 2)
        keys = p.call(HERE + "gather_kv", cache, tensor(p, table, "int32"), seq_len)
        for one in (keys[0], keys[1]):
            one.fill_(7.0)
        p.see(cache.sum().item())
        assert subject.run(p) == [64.0], f"pages {table}, {seq_len} tokens"


@pytest.mark.parametrize("window", [None, 3])
def test_04_3_a_mask_is_made_where_it_is_asked_for(subject: Any, window: int | None) -> None:
    """The device "meta" holds shapes without numbers: only what was made there is there."""
    p = Program()
    mask = p.call(HERE + "causal_mask", 2, 5, window, p.call("torch:device", "meta"))
    p.see(mask.device.type)
    p.see(p.call("builtins:tuple", mask.shape))
    assert subject.run(p) == ["meta", (2, 5)]


@pytest.mark.parametrize("window", [16, 100, 4000, None])
def test_04_3_a_mask_of_any_length(subject: Any, window: int | None) -> None:
    """Long contexts and wide windows: each row sees as many as it may."""
    p = Program()
    p.see(p.call(HERE + "causal_mask", 3, 6000, window).sum(1).tolist())
    assert subject.run(p) == [[min(5998 + row, window or 6000) for row in range(3)]]


@many
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.25, 3.0]))
def test_04_3_attention_writes_to_nothing(subject: Any, seed: int, scale: float) -> None:
    """The same query may be read again, and every layer has the same mask."""
    p = Program()
    query, keys, values = (numbers(seed + n, 3, 2, 4) for n in range(3))
    mask = np.tril(np.ones((3, 3), bool)).tolist()
    handed = [*(tensor(p, one) for one in (query, keys, values)), tensor(p, mask, "bool")]
    p.see(p.call(HERE + "attend", *handed, scale))
    p.see(p.call(HERE + "attend", *handed, scale))
    for one in handed:
        p.see(one)
    first, second, *after = subject.run(p)
    assert np.array_equal(first, second)
    for before, now in zip((query, keys, values, mask), after, strict=True):
        assert np.array_equal(np.asarray(before, now.dtype), now)


def test_04_3_every_layer_reads_one_batch(subject: Any, reference: Any) -> None:
    """Layers differ in their cache and their window, and share query lengths, tables and metadata:
    nothing is remembered from one to the next, and nothing is used up."""
    p = Program()
    metadata = p.call(
        "mini_vllm.attention.metadata:AttentionMetadata.from_lists",
        [1, 3], [6, 5], [[3, 1], [2, 4]], 4,
    )  # fmt: skip
    query = tensor(p, numbers(5, 4, 4, 3))
    for seed, window in ((6, None), (7, None), (7, 2), (6, 3), (6, None)):
        cache = tensor(p, numbers(seed, 2, 5, 4, 2, 3))
        p.see(p.call(HERE + "paged_attention", query, cache, metadata, 0.7, window))
        p.see(query)
        p.see([metadata.query_lens_cpu, metadata.seq_lens_cpu])
        p.see(metadata.block_table.tolist())
    same(subject, reference, p)
