"""What every proposer is given after a step, and what it must give back.

    token ids    | computed before |   computed in this step    | newest |
    request       p0 p1 p2 ... p7     p8  d0  d1  (d2 rejected)     t
                 |<-num_computed-->|<-num_valid->|
                 |<- num_tokens: all but d2 ------------------------------->|

Before the step p8 was the newest. Now it is t: sampled, and computed in the next step, together
with new drafts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.worker.input_batch import CachedRequestState, InputBatch


def num_valid_tokens(
    num_scheduled: NDArray[np.int32], num_drafts: NDArray[np.int32], num_sampled: NDArray[np.int32]
) -> NDArray[np.int32]:
    """How many of the tokens that a step computed stay: all but the rejected drafts.

    A request that got s tokens has had s - 1 drafts accepted; the last of the s is the target's
    own and is not computed yet. One without a token (inside its prompt) has no drafts either. The
    three arrays stay as they are.

    Args:
        num_scheduled: ``[R]``, tokens computed in the step, drafts included.
        num_drafts: ``[R]``, how many of them were drafts.
        num_sampled: ``[R]``, tokens that the step gave, at most ``num_drafts + 1``.

    Returns:
        ``[R]``.

    Source: vllm/v1/core/sched/scheduler.py#L1368-L1392 (Scheduler.update_from_output) @ v0.22.1,
    which takes the other tokens, drafts + 1 - sampled, back from ``num_computed_tokens``.
    """
    # TODO 08.7
    raise NotImplementedError(
        "TODO 08.7: write num_valid_tokens in labs/08-spec-decode/proposer.py"
        " (phase 08, 02-mini-build.md#task-7)"
    )


@dataclass(slots=True)
class ProposerInput:
    """A step over R requests with T tokens, seen from its end: new tokens are in the batch."""

    batch: InputBatch
    rows: NDArray[np.int64]
    """``[R]``, the batch row of each scheduled request, in the order of the flat batch."""
    num_computed: NDArray[np.int32]
    """``[R]``, tokens of each that had keys and values before the step."""
    num_scheduled: NDArray[np.int32]
    """``[R]``, tokens computed in the step, drafts included; they sum to T."""
    num_drafts: NDArray[np.int32]
    """``[R]``, how many of those were drafts."""
    num_sampled: NDArray[np.int32]
    """``[R]``, tokens that the step gave: accepted drafts and one more; 0 inside a prompt."""
    hidden: Tensor
    """``[T, H]``, the target's hidden states, those of rejected drafts included."""

    @property
    def num_valid(self) -> NDArray[np.int32]:
        """``[R]``, tokens of the step that stay."""
        return num_valid_tokens(self.num_scheduled, self.num_drafts, self.num_sampled)

    @property
    def starts(self) -> NDArray[np.int64]:
        """``[R]``, where each request's tokens begin among the T."""
        return np.cumsum(self.num_scheduled, dtype=np.int64) - self.num_scheduled

    def state(self, row: int) -> CachedRequestState:
        """The request in a row of the batch."""
        state = self.batch.rows[row]
        assert state is not None
        return state

    def request_id(self, row: int) -> str:
        return self.state(row).req_id


class Proposer(ABC):
    """Guesses what comes after the newest token of each request that got one."""

    @abstractmethod
    def propose(self, step: ProposerInput) -> dict[str, list[int]]:
        """Drafts by request id, at most ``num_speculative_tokens`` each.

        Requests without a new token are absent, and so may be requests without a guess.
        """

    def draft_probs(self, request_id: str, num_drafts: int) -> Tensor | None:
        """``[num_drafts, V]``, what the first drafts of its last proposal were drawn from.

        None: they were not drawn but chosen.
        """
        return None

    def scrub(self) -> None:  # noqa: B027  (some keep nothing)
        """Replace NaN and infinities by 0 in what it keeps: a request has failed."""
