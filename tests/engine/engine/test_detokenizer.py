"""The incremental detokenizer, against decoding everything at once."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mini_vllm.engine.detokenizer import (
    MAX_BROKEN_WINDOW,
    IncrementalDetokenizer,
    complete_text,
    find_stop_string,
    possible_stop_length,
)
from mini_vllm.sampling_params import SamplingParams

REPLACEMENT = "\ufffd"
TEXTS = (
    "Once upon a time there was a small fox. 12 + 30 = 42",
    '{"name": "Zoë", "price": "30 €"}',
    "日本語のテキスト。中文字符，한국어",
    "emoji 😀 family 👨‍👩‍👧 flags 🇫🇷🇯🇵 skin 👍🏽",
    "ü ñ ß — “quotes” … עברית العربية हिन्दी",
)


def byte_level_tokenizer() -> Tokenizer:
    """A tiny BPE over bytes, like GPT-2's and Qwen's: a character may be cut anywhere."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(TEXTS) * 4, trainer)
    return tokenizer


def byte_fallback_tokenizer() -> Tokenizer:
    """Like Llama 2's: words with ▁ for a space, and <0xNN> for bytes outside the vocabulary."""
    words = ["<unk>", "▁the", "▁fox", "s", "▁", "e", ",", "€"]
    vocab = {word: index for index, word in enumerate(words)}
    vocab |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


BYTE_LEVEL = byte_level_tokenizer()
BYTE_FALLBACK = byte_fallback_tokenizer()
EOS = BYTE_LEVEL.token_to_id("<eos>")


def make(tokenizer=BYTE_LEVEL, prompt=(), **params) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(tokenizer, list(prompt), SamplingParams(**params))


def stream(detokenizer: IncrementalDetokenizer, chunks: list[list[int]]) -> list[str]:
    return [detokenizer.append(chunk) for chunk in chunks] + [detokenizer.flush()]


def chunked(token_ids: list[int], rng: random.Random, longest: int = 3) -> list[list[int]]:
    chunks = []
    while token_ids:
        size = rng.randint(1, longest)
        chunks.append(token_ids[:size])
        token_ids = token_ids[size:]
    return chunks


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("one_byte_tokens", [False, True])
def test_real_text_comes_back_exactly(text, one_byte_tokens):
    if one_byte_tokens:
        encoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        pieces = "".join(piece for piece, _ in encoder.pre_tokenize_str(text))
        token_ids = [BYTE_LEVEL.token_to_id(char) for char in pieces]
    else:
        token_ids = BYTE_LEVEL.encode(text).ids
    detokenizer = make()
    pieces = stream(detokenizer, [[token_id] for token_id in token_ids])
    assert "".join(pieces) == detokenizer.text == text
    assert not any(REPLACEMENT in piece for piece in pieces), "half a character was printed"


@settings(max_examples=150, deadline=None)
@given(
    token_ids=st.lists(st.integers(1, 419), max_size=120),
    seed=st.integers(0, 1000),
    prompt=st.lists(st.integers(1, 300), max_size=8),
)
def test_random_byte_level_stream_equals_decoding_at_once(token_ids, seed, prompt):
    """Any ids, so mostly broken UTF-8: text is never taken back; only the end may be missing."""
    prompt = prompt + BYTE_LEVEL.encode(".").ids
    detokenizer = make(prompt=prompt)
    printed = ""
    for chunk in chunked(token_ids, random.Random(seed)):
        printed += detokenizer.append(chunk)
        assert detokenizer.text == printed
    expected = BYTE_LEVEL.decode(prompt + token_ids)[len(BYTE_LEVEL.decode(prompt)) :]
    assert expected.startswith(printed)
    assert set(expected[len(printed) :]) <= {REPLACEMENT}


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(
        st.one_of(
            st.sampled_from(["▁the", "▁fox", "s", "▁", ","]),
            st.text("é€😀あ", min_size=1, max_size=12),
        ),
        max_size=40,
    )
)
def test_byte_fallback_stream_equals_decoding_at_once(words):
    """Each byte of a character is a token, and its decoder shows no prefix of a run of bytes."""
    token_ids = []
    for word in words:
        if word in ("▁the", "▁fox", "s", "▁", ","):
            token_ids.append(BYTE_FALLBACK.token_to_id(word))
        else:
            token_ids += [BYTE_FALLBACK.token_to_id(f"<0x{b:02X}>") for b in word.encode()]
    prompt = [BYTE_FALLBACK.token_to_id("▁the")]
    pieces = stream(make(BYTE_FALLBACK, prompt), [[token_id] for token_id in token_ids])
    expected = BYTE_FALLBACK.decode(prompt + token_ids)[len("the") :]
    assert "".join(pieces) == expected
    assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("cut", range(1, 4))
