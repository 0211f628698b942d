"""`scheduler_profile="current"`: other decisions, and the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.padded_drafts import PaddedDrafts
from mini_vllm.core.retention import RetainingKVCacheManager
from mini_vllm.core.scheduler_output import PADDING_DRAFT, SchedulerOutput
from mini_vllm.sampling_params import StructuredOutputsParams

MODEL = "storyteller-draft"
LIMITS: dict[str, Any] = {
    "dtype": "float32", "block_size": 4, "num_gpu_blocks": 40, "max_model_len": 64,
    "max_num_batched_tokens": 24, "long_prefill_token_threshold": 9,
}  # fmt: skip
PROMPTS = [[200, 201, 202], list(range(300, 322)), [700] * 9, list(range(300, 318)), [5, 6]]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
DRAFT_MODEL = {"method": "draft_model", "model": MODEL, "num_speculative_tokens": 2}


def tokens(llm: LLM, prompts: list[list[int]], **params: Any) -> list[list[int]]:
    """Greedy answers, twice, so that the second time finds its prompts in the cache."""
    sampling = SamplingParams(**{"max_tokens": 10, "temperature": 0.0, "ignore_eos": True} | params)
    rounds = [llm.generate(prompts, sampling, use_tqdm=False) for _ in range(2)]
    return [output.outputs[0].token_ids for outputs in rounds for output in outputs]


def both(model: str, prompts: list[list[int]], params: Any, **options: Any) -> list[Any]:
    """The answers of the pin's decisions, then of the newer release's."""
    answers = []
    for profile in ("v0.22", "current"):
        llm = LLM(model, scheduler_profile=profile, **LIMITS | options)
        answers.append(tokens(llm, prompts, **params))
        llm.shutdown()
    return answers


@pytest.mark.parametrize(
    ("options", "params"),
    [
        ({}, {"min_tokens": 4}),
        ({"async_scheduling": True}, {}),
        ({"num_gpu_blocks": 14, "policy": "priority"}, {}),
        ({"watermark": 0.2, "long_prefill_token_threshold_adaptive": True}, {}),
        ({"speculative_config": NGRAM}, {}),
        ({"speculative_config": DRAFT_MODEL}, {}),
    ],
)
def test_no_token_depends_on_the_profile(options: dict[str, Any], params: dict[str, Any]) -> None:
    pin, newer = both(MODEL, PROMPTS, params, **options)
    assert newer == pin


@pytest.fixture
def padded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, list[int]]]:
    """The drafts of every plan, as the scheduler has made it."""
    plans: list[dict[str, list[int]]] = []
    original = PaddedDrafts.batch_inputs

    def watch(self: PaddedDrafts, output: SchedulerOutput) -> dict[str, Any]:
        answer = original(self, output)
        plans.append(dict(output.scheduled_spec_decode_tokens))
        return answer

    monkeypatch.setattr(PaddedDrafts, "batch_inputs", watch)
    return plans


@pytest.mark.parametrize("drafter", [NGRAM, DRAFT_MODEL])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3, "logprobs": 2}])
def test_placeholders_are_planned_and_never_become_tokens(
    padded: list[dict[str, list[int]]], drafter: dict[str, Any], params: dict[str, Any]
) -> None:
    """The second time all but one token of the prompt of 9 are in the cache."""
    prompts = [[700] * 9, [200, 201, 202]]
    llm = LLM(MODEL, scheduler_profile="current", speculative_config=drafter, **LIMITS)
    answers = tokens(llm, prompts, **params)
    llm.shutdown()
    k = drafter["num_speculative_tokens"]
    assert [PADDING_DRAFT] * k in [drafts for plan in padded for drafts in plan.values()]
    assert all(len(answer) == 10 and min(answer) >= 0 for answer in answers)
    if not params:
        assert answers[:2] == answers[2:]


def test_a_grammar_does_not_see_placeholders(padded: list[dict[str, list[int]]]) -> None:
    choice = StructuredOutputsParams(regex="[ab]{4}")
    llm = LLM(MODEL, scheduler_profile="current", speculative_config=NGRAM, **LIMITS)
    sampling = SamplingParams(temperature=0.0, max_tokens=10, structured_outputs=choice)
    texts = [llm.generate([[700] * 9], sampling)[0].outputs[0].text for _ in range(2)]
    llm.shutdown()
    assert any(PADDING_DRAFT in drafts for plan in padded for drafts in plan.values())
    assert texts[0] == texts[1] and len(texts[0]) == 4 and set(texts[0]) <= {"a", "b"}


GEMMA = dict(
    architectures=["Gemma3ForCausalLM"], sliding_window=9, vocab_size=97, hidden_size=32,
    intermediate_size=32, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1,
    head_dim=16, max_position_embeddings=1024,
)  # fmt: skip

UNTRAINED = {"load_format": "dummy", "skip_tokenizer_init": True, "num_gpu_blocks": 90}


@pytest.mark.parametrize("interval", [None, 0, 8])
@pytest.mark.parametrize("late", [False, True])
def test_windows_that_are_kept_here_and_there_change_no_token(
    interval: int | None, late: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    shape = UNTRAINED | {"async_scheduling": late}
    prompts = [[5] * 3, list(range(40)), [9, 8] * 20, list(range(30)) + [70, 71]]
    pin = LLM(str(tmp_path), **LIMITS | shape)
    expected = tokens(pin, prompts)
    pin.shutdown()
    llm = LLM(
        str(tmp_path), scheduler_profile="current", prefix_cache_retention_interval=interval,
        **LIMITS | shape,
    )  # fmt: skip
    manager = llm.engine.core.scheduler.kv_cache_manager  # type: ignore[attr-defined]
    assert isinstance(manager, RetainingKVCacheManager)
    assert manager.managers[0].retention_interval == (interval or 0)
    assert tokens(llm, prompts) == expected
    llm.shutdown()


def test_an_interval_must_fit_the_blocks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    with pytest.raises(ValueError, match="interval is 6; it must be a multiple of 4"):
        LLM(str(tmp_path), prefix_cache_retention_interval=6, **LIMITS | UNTRAINED)
