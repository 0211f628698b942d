"""Task 12.5: the bytes of a token."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer

from labkit.testing import expect
from mini_vllm import bundled
from mini_vllm.model.checkpoint_files import load_vocabulary
from mini_vllm.structured_output.token_index import token_bytes


def tokenizer(vocabulary: list[str], special: Sequence[int] = (), added: Any = None) -> Any:
    return SimpleNamespace(
        get_vocab=lambda: {spelled: i for i, spelled in enumerate(vocabulary)},
        all_special_ids=list(special),
        added_tokens_decoder={
            i: SimpleNamespace(content=vocabulary[i], special=flag)
            for i, flag in (added or {}).items()
        },
    )


def test_12_5_byte_level_tokens() -> None:
    """In a byte-level BPE every character stands for a byte: \u0120 is a space."""
    found = token_bytes(tokenizer(["a", "\u0120the", "\u00c3\u00a9", "\u010a"]), 4)
    expect(found, [b"a", b" the", "é".encode(), b"\n"], at="'a', 'Ġthe', 'Ã©', 'Ċ'")


def test_12_5_half_a_character_is_its_byte() -> None:
    """Decoded alone it would be U+FFFD; its byte is E2."""
    expect(token_bytes(tokenizer(["\u00e2", "a"]), 2), [b"\xe2", b"a"], at="'â' in byte-level BPE")


def test_12_5_special_tokens_are_no_text() -> None:
    """<|end|> can be spelled with seven characters, but the token is none of them."""
    words = ["<|end|>", "a", "<|user|>"]
    found = token_bytes(tokenizer(words, [0], {0: True, 2: True}), 3)
    expect(found, [b"", b"a", b""], at="one named as special, one only marked so")


def test_12_5_added_tokens_that_are_text() -> None:
    """An added token that is not special stands for what it spells, without the byte alphabet."""
    words = ["a", "日本", "\u0120b"]
    expect(token_bytes(tokenizer(words, [], {1: False}), 3), [b"a", "日本".encode(), b" b"],
           at="'日本' was added")  # fmt: skip


def test_12_5_sentencepiece() -> None:
    """U+2581 is a space, <0xE6> a byte, and the rest is itself."""
    words = ["\u2581Ada", "<0xE6>", "日", "<0x0A>", "a\u2581b"]
    wanted = [b" Ada", b"\xe6", "日".encode(), b"\n", b"a b"]
    expect(token_bytes(tokenizer(words), 5), wanted, at="'▁Ada', '<0xE6>', '日', '<0x0A>', 'a▁b'")


def test_12_5_the_model_has_more_ids_than_the_tokenizer() -> None:
    """A padded vocabulary ends in ids that are nothing; ids beyond the model's are left out."""
    expect(token_bytes(tokenizer(["a", "b"]), 4), [b"a", b"b", b"", b""], at="4 ids, 2 tokens")
    expect(token_bytes(tokenizer(["a", "b", "c"]), 2), [b"a", b"b"], at="2 ids, 3 tokens")


def test_12_5_the_bundled_tokenizer() -> None:
    """The bytes of a text's tokens, one after the other, are the text."""
    folder = bundled.path("storyteller")
    texts = token_bytes(load_vocabulary(folder), 2048)
    real = Tokenizer.from_file(f"{folder}/tokenizer.json")
    for text in ('{"name": "Köln 😀"}', "  two\n\tthree"):
        joined = b"".join(texts[i] for i in real.encode(text).ids)
        expect(joined, text.encode(), at=f"the tokens of {text!r}")
    expect(texts[:3], [b"", b"", b""], at="the three special tokens")


def test_12_5_one_token_decides_for_all() -> None:
    """300 tokens that could be byte-level BPE, and '日', which is not: then 'é' is itself."""
    words = [*(f"w{number}" for number in range(300)), "é", "日"]
    wanted = [*(word.encode() for word in words[:300]), "é".encode(), "日".encode()]
    expect(token_bytes(tokenizer(words), 302), wanted, at="300 words, 'é' and '日'")
    wanted = [*wanted[:300], b"\xe9"]
    expect(token_bytes(tokenizer(words[:301]), 301), wanted, at="300 words and 'é'")
