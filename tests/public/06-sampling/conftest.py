"""Builders for the tests of phase 06. The story: a tiny model with a vocabulary of a few tokens,
whose probabilities are written down; and two tokenizers, the bundled one among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models

from mini_vllm import bundled
from mini_vllm.engine.detokenizer import IncrementalDetokenizer, TokenWindow
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow, make_sampling_metadata
from mini_vllm.sampling_params import SamplingParams

torch.set_num_threads(1)


def logits_of(*rows: Sequence[float]) -> torch.Tensor:
    """Logits [B, V] whose softmax is these probabilities; a probability of 0 is -inf."""
    return torch.tensor(rows).log()


def listed(value: Any, digits: int = 4) -> Any:
    """A tensor as nested lists, floats rounded; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return _rounded(value.tolist(), digits)


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    return round(value, digits) + 0.0 if isinstance(value, float) else value


def kept(logits: Any) -> Any:
    """The tokens of each row that are not ruled out."""
    if not isinstance(logits, torch.Tensor):
        return logits
    return [(row != -torch.inf).nonzero().flatten().tolist() for row in logits]


def expect_untouched(function: Callable[..., Any], logits: torch.Tensor, *args: Any) -> None:
    """The function leaves the logits that it was given as they were."""
    before = logits.clone()
    function(logits, *args)
    same = torch.equal(logits, before)
    assert same, f"{function.__name__} has written into the logits that it was given"


def row(prompt: Sequence[int] = (), output: Sequence[int] = (), **params: Any) -> SamplingRow:
    """A row of the batch; greedy unless a temperature is given."""
    return SamplingRow(SamplingParams(**{"temperature": 0.0} | params), list(prompt), list(output))


def metadata_of(vocab_size: int, *rows: SamplingRow) -> SamplingMetadata:
    return make_sampling_metadata(rows, vocab_size)


def many_draws(count: int, vocab_size: int, **params: Any) -> SamplingMetadata:
    """`count` rows of one request: row i is about to draw its output token i."""
    metadata = metadata_of(vocab_size, *[row(**params)] * count)
    metadata.num_output_tokens = torch.arange(count)
    return metadata


@cache
def bundled_tokenizer() -> Tokenizer:
    """The storyteller's: a BPE over bytes, so a rare character is several tokens."""
    return Tokenizer.from_file(str(bundled.path("storyteller") / "tokenizer.json"))


@cache
def byte_tokenizer() -> Tokenizer:
    """Like Llama 2's: words with ▁ for a space, and one token for each other byte."""
    words = ["<unk>", "▁the", "▁fox", "s", "▁"]
    vocab = {word: index for index, word in enumerate(words)}
    vocab |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


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


@pytest.fixture
def lab() -> SimpleNamespace:
    """All builders of this file."""
    builders = (
        logits_of, listed, kept, expect_untouched, row, metadata_of, many_draws, bundled_tokenizer,
        byte_tokenizer, byte_tokens, window, pieces, detokenizer,
    )  # fmt: skip
    return SimpleNamespace(**{builder.__name__: builder for builder in builders})
