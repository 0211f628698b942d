"""From bytes to tokens: which tokens of the vocabulary may come next.

    TokenTable    the bytes of every token, as a matrix         made once for a tokenizer
    lift_state    one state -> the state after each token       vectorised over the vocabulary
    pack_bits     one bit per token, 32 in an int32             this is copied to the device
    TokenIndex    packed rows by state, computed when first needed

A long text visits a state once or twice, and most states never, so rows are made on demand. To
make the rows of all states at the start would take minutes with 150,000 tokens.

Source: Willard and Louf 2023, "Efficient Guided Generation for Large Language Models", where the
whole automaton is lifted; vllm/v1/structured_output/utils.py#L206-L272 (_reduced_vocabulary)
@ v0.22.1.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mini_vllm.structured_output.backend_types import KeptRows
from mini_vllm.structured_output.pushdown import Pushdown
from mini_vllm.structured_output.regex_automaton import DEAD

BITS = 32
MAX_MOVES = 100_000
"""Most entries of the cache of moves, by state and token, of one grammar."""
MAX_ROW_BYTES = 32 * 2**20
"""Most memory for the packed rows of one grammar."""
WORD_BORDER = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for a space."""


# ---------------------------------------------------------------- the vocabulary
def byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: the visible character that stands for each byte in a byte-level BPE.

    Visible Latin-1 characters stand for themselves, and the 68 other bytes, in order, for the
    characters from U+0100 on: a space is written U+0120.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {chr(byte): byte for byte in visible}
    return characters | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


def token_bytes(tokenizer: Any, vocab_size: int) -> list[bytes]:
    """The bytes that each token adds to a text; b"" for those that are no text.

    - Special tokens are no text, though they can be spelled: a mask must never let `<|im_end|>`
      through as ten letters. So they are b"", as are ids that the tokenizer does not have.
    - Other added tokens stand for what they spell.
    - Every other token is spelled in the alphabet of its tokenizer. In byte-level BPE a character
      is a byte (`byte_of_character`); it is byte-level if all of these tokens can be read so, the
      last of 150,000 too. In SentencePiece `<0xE6>` is a byte, and WORD_BORDER in
      anything else is a space. Never decode: half a character becomes U+FFFD.

    Args:
        tokenizer: of the `transformers` kind: `get_vocab()` gives text -> id, `all_special_ids`
            and `added_tokens_decoder` (id -> an object with `.content` and `.special`) the rest.
        vocab_size: the model's, which may be larger than the tokenizer's, or smaller.
    """
    alphabet = byte_of_character()
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
    vocabulary = {i: spelled for spelled, i in tokenizer.get_vocab().items()}
    apart = {*added, *special}
    others = [spelled for i, spelled in vocabulary.items() if i not in apart]
    by_bytes = all(char in alphabet for spelled in others for char in spelled)
    result = [b""] * vocab_size
    for i, spelled in vocabulary.items():
        if i >= vocab_size or i in special:
            continue
        if i in added:
            result[i] = added[i].content.encode()
        elif by_bytes:
            result[i] = bytes(alphabet[char] for char in spelled)
        elif found := re.fullmatch("<0x([0-9A-Fa-f]{2})>", spelled):
            result[i] = bytes([int(found[1], 16)])
        else:
            result[i] = spelled.replace(WORD_BORDER, " ").encode()
    return result


