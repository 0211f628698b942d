"""Choose the next token of every row: one argmax when greedy, one random number otherwise.

The random number of a token depends on the seed and the index of that token, and on nothing else:

    seed, index of the output token --hash--> u in [0, 1) --inverse CDF--> token

There is no generator to advance. So a seeded request gets the same numbers alone or in a batch,
in any order of rows, after preemption, and however its prompt was cut into chunks.

Source: vllm/v1/sample/sampler.py#L20-L59 (Sampler) @ v0.22.1 for the order of the steps.
Source: vllm/v1/sample/ops/topk_topp_sampler.py#L395-L416 (random_sample) @ v0.22.1 draws V
exponential numbers per row, and those of a seeded row come from a `torch.Generator` of that row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mini_vllm.errors import Fault, RequestFailure
from mini_vllm.param_checks import MAX_FLOAT32
from mini_vllm.platforms import platform_of
from mini_vllm.sample.filters import apply_filters
from mini_vllm.sample.logits_processors import (
    apply_allowed_token_ids,
    apply_logit_bias,
    apply_min_p,
    apply_min_tokens,
    apply_penalties,
    apply_temperature,
    apply_top_k_top_p,
)
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sampling_params import MIN_TEMPERATURE

GOLDEN_RATIO = -0x61C8864680B583EB
"""2**64 divided by the golden ratio, as a signed number: splitmix64's step between counters."""

BROKEN_LOGITS = -1
NO_TOKEN_LEFT = -2
ERRORS = {
    BROKEN_LOGITS: RequestFailure(
        "the model produced NaN or infinite logits, or logit_bias or repetition_penalty "
        "made them too large to sample from; check the weights, the dtype and these two"
    ),
    NO_TOKEN_LEFT: RequestFailure(
        "no token is left to sample: the largest logit is -inf; "
        "relax allowed_token_ids, logit_bias, min_tokens or structured_outputs",
        fault=Fault.REQUEST,
    ),
}
"""What stands in place of a sampled token when a row failed, and why it failed."""
MAX_LOGIT = MAX_FLOAT32 * MIN_TEMPERATURE
"""A larger one could become infinite when the temperature divides it, and two infinite ones NaN."""


class LogprobsTensors(NamedTuple):
    """Log probabilities of B positions.

    Attributes:
        token_ids: [B, k + 1] int64: the sampled (or prompt) token, then the k most likely ones.
        logprobs: [B, k + 1] float32, in the same order.
        ranks: [B] int64, rank of the sampled (or prompt) token; 1 is the most likely.
    """

    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor

    def row(self, index: int, num_logprobs: int) -> tuple[list[int], list[float], int]:
        """Token ids, logprobs and rank of one position, cut to the `num_logprobs` it asked for."""
        end = num_logprobs + 1
        return (
            self.token_ids[index, :end].tolist(),
            self.logprobs[index, :end].tolist(),
            int(self.ranks[index]),
        )


@dataclass
class SamplerOutput:
    """What the sampler chose.

    Attributes:
        sampled_token_ids: [B] int64. A negative number is a key of `ERRORS`: that row failed,
            and the engine fails that request only.
        logprobs: None when no row asked for them. Its k is the largest `logprobs` of any row.
    """

    sampled_token_ids: Tensor
    logprobs: LogprobsTensors | None

    @cached_property
    def invalid_rows(self) -> dict[int, str]:
        """Index of every failed row -> the reason, in words."""
        tokens = self.sampled_token_ids.tolist()
        return {row: str(ERRORS[token]) for row, token in enumerate(tokens) if token < 0}


