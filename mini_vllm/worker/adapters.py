"""The runner's slot for adapters: which requests of a step use which."""

from __future__ import annotations

from collections.abc import Mapping

from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.lora.slots import LoRAModelManager
from mini_vllm.worker.input_batch import CachedRequestState
from mini_vllm.worker.step_inputs import StepInputs


class RunnerAdapters:
    """Hands a step's adapters to the manager that owns the slots.

    Args:
        requests: all that the runner knows, by id; ``lora_name`` is the key of the adapter.
    """

    def __init__(
        self, manager: LoRAModelManager, requests: Mapping[str, CachedRequestState]
    ) -> None:
        self.manager, self.requests = manager, requests

    def prepare_capture(self) -> None:
        self.manager.prepare_capture()

    def map(self, inputs: StepInputs, result: ModelRunnerOutput) -> None:
        """Write the token-to-slot mapping; requests that cannot be served go to ``failed``."""
        names = [self.requests[req_id].lora_name for req_id in inputs.req_ids]
        failed = self.manager.map(names, inputs.metadata.query_lens_cpu)
        if failed:
            for req_id, name in zip(inputs.req_ids, names, strict=True):
                if name in failed:
                    result.failed[req_id] = failed[name]
