"""Choose the next token of every row: one argmax when greedy, Gumbel noise and argmax otherwise.

Noise is a function of (seed, index of the output token, token id) and of nothing else:

    seed, index --mix64--> key (64 bits) --.
                                           +--mix32--> 32 bits --> uniform --> Gumbel noise
    token id --------------mix32-----------'

There is no generator to advance. So a seeded request gets the same noise alone or in a batch, in
any order of rows, after preemption, and however its prompt was cut into chunks.

Source: vllm/v1/sample/sampler.py#L20-L59 (Sampler) @ v0.22.1 for the order of the steps;
vllm/v1/sample/ops/topk_topp_sampler.py#L395-L416 (random_sample) draws from one
`torch.Generator` per seeded row instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

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

GOLDEN_RATIO = -0x61C8864680B583EB
"""2**64 divided by the golden ratio, as a signed number: splitmix64's step between counters."""

BROKEN_LOGITS = -1
NO_TOKEN_LEFT = -2
ERRORS = {
    BROKEN_LOGITS: "the model produced NaN or infinite logits; check the weights and the dtype",
    NO_TOKEN_LEFT: "no token is left to sample: the largest logit is -inf; "
    "relax allowed_token_ids or min_tokens",
}
"""What stands in place of a sampled token when a row failed, and why it failed."""


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
        return {row: ERRORS[token] for row, token in enumerate(tokens) if token < 0}


