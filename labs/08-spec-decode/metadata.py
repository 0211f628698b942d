"""Verification needs more logits than requests: m drafts of a request are judged by m + 1 rows.

    request   newest token and drafts   rows of logits
    a         t  d0 d1 d2               t judges d0, d0 judges d1, d1 judges d2, d2: bonus
    b         t                         t: bonus, which is what decoding always did

Row j of a request has the logits after j of its drafts, so its sampling parameters are those of a
request whose output already holds these drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.sample.metadata import Penalties, SamplingMetadata, SparseBias, StopTokenBan
from mini_vllm.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID


@dataclass(slots=True)
class SpecDecodeMetadata:
    """Which rows of logits judge which drafts: B requests with N drafts in all.

    Source: vllm/v1/spec_decode/metadata.py#L10-L66 (SpecDecodeMetadata) @ v0.22.1
    """

    num_draft_tokens: list[int]
    """``[B]``."""
    logits_indices: NDArray[np.int64]
    """``[N + B]``, tokens of the flat batch whose hidden states become logits."""
    target_logits_indices: NDArray[np.int64]
    """``[N]``, the rows of those logits that judge a draft, in the order of the drafts."""
    bonus_logits_indices: NDArray[np.int64]
    """``[B]``, the last row of each request."""


def calc_spec_decode_metadata(
    num_draft_tokens: NDArray[np.int32] | Sequence[int],
    cu_num_scheduled_tokens: NDArray[np.int32] | Sequence[int],
) -> SpecDecodeMetadata:
    """Find the rows: of each request's tokens in this step, the last ``drafts + 1``.

    ::

        num_draft_tokens         [3, 0, 2]
        cu_num_scheduled_tokens  [4, 104, 107]
        logits_indices           [0, 1, 2, 3,   103,   104, 105, 106]
        row of logits             0  1  2  3     4      5    6    7
        target_logits_indices    [0, 1, 2,              5,   6]
        bonus_logits_indices     [         3,    4,               7]

    Args:
        num_draft_tokens: ``[B]``, at least 0 each.
        cu_num_scheduled_tokens: ``[B]``, where each request's tokens end in the flat batch.

    Returns:
        The rows of each kind, found with whole arrays or in a loop over requests.

    Source: vllm/v1/worker/gpu_model_runner.py#L2713-L2791
    (GPUModelRunner._calc_spec_decode_metadata) @ v0.22.1
    """
    # TODO 08.2
    raise NotImplementedError(
        "TODO 08.2: write calc_spec_decode_metadata in labs/08-spec-decode/metadata.py"
        " (phase 08, 02-mini-build.md#task-2)"
    )


class RowMap:
    """From B requests to N + B rows: request b owns its drafts + 1 consecutive rows.

    Attributes:
        request_of_row: ``[N + B]``.
        num_drafts_before: ``[N + B]``, 0 for the first row of each request, then 1, 2, ...
    """

    def __init__(self, num_draft_tokens: Sequence[int], device: torch.device) -> None:
        num_rows = np.asarray(num_draft_tokens, dtype=np.int64) + 1
        first_row = np.cumsum(num_rows) - num_rows
        request_of_row = np.repeat(np.arange(len(num_rows)), num_rows)
        num_drafts_before = np.arange(len(request_of_row)) - first_row[request_of_row]
        self.num_rows, self.first_row, self.request_of_row, self.num_drafts_before = (
            torch.from_numpy(array).to(device)
            for array in (num_rows, first_row, request_of_row, num_drafts_before)
        )

    def spread(self, requests: Tensor) -> tuple[Tensor, Tensor]:
        """Entries that concern requests become entries that concern each of their rows.

        ::

            requests [1, 1, 0], request 0 has rows 0, 1 and request 1 has row 2
            entries  [0, 1, 2, 2]
            rows     [2, 2, 0, 1]

        Args:
            requests: ``[E]``, the request of each entry.

        Returns:
            The entry and the row of each of the copies.
        """
        counts = self.num_rows[requests]
        entries = torch.arange(len(requests), device=requests.device).repeat_interleave(counts)
        first_copy = counts.cumsum(0) - counts
        copies = torch.arange(len(entries), device=requests.device) - first_copy[entries]
        return entries, self.first_row[requests[entries]] + copies

    def drafts_before(self, draft_token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """For every row, each draft of its request that lies before it: (rows, token ids).

        Args:
            draft_token_ids: ``[N]``, the drafts of all requests, one request after another.
        """
        rows = torch.arange(len(self.request_of_row), device=draft_token_ids.device)
        # A request's drafts begin where its rows begin, less the bonus rows before them.
        first_draft = self.first_row - torch.arange(len(self.first_row), device=rows.device)
        pairs = rows.repeat_interleave(self.num_drafts_before)
        first_pair = self.num_drafts_before.cumsum(0) - self.num_drafts_before
        place = torch.arange(len(pairs), device=rows.device) - first_pair[pairs]
        return pairs, draft_token_ids[first_draft[self.request_of_row[pairs]] + place]


def repeat_parameters(metadata: SamplingMetadata, to_rows: RowMap) -> SamplingMetadata:
    """Give every row the sampling parameters of its request, and its request's output so far."""

    def per_row(column: Tensor | None) -> Tensor | None:
        return None if column is None else column[to_rows.request_of_row]

    bias, ban, penalties = metadata.logit_bias, metadata.stop_token_ban, metadata.penalties
    if bias is not None:
        entries, rows = to_rows.spread(bias.rows)
        bias = SparseBias(rows, bias.token_ids[entries], bias.values[entries])
    if ban is not None:
        entries, rows = to_rows.spread(ban.rows)
        ban = StopTokenBan(rows, ban.token_ids[entries], ban.until[entries])
    if penalties is not None:
        entries, rows = to_rows.spread(penalties.rows)
        of_row = to_rows.request_of_row
        columns = (column[of_row] for column in penalties[2:])
        penalties = Penalties(rows, penalties.token_ids[entries], *columns)
    return replace(
        metadata,
        temperature=per_row(metadata.temperature),
        top_k=per_row(metadata.top_k),
        top_p=per_row(metadata.top_p),
        min_p=per_row(metadata.min_p),
        seeds=per_row(metadata.seeds),
        allowed=per_row(metadata.allowed),
        num_output_tokens=metadata.num_output_tokens[to_rows.request_of_row],
        logit_bias=bias,
        stop_token_ban=ban,
        penalties=penalties,
        filters={name: column[to_rows.request_of_row] for name, column in metadata.filters.items()},
    )


