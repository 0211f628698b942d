"""Task 01.1: generate by asking the model for the whole sequence, again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.engine.naive import greedy_without_cache


def test_01_1_max_tokens_new_tokens_and_no_prompt(tiny: Any, prompt: list[int]) -> None:
    """The answer holds max_tokens tokens; the prompt is not part of it."""
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=6)
    expect(len(answer), 6, at="5 prompt tokens, max_tokens 6: tokens returned", answer=answer)
    assert answer[:5] != prompt, f"{answer} begins with the prompt; return only what is new"


def test_01_1_every_token_is_the_most_likely_one(tiny: Any, prompt: list[int]) -> None:
    """Each token is the argmax of the logits after all tokens before it."""
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=8)
    expect(len(answer), 8, at="5 prompt tokens, max_tokens 8: tokens returned", answer=answer)
    right = tiny.most_likely(prompt, answer)
    for index, (yours, expected) in enumerate(zip(answer, right, strict=True)):
        context = [*prompt, *answer[:index]]
        expect(yours, expected, at=f"token {index} of the answer", context=context)


def test_01_1_tokens_are_plain_ints(tiny: Any, prompt: list[int]) -> None:
    """A token is an int, not a tensor: the scheduler and the tokenizer know no torch."""
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=3)
    kinds = [type(token).__name__ for token in answer]
    expect(kinds, ["int"] * 3, at="types of the 3 tokens returned")


def test_01_1_every_step_computes_the_whole_sequence(tiny: Any, prompt: list[int]) -> None:
    """Step k computes the prompt and the k tokens generated so far, from position 0."""
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=4)
    expect(tiny.lengths(), [5, 6, 7, 8], at="tokens computed by each forward pass, prompt 5")
    for step, call in enumerate(tiny.calls):
        at = f"forward pass {step}"
        expect(call.tokens, [*prompt, *answer[:step]], at=f"{at}: its tokens")
        expect(call.positions, list(range(5 + step)), at=f"{at}: their positions")


def test_01_1_eos_does_not_end_it(
    tiny: Any, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This loop does not stop at EOS; when a request ends is the scheduler's matter."""
    first = tiny.most_likely(prompt, [0])[0]
    config = replace(tiny.model.config, eos_token_ids=(first,))
    monkeypatch.setattr(tiny.model, "config", config)
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=4)
    expect(len(answer), 4, at=f"EOS is {first}, the first token of the answer; max_tokens 4")


def test_01_1_the_prompt_stays_as_it_was(tiny: Any, prompt: list[int]) -> None:
    """The caller's list of prompt tokens is not changed."""
    before = list(prompt)
    greedy_without_cache(tiny.model, prompt, max_tokens=2)
    expect(prompt, before, at="the caller's prompt after the call")
