"""The whole engine with drafts: the text is what it is without them, and nothing is left behind.

Everything is float32: a different order of sums then changes no argmax that these texts depend on.
"""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.config import SpeculativeConfig
from mini_vllm.outputs import RequestOutput
from mini_vllm.quantization import oneshot

QUESTIONS = (
    "Tell me a story about a fox named Pip.",
    "What is the capital of Italy?",
    "Write a JSON record for a person named Ada.",
    "Repeat: red blue red blue red blue red blue",
    "Name three animals that live on a farm.",
    "Write a story about a dog called Rex.",
)
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
METHODS: dict[str, dict[str, Any]] = {
    "ngram": NGRAM,
    "draft_model": {"method": "draft_model", "model": "storyteller-draft"},
    "medusa": {"method": "medusa", "model": "storyteller-medusa"},
    "eagle": {"method": "eagle", "model": "storyteller-eagle"},
}


def make(speculative: dict[str, Any] | None = None, **options: Any) -> LLM:
    defaults = {"dtype": "float32", "max_model_len": 512, "num_gpu_blocks": 300}
    return LLM("storyteller", speculative_config=speculative, **(defaults | options))


@functools.cache
def prompts() -> list[list[int]]:
    llm = make()
    return [llm.apply_chat_template([{"role": "user", "content": q}]) for q in QUESTIONS]


def told(outputs: list[RequestOutput]) -> list[Any]:
    """All that a caller sees of the completions; logprobs rounded."""
    return [
        (o.token_ids, o.text, o.finish_reason, o.stop_reason,
         o.logprobs and [{t: (round(p.logprob, 3), p.rank) for t, p in e.items()}
                         for e in o.logprobs])
        for o in (output.outputs[0] for output in outputs)
    ]  # fmt: skip


def params(kind: str) -> list[SamplingParams]:
    if kind == "greedy":
        return [SamplingParams(temperature=0, max_tokens=50)] * len(QUESTIONS)
    return [
        SamplingParams(
            temperature=(0.4, 0.8, 1.0)[i % 3],
            seed=i,
            max_tokens=50,
            top_p=0.9,
            top_k=(0, 8)[i % 2],
        )
        for i in range(len(QUESTIONS))
    ]


@functools.cache
def expected(kind: str) -> list[Any]:
    return told(make().generate(prompts(), params(kind), use_tqdm=False))


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small blocks": {"block_size": 4, "num_gpu_blocks": 900},
    "one block size": {"block_size": 1, "num_gpu_blocks": 2000},
    "small budget": {"max_num_batched_tokens": 16},
    "tiny budget": {"max_num_batched_tokens": 5, "max_num_seqs": 3},
    "tight pool": {"block_size": 4, "num_gpu_blocks": 36},
    "no prefix cache": {"enable_prefix_caching": False, "max_num_batched_tokens": 40},
    "one at a time": {"max_num_seqs": 1},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_the_text_is_the_same(method: str, configuration: str) -> None:
    """Greedy and seeded, for block sizes, budgets, preemptions, with and without prefix cache."""
    llm = make(METHODS[method] | {"num_speculative_tokens": 4}, **CONFIGURATIONS[configuration])
    for kind in ("greedy", "seeded"):
        outputs = llm.generate(prompts(), params(kind), use_tqdm=False)
        assert told(outputs) == expected(kind), kind
        llm.engine.core.scheduler.check_integrity()
    if configuration == "tight pool":
        assert llm.engine.stats.num_preemptions > 0
    assert llm.engine.stats.spec_decode is not None
    assert llm.engine.stats.spec_decode.num_accepted_tokens > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_request_without_an_allowed_token_ends_alone(method: str) -> None:
    """At its first token, and at a later one, with drafts before it: the others do not notice."""
    llm = make(METHODS[method] | {"num_speculative_tokens": 3})
    yes = llm.get_tokenizer().encode("yes")
    at_once, later = (
        SamplingParams(temperature=0, max_tokens=50, allowed_token_ids=ids,
                       structured_outputs={"choice": ["yes" * 8 + "no"]})
        for ids in ([5], yes)
    )  # fmt: skip
    batch = [*prompts(), prompts()[0], prompts()[1]]
    outputs = llm.generate(batch, [*params("greedy"), at_once, later], use_tqdm=False)
    assert told(outputs[:-2]) == expected("greedy")
    for output in outputs[-2:]:
        assert output.error is not None and "no token is left to sample" in output.error
    first, second = (output.outputs[0].token_ids for output in outputs[-2:])
    lost = 0 if method != "ngram" else 2  # drafts that were right, in the step that failed
    assert first == [] and second == (yes * 8)[: len(yes) * 8 - lost]
    llm.engine.core.scheduler.check_integrity()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 3])
