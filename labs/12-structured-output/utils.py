"""Apply masks to logits: which mask row belongs to which row of logits, and -inf where a bit is 0.

Source: vllm/v1/structured_output/utils.py#L44-L135 (apply_grammar_bitmask) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mini_vllm.core.scheduler_output import GrammarOutput
from mini_vllm.kernels import can_launch, native
from mini_vllm.structured_output.token_index import BITS, unpack_bits

NEG_INF = -float("inf")


def mask_rows(
    req_ids: Sequence[str], num_rows: Sequence[int], masks: Mapping[str, tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """Which row of the masks belongs to which row of the logits.

    The masks stand in the scheduler's order, the logits in the batch's, and only some requests
    have masks. A request with k drafts has k + 1 rows in both, so it moves all that follow::

        logits   b0 | a0 a1 a2 | c0        b first, a has two drafts, c is not constrained
        masks    a0 a1 a2 | b0

        ->  logits rows  [0, 1, 2, 3]      mask rows  [3, 0, 1, 2]

    Should a request have more rows of the one than of the other, the first ones are paired: rows
    of logits without a mask are not constrained.

    Args:
        req_ids: requests in the order of the logits.
        num_rows: rows of logits of each.
        masks: of each constrained request, its first mask row and how many it has.

    Returns:
        Rows of the logits, ascending, and beside each the row of the masks.
    """
    # TODO 12.13
    raise NotImplementedError(
        "TODO 12.13: write mask_rows in labs/12-structured-output/utils.py"
        " (phase 12, 02-mini-build.md#task-13)"
    )


def apply_grammar_bitmask(
    logits: Tensor, masks: GrammarOutput, req_ids: Sequence[str], num_rows: Sequence[int]
) -> None:
    """Set the logits of all tokens that the grammars of a step forbid to -inf, in place.

    Args:
        logits: [N, V].
        req_ids, num_rows: see `mask_rows`.
    """
    if not masks.rows:
        return
    logits_rows, rows = mask_rows(req_ids, num_rows, masks.rows)
    if not rows:
        return
    total = sum(count for _, count in masks.rows.values())
    if logits.dtype == torch.float32 and logits.stride(1) == 1 and native.can_run(logits):
        native.forbid(logits, masks.words, total, logits_rows, rows)
        return
    words = np.frombuffer(masks.words, dtype="<i4").reshape(total, -1)[rows]
    bitmask = torch.from_numpy(words)  # a copy: what came in is read-only
    apply_token_bitmask_inplace(logits, bitmask.to(logits.device, non_blocking=True), logits_rows)


def apply_token_bitmask_inplace(
    logits: Tensor, bitmask: Tensor, indices: Sequence[int] | Tensor | None = None
) -> None:
    """Write -inf to the tokens whose bit is 0.

    Args:
        logits: [B, V] of any float dtype, or [V]; changed in place. Tokens behind the last word
            are forbidden.
        bitmask: [N, W] int32, or [W]; token t is bit t % 32 of word t // 32.
        indices: row n of the bitmask is for row indices[n] of the logits; None: all rows in order.

    Raises:
        ValueError: for shapes that do not fit, or a bitmask that is not int32.
    """
    logits = logits.unsqueeze(0) if logits.dim() == 1 else logits
    bitmask = bitmask.unsqueeze(0) if bitmask.dim() == 1 else bitmask
    if bitmask.dtype != torch.int32:
        raise ValueError(f"the bitmask is {bitmask.dtype}; it must be torch.int32")
    rows = range(len(bitmask)) if indices is None else indices
    if len(rows) != len(bitmask) or (indices is None and len(logits) != len(bitmask)):
        raise ValueError(
            f"the bitmask has {len(bitmask)} rows, for {len(rows)} of {len(logits)} rows of "
            "logits; pass the row of the logits for each as indices"
        )
    if can_launch(logits) and logits.stride(1) == 1:
        from mini_vllm.kernels.masking import APPLY_TOKEN_BITMASK

        device_rows = torch.as_tensor(rows, dtype=torch.int32)
        device_rows = device_rows.to(logits.device, non_blocking=True)
        APPLY_TOKEN_BITMASK.run(logits=logits, bitmask=bitmask, indices=device_rows)
        return
    places = rows.tolist() if isinstance(rows, Tensor) else [*rows]
    if places:
        _forbid(logits, bitmask.cpu().numpy(), places)


def _forbid(logits: Tensor, words: np.ndarray, places: list[int]) -> None:
    """`apply_token_bitmask_inplace` without a kernel: row n of `words` is for row places[n]."""
    num_tokens = logits.shape[1]
    forbidden = unpack_bits(~words, num_tokens)
    forbidden[:, BITS * words.shape[1] :] = True
    mask = torch.from_numpy(forbidden).to(logits.device)
    first, last = places[0], places[-1]
    if places == [*range(first, last + 1)]:  # a view of the logits, which is written to
        logits[first : last + 1].masked_fill_(mask, NEG_INF)
    else:
        logits[places] = logits[places].masked_fill_(mask, NEG_INF)
