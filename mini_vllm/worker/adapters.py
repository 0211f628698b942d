"""The runner's slot for adapters: which requests of a step use which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.lora.slots import LoRAModelManager
from mini_vllm.worker.step_inputs import StepInputs

if TYPE_CHECKING:
    from mini_vllm.worker.runner_frame import RunnerFrame


class RunnerAdapters:
    """Hands a step's adapters to the manager that owns the slots.

    Args:
        manager: of this rank.
        runner: knows the requests; ``lora_name`` of each is the key of its adapter.
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
