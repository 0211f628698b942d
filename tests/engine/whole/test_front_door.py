"""vLLM's front door: what a script written for it may ask of `LLM` and `SamplingParams`."""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from tqdm import tqdm

import mini_vllm
from mini_vllm import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    EngineArgs,
    LLMEngine,
    PoolingRequestOutput,
    PromptType,
    RepetitionDetectionParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from mini_vllm.core.repetition import is_repeating
from mini_vllm.distributed import cleanup_dist_env_and_memory
from mini_vllm.engine.tokenization import PromptTokenizer, Tokenization
from mini_vllm.observability.reader import Counter, Gauge, Histogram
from mini_vllm.policies import POLICIES
from mini_vllm.sample.custom import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor
from mini_vllm.worker.sample_step import tokens_to_avoid

PROMPTS = ["Once upon a time", "The little dog", "She said"]
GREEDY = dict(temperature=0.0, max_tokens=24, ignore_eos=True)
SIZES: dict[str, Any] = dict(dtype="float32", max_model_len=128, num_gpu_blocks=64)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("storyteller-draft", **SIZES)


def texts(llm: LLM, params: SamplingParams | None = None) -> list[str]:
    outputs = llm.generate(PROMPTS, params or SamplingParams(**GREEDY), use_tqdm=False)
    return [output.outputs[0].text for output in outputs]


def occurs(words: list[list[int]], token_ids: list[int]) -> bool:
    return any(
        token_ids[start : start + len(word)] == word
        for word in words
        for start in range(len(token_ids))
    )


def spelled(llm: LLM, word: str) -> list[list[int]]:
    params = SamplingParams(bad_words=[word])
    params.update_from_tokenizer(llm.get_tokenizer())
    return params.bad_words_token_ids or []


def test_bad_words_are_not_said(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, SamplingParams(**GREEDY), use_tqdm=False)
    said = [output.outputs[0].token_ids for output in outputs]
    words = {word.strip(".,") for output in outputs for word in output.outputs[0].text.split()}
    bad = [word for word in sorted(words) if any(occurs(spelled(llm, word), s) for s in said)]
    assert len(bad) > 5, "none of what is said is spelled as a word that may be forbidden"
    for some in (bad[:1], bad):
        params = SamplingParams(**GREEDY, bad_words=some)
        now = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, params, use_tqdm=False)]
        assert now != said
        assert not any(occurs(spelled(llm, word), tokens) for word in some for tokens in now)


def test_bug_vllm_23886_a_word_after_a_space_is_forbidden_however_it_is_spelled(llm: LLM) -> None:
    """ " there" is one token of the vocabulary, and "there" is several."""
    encode = llm.get_tokenizer().encode
    plain, spaced = (encode(text, add_special_tokens=False) for text in ("there", " there"))
    assert len(plain) > len(spaced) == 1 and spelled(llm, "there") == [plain, spaced]
    once = SamplingParams(**GREEDY)
    now = SamplingParams(**GREEDY, bad_words=["there"])
    said, other = (
        llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].token_ids
        for params in (once, now)
    )
    assert spaced[0] in said and spaced[0] not in other


def test_only_the_last_token_of_a_long_word_is_ruled_out(llm: LLM) -> None:
    """Another word with the same beginning may still be said; the beginning, too."""
    tokens = llm.generate(PROMPTS[0], SamplingParams(**GREEDY), use_tqdm=False)[0].outputs[0]
    three = tokens.token_ids[4:7]
    assert list(tokens_to_avoid([three], tokens.token_ids[:6])) == [three[-1]]
    assert list(tokens_to_avoid([three], tokens.token_ids[:5])) == []
    assert list(tokens_to_avoid([[7]], [])) == [7]


def test_bad_words_harm_no_neighbour(llm: LLM) -> None:
    plain = texts(llm)
    first = llm.generate(PROMPTS[1], SamplingParams(**GREEDY), use_tqdm=False)[0].outputs[0]
    word = next(word for word in first.text.split() if occurs(spelled(llm, word), first.token_ids))
    bad = SamplingParams(**GREEDY, bad_words=[word])
    params = [SamplingParams(**GREEDY), bad, SamplingParams(**GREEDY)]
    mixed = [o.outputs[0].text for o in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert (mixed[0], mixed[2]) == (plain[0], plain[2]) and mixed[1] != plain[1]


def test_min_tokens_forbids_the_end_also_where_it_ends_nothing(llm: LLM) -> None:
    end = llm.engine.core.model_args.eos_token_id
    for ignore_eos, min_tokens, num_tokens in ((True, 3, 6), (False, 3, 4), (True, 0, 6)):
        params = SamplingParams(
            temperature=0, max_tokens=6, min_tokens=min_tokens, ignore_eos=ignore_eos,
            logit_bias={end: 100},
        )  # fmt: skip
        token_ids = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].token_ids
        assert end not in token_ids[:min_tokens] and len(token_ids) == num_tokens
        assert set(token_ids[min_tokens:]) == {end}


def test_logprobs_are_those_of_the_model_whatever_is_ruled_out(llm: LLM) -> None:
    plain = llm.generate(PROMPTS[0], SamplingParams(**GREEDY, logprobs=2), use_tqdm=False)[0]
    first = plain.outputs[0].token_ids[0]
    word = llm.get_tokenizer().decode([first])
    params = SamplingParams(**GREEDY, logprobs=2, bad_words=[word])
    other = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0]
    assert plain.outputs[0].logprobs is not None and other.logprobs is not None
    before, after = plain.outputs[0].logprobs[0], other.logprobs[0]
    assert before[first].logprob == pytest.approx(after[first].logprob)


