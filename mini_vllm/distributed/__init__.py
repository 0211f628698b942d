"""More than one device: ranks, groups, what is exchanged, which part of the model is where."""

from __future__ import annotations


def cleanup_dist_env_and_memory() -> None:
    """Free what a deleted engine has left: a script that makes a second engine calls this in
    between, after ``del llm``.

    Source: vllm/distributed/parallel_state.py#L1924-L1957 (cleanup_dist_env_and_memory) @ v0.22.1
    """
    import gc

    import torch

    from mini_vllm.platforms import current_platform

    gc.collect()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    current_platform.empty_cache()
