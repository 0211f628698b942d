"""What the docstrings promise for inputs that random ones hardly ever hit: numbers on a border,
broken bytes that go on, and a last token that is no text."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tokenizers import Tokenizer

from labkit.worker import Program
from mini_vllm import bundled

REPLACEMENT = "\ufffd"
MAX_BROKEN_WINDOW, MAX_WAITING = 96, 3


def byte_level() -> Tokenizer:
    """The storyteller's."""
    return Tokenizer.from_file(str(bundled.path("storyteller") / "tokenizer.json"))


def detokenizer(p: Program, tokenizer: Tokenizer, **params: Any) -> Any:
    sent = p.call("tokenizers:Tokenizer.from_str", tokenizer.to_str())
    sampling = p.new("mini_vllm.sampling_params:SamplingParams", **params)
    return p.new("mini_vllm.engine.detokenizer:IncrementalDetokenizer", sent, [], sampling)


@pytest.mark.parametrize(
    ("weights", "uniform", "token"),
    [
        ([0, 1, 1], 0.0, 1),
        ([0, 0, 3], 0.0, 2),
        ([1, 1], 0.5, 1),
        ([1, 0, 0, 1], 0.5, 3),
        ([1, 1, 1, 1], 0.25, 1),
        ([0, 1, 0, 1, 0], 0.5, 3),
    ],
)
def test_06_4_a_border_belongs_to_the_token_behind_it(
    subject: Any, weights: list[int], uniform: float, token: int
) -> None:
    """Halves and quarters are exact in float32. A token of probability 0 is never drawn, not even
    by the number 0."""
    p = Program()
    logits = p.call("torch:tensor", [[0.0 if w else -math.inf for w in weights]])
    numbers = p.call("torch:tensor", [uniform])
    p.see(p.call("mini_vllm.sample.sampler:sample_from_logits", logits, numbers).tolist())
    assert subject.run(p) == [[token]]


def test_06_7_broken_bytes_are_shown_when_the_window_is_full(subject: Any) -> None:
    """One token more than MAX_BROKEN_WINDOW is the first that shows them."""
    tokenizer = byte_level()
    byte = tokenizer.token_to_id("©")  # how the vocabulary writes byte A9, which begins nothing
    assert tokenizer.decode([byte] * 2) == REPLACEMENT * 2
    p = Program()
    text = detokenizer(p, tokenizer)
    for _ in range(MAX_BROKEN_WINDOW + 1):
        p.see(text.append([byte]))
    *before, last = subject.run(p)
    assert before == [""] * MAX_BROKEN_WINDOW
    assert last == REPLACEMENT * (MAX_BROKEN_WINDOW + 1 - MAX_WAITING)


@pytest.mark.parametrize(
    ("include", "right"),
    [(False, ["ab", None, 3]), (True, ["abc", "c", 3])],
    ids=["left out", "included"],
)
def test_06_8_a_stop_token_is_no_text(subject: Any, include: bool, right: list[Any]) -> None:
    """The token that ended the request is counted; it is read as text only if it is to be
    included."""
    tokenizer = byte_level()
    p = Program()
    text = detokenizer(p, tokenizer, stop=["c"], include_stop_str_in_output=include)
    text.append([tokenizer.token_to_id(letter) for letter in "abc"], stop_terminated=True)
    text.flush()
    for attribute in ("text", "stop_reason", "num_output_tokens"):
        p.see(getattr(text, attribute))
    assert subject.run(p) == right