def test_as_many_logprobs_as_the_engine_was_started_for(llm: LLM) -> None:
    some, everything = (LLM("storyteller-draft", **SIZES, max_logprobs=n) for n in (50, -1))
    size = llm.engine.core.model_args.vocab_size
    for chosen, wanted, found in ((llm, 20, 20), (some, 50, 50), (everything, -1, size)):
        params = SamplingParams(**GREEDY, logprobs=wanted, prompt_logprobs=wanted)
        output = chosen.generate(PROMPTS[0], params, use_tqdm=False)[0]
        assert output.outputs[0].logprobs is not None and output.prompt_logprobs is not None
        for entries in (*output.outputs[0].logprobs, *output.prompt_logprobs[1:]):
            assert entries is not None and found <= len(entries) <= found + 1
    for chosen, wanted, message in (
        (llm, 21, "is 21; it must be between 0 and 20, the engine's max_logprobs"),
        (llm, -1, f"is -1; it must be between 0 and 20, .*all {size} of the vocabulary"),
        (some, 51, "is 51; it must be between 0 and 50"),
        (everything, size + 1, f"is {size + 1}; it must be between 0 and {size}"),
    ):
        for name in ("logprobs", "prompt_logprobs"):
            with pytest.raises(ValueError, match=f"^{name} {message}"):
                chosen.generate(PROMPTS[0], SamplingParams(**{name: wanted}), use_tqdm=False)
    with pytest.raises(ValueError, match="max_logprobs is -2"):
        LLM("storyteller-draft", **SIZES, max_logprobs=-2)


def test_logprobs_of_chosen_tokens(llm: LLM) -> None:
    everything = llm.generate(PROMPTS[0], SamplingParams(**GREEDY, logprobs=20), use_tqdm=False)[
        0
    ].outputs[0]
    assert everything.logprobs is not None
    chosen = list(everything.logprobs[0])[5:9]
    params = SamplingParams(**GREEDY, logprob_token_ids=chosen)
    output = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0]
    assert output.token_ids == everything.token_ids and output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids)
    for token_id, entries in zip(output.token_ids, output.logprobs, strict=True):
        assert list(entries) == list(dict.fromkeys([token_id, *chosen]))
    for token_id in chosen:
        wanted = everything.logprobs[0][token_id].logprob
        assert output.logprobs[0][token_id].logprob == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(ValueError, match="logprob_token_ids holds token 99999"):
        llm.generate(PROMPTS[0], SamplingParams(logprob_token_ids=[99999]), use_tqdm=False)
    params = SamplingParams(**GREEDY, logprob_token_ids=[])  # names none, so it asks for nothing
    assert llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0].logprobs is None


@pytest.mark.parametrize(
    ("token_ids", "sizes", "expected"),
    [
        ([1, 2, 1, 2, 1, 2], (2, 1, 3), True),
        ([9, 1, 2, 1, 2, 1, 2], (4, 2, 3), True),
        ([1, 2, 1, 2, 1, 2], (1, 1, 2), False),
        ([1, 2, 1, 2], (2, 1, 3), False),
        ([5, 5, 5], (3, 0, 3), True),
        ([5, 5, 5], (3, 2, 3), False),
        ([5, 5, 5, 4], (1, 1, 3), False),
    ],
)
def test_what_repeats(token_ids: list[int], sizes: tuple[int, int, int], expected: bool) -> None:
    assert is_repeating(token_ids, RepetitionDetectionParams(*sizes)) == expected


def test_an_output_in_a_loop_is_ended(llm: LLM) -> None:
    token = llm.get_tokenizer().encode(" very")[-1]
    options = dict(**GREEDY, allowed_token_ids=[token])
    detection = {"max_pattern_size": 2, "min_count": 4}
    params = SamplingParams(**options, repetition_detection=detection)
    output = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == ([token] * 4, "repetition")
    assert output.stop_reason == "repetition_detected"
    later = SamplingParams(**options, repetition_detection=detection, min_tokens=9)
    assert len(llm.generate(PROMPTS[0], later, use_tqdm=False)[0].outputs[0].token_ids) == 9
    off = SamplingParams(**options, repetition_detection=RepetitionDetectionParams())
    assert len(llm.generate(PROMPTS[0], off, use_tqdm=False)[0].outputs[0].token_ids) == 24


def test_the_prefix_cache_is_not_read_if_that_is_asked_for(llm: LLM) -> None:
    prompt = [*range(40, 90)]
    llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)
    counts = []
    for skip in (None, True, False):
        params = SamplingParams(max_tokens=1, skip_reading_prefix_cache=skip)
        counts.append(llm.generate([prompt], params, use_tqdm=False)[0].num_cached_tokens)
    assert counts == [48, 0, 48]
    assert llm.reset_prefix_cache()
    again = llm.generate([prompt], SamplingParams(max_tokens=1), use_tqdm=False)[0]
    assert again.num_cached_tokens == 0
    with pytest.raises(ValueError, match="reset_connector is True"):
        llm.reset_prefix_cache(reset_connector=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(bad_words=[" "]), "bad_words holds ' ', which is no word"),
        (dict(bad_words="no"), "bad_words is 'no'; it must be a list of strings"),
        (dict(logprob_token_ids=["a"]), "logprob_token_ids is .*a list of token ids"),
        (dict(skip_reading_prefix_cache=1), "skip_reading_prefix_cache is 1"),
        (dict(thinking_token_budget=-2), "thinking_token_budget is -2; it must be at least 0, or"),
        (dict(repetition_detection={"max_pattern_size": 3}), "min_count is 0; a repetition has"),
        (dict(repetition_detection={"size": 3}), "unknown repetition parameter 'size'"),
        (dict(repetition_detection=3), "repetition_detection is 3; it must be"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**values)


