"""Which executor a configuration means."""

from __future__ import annotations

from mini_vllm.config import EngineConfig
from mini_vllm.executor.base import Executor
from mini_vllm.executor.shards import check_shards


def make_executor(config: EngineConfig, replica: int = 0) -> Executor:
    """The executor that a configuration means; its workers are there, and have done nothing yet.

    Args:
        replica: which of the engines that data parallelism runs side by side this is for.

    Raises:
        ValueError: if this machine, or the Ray cluster, has not enough devices, or packed weights
            cannot be cut into so many shards.

    Source: vllm/v1/executor/abstract.py#L47-L92 (Executor.get_class) @ v0.22.1
    """
    if config.parallel.backend == "uni":
        from mini_vllm.executor.uniproc import UniProcExecutor

        return UniProcExecutor(config)
    check_shards(config)
    if config.parallel.backend == "mp":
        from mini_vllm.executor.multiproc import MultiprocExecutor

        return MultiprocExecutor(config, replica)
    from mini_vllm.executor.ray import RayExecutor

    return RayExecutor(config)