def test_many_tokens_at_once_lose_only_the_last_character(cut):
    text = "😀é" * 30 + "😀"
    ids = [BYTE_FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in text.encode()][:-cut]
    assert "".join(stream(make(BYTE_FALLBACK), [ids])) == text[:-1]


@settings(max_examples=150, deadline=None)
@given(
    runs=st.lists(
        st.tuples(st.sampled_from([(1, 419), (1, 256), (128, 256)]), st.integers(1, 130)),
        max_size=4,
    ),
    seed=st.integers(0, 1000),
)
def test_whole_text_equals_the_streamed_one(runs, seed):
    """However long the run of broken bytes is."""
    rng = random.Random(seed)
    token_ids = [rng.randint(*ids) for ids, length in runs for _ in range(length)]
    streamed = "".join(stream(make(), [[token_id] for token_id in token_ids]))
    assert "".join(stream(make(), [token_ids])) == streamed


def test_first_space_after_the_prompt_is_kept():
    the, fox = (BYTE_FALLBACK.token_to_id(word) for word in ("▁the", "▁fox"))
    assert BYTE_FALLBACK.decode([fox]) == "fox"
    assert make(BYTE_FALLBACK, [the]).append([fox]) == " fox"
    assert make(BYTE_FALLBACK, []).append([fox]) == "fox"


def test_incomplete_last_character_is_dropped():
    token_ids = BYTE_LEVEL.encode("hi ").ids
    first_byte = BYTE_LEVEL.token_to_id("ð")  # 0xF0, the first of four
    assert "".join(stream(make(), [token_ids, [first_byte], [first_byte]])) == "hi "


def wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer that tells how its tokens are spelled."""
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


REAL = "\ufffd"
SPELLED = {
    "byte level": (wrapped(BYTE_LEVEL), BYTE_LEVEL.encode(REAL).ids),
    "byte fallback": (
        wrapped(BYTE_FALLBACK),
        [BYTE_FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in REAL.encode()],
    ),
}


@pytest.mark.parametrize("kind", SPELLED)
def test_a_real_replacement_character_is_printed_at_once(kind):
    tokenizer, real = SPELLED[kind]
    detokenizer = make(tokenizer)
    assert [detokenizer.append([token]) for token in (*real, *real)][-1] == REAL
    assert detokenizer.append(real[:1]) == "" and detokenizer.flush() == ""
    assert detokenizer.text == REAL * 2, "and a character that is not finished is none"


@pytest.mark.parametrize("kind", SPELLED)
def test_a_real_replacement_character_of_the_prompt_is_not_printed_again(kind):
    tokenizer, real = SPELLED[kind]
    detokenizer = make(tokenizer, prompt=real)
    assert stream(detokenizer, [real, real]) == [REAL, REAL, ""]


@pytest.mark.parametrize("kind", SPELLED)
@pytest.mark.parametrize("number", [1, 2])
def test_bug_vllm_48853_a_character_that_the_prompt_began(kind, number):
    """It is printed whole if the output ends it; if not, nothing of the prompt is printed."""
    tokenizer, real = SPELLED[kind]
    whole = make(tokenizer, prompt=real[:number])
    assert "".join(stream(whole, [[token] for token in real[number:]])) == REAL
    (comma,) = tokenizer.encode(",", add_special_tokens=False)
    cases = [([comma], ",")]
    if kind == "byte level":  # the other decoder shows a whole run of bytes as broken
        cases.append(([*real, comma], REAL + ","))
    for after, text in cases:
        broken = make(tokenizer, prompt=[comma, *real[:number]])
        assert "".join(stream(broken, [[token] for token in after])) == text
        at_once = make(tokenizer, prompt=[comma, *real[:number]])
        assert "".join(stream(at_once, [after])) == text


def test_a_prompt_that_ends_in_bytes_of_several_characters():
    """The window begins with a whole character: the decoder shows a run that begins inside one as
    broken, the output's bytes included."""
    prompt = [BYTE_FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in "👩👩".encode()]
    line_end = BYTE_FALLBACK.token_to_id("<0x0A>")
    assert stream(make(BYTE_FALLBACK, prompt), [[line_end]]) == ["\n", ""]


