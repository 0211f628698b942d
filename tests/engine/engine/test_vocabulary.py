"""Names and bytes of tokens: joined they are the text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from mini_vllm.engine.vocabulary import Vocabulary, vocabulary_of
from tests.engine.engine.test_detokenizer import (
    TEXTS,
    byte_fallback_tokenizer,
    byte_level_tokenizer,
)


def wrapped(backend: Any) -> Any:
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


BYTE_LEVEL, BYTE_FALLBACK = wrapped(byte_level_tokenizer()), wrapped(byte_fallback_tokenizer())


def names(vocabulary: Vocabulary, token_ids: list[int]) -> list[str]:
    return [vocabulary.name(i, token_ids[:place]) for place, i in enumerate(token_ids)]


@pytest.mark.parametrize("text", [*TEXTS, "end \ufffd", "\ufffd\ufffd", "a<think>b<eos>"])
def test_names_joined_are_the_text(text: str) -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    token_ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    assert "".join(names(vocabulary, token_ids)) == text


@pytest.mark.parametrize("text", [*TEXTS, "end \ufffd", "a<think>b<eos>"])
def test_bytes_joined_are_the_text(text: str) -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    token_ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    assert b"".join(map(vocabulary.bytes_of, token_ids)).decode() == text


def test_byte_tokens_of_sentencepiece_and_its_spaces() -> None:
    vocabulary = Vocabulary(BYTE_FALLBACK)
    parts = [BYTE_FALLBACK.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "日".encode()]
    the = BYTE_FALLBACK.convert_tokens_to_ids("▁the")
    assert names(vocabulary, [the, *parts, the]) == [" the", "", "", "日", " the"]
    assert b"".join(map(vocabulary.bytes_of, [the, *parts])) == " the日".encode()


def test_alternatives_do_not_complete_what_they_do_not_continue() -> None:
    vocabulary = Vocabulary(BYTE_FALLBACK)
    first, second, third = (
        BYTE_FALLBACK.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in "日".encode()
    )
    fox = BYTE_FALLBACK.convert_tokens_to_ids("▁fox")
    assert vocabulary.name(fox, [first, second]) == " fox"
    assert vocabulary.name(third, [fox, first, second]) == "日"
    assert vocabulary.name(third, [fox]) == "\ufffd", "a byte that continues nothing is broken"
    assert vocabulary.name(first, [fox, first, second]) == ""


def test_special_and_missing_tokens() -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    assert vocabulary.bytes_of(BYTE_LEVEL.eos_token_id) == b"<eos>"
    assert vocabulary.name(BYTE_LEVEL.eos_token_id) == "<eos>"
    assert (vocabulary.bytes_of(10**6), vocabulary.name(10**6)) == (b"", "")
    assert vocabulary_of(object()) is None
    assert vocabulary_of(BYTE_LEVEL) is vocabulary_of(BYTE_LEVEL)


@settings(max_examples=150, deadline=None)
@given(token_ids=st.lists(st.integers(1, 419), max_size=12))
def test_names_of_any_tokens_have_what_their_bytes_say(token_ids: list[int]) -> None:
    """Mostly broken UTF-8: whatever is a character there is in a name, in its order."""
    vocabulary = Vocabulary(BYTE_LEVEL)
    data = b"".join(map(vocabulary.bytes_of, token_ids))
    joined = "".join(names(vocabulary, token_ids)).replace("\ufffd", "")
    assert joined == data.decode(errors="ignore").replace("\ufffd", "")
