"""Beam search: the texts that transformers finds, and the rules about ends and lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from mini_vllm import LLM, bundled
from mini_vllm.engine.beam_search import BeamSearch, BeamSearchOutput
from mini_vllm.lora.request import LoRARequest
from mini_vllm.outputs import Logprob
from mini_vllm.sampling_params import BeamSearchParams

PROMPTS = ["Once upon a time", "The dog", "Tom and Mia went to the"]
EOS = 9


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM("storyteller", dtype="float32", max_model_len=64, num_gpu_blocks=64,
               enable_lora=True)  # fmt: skip
    yield made
    made.shutdown()


def texts(outputs: list[BeamSearchOutput]) -> list[list[list[int]]]:
    return [[sequence.tokens for sequence in output.sequences] for output in outputs]


@pytest.mark.parametrize("width", [1, 3, 10])
def test_the_beams_are_those_of_transformers(llm: LLM, width: int) -> None:
    """Without end tokens all beams have one length, and both rank them by probability alone."""
    model = AutoModelForCausalLM.from_pretrained(bundled.path("storyteller"), dtype=torch.float32)
    found = llm.beam_search(PROMPTS, BeamSearchParams(width, max_tokens=8, ignore_eos=True))
    for prompt, output in zip(PROMPTS, found, strict=True):
        ids = torch.tensor([llm.get_tokenizer().encode(prompt)])
        wanted = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, num_beams=width,
            num_return_sequences=width, do_sample=False, eos_token_id=None, pad_token_id=0,
            output_scores=True, return_dict_in_generate=True, length_penalty=0.0,
        )  # fmt: skip
        assert [s.tokens for s in output.sequences] == wanted.sequences.tolist()
        if width > 1:
            scores = [s.cum_logprob for s in output.sequences]
            torch.testing.assert_close(torch.tensor(scores), wanted.sequences_scores)
    assert found[0].sequences[0].text.startswith(PROMPTS[0])
    assert {s.finish_reason for s in found[0].sequences} == {"length"}


def test_a_batch_is_its_prompts_alone(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=5)
    together = texts(llm.beam_search(PROMPTS, params))
    assert together == [texts(llm.beam_search(prompt, params))[0] for prompt in PROMPTS]
    assert together == texts(llm.beam_search(PROMPTS, params, concurrency_limit=2))
    counted = []

    class Bar:
        def __init__(self, total: int, desc: str) -> None:
            counted.append((total, desc))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None: ...

        def update(self, n: int) -> None:
            counted.append(n)

    llm.beam_search(PROMPTS, params, use_tqdm=Bar, concurrency_limit=2)
    assert counted == [(10, "steps"), *[1] * 10]


def test_each_prompt_may_have_an_adapter(llm: LLM) -> None:
    adapter = LoRARequest("a", 1, str(bundled.adapter_path(bundled.ADAPTERS[0])))
    params = BeamSearchParams(beam_width=2, max_tokens=6)
    base, other = (texts(llm.beam_search(PROMPTS[0], params, lora)) for lora in (None, adapter))
    assert base != other
    mixed = llm.beam_search([PROMPTS[0]] * 2, params, [adapter, None])
    assert texts(mixed) == [*other, *base]
    assert mixed[0].sequences[0].lora_request is adapter


def exhaustive(logprobs: Any, steps: int, width: int, penalty: float) -> list[list[int]]:
    """The best of all texts over tokens 0..9, end token included, by a loop over all of them."""
    scored = []
    for length in range(1, steps + 1):
        for text in itertools.product(range(10), repeat=length):
            ends = text[-1] == EOS
            if EOS in text[:-1] or (length < steps and not ends):
                continue
            total = sum(logprobs([5, *text[:i]])[t].logprob for i, t in enumerate(text))
            scored.append((total / (1 + length - ends) ** penalty, [5, *text]))
    return [text for _, text in sorted(scored, key=lambda pair: -pair[0])[:width]]


@pytest.mark.parametrize("penalty", [-2.0, 0.0, 1.0, 3.0])
def test_wide_enough_it_finds_the_best_of_all(penalty: float) -> None:
    """Three steps over ten tokens, one of them the end, with room for every beam."""

    def logprobs(tokens: list[int]) -> dict[int, Logprob]:
        drawn = torch.Generator().manual_seed(hash(tuple(tokens)) % 2**31)
        row = torch.randn(10, generator=drawn).mul(2).log_softmax(0).tolist()
        return {token: Logprob(value) for token, value in enumerate(row)}

    params = BeamSearchParams(beam_width=10, max_tokens=3, length_penalty=penalty)
    params.beam_width = 1000  # more than the sampler would report
    search = BeamSearch([5], [5], params, (EOS,))
    for _ in range(3):
        search.grow([logprobs(beam.tokens) for beam in search.beams])
    params.beam_width = 20
    found = search.output(None).sequences
    assert [sequence.tokens for sequence in found] == exhaustive(logprobs, 3, 20, penalty)
    for sequence in found:
        ends = sequence.tokens[-1] == EOS
        assert sequence.finish_reason == ("stop" if ends else "length")
        assert sequence.stop_reason == (EOS if ends else None)
        assert len(sequence.logprobs) == len(sequence.tokens) - 1
        assert math.isclose(sequence.cum_logprob, sum(
            p[t].logprob for p, t in zip(sequence.logprobs, sequence.tokens[1:], strict=True)
        ))  # fmt: skip


@pytest.mark.parametrize(("options", "message"), [
    ({"beam_width": 0}, "beam_width is 0; it must be between 1 and 16384"),
    ({"beam_width": 16385}, "beam_width is 16385"),
    ({"beam_width": 2.5}, "beam_width is 2.5"),
    ({"max_tokens": None}, "max_tokens is None"),
    ({"temperature": -1}, "temperature is -1; it must be finite and at least 0; beams are not"),
    ({"length_penalty": math.nan}, "length_penalty is nan"),
    ({"ignore_eos": 1}, "ignore_eos is 1"),
    ({"include_stop_str_in_output": "x"}, "include_stop_str_in_output is 'x'"),
])  # fmt: skip
def test_values_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **options})


def test_a_temperature_changes_nothing(llm: LLM) -> None:
    cold, hot = (BeamSearchParams(2, 4, temperature=value) for value in (0.0, 0.7))
    assert llm.beam_search([[5, 6]], cold) == llm.beam_search([[5, 6]], hot)


def test_what_cannot_be_served_says_why(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    for prompts, options, message in (
        ([[1] * 61], {}, "context length is 64 .*requested 4 .*61 input tokens"),
        ([[]], {}, "empty"),
        (5, {}, "the prompt is 5"),
        ("x", {"concurrency_limit": 0}, "concurrency_limit is 0"),
        ("x", {"lora_request": "a"}, "lora_request is 'a'"),
    ):
        with pytest.raises(ValueError, match=message):
            llm.beam_search(prompts, params, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="params is"):
        llm.beam_search("x", {"beam_width": 2})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"beam_width is 11; .* 22, and max_logprobs is 20"):
        llm.beam_search("x", BeamSearchParams(beam_width=11, max_tokens=1))
    assert llm.beam_search([], params) == []
    small = LLM("storyteller", max_model_len=64, num_gpu_blocks=2, block_size=16)
    with pytest.raises(ValueError, match=r"a beam of 17 tokens cannot be served: .*holds 16"):
        small.beam_search([[5] * 15, [5]], params)
    assert not small.engine.has_unfinished_requests()