def test_whole_characters_of_the_prompt_before_one_that_it_began_are_not_printed():
    tokenizer, real = SPELLED["byte level"]
    prompt = [*real, BYTE_LEVEL.token_to_id("ð")]  # 0xF0, the first of four
    kanji = BYTE_LEVEL.encode("漢").ids
    assert "".join(stream(make(tokenizer, prompt), [[token] for token in kanji])) == "漢"
    assert "".join(stream(make(tokenizer, prompt), [kanji])) == "漢"


def test_broken_bytes_do_not_hold_the_text_back_for_ever():
    broken = BYTE_LEVEL.token_to_id("Ģ")  # 0x80, never the first byte of a character
    detokenizer = make()
    text = "".join(detokenizer.append([broken]) for _ in range(1000))
    assert len(text) >= 1000 - MAX_BROKEN_WINDOW
    assert detokenizer.append(BYTE_LEVEL.encode("ok").ids).endswith("ok")
    assert len(detokenizer.text) == 1002


def test_time_is_linear():
    rng = random.Random(0)
    token_ids = [rng.randrange(1, 420) for _ in range(8000)]

    def seconds(count: int) -> float:
        detokenizer = make(stop=["never seen"])
        start = time.process_time()
        for token_id in token_ids[:count]:
            detokenizer.append([token_id])
        return time.process_time() - start

    short = min(seconds(1000) for _ in range(3))
    long = min(seconds(8000) for _ in range(3))
    assert long < 24 * short, f"8x the tokens took {long / short:.1f}x the time"


def test_special_tokens():
    token_ids = [*BYTE_LEVEL.encode("a").ids, EOS, *BYTE_LEVEL.encode("b").ids]
    assert "".join(stream(make(), [token_ids])) == "ab"
    assert "".join(stream(make(skip_special_tokens=False), [token_ids])) == "a<eos>b"


def test_stop_token_is_left_out_of_the_text():
    a, b = BYTE_LEVEL.encode("a").ids, BYTE_LEVEL.encode("b").ids
    detokenizer = make()
    assert detokenizer.append(a + b, stop_terminated=True) == "a"
    assert detokenizer.num_output_tokens == 2
    assert make(include_stop_str_in_output=True).append(a + b, stop_terminated=True) == "ab"
    assert make(stop="zz").append(a + b, stop_terminated=True) == "a"


def test_no_text_without_tokenizer_or_when_switched_off():
    for detokenizer in (make(None), make(detokenize=False)):
        assert detokenizer.append([1, 2, 3]) == detokenizer.flush() == detokenizer.text == ""
        assert detokenizer.num_output_tokens == 3
    with pytest.raises(ValueError, match="no tokenizer; use stop_token_ids"):
        make(None, stop="x")


def test_works_with_a_transformers_tokenizer():
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=BYTE_LEVEL, eos_token="<eos>")
    text = TEXTS[3]
    pieces = stream(make(tokenizer), [[token_id] for token_id in tokenizer.encode(text)])
    assert "".join(pieces) == text == tokenizer.decode(tokenizer.encode(text))