class Sampler(nn.Module):
    """Turns logits into one token per row. It has no weights and keeps no state."""

    def forward(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Sample one token per row.

        Logprobs are those of the model, before any processing, as in vLLM V1.

        Args:
            logits: [B, V], any float dtype; not changed.
        """
        raw_logits = logits.float()
        logits = self.apply_processors(raw_logits, metadata)
        if metadata.all_greedy:
            sampled = greedy_sample(logits)
        elif metadata.all_random:
            sampled = self.sample_randomly(logits, metadata)
        else:
            assert metadata.temperature is not None
            sampled = torch.where(
                metadata.temperature == 0,
                greedy_sample(logits),
                self.sample_randomly(logits, metadata),
            )
        logprobs = None
        if metadata.max_num_logprobs is not None:
            raw_logprobs = compute_logprobs(raw_logits)
            logprobs = gather_logprobs(raw_logprobs, metadata.max_num_logprobs, sampled)
        return SamplerOutput(mark_failed_rows(logits, sampled), logprobs)

    @staticmethod
    def apply_processors(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        """The steps that can change which token is the most likely one."""
        if metadata.allowed is not None:
            logits = apply_allowed_token_ids(logits, metadata.allowed)
        if (ban := metadata.stop_token_ban) is not None:
            logits = apply_min_tokens(logits, *ban, metadata.num_output_tokens)
        if (bias := metadata.logit_bias) is not None:
            logits = apply_logit_bias(logits, *bias)
        if (penalties := metadata.penalties) is not None:
            logits = apply_penalties(logits, **penalties._asdict())
        return logits

    @staticmethod
    def sample_randomly(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        """Temperature, then the filters, then one draw per row. Returns [B] int64."""
        assert metadata.temperature is not None and metadata.seeds is not None
        logits = apply_temperature(logits, metadata.temperature)
        if metadata.min_p is not None:
            logits = apply_min_p(logits, metadata.min_p)
        logits = apply_top_k_top_p(logits, metadata.top_k, metadata.top_p)
        keys = noise_keys(metadata.seeds, metadata.num_output_tokens)
        return gumbel_sample(logits, keys)


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
    if logits.is_cuda or logits.numel() < 2**17 or logits.shape[-1] % block_size:
        return logits.argmax(dim=-1)
    blocks = logits.unflatten(-1, (-1, block_size))
    best_block = blocks.amax(dim=-1).argmax(dim=-1)
    in_block = blocks[torch.arange(len(logits)), best_block].argmax(dim=-1)
    return best_block * block_size + in_block


def gumbel_sample(logits: Tensor, keys: Tensor) -> Tensor:
    """Draw one token per row from softmax(logits), by the Gumbel-max trick.

    The index of the largest logit + noise is distributed as softmax(logits) when the noise of
    every token is independent and Gumbel. A token at -inf stays at -inf and is never drawn.

    Args:
        logits: [B, V].
        keys: [B] int64 from `noise_keys`.

    Returns:
        [B] int64.
    """
    token_ids = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)
    return greedy_sample(gumbel_noise(keys, token_ids).add_(logits))


def gumbel_noise(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Independent Gumbel noise for every pair of a key and a token id.

        u     = 31 bits of mix32(mix32(token id) ^ low half of the key) + high half
        noise = -log(-log(1 - u))        with u in (0, 1)

    -log(1 - u) is an exponential variable, and the token with the smallest one tends to win. So
    u must be finest near 0, where float32 is. Noise lies between -2.9 and 22.2.

    Args:
        keys: [B] int64.
        token_ids: [V] int32.

    Returns:
        [B, V] float32.
    """
    low, high = keys.view(torch.int32).view(-1, 2, 1).unbind(1)
    bits = mix32_(mix32_(token_ids.clone()) ^ low)
    bits += high
    bits &= 0x7FFFFFFF
    u = bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return u.neg_().log1p_().neg_().log_().neg_()


def noise_keys(seeds: Tensor, num_output_tokens: Tensor) -> Tensor:
    """One 64-bit key per row: the row's counter, that many steps from its hashed seed.

    Args:
        seeds, num_output_tokens: [B] int64.

    Returns:
        [B] int64.
    """
    return mix64(mix64(seeds + GOLDEN_RATIO) + num_output_tokens * GOLDEN_RATIO)


def mix64(x: Tensor) -> Tensor:
    """Scramble 64-bit numbers: close inputs, such as counters, give unrelated outputs.

    The last steps of splitmix64 (Steele, Lea, Flood 2014). int64 arithmetic wraps around.
    """
    x = (x ^ shift_right(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ shift_right(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ shift_right(x, 31)


def mix32_(x: Tensor) -> Tensor:
    """Scramble 32-bit numbers in place, because new [B, V] tensors cost more than the arithmetic.

    The constants are those of lowbias32 (Chris Wellons, public domain).
    """
    x ^= shift_right(x, 16)
    x *= 0x7FEB352D
    x ^= shift_right(x, 15)
    x *= 0x846CA68B - 2**32
    x ^= shift_right(x, 16)
    return x


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros. `>>` fills with the sign, as these integers are signed."""
    width = 8 * x.element_size()
    return (x >> bits).bitwise_and_((1 << (width - bits)) - 1)


def mark_failed_rows(logits: Tensor, sampled: Tensor) -> Tensor:
    """Replace the token of each failed row by the code of its error.

    NaN and +inf win every argmax, and -inf wins only when nothing else is left. So one look at
    the logit of the chosen token finds both failures, without another pass over the logits.

    Args:
        logits: [B, V] after the masks.
        sampled: [B] int64.

    Returns:
        [B] int64.
    """
    chosen = logits.gather(1, sampled.unsqueeze(1)).squeeze(1)
    checked = torch.where(chosen == -float("inf"), NO_TOKEN_LEFT, BROKEN_LOGITS)
    return torch.where(chosen.isfinite(), sampled, checked)


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

    Source: vllm/v1/sample/sampler.py#L304-L352 (Sampler.gather_logprobs) @ v0.22.1.
    """
    num_logprobs = min(num_logprobs, logprobs.shape[-1])
    token_ids = token_ids.unsqueeze(1)
    token_logprobs = logprobs.gather(1, token_ids)
    top_logprobs, top_ids = logprobs.topk(num_logprobs, dim=-1)
    return LogprobsTensors(
        token_ids=torch.cat((token_ids, top_ids), dim=1),
        logprobs=torch.cat((token_logprobs, top_logprobs), dim=1),
        ranks=(logprobs >= token_logprobs).sum(dim=-1),
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
    return gather_logprobs(compute_logprobs(logits), num_logprobs, next_token_ids)
