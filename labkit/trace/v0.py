"""Replay a trace on a scheduler of vLLM V0's kind, as a policy of ours or the original.

V0's block ids are its own, so a step line says how many blocks are free, not which ones. `STEP` is
the clock: a request arrives in the step before which it is added, and a step takes 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

from labkit.trace.format import Trace, TraceConfig
from labkit.trace.runner import Line, ReferenceSubject, Subject, replay

V0_FIELDS = (
    "step", "scheduled", "preempted", "finished", "aborted", "computed", "running", "waiting",
    "swapped", "free_blocks",
)  # fmt: skip
"""What both schedulers are compared by."""


class V0Like(Subject, Protocol):
    """A subject with a clock."""

    now: float


def replay_v0(trace: Trace, subject: V0Like) -> Iterator[Line]:
    """As `runner.replay`, with V0's fields and its clock. Requests are scheduled in no order."""

    def tick(number: int) -> None:
        subject.now = float(number)

    for line in replay(trace, subject, V0_FIELDS, tick):
        yield line | {"scheduled": dict(sorted(line["scheduled"].items()))}


class PolicySubject(ReferenceSubject):
    """Our policy `vllm-v0` or `vllm-v0-chunked`, by the trace's configuration."""

    now = 0.0
    scheduler: Any

    def __init__(self, config: TraceConfig) -> None:
        from mini_vllm.policies import POLICIES
        from mini_vllm.policies.v0_plan import PreemptionMode, V0Options

        mode = PreemptionMode[config.preemption_mode.upper()] if config.preemption_mode else None
        policy: Any = POLICIES["vllm-v0-chunked" if config.enable_chunked_prefill else "vllm-v0"]
        options = V0Options(
            preemption_mode=mode, delay_factor=config.delay_factor, watermark=config.watermark
        )
        super().__init__(config, partial(policy, options=options))
        self.scheduler.clock = lambda: self.now

    def step(self) -> Line:
        line = super().step()
        swapped = [request.request_id for group in self.scheduler.swapped for request in group]
        return line | {"swapped": swapped}
