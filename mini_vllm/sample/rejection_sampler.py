"""Verify drafts so that the text has exactly the distribution it has without them.

For one draft x, drawn from q where the model itself would draw from p:

    accept x with probability min(1, p(x) / q(x))
    else replace it by a token drawn from the residual, max(p - q, 0) made to sum to 1

                  A     B     C
    q            0.6   0.3   0.1
    p            0.3   0.3   0.4
    accepted     0.3   0.3   0.1    = min(p, q); with probability 0.3 nothing is accepted
    residual      0     0    1.0    so all of that goes to C, and the sum is p

Drafts are judged from the left, up to the first rejection. If all are accepted, the model adds one
more token, the bonus. So m drafts bring 1 to m + 1 tokens.

Shapes: B requests, N drafts of all of them one after another, V tokens, K the most drafts of one.

Source: vllm/v1/sample/rejection_sampler.py#L37-L61 (RejectionSampler) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mini_vllm.kernels import can_launch
from mini_vllm.kernels.judging import REJECTION_RANDOM_SAMPLE
from mini_vllm.platforms import platform_of
from mini_vllm.sample.logits_processors import (
    apply_min_p,
    apply_temperature,
    apply_top_k_top_p,
)
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.sampler import (
    LogprobsTensors,
    Sampler,
    compute_logprobs,
    gather_logprobs,
    greedy_sample,
    mix64,
    sample_from_logits,
    uniform_numbers,
)

ACCEPT, RECOVER, DRAFT = 1, 2, 3
"""Streams of random numbers beside the plain sampler's: each decision about a token has its own.

