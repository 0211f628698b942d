"""What the docstrings promise for inputs that random ones hardly ever hit: numbers on a border,
filters whose order shows, broken bytes that go on, and a last token that is no text."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from labkit.process.worker import Program
from mini_vllm import bundled

many = settings(max_examples=40)
REPLACEMENT = "\ufffd"
MAX_BROKEN_WINDOW, MAX_WAITING = 96, 3
FILTERS = "mini_vllm.sample.logits_processors:"
SAMPLER = "mini_vllm.sample.sampler:"
ELEMENTS = "labkit.inside.cost:elements"
V = 50_000
"""Tokens of a real vocabulary; costs are counted over it."""


@cache
def byte_level() -> Tokenizer:
    """The storyteller's."""
    return Tokenizer.from_file(str(bundled.path("storyteller") / "tokenizer.json"))


def detokenizer(p: Program, tokenizer: Tokenizer, **params: Any) -> Any:
    sent = p.call("tokenizers:Tokenizer.from_str", tokenizer.to_str())
    sampling = p.new("mini_vllm.sampling_params:SamplingParams", **params)
    return p.new("mini_vllm.engine.detokenizer:IncrementalDetokenizer", sent, [], sampling)


def tensor(p: Program, values: Any) -> Any:
    return p.call("torch:tensor", values)


def tensor_of(numbers: list[float]) -> list[float]:
    """The numbers as float32 has them."""
    return [float(number) for number in np.float32(numbers)]


def metadata(p: Program, vocab: int, *requests: tuple[dict[str, Any], list[int]]) -> Any:
    """Of one row a request: its parameters, and the tokens that it has written."""
    rows = [
        (p.new("mini_vllm.sampling_params:SamplingParams", **params), [], output)
        for params, output in requests
    ]
    rows = [p.new("mini_vllm.sample.metadata:SamplingRow", *row) for row in rows]
    return p.call("mini_vllm.sample.metadata:make_sampling_metadata", rows, vocab)


def normal(p: Program, rows: int = 2) -> Any:
    """Logits of some rows over a real vocabulary."""
    p.call("torch:manual_seed", 0)
    return p.call("torch:randn", rows, V)


def test_06_2_only_wide_sets_need_a_sort(subject: Any) -> None:
    """One row keeps a few tokens of 50,000 and the other is off: 128 logits are looked at. A sort
    would cost 16 times the row."""
    p = Program()
    logits = p.call("operator:mul", normal(p), 8.0)
    top_p = p.name(f"{FILTERS}apply_top_p")
    p.see(p.call(ELEMENTS, top_p, logits, tensor(p, [0.5, 1.0])))
    assert subject.run(p)[0] < 12 * 2 * V


def test_06_3_penalties_cost_what_was_used(subject: Any) -> None:
    """Five used tokens of 50,000: beyond the copy that the result is, next to nothing is done."""
    p = Program()
    rows, tokens = tensor(p, [0, 0, 1, 1, 1]), tensor(p, [7, 8, 7, 49_999, 0])
    ones = p.call("torch:ones", 2)
    penalties = p.name(f"{FILTERS}apply_penalties")
    counts = p.call("torch:zeros", 2, V)
    p.see(p.call(ELEMENTS, penalties, normal(p), rows, tokens, counts, ones, ones, ones))
    assert subject.run(p)[0] < 3 * 2 * V


@pytest.mark.parametrize(
    ("params", "most"),
    [
        ({"temperature": 0.0}, 1.5),
        ({"temperature": 0.8}, 11.0),
    ],
    ids=["all greedy", "all random, no filter"],
)
def test_06_5_no_work_that_no_row_needs(subject: Any, params: dict[str, Any], most: float) -> None:
    """An argmax alone, or temperature and a draw alone; a filter that is off is not run."""
    p = Program()
    batch = metadata(p, V, (params, []), (params | {"seed": 3}, []))
    p.see(p.call(ELEMENTS, p.new(f"{SAMPLER}Sampler").sample, normal(p), batch))
    assert subject.run(p)[0] < most * 2 * V