class OnlyEven(LogitsProcessor):
    """Rules out odd tokens in rows whose request says so, by `extra_args`."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: list[int] = []
        self.lengths: list[list[int]] = []
        self.outputs: dict[int, Any] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            self.outputs = {row: output for row, _, _, output in batch_update.added}
            self.rows = [
                row
                for row, params, _, _ in batch_update.added
                if (params.extra_args or {}).get("even")
            ]
        self.lengths.append([len(self.outputs[row]) for row in self.rows])

    def apply(self, logits: Tensor) -> Tensor:
        logits[self.rows, 1::2] = -float("inf")
        return logits


def test_a_processor_of_ones_own() -> None:
    llm = LLM("storyteller-draft", **SIZES, logits_processors=[OnlyEven])
    even = SamplingParams(**GREEDY, extra_args={"even": True})
    params = [SamplingParams(**GREEDY), even, SamplingParams(**GREEDY)]
    mixed = llm.generate(PROMPTS, params, use_tqdm=False)
    plain = texts(LLM("storyteller-draft", **SIZES))
    assert [mixed[0].outputs[0].text, mixed[2].outputs[0].text] == [plain[0], plain[2]]
    assert all(token % 2 == 0 for token in mixed[1].outputs[0].token_ids)
    processor = llm.engine.core.model_runner.logits_processors[0]
    assert processor.lengths == [[index] for index in range(24)]  # it sees the output grow


class OneToken(AdapterLogitsProcessor):
    """As in vLLM's documentation: a function for each request that asks for it."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        target = (params.extra_args or {}).get("target_token")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target_token is {target!r}; it must be an integer")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        target = (params.extra_args or {}).get("target_token")
        if target is None:
            return None
        seen: list[int] = []  # what it remembers, whichever row it is in

        def only(prompt_ids: Any, output_ids: Any, logits: Tensor) -> Tensor:
            seen.append(len(output_ids))
            assert seen == list(range(len(seen))) and list(prompt_ids)
            logits[torch.arange(len(logits)) != target] = -float("inf")
            return logits

        return only


def test_functions_for_single_requests() -> None:
    llm = LLM("storyteller-draft", **SIZES, logits_processors=[OneToken])
    plain = SamplingParams(**GREEDY | {"max_tokens": 3})
    forced = SamplingParams(**GREEDY, extra_args={"target_token": 77})
    outputs = llm.generate(PROMPTS, [plain, forced, plain], use_tqdm=False)
    assert outputs[1].outputs[0].token_ids == [77] * 24
    before = texts(LLM("storyteller-draft", **SIZES), plain)
    assert [outputs[0].outputs[0].text, outputs[2].outputs[0].text] == [before[0], before[2]]
    wrong = SamplingParams(extra_args={"target_token": "a"})
    with pytest.raises(ValueError, match="target_token is 'a'; it must be an integer"):
        llm.generate(PROMPTS[0], wrong, use_tqdm=False)


def test_all_figures_on_demand() -> None:
    """As vLLM's example reads them; without being asked for, only speculation is counted."""
    llm = LLM("storyteller-draft", **SIZES, disable_log_stats=False)
    params = SamplingParams(n=2, max_tokens=6, ignore_eos=True, seed=0)
    llm.generate(PROMPTS[:2], params, use_tqdm=False)
    llm.enqueue(PROMPTS[2], SamplingParams(max_tokens=20, ignore_eos=True))
    llm.engine.step()
    found = {metric.name: metric for metric in llm.get_metrics() if not hasattr(metric, "labels")
             or metric.labels.get("finished_reason", "length") == "length"}  # fmt: skip
    running, tokens = found["vllm:num_requests_running"], found["vllm:generation_tokens"]
    assert isinstance(running, Gauge) and running.value == 1
    assert isinstance(tokens, Counter) and tokens.value == 2 * 2 * 6 + 1
    ended, ttft = found["vllm:request_success"], found["vllm:time_to_first_token_seconds"]
    assert isinstance(ended, Counter) and ended.value == 4
    assert isinstance(ttft, Histogram) and ttft.count == ttft.buckets["+Inf"] == 5 and ttft.sum > 0
    llm.engine.abort_requests()
    gauges = {
        metric.name: metric.value for metric in llm.get_metrics() if isinstance(metric, Gauge)
    }
    assert gauges["vllm:num_requests_running"] == gauges["vllm:kv_cache_usage_perc"] == 0
    assert LLM("storyteller-draft", **SIZES).get_metrics() == []
    engine_args = EngineArgs("storyteller-draft", **SIZES, disable_log_stats=False)
    assert LLMEngine.from_engine_args(engine_args).get_metrics()


