"""Can packed weights be cut into shards? Checked before any process starts, and without memory."""

from __future__ import annotations

import torch

from mini_vllm.config import EngineConfig
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.model.build import Build, default_dtype, resolve_dtype
from mini_vllm.model.config import load_config
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.quantization.config import get_quantization_config


def check_shards(config: EngineConfig) -> None:
    """Refuse a shard that would begin inside a word, a group or a block of packed numbers.

    Each rank's layers are made on torch's meta device, where they take no memory, and each of
    their parameters is asked for the entries of the file that are this rank's.

    Raises:
        ValueError: naming the layer, and why it cannot be cut so.
    """
    wanted, ranks, tp = config.model, config.parallel, config.parallel.tensor_parallel_size
    if tp == 1:
        return
    quant = get_quantization_config(wanted.model, wanted.quantization, wanted.hf_overrides)
    if quant is None:
        return
    args = load_config(wanted.model, wanted.hf_overrides)
    model_class = resolve_model_class(args.architectures)
    one_stage, copies = GroupCoordinator([0], 0), ranks.eplb_config.num_redundant_experts
    for rank in range(tp):
        shards = GroupCoordinator(range(tp), rank)
        parallel = ModelParallel(shards, one_stage, ranks.enable_expert_parallel, copies)
        try:
            with torch.device("meta"), default_dtype(resolve_dtype(wanted.dtype, args)):
                model = model_class(args, Build(None, quant, parallel))
            _check_entries(model)
        except ValueError as error:
            raise ValueError(f"tensor_parallel_size is {tp}: {error}") from error


def _check_entries(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        spec = getattr(parameter, "spec", None)
        if spec is None:
            continue
        for part in model.get_submodule(name.rpartition(".")[0]).parts:
            try:
                spec.entries(part)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
