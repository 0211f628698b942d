"""Limits the adapters of a step to ``max_loras``, the number of slots."""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.config import LoRAConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.request import Request


class LoRASchedulerExtension(SchedulerExtension):
    """Admits requests only while their adapters have slots.

    Attributes:
        max_loras: slots on the device.
        pinned: keys of adapters that keep their slot even if no request uses them.
        names: key of each unfinished request's adapter, by request id.

    Source: vllm/v1/core/sched/scheduler.py#L571-L584 (Scheduler.schedule) @ v0.22.1
    """

    def __init__(self, lora_config: LoRAConfig) -> None:
        self.max_loras = lora_config.max_loras
        self.pinned: set[str] = set()
        self.names: dict[str, str] = {}

    def may_admit(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether a slot can be had for the adapter of a waiting request, ``request.lora_name``.

        The adapters of the ``running`` requests hold a slot each, and so do the ``pinned`` ones.
        A request of the base model (``lora_name`` is None) needs no slot, and neither does one
        whose adapter has one already. ``running`` contains those admitted earlier in this step.

        False skips the request for this step; those behind it are asked all the same. The next call
        may bring the same list with other requests in it, an id that has another adapter now, or
        other pins.

        Source: vllm/v1/core/sched/scheduler.py#L571-L584 (Scheduler.schedule) @ v0.22.1
        """
        # TODO 11.5
        raise NotImplementedError(
            "TODO 11.5: write LoRASchedulerExtension.may_admit in labs/11-lora/scheduling.py"
            " (phase 11, 02-mini-build.md#task-5)"
        )

    def request_added(self, request: Request) -> None:
        if request.lora_name is not None:
            self.names[request.request_id] = request.lora_name

    def request_freed(self, request: Request) -> None:
        self.names.pop(request.request_id, None)

    def reset(self) -> None:
        self.names.clear()

    def failures(self) -> dict[str, str]:
        """Requests that would wait forever, because all slots are pinned to other adapters."""
        if len(self.pinned) < self.max_loras:
            return {}
        return {
            request_id: f"adapter {name!r} can have no slot: all {self.max_loras} are pinned to "
            f"{', '.join(sorted(self.pinned))}; remove one of them, or raise max_loras"
            for request_id, name in self.names.items()
            if name not in self.pinned
        }