def test_a_script_makes_a_second_engine() -> None:
    llm = LLM("storyteller-draft", **SIZES)
    del llm
    cleanup_dist_env_and_memory()
    messages = [{"role": "user", "content": "Hello"}]
    params = SamplingParams(max_tokens=2)
    (output,) = LLM("storyteller-draft", **SIZES).chat(messages, params, use_tqdm=False)
    assert output.prompt is not None and "Hello" in output.prompt, "what the template made of it"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x", "must be a list of classes"),
        (["nowhere:Thing"], "cannot be imported"),
        ([int], "it lacks apply, update_state, is_argmax_invariant"),
    ],
)
def test_what_is_no_processor_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM("storyteller-draft", **SIZES, logits_processors=given)


def test_enqueue_and_wait(llm: LLM) -> None:
    first = llm.enqueue(PROMPTS[:2], SamplingParams(**GREEDY))
    second = llm.enqueue(PROMPTS[2], SamplingParams(**GREEDY))
    assert llm.engine.has_unfinished_requests() and len(first) == 2
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == first + second
    assert [output.outputs[0].text for output in outputs] == texts(llm)
    assert llm.wait_for_completion(RequestOutput, use_tqdm=False) == []
    with pytest.raises(TypeError, match=r"output_type is .*PoolingRequestOutput"):
        llm.wait_for_completion(PoolingRequestOutput)


def test_sleep_and_wake_up(llm: LLM) -> None:
    before = texts(llm)
    llm.enqueue(PROMPTS, SamplingParams(**GREEDY))
    llm.sleep()
    layers = llm.engine.core.model_runner.kv_cache.layers
    assert not any(layer.count_nonzero() for layer in layers), "the pages went back"
    llm.sleep()
    with pytest.raises(ValueError, match="the engine sleeps; call wake_up"):
        llm.generate(PROMPTS, use_tqdm=False)
    llm.wake_up(["weights"])
    llm.wake_up(["weights"])
    assert llm.engine.is_sleeping(), "its pool is not back"
    with pytest.raises(ValueError, match="the engine sleeps; call wake_up"):
        llm.generate(PROMPTS, use_tqdm=False)
    for tags in ("weights", ["weights", "kv"]):
        with pytest.raises(ValueError, match="it must be None, or a list of 'weights'"):
            llm.wake_up(tags)
    llm.wake_up(["kv_cache"])
    assert not llm.engine.is_sleeping() and texts(llm) == before
    llm.sleep()
    llm.wake_up()
    assert texts(llm) == before
    for values, message in (
        (dict(level=2), "level is 2; weights are not forgotten"),
        (dict(mode="keep"), "must be 'abort'"),
    ):
        with pytest.raises(ValueError, match=message):
            llm.sleep(**values)
    assert not llm.engine.has_unfinished_requests()


def test_at_level_0_requests_are_taken_and_wait(llm: LLM) -> None:
    before = texts(llm)
    llm.sleep(level=0)
    llm.enqueue(PROMPTS, SamplingParams(**GREEDY))
    assert llm.engine.is_sleeping() and llm.engine.step() == []
    for call in (llm.wait_for_completion, lambda: texts(llm)):
        with pytest.raises(ValueError, match=r"level 0, .* call wake_up\(\['scheduling'\]\)"):
            call()
    llm.wake_up(tags=["scheduling"])
    queued = llm.wait_for_completion(use_tqdm=False)
    assert [output.outputs[0].text for output in queued[-3:]] == before
    llm.engine.add_request("r", PROMPTS[0], SamplingParams(max_tokens=3))
    llm.sleep(level=0, mode="keep")
    assert llm.engine.has_unfinished_requests()
    llm.sleep(level=0)
    llm.wake_up()
    while llm.engine.has_unfinished_requests():
        llm.engine.step()


def test_a_profile_is_written_where_the_user_says(tmp_path: Path) -> None:
    config = {"torch_profiler_dir": str(tmp_path / "traces")}
    llm = LLM("storyteller-draft", **SIZES, profiler_config=config)
    llm.start_profile("mine")
    texts(llm, SamplingParams(max_tokens=2))
    llm.stop_profile()
    llm.stop_profile()
    (trace,) = (tmp_path / "traces").iterdir()
    assert trace.name == "mine-1.json" and json.loads(trace.read_text())["traceEvents"]
    with pytest.raises(ValueError, match="torch_profiler_dir"):
        LLM("storyteller-draft", **SIZES).start_profile()


def test_values_that_ask_for_what_is_so_anyway(tmp_path: Path) -> None:
    llm = LLM(
        "storyteller-draft", **(SIZES | {"dtype": "float"}), runner="generate", convert="none",
        max_logprobs=20, model_impl="vllm", tokenizer_mode="hf", enable_sleep_mode=True,
        stream_interval=1, scheduler_cls="vllm-v1",
        speculative_config={"method": "ngram", "num_speculative_tokens": 2, "quantization": None,
                            "enforce_eager": True, "disable_padded_drafter_batch": False},
        structured_outputs_config={"backend": "native", "reasoning_parser": ""},
        profiler_config={"profiler": "torch", "torch_profiler_dir": str(tmp_path)},
    )  # fmt: skip
    assert llm.config.model.dtype == "float32" and llm.config.speculative is not None
    kv = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_buffer_size": 1e9,
          "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)}}  # fmt: skip
    config = LLM("storyteller-draft", **SIZES, kv_transfer_config=kv).config
    assert config.kv_transfer_config is config.kv_transfer is not None
    assert config.scheduler_config is config.scheduler
    with pytest.raises(AttributeError, match="has no attribute 'lora_configs'"):
        config.lora_configs  # noqa: B018