With one number for two of them, what is accepted would tell what is drawn, and the text would be
biased."""

PLACEHOLDER_TOKEN_ID = -1
"""Marks "no token" in a ragged result that is stored as a rectangle."""


def rejection_greedy_sample(
    draft_token_ids: Tensor,
    num_draft_tokens: Sequence[int],
    target_argmax: Tensor,
    bonus_token_ids: Tensor,
) -> Tensor:
    """Keep drafts as long as they are the target's own tokens, then take the target's token.

    ::

        drafts       7 3 9        target says  7 3 5, bonus 8    ->  7 3 5
        drafts       7 3 9        target says  7 3 9, bonus 8    ->  7 3 9 8

    Args:
        draft_token_ids: ``[N]`` int64.
        num_draft_tokens: ``[B]``, how many of them belong to each request; 0 is possible.
        target_argmax: ``[N]`` int64, the target's token in the place of each draft.
        bonus_token_ids: ``[B]`` int64, its token behind the last draft of each request.

    Returns:
        ``[B, K + 1]`` int64; :data:`PLACEHOLDER_TOKEN_ID` behind the last token of each.

    Source: vllm/v1/sample/rejection_sampler.py#L707-L757 (rejection_greedy_sample_kernel)
    @ v0.22.1
    """
    drafts = pad_rows(draft_token_ids, num_draft_tokens, fill=PLACEHOLDER_TOKEN_ID)
    wanted = pad_rows(target_argmax, num_draft_tokens, fill=PLACEHOLDER_TOKEN_ID)
    return keep_until_rejected(drafts == wanted, wanted, num_draft_tokens, bonus_token_ids)


def recovered_probs(
    draft_token_ids: Tensor, draft_probs: Tensor | None, target_probs: Tensor
) -> Tensor:
    """The distribution from which a rejected draft is replaced: max(p - q, 0), made to sum to 1.

    A draft that was chosen and not drawn had probability 1: the residual is p without it.

    Args:
        draft_token_ids: ``[N]`` int64.
        draft_probs: ``[N, V]``, q; None: the drafts were not drawn.
        target_probs: ``[N, V]``, p; not changed.

    Returns:
        ``[N, V]``. Where p equals q nothing is ever rejected, and the row is all zeros. Any other
        row sums to 1, however little p and q differ.

    Source: vllm/v1/sample/rejection_sampler.py#L853-L921 (sample_recovered_tokens_kernel)
    @ v0.22.1
    """
    if draft_probs is None:
        residual = target_probs.scatter(1, draft_token_ids.unsqueeze(1), 0.0)
    else:
        residual = (target_probs - draft_probs).clamp(min=0.0)
    total = residual.sum(dim=-1, keepdim=True)
    return residual / torch.where(total > 0, total, 1.0)


def rejection_random_sample(
    draft_token_ids: Tensor,
    num_draft_tokens: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    bonus_token_ids: Tensor,
    recovered_token_ids: Tensor,
    uniform_probs: Tensor,
) -> Tensor:
    """Keep each draft with probability min(1, p / q), up to the first that is rejected.

    Compared as ``u * q < p``, it needs no division; and with p = 0 no u accepts the draft. A draft
    that q cannot have drawn is rejected.

    Args:
        draft_token_ids: ``[N]`` int64.
        num_draft_tokens: ``[B]``, how many of them belong to each request; 0 is possible.
        draft_probs: ``[N, V]``, q; None: the drafts were chosen, q is 1.
        target_probs: ``[N, V]``, p.
        bonus_token_ids: ``[B]`` int64, the token if all drafts of a request are accepted.
        recovered_token_ids: ``[N]`` int64, the token instead of each draft if it is rejected.
        uniform_probs: ``[N]`` in [0, 1), u.

    Returns:
        ``[B, K + 1]`` int64; :data:`PLACEHOLDER_TOKEN_ID` behind the last token of each.

    Source: vllm/v1/sample/rejection_sampler.py#L760-L829 (rejection_random_sample_kernel)
    @ v0.22.1
    """
    places = draft_token_ids.unsqueeze(1)
    p = target_probs.gather(1, places).squeeze(1)
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(1, places).squeeze(1)
    accepted = (q > 0) & (uniform_probs * q < p)
    tokens = torch.where(accepted, draft_token_ids, recovered_token_ids)
    return keep_until_rejected(
        pad_rows(accepted, num_draft_tokens, fill=False),
        pad_rows(tokens, num_draft_tokens, fill=PLACEHOLDER_TOKEN_ID),
        num_draft_tokens,
        bonus_token_ids,
    )


def judge_drafts(
    draft_token_ids: Tensor,
    num_draft_tokens: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    bonus_token_ids: Tensor,
    recovered_token_ids: Tensor,
    uniform_probs: Tensor,
) -> Tensor:
    """:func:`rejection_random_sample`, on a GPU in one launch."""
    if not can_launch(target_probs):
        return rejection_random_sample(
            draft_token_ids, num_draft_tokens, draft_probs, target_probs, bonus_token_ids,
            recovered_token_ids, uniform_probs,
        )  # fmt: skip
    counts = torch.tensor(num_draft_tokens, dtype=torch.int32)
    shape = (len(num_draft_tokens), max(num_draft_tokens) + 1)
    output = torch.empty(shape, dtype=torch.int64, device=target_probs.device)
    REJECTION_RANDOM_SAMPLE.run(
        output=output,
        draft_ends=counts.cumsum(0, dtype=torch.int32).to(target_probs.device, non_blocking=True),
        draft_token_ids=draft_token_ids,
        draft_probs=draft_probs,
        target_probs=target_probs,
        bonus_token_ids=bonus_token_ids,
        recovered_token_ids=recovered_token_ids,
        uniform_probs=uniform_probs,
    )
    return output


def pad_rows(values: Tensor, num_draft_tokens: Sequence[int], fill: int | bool) -> Tensor:
    """``[N]`` values of B requests as ``[B, K]``, ``fill`` behind each request's last."""
    if len(set(num_draft_tokens)) == 1:  # nothing to fill, as for one request
        return values.view(len(num_draft_tokens), num_draft_tokens[0])
    rows = values.split(list(num_draft_tokens))
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill)


def keep_until_rejected(
    accepted: Tensor, tokens: Tensor, num_draft_tokens: Sequence[int], bonus_token_ids: Tensor
) -> Tensor:
    """Tokens up to the first that was not accepted; the bonus if there is none.

    Args:
        accepted: ``[B, K]`` bool; what stands behind a request's drafts does not matter.
        tokens: ``[B, K]``, what to say in each draft's place. Both stay as they are.

    Returns:
        ``[B, K + 1]`` int64.
    """
    num_drafts = torch.tensor(num_draft_tokens, device=tokens.device).unsqueeze(1)
    places = torch.arange(tokens.shape[1] + 1, device=tokens.device)
    accepted = accepted & (places[:-1] < num_drafts)
    # How many are accepted without a gap from the left; a request's last token stands there.
    num_accepted = accepted.long().cumprod(dim=1).sum(dim=1, keepdim=True)
    bonus = torch.full_like(bonus_token_ids, PLACEHOLDER_TOKEN_ID).unsqueeze(1)
    output = torch.cat((tokens, bonus), dim=1)
    output = torch.where(places == num_drafts, bonus_token_ids.unsqueeze(1), output)
    return torch.where(places <= num_accepted, output, PLACEHOLDER_TOKEN_ID)


