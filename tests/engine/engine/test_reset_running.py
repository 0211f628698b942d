"""``reset_prefix_cache(reset_running_requests=True)``: all KV is forgotten; no answer changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mini_vllm import AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine, SamplingParams
from mini_vllm.sampling_params import StructuredOutputsParams

SMALL = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 64, "block_size": 16}
"""In bfloat16 a prompt computed anew rounds otherwise than one decoded: near ties may change."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {"temperature": 0}),
    "seeded": ({}, {"temperature": 1.0, "seed": 3, "n": 2}),
    "penalties": ({}, {"temperature": 0, "repetition_penalty": 1.5, "min_tokens": 5}),
    "drafts": (
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        {"temperature": 0},
    ),
    "grammar": ({}, {"temperature": 0, "structured_outputs": StructuredOutputsParams(json=SCHEMA)}),
    "replicas": ({"data_parallel_size": 2}, {"temperature": 0}),
}


def texts(
    config: dict[str, Any], params: dict[str, Any], reset: bool
) -> dict[tuple[str, int], str]:
    """Answers to three prompts; in the middle of the first all is forgotten."""
    args = EngineArgs("storyteller", max_num_seqs=4, **SMALL, **config)
    engine = LLMEngine.from_engine_args(args)
    for number, prompt in enumerate(("Once upon a time", "The cat sat", "Tom said to Ann that")):
        engine.add_request(str(number), prompt, SamplingParams(max_tokens=24, **params))
    found: dict[tuple[str, int], str] = {}
    while engine.has_unfinished_requests():
        if reset and any(len(text) > 3 for text in found.values()):
            reset = False
            assert not engine.reset_prefix_cache()
            assert engine.reset_prefix_cache(reset_running_requests=True)
            for core in engine.cores:
                assert core.scheduler.kv_cache_manager.usage == 0
                assert not core.scheduler.running
        for output in engine.step():
            found |= {(output.request_id, one.index): one.text for one in output.outputs}
    assert not reset
    engine.shutdown()
    return found


@pytest.mark.parametrize("name", FEATURES)
def test_answers_do_not_change(name: str) -> None:
    config, params = FEATURES[name]
    plain = texts(config, params, reset=False)
    assert texts(config, params, reset=True) == plain


def test_requests_kept_over_a_pause_are_computed_anew() -> None:
    args = AsyncEngineArgs("storyteller", **SMALL)
    engine = AsyncLLM.from_engine_args(args)

    async def answer(pause: bool) -> tuple[str, int]:
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        paused = False
        async for output in engine.generate("Once upon a time", params, f"r{pause}"):
            if pause and not paused and len(output.outputs[0].token_ids) >= 5:
                paused = True
                await engine.pause_generation(mode="keep")  # clear_cache is the default
                assert await engine.is_paused()
                await engine.resume_generation()
        return output.outputs[0].text, output.num_cached_tokens

    async def both() -> list[tuple[str, int]]:
        return [await answer(False), await answer(True)]

    try:
        (plain, _), (kept, _) = asyncio.run(both())
        assert kept == plain
    finally:
        engine.shutdown()


def test_what_a_connector_keeps_is_not_reset() -> None:
    engine = LLMEngine.from_engine_args(EngineArgs("storyteller", **SMALL))
    with pytest.raises(ValueError, match="reset_connector is True; only False"):
        engine.reset_prefix_cache(reset_connector=True)
