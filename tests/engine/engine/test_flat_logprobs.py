"""``flat_logprobs``: the same logprobs in a few lists, read like a list of dicts."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.async_llm import AsyncEngineArgs, AsyncLLM
from mini_vllm.logprobs import FlatLogprobs
from mini_vllm.outputs import Logprob
from mini_vllm.sampling_params import RequestOutputKind

SMALL: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks": 64}
PROMPTS = ["Once upon a time there was", "The sun"]


def params(**more: Any) -> SamplingParams:
    given = {"logprobs": 3, "prompt_logprobs": 2, "seed": 7, "max_tokens": 9, "n": 2}
    return SamplingParams(**given | more)


def test_it_holds_what_the_dicts_hold() -> None:
    llm = LLM("storyteller", **SMALL, max_num_batched_tokens=16)
    for stop in (None, [" a"]):
        dicts = llm.generate(PROMPTS, params(stop=stop), use_tqdm=False)
        flats = llm.generate(PROMPTS, params(stop=stop, flat_logprobs=True), use_tqdm=False)
        for one, other in zip(dicts, flats, strict=True):
            assert isinstance(other.prompt_logprobs, FlatLogprobs)
            assert one.prompt_logprobs is not None
            assert list(other.prompt_logprobs) == [{}, *one.prompt_logprobs[1:]]
            for a, b in zip(one.outputs, other.outputs, strict=True):
                assert isinstance(b.logprobs, FlatLogprobs)
                assert list(b.logprobs) == a.logprobs and b.token_ids == a.token_ids
                assert b.cumulative_logprob == a.cumulative_logprob
    assert dataclasses.asdict(flats[0])["outputs"][0]["logprobs"]["token_ids"]


@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE])
def test_it_is_streamed(kind: RequestOutputKind) -> None:
    async def read() -> list[Any]:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs("storyteller", **SMALL))
        wanted = params(flat_logprobs=True, output_kind=kind, n=1)
        try:
            return [o.outputs[0] async for o in engine.generate(PROMPTS[0], wanted, "0")]
        finally:
            engine.shutdown()

    outputs = asyncio.run(read())
    assert all(len(output.logprobs) == len(output.token_ids) for output in outputs)
    assert all(isinstance(output.logprobs, FlatLogprobs) for output in outputs)
    lengths = [len(output.logprobs) for output in outputs]
    assert (sum(lengths) if kind == RequestOutputKind.DELTA else lengths[-1]) == 9


ONE, TWO = {5: Logprob(-1.0, 1, "a"), 6: Logprob(-2.0, 2, "b")}, {7: Logprob(-0.5, 1, None)}


def test_it_is_read_and_changed_like_a_list() -> None:
    plain: list[Any] = [{}, ONE, TWO]
    flat = FlatLogprobs()
    flat.extend([None, ONE, TWO])
    assert (flat.start_indices, flat.end_indices) == ([0, 0, 2], [0, 2, 3])
    assert (flat.token_ids, flat.logprobs) == ([5, 6, 7], [-1.0, -2.0, -0.5])
    assert (flat.ranks, flat.decoded_tokens) == ([1, 2, 1], ["a", "b", None])
    assert (len(flat), list(flat), flat[-1], flat[1]) == (3, plain, TWO, ONE)
    for part in (slice(1, None), slice(0, 0), slice(None, -1), slice(5, 9), slice(None, None, 2)):
        assert list(flat[part]) == plain[part]
    assert list(flat + flat) == list([*plain] + flat) == plain * 2 and len(flat) == 3
    for part in (slice(1, 2), slice(3, 4), slice(0, 9), slice(2, 1)):
        flat[part], plain[part] = [TWO, ONE], [TWO, ONE]
        assert list(flat) == plain
    flat.insert(1, ONE)
    plain.insert(1, ONE)
    for first in (4, 9, -1, 0):
        del flat[first:], plain[first:]
        assert list(flat) == plain
    assert flat == FlatLogprobs() and not flat


def test_what_it_cannot() -> None:
    flat = FlatLogprobs() + [ONE, TWO]
    with pytest.raises(IndexError):
        flat[2]
    with pytest.raises(TypeError, match="positions are changed by slices"):
        flat[0] = [ONE]
    with pytest.raises(TypeError, match=r"only the last positions can be deleted: del flat\[5:\]"):
        del flat[0:1]
    with pytest.raises(ValueError, match="flat_logprobs is 1; it must be True or False"):
        SamplingParams(flat_logprobs=1)  # type: ignore[arg-type]