def test_every_number_of_drafts(method: str, k: int) -> None:
    llm = make(METHODS[method] | {"num_speculative_tokens": k})
    outputs = llm.generate(prompts(), params("greedy"), use_tqdm=False)
    assert told(outputs) == expected("greedy")


@pytest.mark.parametrize(
    "how", [dict(scheme="W4A16", group_size=16), dict(scheme="W8A8")], ids=lambda how: how["scheme"]
)
def test_a_quantised_draft_model(how: dict[str, Any], tmp_path: Path) -> None:
    """Its checkpoint says how it is held; the model beside it is not asked."""
    folder = oneshot("storyteller-draft", tmp_path / "draft", **how)
    llm = make({"method": "draft_model", "model": str(folder), "num_speculative_tokens": 3})
    outputs = llm.generate(prompts(), params("greedy"), use_tqdm=False)
    assert told(outputs) == expected("greedy")
    stats = llm.engine.stats.spec_decode
    assert stats is not None and stats.num_accepted_tokens > 0


@pytest.mark.parametrize("method", METHODS)
def test_steps_are_saved(method: str) -> None:
    """Drafts that are counted as accepted must save steps: counting alone does not pass."""
    plain = make()
    plain.generate(prompts()[:1], params("greedy")[:1], use_tqdm=False)
    llm = make(METHODS[method] | {"num_speculative_tokens": 4})
    llm.generate(prompts()[:1], params("greedy")[:1], use_tqdm=False)
    stats = llm.engine.stats
    assert stats.spec_decode is not None
    saved = plain.engine.stats.num_steps - stats.num_steps
    assert 0 <= stats.spec_decode.num_accepted_tokens - saved <= 4  # the last may be cut


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("room", range(1, 10))
def test_at_the_edge_of_the_models_length(method: str, room: int) -> None:
    """max_model_len 1 to 9 above the prompt: everything is said, nothing overflows."""
    prompt = prompts()[3]
    length = len(prompt) + room
    limit = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    plain = make(max_model_len=length, block_size=4).generate(prompt, limit, use_tqdm=False)
    llm = make(METHODS[method] | {"num_speculative_tokens": 4}, max_model_len=length, block_size=4)
    assert told(llm.generate(prompt, limit, use_tqdm=False)) == told(plain)


SETTINGS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 1.0, "temperature": 0.7},
    "frequency": {"frequency_penalty": 0.8},
    "min_p": {"min_p": 0.15, "temperature": 1.2},
    "bias": {"logit_bias": {13: 3.0, 300: -5.0}},
    "allowed": {"allowed_token_ids": list(range(200, 700))},
    "logprobs": {"logprobs": 3, "temperature": 0.9},
    "stop token": {"stop_token_ids": [16, 14]},
    "stop string": {"stop": ["a "], "logprobs": 1},
    "stop string kept": {"stop": [" the"], "include_stop_str_in_output": True, "min_tokens": 4},
}


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_sampling_setting(method: str, setting: str) -> None:
    """Token ids, text, reason and logprobs end where they end without drafts."""
    wanted = [
        SamplingParams(**({"temperature": 0, "max_tokens": 40, "seed": i} | SETTINGS[setting]))
        for i in range(len(QUESTIONS))
    ]
    plain = told(make().generate(prompts(), wanted, use_tqdm=False))
    llm = make(METHODS[method] | {"num_speculative_tokens": 4})
    assert told(llm.generate(prompts(), wanted, use_tqdm=False)) == plain


@pytest.mark.parametrize("min_tokens", range(8))
def test_min_tokens_at_every_distance(min_tokens: int) -> None:
    """The stop token is banned in the right rows, accepted EOS drafts included."""
    question = SamplingParams(temperature=0, max_tokens=30, min_tokens=min_tokens)
    prompt = prompts()[1]
    plain = told(make().generate(prompt, question, use_tqdm=False))
    llm = make(METHODS["draft_model"] | {"num_speculative_tokens": 5})
    assert told(llm.generate(prompt, question, use_tqdm=False)) == plain


