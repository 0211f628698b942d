"""What the sampler needs to know about the rows of a batch, as tensors.

A feature that no row uses is None, so a batch of plain greedy rows costs nothing here.

Source: vllm/v1/sample/metadata.py#L14-L55 (SamplingMetadata) @ v0.22.1. Differences: seeds are
numbers instead of generators, and token counts are kept between steps instead of rebuilt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mini_vllm.platforms.transfer import Transfer
from mini_vllm.sample.filters import FILTERS
from mini_vllm.sampling_params import SamplingParams

Put = Callable[[Tensor], Tensor]
"""Puts a tensor on the device."""
Pairs = tuple[Tensor, Tensor]
"""Rows ``[N]`` and token ids ``[N]``."""


class SamplingRow(NamedTuple):
    """One row of the batch: a request whose next token is due."""

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    eos_token_ids: Iterable[int] = ()


class SparseBias(NamedTuple):
    """`logit_bias` of the whole batch: logits[rows[i], token_ids[i]] += values[i]. Shapes [N]."""

    rows: Tensor
    token_ids: Tensor
    values: Tensor


class StopTokenBan(NamedTuple):
    """`min_tokens` of the whole batch, shapes [N].

    Row rows[i] must not sample token_ids[i] while it has fewer than until[i] output tokens.
    """

    rows: Tensor
    token_ids: Tensor
    until: Tensor


class Penalties(NamedTuple):
    """Penalties of the whole batch, and the tokens they apply to.

    Entry i of the pairs says: row rows[i] has token_ids[i] in its prompt or its output. A pair
    may occur more than once. `output_counts` holds whole numbers as float32, ready to multiply.
    """

    rows: Tensor
    token_ids: Tensor
    output_counts: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor


@dataclass
class SamplingMetadata:
    """Sampling parameters of a batch of B rows over a vocabulary of V tokens.

    Attributes:
        all_greedy: every row has temperature 0. Then all fields from temperature to seeds are None.
        all_random: no row has temperature 0.
        num_output_tokens: [B] int64, so also the index of the output token to sample next.
        temperature: [B] float32; 0 marks a greedy row.
        top_k: [B] int64; 0 is off. top_p: [B] float32; 1 is off. min_p: [B] float32; 0 is off.
        seeds: [B] int64, the 64 bits of each row's seed.
        max_num_logprobs: largest `logprobs` of any row; None when no row needs them.
        allowed: [B, V] bool, True where `allowed_token_ids` lets a token through.
    """

    all_greedy: bool
    all_random: bool
    num_output_tokens: Tensor
    temperature: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    seeds: Tensor | None = None
    max_num_logprobs: int | None = None
    allowed: Tensor | None = None
    logit_bias: SparseBias | None = None
    stop_token_ban: StopTokenBan | None = None
    penalties: Penalties | None = None
    filters: dict[str, Tensor] = field(default_factory=dict)
    """``[B]`` float32 of each filter of :mod:`~mini_vllm.sample.filters` that some row uses."""

    @property
    def only_argmax(self) -> bool:
        """Whether every row's token is its largest logit: then no row has parameters of its own."""
        return self.all_greedy and self._keeps_logits

    @property
    def is_plain(self) -> bool:
        """Whether temperature, seed and index of a row are all that its token depends on."""
        wanted = (self.top_k, self.top_p, self.min_p, self.max_num_logprobs)
        return self._keeps_logits and not self.filters and all(one is None for one in wanted)

    @property
    def _keeps_logits(self) -> bool:
        changes = (self.allowed, self.logit_bias, self.stop_token_ban, self.penalties)
        return all(change is None for change in changes)

    def advance(self, sampled_token_ids: Tensor) -> None:
        """Bring the batch forward by one token per row, in place.

        Args:
            sampled_token_ids: [B] int64, the token that each row has just got.
        """
        self.num_output_tokens += 1
        if self.penalties is None:
            return
        # A failed row carries a negative id. Its request ends, so its counts do not matter.
        token_ids = sampled_token_ids.clamp(min=0)
        rows = torch.arange(len(token_ids), device=token_ids.device)
        self.penalties.output_counts[rows, token_ids] += 1
        self.penalties = self.penalties._replace(
            rows=torch.cat((self.penalties.rows, rows)),
            token_ids=torch.cat((self.penalties.token_ids, token_ids)),
        )


