"""Results one step late: the engine really has two plans on their way, and no token changes.

`test_chaos.py` and `test_combinations.py` draw late results, too. On a CPU the tokens are hidden
from the engine until it asks for them (`worker.late_results.HostCopy`), so what is late on a GPU is
late here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.config import combinations
from mini_vllm.config.engine import EngineConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.checked_config import check_shape, load_model_args
from mini_vllm.errors import EngineDeadError
from mini_vllm.policies.base import Policy
from mini_vllm.request import Request

MODEL = "storyteller-draft"
LIMITS: dict[str, Any] = {
    "dtype": "float32", "block_size": 4, "num_gpu_blocks": 40, "max_model_len": 64,
    "max_num_batched_tokens": 24,
}  # fmt: skip
PROMPTS = [[200, 201, 202], list(range(300, 322)), [700] * 9, list(range(300, 318)), [5, 6]]


@pytest.fixture(scope="module")
def in_time() -> Iterator[LLM]:
    llm = LLM(MODEL, async_scheduling=False, **LIMITS)
    yield llm
    llm.shutdown()


@pytest.fixture(scope="module")
def late() -> Iterator[LLM]:
    llm = LLM(MODEL, async_scheduling=True, **LIMITS)
    yield llm
    llm.shutdown()


@pytest.fixture(autouse=True)
def fresh(in_time: LLM, late: LLM) -> None:
    for llm in (in_time, late):
        llm.reset_prefix_cache()


def story(llm: LLM, params: dict[str, Any]) -> list[Any]:
    """All that a caller sees, of all prompts together."""
    outputs = llm.generate(PROMPTS, SamplingParams(**{"max_tokens": 10} | params), use_tqdm=False)
    return [
        (o.error, o.prompt_logprobs, [(c.token_ids, c.text, c.finish_reason, c.stop_reason,
                                       c.logprobs) for c in o.outputs])
        for o in outputs
    ]  # fmt: skip


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 3, "top_p": 0.9},
    "three each": {"seed": 3, "n": 3},
    "stop strings": {"temperature": 0, "stop": ["e"], "min_tokens": 2},
    "stop tokens": {"temperature": 0, "stop_token_ids": list(range(13, 400))},
    "one token": {"temperature": 0, "max_tokens": 1},
    "to the end": {"temperature": 0, "max_tokens": None, "ignore_eos": True},
    "penalties": {"seed": 3, "presence_penalty": 0.5, "repetition_penalty": 1.3},
    "bad words": {"temperature": 0, "bad_words": ["e", "the", "a b"]},
    "logprobs": {"temperature": 0, "logprobs": 3, "prompt_logprobs": 2},
    "named logprobs": {"temperature": 0, "logprob_token_ids": [5, 9]},
    "a grammar": {"temperature": 0, "structured_outputs": {"regex": "[a-z ]{3,6}"}},
    "repetition": {
        "temperature": 0,
        "repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_late_results_change_nothing_that_a_caller_sees(kind: str, in_time: LLM, late: LLM) -> None:
    assert story(late, KINDS[kind]) == story(in_time, KINDS[kind])


def test_two_plans_are_on_their_way(in_time: LLM, late: LLM) -> None:
    """And the host does not know the newest tokens while the next step is prepared."""
    for llm, most in ((in_time, 0), (late, 1)):
        core = llm.engine.core
        left: list[int] = []
        unknown: list[int] = []

        def watch(*_: Any, core: Any = core, left: Any = left, unknown: Any = unknown) -> None:
            left.append(len(core.batch_queue))
            states = core.model_runner.requests.values()
            unknown.append(sum(s.output_token_ids.count(-1) for s in states))

        core.observers.append(watch)
        story(llm, {"temperature": 0, "ignore_eos": True})
        core.observers.clear()
        assert max(left) == most
        assert max(unknown) == most * len(PROMPTS)
        assert sum(left) >= most * (len(left) - 2), "only the last step has nothing behind it"


def test_a_row_that_fails_ends_its_request_only(
    in_time: LLM, late: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that was fed on it fails as well; that one is not reported."""
    expected = story(in_time, {"temperature": 0, "ignore_eos": True})
    model = late.engine.core.model
    compute, calls = model.compute_logits, []

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden)
        calls.append(len(hidden))
        if len(calls) == 6:
            logits[0] = math.nan
        return logits

    monkeypatch.setattr(model, "compute_logits", broken)
    told = story(late, {"temperature": 0, "ignore_eos": True})
    errors = [error for error, _, _ in told]
    assert [error is not None and "NaN" in error for error in errors].count(True) == 1
    assert [a for a in told if a[0] is None] == [
        b for a, b in zip(told, expected, strict=True) if a[0] is None
    ]


