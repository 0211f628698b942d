"""What a model needs and what this machine has, shown before any weights are loaded.

The model is built on the "meta" device, where tensors have a shape and no memory. So its size is
that of the real model, quantised or not. Of a model on a hub, only the small files are downloaded.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import mini_vllm
from mini_vllm.attention import get_backend
from mini_vllm.config import EngineConfig, combinations
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.engine.startup import with_blocks
from mini_vllm.entrypoints.cli_options import engine_options_of
from mini_vllm.hub import in_units
from mini_vllm.model.build import default_dtype, loaded_dtype, resolve_dtype
from mini_vllm.model.config import load_config
from mini_vllm.model.layers import Build, Linear, UnquantizedLinearMethod, product_dtype
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.platforms import pick_device, platform_of
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.fp8 import Fp8LinearMethod
from mini_vllm.quantization.int8 import Int8OnlineLinearMethod
from mini_vllm.worker.cache_layout import CacheLayout
from mini_vllm.worker.kv_cache import (
    available_memory,
    bytes_per_block,
    choose_num_blocks,
    reclaimable_memory,
    shared_memory,
)

BANDWIDTH_BYTES = 256 * 2**20
BANDWIDTH_SECONDS = 0.3


def run_info(args: argparse.Namespace) -> int:
    """Print what :func:`describe` finds, before anything is loaded."""
    options = engine_options_of(args)
    options.pop("scheduler_cls", None)
    figures = describe(args.model, **options)
    print(json.dumps(figures) if args.json else as_text(figures))
    return 0


def describe(model: str | Path, **options: Any) -> dict[str, Any]:
    """Figures by name: sizes in bytes, tokens that fit the KV cache, and the decode speed.

    Args:
        model, options: as ``LLM`` takes them.

    Raises:
        ValueError, OSError: for what ``LLM`` refuses, too, as far as the config shows it.
    """
    config = make_engine_config(model, **(options | {"load_format": "dummy"}))
    device = pick_device(config.model.device)
    skeleton = build_empty(config, device)
    spec, args = skeleton.kv_cache_spec(), skeleton.config
    config = combinations.settle_hybrid_kv_cache(config, args, skeleton.supports, Scheduler)
    layout = CacheLayout.of(spec, config)
    weights, read = weight_bytes(skeleton, device)
    block_bytes, block_size = layout.block_bytes, layout.block_size
    kinds = [group.kind for group in layout.groups]
    free = reclaimable_memory(device)
    num_blocks, problem = cache_blocks(config, skeleton, device, weights)
    if problem is None:
        config = with_blocks(config, num_blocks, layout.groups)
    bandwidth = read_bandwidth(device)
    return {
        "mini_vllm": mini_vllm.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "model": config.model.model,
        "architecture": args.architectures[0],
        "parameters": num_parameters(skeleton),
        "dtype": str(skeleton.cache_dtype).removeprefix("torch."),
        "layers": args.num_hidden_layers,
        "max_model_len": config.scheduler.max_model_len,
        "longest_model_len": args.max_position_embeddings,
        "weight_bytes": weights,
        "free_bytes": free,
        "kv_bytes_per_token": bytes_per_block(spec, 1),
        "state_bytes": sum(state.num_bytes for layer in spec.layers for state in layer.states),
        "layers_remember": dict(Counter(kinds[group] for group in layout.layer_groups())),
        "block_size": block_size,
        "bytes_per_block": block_bytes,
        "num_gpu_blocks": num_blocks,
        "kv_cache_tokens": max(num_blocks - 1, 0) // len(layout.groups) * block_size,
        "kv_cache_mib": round(block_bytes * num_blocks / 2**20, 1),
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
        "decode_tokens_per_s": round(bandwidth / read, 1),
        "fits": problem is None,
        "problem": problem,
    }


def build_empty(config: EngineConfig, device: torch.device) -> LlamaForCausalLM:
    """The model without values: every parameter has its shape and dtype, and takes no memory."""
    wanted, kv_cache_dtype = config.model, config.cache.kv_cache_dtype
    args = load_config(wanted.model, wanted.hf_overrides)
    quant = get_quantization_config(wanted.model, wanted.quantization, wanted.hf_overrides)
    if kv_cache_dtype == "auto" and quant is not None and quant.kv_cache_dtype:
        kv_cache_dtype = quant.kv_cache_dtype
    dtype = resolve_dtype(wanted.dtype, args)
    build = Build(get_backend(device), quant, kv_cache_dtype=kv_cache_dtype, values=dtype)
    with torch.device("meta"), default_dtype(loaded_dtype(dtype, args, quant, device)):
        model = resolve_model_class(args.architectures)(args, build)
    model.cache_dtype = dtype
    return model


def weight_bytes(model: LlamaForCausalLM, device: torch.device) -> tuple[int, int]:
    """Bytes of the weights in memory, and bytes that a decode step of one request reads.

    A CPU without arithmetic in the model's dtype keeps the weights of small products in float32.
    There, a tied head is a second copy, packed for matrix products. A token reads only the experts
    that it is routed to.
    """
    args, total, read = model.config, 0, 0
    is_host = platform_of(device).is_host
    for name, module in model.named_modules():
        own = sum(weight.numel() * weight.itemsize for weight in module.parameters(recurse=False))
        if isinstance(module, Linear) and getattr(module, "weight", None) is not None:
            weight = module.weight
            each = bytes_a_number(module, model.dtype, is_host)
            own += weight.numel() * (each - weight.itemsize)
        if name == "lm_head" and args.tie_word_embeddings and not is_host:
            read += own  # the embedding itself, counted already
            continue
        total += own
        if args.moe is not None and ".experts." in name:
            read += own * args.moe.num_experts_per_tok // args.moe.num_experts
        elif name != "model.embed_tokens":  # of which a token reads one row
            read += own
    return total, read


def bytes_a_number(linear: Linear, dtype: torch.dtype, is_host: bool) -> int:
    """Bytes of each number of a layer, in the form that matrix products read. A layer that is
    packed in the file has no `weight`, and stays as it is."""
    method, weight = linear.quant_method, linear.weight
    if isinstance(method, Int8OnlineLinearMethod):
        return 1
    if isinstance(method, Fp8LinearMethod):  # a CPU widens it
        weight = torch.empty_like(weight, dtype=dtype)
        return product_dtype(weight, "cpu").itemsize if is_host else 1
    if isinstance(method, UnquantizedLinearMethod):
        return method.kept_dtype(weight).itemsize if is_host else weight.itemsize
    return weight.itemsize


def num_parameters(model: LlamaForCausalLM) -> int:
    """Parameters of the model; packed ones are counted one by one, and a tied head not at all."""
    total = 0
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            if name != "lm_head" or not model.config.tie_word_embeddings:
                total += module.input_size * sum(module.output_sizes)
                total += 0 if module.bias is None else module.bias.numel()
        else:
            total += sum(weight.numel() for weight in module.parameters(recurse=False))
    return total


def cache_blocks(
    config: EngineConfig, model: LlamaForCausalLM, device: torch.device, weights: int
) -> tuple[int, str | None]:
    """KV blocks that fit beside the weights, and what is wrong if that is not enough."""
    left = available_memory(device, config.cache.gpu_memory_utilization)
    share = left / max(reclaimable_memory(device), 1)
    if weights > reclaimable_memory(device):
        return 0, (
            f"the weights take {in_units(weights)}, and {in_units(reclaimable_memory(device))} "
            "are free; quantize it, or take a smaller model"
        )
    left -= int(weights * min(share, 1.0))
    try:
        left = shared_memory(config, device, left)
        return choose_num_blocks(config, model.kv_cache_spec(), device, memory=left), None
    except ValueError as error:
        return 0, str(error)


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second of a large read on this device, measured now."""
    data = torch.ones(BANDWIDTH_BYTES // 4, device=device)
    best, end = float("inf"), time.perf_counter() + BANDWIDTH_SECONDS
    while (start := time.perf_counter()) < end:
        data.sum().item()
        best = min(best, time.perf_counter() - start)
    return BANDWIDTH_BYTES / best


def as_text(figures: dict[str, Any]) -> str:
    """The figures as a short text, the most important first."""
    lines = [
        f"{figures['model']}: {figures['architecture']}, {figures['parameters'] / 1e6:,.1f} M "
        f"parameters in {figures['dtype']}, {figures['layers']} layers",
        f"weights        {in_units(figures['weight_bytes'])} in memory; "
        f"{in_units(figures['free_bytes'])} free on {figures['device']}",
        f"KV cache       {in_units(figures['kv_bytes_per_token'])} a token; room for "
        f"{figures['kv_cache_tokens']:,} tokens ({figures['num_gpu_blocks']} blocks of "
        f"{figures['block_size']}, {figures['kv_cache_mib']} MiB)",
        *_remembered(figures),
        f"decode speed   at most {figures['decode_tokens_per_s']:,} tokens/s for one request: each "
        f"token reads the weights, at {figures['bandwidth_gb_per_s']} GB/s",
        f"length         max_model_len {figures['max_model_len']}; the model goes up to "
        f"{figures['longest_model_len']}",
        f"versions       mini_vllm {figures['mini_vllm']}, torch {figures['torch']}, Python "
        f"{figures['python']}; {figures['threads']} threads",
    ]
    return "\n".join([*lines, *([f"does not fit: {p}"] if (p := figures["problem"]) else [])])


def _remembered(figures: dict[str, Any]) -> list[str]:
    """A line on what each layer keeps, if some keep less than the whole text."""
    counts = figures["layers_remember"]
    if set(counts) == {"full"}:
        return []
    words = {
        "full": "the whole text",
        "sliding_window": "a window",
        "chunked_local": "a chunk",
        "mamba": f"a state ({in_units(figures['state_bytes'])} a request in all)",
    }
    kept = ", ".join(f"{count} {words[kind]}" for kind, count in counts.items())
    return [f"layers keep    {kept}"]
