"""Builders for the tests of phase 06. The story: a tiny model with a vocabulary of a few tokens,
whose probabilities are written down; and two tokenizers, the bundled one among them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from mini_vllm import bundled
from mini_vllm.engine.detokenizer import REPLACEMENT, IncrementalDetokenizer, TokenWindow
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

    from mini_vllm.engine.beam_search import BeamSearch
    from mini_vllm.outputs import Logprob
    from mini_vllm.sample.custom import AdapterLogitsProcessor, BatchUpdate
    from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
    from mini_vllm.sampling_params import BeamSearchParams


def logits_of(*rows: Sequence[float]) -> torch.Tensor:
    """Logits [B, V] whose softmax is these probabilities; a probability of 0 is -inf."""
    import torch

    return torch.tensor(rows).log()


def listed(value: Any, digits: int = 4) -> Any:
    """A tensor as nested lists, floats rounded; anything else as it is."""
    if not hasattr(value, "tolist"):
        return value
    return _rounded(value.tolist(), digits)


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    return round(value, digits) + 0.0 if isinstance(value, float) else value


def kept(logits: Any) -> Any:
    """The tokens of each row that are not ruled out."""
    import torch

    if not isinstance(logits, torch.Tensor):
        return logits
    return [(row != -torch.inf).nonzero().flatten().tolist() for row in logits]


def expect_untouched(function: Callable[..., Any], logits: torch.Tensor, *args: Any) -> None:
    """The function leaves the logits that it was given as they were."""
    import torch

    before = logits.clone()
    function(logits, *args)
    same = torch.equal(logits, before)
    assert same, f"{function.__name__} has written into the logits that it was given"


def row(prompt: Sequence[int] = (), output: Sequence[int] = (), **params: Any) -> SamplingRow:
    """A row of the batch; greedy unless a temperature is given."""
    from mini_vllm.sample.metadata import SamplingRow

    return SamplingRow(SamplingParams(**{"temperature": 0.0} | params), list(prompt), list(output))


def metadata_of(vocab_size: int, *rows: SamplingRow) -> SamplingMetadata:
    from mini_vllm.sample.metadata import make_sampling_metadata

    return make_sampling_metadata(rows, vocab_size)


def many_draws(count: int, vocab_size: int, **params: Any) -> SamplingMetadata:
    """`count` rows of one request: row i is about to draw its output token i."""
    import torch

    metadata = metadata_of(vocab_size, *[row(**params)] * count)
    metadata.num_output_tokens = torch.arange(count)
    return metadata


class Encoding(NamedTuple):
    """What `encode` gives."""

    ids: list[int]


class Bpe:
    """The storyteller's tokenizer in few lines: a BPE over bytes, so a rare character is several
    tokens. The `tokenizers` package is not where a browser runs these tests."""

    def __init__(self, model: dict[str, Any]) -> None:
        self.vocab: dict[str, int] = model["vocab"]
        self.pieces = {index: piece for piece, index in self.vocab.items()}
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}

    def encode(self, text: str) -> Encoding:
        parts = [LETTER_OF[byte] for byte in text.encode()]
        while True:
            pairs = [self.ranks.get(pair, NEVER) for pair in pairwise(parts)]
            best = min(pairs, default=NEVER)
            if best == NEVER:
                return Encoding([self.vocab[part] for part in parts])
            at = pairs.index(best)
            parts[at : at + 2] = ["".join(parts[at : at + 2])]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        letters = "".join(self.pieces[index] for index in token_ids)
        return bytes(BYTE_OF[letter] for letter in letters).decode(errors="replace")


def letters_of_bytes() -> dict[int, str]:
    """Byte-level BPE writes each byte as a letter: a printable one as itself."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    shifted = {byte: chr(256 + number) for number, byte in enumerate(others)}
    return {byte: chr(byte) for byte in plain} | shifted


NEVER = 1 << 30
LETTER_OF = letters_of_bytes()
BYTE_OF = {letter: byte for byte, letter in LETTER_OF.items()}


@cache
def bundled_tokenizer() -> Bpe:
    """The storyteller's."""
    file = Path(bundled.__file__).parent / "storyteller" / "tokenizer.json"
    return Bpe(json.loads(file.read_text(encoding="utf-8"))["model"])


