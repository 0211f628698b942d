"""vLLM V0's options and its plan."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from mini_vllm.core.step_plan import StepPlan
from mini_vllm.policies.budget import SchedulingBudget
from mini_vllm.request import Request


class PreemptionMode(enum.Enum):
    """What becomes of a preempted request's KV."""

    RECOMPUTE = enum.auto()
    """It is dropped; the request waits and is computed again."""
    SWAP = enum.auto()
    """It moves to the host; the request goes on when there is room."""


@dataclass(frozen=True)
class V0Options:
    """V0's own settings."""

    preemption_mode: PreemptionMode | None = None
    """None: RECOMPUTE a lone request, SWAP a group of several."""
    delay_factor: float = 0.0
    """Let prompts gather: start none until the oldest has waited so many times the duration of
    the last step that computed prompts."""
    num_scheduler_steps: int = 1
    """Steps that a worker would make per plan (multi-step): the slots for all of them are
    reserved, and prompts are not cut. Our worker makes one."""
    watermark: float = 0.01
    """Share of the pool that admission leaves free."""
    artificial_preemptions: int = 0
    """For tests: pretend, with probability 1/2, that there is no free block; so often at most."""


@dataclass(slots=True)
class V0Plan(StepPlan):
    """The plan of a step, with V0's budget and the blocks to move."""

    budget: SchedulingBudget = field(kw_only=True)
    blocks_to_swap_out: list[tuple[int, int]] = field(default_factory=list)
    blocks_to_swap_in: list[tuple[int, int]] = field(default_factory=list)
    blocks_to_copy: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[Request] = field(default_factory=list)
    """Preempted requests that have to be computed again."""
    returned: list[Request] = field(default_factory=list)
    """Requests that came back from the host."""