def make_sampling_metadata(
    rows: Iterable[tuple[SamplingParams, Sequence[int], Sequence[int], Iterable[int]]],
    vocab_size: int,
    device: torch.device | str = "cpu",
) -> SamplingMetadata:
    """Build the metadata of a batch from nothing.

    While the rows stay the same, keep the object and call `advance` after each step. A row
    without a seed draws a fresh one here: its tokens are random but not reproducible. The engine
    avoids that by giving every request a seed when it arrives (`derive_seed`).

    To a device that is not the host all of it goes in one copy.
    """
    batch = [SamplingRow(*row) for row in rows]
    params = [row.params for row in batch]
    greedy = [p.is_greedy for p in params]
    transfer = Transfer(device)
    put = transfer.put

    def column(
        value: Callable[[SamplingParams], float], off: float, dtype: torch.dtype
    ) -> Tensor | None:
        values = [value(p) for p in params]
        if all(v == off for v in values):
            return None
        return put(torch.tensor(values, dtype=dtype))

    num_logprobs = [p.logprobs for p in params if p.logprobs is not None]
    with transfer.together():
        metadata = SamplingMetadata(
            all_greedy=all(greedy),
            all_random=not any(greedy),
            temperature=column(lambda p: p.temperature, 0, torch.float32),
            top_k=column(lambda p: p.top_k if 0 < p.top_k < vocab_size else 0, 0, torch.int64),
            top_p=column(lambda p: p.top_p, 1, torch.float32),
            min_p=column(lambda p: p.min_p, 0, torch.float32),
            seeds=None if all(greedy) else put(torch.tensor([signed_seed(p) for p in params])),
            num_output_tokens=put(torch.tensor([len(row.output_token_ids) for row in batch])),
            max_num_logprobs=max(num_logprobs, default=None),
            allowed=_allowed_tokens(params, vocab_size, put),
            logit_bias=_logit_bias(params, put),
            stop_token_ban=_stop_token_ban(batch, vocab_size, put),
            filters=_filters(params, put),
        )
        pairs = _penalised_pairs(batch, put)
    if pairs is not None:  # to count them they must have arrived
        metadata.penalties = _penalties(*pairs, len(batch), vocab_size)
    return metadata


def signed_seed(params: SamplingParams) -> int:
    """A request's seed as a signed 64-bit number, which is what an int64 tensor holds."""
    seed = random.getrandbits(64) if params.seed is None else params.seed
    return (seed + 2**63) % 2**64 - 2**63


def _allowed_tokens(params: Sequence[SamplingParams], vocab_size: int, put: Put) -> Tensor | None:
    if all(p.allowed_token_ids is None for p in params):
        return None
    allowed = torch.ones(len(params), vocab_size, dtype=torch.bool)
    for row, p in enumerate(params):
        if p.allowed_token_ids is not None:
            allowed[row] = False
            allowed[row, p.allowed_token_ids] = True
    return put(allowed)


def _logit_bias(params: Sequence[SamplingParams], put: Put) -> SparseBias | None:
    entries = [
        (row, token_id, bias)
        for row, p in enumerate(params)
        for token_id, bias in (p.logit_bias or {}).items()
    ]
    if not entries:
        return None
    rows, token_ids, values = zip(*entries, strict=True)
    return SparseBias(
        put(torch.tensor(rows)),
        put(torch.tensor(token_ids)),
        put(torch.tensor(values, dtype=torch.float32)),
    )


def _stop_token_ban(rows: Sequence[SamplingRow], vocab_size: int, put: Put) -> StopTokenBan | None:
    entries = [
        (index, token_id, row.params.min_tokens)
        for index, row in enumerate(rows)
        if len(row.output_token_ids) < row.params.min_tokens
        for token_id in row.params.all_stop_token_ids.union(row.eos_token_ids)
        if token_id < vocab_size  # a tokenizer may know an EOS that the model cannot produce
    ]
    if not entries:
        return None
    return StopTokenBan(*put(torch.tensor(entries)).unbind(1))


def _filters(params: Sequence[SamplingParams], put: Put) -> dict[str, Tensor]:
    """The values of the filters that some row uses; greedy rows need none."""
    found: dict[str, Tensor] = {}
    for name in FILTERS:
        off = getattr(SamplingParams, name)
        values = [off if p.is_greedy else getattr(p, name) for p in params]
        if any(value != off for value in values):
            found[name] = put(torch.tensor(values, dtype=torch.float32))
    return found


def _penalised_pairs(rows: Sequence[SamplingRow], put: Put) -> tuple[Pairs, Pairs, Tensor] | None:
    """The tokens of prompts and of outputs that are penalised, and each row's three penalties
    ``[B, 3]``; None if no row has any."""
    values = [
        (row.params.repetition_penalty, row.params.presence_penalty, row.params.frequency_penalty)
        for row in rows
    ]
    penalised = [(index, row) for index, row in enumerate(rows) if has_penalties(row.params)]
    if not penalised:
        return None
    prompt = _pairs([(index, row.prompt_token_ids) for index, row in penalised], put)
    output = _pairs([(index, row.output_token_ids) for index, row in penalised], put)
    return prompt, output, put(torch.tensor(values))


def _penalties(
    prompt: Pairs, output: Pairs, values: Tensor, num_rows: int, vocab_size: int
) -> Penalties:
    counts = torch.zeros(num_rows, vocab_size, device=values.device)
    counts.index_put_(output, torch.ones(1, device=values.device), accumulate=True)
    pair_rows, pair_token_ids = map(torch.cat, zip(prompt, output, strict=True))
    return Penalties(pair_rows, pair_token_ids, counts, *values.unbind(1))


def has_penalties(params: SamplingParams) -> bool:
    """Whether a request's tokens so far change the logits of the next one."""
    values = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return values != (1.0, 0.0, 0.0)


def _pairs(token_lists: Sequence[tuple[int, Sequence[int]]], put: Put) -> Pairs:
    """Flatten (row, token ids) into row numbers [N] and token ids [N]."""
    lengths = torch.tensor([len(token_ids) for _, token_ids in token_lists])
    rows = torch.tensor([row for row, _ in token_lists]).repeat_interleave(lengths)
    flat = [token_id for _, token_ids in token_lists for token_id in token_ids]
    return put(rows), put(torch.tensor(flat, dtype=torch.int64))
