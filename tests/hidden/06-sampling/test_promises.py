"""What the docstrings promise for inputs that random ones hardly ever hit: numbers on a border,
broken bytes that go on, and a last token that is no text."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from labkit.worker import Program
from mini_vllm import bundled

many = settings(
    max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
REPLACEMENT = "\ufffd"
MAX_BROKEN_WINDOW, MAX_WAITING = 96, 3


@cache
def byte_level() -> Tokenizer:
    """The storyteller's."""
    return Tokenizer.from_file(str(bundled.path("storyteller") / "tokenizer.json"))


def detokenizer(p: Program, tokenizer: Tokenizer, **params: Any) -> Any:
    sent = p.call("tokenizers:Tokenizer.from_str", tokenizer.to_str())
    sampling = p.new("mini_vllm.sampling_params:SamplingParams", **params)
    return p.new("mini_vllm.engine.detokenizer:IncrementalDetokenizer", sent, [], sampling)


def test_06_1_min_p_keeps_the_token_on_the_limit(subject: Any) -> None:
    """With min_p 1 exactly the largest stay: they are at least as probable as the largest."""
    p = Program()
    logits = p.call("torch:tensor", [[2.0, 1.0, 2.0, -1.0]])
    limit = p.call("torch:tensor", [1.0])
    p.see(p.call("mini_vllm.sample.logits_processors:apply_min_p", logits, limit).tolist())
    assert subject.run(p) == [[[2.0, -math.inf, 2.0, -math.inf]]]


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


@cache
def letters() -> dict[int, str]:
    """How a byte-level vocabulary writes each byte: printable ones as they are, the rest from
    U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


@many
@given(
    pieces=st.lists(
        st.one_of(st.text("aé€😀", max_size=3).map(str.encode), st.binary(min_size=1, max_size=2)),
        max_size=6,
    ),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5),
)
def test_06_7_complete_text_of_tokens_of_several_bytes(
    subject: Any, reference: Any, pieces: list[bytes], sizes: list[int]
) -> None:
    """A token may hold the end of a character, the start of the next, or both."""
    data, tokens = "".join(letters()[byte] for byte in b"".join(pieces)), []
    while data:
        size = sizes[len(tokens) % len(sizes)]
        tokens.append(data[:size])
        data = data[size:]
    p = Program()
    decode = p.new("tokenizers.decoders:ByteLevel").decode
    for end in range(len(tokens) + 1):
        p.see(p.call("mini_vllm.engine.detokenizer:complete_text", tokens[:end], decode))
    assert subject.run(p) == reference.run(p)


@pytest.mark.parametrize(
    ("pieces", "right"),
    [
        ([b"a", b"\xc3"], (1, "a")),
        ([b"\xc3", b"\xa9\xc3"], (0, "é")),
        ([b"a\xc3", b"\xa9\xc3"], (0, "aé")),
        ([b"a", b"\xf0", b"\x9f", b"\x98"], (1, "a")),
    ],
)
def test_06_7_the_longer_text_is_the_right_one(
    subject: Any, pieces: list[bytes], right: tuple[int, str]
) -> None:
    """Tokens are dropped only if no more text is lost than replacement characters."""
    p = Program()
    decode = p.new("tokenizers.decoders:ByteLevel").decode
    tokens = ["".join(letters()[byte] for byte in piece) for piece in pieces]
    answer = p.call("mini_vllm.engine.detokenizer:complete_text", tokens, decode)
    p.see(answer[0])
    p.see(answer[1])
    assert tuple(subject.run(p)) == right


def test_06_7_a_long_step_is_shown_to_its_end(subject: Any) -> None:
    """More tokens at once than any window holds are no broken bytes."""
    ids = byte_level().encode("The fox sleeps. " * 40).ids
    assert len(ids) > 2 * MAX_BROKEN_WINDOW
    p = Program()
    p.see(detokenizer(p, byte_level()).append(ids))
    assert subject.run(p) == [byte_level().decode(ids)]


def test_06_7_the_work_for_a_token_does_not_grow(subject: Any) -> None:
    """However long the output is, the text of only a few recent tokens is decoded."""
    p = Program()
    real = p.call("tokenizers:Tokenizer.from_str", byte_level().to_str())
    decode = p.new("unittest.mock:Mock", side_effect=real.decode)
    window = p.new(
        "mini_vllm.engine.detokenizer:TokenWindow",
        p.new("types:SimpleNamespace", decode=decode), [], True,
    )  # fmt: skip
    ids = byte_level().encode("The fox sleeps. " * 40).ids
    for index in ids:
        window.append([index])
    for call in range(20):
        p.see(p.call("builtins:len", decode.call_args_list[-1 - call][0][0]))
    assert max(subject.run(p)) <= MAX_BROKEN_WINDOW


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