def test_a_stop_on_the_first_of_many_then_another_request() -> None:
    """The tokens that a stop has cut are in no count: the row's next owner has its own."""
    llm = make(NGRAM | {"num_speculative_tokens": 6}, max_num_seqs=1)
    looping = list(itertools.islice(itertools.cycle([301, 402, 503]), 30))
    first = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    second = SamplingParams(temperature=0, max_tokens=20, presence_penalty=1.5, ignore_eos=True)
    plain = make().generate(prompts()[0], second, use_tqdm=False)
    outputs = llm.generate([looping, prompts()[0]], [first, second], use_tqdm=False)
    assert told(outputs[1:]) == told(plain)


def test_the_draft_models_cache_is_what_a_fresh_prefill_writes() -> None:
    """After steps with accepted and rejected drafts, and after prefix hits."""
    llm = make(METHODS["draft_model"] | {"num_speculative_tokens": 3}, block_size=4)
    wanted = SamplingParams(temperature=0, max_tokens=30)
    runner = llm.engine.core.model_runner
    tokens: list[list[int]] = []
    for _ in range(2):  # the second time by prefix hits
        output = llm.generate(prompts()[0], wanted, use_tqdm=False)[0]
        tokens.append(output.prompt_token_ids + output.outputs[0].token_ids)
    assert tokens[0] == tokens[1]
    manager = llm.engine.core.scheduler.kv_cache_manager
    from mini_vllm.request import Request

    request = Request("again", tokens[0][:-3])
    request.set_block_hasher(manager.block_hasher)
    hits, num_hits = manager.get_computed_blocks(request)
    assert num_hits >= len(tokens[0]) - 12
    fresh = make(METHODS["draft_model"] | {"num_speculative_tokens": 3}, block_size=4)
    fresh.generate(
        tokens[0][:num_hits], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False
    )
    other = Request("fresh", tokens[0][: num_hits + 1])
    other.set_block_hasher(fresh.engine.core.scheduler.kv_cache_manager.block_hasher)
    fresh_hits, num_fresh = fresh.engine.core.scheduler.kv_cache_manager.get_computed_blocks(other)
    assert num_fresh == num_hits
    ours: Any = runner.speculator
    theirs: Any = fresh.engine.core.model_runner.speculator
    for layer, fresh_layer in zip(
        ours.proposer.kv_cache.layers, theirs.proposer.kv_cache.layers, strict=True
    ):
        kept = layer[:, [block.block_id for block in hits.blocks]]
        expected_kv = fresh_layer[:, [block.block_id for block in fresh_hits.blocks]]
        assert torch.allclose(kept, expected_kv, atol=1e-4)


def test_drafting_never_writes_into_blocks_of_others() -> None:
    """Two requests share a prefix; the first one's cached blocks stay as they were."""
    llm = make(METHODS["draft_model"] | {"num_speculative_tokens": 5}, block_size=4)
    wanted = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompt = prompts()[0]
    llm.generate(prompt, wanted, use_tqdm=False)
    speculator: Any = llm.engine.core.model_runner.speculator
    layers = [*speculator.proposer.kv_cache.layers, *llm.engine.core.model_runner.kv_cache.layers]
    full = len(prompt) // 4
    before = [layer[:, 1 : full + 1].clone() for layer in layers]
    llm.generate([prompt + [400 + i] for i in range(3)], wanted, use_tqdm=False)
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer[:, 1 : full + 1], old)


def test_acceptance_does_not_depend_on_the_block_size() -> None:
    """Enough slots ahead, whatever the size of blocks: quality must not fall."""
    accepted = []
    for size in (1, 4, 16):
        llm = make(METHODS["draft_model"] | {"num_speculative_tokens": 5}, block_size=size,
                   num_gpu_blocks=4000 // size)  # fmt: skip
        llm.generate(prompts(), params("greedy"), use_tqdm=False)
        assert llm.engine.stats.spec_decode is not None
        accepted.append(llm.engine.stats.spec_decode.mean_acceptance_length)
    assert min(accepted) > 0.9 * max(accepted)


def test_a_drafter_that_ends_earlier_falls_silent() -> None:
    """Text past the drafter's length goes on without drafts, token for token."""
    wanted = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)
    plain = told(make().generate(prompts()[0], wanted, use_tqdm=False))
    short = METHODS["draft_model"] | {"num_speculative_tokens": 4, "max_model_len": 48}
    llm = make(short)
    assert told(llm.generate(prompts()[0], wanted, use_tqdm=False)) == plain
    full = make(METHODS["draft_model"] | {"num_speculative_tokens": 4})
    full.generate(prompts()[0], wanted, use_tqdm=False)
    drafts = [one.engine.stats.spec_decode.num_draft_tokens for one in (llm, full)]  # type: ignore[union-attr]
    assert 0 < drafts[0] < 0.6 * drafts[1]


