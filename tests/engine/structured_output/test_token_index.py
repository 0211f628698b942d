"""From bytes to tokens: the vocabulary, lifting a state, and packing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm import bundled
from mini_vllm.model.checkpoint_files import Vocabulary, load_tokenizer, load_vocabulary
from mini_vllm.structured_output.patterns import parse_regex
from mini_vllm.structured_output.regex_automaton import DEAD
from mini_vllm.structured_output.token_index import (
    TokenIndex,
    TokenTable,
    byte_of_character,
    lift_state,
    pack_bits,
    set_bits,
    token_bytes,
    unpack_bits,
)
from tests.engine.structured_output.walks import automaton

ABC = [b"a", b"b", b"ab", b"ba", b"aab", b"", b"c", b"abc"]


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return load_tokenizer(bundled.path("storyteller"))


def test_bytes_of_the_bundled_tokenizer(tokenizer: object) -> None:
    texts = token_bytes(tokenizer, 2050)
    assert texts[0] == texts[1] == texts[2] == b"", "special tokens are no text"
    assert texts[2048:] == [b"", b""], "ids that the tokenizer does not have"
    for text in ("Ada lebt in Köln", '{"a": [1, 2]}', "日本 😀", "\t\x00"):
        ids = tokenizer.encode(text)  # type: ignore[attr-defined]
        assert b"".join(texts[i] for i in ids) == text.encode()
    assert {bytes([byte]) for byte in range(256)} <= set(texts)


def fake_tokenizer(vocabulary: list[str], special: list[int], added: dict[int, bool]) -> object:
    return SimpleNamespace(
        get_vocab=lambda: {spelled: i for i, spelled in enumerate(vocabulary)},
        all_special_ids=special,
        added_tokens_decoder={
            i: SimpleNamespace(content=vocabulary[i], special=is_special)
            for i, is_special in added.items()
        },
    )


def test_bytes_of_a_sentencepiece_tokenizer() -> None:
    words = ["<s>", "<0xE6>", "\u2581Ada", "日", "a b", "<0x0A>", "<tool>"]
    tokenizer = fake_tokenizer(words, [0], {0: True, 6: False})
    assert token_bytes(tokenizer, 8) == [
        b"", b"\xe6", b" Ada", "日".encode(), b"a b", b"\n", b"<tool>", b"",
    ]  # fmt: skip


def test_added_tokens_are_spelled_as_they_are_and_special_ones_are_no_text() -> None:
    tokenizer = fake_tokenizer(["\u0120a", "é", "<end>", "<t>"], [], {1: False, 2: True, 3: False})
    assert token_bytes(tokenizer, 4) == [b" a", "é".encode(), b"", b"<t>"]


def test_the_byte_alphabet_has_every_byte_once() -> None:
    alphabet = byte_of_character()
    assert sorted(alphabet.values()) == list(range(256)) and alphabet["\u0120"] == ord(" ")


def test_a_token_is_walked_whole() -> None:
    walk = automaton({"root": parse_regex("(ab)*c?")})
    tokens = TokenTable(ABC)
    after = lift_state(walk, tokens, walk.start)
    assert [token for token, state in zip(ABC, after, strict=True) if state != DEAD] == [
        b"a", b"ab", b"c", b"abc",
    ]  # fmt: skip
    for token, state in zip(ABC, after.tolist(), strict=True):
        expected = walk.start if token else DEAD
        for byte in token:
            expected = DEAD if expected == DEAD else walk.next(expected, byte)
        assert state == expected, token


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 100])
def test_packing_is_little_end_first(size: int) -> None:
    allowed = np.random.default_rng(size).random(size) < 0.5
    allowed[-1] = True
    words = pack_bits(allowed)
    assert words.dtype == np.int32 and len(words) == -(-size // 32)
    for token in range(32 * len(words)):
        bit = int(words[token // 32]) >> (token % 32) & 1
        assert bit == (token < size and allowed[token]), token
    assert np.array_equal(unpack_bits(words, size), allowed)


def test_single_bits() -> None:
    words = np.zeros(2, dtype=np.int32)
    set_bits(words, [0, 31, 33])
    assert words.tolist() == [-(2**31) + 1, 2]
    set_bits(words, [31], allowed=False)
    assert words.tolist() == [1, 2]


def test_rows_are_made_when_first_needed_and_the_oldest_goes() -> None:
    walk = automaton({"root": parse_regex("a{8}")})
    tokens = TokenTable(ABC)
    index = TokenIndex(walk, tokens, max_bytes=2 * 4 * tokens.num_words)
    assert len(index._rows) == 0
    states = [walk.start]
    for _ in range(4):
        states.append(index.walk(states[-1], 0))
        assert index.row(states[-1]).tolist() == [1]
    assert list(index._rows) == states[-2:]
    assert index.walk(states[0], 5) == index.walk(states[0], 99) == index.walk(states[0], 1) == DEAD


@pytest.mark.parametrize("name", ["storyteller", "storyteller-vision"])
def test_the_vocabulary_alone_says_what_the_library_says(name: str) -> None:
    folder = bundled.path(name)
    alone = load_vocabulary(folder)
    assert isinstance(alone, Vocabulary), "the library need not be imported"
    assert token_bytes(alone, 2060) == token_bytes(load_tokenizer(folder), 2060)


def test_special_tokens_that_only_other_files_name(tmp_path: Path) -> None:
    """What becomes of them only the library knows."""
    folder = tmp_path / "model"
    shutil.copytree(bundled.path("storyteller"), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"sep_token": "<|sep|>"}))
    texts = token_bytes(load_vocabulary(folder), 2060)
    assert texts == token_bytes(load_tokenizer(folder), 2060)
    assert b"<|sep|>" not in texts