def test_arguments_of_vllm() -> None:
    """What changes nothing is taken; what cannot be had is refused by its name."""
    options = SIZES | {"num_gpu_blocks": None}
    harmless = dict(trust_remote_code=True, swap_space=4, disable_log_stats=True)
    llm = LLM(
        "storyteller-draft", **options, **harmless, runner="auto", scheduling_policy="priority"
    )
    assert llm.config.scheduler.policy == "priority"
    block = llm.engine.core.config.cache
    small = LLM("storyteller-draft", **options, kv_cache_memory_bytes=2**20)
    assert (block.num_gpu_blocks or 0) > (small.engine.core.config.cache.num_gpu_blocks or 0) > 8
    for name, value, message in (
        ("cpu_offload_gb", 4, "use quantization"),
        ("task", "embed", "task is vLLM's, and not supported: use runner='pooling', with convert"),
        ("override_pooler_config", {"pooling_type": "CLS"}, "not supported: use pooler_config"),
        ("kv_cache_memory_bytes", 10, "1 block|kv_cache_memory_bytes|needs"),
        ("hf_overrides", 3, "hf_overrides is 3; it must be a dict"),
        ("logprobs_mode", "processed_logprobs", "it must be 'raw_logprobs': raw_logprobs, vLLM's"),
        ("tokenizer_mode", "mistral", "tokenizer_mode is 'mistral'; it must be 'auto' or 'hf'"),
        ("hf_config_path", "elsewhere", "config.json lies beside the weights"),
        ("stream_interval", 4, "generate.. and chat.. return whole answers"),
        ("scheduler_cls", "my.Scheduler", "no scheduler 'my.Scheduler'; .*file.py:ClassName"),
        ("scheduler_cls", 3, "scheduler_cls is 3; it must be a class"),
        (
            "profiler_config",
            {"torch_profiler_with_flops": True},
            "with_flops=True, which is vLLM's",
        ),
        ("profiler_config", {"folder": "x"}, "profiler_config has no key 'folder'"),
        ("profiler_config", "x", "profiler_config is 'x'"),
        (
            "speculative_config",
            {"num_speculative_tokens": 2, "parallel_drafting": True},
            "parallel_drafting=True, which is vLLM's, and not supported: drafters are ngram",
        ),
        (
            "kv_transfer_config",
            {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
            "kv_connector is 'NixlConnector'; known are",
        ),
        (
            "kv_transfer_config",
            {"kv_connector": "X", "kv_role": "kv_both", "kv_port": 1},
            "kv_port=1, which is vLLM's, and not supported: see kv_connector_extra_config",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            LLM("storyteller-draft", **options, **{name: value})
    changed = LLM("storyteller-draft", **options, hf_overrides={"rms_norm_eps": 0.5})
    assert changed.engine.core.model.config.rms_norm_eps == 0.5
    assert texts(changed) != texts(llm)


# ---------------------------------------------------------------- names that scripts import
def test_every_name_of_the_front_page_is_there() -> None:
    for name in mini_vllm.__all__:
        assert getattr(mini_vllm, name) is not None
    assert mini_vllm.AsyncLLMEngine is mini_vllm.AsyncLLM


@pytest.mark.parametrize("prompt, text", [
    ("Once upon", "Once upon"), (TextPrompt(prompt="Once upon"), "Once upon"),
    (TokensPrompt(prompt_token_ids=[566, 811]), None), ([566, 811], None),
    (TokensPrompt(prompt_token_ids=[566, 811], prompt="said so"), "said so"),
])  # fmt: skip
def test_an_output_has_its_prompts_text(prompt: PromptType, text: str | None) -> None:
    engine = LLMEngine.from_engine_args(EngineArgs("storyteller", num_gpu_blocks=20))
    params = SamplingParams(temperature=0, max_tokens=3)
    engine.add_request("r0", prompt, params)
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert {output.prompt for output in outputs} == {text}
    assert outputs[-1].prompt_token_ids == [566, 811] and outputs[-1].finished
    (other,) = LLM("storyteller", num_gpu_blocks=20).generate(prompt, params, use_tqdm=False)
    assert (other.prompt, other.outputs[0].text) == (text, outputs[-1].outputs[0].text)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_step_tells_what_the_output_kind_asks_for(kind: RequestOutputKind) -> None:
    engine = LLMEngine.from_engine_args(engine_args=EngineArgs("storyteller", num_gpu_blocks=20))
    params = SamplingParams(temperature=0, max_tokens=3, output_kind=kind)
    whole = engine.submit("r0", "Once upon", params)
    told: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        told += engine.step()
    ids = whole.outputs[0].token_ids
    assert [output.outputs[0].token_ids for output in told] == {
        RequestOutputKind.CUMULATIVE: [ids[:1], ids[:2], ids],
        RequestOutputKind.DELTA: [ids[:1], ids[1:2], ids[2:]],
        RequestOutputKind.FINAL_ONLY: [ids],
    }[kind]
    assert [output.finished for output in told] == [False] * (len(told) - 1) + [True]
    pieces = [output.outputs[0].text for output in told]
    is_delta = kind == RequestOutputKind.DELTA
    assert ("".join(pieces) if is_delta else pieces[-1]) == whole.outputs[0].text
    assert engine.add_request("r0", "Once upon", params) == "r0"
    engine.abort_request(["r0"])
    assert engine.step() == []


def test_an_arrival_time_is_a_place_in_the_queue() -> None:
    engine = LLMEngine.from_engine_args(
        EngineArgs("storyteller", num_gpu_blocks=20, max_num_seqs=1, policy="priority")
    )
    params = SamplingParams(max_tokens=1)
    engine.add_request("late", [5], params)
    engine.add_request("early", [5], params, time.time() - 60)
    assert [output.request_id for _ in range(2) for output in engine.step()] == ["early", "late"]


def test_arguments_of_vllms_methods_are_taken_or_refused_by_name(llm: LLM) -> None:
    params = SamplingParams(**GREEDY)
    call: Any = llm.generate
    nothing = {"tokenization_kwargs": None, "mm_processor_kwargs": {}}
    assert call(PROMPTS[0], params, use_tqdm=False, **nothing)[0].finished
    call = llm.engine.add_request
    with pytest.raises(TypeError, match=r"trace_headers=.*vLLM's and not supported"):
        call("r", PROMPTS[0], params, trace_headers={"traceparent": "00"})
    with pytest.raises(TypeError, match="request_id is 3; it must be a string"):
        call(3, PROMPTS[0], params)
    with pytest.raises(AttributeError, match="has no 'update_weights': make a new engine"):
        _ = llm.engine.update_weights  # type: ignore[attr-defined]
    llm.reset_mm_cache()  # nothing to do for a model that takes text only
    llm.engine.reset_encoder_cache()
    assert llm.engine.get_supported_tasks() == ("generate",)


ONCE = "Once upon a time there was a fox"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, slice(-3, None)),  # a model goes on at the end
        ({"truncation": True, "max_length": 3}, slice(-3, None)),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, slice(3)),
        ({"add_special_tokens": False}, slice(None)),
        ({"truncate_prompt_tokens": -1}, slice(None)),
    ],
)
def test_a_prompt_is_tokenized_as_its_caller_says(
    llm: LLM, options: dict[str, Any], kept: slice
) -> None:
    ids = llm.get_tokenizer().encode(ONCE)
    params = SamplingParams(**GREEDY)
    (output,) = llm.generate(ONCE, params, use_tqdm=False, tokenization_kwargs=options)
    assert (output.prompt, output.prompt_token_ids) == (ONCE, ids[kept])
    llm.enqueue(ids, params, tokenization_kwargs=options)
    assert llm.wait_for_completion(use_tqdm=False)[-1].prompt_token_ids == ids[kept]
    llm.engine.add_request("r", ONCE, params, None, None, options)
    assert llm.engine.step()[0].prompt_token_ids == ids[kept]
    llm.engine.abort_request(["r"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"padding": "max_length"}, "tokenization_kwargs has padding='max_length'; known are"),
        ({"truncate_prompt_tokens": 10**6}, "not be greater than max_model_len"),
        ({"truncation_side": "top"}, "truncation_side is 'top'; it must be 'left' or 'right'"),
    ],
)
def test_options_of_tokenization_that_cannot_be(
    llm: LLM, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        llm.generate(ONCE, use_tqdm=False, tokenization_kwargs=options)


def test_a_cut_at_the_left_keeps_the_token_that_begins_a_text() -> None:
    class Beginning:
        bos_token_id = 1

        def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": [1] * add_special_tokens + [int(word) for word in text.split()]}

    processor: Any = SimpleNamespace(tokenizer=Beginning(), check_length=lambda text: None)
    tokenizer = PromptTokenizer(processor, 20)
    assert tokenizer.tokenize("5 6 7 8", Tokenization(3)) == [1, 7, 8]
    assert tokenizer.tokenize("5 6 7 8", Tokenization(3, "left")) == [6, 7, 8]
    assert tokenizer.tokenize("5 6 7 8", Tokenization(3, add_special_tokens=False)) == [6, 7, 8]


def test_chats_may_be_queued_before_they_run(llm: LLM) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("Hi", "Who are you?")]
    params = SamplingParams(**GREEDY)
    ids = llm.enqueue_chat(chats, params, use_tqdm=False)
    queued = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in queued] == ids
    told = llm.chat(chats, params, use_tqdm=False)
    assert [o.outputs[0].text for o in queued] == [o.outputs[0].text for o in told]
    cut = llm.chat(
        chats[1], params, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 4}
    )
    assert cut[0].prompt_token_ids == told[1].prompt_token_ids[-4:]


