"""Task 01.2: prefill once, then decode one token a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.engine.naive import greedy_with_cache


def check_tokens(watched: Any, prompt: list[int], answer: list[int]) -> None:
    right = watched.most_likely(prompt, answer)
    for index, (yours, expected) in enumerate(zip(answer, right, strict=True)):
        context = [*prompt, *answer[:index]]
        expect(yours, expected, at=f"token {index} of the answer", context=context)


def test_01_2_the_first_pass_computes_the_prompt(tiny: Any, prompt: list[int]) -> None:
    """One pass over the whole prompt, from position 0, and it gives a token already."""
    answer = greedy_with_cache(tiny.model, prompt, max_tokens=1)
    expect(tiny.lengths()[:1], [5], at="tokens of the first pass, 5 prompt tokens, max_tokens 1")
    expect(tiny.calls[0].positions, [0, 1, 2, 3, 4], at="positions of the prefill")
    expect(len(answer) > 0, True, at="max_tokens 1: is there a token?", answer=answer)


def test_01_2_then_one_token_a_step_at_the_next_position(tiny: Any, prompt: list[int]) -> None:
    """A decoded token stands behind all that the cache holds: 0-4, then 5, 6, 7."""
    greedy_with_cache(tiny.model, prompt, max_tokens=4)
    at = "tokens computed by each pass after the first, 5 prompt tokens, max_tokens 4"
    expect(tiny.lengths()[1:], [1, 1, 1], at=at)
    positions = [call.positions for call in tiny.calls[1:]]
    expect(positions, [[5], [6], [7]], at="positions of the decode steps")


def test_01_2_each_step_computes_the_token_just_sampled(tiny: Any, prompt: list[int]) -> None:
    """What step k samples is what step k + 1 computes."""
    answer = greedy_with_cache(tiny.model, prompt, max_tokens=4)
    computed = [call.tokens for call in tiny.calls[1:]]
    expect(computed, [[token] for token in answer[:3]], at="tokens computed after the prefill")


@pytest.mark.parametrize("length", [1, 5])
def test_01_2_the_same_tokens_as_without_a_cache(tiny: Any, prompt: list[int], length: int) -> None:
    """Each token is the argmax after all tokens before it: a cache changes no answer."""
    prompt = prompt[:length]
    answer = greedy_with_cache(tiny.model, prompt, max_tokens=8)
    at = f"prompt of {length}, max_tokens 8: tokens returned"
    expect(len(answer), 8, at=at, prompt=prompt, answer=answer)
    check_tokens(tiny, prompt, answer)


def test_01_2_tokens_are_plain_ints(tiny: Any, prompt: list[int]) -> None:
    """A token is an int, not a tensor."""
    answer = greedy_with_cache(tiny.model, prompt, max_tokens=3)
    kinds = sorted({type(token).__name__ for token in answer})
    expect(kinds, ["int"], at="types of the tokens returned")


def test_01_2_the_cache_is_exactly_long_enough(tiny: Any, prompt: list[int]) -> None:
    """The last token is sampled but never computed, so it needs no room."""
    greedy_with_cache(tiny.model, prompt, max_tokens=4)
    rooms = sorted({call.room for call in tiny.calls})
    expect(rooms, [8], at="room of the cache for 5 prompt tokens and max_tokens 4")


def test_01_2_eos_does_not_end_it(
    tiny: Any, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This loop does not stop at EOS either."""
    first = tiny.most_likely(prompt, [0])[0]
    config = replace(tiny.model.config, eos_token_ids=(first,))
    monkeypatch.setattr(tiny.model, "config", config)
    answer = greedy_with_cache(tiny.model, prompt, max_tokens=4)
    at = f"EOS is {first}, the first token of the answer; max_tokens 4: does it go on?"
    expect(len(answer) > 1, True, at=at, answer=answer)


def test_01_2_the_prompt_stays_with_the_caller(tiny: Any, prompt: list[int]) -> None:
    """The caller's list of prompt tokens is neither changed nor returned."""
    before = list(prompt)
    answer = greedy_with_cache(tiny.model, prompt, max_tokens=3)
    expect(prompt, before, at="the caller's prompt after the call")
    assert answer[:5] != before, f"{answer} begins with the prompt; return only what is new"


def test_01_2_storyteller_says_the_same(storyteller: Any) -> None:
    """The bundled model says with a cache what it says when it reads all at once."""
    prompt = list(range(100, 140))
    answer = greedy_with_cache(storyteller.model, prompt, max_tokens=12)
    check_tokens(storyteller, prompt, answer)
