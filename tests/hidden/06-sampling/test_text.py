"""From tokens to text: random tokens in random steps, against decoding everything at once."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from labkit.process.worker import Program
from mini_vllm import bundled

many = settings(max_examples=40)
DETOKENIZER = "mini_vllm.engine.detokenizer:"
REPLACEMENT = "\ufffd"
WORDS = ["<unk>", "▁the", "▁fox", "s", "▁", "e", ",", "€"]


@cache
def byte_level() -> Tokenizer:
    """The storyteller's."""
    return Tokenizer.from_file(str(bundled.path("storyteller") / "tokenizer.json"))


@cache
def byte_fallback() -> Tokenizer:
    """Like Llama 2's: its decoder shows no part of a run of bytes that is not complete."""
    vocab = {word: index for index, word in enumerate(WORDS)}
    vocab |= {f"<0x{byte:02X}>": len(WORDS) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


def send(p: Program, tokenizer: Tokenizer) -> Any:
    """The same tokenizer in the worker."""
    return p.call("tokenizers:Tokenizer.from_str", tokenizer.to_str())


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """The ids in steps of these sizes, again and again."""
    steps, index = [], 0
    while ids:
        size = sizes[index % len(sizes)]
        steps.append(ids[:size])
        ids, index = ids[size:], index + 1
    return steps


def stream(
    worker: Any, tokenizer: Tokenizer, steps: list[list[int]], prompt: list[int], **params: Any
) -> tuple[list[str], str | None, int]:
    """The pieces, the reason and the number of tokens of one request."""
    p = Program()
    sampling = p.new("mini_vllm.sampling_params:SamplingParams", **params)
    detokenizer = p.new(
        f"{DETOKENIZER}IncrementalDetokenizer", send(p, tokenizer), prompt, sampling
    )
    for step in steps:
        p.see(detokenizer.append(step))
    p.see(detokenizer.flush())
    p.see(detokenizer.stop_reason)
    p.see(detokenizer.num_output_tokens)
    *pieces, reason, count = worker.run(p)
    return pieces, reason, count


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@many
@given(data=st.binary(max_size=24))
def test_06_7_complete_text_of_any_bytes(subject: Any, reference: Any, data: bytes) -> None:
    """Tokens are bytes; whatever they are, the answer is the reference's. So it is behind a long
    text that is complete."""
    p = Program()
    decode = p.new("tokenizers.decoders:ByteFallback").decode
    for end in [*range(len(data) + 1), -1]:
        names = [f"<0x{byte:02X}>" for byte in data[: max(end, 0)]]
        if end < 0:
            names = [*["long "] * 60, *[f"<0x{byte:02X}>" for byte in data + b"\x80" * 5]]
        p.see(p.call(f"{DETOKENIZER}complete_text", names, decode))
    assert subject.run(p) == reference.run(p)


@many
@given(ids=st.lists(st.integers(3, 2047), max_size=150), sizes=sizes)
def test_06_7_any_tokens_of_a_byte_level_vocabulary(
    subject: Any, ids: list[int], sizes: list[int]
) -> None:
    """Mostly no text at all: what was printed is never taken back, and only the end may miss."""
    prompt = byte_level().encode("The fox.").ids
    pieces, _, count = stream(subject, byte_level(), cut(ids, sizes), prompt)
    whole = byte_level().decode(prompt + ids)[len(byte_level().decode(prompt)) :]
    printed = "".join(pieces)
    assert whole.startswith(printed)
    assert set(whole[len(printed) :]) <= {REPLACEMENT}
    assert count == len(ids)


CHARACTERS = [*"aZ 0.é€ß—あ日😀👩\n\r\t\x00\u0301\u200d\u00a0", "\r\n", "a\u0301", "\u212b"]
"""Some of them are written in other ways, too."""


@many
@given(text=st.lists(st.sampled_from(CHARACTERS), max_size=60).map("".join), sizes=sizes)
def test_06_7_any_text_comes_back(subject: Any, text: str, sizes: list[int]) -> None:
    """Every piece is made of whole characters, and together they are the text, letter by letter."""
    prompt = byte_level().encode("The fox.").ids
    ids = byte_level().encode(text).ids
    whole = byte_level().decode(prompt + ids)[len("The fox.") :]
    pieces, _, _ = stream(subject, byte_level(), cut(ids, sizes), prompt)
    assert "".join(pieces) == whole
    assert not any(REPLACEMENT in piece for piece in pieces), "half a character was printed"
    at_once, _, _ = stream(subject, byte_level(), [ids], prompt)
    assert "".join(at_once) == whole


@many
@given(
    words=st.lists(
        st.one_of(
            st.sampled_from(["▁the", "▁fox", "s", "▁", ","]),
            st.text("é€😀あ", min_size=1, max_size=12),
        ),
        max_size=40,
    ),
    sizes=sizes,
)
def test_06_7_byte_fallback(subject: Any, words: list[str], sizes: list[int]) -> None:
    """A long run of bytes is shown as broken until its last one is there."""
    ids = []
    for word in words:
        if word in WORDS:
            ids.append(byte_fallback().token_to_id(word))
        else:
            ids += [byte_fallback().token_to_id(f"<0x{b:02X}>") for b in word.encode()]
    prompt = [byte_fallback().token_to_id("▁the")]
    pieces, _, _ = stream(subject, byte_fallback(), cut(ids, sizes), prompt)
    assert "".join(pieces) == byte_fallback().decode(prompt + ids)[len("the") :]
    assert not any(REPLACEMENT in piece for piece in pieces)


def test_06_7_bug_vllm_17448_broken_bytes_raise_nothing(subject: Any) -> None:
    """The library's stream raised on bytes that are not UTF-8, and all requests went down."""
    pairs = byte_level().encode("é").ids + byte_level().encode("😀").ids
    ids = [pairs[i * 7 % len(pairs)] for i in range(200)] + byte_level().encode(" the end").ids
    pieces, _, _ = stream(subject, byte_level(), [[i] for i in ids], [])
    assert "".join(pieces) == byte_level().decode(ids)


def test_06_7_token_0_is_a_token(subject: Any) -> None:
    """One like any other, and not the absence of one."""
    pieces, _, count = stream(subject, byte_fallback(), [[0], [6, 0], [0, 7]], [])
    assert ("".join(pieces), count) == ("<unk>,<unk><unk>€", 5)


def test_06_8_token_0_may_end_a_request(subject: Any) -> None:
    """Its text is searched like any other's."""
    found = stream(subject, byte_fallback(), [[6, 6], [6, 0, 7]], [], stop=["unk>"])
    assert ("".join(found[0]), *found[1:]) == (",,,<", "unk>", 4)


def test_06_7_special_tokens(subject: Any) -> None:
    """Left out, or shown, as the request wishes."""
    eos = byte_fallback().token_to_id("<eos>")
    the, s = (byte_fallback().token_to_id(word) for word in ("▁the", "s"))
    hidden, _, _ = stream(subject, byte_fallback(), [[the], [eos], [s]], [the])
    shown, _, _ = stream(
        subject, byte_fallback(), [[the], [eos], [s]], [the], skip_special_tokens=False
    )
    assert "".join(hidden) == " thes"
    assert "<eos>" in "".join(shown)


def test_06_7_special_tokens_in_a_long_output(subject: Any) -> None:
    """A token without text is no context: the space of the word behind it stays, also when the
    window slides."""
    names = ["▁the", "▁fox", "s", "<eos>"]
    the, fox, s, eos = (byte_fallback().token_to_id(name) for name in names)
    ids = [fox, s, eos, the, eos, eos, fox] * 20
    pieces, _, _ = stream(subject, byte_fallback(), [[i] for i in ids], [the])
    assert "".join(pieces) == byte_fallback().decode([the, *ids])[len("the") :]


def expected_stop(
    text: str, stop: list[str], include: bool, least: int
) -> tuple[str, str | None, int]:
    """One letter a token: read letter by letter, the slow and obvious rule."""
    for end in range(least + 1, len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return text[: end if include else end - len(string)], string, end
    return text, None, len(text)


@many
@given(
    text=st.text("abc", max_size=40),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
    least=st.integers(0, 6),
    sizes=sizes,
)
def test_06_8_one_letter_a_token(
    subject: Any, text: str, stop: list[str], include: bool, least: int, sizes: list[int]
) -> None:
    """Any text, any stop strings, any steps, with min_tokens and without."""
    steps = cut([byte_level().token_to_id(letter) for letter in text], sizes)
    pieces, reason, count = stream(
        subject, byte_level(), steps, [], stop=stop, include_stop_str_in_output=include,
        min_tokens=least,
    )  # fmt: skip
    assert ("".join(pieces), reason, count) == expected_stop(text, stop, include, least)


@many
@given(
    text=st.lists(st.sampled_from(["the ", "fox ", "stop here", "stopping ", "€", "\n\n"])),
    stop=st.lists(st.sampled_from(["stop", "stop here", "fox t", "\n\n", "€€", "ing s"]),
                  min_size=1, max_size=3),
    include=st.booleans(),
    sizes=sizes,
)  # fmt: skip
def test_06_8_tokens_of_several_letters(
    subject: Any, reference: Any, text: list[str], stop: list[str], include: bool, sizes: list[int]
) -> None:
    """Real tokens: pieces, reason and count equal the reference's, and no step size matters."""
    ids = byte_level().encode("".join(text)).ids
    params = {"stop": stop, "include_stop_str_in_output": include}
    mine = stream(subject, byte_level(), cut(ids, sizes), [], **params)
    assert mine == stream(reference, byte_level(), cut(ids, sizes), [], **params)
    one_step = stream(subject, byte_level(), [ids], [], **params)
    assert ("".join(mine[0]), *mine[1:]) == ("".join(one_step[0]), *one_step[1:])


@many
@given(seed=st.integers(0, 2**31))
def test_06_8_find_and_hold_back(subject: Any, seed: int) -> None:
    """Both searches, against trying everything: 20 texts of two letters at a time."""
    draw, p, expected = random.Random(seed), Program(), []
    for _ in range(20):
        text = "".join(draw.choices("ab", k=draw.randint(0, 12)))
        stop = [
            "".join(draw.choices("ab", k=draw.randint(1, 5))) for _ in range(draw.randint(1, 3))
        ]
        new = draw.randint(0, len(text))
        p.see(p.call(f"{DETOKENIZER}find_stop_string", text, new, stop))
        p.see(p.call(f"{DETOKENIZER}possible_stop_length", text, stop))
        expected += [find_and_hold_back(text, stop, new)]
    seen = subject.run(p)
    assert list(zip(seen[::2], seen[1::2], strict=True)) == expected


def find_and_hold_back(text: str, stop: list[str], new: int) -> tuple[Any, int]:
    """The first of the stop strings that ends in the new text, where, and what may begin one."""
    found = None
    for string in reversed(stop):
        for start in range(len(text) - len(string), -1, -1):
            if text[start:].startswith(string) and start + len(string) > len(text) - new:
                found = (string, start)
    possible = max(
        (n for s in stop for n in range(len(s)) if n <= len(text) and text.endswith(s[:n])),
        default=0,
    )
    return found, possible


def test_06_8_text_behind_an_included_stop_string(subject: Any) -> None:
    """A token that holds the stop string and more: the more is cut off."""
    fox = byte_level().encode("a fox").ids[-1]
    assert byte_level().decode([fox]) == " fox"
    pieces, reason, _ = stream(
        subject, byte_level(), [[fox]], [], stop=["o"], include_stop_str_in_output=True
    )
    assert ("".join(pieces), reason) == (" fo", "o")


def test_06_8_a_text_may_begin_with_an_included_stop_string(subject: Any) -> None:
    """What stands behind it in the same token is cut off there too."""
    fox = byte_level().encode("a fox").ids[-1]
    pieces, reason, _ = stream(
        subject, byte_level(), [[fox]], [], stop=[" f"], include_stop_str_in_output=True
    )
    assert ("".join(pieces), reason) == (" f", " f")


@pytest.mark.parametrize("least", [0, 3])
def test_06_8_bug_vllm_21987_min_tokens_and_stop_strings(subject: Any, least: int) -> None:
    """Stop strings ended requests before min_tokens."""
    ids = [byte_level().token_to_id(letter) for letter in "abab"]
    pieces, _, count = stream(subject, byte_level(), [ids], [], stop=["b"], min_tokens=least)
    assert ("".join(pieces), count) == (("a", 2) if least == 0 else ("aba", 4))


def test_06_8_the_engine_writes_the_reference_text(subject: Any, reference: Any) -> None:
    """Everything together: eight requests of the bundled model, in one batch."""
    for worker in (subject, reference):
        for package in ("transformers", "mini_vllm.engine.llm"):
            p = Program()
            p.call("importlib:import_module", package)
            worker.run(p)
    p = Program()
    llm = p.new("mini_vllm:LLM", "storyteller", max_num_seqs=8, num_gpu_blocks=64,
                max_model_len=128, dtype="float32")  # fmt: skip
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0}, {"seed": 1}, {"seed": 2, "top_p": 0.8}, {"seed": 3, "top_k": 5},
        {"seed": 4, "min_p": 0.1}, {"seed": 5, "repetition_penalty": 1.3},
        {"seed": 6, "stop": ["the"], "min_tokens": 4}, {"seed": 7, "logprobs": 2},
    ]  # fmt: skip
    params = [
        p.new("mini_vllm.sampling_params:SamplingParams", max_tokens=12, **kind) for kind in kinds
    ]
    outputs = llm.generate(["Once upon a time"] * 8, params, use_tqdm=False)
    for index in range(8):
        p.see(outputs[index].outputs[0].text)
        p.see(outputs[index].outputs[0].finish_reason)
    assert subject.run(p) == reference.run(p)