def test_06_4_no_row_is_waited_for(subject: Any) -> None:
    """The host asks the device as often for 64 rows as for 4."""
    p = Program()
    draw = p.name(f"{SAMPLER}sample_from_logits")
    for rows in (4, 64):
        logits = p.call("torch:zeros", rows, 10)
        p.see(p.call("labkit.inside.cost:waits", draw, logits, p.call("torch:rand", rows)))
    few, many_rows = subject.run(p)
    assert few == many_rows


def test_06_5_random_rows_need_no_argmax(subject: Any) -> None:
    """Where all rows are drawn, the whole costs what the draw costs."""
    p = Program()
    batch = metadata(p, V, ({"temperature": 0.8}, []), ({"temperature": 0.8}, []))
    sampler = p.new(f"{SAMPLER}Sampler")
    for method in (sampler.sample, sampler.sample_randomly):
        p.see(p.call(ELEMENTS, method, normal(p), batch))
    whole, draw = subject.run(p)
    assert whole < draw + V


def test_06_1_min_p_keeps_the_token_on_the_limit(subject: Any) -> None:
    """With min_p 1 exactly the largest stay: they are at least as probable as the largest."""
    p = Program()
    logits = p.call("torch:tensor", [[2.0, 1.0, 2.0, -1.0]])
    limit = p.call("torch:tensor", [1.0])
    p.see(p.call(f"{FILTERS}apply_min_p", logits, limit).tolist())
    assert subject.run(p) == [[[2.0, -math.inf, 2.0, -math.inf]]]


@pytest.mark.parametrize("broken", [math.inf, math.nan, -math.inf, 3e38])
def test_06_3_what_is_ruled_out_is_out(subject: Any, broken: float) -> None:
    """Whatever its logit was, and no other token suffers by it."""
    p = Program()
    logits = p.call("torch:tensor", [[1.0, broken, 2.0]])
    p.see(p.call(f"{FILTERS}apply_allowed_token_ids", logits, tensor(p, [[True, False, True]])))
    one, zero = tensor(p, [1]), tensor(p, [0])
    p.see(p.call(f"{FILTERS}apply_min_tokens", logits, zero, one, one, zero))
    assert [seen.tolist() for seen in subject.run(p)] == [[[1.0, -math.inf, 2.0]]] * 2


def test_06_3_the_given_logits_stay_as_they_are(subject: Any) -> None:
    """Each step answers with a copy: logprobs are computed from the logits that came in."""
    p = Program()
    logits, row, token = (tensor(p, value) for value in ([[1.0, 2.0, 3.0]], [0], [1]))
    length, until, value = (tensor(p, value) for value in ([3], [4], [2.0]))
    steps = {
        "apply_allowed_token_ids": [tensor(p, [[True, False, True]])],
        "apply_min_tokens": [row, token, until, length],
        "apply_logit_bias": [row, token, value],
        "apply_penalties": [row, token, p.call("torch:ones", 1, 3), value, value, value],
    }
    for name, args in steps.items():
        p.see(p.call(f"{FILTERS}{name}", logits, *args)[0].tolist())
        p.see(logits[0].tolist())
    seen = subject.run(p)
    assert seen[1::2] == [[1.0, 2.0, 3.0]] * 4, "the input was changed"
    assert seen[::2] == [[1.0, changed, 3.0] for changed in (-math.inf, -math.inf, 4.0, -3.0)]


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
    p.see(p.call(f"{SAMPLER}sample_from_logits", logits, numbers).tolist())
    assert subject.run(p) == [[token]]


@pytest.mark.parametrize("share", [1e-3, 1e-7, 1e-12])
def test_06_4_the_smallest_number_is_the_first_tokens(subject: Any, share: float) -> None:
    """The first running sum above 0 is that of the first token that may come, however seldom."""
    p = Program()
    logits = p.call("torch:tensor", [[-math.inf, math.log(share), 0.0, 0.0]])
    p.see(p.call(f"{SAMPLER}sample_from_logits", logits, tensor(p, [0.0])).tolist())
    assert subject.run(p) == [[1]]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_06_4_a_row_that_failed_gets_a_token_too(subject: Any, broken: float) -> None:
    """Any one of the vocabulary; its neighbours get their own."""
    for place in range(3):
        p = Program()
        rows = [[-math.inf, 0.0, -math.inf] for _ in range(3)]
        rows[1][place] = broken
        logits = p.call("torch:tensor", rows)
        p.see(p.call(f"{SAMPLER}sample_from_logits", logits, tensor(p, [0.0, 0.9, 0.9])).tolist())
        (first, failed, last) = subject.run(p)[0]
        assert [first, last] == [1, 1] and 0 <= failed < 3


