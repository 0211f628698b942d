"""What the engine says of its room, and what it then has."""

from __future__ import annotations

import logging

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.model.interface import KVCacheSpec, LayerSpec
from mini_vllm.worker.capacity import bytes_per_token, num_blocks_in, requests_that_fit
from mini_vllm.worker.kv_cache import bytes_per_block


def test_a_block_is_its_tokens() -> None:
    kinds = tuple(map(LayerSpec, ("mamba", "full", "sliding_window")))
    for layers in ((), kinds):
        spec = KVCacheSpec(3, 2, 8, torch.int8, 4, 1, layers)
        assert bytes_per_block(spec, 16) == 16 * bytes_per_token(spec)
    assert bytes_per_token(spec) == 2 * 2 * 12


def test_memory_that_is_not_there_holds_no_block() -> None:
    assert [num_blocks_in(memory, 100) for memory in (-1, 99, 100, 250)] == [0, 0, 1, 2]


def test_as_many_as_are_said_run_without_a_preemption(caplog: pytest.LogCaptureFixture) -> None:
    """Five requests of full length fit, and a sixth is one too many."""
    with caplog.at_level(logging.INFO, "mini_vllm"):
        llm = LLM("storyteller", num_gpu_blocks=21, max_model_len=64, max_num_seqs=8)
    assert requests_that_fit(21, 16, 64) == 5
    assert "5 requests of max_model_len=64 fit at a time" in caplog.text
    preempted: list[str] = []
    llm.engine.core.observers.append(lambda plan, *_: preempted.extend(plan.preempted_req_ids))
    for count in (5, 6):
        assert not preempted
        prompts = [[100 + index] * 10 for index in range(count)]
        params = SamplingParams(max_tokens=54, ignore_eos=True, temperature=0)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == 54 for output in outputs)
    assert preempted
    llm.shutdown()