@many
@given(
    text=st.text("aA.*bB \n", max_size=30),
    stop=st.lists(
        st.text("aA.*bB \n", min_size=1, max_size=4)
        | st.sampled_from(["a.", ".*", "A", "  ", "\n"]),
        min_size=1,
        max_size=3,
    ),
    new=st.integers(0, 30),
)
def test_06_8_every_character_is_itself(subject: Any, text: str, stop: list[str], new: int) -> None:
    """Large and small letters, spaces, and what is a sign elsewhere; the list stays as it is."""
    new = min(new, len(text))
    p = Program()
    handed = p.call("builtins:list", stop)
    p.see(p.call(f"{DETOKENIZER}find_stop_string", text, new, handed))
    p.see(p.call(f"{DETOKENIZER}possible_stop_length", text, handed))
    p.see(handed)
    found = None
    for string in reversed(stop):
        for start in range(len(text) - len(string), -1, -1):
            if text[start:].startswith(string) and start + len(string) > len(text) - new:
                found = (string, start)
    possible = max(n for s in stop for n in range(len(s)) if text.endswith(s[:n]))
    assert subject.run(p) == [found, possible, stop]


@pytest.mark.parametrize("length", [9, 17, 65, 300])
def test_06_8_a_stop_string_of_any_length(subject: Any, length: int) -> None:
    """All of it but its last letter waits; with it the request ends. The tokens that are handed
    over stay the caller's."""
    stop = ("abcd" * length)[: length - 1] + "z"
    ids = [byte_level().token_to_id(letter) for letter in f"x{stop}y"]
    p = Program()
    sampling = p.new("mini_vllm.sampling_params:SamplingParams", stop=[stop])
    detokenizer = p.new(f"{DETOKENIZER}IncrementalDetokenizer", send(p, byte_level()), [], sampling)
    handed = p.call("builtins:list", ids[:-2])
    p.see(detokenizer.append(handed))
    p.see(detokenizer.append(ids[-2:]))
    p.see([detokenizer.stop_reason, detokenizer.num_output_tokens, handed])
    assert subject.run(p) == ["x", "", [stop, length + 1, ids[:-2]]]


@pytest.mark.parametrize(
    ("text", "stop", "right"),
    [
        ("xA", ["ab"], [None, 0]),
        ("STOP", ["stop", "OP"], [("OP", 2), 0]),
        ("stO", ["sTOP", "tOp"], [None, 2]),
        ("ſ", ["s!", "ſ!"], [None, 1]),
    ],
)
def test_06_8_large_and_small_letters_are_two(
    subject: Any, text: str, stop: list[str], right: list[Any]
) -> None:
    """Where a stop string ends, and where one may begin."""
    p = Program()
    p.see(p.call(f"{DETOKENIZER}find_stop_string", text, len(text), stop))
    p.see(p.call(f"{DETOKENIZER}possible_stop_length", text, stop))
    assert subject.run(p) == right