def test_an_engine_is_made_of_a_config() -> None:
    config = EngineArgs("storyteller", num_gpu_blocks=20).create_engine_config()
    engine = LLMEngine.from_vllm_config(config, None, None, disable_log_stats=True)
    engine.add_request("r", "Once", SamplingParams(max_tokens=1, temperature=0))
    assert engine.step()[0].finished and engine.get_metrics() == []
    assert LLMEngine.from_vllm_config(config).get_metrics() != []
    with pytest.raises(TypeError, match="vllm_config is 'storyteller'; pass what"):
        LLMEngine.from_vllm_config("storyteller")  # type: ignore[arg-type]


def test_signatures_tell_vllms_arguments_too() -> None:
    names = list(inspect.signature(AsyncLLM.from_engine_args).parameters)
    assert names == ["engine_args", "start_engine_loop", "usage_context", "stat_loggers"]
    with pytest.raises(TypeError, match=r"stat_loggers=\['x'\], which is vLLM's"):
        AsyncLLM.from_engine_args(AsyncEngineArgs("storyteller"), True, None, ["x"])  # type: ignore[call-arg]


def test_options_of_engine_args_are_attributes() -> None:
    for make in (EngineArgs, AsyncEngineArgs):
        args = make("storyteller", num_gpu_blocks=20)
        assert (args.num_gpu_blocks, args.max_num_seqs) == (20, None)  # type: ignore[attr-defined]
        args.max_num_seqs = 3  # type: ignore[attr-defined]
        args.model, args.skip_tokenizer_init = "storyteller-draft", True
        made = copy.deepcopy(args).create_engine_config()
        assert made.scheduler.max_num_seqs == 3 and made.model.model.endswith("-draft")
        args.max_num_seq = 3  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match="max_num_seqs"):
            args.create_engine_config()
        with pytest.raises(AttributeError, match="has no 'swap'"):
            _ = args.swap  # type: ignore[attr-defined]