def test_06_4_the_largest_number_is_not_behind_the_last_token(subject: Any) -> None:
    """The sum of a thousand probabilities ends a little off 1, and tokens that are out come last:
    the largest number below 1 still belongs to one that is in."""
    p = Program()
    generator = p.new("torch:Generator").manual_seed(64)
    logits = p.call("torch:randn", 200, 1000, generator=generator)
    logits = p.call("torch:cat", [logits, p.call("torch:full", [200, 5], -math.inf)], dim=1)
    numbers = p.call("torch:full", [200], 1 - 2**-24)
    tokens = p.call(f"{SAMPLER}sample_from_logits", logits, numbers)
    p.see(tokens.amax().item())
    assert subject.run(p)[0] < 1000, "a token that is ruled out was drawn"


@pytest.mark.parametrize(
    ("weights", "params", "left"),
    [
        ([8, 6, 1, 1, 1, 1], {"min_p": 0.5, "top_p": 0.5}, [0]),
        ([5, 4, 3, 2], {"top_k": 2, "top_p": 0.5}, [0]),
        ([4, 2, 1], {"temperature": 0.5, "min_p": 0.3}, [0]),
        ([16, 4, 1], {"temperature": 2.0, "min_p": 0.4}, [0, 1]),
        ([64, 36, 9, 4, 1], {"temperature": 2.0, "min_p": 0.3, "top_k": 2, "top_p": 0.55}, [0]),
    ],
    ids=["min-p, top-p", "top-k, top-p", "cold, min-p", "hot, min-p", "all four"],
)
def test_06_5_each_step_sees_what_the_one_before_has_left(
    subject: Any, weights: list[int], params: dict[str, Any], left: list[int]
) -> None:
    """In another order more tokens stay, or fewer. Temperature 2 takes square roots of weights."""
    p = Program()
    logits = tensor(p, [[math.log(weight) for weight in weights]] * 200)
    requests = [(params | {"seed": seed}, []) for seed in range(200)]
    batch = metadata(p, len(weights), *requests)
    p.see(p.new(f"{SAMPLER}Sampler").sample_randomly(logits, batch).unique().tolist())
    assert subject.run(p) == [left], "tokens that came up in 200 draws"


def test_06_5_the_lowest_temperature_is_drawn(subject: Any) -> None:
    """Of two tokens that are as large either may come; beside a row that is greedy."""
    p = Program()
    cold = [({"temperature": 0.01, "seed": seed}, []) for seed in range(60)]
    batch = metadata(p, 3, ({"temperature": 0.0}, []), *cold)
    tokens = p.new(f"{SAMPLER}Sampler").sample(tensor(p, [[0.0, 1.0, 1.0]] * 61), batch)
    p.see(tokens.tolist())
    [[greedy, *drawn]] = subject.run(p)
    assert greedy == 1 and set(drawn) == {1, 2}


def test_06_6_no_logprobs_is_not_the_same_as_0(subject: Any) -> None:
    """0 asks for the chosen token alone; only None asks for nothing."""
    p = Program()
    logits = tensor(p, [[1.0, 1.0, 2.0]] * 2)
    plain, with_0 = {"temperature": 0.0}, {"temperature": 0.0, "logprobs": 0}
    sampler = p.new(f"{SAMPLER}Sampler")
    p.see(sampler.forward(logits, metadata(p, 3, (plain, []), (plain, []))).logprobs)
    logprobs = sampler.forward(logits, metadata(p, 3, (plain, []), (with_0, []))).logprobs
    p.see(logprobs.token_ids.tolist())
    p.see(logprobs.ranks.tolist())
    assert subject.run(p) == [None, [[2], [2]], [1, 1]]


