"""The kernels of `triton_paged.py` as an `AttentionBackend`."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.kernels.attention import (
    PAGED_DECODE,
    PAGED_PREFILL,
    SPLIT_DECODE,
    STORE_KV,
    choose_num_splits,
)


@functools.cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; 1 anywhere else."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


class TritonAttention:
    """Decodes and prefills of a step, each with its own kernel. Never waits for the device."""

    def store(self, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
        """See `AttentionBackend`."""
        key_cache, value_cache = kv_cache.unbind()
        STORE_KV.run(
            key=key,
            value=value,
            key_cache=key_cache,
            value_cache=value_cache,
            slot_mapping=slot_mapping,
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
        num_decodes = metadata.num_decode_reqs
        if num_decodes:
            self._decode(
                query[:num_decodes], kv_cache, metadata, scale, sliding_window, output[:num_decodes]
            )
        if num_decodes < metadata.num_reqs:
            key_cache, value_cache = kv_cache.unbind()
            PAGED_PREFILL.run(
                query=query,
                key_cache=key_cache,
                value_cache=value_cache,
                block_table=metadata.block_table[num_decodes:],
                query_start_loc=metadata.query_start_loc[num_decodes:],
                seq_lens=metadata.seq_lens[num_decodes:],
                output=output,
                scale=scale,
                max_query_len=metadata.max_query_len,
                window=sliding_window,
            )
        return output

    def _decode(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        window: int | None,
        output: Tensor,
    ) -> None:
        """One token a request; the context is split where requests alone leave the GPU idle."""
        num_reqs, num_heads, head_dim = query.shape
        key_cache, value_cache = kv_cache.unbind()
        problem = dict(
            query=query,
            key_cache=key_cache,
            value_cache=value_cache,
            block_table=metadata.block_table[:num_reqs],
            seq_lens=metadata.seq_lens[:num_reqs],
            output=output,
            scale=scale,
            window=window,
        )
        num_programs = num_reqs * kv_cache.shape[3]
        num_splits = choose_num_splits(
            num_programs, metadata.max_seq_len, num_processors(query.device)
        )
        if num_splits == 1:
            PAGED_DECODE.run(**problem)
            return
        shape = (num_reqs, num_heads, num_splits)
        partial = torch.empty(*shape, head_dim, dtype=torch.float32, device=query.device)
        lse = torch.empty(shape, dtype=torch.float32, device=query.device)
        SPLIT_DECODE.run(partial=partial, lse=lse, **problem)
