"""What each token stands for, in bytes, and its name where tokens are listed one by one.

A character may be spread over several tokens, and to decode one of them alone gives U+FFFD. That
says nothing of which part it is, nor whether it is one: U+FFFD is a character that texts contain.
The bytes say both::

    tokens     " " <E6>   <97> <A5>   "."        bytes of "日": E6 97 A5
    names      " " ""     ""   "日"   "."        joined they are the text
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

MOST_PARTS = 3
"""Tokens before one that may hold the beginning of its first character."""
REPLACEMENT_BYTES = "\ufffd".encode()


class Vocabulary:
    """The tokens of a tokenizer of the ``transformers`` kind."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._names: dict[int, str] = {}
        """Of tokens that do not depend on what stands before them."""

    @cached_property
    def texts(self) -> list[bytes]:
        """What each token adds to a text; b"" for special ones. About a second for 150,000."""
        # Imported here: only names of tokens need NumPy, detokenization does not.
        from mini_vllm.structured_output.token_index import token_bytes

        return token_bytes(self._tokenizer, len(self._tokenizer))

    @cached_property
    def special(self) -> dict[int, bytes]:
        """How special tokens are spelled."""
        added = self._tokenizer.added_tokens_decoder
        return {i: token.content.encode() for i, token in added.items() if not self.texts[i]}

    def is_text(self, token_id: int) -> bool:
        """Whether a token adds to a text; special ones do not."""
        return token_id < len(self.texts) and bool(self.texts[token_id])

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token, a special one as it is spelled; b"" for an id without a token."""
        if token_id >= len(self.texts):
            return b""
        return self.texts[token_id] or self.special.get(token_id, b"")

    def name(self, token_id: int, before: Sequence[int] = ()) -> str:
        """The characters that a token completes. Names of a text's tokens, joined, are the text.

        A token in the middle of a character is called "", and the one that ends it has the whole.
        Bytes that are not UTF-8 are U+FFFD, as in the text.

        Args:
            before: the tokens before it; the last three count.

        Source: vllm/v1/engine/logprobs.py#L249-L311 (LogprobsProcessor._correct_decoded_token)
        @ v0.22.1
        """
        name = self._names.get(token_id)
        if name is not None:
            return name
        data = self.bytes_of(token_id)
        if not _begins_inside(data):
            return self._names.setdefault(token_id, _split(data)[0])
        return _split(self._started(before) + data)[0]

    def _started(self, token_ids: Sequence[int]) -> bytes:
        """The beginning of a character that these tokens end with."""
        return _split(b"".join(map(self.bytes_of, token_ids[-MOST_PARTS:])))[1]

    def spell_replacement(self, token_ids: Sequence[int]) -> bool:
        """Whether the text of these tokens ends with U+FFFD itself, written out in its bytes."""
        data = b"".join(self.texts[i] for i in token_ids if i < len(self.texts))
        return data.endswith(REPLACEMENT_BYTES)


def _begins_inside(data: bytes) -> bool:
    """Whether the first byte is one that only continues a character."""
    return bool(data) and data[0] & 0b1100_0000 == 0b1000_0000


def _split(data: bytes) -> tuple[str, bytes]:
    """The text of the bytes, and those at the end that begin a character without completing it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(data), decoder.getstate()[0]


def vocabulary_of(tokenizer: Any) -> Vocabulary | None:
    """The vocabulary of a tokenizer, made once; None if it does not tell how tokens are spelled."""
    return _vocabulary_of(tokenizer) if hasattr(tokenizer, "added_tokens_decoder") else None


_vocabulary_of = lru_cache(maxsize=8)(Vocabulary)
