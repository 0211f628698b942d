"""Placeholders for drafts, so that a request which begins to decode has as many rows as the others.

::

    ana   | token | draft | draft | draft |    decodes, 3 drafts to verify
    ben   | token |  -1   |  -1   |  -1   |    all but one of its tokens are in the prefix cache

Nothing can be guessed of a request that has not run. Without placeholders ben has one row, the
step's rows are uneven, and no CUDA graph for "4 rows a request" fits it. The scheduler takes the
placeholders for drafts that were refused. The worker gets none of them
(:meth:`~mini_vllm.core.scheduler_output.SchedulerOutput.without_padding`).

vLLM 0.32.0 does so in ``Scheduler.schedule``; see rule ``first_decode_padded`` of
:mod:`mini_vllm.config.profiles`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import PADDING_DRAFT, SchedulerOutput
from mini_vllm.request import Request, RequestStatus


class PaddedDrafts(SchedulerExtension):
    """Lengthens the first step of a request that has one token to compute."""

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None
        self._begin_step()

    def _begin_step(self) -> None:
        self.num_tokens = 0
        """Tokens in the plan so far."""
        self.runs_decode = self.runs_prefill = False
        """Whether the plan has running requests, and one that still computes its prompt."""
        self.asked: Request | None = None
        """The waiting request that was asked about last."""
        self.padded: list[str] = []

    def limit_tokens(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """One token more for each placeholder; 0, which is "not in this step", if the budget has no
        room for all of them."""
        if request.status == RequestStatus.RUNNING:
            return num_new_tokens
        self.asked = request
        if num_new_tokens != 1 or request.num_tokens - num_computed_tokens != 1:
            return num_new_tokens
        if self.runs_prefill or not (self.runs_decode or num_computed_tokens):
            return num_new_tokens
        assert self.scheduler is not None, "PaddedDrafts has no scheduler yet"
        num_padded = 1 + self.scheduler.num_speculative_tokens
        if num_computed_tokens + num_padded + 1 > self.scheduler.max_model_len:
            return num_new_tokens
        room = self.scheduler.scheduler_config.max_num_batched_tokens - self.num_tokens
        return num_padded if num_padded <= room else 0

    def scheduled(self, request: Request, num_new_tokens: int) -> None:
        self.num_tokens += num_new_tokens
        if request is not self.asked:
            assert self.scheduler is not None
            at_admission = self.scheduler.tokens_at_admission.get(request.request_id)
            self.runs_decode = True
            self.runs_prefill |= request.num_tokens == at_admission
        elif request.num_computed_tokens + num_new_tokens > request.num_tokens:
            self.padded.append(request.request_id)

    def batch_inputs(self, output: SchedulerOutput) -> dict[str, Any]:
        for request_id in self.padded:
            num_drafts = output.num_scheduled_tokens[request_id] - 1
            output.scheduled_spec_decode_tokens[request_id] = [PADDING_DRAFT] * num_drafts
        self._begin_step()
        return {}

    def reset(self) -> None:
        self._begin_step()
