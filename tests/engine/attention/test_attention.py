"""Attention through block tables: the plain reference against dense attention, CPU against it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mini_vllm.attention import AttentionMetadata, get_backend
from mini_vllm.attention.reference import causal_mask, compute_slot_mapping, gather_kv, store_kv


@dataclass
class Case:
    """A batch whose context already lies in the cache, and its dense keys and values."""

    query: Tensor
    kv_cache: Tensor
    metadata: AttentionMetadata
    keys: list[Tensor]
    values: list[Tensor]


def make_case(
    lens: list[tuple[int, int]],
    block_size: int,
    num_kv_heads: int = 2,
    group_size: int = 2,
    head_dim: int = 8,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """`lens` holds (query_len, seq_len) of each request; blocks are dealt at random."""
    lens = sorted(lens, key=lambda pair: pair[0] != 1)  # decodes first
    torch.manual_seed(seed)
    needed = [-(-seq_len // block_size) for _, seq_len in lens]
    free = list(range(1, sum(needed) + 4))
    random.Random(seed).shuffle(free)
    tables = [[free.pop() for _ in range(n)] for n in needed]
    shape = (num_kv_heads, head_dim)
    kv_cache = torch.randn(2, sum(needed) + 4, block_size, *shape).to(dtype)
    keys = [torch.randn(seq_len, *shape).to(dtype) for _, seq_len in lens]
    values = [torch.randn(seq_len, *shape).to(dtype) for _, seq_len in lens]
    for table, key, value in zip(tables, keys, values, strict=True):
        rows = torch.zeros(len(key), dtype=torch.int64)
        slots = compute_slot_mapping(
            torch.tensor([table]), rows, torch.arange(len(key)), block_size
        )
        store_kv(key, value, kv_cache, slots)
    num_tokens = sum(query_len for query_len, _ in lens)
    query = torch.randn(num_tokens, num_kv_heads * group_size, head_dim)
    metadata = AttentionMetadata.from_lists(
        [query_len for query_len, _ in lens], [seq_len for _, seq_len in lens], tables, block_size
    )
    return Case(query, kv_cache, metadata, keys, values)


def dense_attention(case: Case, scale: float, window: int | None) -> Tensor:
    """Token by token and head by head: nothing shared with the code under test."""
    rows, token = [], 0
    for i, query_len in enumerate(case.metadata.query_lens_cpu):
        seq_len, key, value = len(case.keys[i]), case.keys[i].float(), case.values[i].float()
        group_size = case.query.shape[1] // key.shape[1]
        for position in range(seq_len - query_len, seq_len):
            first = 0 if window is None else max(0, position - window + 1)
            heads = []
            for head in range(case.query.shape[1]):
                k, v = key[first : position + 1, head // group_size], value[first : position + 1]
                weights = (k @ case.query[token, head] * scale).softmax(0)
                heads.append(weights @ v[:, head // group_size])
            rows.append(torch.stack(heads))
            token += 1
    return torch.stack(rows)


def test_slot_mapping_by_hand() -> None:
    block_table = torch.tensor([[7, 2, 0], [5, 1, 3]], dtype=torch.int32)
    requests = torch.tensor([0, 0, 1, 1])
    positions = torch.tensor([3, 4, 0, 11])
    slots = compute_slot_mapping(block_table, requests, positions, block_size=4)
    assert slots.dtype == torch.int64
    assert slots.tolist() == [31, 8, 20, 15]


def test_from_lists_by_hand() -> None:
    metadata = AttentionMetadata.from_lists([1, 3], [5, 3], [[7, 2], [3]], block_size=4)
    assert metadata.query_start_loc.tolist() == [0, 1, 4]
    assert metadata.slot_mapping.tolist() == [8, 12, 13, 14]
    assert metadata.block_table.tolist() == [[7, 2], [3, 0]]
    assert (metadata.max_query_len, metadata.max_seq_len, metadata.num_decode_reqs) == (3, 5, 1)


def test_causal_mask_by_hand() -> None:
    assert causal_mask(2, 5, None).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert causal_mask(2, 5, 3).int().tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_store_writes_exactly_the_named_slots(name: str) -> None:
    torch.manual_seed(0)
    kv_cache = torch.randn(2, 5, 4, 2, 8)
    before = kv_cache.clone()
    qkv = torch.randn(4, 6, 8)  # key and value are views of one product, as in the model
    key, value = qkv[:, 2:4], qkv[:, 4:]
    slots = torch.tensor([9, 4, -1, 19])
    get_backend("cpu", name).store(key, value, kv_cache, slots)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            before[0, slot // 4, slot % 4], before[1, slot // 4, slot % 4] = (
                key[token],
                value[token],
            )
    assert torch.equal(kv_cache[:, 1:], before[:, 1:])  # block 0 may take the padding


def test_gather_undoes_store() -> None:
    case = make_case([(3, 11)], block_size=4)
    keys, values = gather_kv(case.kv_cache, case.metadata.block_table[0], 11)
    assert torch.equal(keys, case.keys[0]) and torch.equal(values, case.values[0])


@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_equals_dense_attention(name: str, block_size: int, window: int | None) -> None:
    case = make_case([(1, 1), (1, 9), (1, 80), (4, 9), (4, 9), (7, 7), (3, 20)], block_size)
    out = get_backend("cpu", name).forward(case.query, case.kv_cache, case.metadata, 0.3, window)
    torch.testing.assert_close(out, dense_attention(case, 0.3, window), atol=1e-5, rtol=1e-5)


LENS = st.tuples(st.sampled_from([1, 1, 2, 5, 16]), st.integers(0, 70)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)


@settings(max_examples=120)
@given(
    lens=st.lists(LENS, min_size=1, max_size=9),
    block_size=st.sampled_from([1, 3, 4, 16]),
    num_kv_heads=st.sampled_from([1, 2, 3]),
    group_size=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([4, 20]),
    window=st.none() | st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
)
def test_cpu_equals_reference(
    lens: list[tuple[int, int]],
    block_size: int,
    num_kv_heads: int,
    group_size: int,
    head_dim: int,
    window: int | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    case = make_case(lens, block_size, num_kv_heads, group_size, head_dim, dtype, seed)
    args = (case.query, case.kv_cache, case.metadata, head_dim**-0.5, window)
    expected = get_backend("cpu", "reference").forward(*args)
    actual = get_backend("cpu", "cpu").forward(*args)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2  # bfloat16 keeps 8 bits
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def test_one_plan_serves_all_layers() -> None:
    """Layers with another window or dtype must not get each other's mask."""
    case = make_case([(1, 30), (1, 12), (6, 17)], block_size=4)
    backend, reference = get_backend("cpu", "cpu"), get_backend("cpu", "reference")
    for window in (None, 4, None, 9):
        out = backend.forward(case.query, case.kv_cache, case.metadata, 0.5, window)
        expected = reference.forward(case.query, case.kv_cache, case.metadata, 0.5, window)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert len(case.metadata.plan) == 2  # the decodes, and the prefill


def test_decode_makes_no_call_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 decodes of 65 to 128 tokens: one group, one call of the kernel."""
    calls = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: calls.append(1) or kernel(*args, **kwargs),
    )
    case = make_case([(1, 65 + i) for i in range(64)], block_size=16)
    get_backend("cpu", "cpu").forward(case.query, case.kv_cache, case.metadata, 0.3)
    assert len(calls) == 1


def test_long_and_short_contexts_are_not_padded_to_each_other() -> None:
    case = make_case([(1, 1000)] + [(1, 10)] * 20, block_size=4)
    backend = get_backend("cpu", "cpu")
    backend.forward(case.query, case.kv_cache, case.metadata, 0.3)
    padded = sum(group.size * group.seq_len for group in case.metadata.plan)
    assert padded <= 1000 + 20 * 64


def test_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match=r"attention backend 'flash' is unknown; choose one of"):
        get_backend("cpu", "flash")