def expand_to_rows(
    metadata: SamplingMetadata, num_draft_tokens: Sequence[int], draft_token_ids: Tensor
) -> SamplingMetadata:
    """Sampling metadata of B requests as that of their N + B rows of logits.

    Every row has the parameters of its request (:func:`repeat_parameters`). Row j of a request
    stands behind j of its drafts: its output is j tokens longer, and penalties count these j
    drafts as output, and no others.

    Args:
        metadata: of B requests; not changed.
        num_draft_tokens: ``[B]``.
        draft_token_ids: ``[N]``, the drafts of all requests, one request after another.

    Source: vllm/v1/sample/rejection_sampler.py#L283-L337
    (RejectionSampler.apply_logits_processors) @ v0.22.1. Difference: the bonus row is one of the
    rows; upstream masks it by ``min_tokens`` as if no draft had been accepted.
    """
    # TODO 08.6
    raise NotImplementedError(
        "TODO 08.6: write expand_to_rows in labs/08-spec-decode/metadata.py"
        " (phase 08, 02-mini-build.md#task-6)"
    )


def advance_ragged(metadata: SamplingMetadata, output_token_ids: Tensor) -> None:
    """Bring a batch forward by what each request got, in place.

    Args:
        metadata: of B requests.
        output_token_ids: ``[B, K + 1]``; ``PLACEHOLDER_TOKEN_ID`` behind each one's last.
    """
    valid = output_token_ids != PLACEHOLDER_TOKEN_ID
    metadata.num_output_tokens += valid.sum(dim=1)
    if metadata.penalties is None:
        return
    rows = valid.nonzero()[:, 0]
    token_ids = output_token_ids[valid]
    counts = metadata.penalties.output_counts
    counts.index_put_((rows, token_ids), torch.ones(1, device=counts.device), accumulate=True)
    metadata.penalties = metadata.penalties._replace(
        rows=torch.cat((metadata.penalties.rows, rows)),
        token_ids=torch.cat((metadata.penalties.token_ids, token_ids)),
    )
