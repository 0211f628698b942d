"""What a step takes of a GPU's memory beside weights and KV cache: measured by running the largest.

The KV cache gets what is left, so it has to be known before. Nothing of the run remains: its tokens
have no slots in a cache, and its memory goes back.

Source: vllm/v1/worker/gpu_model_runner.py#L6104-L6176 (GPUModelRunner.profile_run) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mini_vllm.attention import AttentionMetadata
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.platforms import platform_of
from mini_vllm.sample.metadata import make_sampling_metadata
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.cache_layout import CacheLayout
from mini_vllm.worker.group_tables import show_no_request
from mini_vllm.worker.kv_cache import KVCache
from mini_vllm.worker.sample_step import sampler_of

WITH_TOP_P = SamplingParams(temperature=1.0, top_p=0.9, seed=0)
PLAIN = SamplingParams(temperature=1.0, seed=0)


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """The most that ``run`` holds of a GPU at once, beside what is held already."""
    return platform_of(device).peak_bytes(run, device)


def largest_step(limits: SchedulerConfig) -> list[int]:
    """Tokens of each request in the largest step that may come: as long prompts as there may be,
    so many that the budget is used up."""
    lengths: list[int] = []
    left = limits.max_num_batched_tokens
    while left > 0 and len(lengths) < limits.max_num_seqs:
        lengths.append(min(left, limits.max_model_len))
        left -= lengths[-1]
    return lengths


@torch.inference_mode()
def run_step(
    model: nn.Module,
    layout: CacheLayout,
    lengths: list[int],
    num_rows: int,
    device: torch.device,
    params: SamplingParams = WITH_TOP_P,
) -> None:
    """A forward pass over prompts of these lengths, and a random token for each of ``num_rows``."""
    block_size = layout.block_size
    cache = KVCache(layout.spec, 1, block_size, device, layout=layout)
    tables = [[0] * cdiv(length, block_size) for length in lengths]
    metadata = AttentionMetadata.from_lists(lengths, lengths, tables, block_size, device)
    metadata.slot_mapping.fill_(-1)
    show_no_request(layout, metadata)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    hidden = model(torch.zeros_like(positions), positions, cache.layers, metadata)
    logits = model.compute_logits(hidden[:1].expand(num_rows, -1).contiguous())
    rows = [(params, (), (), ())] * num_rows
    sampler_of(device)(logits, make_sampling_metadata(rows, logits.shape[1], device))
