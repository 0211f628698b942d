"""How a model is spread over processes and devices."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mini_vllm.config.checks import require_at_least, require_flag, require_one_of

BACKENDS = ("uni", "mp", "ray")
ROUTINGS = ("load", "prefix")
WORKER_BYTES = 100 << 20
"""Main memory that a worker takes at the least, before it has a model."""


@dataclass(frozen=True)
class ParallelConfig:
    """How many workers share a model, and who starts them.

    ::

        data_parallel_size x  ( pipeline_parallel_size x  tensor_parallel_size )
        whole engines            stages of layers          shards of every layer

    Source: vllm/config/parallel.py#L108-L366 (ParallelConfig) @ v0.22.1
    """

    tensor_parallel_size: int = 1
    """Shards of every layer: each holds some of the heads."""
    pipeline_parallel_size: int = 1
    """Stages: each holds some of the layers."""
    data_parallel_size: int = 1
    """Engines side by side, each with the whole model."""
    data_parallel_routing: str = "load"
    """Which of them gets a request: "load": the one with the least to do; "prefix": the one that
    has most of the prompt in its cache, unless it has too much to do."""
    distributed_executor_backend: str | None = None
    """Who runs the workers: "uni" (this process), "mp" (processes), "ray" (several machines).
    None: "uni" for one worker, "mp" for several."""
    distributed_timeout_seconds: int | None = None
    """How long workers wait for each other in a step before they give up. None: 300."""
    disable_custom_all_reduce: bool = False
    """Let torch add up what shards have, even where they share memory."""

    def __post_init__(self) -> None:
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        for name in sizes:
            require_at_least(name, getattr(self, name), 1, "use 1 for no parallelism")
        require_one_of("data_parallel_routing", self.data_parallel_routing, ROUTINGS)
        if self.distributed_executor_backend is not None:
            require_one_of(
                "distributed_executor_backend", self.distributed_executor_backend, BACKENDS
            )
        if self.distributed_timeout_seconds is not None:
            require_at_least(
                "distributed_timeout_seconds", self.distributed_timeout_seconds, 1, "leave it out"
            )
        require_flag("disable_custom_all_reduce", self.disable_custom_all_reduce)
        self._check_number()

    def _check_number(self) -> None:
        """Raises ValueError for more workers than this machine could start, if all are here."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        most = max(memory // WORKER_BYTES, 4)
        if self.backend == "mp" and self.num_workers > most:
            raise ValueError(
                f"tensor_parallel_size {self.tensor_parallel_size} x pipeline_parallel_size "
                f"{self.pipeline_parallel_size} x data_parallel_size {self.data_parallel_size} are "
                f"{self.num_workers} workers; this machine has memory for {most}, before they have "
                'a model; lower them, or use "ray" for several machines'
            )

    @property
    def world_size(self) -> int:
        """Workers of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_workers(self) -> int:
        """Workers of all engines."""
        return self.world_size * self.data_parallel_size

    @property
    def backend(self) -> str:
        """The executor that is meant."""
        return self.distributed_executor_backend or ("uni" if self.num_workers == 1 else "mp")