def stream_numbers(seeds: Tensor, index: Tensor, stream: int) -> Tensor:
    """Numbers in [0, 1) that depend on seed, index of the output token and stream alone.

    Args:
        seeds, index: ``[N]`` int64, as for :func:`~mini_vllm.sample.sampler.uniform_numbers`.
        stream: :data:`ACCEPT`, :data:`RECOVER` or :data:`DRAFT`.
    """
    return uniform_numbers(mix64(seeds) + stream, index)


def processed_probs(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """The distribution that the plain sampler draws from, p: ``[N, V]`` float32.

    Args:
        logits: ``[N, V]``; not changed.
        metadata: of these N rows. A greedy row has all its probability on one token.
    """
    assert metadata.temperature is not None
    logits = Sampler.apply_processors(logits.float(), metadata)
    chosen = greedy_sample(logits)
    logits = apply_temperature(logits, metadata.temperature)
    if metadata.min_p is not None:
        logits = apply_min_p(logits, metadata.min_p)
    logits = apply_top_k_top_p(logits, metadata.top_k, metadata.top_p)
    return drawn_probs(logits, chosen, metadata.temperature)


def drawn_probs(logits: Tensor, chosen: Tensor, temperature: Tensor) -> Tensor:
    """softmax(logits) ``[N, V]``; a greedy row has all its probability on the token it chose.

    Args:
        logits: ``[N, V]`` float32, divided by the temperature already.
        chosen: ``[N]`` int64.
        temperature: ``[N]``; 0 marks a greedy row.
    """
    one_hot = torch.zeros_like(logits).scatter_(1, chosen.unsqueeze(1), 1.0)
    return torch.where(temperature.unsqueeze(1) == 0, one_hot, logits.softmax(dim=-1))


@dataclass(slots=True)
class RejectionOutput:
    """What verification has decided for B requests."""

    token_ids: Tensor
    """``[B, K + 1]`` int64; :data:`PLACEHOLDER_TOKEN_ID` behind the last token of each."""
    errors: Tensor
    """``[B]`` int64: 0, or a key of :data:`~mini_vllm.sample.sampler.ERRORS`."""
    logprobs: LogprobsTensors | None
    """Of all N + B rows, about the token that each has brought; None if no request asked."""


class RejectionSampler(nn.Module):
    """Turns the logits of N + B rows into 1 to K + 1 tokens for each of B requests.

    Drafts that were *chosen* (n-grams, the argmax of a draft model) need none of the formula:
    every row draws its token as always, with the random number of that output token, and a draft
    is accepted if it is that very token. It is with probability p(x), and what stands there
    otherwise has the law of p without x: the formula, with q = 1 at x. So a text with such drafts
    is the text without, token for token, for every seed.

    Drafts that were *drawn* from q need the formula, and random numbers of their own.

    Args:
        sampler: the ordinary one.
        acceptance_rates: ``[k]``, probability that draft j is accepted if all before it were,
            whatever the model says; for load tests. None: the model decides.

    Source: vllm/v1/sample/rejection_sampler.py#L37-L195 (RejectionSampler) @ v0.22.1. Difference:
    there a seeded text changes when speculation is switched on.
    """

    def __init__(self, sampler: Sampler, acceptance_rates: Sequence[float] | None = None) -> None:
        super().__init__()
        self.sampler = sampler
        self.acceptance_rates = acceptance_rates
        self.generator = torch.Generator().manual_seed(0)

    def forward(
        self,
        num_draft_tokens: Sequence[int],
        draft_token_ids: Tensor,
        draft_probs: Tensor | None,
        logits: Tensor,
        metadata: SamplingMetadata,
    ) -> RejectionOutput:
        """Judge the drafts of B requests.

        Args:
            num_draft_tokens: ``[B]``.
            draft_token_ids: ``[N]`` int64.
            draft_probs: ``[N, V]``, q; all on one token for a greedy request. None: chosen.
            logits: ``[N + B, V]``: of each request a row for every draft, then the bonus row.
            metadata: of these N + B rows, see ``expand_to_rows``.
        """
        num_rows = [count + 1 for count in num_draft_tokens]
        target, bonus = judging_rows(num_rows, logits.device)
        own = self.sampler(logits, metadata)
        says, may_have_failed = own.sampled_token_ids, has_failed_rows(own.sampled_token_ids)
        if may_have_failed:
            says = says.clamp(min=0)  # a failed row says something and is marked below
        drafts = (draft_token_ids, num_draft_tokens)
        logprobs = own.logprobs
        if self.acceptance_rates is None and (draft_probs is None or metadata.all_greedy):
            output = rejection_greedy_sample(*drafts, says[target], says[bonus])
        else:
            if self.acceptance_rates is not None:
                output = self.accept_blindly(*drafts, says[target], says[bonus])
            else:
                assert draft_probs is not None
                output = self.judge_drawn(
                    *drafts, draft_probs, logits, metadata, target, says[bonus]
                )
            if logprobs is not None:
                said = overwrite(says, output, num_rows)
                k = logprobs.logprobs.shape[1] - 1
                logprobs = gather_logprobs(compute_logprobs(logits), k, said)
        errors = torch.zeros(len(num_rows), dtype=torch.int64, device=output.device)
        if may_have_failed:
            codes = pad_rows(own.sampled_token_ids.clamp(max=0), num_rows, fill=0)
            errors = codes.where(output != PLACEHOLDER_TOKEN_ID, 0).amin(dim=1)
        return RejectionOutput(output, errors, logprobs)

    @staticmethod
    def judge_drawn(
        draft_token_ids: Tensor,
        num_draft_tokens: Sequence[int],
        draft_probs: Tensor,
        logits: Tensor,
        metadata: SamplingMetadata,
        target: Tensor | slice,
        bonus_token_ids: Tensor,
    ) -> Tensor:
        """The formula, with random numbers of the output token's own: ``[B, K + 1]``.

        Args:
            target: ``[N]``, the rows that judge a draft.
            bonus_token_ids: ``[B]``, what the ordinary sampler says behind the drafts.
        """
        assert metadata.seeds is not None
        p = processed_probs(logits, metadata)[target]
        seeds, index = metadata.seeds[target], metadata.num_output_tokens[target]
        residual = recovered_probs(draft_token_ids, draft_probs, p)
        recovered = sample_from_logits(residual.log(), stream_numbers(seeds, index, RECOVER))
        return judge_drafts(
            draft_token_ids,
            num_draft_tokens,
            draft_probs,
            p,
            bonus_token_ids,
            recovered,
            stream_numbers(seeds, index, ACCEPT),
        )

    def accept_blindly(
        self,
        draft_token_ids: Tensor,
        num_draft_tokens: Sequence[int],
        target_token_ids: Tensor,
        bonus_token_ids: Tensor,
    ) -> Tensor:
        """Accept by rate alone, and say the target's token where a draft is rejected."""
        rates = torch.tensor(self.acceptance_rates)
        place = torch.cat([torch.arange(count) for count in num_draft_tokens])
        accepted = torch.rand(len(place), generator=self.generator) < rates[place]
        accepted = accepted.to(draft_token_ids.device)
        tokens = torch.where(accepted, draft_token_ids, target_token_ids)
        return keep_until_rejected(
            pad_rows(accepted, num_draft_tokens, fill=False),
            pad_rows(tokens, num_draft_tokens, fill=PLACEHOLDER_TOKEN_ID),
            num_draft_tokens,
            bonus_token_ids,
        )


def has_failed_rows(sampled: Tensor) -> bool:
    """Whether a row has an error's code in the place of a token; perhaps, where to ask is to wait.

    Args:
        sampled: ``[N]`` int64, see :data:`~mini_vllm.sample.sampler.ERRORS`.
    """
    return not platform_of(sampled.device).is_host or bool(sampled.numpy().min() < 0)


def judging_rows(
    num_rows: Sequence[int], device: torch.device
) -> tuple[Tensor | slice, Tensor | slice]:
    """Which rows of logits judge a draft, ``[N]``, and which are behind the last one, ``[B]``.

    Those of a single request lie together: as slices they cost nothing to take.

    Args:
        num_rows: ``[B]``, each request's drafts + 1.
    """
    if len(num_rows) == 1:
        return slice(0, num_rows[0] - 1), slice(num_rows[0] - 1, num_rows[0])
    last = np.cumsum(num_rows) - 1
    judges = np.ones(last[-1] + 1, dtype=bool)
    judges[last] = False
    target = torch.from_numpy(np.flatnonzero(judges)).to(device)
    return target, torch.from_numpy(last).to(device)


def overwrite(says: Tensor, output: Tensor, num_rows: Sequence[int]) -> Tensor:
    """Tokens by row ``[N + B]``, where a row has brought one of ``output``, that one."""
    rows = pad_rows(torch.arange(len(says), device=says.device), num_rows, fill=0)
    used = output != PLACEHOLDER_TOKEN_ID
    return says.index_put((rows[used],), output[used])
