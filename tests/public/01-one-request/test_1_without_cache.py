"""Task 01.1: generate by asking the model for the whole sequence, again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.engine.naive import greedy_without_cache


def test_01_1_max_tokens_new_tokens_and_no_prompt(tiny: Any, prompt: list[int]) -> None:
    """The answer holds max_tokens tokens; the prompt is not part of it."""
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=6)
    expect(len(answer), 6, at="5 prompt tokens, max_tokens 6: tokens returned", answer=answer)
    assert answer[:5] != prompt, f"{answer} begins with the prompt; return only what is new"


def test_01_1_the_first_pass_computes_the_prompt(tiny: Any, prompt: list[int]) -> None:
    """One token needs one pass: over the whole prompt, from position 0."""
    greedy_without_cache(tiny.model, prompt, max_tokens=1)
    expect(tiny.lengths()[:1], [5], at="tokens of the first pass, 5 prompt tokens, max_tokens 1")
    expect(tiny.calls[0].tokens, prompt, at="first pass: its tokens")
    expect(tiny.calls[0].positions, [0, 1, 2, 3, 4], at="first pass: its positions")


def test_01_1_every_step_computes_the_whole_sequence(tiny: Any, prompt: list[int]) -> None:
    """Step k computes the prompt and the k tokens generated so far."""
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=4)
    for step, call in enumerate(tiny.calls[1:], 1):
        expect(call.tokens, [*prompt, *answer[:step]], at=f"forward pass {step}: its tokens")


def test_01_1_every_pass_begins_at_0_and_ends_with_the_newest_token(
    tiny: Any, prompt: list[int]
) -> None:
    """Nothing of an earlier pass is there, and what a step samples is the end of the next."""
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=4)
    starts = sorted({call.positions[0] for call in tiny.calls})
    expect(starts, [0], at="position of the first token of each pass")
    last = [call.tokens[-1] for call in tiny.calls[1:]]
    expect(last, answer[: len(last)], at="last token of each pass but the first")


def test_01_1_every_token_is_the_most_likely_one(tiny: Any, prompt: list[int]) -> None:
    """Each token is the argmax of the logits after all tokens before it."""
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=8)
    right = tiny.most_likely(prompt, answer)
    for index, (yours, expected) in enumerate(zip(answer, right, strict=True)):
        context = [*prompt, *answer[:index]]
        expect(yours, expected, at=f"token {index} of the answer", context=context)


@pytest.mark.parametrize("place", [0, 17])
def test_01_1_a_token_is_a_place_in_the_vocabulary(
    tiny: Any, prompt: list[int], monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """The token is where the largest logit stands, not how large it is."""
    logits = torch.full((1, 59), -1.0)
    logits[0, place], logits[0, 40] = 17.0, -3.0
    monkeypatch.setattr(tiny.model, "compute_logits", lambda hidden: logits)
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=8)
    at = f"the largest logit is 17.0 and stands at {place}, the smallest at 40: tokens returned"
    expect(sorted({int(token) for token in answer}), [place], at=at)


def test_01_1_tokens_are_plain_ints(tiny: Any, prompt: list[int]) -> None:
    """A token is an int, not a tensor: the scheduler and the tokenizer know no torch."""
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=8)
    kinds = sorted({type(token).__name__ for token in answer})
    expect(kinds, ["int"], at="types of the tokens returned")


def test_01_1_eos_does_not_end_it(
    tiny: Any, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This loop does not stop at EOS; when a request ends is the scheduler's matter."""
    first = tiny.most_likely(prompt, [0])[0]
    config = replace(tiny.model.config, eos_token_ids=(first,))
    monkeypatch.setattr(tiny.model, "config", config)
    answer = greedy_without_cache(tiny.model, prompt, max_tokens=4)
    at = f"EOS is {first}, the first token of the answer; max_tokens 4: does it go on?"
    expect(len(answer) > 1, True, at=at, answer=answer)


def test_01_1_the_prompt_stays_as_it_was(tiny: Any, prompt: list[int]) -> None:
    """The caller's list of prompt tokens is not changed."""
    before = list(prompt)
    greedy_without_cache(tiny.model, prompt, max_tokens=2)
    expect(prompt, before, at="the caller's prompt after the call")