def test_drawn_drafts_are_reproducible_and_do_not_see_the_batch() -> None:
    speculative = METHODS["draft_model"] | {
        "num_speculative_tokens": 3, "draft_sample_method": "probabilistic",
    }  # fmt: skip
    wanted = [SamplingParams(temperature=0.9, seed=i, max_tokens=40) for i in range(len(QUESTIONS))]
    together = told(make(speculative).generate(prompts(), wanted, use_tqdm=False))
    alone = make(speculative)
    apart = [told(alone.generate(p, w, use_tqdm=False))[0]
             for p, w in zip(prompts(), wanted, strict=True)]  # fmt: skip
    assert together == apart
    greedy = make(speculative).generate(prompts(), params("greedy"), use_tqdm=False)
    assert told(greedy) == expected("greedy")


def test_metrics_have_vllms_names() -> None:
    llm = make(NGRAM | {"num_speculative_tokens": 4})
    looping = list(itertools.islice(itertools.cycle([301, 402, 503]), 30))
    llm.generate(
        looping, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True), use_tqdm=False
    )
    metrics = {
        m.name: getattr(m, "value", None) or getattr(m, "values", None) for m in llm.get_metrics()
    }
    prefix = "vllm:spec_decode_num_"
    per_pos = metrics[prefix + "accepted_tokens_per_pos"]
    assert len(per_pos) == 4 and per_pos == sorted(per_pos, reverse=True)
    assert sum(per_pos) == metrics[prefix + "accepted_tokens"]
    assert "tokens accepted" in llm.engine.stats.report()
    assert make().get_metrics() == []


def test_synthetic_acceptance_gives_the_length_that_was_asked_for() -> None:
    speculative = NGRAM | {
        "num_speculative_tokens": 4, "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 3.5,
    }  # fmt: skip
    llm = make(speculative)
    looping = list(itertools.islice(itertools.cycle([301, 402, 503]), 60))
    llm.generate(
        [looping] * 4,
        SamplingParams(temperature=0, max_tokens=200, ignore_eos=True),
        use_tqdm=False,
    )
    stats = llm.engine.stats.spec_decode
    assert stats is not None and stats.num_drafts > 20
    assert stats.acceptance_rates[0] > 0.9


