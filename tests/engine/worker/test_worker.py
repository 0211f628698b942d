"""The persistent batch and the KV cache: rows, flattening, slots, copies."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from mini_vllm.core.scheduler_output import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from mini_vllm.model.interface import KVCacheSpec
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker import kv_cache
from mini_vllm.worker.input_batch import (
    CachedRequestState,
    InputBatch,
    decodes_first,
    flatten_tokens,
)

SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=4, dtype=torch.float32)
HALF = replace(SPEC, dtype=torch.float16)


def state(req_id: str, prompt: list[int], output: list[int] | None = None) -> CachedRequestState:
    return CachedRequestState(req_id, prompt, SamplingParams(), None, list(output or []))


def test_flatten_tokens_lays_stretches_end_to_end() -> None:
    flat = flatten_tokens(np.array([1, 1, 3], np.int32), np.array([9, 4, 0], np.int32))
    assert flat.req_indices.tolist() == [0, 1, 2, 2, 2]
    assert flat.positions.tolist() == [9, 4, 0, 1, 2]
    assert flat.query_start_loc.tolist() == [0, 1, 2, 5]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50)), min_size=1, max_size=8))
def test_flatten_tokens_equals_a_loop(requests: list[tuple[int, int]]) -> None:
    scheduled, computed = (np.array(column, np.int32) for column in zip(*requests, strict=True))
    flat = flatten_tokens(scheduled, computed)
    expected = [
        (index, first + offset)
        for index, (count, first) in enumerate(requests)
        for offset in range(count)
    ]
    assert list(zip(flat.req_indices, flat.positions, strict=True)) == expected


def test_decodes_first_keeps_the_order_otherwise() -> None:
    assert decodes_first([5, 1, 3, 1]).tolist() == [1, 3, 0, 2]


def test_slot_mapping_goes_through_the_block_table() -> None:
    batch = InputBatch(max_num_reqs=2, max_model_len=16, block_size=4)
    batch.add_request(state("a", [1] * 6), [7, 3], num_computed_tokens=0)
    rows, positions = np.zeros(6, np.int64), np.arange(6)
    assert batch.slot_mapping(rows, positions).tolist() == [28, 29, 30, 31, 12, 13]


def test_a_full_batch_refuses_another_row() -> None:
    batch = InputBatch(max_num_reqs=1, max_model_len=8, block_size=4)
    batch.add_request(state("a", [1]), [1], 0)
    with pytest.raises(ValueError, match="all 1 rows are taken; raise max_num_seqs"):
        batch.add_request(state("b", [1]), [2], 0)


@given(st.data())
def test_rows_follow_a_plain_dictionary(data: st.DataObject) -> None:
    """Add, remove, condense, append: the batch always shows what a dict of lists would."""
    batch = InputBatch(max_num_reqs=5, max_model_len=12, block_size=2)
    model: dict[str, tuple[list[int], list[int]]] = {}
    for step in range(data.draw(st.integers(1, 12))):
        for req_id in data.draw(st.lists(st.sampled_from(sorted(model) or ["none"]), max_size=3)):
            batch.remove_request(req_id)
            model.pop(req_id, None)
        for number in range(data.draw(st.integers(0, 5 - len(model)))):
            req_id = f"{step}.{number}"
            prompt = data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=4))
            blocks = data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=3))
            batch.add_request(state(req_id, prompt, [5]), blocks, num_computed_tokens=0)
            model[req_id] = ([*prompt, 5], blocks)
        batch.condense()
        assert sorted(batch.req_id_to_row.values()) == list(range(len(model)))
        for req_id, (token_ids, blocks) in model.items():
            row = batch.req_id_to_row[req_id]
            assert batch.rows[row].req_id == req_id
            assert batch.token_ids[row, : batch.num_tokens[row]].tolist() == token_ids
            assert batch.block_table[row, : batch.num_blocks[row]].tolist() == blocks


def test_append_tokens_reaches_rows_and_states() -> None:
    batch = InputBatch(max_num_reqs=2, max_model_len=8, block_size=4)
    first, second = state("a", [1, 2]), state("b", [3])
    batch.add_request(first, [1], 0)
    batch.add_request(second, [2], 0)
    batch.append_tokens(np.array([1, 0]), np.array([8, 9]))
    assert batch.token_ids[0, :3].tolist() == [1, 2, 9]
    assert (first.output_token_ids, second.output_token_ids) == ([9], [8])


def test_swapping_moves_bytes() -> None:
    cache = kv_cache.KVCache(SPEC, 4, 2, torch.device("cpu"), num_host_blocks=3)
    for number, layer in enumerate(cache.layers):
        layer.copy_(torch.arange(layer.numel()).view_as(layer) + 1000 * number)
    before = [layer.clone() for layer in cache.layers]
    cache.swap_out([(1, 0), (3, 2)])
    for layer in cache.layers:
        layer[:, [1, 3]] = -1
    cache.swap_in([(2, 1), (0, 3)])
    cache.copy([(1, 2)])
    for old, new in zip(before, cache.layers, strict=True):
        assert torch.equal(new[:, 1], old[:, 3])
        assert torch.equal(new[:, 3], old[:, 1])
        assert torch.equal(new[:, 2], old[:, 3])
        assert torch.equal(new[:, 0], old[:, 0])


def test_scrubbing_leaves_only_finite_numbers() -> None:
    cache = kv_cache.KVCache(SPEC, 3, 2, torch.device("cpu"), num_host_blocks=1)
    cache.layers[0].fill_(2.0)
    cache.layers[0][0, 1] = float("nan")
    cache.host_tensors[1][1, 0] = float("-inf")
    cache.scrub()
    assert cache.layers[0][0, 1].abs().max() == 0
    assert cache.layers[0][1].min() == 2
    assert all(layer.isfinite().all() for layer in (*cache.layers, *cache.host_tensors))


def config(**limits: int) -> EngineConfig:
    return EngineConfig(
        ModelConfig("m"), CacheConfig(block_size=16), SchedulerConfig(max_num_seqs=4, **limits)
    )


def test_pool_is_sized_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    block = kv_cache.bytes_per_block(HALF, 16)
    assert block == 2 * 16 * (2 * 2 * 4 * 2)
    arguments = (config(max_model_len=64), HALF, torch.device("cpu"))
    monkeypatch.setattr(kv_cache, "available_memory", lambda *_: 9 * block + 1)
    assert kv_cache.choose_num_blocks(*arguments) == 9
    monkeypatch.setattr(kv_cache, "available_memory", lambda *_: 1000 * block)
    assert kv_cache.choose_num_blocks(*arguments) == 1 + 4 * 4, "more could never be used"
    monkeypatch.setattr(kv_cache, "available_memory", lambda *_: 4 * block)
    with pytest.raises(ValueError, match="lower max_model_len to at most 48, or set kv_"):
        kv_cache.choose_num_blocks(*arguments)


def test_available_memory_is_measured() -> None:
    free = kv_cache.available_memory(torch.device("cpu"), 0.9)
    assert 2**24 < free < 2**50
    assert kv_cache.available_memory(torch.device("cpu"), 0.1) < free


def test_bug_minivllm_72dd681_a_step_without_tokens() -> None:
    """A plan that only names finished requests runs no model, and the batch forgets them."""
    from mini_vllm.worker.model_runner import ModelRunner

    def plan(new: list[NewRequestData], finished: set[str]) -> SchedulerOutput:
        known = CachedRequestData([], [], set(), {})
        counts = {request.req_id: 1 for request in new}
        return SchedulerOutput(new, known, counts, len(new), {}, {}, [], finished)

    model, cache = Mock(), Mock()
    runner = ModelRunner(model, cache, 2, 32, 4, torch.device("cpu"))
    runner._update_states(plan([NewRequestData("r0", [5], SamplingParams(), None, [1], 0)], set()))
    result = runner.execute(plan([], {"r0"}))
    assert not model.mock_calls and not runner.requests and not runner.batch.req_id_to_row
    assert result == ModelRunnerOutput()