def test_engine_args_are_a_dataclass_of_what_was_given() -> None:
    args = EngineArgs("storyteller", num_gpu_blocks=20, max_model_len=64)
    assert asdict(args) == vars(args)  # type: ignore[call-overload]
    assert asdict(args)["max_model_len"] == 64  # type: ignore[call-overload]
    llm = LLM(**(asdict(args) | {"seed": 1}))  # type: ignore[call-overload]
    assert (llm.config.scheduler.max_model_len, llm.config.model.seed) == (64, 1)
    other = replace(args, seed=3)  # type: ignore[type-var]
    assert other.options == {"num_gpu_blocks": 20, "max_model_len": 64, "seed": 3}
    assert args == EngineArgs("storyteller", num_gpu_blocks=20, max_model_len=64) != other
    assert repr(args).startswith("EngineArgs(model='storyteller', ")
    every = {field.name for field in fields(EngineArgs)}  # type: ignore[arg-type]
    assert {"model", "max_num_seqs", "disable_log_stats"} <= every


def test_arguments_of_an_engine_for_many_start_one_for_one() -> None:
    args = AsyncEngineArgs("storyteller", num_gpu_blocks=20, scheduler_cls="static")
    for engine in (LLMEngine.from_engine_args(args), LLM.from_engine_args(args).engine):
        assert type(engine.core.scheduler) is POLICIES["static"]
    args.scheduler_cls = "vllm-v1"
    assert args.scheduler == args.scheduler_cls == "vllm-v1"
    with pytest.raises(ValueError, match=r"scheduler_cls is <class .* is in another process"):
        AsyncEngineArgs("storyteller", scheduler_cls=POLICIES["static"])  # type: ignore[arg-type]


def test_an_argument_that_was_not_given_has_its_default() -> None:
    args: Any = AsyncEngineArgs("storyteller", num_gpu_blocks_override=20)
    found = (args.tensor_parallel_size, args.dtype, args.enable_lora, args.max_logprobs)
    assert found == (1, "auto", False, 20) and args.num_gpu_blocks_override == 20
    assert (args.max_num_seqs, args.speculative_config, args.scheduling_policy) == (
        None, None, "fcfs",
    )  # fmt: skip
    assert isinstance(args, EngineArgs)


def test_short_arguments_of_speculation_are_keys_of_its_section() -> None:
    short: dict[str, Any] = {"spec_method": "ngram", "spec_tokens": 3, "spec_model": None}
    made = EngineArgs("storyteller-draft", **short, speculative_config={"prompt_lookup_max": 2})
    found = made.create_engine_config().speculative
    assert found is not None and (found.method, found.num_speculative_tokens) == ("ngram", 3)
    assert found.prompt_lookup_max == 2
    with pytest.raises(ValueError, match="spec_method is 'ngram', and speculative_config is given"):
        made = EngineArgs("storyteller-draft", **short, speculative_config={"method": "ngram"})
        made.create_engine_config()
    with pytest.raises(ValueError, match=r"chat_template is vLLM's.* pass it to LLM\(\)"):
        EngineArgs("storyteller", chat_template="x").create_engine_config()  # type: ignore[call-arg]


def test_engine_args_refuse_what_llm_refuses() -> None:
    with pytest.raises(ValueError, match="block_size"):
        EngineArgs("storyteller", block_size=0).create_engine_config()
    args = EngineArgs("storyteller", skip_tokenizer_init=True, num_gpu_blocks=20)
    assert LLMEngine.from_engine_args(args).tokenizer is None
    args = EngineArgs("storyteller", scheduler_cls="static", num_gpu_blocks=20)
    for made in (LLMEngine.from_engine_args(args), LLM.from_engine_args(args).engine):
        assert type(made.core.scheduler) is POLICIES["static"]


def test_a_script_has_the_engines_options() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.add_argument("--max-tokens", type=int)
    words = "--num-gpu-blocks 20 --seed 3 --trust-remote-code --swap-space 0"
    args = parser.parse_args(words.split())
    engine_args = EngineArgs.from_cli_args(args)
    assert engine_args.model == "storyteller" and not engine_args.skip_tokenizer_init
    assert engine_args.options == {"num_gpu_blocks": 20, "seed": 3}
    left = vars(args)
    assert left.pop("max_tokens") is None
    assert left == {"model": "storyteller", "num_gpu_blocks": 20, "seed": 3}


