"""What an engine can never serve, checked where the request comes in, before it is sent on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_vllm.errors import RequestError
from mini_vllm.param_checks import check_context


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """The sizes that a prompt must fit. Plain data, so that a front end in another process can
    refuse a prompt before its answer has begun."""

    vocab_size: int
    max_model_len: int
    num_usable_blocks: int
    block_size: int
    capacity: int
    """Tokens of the longest sequence that the whole KV cache holds."""
    least_output: int = 1
    """Tokens that must fit behind a prompt; 0: it is pooled, and nothing follows it."""

    def check(self, prompt: Sequence[int]) -> None:
        """Refuse a prompt that can never be served.

        Args:
            prompt: token ids, behind which ``least_output`` tokens must fit.

        Raises:
            ValueError: for an empty prompt, a token outside the vocabulary, or a prompt that does
                not fit the model's length or the KV cache.
        """
        if not prompt:
            raise RequestError("the prompt is empty; it must have at least 1 token", param="prompt")
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            bad = next(token for token in prompt if not 0 <= token < self.vocab_size)
            raise RequestError(
                f"the prompt has token id {bad}; the vocabulary ends at {self.vocab_size - 1}; was "
                "it made with another tokenizer?",
                param="prompt",
                value=bad,
            )
        check_context(self.max_model_len, len(prompt), least_output=self.least_output)
        if len(prompt) > self.capacity:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens; the KV cache holds {self.capacity} "
                f"({self.num_usable_blocks} blocks of {self.block_size}); shorten it or raise "
                "num_gpu_blocks",
                param="input_tokens",
                value=len(prompt),
            )
