"""A step to draft from, out of plain data, and a toy of a draft model that notes what it reads.

The toy's next token is a function of the last one alone: `successor`. So every right answer is
known without a model, and what a drafter feeds, where, and into which slots, can be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.proposer import ProposerInput
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch

VOCAB = 50


def successor(token: int) -> int:
    """What the toy says after `token`."""
    return (3 * token + 1) % VOCAB


class ToyModel:
    """Its hidden state is the token itself; its logits put all weight on the successor."""

    def __init__(self) -> None:
        self.passes: list[list[tuple[int, int, int]]] = []
        """Of every pass: (token, position, slot) of each token, in the order of position."""
        self.logits_asked: list[int] = []
        """Rows of logits that each pass was asked for."""

    def __call__(
        self, input_ids: Tensor, positions: Tensor, kv_caches: list[Tensor], metadata: Any
    ) -> Tensor:
        rows = (input_ids.tolist(), positions.tolist(), metadata.slot_mapping.tolist())
        self.passes.append(list(zip(*rows, strict=True)))
        return input_ids.unsqueeze(1).float()

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self.logits_asked.append(len(hidden))
        logits = torch.zeros(len(hidden), VOCAB)
        for row, token in enumerate(hidden[:, 0].long().tolist()):
            logits[row, successor(token)] = 5.0
        return logits


class ToyCache:
    """Keys and values that are not read."""

    layers: list[Tensor] = []  # noqa: RUF012

    def scrub(self) -> None:
        """There is nothing."""


class ToyHeads:
    """Medusa heads whose guess number j is the hidden state plus j."""

    def __call__(self, hidden: Tensor, index: int) -> Tensor:
        return hidden + index


def make_step(
    requests: Sequence[dict[str, Any]],
    block_size: int = 4,
    max_model_len: int = 64,
    order: Sequence[int] | None = None,
) -> ProposerInput:
    """The end of a step, from one dict a request.

    Keys: `id`; `tokens` (all of them, new ones included); `computed` (before the step);
    `scheduled`, `drafts`, `sampled` (how many); `blocks` (the block table); `params`.

    Args:
        order: which of the requests ran, in the order of the flat batch; None: all, as they stand.
    """
    batch = InputBatch(len(requests), max_model_len, block_size)
    rows: list[int] = []
    for request in requests:
        params = SamplingParams(**{"temperature": 0.0} | request.get("params", {}))
        tokens, num_sampled = list(request["tokens"]), request.get("sampled", 0)
        prompt, output = tokens[: len(tokens) - num_sampled], tokens[len(tokens) - num_sampled :]
        state = CachedRequestState(request["id"], prompt, params, None, output)
        blocks = request.get("blocks")
        if blocks is None:  # as many as its tokens need, none shared
            needed = -(-(len(tokens) + 8) // block_size)
            blocks = [1 + len(rows) * 20 + index for index in range(needed)]
        row = batch.add_request(state, blocks, request["computed"])
        batch.token_ids[row, len(tokens) :] = 49  # what rejected drafts have left behind
        rows.append(row)
    ran = range(len(requests)) if order is None else order

    def column(name: str, default: int = 0) -> Any:
        return np.array([requests[index].get(name, default) for index in ran], dtype=np.int32)

    scheduled = column("scheduled")
    return ProposerInput(
        batch=batch,
        rows=np.array([rows[index] for index in ran], dtype=np.int64),
        num_computed=column("computed"),
        num_scheduled=scheduled,
        num_drafts=column("drafts"),
        num_sampled=column("sampled"),
        hidden=torch.arange(int(scheduled.sum())).unsqueeze(1).float(),
    )


def draft(
    requests: Sequence[dict[str, Any]],
    k: int,
    max_model_len: int = 64,
    block_size: int = 4,
    order: Sequence[int] | None = None,
) -> dict[str, Any]:
    """What a draft-model proposer does after a step, as plain data."""
    from mini_vllm.spec_decode.draft_model import DraftModelProposer

    step, model = make_step(requests, block_size, order=order), ToyModel()
    cpu = torch.device("cpu")
    proposer = DraftModelProposer(model, ToyCache(), k, max_model_len, cpu)  # type: ignore[arg-type]
    counts = proposer.first_pass_counts(step).tolist()
    limits = proposer.num_drafts(step).tolist()
    drafts = without_empty(proposer.propose(step))
    return {"counts": counts, "limits": limits, "drafts": drafts, "passes": model.passes}


def without_empty(drafts: dict[str, list[int]]) -> dict[str, list[int]]:
    """Who has no idea may be absent, or have an empty list."""
    if not isinstance(drafts, dict):
        return drafts
    return {
        request_id: ids for request_id, ids in drafts.items() if not isinstance(ids, list) or ids
    }


def look_up(
    requests: Sequence[dict[str, Any]], min_ngram: int, max_ngram: int, k: int, max_model_len: int
) -> dict[str, list[int]]:
    """What an n-gram proposer says after a step."""
    from mini_vllm.spec_decode.ngram_proposer import NgramProposer

    proposer = NgramProposer(min_ngram, max_ngram, k, max_model_len)
    return without_empty(proposer.propose(make_step(requests)))


def look_ahead(
    requests: Sequence[dict[str, Any]], k: int, order: Sequence[int] | None = None
) -> dict[str, list[int]]:
    """What a Medusa proposer says after a step whose hidden state t is the number t."""
    from mini_vllm.spec_decode.medusa import MedusaProposer

    heads: Any = ToyHeads()
    return MedusaProposer(heads, ToyModel(), k).propose(make_step(requests, order=order))
