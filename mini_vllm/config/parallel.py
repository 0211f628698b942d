"""How a model is distributed over processes and devices."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from mini_vllm.config.checks import require_at_least, require_flag, require_one_of

BACKENDS = ("uni", "mp", "ray")
ROUTINGS = ("load", "prefix")
WORKER_BYTES = 100 << 20
"""Least main memory of a worker without a model."""


@dataclass(frozen=True)
class EPLBConfig:
    """How experts are copied and moved between ranks, to balance their load.

    Source: vllm/config/parallel.py#L54-L104 (EPLBConfig) @ v0.22.1
    """

    window_size: int = 1000
    """Number of last steps whose loads are used."""
    step_interval: int = 3000
    """Steps between two rearrangements."""
    num_redundant_experts: int = 0
    """Number of additional copies of experts in each layer."""
    log_balancedness: bool = False
    """Log how balanced the load of the ranks is."""
    log_balancedness_interval: int = 1
    """Steps between two such log lines."""
    policy: str = "default"
    """The policy: "default", which is DeepSeek's algorithm."""

    def __post_init__(self) -> None:
        for name in ("window_size", "step_interval", "log_balancedness_interval"):
            require_at_least(name, getattr(self, name), 1, "leave it out")
        require_at_least("num_redundant_experts", self.num_redundant_experts, 0, "use 0 for none")
        require_flag("log_balancedness", self.log_balancedness)
        require_one_of("policy", self.policy, ("default",))


@dataclass(frozen=True)
class ParallelConfig:
    """How many workers share a model, and what starts them.

    ::

        data_parallel_size x  ( pipeline_parallel_size x  tensor_parallel_size )
        whole engines            stages of layers          shards of every layer

    Source: vllm/config/parallel.py#L108-L366 (ParallelConfig) @ v0.22.1
    """

    tensor_parallel_size: int = 1
    """Shards of every layer: each has some of the heads."""
    pipeline_parallel_size: int = 1
    """Stages: each has some of the layers."""
    data_parallel_size: int = 1
    """Replicas of the engine, each with the whole model."""
    data_parallel_routing: str = "load"
    """Which replica gets a request: "load": the one with the least load; "prefix": the one with the
    most of the prompt in its prefix cache, unless its load is too high."""
    distributed_executor_backend: str | None = None
    """What runs the workers: "uni" (this process), "mp" (processes), "ray" (several machines).
    None: "uni" for one worker, "mp" for several."""
    distributed_timeout_seconds: int | None = None
    """Timeout of a worker that waits for others in a step. None: 300."""
    enable_expert_parallel: bool = False
    """Distribute whole experts over the ranks, and send tokens to the ranks of their experts.
    Otherwise each rank has a part of every expert."""
    enable_eplb: bool = False
    """Move experts between ranks to balance their load; needs `enable_expert_parallel`."""
    eplb_config: EPLBConfig = field(default_factory=EPLBConfig)
    """Settings of `enable_eplb`."""
    disable_custom_all_reduce: bool = False
    """Use torch for all-reduce, even if the workers share memory."""

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
        self._check_experts()
        self._check_number()

    def _check_experts(self) -> None:
        """Raises ValueError for settings of experts that contradict each other."""
        require_flag("enable_expert_parallel", self.enable_expert_parallel)
        require_flag("enable_eplb", self.enable_eplb)
        copies = self.eplb_config.num_redundant_experts
        if self.enable_eplb and not self.enable_expert_parallel:
            raise ValueError(
                "enable_eplb is True, and enable_expert_parallel is False; set both, or none"
            )
        if self.enable_eplb and self.tensor_parallel_size == 1:
            raise ValueError(
                "enable_eplb is True, and tensor_parallel_size is 1: one rank has all experts; "
                "raise it, or leave enable_eplb out"
            )
        if copies and not self.enable_eplb:
            raise ValueError(
                f"num_redundant_experts is {copies}, and enable_eplb is False; set "
                "enable_eplb=True, or leave num_redundant_experts out"
            )

    def _check_number(self) -> None:
        """Raises ValueError for more local workers than this machine has memory for."""
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
        """The executor: the given one, or the default for the number of workers."""
        return self.distributed_executor_backend or ("uni" if self.num_workers == 1 else "mp")