class Sampler(nn.Module):
    """Turns logits into one token per row. It has no weights and keeps no state."""

    def forward(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Processors, one token per row, logprobs if wanted, and a mark on each row that failed.

        Logprobs are those of the model, before any processing, as in vLLM V1.

        Args:
            logits: [B, V], any float dtype; not changed. All work is done in float32.
            metadata: `max_num_logprobs` is None when no row wants logprobs.
        """
        # TODO 06.6
        raise NotImplementedError(
            "TODO 06.6: write Sampler.forward in labs/06-sampling/sampler.py"
            " (phase 06, 02-mini-build.md#task-6)"
        )

    @staticmethod
    def apply_processors(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        """The steps that can change which token is the most likely one, and the filters that look
        at the logits as these leave them."""
        if metadata.allowed is not None:
            logits = apply_allowed_token_ids(logits, metadata.allowed)
        if (ban := metadata.stop_token_ban) is not None:
            logits = apply_min_tokens(logits, *ban, metadata.num_output_tokens)
        if (bias := metadata.logit_bias) is not None:
            logits = apply_logit_bias(logits, *bias)
        if (penalties := metadata.penalties) is not None:
            logits = apply_penalties(logits, *penalties)
        if metadata.filters:
            logits = apply_filters(logits, metadata.filters)
        return logits

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        """The argmax of greedy rows and one draw of each other row; no work that no row needs.

        Args:
            logits: [B, V] after `apply_processors`.
            metadata: `all_greedy` and `all_random` say when one kind is enough; a temperature of
                0 marks a greedy row.

        Returns:
            [B] int64.
        """
        # TODO 06.5
        raise NotImplementedError(
            "TODO 06.5: write Sampler.sample in labs/06-sampling/sampler.py"
            " (phase 06, 02-mini-build.md#task-5)"
        )

    @staticmethod
    def sample_randomly(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        """Temperature, min-p, top-k and top-p, in this order, then one draw per row.

        The number of a row comes from its seed and from how many output tokens it has.

        Args:
            logits: [B, V] after `apply_processors`.
            metadata: a filter that is None is not used by any row.

        Returns:
            [B] int64. The token of a greedy row is meaningless.
        """
        # TODO 06.5
        raise NotImplementedError(
            "TODO 06.5: write Sampler.sample_randomly in labs/06-sampling/sampler.py"
            " (phase 06, 02-mini-build.md#task-5)"
        )


def greedy_sample(logits: Tensor) -> Tensor:
    """Index of the largest logit of each row, the first one if several are equal; NaN is largest.

    `torch.argmax` is about ten times slower on a CPU than `torch.amax`, which uses vector
    instructions. So a large batch first finds the block of 64 tokens that holds the maximum.

    Args:
        logits: [B, V].

    Returns:
        [B] int64.
    """
    block_size = 64
    is_small = logits.numel() < 2**17 or logits.shape[-1] % block_size
    if is_small or not platform_of(logits.device).is_host:
        return logits.argmax(dim=-1)
    blocks = logits.unflatten(-1, (-1, block_size))
    best_block = blocks.amax(dim=-1).argmax(dim=-1)
    in_block = blocks[torch.arange(len(logits)), best_block].argmax(dim=-1)
    return best_block * block_size + in_block


def sample_from_logits(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per row from softmax(logits), by inverting the cumulative distribution.

        probabilities   0.5        0.0   0.3         0.2
        running sum     0.5        0.5   0.8         1.0
        uniform 0.6     the first running sum above 0.6 is that of token 2

    A token of probability 0 adds nothing to the sum, so it is never the first one above. The
    numbers are scaled by the last sum, because rounding can leave it a little off 1. All rows are
    searched together: to ask for the answer of each is to wait for the device once a row.

    Args:
        logits: [B, V]; -inf rules a token out.
        uniform: [B] float32 in [0, 1).

    Returns:
        [B] int64. The token of a row with NaN is meaningless, but it is a token.
    """
    # TODO 06.4
    raise NotImplementedError(
        "TODO 06.4: write sample_from_logits in labs/06-sampling/sampler.py"
        " (phase 06, 02-mini-build.md#task-4)"
    )


def uniform_numbers(seeds: Tensor, num_output_tokens: Tensor) -> Tensor:
    """One random number per row, from its seed and the index of the token to sample.

        start   mix64(seed + GOLDEN_RATIO)
        place   start + index * GOLDEN_RATIO
        number  the top 24 bits of mix64(place), divided by 2**24

    24 bits are what float32 holds, so 1.0 is never reached by rounding. All of it is int64
    arithmetic that wraps around; `mix64` and `shift_right` do it for whole tensors.

    Args:
        seeds, num_output_tokens: [B] int64; the second is the index.

    Returns:
        [B] float32 in [0, 1).
    """
    # TODO 06.4
    raise NotImplementedError(
        "TODO 06.4: write uniform_numbers in labs/06-sampling/sampler.py"
        " (phase 06, 02-mini-build.md#task-4)"
    )


def mix64(x: Tensor) -> Tensor:
    """Scramble 64-bit numbers: close inputs, such as counters, give unrelated outputs.

    The last steps of splitmix64 (Steele, Lea, Flood 2014). int64 arithmetic wraps around.
    """
    x = (x ^ shift_right(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ shift_right(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ shift_right(x, 31)


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 right and fill with zeros; `>>` alone fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mark_failed_rows(logits: Tensor, sampled: Tensor) -> Tensor:
    """Replace the token of each failed row by the code of its error.

    The largest logit of a row tells: it is NaN if any logit is, +inf if any is, and -inf only if
    all are. A finite one may still be too large, on either side, to survive the temperature.

    Args:
        logits: [B, V] after the masks.
        sampled: [B] int64.

    Returns:
        [B] int64.
    """
    largest = logits.amax(dim=-1)
    error = torch.where(largest == -float("inf"), NO_TOKEN_LEFT, BROKEN_LOGITS)
    return torch.where(largest.abs() <= MAX_LOGIT, sampled, error)


def compute_logprobs(logits: Tensor) -> Tensor:
    """Natural logarithm of softmax over the last dimension, in float32. Same shape as logits."""
    return logits.log_softmax(dim=-1, dtype=torch.float32)


def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> LogprobsTensors:
    """The log probability and rank of one token per row, followed by the most likely tokens.

    The rank counts the tokens at least as likely as this one, itself included. So 1 is the most
    likely, and two tokens that tie for the first place both have rank 2, as in vLLM.

    Args:
        logprobs: [B, V].
        num_logprobs: k, how many of the most likely tokens; 0 gives the token itself only.
        token_ids: [B] int64, the token of each row.

    Source: vllm/v1/sample/sampler.py#L303-L351 (Sampler.gather_logprobs) @ v0.22.1.
    """
    # TODO 06.6
    raise NotImplementedError(
        "TODO 06.6: write gather_logprobs in labs/06-sampling/sampler.py"
        " (phase 06, 02-mini-build.md#task-6)"
    )


def compute_prompt_logprobs(
    logits: Tensor, next_token_ids: Tensor, num_logprobs: int
) -> LogprobsTensors:
    """Log probabilities of prompt tokens, given the logits of the tokens just before them.

        row t of logits  ->  predicts prompt token t + 1, which is next_token_ids[t]

    The first prompt token has no logits before it, so a prompt of T tokens has T - 1 rows.

    Args:
        logits: [T, V], any float dtype.
        next_token_ids: [T] int64.
    """
    # TODO 06.6
    raise NotImplementedError(
        "TODO 06.6: write compute_prompt_logprobs in labs/06-sampling/sampler.py"
        " (phase 06, 02-mini-build.md#task-6)"
    )
