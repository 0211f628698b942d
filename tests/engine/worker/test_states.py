"""Layers that keep a state: pages in the same pool, never a stranger's, never a broken one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.model.families import FAMILIES
from mini_vllm.model.registry import MODELS
from mini_vllm.request import Request
from tests.engine.worker.remembering import RememberingForCausalLM, plain_tokens

NAME = "RememberingForCausalLM"
SHAPE: dict[str, Any] = dict(
    architectures=[NAME], vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=4,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=1024,
)  # fmt: skip
PROMPTS = [[5], list(range(40)), list(range(24)) + [70, 71], [9, 8] * 20, list(range(40))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("states")
    (path / "config.json").write_text(json.dumps(SHAPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, NAME, RememberingForCausalLM)
        patch.setitem(FAMILIES, NAME, {})
        yield path


def make(folder: Path, **options: Any) -> LLM:
    usual: dict[str, Any] = dict(
        load_format="dummy", skip_tokenizer_init=True, dtype="float32", block_size=4,
        num_gpu_blocks=120, max_model_len=96, max_num_seqs=4, max_num_batched_tokens=24,
    )  # fmt: skip
    return LLM(folder, **(usual | options))


def run(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[str]:
    """Errors of requests; the tokens of the others must be those of the text computed at once."""
    params = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    outputs = llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
    core = llm.engine.core
    core.scheduler.check_integrity()
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        text = prompt + tokens
        assert output.error or (
            tokens == plain_tokens(core.model, text)[len(prompt) - 1 : -1] and len(tokens) == 14
        )
    return [output.error or "" for output in outputs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_gpu_blocks": 40, "scheduler_reserve_full_isl": False, "async_scheduling": True},
        {"enable_prefix_caching": False, "max_num_batched_tokens": 7},
    ],
    ids=["plain", "preempted, late", "uncached"],
)
def test_tokens_are_those_of_the_whole_text_computed_anew(
    folder: Path, options: dict[str, Any]
) -> None:
    """Memory is full of NaN at the start, and again in what is free behind each step."""
    llm = make(folder, **options)
    core = llm.engine.core
    tensors = core.model_runner.kv_cache.tensors
    tensors[0][:, 1:] = float("nan")  # the null block is read where tables are padded, and masked
    preempted: list[str] = []

    def observe(plan: Any, *_: Any) -> None:
        preempted.extend(plan.preempted_req_ids)
        pool = core.scheduler.kv_cache_manager.block_pool
        free = [b.block_id for b in pool.blocks[1:] if not b.ref_cnt and b.block_hash is None]
        if not core.batch_queue:
            tensors[0][:, free] = float("nan")

    core.observers.append(observe)
    assert run(llm) == run(llm) == [""] * len(PROMPTS)
    stats = core.scheduler.kv_cache_manager.prefix_cache_stats
    assert bool(stats.hits) == options.get("enable_prefix_caching", True)
    assert bool(preempted) == ("num_gpu_blocks" in options)


def test_what_a_state_left_is_no_key_or_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without our kernels whole blocks are read, and then masked: NaN would stay NaN."""
    monkeypatch.setattr("mini_vllm.kernels.native.can_run", lambda *tensors: False)
    test_tokens_are_those_of_the_whole_text_computed_anew(folder, {})


def test_a_broken_state_fails_its_request_alone(folder: Path) -> None:
    """Token 96 breaks the state of a request: in the first of two chunks of a prompt, with
    others beside it, which share its begin."""
    llm = make(folder)
    llm.engine.core.model.model.embed_tokens.weight.data[96] = float("nan")
    broken = [3] * 10 + [96] + [4] * 29
    for prompts in ([PROMPTS[1], broken, PROMPTS[3]], [broken, [3] * 10 + [4], broken[:22]]):
        errors = run(llm, prompts)
        assert ["NaN or infinite" in error for error in errors] == [96 in p for p in prompts]
    assert run(llm) == [""] * len(PROMPTS)


def test_a_state_that_breaks_once_is_not_found(folder: Path) -> None:
    """In the second of three chunks: the request fails at once, and its like is served."""
    llm = make(folder)
    steps = iter(range(1000))

    def spoil(layer: Any, args: Any) -> Any:
        return (args[0] * float("nan"), *args[1:]) if next(steps) == 1 else args

    llm.engine.core.model.model.layers[1].self_attn.register_forward_pre_hook(spoil)
    prompt = list(range(72))
    assert "NaN or infinite" in run(llm, [prompt])[0]
    assert next(steps) == 2, "the third chunk was not computed"
    assert run(llm, [prompt]) == [""]


def test_sleep_and_a_reset_leave_no_state(folder: Path) -> None:
    llm = make(folder)
    core = llm.engine.core
    llm.sleep()
    llm.wake_up()
    assert run(llm) == [""] * len(PROMPTS)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        core.add_request(Request(str(index), prompt, params))
    requests = list(core.scheduler.requests.values())
    for _ in range(6):
        core.step()
    core.reset_prefix_cache(reset_running_requests=True)
    while core.has_requests():
        core.step()
    for request in requests:
        tokens = plain_tokens(core.model, request.all_token_ids)
        assert request.output_token_ids == tokens[request.num_prompt_tokens - 1 : -1]


def test_blocks_grow_until_one_holds_a_state(folder: Path) -> None:
    """A plane takes 64 bytes a token, and the matrix 256 bytes, the tail 192."""
    llm = make(folder, block_size=2, max_num_batched_tokens=64)
    core = llm.engine.core
    assert core.config.cache.block_size == core.model_runner.batch.block_size == 16
    assert run(llm) == [""] * len(PROMPTS)
    with pytest.raises(ValueError, match=r"max_num_batched_tokens is 9; a block of 16 tokens"):
        make(folder, block_size=2, max_num_batched_tokens=9)


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        {"kv_cache_dtype": "fp8"},
        {"disable_hybrid_kv_cache_manager": True},
        {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}},
    ],
)
def test_what_a_state_does_not_go_with_is_refused(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="layers that keep a state does not go with"):
        make(folder, **options)
