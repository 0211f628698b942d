"""The whole engine through its front door: texts, options, failures."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.scheduler_output import SchedulerOutput

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def loaded() -> LLM:
    return LLM("storyteller", dtype="float32", num_gpu_blocks=64, max_model_len=256)


@pytest.fixture
def llm(loaded: LLM) -> Iterator[LLM]:
    """The engine, which every test must leave empty and intact."""
    loaded.engine.core.scheduler.reset_prefix_cache()
    yield loaded
    scheduler = loaded.engine.core.scheduler
    scheduler.check_integrity()
    assert not scheduler.requests
    assert scheduler.kv_cache_manager.usage == 0
    assert not loaded.engine.output_processor.completions


def tokens(llm: LLM, prompt: object, params: SamplingParams) -> list[int]:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["The sun", [5, 6, 7], {"prompt_token_ids": [8, 9]}, {"prompt": "A cat"}]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert outputs[0].prompt == "The sun"
    assert outputs[1].prompt_token_ids == [5, 6, 7]
    assert outputs[2].prompt_token_ids == [8, 9]
    assert [output.finished for output in outputs] == [True] * 4
    alone = [tokens(llm, prompt, GREEDY) for prompt in prompts]
    assert [output.outputs[0].token_ids for output in outputs] == alone


def test_text_is_the_decoded_tokens(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=40, ignore_eos=True, skip_special_tokens=False
    )
    completion = llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0]
    assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert completion.finish_reason == "length"


def test_stream_yields_growing_texts(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    texts = [output.outputs[0].text for output in llm.stream("Once upon a time", params)]
    assert len(texts) == 12
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    assert texts[-1] == llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].text


def test_chat_equals_the_template_by_hand(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    text = llm.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = llm.tokenizer.encode(text, add_special_tokens=False)
    chat = llm.chat(messages, GREEDY, use_tqdm=False)[0]
    assert chat.prompt_token_ids == prompt
    assert chat.outputs[0].token_ids == tokens(llm, prompt, GREEDY)


def test_stop_string_ends_the_text_and_frees_the_request(llm: LLM) -> None:
    free = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    text = llm.generate("Once upon a time", free, use_tqdm=False)[0].outputs[0].text
    stop = text[7:10]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=stop)
    completion = llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0]
    assert completion.text == text[: text.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_stop_token_is_reported(llm: LLM) -> None:
    free = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    fifth = tokens(llm, "The sun", free)[4]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, stop_token_ids=[fifth])
    completion = llm.generate("The sun", params, use_tqdm=False)[0].outputs[0]
    assert completion.stop_reason == fifth
    assert completion.token_ids[-1] == fifth
    assert fifth not in completion.token_ids[:-1]


def test_seeded_requests_do_not_depend_on_the_batch(llm: LLM) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=11, max_tokens=12, ignore_eos=True)
    alone = tokens(llm, "The sun", params)
    others = SamplingParams(temperature=1.1, max_tokens=9, ignore_eos=True)
    prompts = ["A cat", "The sun", "One day"]
    batch = llm.generate(prompts, [others, params, others], use_tqdm=False)
    assert batch[1].outputs[0].token_ids == alone
    assert tokens(llm, "The sun", SamplingParams(**{**vars(params), "seed": 12})) != alone


def test_unseeded_runs_repeat_with_the_engine_seed() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True)
    options = {"dtype": "float32", "num_gpu_blocks": 32, "max_model_len": 64}
    runs = [
        [o.outputs[0].token_ids for o in llm.generate(["A", "A"], params, use_tqdm=False)]
        for llm in (LLM("storyteller", seed=seed, **options) for seed in (1, 1, 2))
    ]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1], "two unseeded requests must not share their noise"


def test_n_completions(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=8, ignore_eos=True)
    output = llm.generate("One day", params, use_tqdm=False)[0]
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    singles = [
        tokens(llm, "One day", SamplingParams(**{**vars(params), "n": 1, "seed": 5 + i}))
        for i in range(3)
    ]
    assert [completion.token_ids for completion in output.outputs] == singles
    assert len({tuple(single) for single in singles}) == 3


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3, ignore_eos=True)
    completion = llm.generate("The sun", params, use_tqdm=False)[0].outputs[0]
    assert completion.logprobs is not None and len(completion.logprobs) == 5
    total = 0.0
    for token_id, candidates in zip(completion.token_ids, completion.logprobs, strict=True):
        assert candidates[token_id].rank == 1
        assert len(candidates) == 3
        total += candidates[token_id].logprob
    assert completion.cumulative_logprob == pytest.approx(total)


def test_prompt_logprobs_equal_hf_however_the_prompt_is_cut() -> None:
    from transformers import AutoModelForCausalLM

    llm = LLM(
        "storyteller",
        dtype="float32",
        num_gpu_blocks=32,
        max_model_len=64,
        max_num_batched_tokens=7,
    )
    prompt = llm.tokenizer.encode("The cat sat in the warm sun and slept.")
    for max_tokens in (1, 2):  # the second time the prefix is cached, yet all logits are needed
        params = SamplingParams(temperature=0, max_tokens=max_tokens, prompt_logprobs=0)
        output = llm.generate(prompt, params, use_tqdm=False)[0]
    model = AutoModelForCausalLM.from_pretrained(llm.config.model.model, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    for place, token_id in enumerate(prompt[1:]):
        ours = output.prompt_logprobs[place + 1][token_id].logprob
        assert ours == pytest.approx(float(expected[place, token_id]), abs=1e-4)


def test_prefix_hits_are_counted(llm: LLM) -> None:
    prompt = list(range(10, 58))
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 32


def test_cache_salt_keeps_prefixes_apart(llm: LLM) -> None:
    prompt = list(range(10, 58))
    for salt, hits in (("a", 0), ("b", 0), ("a", 32)):
        salted = {"prompt_token_ids": prompt, "cache_salt": salt}
        assert llm.generate(salted, GREEDY, use_tqdm=False)[0].num_cached_tokens == hits


def test_max_tokens_none_fills_the_model_length(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    assert len(tokens(llm, [5] * 200, params)) == 256 - 200


BAD_PROMPTS = {
    "empty": ([], "the prompt is empty; it must have at least 1 token"),
    "outside the vocabulary": ([1, 10**6], "token id 1000000; the vocabulary ends at"),
    "negative": ([-1, 3], "token id -1"),
    "as long as the model": ([1] * 256, "requested 1 output tokens and your prompt contains 256"),
    "not a prompt": ({"text": "x"}, "it must be text, a list of token ids, or a mapping"),
    "not integers": (["a", 1], "it must be text"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_a_bad_prompt_gets_its_own_error(llm: LLM, name: str) -> None:
    prompt, message = BAD_PROMPTS[name]
    outputs = llm.generate(["The sun", prompt, "A cat"], GREEDY, use_tqdm=False)
    assert message in str(outputs[1].error)
    assert outputs[1].outputs[0].finish_reason == "error"
    good = [outputs[0].outputs[0].token_ids, outputs[2].outputs[0].token_ids]
    assert good == [tokens(llm, "The sun", GREEDY), tokens(llm, "A cat", GREEDY)]


def test_a_call_without_a_good_prompt_raises(llm: LLM) -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        llm.generate([[]], GREEDY)


def test_lists_of_different_lengths_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 prompts but 1 sampling_params"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(ValueError, match="1 prompts but 2 priorities"):
        llm.generate(["a"], GREEDY, priority=[1, 2])


def test_token_ids_in_parameters_are_checked(llm: LLM) -> None:
    with pytest.raises(ValueError, match="stop_token_ids holds token 999999"):
        llm.generate("a", SamplingParams(stop_token_ids=[999999]))


def test_pool_too_small_for_a_prompt() -> None:
    llm = LLM("storyteller", dtype="float32", num_gpu_blocks=3, max_model_len=256)
    with pytest.raises(ValueError, match=r"33 tokens; the KV cache holds 32 \(2 blocks of 16\)"):
        llm.generate([1] * 33, GREEDY)


def test_a_request_that_outgrows_the_pool_ends_with_its_reason() -> None:
    llm = LLM("storyteller", dtype="float32", num_gpu_blocks=3, max_model_len=256)
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    completion = llm.generate([1] * 20, params, use_tqdm=False)[0].outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("length", "kv_capacity")
    assert len(completion.token_ids) == 13  # 32 slots hold 20 + 12; the 13th is sampled, not stored


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="unknown argument 'blok_size'; did you mean block_size"):
        LLM("storyteller", blok_size=16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": 0}, "num_threads is 0; it must be at least 1"),
        ({"block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"num_gpu_blocks": 1}, "num_gpu_blocks is 1; it must be at least 2"),
        ({"max_num_seqs": 2.5}, "max_num_seqs is 2.5; it must be a whole number"),
        ({"policy": "lifo"}, "policy is 'lifo'; it must be one of fcfs, priority"),
        ({"dtype": "float8"}, "dtype is 'float8'"),
        ({"max_model_len": 10**6}, "max_model_len is 1000000; the model has"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 8}, "without chunked prefill"),
        ({"attention_backend": "magic"}, "magic"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM("storyteller", **options)


def test_threads_are_chosen_by_the_size_of_the_model() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        LLM("storyteller", num_gpu_blocks=8, max_model_len=64)
        assert torch.get_num_threads() == 1
        LLM("storyteller", num_gpu_blocks=8, max_model_len=64, num_threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_missing_folder(tmp_path: object) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-model"):
        LLM(f"{tmp_path}/no-such-model")


class Sabotage:
    """Makes one chosen forward pass of a model runner go wrong."""

    def __init__(self, llm: LLM, step: int, error: BaseException) -> None:
        self.runner = llm.engine.core.model_runner
        self.original = self.runner.execute_model
        self.steps_left, self.error = step, error

    def __call__(self, output: SchedulerOutput) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            self.runner._update_states(output)
            raise self.error
        self.original(output)


def test_a_failed_forward_pass_poisons_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(20, 60))
    expected = tokens(llm, prompt, GREEDY)
    llm.engine.core.scheduler.reset_prefix_cache()
    sabotage = Sabotage(llm, 1, RuntimeError("out of memory"))
    monkeypatch.setattr(sabotage.runner, "execute_model", sabotage)
    failed = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    assert failed.error == "the forward pass failed: out of memory"
    output = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    assert output.num_cached_tokens == 0, "blocks that were never computed were found"
    assert output.outputs[0].token_ids == expected


def test_ctrl_c_leaves_the_engine_usable(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tokens(llm, "The sun", GREEDY)
    sabotage = Sabotage(llm, 3, KeyboardInterrupt())
    monkeypatch.setattr(sabotage.runner, "execute_model", sabotage)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["The sun", "A cat"], GREEDY, use_tqdm=False)
    assert not llm.engine.has_unfinished_requests()
    assert tokens(llm, "The sun", GREEDY) == expected


def test_nan_logits_fail_only_their_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llm.engine.core.model
    compute, calls = model.compute_logits, []

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden)
        calls.append(len(hidden))
        if len(calls) == 2:
            logits[0] = math.nan
        return logits

    monkeypatch.setattr(model, "compute_logits", broken)
    outputs = llm.generate(["The sun", "A cat"], GREEDY, use_tqdm=False)
    monkeypatch.undo()
    assert "NaN" in str(outputs[0].error)
    assert outputs[0].outputs[0].finish_reason == "error"
    assert outputs[1].outputs[0].token_ids == tokens(llm, "A cat", GREEDY)


def test_a_broken_request_leaves_nothing_to_the_next_owner_of_its_blocks() -> None:
    options = {"dtype": "float32", "max_model_len": 64, "enable_prefix_caching": False}
    llm = LLM("storyteller", num_gpu_blocks=3, **options)
    expected = tokens(llm, [5, 6, 7], GREEDY)
    embedding = llm.engine.core.model.model.embed_tokens.weight
    good = embedding[9].clone()
    embedding[9] = math.nan
    assert llm.generate([9] * 30, GREEDY, use_tqdm=False)[0].error
    embedding[9] = good
    assert tokens(llm, [5, 6, 7], GREEDY) == expected


def test_abandoned_stream_frees_everything(llm: LLM) -> None:
    for _ in llm.stream(["The sun", "A cat"], GREEDY):
        break
    assert not llm.engine.has_unfinished_requests()


def test_abort_in_the_middle(llm: LLM) -> None:
    output = llm.engine.submit("x", "The sun", GREEDY)
    llm.engine.step()
    llm.engine.abort_requests(["x"])
    assert output.finished and output.outputs[0].finish_reason == "abort"
    assert len(output.outputs[0].token_ids) == 1


def test_priority_goes_first() -> None:
    llm = LLM("storyteller", num_gpu_blocks=32, max_model_len=64, max_num_seqs=1, policy="priority")
    outputs = llm.generate(["a", "b", "c"], GREEDY, priority=[3, 1, 2], use_tqdm=False)
    finished = [output.metrics.finished_time for output in outputs]
    assert finished[1] < finished[2] < finished[0]


def test_random_mix_under_pressure_equals_running_alone() -> None:
    """Sampling parameters of all kinds, together in a tight pool and one by one."""
    draw = random.Random(3)
    options = {"dtype": "float32", "max_model_len": 128, "block_size": 4}
    tight = LLM("storyteller", num_gpu_blocks=34, max_num_batched_tokens=24, **options)
    roomy = LLM("storyteller", num_gpu_blocks=200, enable_prefix_caching=False, **options)
    prompts = [[draw.randrange(500) for _ in range(draw.randrange(1, 40))] for _ in range(12)]
    params = [
        SamplingParams(
            temperature=draw.choice([0, 0.7, 1.0]),
            top_k=draw.choice([0, 5]),
            top_p=draw.choice([1.0, 0.9]),
            repetition_penalty=draw.choice([1.0, 1.2]),
            presence_penalty=draw.choice([0.0, 0.5]),
            min_tokens=draw.choice([0, 6]),
            seed=draw.randrange(1000),
            max_tokens=draw.randrange(6, 30),
        )
        for _ in prompts
    ]
    together = tight.generate(prompts, params, use_tqdm=False)
    assert tight.engine.stats.num_preemptions > 0
    for prompt, one, output in zip(prompts, params, together, strict=True):
        assert output.outputs[0].token_ids == tokens(roomy, prompt, one)