class TokenTable:
    """The tokens that are text, as arrays.

    Args:
        texts: the bytes of each token, b"" for those that are no text.
        special: the spelling of tokens that are not text.

    Attributes:
        vocab_size: of the model, V.
        texts: [V] the bytes of each token, b"" for those that are no text.
        ids: [N] int64, the tokens with text.
        matrix: [N, L] uint8, their bytes, padded with 0 up to the longest.
        lengths: [N] int64.
        can_write: [256] bool, whether any token has this byte.
    """

    def __init__(self, texts: Sequence[bytes], special: Mapping[int, bytes] | None = None) -> None:
        self.texts = list(texts)
        self.special = dict(special or {})
        self.vocab_size = len(self.texts)
        self.ids = np.array([i for i, text in enumerate(texts) if text], dtype=np.int64)
        self.lengths = np.array([len(text) for text in texts if text], dtype=np.int64)
        longest = int(self.lengths.max(initial=1))
        padded = b"".join(text.ljust(longest, b"\0") for text in texts if text)
        matrix = np.frombuffer(padded, dtype=np.uint8).reshape(-1, longest)
        self.matrix = np.asfortranarray(matrix)  # columns are read one after the other
        self.can_write = np.zeros(256, dtype=bool)
        self.can_write[np.frombuffer(b"".join(texts), dtype=np.uint8)] = True

    @property
    def num_words(self) -> int:
        """int32 words in a row of bits."""
        return -(-self.vocab_size // BITS)


# ---------------------------------------------------------------- states to tokens
def lift_state(automaton: Pushdown, tokens: TokenTable, state: int) -> np.ndarray:
    """The state after each token of the vocabulary, from `state`; DEAD if it cannot come next.

    A token is legal if all of its bytes can be read one after the other, whatever elements of the
    pattern they cross. All tokens walk together, one column of the matrix at a time, and only
    those still alive go on::

        state 3 reads ":"      tokens   :    "    :1   :tr   }
        column 0                        5    -    5    5     -      ":" has ended in state 5
        column 1                                  8    9            ":1" has ended in state 8
        column 2                                       10           ":tr" in state 10

    A token may hold the byte 0, with which rows are padded: `tokens.lengths` says where it ends.

    Returns:
        [V] int32. Tokens without text are DEAD.
    """
    result = np.full(tokens.vocab_size, DEAD, dtype=np.int32)
    alive = np.arange(len(tokens.ids))
    states = np.full(len(alive), state, dtype=np.int32)
    for column in range(tokens.matrix.shape[1]):
        states = automaton.step(states, tokens.matrix[alive, column])
        going = states != DEAD
        alive, states = alive[going], states[going]
        ended = tokens.lengths[alive] == column + 1
        result[tokens.ids[alive[ended]]] = states[ended]
        alive, states = alive[~ended], states[~ended]
        if not len(alive):
            break
    return result


def pack_bits(allowed: np.ndarray) -> np.ndarray:
    """One bit a token: token t is bit t % 32 of word t // 32, the lowest bit first.

    ::

        token     0 1 2 3 ... 31 | 32 33 ...
        allowed   1 0 1 0 ...  1 |  1  0 ...      word 0 = 1 + 4 + ... + 2**31, a negative int32

    Args:
        allowed: [V] bool.

    Returns:
        [ceil(V / 32)] int32. Bits past V are 0.

    Source: vllm/v1/structured_output/backend_xgrammar.py#L124-L125
    (XgrammarBackend.allocate_token_bitmask) @ v0.22.1, for the layout.
    """
    padded = np.zeros(-(-len(allowed) // BITS) * BITS, dtype=bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<i4").astype(np.int32, copy=False)


def set_bits(words: np.ndarray, token_ids: Sequence[int], allowed: bool = True) -> None:
    """Allow or forbid single tokens in a packed row, in place; a token may be named twice."""
    bits = words.view(np.uint32)
    for token in token_ids:
        bit = np.uint32(1 << (token % BITS))
        bits[token // BITS] = bits[token // BITS] | bit if allowed else bits[token // BITS] & ~bit


def unpack_bits(words: np.ndarray, vocab_size: int) -> np.ndarray:
    """The inverse of `pack_bits`, of one row [W] or of many [N, W]: [..., V] bool.

    Tokens behind the last word have no bit: False.
    """
    data = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(data, axis=-1, bitorder="little", count=vocab_size).view(np.bool_)


class TokenIndex:
    """The packed rows of one grammar, each made when its state first occurs.

    Attributes:
        finished: the finished rows, with the stop tokens that each request may sample.

    Args:
        max_bytes: most memory of the rows; beyond it the least recently used row is dropped.
    """

    def __init__(
        self, automaton: Pushdown, tokens: TokenTable, max_bytes: int = MAX_ROW_BYTES
    ) -> None:
        self.automaton = automaton
        self.tokens = tokens
        self._rows: OrderedDict[int, np.ndarray] = OrderedDict()
        self._max_rows = max(max_bytes // (4 * tokens.num_words), 1)
        self.finished = KeptRows(self._max_rows)
        self._moves: dict[tuple[int, int], int] = {}
        self._must_end: dict[int, bool] = {}

    @property
    def nbytes(self) -> int:
        num_rows = len(self._rows) + len(self.finished)
        moves = 200 * (len(self._moves) + len(self._must_end))
        return self.automaton.nbytes + 4 * self.tokens.num_words * num_rows + moves

    def row(self, state: int) -> np.ndarray:
        """[W] int32: the tokens whose text may follow in `state`. Shared; do not write to it."""
        row = self._rows.get(state)
        if row is None:
            row = pack_bits(lift_state(self.automaton, self.tokens, state) != DEAD)
            self._rows[state] = row
            if len(self._rows) > self._max_rows:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(state)
        return row

    def must_end(self, state: int) -> bool:
        """Whether the text may end in `state` and no other token may follow."""
        known = self._must_end.get(state)
        if known is None:
            known = self.automaton.is_accepting(state) and not self.row(state).any()
            self._must_end[state] = known
        return known

    def walk(self, state: int, token: int) -> int:
        """The state after one token, or DEAD. Moves are cached, because all requests make the same
        few."""
        after = self._moves.get((state, token))
        if after is None:
            if len(self._moves) >= MAX_MOVES:
                self._moves.clear()
            after = self._moves[state, token] = self._walk_bytes(state, token)
        return after

    def _walk_bytes(self, state: int, token: int) -> int:
        text = self.tokens.texts[token] if 0 <= token < self.tokens.vocab_size else b""
        for byte in text:
            state = self.automaton.next(state, byte)
            if state == DEAD:
                return DEAD
        return state if text else DEAD
