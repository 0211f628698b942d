"""What an engine can never serve, asked where the request comes in: before it is sent anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm.errors import VLLMValidationError
from mini_vllm.param_checks import check_context


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

    def check(self, prompt: Sequence[int], num_output_tokens: int = 0) -> None:
        """Refuse a prompt that can never be served.

        Args:
            prompt: token ids.
            num_output_tokens: how many the request asks for; 0: as many as there is room for,
                which must be at least one.

        Raises:
            ValueError: for an empty prompt, a token outside the vocabulary, or a prompt that does
                not fit the model's length, together with the output, or the KV cache.
        """
        if not prompt:
            raise VLLMValidationError(
                "the prompt is empty; it must have at least 1 token", parameter="prompt"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            bad = next(token for token in prompt if not 0 <= token < self.vocab_size)
            raise VLLMValidationError(
                f"the prompt has token id {bad}; the vocabulary ends at {self.vocab_size - 1}; was "
                "it made with another tokenizer?",
                parameter="prompt",
                value=bad,
            )
        check_context(self.max_model_len, len(prompt), num_output_tokens)
        if len(prompt) > self.capacity:
            raise VLLMValidationError(
                f"the prompt has {len(prompt)} tokens; the KV cache holds {self.capacity} "
                f"({self.num_usable_blocks} blocks of {self.block_size}); shorten it or raise "
                "num_gpu_blocks",
                parameter="input_tokens",
                value=len(prompt),
            )
