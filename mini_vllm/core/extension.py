"""Where later features plug into the scheduler without editing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mini_vllm.errors import RequestFailure
from mini_vllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput


class SchedulerExtension:
    """Hooks through which a feature takes part in scheduling. Override those that it needs; the
    others change nothing.

    The methods stand in the order in which one step calls them::

        a request comes     request_added
        before the plan     failures
        while planning      limit_tokens, preempted, is_ready, may_admit, scheduled
        the plan is made    batch_inputs
        after the model     step_done, tokens_accepted, limit_drafts
        a request ends      request_freed

    Adapters limit how many of them run side by side (``may_admit``). Grammars make a request wait
    until they are compiled (``request_added``, ``is_ready``, ``failures``) and follow what is
    sampled (``tokens_accepted``, ``limit_drafts``). Images bring a budget of their own: they are
    asked (``limit_tokens``) before blocks are allocated, and pay only when the request has them
    (``scheduled``), for the allocation may fail.

    Several extensions are asked in the order in which the scheduler has them.
    """

    def request_added(self, request: Request) -> None:
        """A new request, before it has a place in a queue; may give it a WAITING_FOR status."""

    def failures(self) -> Mapping[str, RequestFailure | str]:
        """Why, by request id, waiting requests can never be ready; asked before every step."""
        return {}

    def limit_tokens(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """How many of ``num_new_tokens`` may be scheduled after ``num_computed_tokens``.

        It is only a question: blocks may be lacking. Commit in :meth:`scheduled`.
        """
        return num_new_tokens

    def preempted(self, request: Request, was_in_plan: bool) -> None:
        """A running request loses its blocks. If it was in this step's plan, it has left it."""

    def is_ready(self, request: Request) -> bool:
        """Whether a request in a WAITING_FOR status of this extension may go on."""
        return False

    def may_admit(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether a waiting request may join ``running`` now; False skips it for this step."""
        return True

    def scheduled(self, request: Request, num_new_tokens: int) -> None:
        """A request has its blocks, and ``num_new_tokens`` of this step."""

    def batch_inputs(self, output: SchedulerOutput) -> dict[str, Any]:
        """Entries for ``output.extra``; called once a step, when the plan is complete."""
        return {}

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:
        """The model has run, and ``result`` is its answer. The tokens of the requests whose ids
        are returned are thrown away."""
        return set()

    def tokens_accepted(
        self, request_id: str, token_ids: list[int]
    ) -> RequestFailure | str | RequestStatus | None:
        """Tokens that the stop rules have let pass; they may have ended the request.

        A FINISHED status ends it with that, anything else with an error. A plain text means that
        the engine is at fault; a :class:`~mini_vllm.errors.RequestFailure` says which side is.
        """
        return None

    def limit_drafts(self, request: Request, token_ids: list[int]) -> list[int]:
        """How much of a guess may be scheduled: ``token_ids``, or its beginning."""
        return token_ids

    def request_freed(self, request: Request) -> None:
        """A request has finished and its blocks are free."""

    def reset(self) -> None:
        """Forget all requests: the scheduler starts anew, and unfinished requests are added again.

        They may have output by then; see :mod:`~mini_vllm.core.restart`.
        """


def overriding(extensions: Sequence[SchedulerExtension], hook: str) -> list[SchedulerExtension]:
    """The extensions that override a hook, in order.

    A step calls some hooks once for each request. For an extension that does not override the
    method, a call changes nothing but costs as much.
    """
    if not extensions:
        return []
    default = getattr(SchedulerExtension, hook)
    return [e for e in extensions if getattr(getattr(e, hook), "__func__", None) is not default]
