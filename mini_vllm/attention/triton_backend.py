"""The kernels of `triton_paged.py` as an `AttentionBackend`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.attention.selector import AttentionSelectorConfig
from mini_vllm.kernels import INTERPRETED, USES_ORDERED_DECODE, USES_TILED_PREFILL
from mini_vllm.kernels.attention import (
    PAGED_DECODE,
    PAGED_PREFILL,
    SPLIT_DECODE,
    STORE_KV,
    choose_num_splits,
    order_matters,
)
from mini_vllm.kernels.launch import KernelSpec
from mini_vllm.platforms import platform_of
from mini_vllm.platforms.interface import Platform


@functools.cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; 1 anywhere else."""
    return platform_of(device).num_compute_units(device)


class TritonAttention:
    """Decodes and prefills of a step, each with its own kernel. Never waits for the device."""

    @classmethod
    def validate_configuration(
        cls, platform: Platform, config: AttentionSelectorConfig
    ) -> list[str]:
        """Every reason why the kernels cannot do the work; none: they can."""
        reasons = []
        if not (platform.launches_kernels or INTERPRETED):
            reasons.append(
                "its kernels need a GPU; use one, or set TRITON_INTERPRET=1 to let Triton "
                "interpret them, slowly"
            )
        if config.dtype not in (None, *platform.supported_dtypes):
            reasons.append(f"it has no kernels for {config.dtype}")
        return reasons

    def store(self, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
        """See `AttentionBackend`."""
        keys, values = kv_cache.unbind()
        STORE_KV.run(
            key=key, value=value, key_cache=keys, value_cache=values, slot_mapping=slot_mapping
        )

    def forward(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        """See `AttentionBackend`. The first `num_decode_reqs` tokens are the decodes."""
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        keys, values = kv_cache.unbind()
        shared = dict(key_cache=keys, value_cache=values, scale=scale, window=sliding_window)
        num_decodes = metadata.num_decode_reqs
        if num_decodes:
            run_decodes(
                metadata,
                query=query[:num_decodes],
                output=output[:num_decodes],
                block_table=metadata.block_table[:num_decodes],
                seq_lens=metadata.seq_lens[:num_decodes],
                **shared,
            )
        if num_decodes < metadata.num_reqs:
            prefill_spec().run(
                query=query,
                output=output,
                block_table=metadata.block_table[num_decodes:],
                query_start_loc=metadata.query_start_loc[num_decodes:],
                seq_lens=metadata.seq_lens[num_decodes:],
                max_query_len=metadata.max_query_len,
                **shared,
            )
        return output


def prefill_spec() -> KernelSpec:
    """The kernel for prompts: in larger tiles if that is asked for."""
    if USES_TILED_PREFILL:
        from mini_vllm.kernels.tiled import TILED_PREFILL

        return TILED_PREFILL
    return PAGED_PREFILL


def run_decodes(metadata: AttentionMetadata, query: Tensor, key_cache: Tensor, **rest: Any) -> None:
    """One token a request; the context is split where requests alone leave the GPU idle."""
    problem: dict[str, Any] = dict(query=query, key_cache=key_cache, **rest)
    num_reqs, num_heads, head_dim = query.shape
    num_programs, processors = num_reqs * key_cache.shape[2], num_processors(query.device)
    num_splits = choose_num_splits(num_programs, metadata.max_seq_len, processors)
    if num_splits == 1:
        PAGED_DECODE.run(order=starting_order(metadata, num_programs), **problem)
        return
    shape = (num_reqs, num_heads, num_splits)
    partial = torch.empty(*shape, head_dim, dtype=torch.float32, device=query.device)
    lse = torch.empty(shape, dtype=torch.float32, device=query.device)
    SPLIT_DECODE.run(partial=partial, lse=lse, **problem)


def starting_order(metadata: AttentionMetadata, num_programs: int) -> Tensor | None:
    """The order in which decodes start that take `num_programs` programs; None: the batch's own.

    If that is asked for, the longest start first where there are more than the GPU holds at once.
    """
    processors = num_processors(metadata.seq_lens.device)
    if USES_ORDERED_DECODE and order_matters(num_programs, processors):
        return longest_first(metadata)
    return None


def longest_first(metadata: AttentionMetadata) -> Tensor:
    """The step's decodes by the length of their contexts, `[R]` int64; inert rows come last.

    Sorted on the device, once for all layers: so a recorded step sorts the lengths of its replay.
    """
    if metadata.order is None:
        lengths = metadata.seq_lens[: metadata.num_decode_reqs]
        metadata.order = lengths.argsort(descending=True)
    return metadata.order