def test_an_llm_is_made_of_engine_args() -> None:
    llm = LLM.from_engine_args(EngineArgs("storyteller", num_gpu_blocks=20, seed=3))
    assert (llm.config.model.seed, llm.get_world_size(), llm.get_world_size(False)) == (3, 1, 1)
    assert llm.get_tokenizer() is not None
    with pytest.raises(ValueError, match="block_size"):
        LLM.from_engine_args(EngineArgs("storyteller", block_size=0))


def test_none_is_the_default_of_optional_parameters() -> None:
    params = SamplingParams.from_optional(n=None, temperature=None, top_p=0.5, max_tokens=None)
    assert params == SamplingParams(top_p=0.5, max_tokens=None)
    assert SamplingParams.from_optional(logit_bias={"7": 250}).logit_bias == {7: 100.0}
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams.from_optional(temprature=1.0)


def test_a_chat_takes_vllms_options(llm: LLM) -> None:
    """Positions and names as there, so that a script needs only its import changed."""
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once"}]
    params = SamplingParams(**GREEDY)
    tools = [{"type": "function", "function": {"name": "weather"}}]
    template = "{{ messages[-1].content }}{{ mark }}{{ tools[0].function.name }}"
    (output,) = llm.chat(
        turns, params, False, None, template, "auto", False, False, tools, {"mark": "!"}
    )
    assert llm.get_tokenizer().decode(output.prompt_token_ids) == "Once!weather"
    going_on = {"add_generation_prompt": False, "continue_final_message": True}
    (output,) = llm.chat(turns, params, use_tqdm=False, **going_on)  # type: ignore[arg-type]
    assert llm.get_tokenizer().decode(output.prompt_token_ids).endswith("Once")
    mappings = [MappingProxyType(turn) for turn in turns[:1]]
    told = [llm.chat(given, params, use_tqdm=False) for given in (turns[:1], mappings, [mappings])]
    assert len({tuple(output.prompt_token_ids) for (output,) in told}) == 1
    with pytest.raises(ValueError, match="content_format is 'openai'"):
        llm.chat(turns, params, chat_template_content_format="openai")


def test_a_chat_template_of_the_whole_engine(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }} upon", encoding="utf-8")
    llm = LLM("storyteller", chat_template=file, num_gpu_blocks=20)
    chat = [{"role": "user", "content": "Once"}]
    params = SamplingParams(max_tokens=1)
    assert llm.chat(chat, params, use_tqdm=False)[0].prompt == "Once upon"
    assert llm.chat(chat, params, use_tqdm=False, chat_template="Hi")[0].prompt == "Hi"
    assert (llm.supported_tasks, llm.runner_type) == (("generate",), "generate")
    with pytest.raises(ValueError, match="chat_template: there is no file"):
        LLM("storyteller", chat_template=tmp_path / "none.jinja")


@pytest.mark.parametrize("name", ["prompt_embeds", "token_type_ids", "encoder_prompt"])
def test_what_a_prompt_brings_and_no_model_reads_is_refused(llm: LLM, name: str) -> None:
    with pytest.raises(ValueError, match=rf"the prompt's {name} is \[0\]; .*(model|models) "):
        llm.generate({"prompt": "Once", name: [0]}, use_tqdm=False)


def test_a_line_about_the_engine_is_logged_on_request(caplog: pytest.LogCaptureFixture) -> None:
    args = EngineArgs("storyteller", num_gpu_blocks=20, disable_log_stats=False)
    engine = LLMEngine.from_engine_args(args)
    engine.add_request("r", "Once", SamplingParams(max_tokens=1))
    engine.step()
    with caplog.at_level("INFO", logger="mini_vllm"):
        engine.do_log_stats()
    assert "prompt throughput" in caplog.text


def test_a_bar_of_the_callers_own(llm: LLM) -> None:
    made: list[int] = []

    def bar(total: int, **options: Any) -> Any:
        made.append(total)
        return tqdm(total=total, disable=True)

    llm.generate(PROMPTS, SamplingParams(**GREEDY), use_tqdm=bar)
    assert made == [3]


@pytest.mark.parametrize(
    ("name", "instead"),
    [("update_weights", "the folder"), ("init_weight_transfer_engine", "the folder")],
)
def test_methods_that_are_not_here_say_what_to_do(llm: LLM, name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"LLM has no '{name}': .*{instead}"):
        getattr(llm, name)
    assert not hasattr(llm, "nothing_of_vllms")


def test_logprobs_of_named_tokens_are_told_beside_drafts(llm: LLM) -> None:
    """Those of every accepted draft, too."""
    k = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 1}
    drafting = LLM("storyteller-draft", **SIZES, speculative_config=k)
    params = SamplingParams(**GREEDY, logprob_token_ids=[5, 300])
    alone, together = (
        engine.generate([[300, 301] * 4], params, use_tqdm=False)[0].outputs[0]
        for engine in (llm, drafting)
    )
    assert alone.token_ids == together.token_ids and alone.logprobs and together.logprobs
    for wanted, actual in zip(alone.logprobs, together.logprobs, strict=True):
        assert wanted.keys() == actual.keys()
        for token_id, entry in wanted.items():
            assert actual[token_id].logprob == pytest.approx(entry.logprob, abs=1e-4)