BAD: list[tuple[Any, str]] = [
    ({"method": "ngram"}, "num_speculative_tokens"),
    ({"method": "ngram", "num_speculative_tokens": 0}, "at least 1"),
    ({"method": "ngram", "num_speculative_tokens": -3}, "at least 1"),
    ({"method": "ngram", "num_speculative_tokens": 2.5}, "whole number"),
    ({"method": "ngram", "num_speculative_tokens": True}, "whole number"),
    ({"method": "ngram", "num_speculative_tokens": 129}, "at most 128"),
    ({"num_speculative_tokens": 3}, "neither method nor model"),
    ({"method": "guess", "num_speculative_tokens": 3}, "ngram, draft_model"),
    ({"methid": "ngram", "num_speculative_tokens": 3}, "did you mean method"),
    (NGRAM | {"num_speculative_tokens": 3, "prompt_lookup_min": 9}, "swap them"),
    (NGRAM | {"num_speculative_tokens": 3, "prompt_lookup_min": 0}, "at least 1"),
    (NGRAM | {"num_speculative_tokens": 3, "model": "storyteller-draft"}, "leave model out"),
    (METHODS["draft_model"] | {"num_speculative_tokens": 3, "prompt_lookup_max": 3},
     "only method 'ngram'"),
    ({"method": "draft_model", "num_speculative_tokens": 3}, "needs a model"),
    (NGRAM | {"num_speculative_tokens": 3, "draft_sample_method": "x"}, "greedy, probabilistic"),
    (NGRAM | {"num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}, "draft_model"),
    (NGRAM | {"num_speculative_tokens": 3, "rejection_sample_method": "x"}, "standard, synthetic"),
    (NGRAM | {"num_speculative_tokens": 3, "synthetic_acceptance_length": 2}, "synthetic"),
    (NGRAM | {"num_speculative_tokens": 3, "rejection_sample_method": "synthetic"}, "exactly one"),
    (NGRAM | {"num_speculative_tokens": 3, "rejection_sample_method": "synthetic",
              "synthetic_acceptance_length": 4.5}, "between 1 and 4"),
    (NGRAM | {"num_speculative_tokens": 2, "rejection_sample_method": "synthetic",
              "synthetic_acceptance_rates": [0.5, 0.6]}, "must not rise"),
    *((NGRAM | {"num_speculative_tokens": 2, "rejection_sample_method": "synthetic",
                f"synthetic_acceptance_{key}": value}, message) for key, value, message in (
        ("length", "two", "length is 'two'; with num_speculative_tokens=2"),
        ("length", True, "between 1 and 3"),
        ("rates", 0.5, "rates is 0.5; it must be a list of 2 numbers"),
        ("rates", ["a", 1], "must be a list of 2 numbers"))),
    (NGRAM | {"num_speculative_tokens": 3, "tensor_parallel_size": 1}, "draft_tensor_parallel"),
    ({"model": 3, "num_speculative_tokens": 3}, "model is 3; it must be a folder"),
    ({"method": "draft_model", "model": "", "num_speculative_tokens": 3}, "needs a model"),
    (3, "must be an object"),
    (METHODS["medusa"] | {"num_speculative_tokens": 5}, "use at most 4"),
    (METHODS["medusa"] | {"num_speculative_tokens": 2, "model": "storyteller-eagle"},
     "config.json: num_heads is None; it must be a whole number of 1 to 128; is this a fold"),
    (METHODS["draft_model"] | {"num_speculative_tokens": 2, "model": "storyteller-eagle"},
     "the draft model in '.*storyteller-eagle': .* is it a head of method 'eagle'"),
]  # fmt: skip


@pytest.mark.parametrize(("speculative", "message"), BAD)
def test_bad_input_is_refused_with_the_fix(speculative: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(speculative)


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make({"method": "draft_model", "model": "nowhere", "num_speculative_tokens": 3})


def test_a_draft_model_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = bundled.path("storyteller-draft")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 2000}))
    tensors = load_file(folder / "model.safetensors")
    cut = {k: t[:2000].clone() if len(t) == 2048 else t for k, t in tensors.items()}
    save_file(cut, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="a vocabulary of 2000 tokens and the model one of 2048"):
        make({"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 3})


def test_a_draft_model_that_keeps_states_is_refused() -> None:
    with pytest.raises(ValueError, match=r"storyteller-hybrid' is Qwen3Next\w+: it keeps a state"):
        make({"method": "draft_model", "model": "storyteller-hybrid", "num_speculative_tokens": 3})


def test_a_budget_that_always_cuts_drafts_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        make(NGRAM | {"num_speculative_tokens": 4}, max_num_batched_tokens=3, max_num_seqs=2)
    assert "one request with 4 drafts needs 5: drafts are always cut" in caplog.text


def test_defaults_are_vllms() -> None:
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (5, 5)
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=3, prompt_lookup_max=4)
    assert config.prompt_lookup_min == 4
    assert SpeculativeConfig(model="ngram", num_speculative_tokens=3).method == "ngram"
    assert SpeculativeConfig(model="a", num_speculative_tokens=3).method == "draft_model"
    synthetic = SpeculativeConfig(
        method="ngram", num_speculative_tokens=4, rejection_sample_method="synthetic",
        synthetic_acceptance_length=3.5,
    )  # fmt: skip
    assert synthetic.synthetic_acceptance_rates == [1.0, 1.0, 0.5, 0.0]


def test_only_drafters_that_write_kv_get_slots_ahead() -> None:
    ahead = {
        method: make(
            METHODS[method] | {"num_speculative_tokens": 4}
        ).config.scheduler.num_lookahead_tokens
        for method in METHODS
    }
    assert ahead == {"ngram": 0, "draft_model": 4, "medusa": 0, "eagle": 4}
