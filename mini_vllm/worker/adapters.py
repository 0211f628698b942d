"""Adapters in a worker: which requests of a step use which, and what the engine asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from mini_vllm.config import LoRAConfig
from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.lora.slots import LoRAModelManager, bytes_of_slots
from mini_vllm.worker.input_batch import CachedRequestState
from mini_vllm.worker.kv_cache import reclaimable_memory
from mini_vllm.worker.step_inputs import StepInputs


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


def map_adapters(
    manager: LoRAModelManager,
    requests: Mapping[str, CachedRequestState],
    inputs: StepInputs,
    result: ModelRunnerOutput,
) -> None:
    """Give each token of a step the slot of its request's adapter, whose key is ``lora_name``;
    requests that cannot be served go to ``failed``."""
    names = [requests[req_id].lora_name for req_id in inputs.req_ids]
    failed = manager.map(names, inputs.metadata.query_lens_cpu)
    if failed:
        for req_id, name in zip(inputs.req_ids, names, strict=True):
            if name in failed:
                result.failed[req_id] = failed[name]


class WorkerAdapters:
    """What an engine asks of a worker about adapters."""

    lora: LoRAModelManager | None = None

    def add_lora(self, key: str, path: str, in_use: Sequence[str]) -> str | None:
        """Load an adapter; None, or why it cannot be served.

        An answer instead of an exception, for all ranks must stay in step.

        Args:
            in_use: keys of the adapters of unfinished requests; those in slots stay.
        """
        lora = self._adapters()
        try:
            lora.add_adapter(key, path, [other for other in in_use if other in lora.last_used])
        except ValueError as error:
            return str(error)
        lora.forget(in_use)
        return None

    def remove_lora(self, key: str) -> bool:
        return self._adapters().remove_adapter(key)

    def pin_lora(self, key: str) -> str | None:
        """Give an adapter a slot that it keeps; None, or why it cannot have one."""
        try:
            self._adapters().pin_adapter(key)
        except ValueError as error:
            return str(error)
        return None

    def has_lora(self, key: str) -> bool:
        return key in self._adapters().cpu_cache

    def list_loras(self) -> list[str]:
        """Keys of the loaded adapters."""
        return list(self._adapters().cpu_cache)

    def _adapters(self) -> LoRAModelManager:
        assert self.lora is not None, "the engine runs without adapters"
        return self.lora
