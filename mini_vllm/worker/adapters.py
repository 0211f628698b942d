"""The runner's slot for adapters: which requests of a step use which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from mini_vllm.config import LoRAConfig
from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.lora.slots import LoRAModelManager, bytes_of_slots
from mini_vllm.worker.kv_cache import reclaimable_memory
from mini_vllm.worker.step_inputs import StepInputs

if TYPE_CHECKING:
    from mini_vllm.worker.runner_frame import RunnerFrame


def check_slots(model: nn.Module, lora_config: LoRAConfig, device: torch.device) -> None:
    """Refuse more slots than memory holds, before any is allocated.

    Raises:
        ValueError: that names both limits, what they would take and what there is.
    """
    wanted, free = bytes_of_slots(model, lora_config, device), reclaimable_memory(device)
    if wanted > free:
        raise ValueError(
            f"max_loras is {lora_config.max_loras} and max_lora_rank "
            f"{lora_config.max_lora_rank}: such slots take {wanted / 2**20:.0f} MiB, {device} has "
            f"{free / 2**20:.0f} MiB free; lower one of them"
        )


class RunnerAdapters:
    """Hands a step's adapters to the manager that owns the slots.

    Args:
        manager: of this rank.
        runner: has the requests; ``lora_name`` of each is the key of its adapter.
    """

    def __init__(self, manager: LoRAModelManager, runner: RunnerFrame) -> None:
        self.manager, self.runner = manager, runner

    def prepare_capture(self) -> None:
        self.manager.prepare_capture()

    def map(self, inputs: StepInputs, result: ModelRunnerOutput) -> None:
        """Write the token-to-slot mapping; requests that cannot be served go to ``failed``."""
        names = [self.runner.requests[req_id].lora_name for req_id in inputs.req_ids]
        failed = self.manager.map(names, inputs.metadata.query_lens_cpu)
        if failed:
            for req_id, name in zip(inputs.req_ids, names, strict=True):
                if name in failed:
                    result.failed[req_id] = failed[name]