def test_a_reused_id_does_not_get_the_token_of_the_old_request(late: LLM) -> None:
    core = late.engine.core
    greedy = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    core.add_request(Request("r0", PROMPTS[0], greedy))
    core.fill()  # a plan of the first r0 is on its way
    core.abort_requests(["r0"])
    core.add_request(Request("r0", PROMPTS[1], greedy))
    told = []
    while core.has_requests():
        told += [token for output in core.step() for token in output.new_token_ids]
    alone = late.generate(PROMPTS[1], greedy, use_tqdm=False)[0].outputs[0].token_ids
    assert told == alone


def test_requests_may_come_and_go_at_any_step(in_time: LLM, late: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    alone = {tuple(p): in_time.generate(p, params, use_tqdm=False)[0].outputs[0].token_ids
             for p in PROMPTS}  # fmt: skip
    for when in range(7):
        engine, kept = late.engine, []
        gone = engine.submit("gone", PROMPTS[0], params)
        for index, prompt in enumerate(PROMPTS[1:]):
            kept.append((prompt, engine.submit(f"r{index}", prompt, params)))
            engine.step()
        for _ in range(when):
            engine.step()
        engine.abort_requests(["gone"])
        while engine.has_unfinished_requests():
            engine.step()
            engine.core.scheduler.check_integrity()
        assert gone.finished
        for prompt, output in kept:
            assert output.outputs[0].token_ids == alone[tuple(prompt)]


def test_the_engine_can_sleep_when_all_have_ended(late: LLM) -> None:
    before = story(late, {"temperature": 0})
    late.sleep()
    late.wake_up()
    assert story(late, {"temperature": 0}) == before


def test_running_requests_survive_a_reset_of_the_prefix_cache(in_time: LLM, late: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    output = late.engine.submit("r0", PROMPTS[1], params)
    for _ in range(4):
        late.engine.step()
    assert late.engine.core.reset_prefix_cache(reset_running_requests=True)
    while late.engine.has_unfinished_requests():
        late.engine.step()
    expected = in_time.generate(PROMPTS[1], params, use_tqdm=False)[0]
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids


def test_a_lost_device_ends_the_engine(late: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of CUDA stays: each further step would fail, too."""
    worker = late.engine.core.executor.worker  # type: ignore[attr-defined]

    def fail(_: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(worker, "execute_model", fail)
    (output,) = late.generate(PROMPTS[0], use_tqdm=False)
    assert "illegal memory access" in str(output.error)
    monkeypatch.setattr(worker, "is_lost", lambda: True)
    with pytest.raises(EngineDeadError, match="no longer responds: an illegal memory access"):
        late.generate(PROMPTS[0], use_tqdm=False)


# ---- the default ----------------------------------------------------------------------------

SUPPORTS = frozenset({"tp", "pp", "lora", "quantization", "compile"})


def settled(works_behind: bool, scheduler_cls: Any = Scheduler, **options: Any) -> bool | None:
    config = EngineConfig.from_kwargs(MODEL, **options)
    made = combinations.settle_async_scheduling(config, SUPPORTS, scheduler_cls, works_behind)
    return made.scheduler.async_scheduling


def test_late_results_are_the_default_on_a_gpu_and_taken_on_a_cpu() -> None:
    assert settled(True) is True and settled(False) is False
    assert settled(True, async_scheduling=False) is False
    assert settled(False, async_scheduling=True) is True
    assert settled(True, Policy) is False


OTHERS: dict[str, Any] = {
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
    "kv_transfer_config": {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"},
    "pipeline_parallel_size": 2,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_forbids_them_is_named_and_switches_the_default_off(name: str) -> None:
    other = {name: OTHERS[name]}
    assert settled(True, **other) is False
    config = EngineConfig.from_kwargs(MODEL, async_scheduling=True, **other)
    with pytest.raises(ValueError, match=f"async_scheduling does not go with {name}"):
        check_shape(config, load_model_args(config.model))


def test_a_request_that_outgrows_the_pool_keeps_its_last_token() -> None:
    told = []
    for is_async in (False, True):
        llm = LLM(MODEL, async_scheduling=is_async, **LIMITS | {"num_gpu_blocks": 4})
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        (output,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        told.append((output.outputs[0].token_ids, output.outputs[0].stop_reason))
        llm.shutdown()
    assert told[0] == told[1] and told[0][1] == "kv_capacity"