def expected_stop(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """Read one character at a time: the slow and obvious rule."""
    for end in range(1, len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return text[: end if include else end - len(string)], string
    return text, None


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("abc", max_size=40),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
    seed=st.integers(0, 100),
)
def test_stop_strings_across_token_borders(text, stop, include, seed):
    """One character per token, so the obvious rule decides; pieces never show what is cut."""
    token_ids = [BYTE_LEVEL.token_to_id(char) for char in text]
    detokenizer = make(stop=stop, include_stop_str_in_output=include)
    pieces = stream(detokenizer, chunked(token_ids, random.Random(seed)))
    assert ("".join(pieces), detokenizer.stop_reason) == expected_stop(text, stop, include)


def test_nothing_is_printed_that_a_stop_string_would_take_back():
    detokenizer = make(stop=["stop here"])
    pieces = [detokenizer.append([BYTE_LEVEL.token_to_id(char)]) for char in "astopxstop"]
    assert pieces == ["a", "", "", "", "", "stopx", "", "", "", ""]
    assert detokenizer.flush() == "stop"


def test_several_stop_strings_in_one_token_follow_the_order_of_the_list():
    token_id = next(
        i
        for token, i in BYTE_LEVEL.get_vocab().items()
        if token.isascii() and len(token) == 2 and token.isalpha()
    )
    text = BYTE_LEVEL.decode([token_id])
    first, last = text[0], text[-1]
    detokenizer = make(stop=[last, first])
    detokenizer.append([token_id])
    assert detokenizer.stop_reason == last


def test_min_tokens_suppresses_stop_strings():
    ids = [BYTE_LEVEL.token_to_id(char) for char in "ababab"]
    detokenizer = make(stop=["ab"], min_tokens=4)
    assert "".join(stream(detokenizer, [[i] for i in ids])) == "abab"
    assert detokenizer.num_output_tokens == 6
    crossing = make(stop=["ab"], min_tokens=3)
    assert "".join(stream(crossing, [[i] for i in ids])) == "ab"


def test_tokens_after_the_stop_string_are_ignored():
    ids = [BYTE_LEVEL.token_to_id(char) for char in "abcabc"]
    detokenizer = make(stop="b")
    assert detokenizer.append(ids) == "a"
    assert detokenizer.num_output_tokens == 2
    assert detokenizer.append(ids) == ""


@pytest.mark.parametrize(
    ("text", "new", "stop", "found"),
    [
        ("xstop", 1, ["stop"], ("stop", 1)),
        ("xstop", 0, ["stop"], None),
        ("stopx", 1, ["stop"], None),
        ("abc", 3, ["c", "a"], ("c", 2)),
        ("abc", 3, ["z"], None),
    ],
)
def test_find_stop_string(text, new, stop, found):
    assert find_stop_string(text, new, stop) == found


@pytest.mark.parametrize(
    ("text", "stop", "length"),
    [("a sto", ["stop"], 3), ("a store", ["stop"], 0), ("aa", ["aab"], 2), ("x", ["x"], 0),
     ("ab", ["b", "abc"], 2), ("", ["abc"], 0)],
)  # fmt: skip
def test_possible_stop_length(text, stop, length):
    assert possible_stop_length(text, stop) == length


def test_complete_text():
    """Tokens are bytes here."""

    def decode(data):
        return bytes(data).decode(errors="replace")

    assert complete_text(b"ab", decode) == (2, "ab")
    assert complete_text("a€".encode()[:-1], decode) == (1, "a")
    assert complete_text("€".encode() + "😀".encode()[:3], decode) == (3, "€")
    assert complete_text(b"ab\x80\x80\x80\x80", decode) == (0, "ab")
    assert complete_text(b"", decode) == (0, "")

    def decode_pairs(pairs):
        return decode(b"".join(pairs))

    pairs = [b"a\xc3", b"\xa9\xc3"]  # the second holds the end of é and the start of another
    assert complete_text(pairs, decode_pairs) == (0, "aé")
    assert complete_text(b"", decode) == (0, "")