@many
@given(order=st.permutations([-1.0, -1.0 - 2**-23, -0.5, -250.0, -1e30, -math.inf]))
def test_06_6_neighbours_and_far_away(subject: Any, order: list[float]) -> None:
    """Two that float32 only just tells apart have ranks of their own, and what is as good as
    impossible keeps its number."""
    p = Program()
    rows = [p.call("torch:tensor", [order] * 6), 6, tensor(p, list(range(6)))]
    found = p.call(f"{SAMPLER}gather_logprobs", *rows)
    for part in (found.token_ids, found.logprobs, found.ranks):
        p.see(part.tolist())
    ids, numbers, ranks = subject.run(p)
    best = sorted(range(6), key=lambda token: -order[token])
    assert ranks == [1 + best.index(token) for token in range(6)]
    assert ids == [[token, *best] for token in range(6)]
    right = tensor_of(order)
    assert numbers == [[right[token] for token in row] for row in ids]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_06_6_a_small_bias_counts_beside_half_precision_logits(subject: Any, dtype: str) -> None:
    """Logits of 8 in half precision cannot become 8.002; in float32 they can."""
    p = Program()
    logits = p.call("torch:full", [3, 4], 8.0, dtype=p.name(f"torch:{dtype}"))
    greedy = {"temperature": 0.0, "logprobs": 1}
    bias = greedy | {"logit_bias": {2: 0.002}}
    presence, repetition = {"presence_penalty": -0.002}, {"repetition_penalty": 0.9998}
    batch = metadata(p, 4, (bias, []), (greedy | presence, [3]), (greedy | repetition, [1]))
    output = p.new(f"{SAMPLER}Sampler").forward(logits, batch)
    p.see(output.sampled_token_ids.tolist())
    p.see(output.logprobs.ranks.tolist())
    assert subject.run(p) == [[2, 3, 1], [4, 4, 4]]


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


def test_06_8_a_step_of_the_stop_token_alone(subject: Any) -> None:
    """It is counted, and nothing is shown of it, as behind other tokens of one step."""
    tokenizer = byte_level()
    p = Program()
    text = detokenizer(p, tokenizer, stop=["zz"])
    p.see(text.append([tokenizer.token_to_id("a")]))
    p.see(text.append([tokenizer.token_to_id("b")], stop_terminated=True))
    p.see([text.flush(), text.text, text.num_output_tokens, text.stop_reason])
    assert subject.run(p) == ["a", "", ["", "a", 2, None]]


def test_06_8_a_stop_string_may_begin_before_min_tokens(subject: Any) -> None:
    """What may begin one waits from the first token on; only where it ends counts."""
    tokenizer = byte_level()
    p = Program()
    text = detokenizer(p, tokenizer, stop=["abc"], min_tokens=3)
    for letter in "xabc":
        p.see(text.append([tokenizer.token_to_id(letter)]))
    p.see([text.flush(), text.stop_reason, text.num_output_tokens])
    assert subject.run(p) == ["x", "", "", "", ["", "abc", 4]]


def test_06_8_the_order_of_the_stop_strings_decides(subject: Any) -> None:
    """Several end inside one token: the first of the list, wherever the others begin."""
    tokenizer = byte_level()
    fox = tokenizer.encode("a fox").ids[-1]
    assert tokenizer.decode([fox]) == " fox"
    p = Program()
    for stop in (["x", "o"], ["o", "x"], ["z", "ox", " fo"]):
        text = detokenizer(p, tokenizer, stop=stop)
        p.see([text.append([fox]), text.stop_reason])
    assert subject.run(p) == [[" fo", "x"], [" f", "o"], [" f", "ox"]]


def test_06_8_the_longest_beginning_waits(subject: Any) -> None:
    """The end of "aa" begins "aab" twice, with one letter and with two; both must wait."""
    tokenizer = byte_level()
    p = Program()
    text = detokenizer(p, tokenizer, stop=["aab"])
    for letter in "aaab":
        p.see(text.append([tokenizer.token_to_id(letter)]))
    p.see([text.flush(), text.stop_reason])
    assert subject.run(p) == ["", "", "a", "", ["", "aab"]]