class WordsAndBytes:
    """A tokenizer like Llama 2's: words with ▁ for a space, and one token for each other byte. Of
    a run of bytes that is no text, each is shown as a replacement character."""

    words = ("<unk>", "▁the", "▁fox", "s", "▁")

    def token_to_id(self, token: str) -> int:
        if token in self.words:
            return self.words.index(token)
        return len(self.words) + int(token.removeprefix("<0x").removesuffix(">"), 16)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text, count = "", len(self.words)
        for is_byte, run in groupby(token_ids, lambda index: index >= count):
            if is_byte:
                data = bytes(index - count for index in run)
                try:
                    text += data.decode()
                except UnicodeDecodeError:
                    text += REPLACEMENT * len(data)
            else:
                text += "".join(self.words[index].replace("▁", " ") for index in run)
        return text.removeprefix(" ")


@cache
def byte_tokenizer() -> WordsAndBytes:
    return WordsAndBytes()


def byte_tokens(text: str) -> list[int]:
    """Ids of `byte_tokenizer`, one for each byte."""
    return [byte_tokenizer().token_to_id(f"<0x{byte:02X}>") for byte in text.encode()]


def window(tokenizer: Any, prompt: Sequence[int] = ()) -> TokenWindow:
    return TokenWindow(tokenizer, list(prompt), True)


def pieces(window: TokenWindow, token_ids: Sequence[int]) -> list[str]:
    """What the window prints after each of the tokens."""
    return [window.append([token_id]) for token_id in token_ids]


class Letters:
    """A tokenizer whose token 97 is "a": one letter a token."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))


def detokenizer(tokenizer: Any = None, **params: Any) -> IncrementalDetokenizer:
    """Of letters, unless a tokenizer is given; its prompt is empty."""
    return IncrementalDetokenizer(tokenizer or Letters(), [], SamplingParams(**params))


def beam_params(**params: Any) -> BeamSearchParams:
    """Two beams, unless another width is given."""
    from mini_vllm.sampling_params import BeamSearchParams

    return BeamSearchParams(**{"beam_width": 2, "max_tokens": 9} | params)


def search(prompt: list[int], **params: Any) -> BeamSearch:
    """A search whose only end token is 0."""
    from mini_vllm.engine.beam_search import BeamSearch

    return BeamSearch(prompt, prompt, beam_params(**params), (0,))


def proposed(logprobs: dict[int, float]) -> dict[int, Logprob]:
    """What a beam proposes: log probabilities by token."""
    from mini_vllm.outputs import Logprob

    return {token: Logprob(logprob) for token, logprob in logprobs.items()}


def likely(probabilities: dict[int, float]) -> dict[int, Logprob]:
    """The same of probabilities, the best first."""
    best_first = sorted(probabilities.items(), key=lambda pair: -pair[1])
    return proposed({token: math.log(share) for token, share in best_first})


def batch_update(
    removed: Sequence[int] = (),
    added: Sequence[tuple[int, str]] = (),
    moved: Sequence[tuple[int, int, str]] = (),
) -> BatchUpdate:
    """`added`: row and output, a letter a token; `moved`: two rows and the name of a direction."""
    from mini_vllm.sample.custom import BatchUpdate, MoveDirectionality

    came = [(row, SamplingParams(), [], list(map(ord, output))) for row, output in added]
    moves = [(a, b, MoveDirectionality[name]) for a, b, name in moved]
    return BatchUpdate(9, removed, came, moves)


def counting_hook() -> AdapterLogitsProcessor:
    """Its functions add to a row how often they were called."""
    import itertools

    import torch

    from mini_vllm.sample.custom import AdapterLogitsProcessor

    class Counting(AdapterLogitsProcessor):
        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: SamplingParams) -> Any:
            calls = itertools.count(1)
            return lambda output_ids, logits: logits + next(calls)

    return Counting(None, torch.device("cpu"), False)


@pytest.fixture
def lab() -> SimpleNamespace:
    """All builders of this file."""
    builders = (
        logits_of, listed, kept, expect_untouched, row, metadata_of, many_draws, bundled_tokenizer,
        byte_tokenizer, byte_tokens, window, pieces, detokenizer,
        beam_params, search, proposed, likely, batch_update, counting_hook,
    )  # fmt: skip
    return SimpleNamespace(**{builder.__name__: builder for builder in builders})
