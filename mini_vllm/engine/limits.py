"""What an engine can never serve, asked where the request comes in: before it is sent anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """The sizes that a prompt must fit. Plain data, so that a front end in another process can
    refuse a prompt before its answer has begun."""

    vocab_size: int
    max_model_len: int
    num_usable_blocks: int
    block_size: int

    @property
    def capacity(self) -> int:
        """Tokens that the whole KV cache holds."""
        return self.num_usable_blocks * self.block_size

    def check(self, prompt: Sequence[int]) -> None:
        """Raises ValueError for an empty prompt, a token outside the vocabulary, or a prompt that
        leaves no room for a token of output."""
        if not prompt:
            raise ValueError("the prompt is empty; it must have at least 1 token")
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            bad = next(token for token in prompt if not 0 <= token < self.vocab_size)
            raise ValueError(
                f"the prompt has token id {bad}; the vocabulary ends at {self.vocab_size - 1}; was "
                "it made with another tokenizer?"
            )
        if len(prompt) >= self.max_model_len:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens; the maximum context length is "
                f"{self.max_model_len} tokens (max_model_len), so at most {self.max_model_len - 1} "
                "leave room for output; shorten it or raise max_model_len"
            )
        if len(prompt) > self.capacity:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens; the KV cache holds {self.capacity} "
                f"({self.num_usable_blocks} blocks of {self.block_size}); shorten it or raise "
                "num_gpu_blocks"
            )
