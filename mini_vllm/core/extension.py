"""Where later features plug into the scheduler without editing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mini_vllm.request import Request

if TYPE_CHECKING:
    from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput


class SchedulerExtension:
    """A feature's say in scheduling; override what it needs, the rest changes nothing.

    Adapters limit how many of them run side by side (``may_admit``), grammars and remote KV
    make a request wait until they are there (``is_ready``), images bring a budget of their own
    (``limit_tokens``), and each has data for the worker (``batch_inputs``) and something to
    let go of in the end (``request_freed``).
    """

    def is_ready(self, request: Request) -> bool:
        """Whether a request in a WAITING_FOR status, which this extension knows, may go on."""
        return False

    def may_admit(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether a waiting request may join ``running`` now; False skips it for this step."""
        return True

    def limit_tokens(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """How many of ``num_new_tokens`` may be scheduled after ``num_computed_tokens``."""
        return num_new_tokens

    def batch_inputs(self, output: SchedulerOutput) -> dict[str, Any]:
        """Entries for ``output.extra``; called once a step, when the plan is complete."""
        return {}

    def failures(self) -> dict[str, str]:
        """Waiting requests that can never be ready, with the reason; asked before every step."""
        return {}

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:
        """The forward pass is over. Returns the requests whose tokens are to be thrown away."""
        return set()

    def tokens_accepted(self, request_id: str, token_ids: list[int]) -> str | None:
        """New tokens of a request, after the stop rules. A reason ends it with an error."""
        return None

    def request_freed(self, request: Request) -> None:
        """A request has finished and its blocks are free."""
