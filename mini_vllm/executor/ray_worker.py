"""What a Ray actor runs: the same worker as everywhere, and calls by name or as bytes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.core.scheduler_output import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from mini_vllm.distributed.parallel_state import Rendezvous, open_store
from mini_vllm.executor.base import run_method
from mini_vllm.executor.uniproc import LoneWorker
from mini_vllm.executor.worker import Worker


class RayWorker:
    """Ray calls the methods of an actor one after another, in the order in which they were sent."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def place(self) -> tuple[str, int]:
        """The machine that this actor is on, and its process there."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def open_store(self, several_machines: bool) -> Rendezvous:
        """Open the store in which the ranks meet, on this machine; called on rank 0."""
        import ray

        host = ray.util.get_node_ip_address() if several_machines else "127.0.0.1"
        self.store = open_store(host)
        return Rendezvous(host, self.store.port)

    def join(self, rank: int, rendezvous: Rendezvous | None) -> None:
        """Become a rank. Ray shows an actor only the GPU that it has reserved."""
        self.worker = Worker(self.config, rank, rendezvous)
        alone = self.config.parallel.world_size == 1
        self.steps = LoneWorker(self.worker) if alone else self.worker

    def call(
        self, method: str | bytes, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> Any:
        function = method if isinstance(method, str) else pickle.loads(method)
        return run_method(self.worker, function, args, kwargs)

    def execute_model(self, plan: SchedulerOutput) -> None:
        self.steps.execute_model(plan)

    def sample_tokens(
        self, masks: GrammarOutput | None, has_answer: bool
    ) -> ModelRunnerOutput | None:
        result = self.steps.sample_tokens(masks)
        return result if has_answer else None
