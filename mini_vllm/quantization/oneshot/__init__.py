"""Quantise a checkpoint once, offline, and write it as a compressed-tensors folder.

    original ─► calibration texts ─► SmoothQuant or AWQ: move scales between layers
                                 ─► rounding or GPTQ: numbers, scales, zeros ─► folder

The name is that of llm-compressor's function, which does the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from mini_vllm import hub
from mini_vllm.gguf import is_gguf
from mini_vllm.model.build import load_model, resolve_dtype
from mini_vllm.model.config import load_config, read_config
from mini_vllm.model.layers import Linear, RMSNorm
from mini_vllm.model.llama import DecoderLayer, LlamaForCausalLM
from mini_vllm.model.moe.layer import SparseMoE
from mini_vllm.quantization.config import find_quantization
from mini_vllm.quantization.entries import check_names
from mini_vllm.quantization.fp8 import quantize_block
from mini_vllm.quantization.int8 import quantize_per_token
from mini_vllm.quantization.matching import is_layer_skipped
from mini_vllm.quantization.oneshot.awq import search_scale
from mini_vllm.quantization.oneshot.calibrate import LayerInputs, tokenize, watch_inputs
from mini_vllm.quantization.oneshot.gptq import gptq_quantize
from mini_vllm.quantization.oneshot.smoothquant import fold_into_norm, smooth_scales
from mini_vllm.quantization.oneshot.writer import PRESETS, Preset, packed_tensors, write_folder
from mini_vllm.quantization.packing import choose_qparams, dequantize, quantize

ALGORITHMS = ("rtn", "gptq", "awq", "smoothquant")
LEAST_GROUP = 16
"""Smallest group size that is chosen automatically: scales of smaller groups would take too many
bytes."""


def oneshot(
    model: str | Path,
    output_dir: str | Path,
    scheme: str = "W4A16",
    algorithm: str = "rtn",
    dataset: Sequence[str | Sequence[int]] | None = None,
    group_size: int | None = None,
    ignore: Sequence[str] = ("lm_head",),
    act_order: bool = False,
) -> Path:
    """Write a quantised copy of a checkpoint into the new folder `output_dir`; returns it.

    Args:
        model: a bundled model's name, or a folder with a checkpoint in full precision.
        scheme: one of PRESETS.
        algorithm: "rtn" rounds to nearest; "gptq" rounds column by column; "awq" (4 bits) and
            "smoothquant" (W8A8) move scales between layers first. All but rtn need a `dataset`.
        dataset: calibration texts, or token ids.
        group_size: weights that share a scale; -1: a whole row. None: the scheme's 128, or as
            large a part of it as divides the rows of all layers.
        ignore: layers to leave as they are: names, or patterns after "re:".
        act_order: GPTQ takes columns in the order of their importance.

    Raises:
        ValueError: for an unknown or contradictory choice, a group that does not divide, or a
            checkpoint that is quantised already; FileExistsError if the folder is there.
    """
    source = hub.folder(model)
    target, preset = Path(output_dir), _preset(scheme, group_size)
    _check(source, target, scheme, preset, algorithm, dataset, ignore, act_order)
    args = load_config(source)
    dtype = resolve_dtype("auto", args)
    original = load_model(source, dtype="float32")
    inputs: dict[str, LayerInputs] = {}
    if dataset is not None and algorithm != "rtn":
        inputs = watch_inputs(original, tokenize(source, dataset, args.vocab_size))
    fresh = load_original(source)
    ignore = [*ignore, *always_kept(fresh)]
    if group_size is None:
        preset = _fitting(preset, fresh, ignore)
    if algorithm in ("awq", "smoothquant"):
        _check_norms(fresh, algorithm)
    if algorithm == "smoothquant":
        _smooth(fresh, inputs)
    if algorithm == "awq":
        _scale_by_importance(fresh, inputs, preset)
    hessians = {name: seen.hessian for name, seen in inputs.items()} if algorithm == "gptq" else {}
    tensors = _quantize_all(fresh, preset, ignore, hessians, act_order, dtype)
    write_folder(source, target, tensors, preset.config(ignore, act_order))
    return target


def _preset(scheme: str, group_size: int | None) -> Preset:
    if scheme not in PRESETS:
        raise ValueError(f"scheme is {scheme!r}; choose one of {', '.join(PRESETS)}")
    preset = PRESETS[scheme]
    if group_size is None:
        return preset
    if preset.format != "pack-quantized":
        raise ValueError(f"group_size is {group_size}; scheme {scheme} has no groups; leave it out")
    if not isinstance(group_size, int) or (group_size < 1 and group_size != -1):
        raise ValueError(
            f"group_size is {group_size!r}; it must be a whole number of at least 1, or -1 for one "
            "scale a row"
        )
    if group_size == -1:
        return replace(preset, strategy="channel", group_size=None)
    return replace(preset, strategy="group", group_size=group_size)


def _fitting(preset: Preset, model: LlamaForCausalLM, ignore: Sequence[str]) -> Preset:
    """The preset with a group size that divides all rows, if one of at least LEAST_GROUP does."""
    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, Linear)]
    names = {name: _in_file(model, name) for name, _ in layers}
    columns = {
        each.input_size
        for name, each in layers
        if not is_layer_skipped(names[name], ignore, model.stacked)
    }
    shared = math.gcd(preset.group_size or 0, *columns)
    if preset.group_size is None or shared < LEAST_GROUP:
        return preset
    return replace(preset, group_size=shared)


def _check(
    source: Path,
    target: Path,
    scheme: str,
    preset: Preset,
    algorithm: str,
    dataset: Sequence[str | Sequence[int]] | None,
    ignore: Sequence[str],
    act_order: bool,
) -> None:
    for name, value in (("dataset", dataset), ("ignore", ignore)):
        if isinstance(value, str):
            raise ValueError(f"{name} is the text {value!r}; it must be a list")
    check_names("ignore", list(ignore))
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm is {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
    if algorithm != "rtn" and not dataset:
        raise ValueError(f"algorithm {algorithm!r} needs a dataset: a list of calibration texts")
    if algorithm in ("gptq", "awq") and preset.format != "pack-quantized":
        raise ValueError(f"algorithm {algorithm!r} is for W4A16 and W8A16, not for {scheme}")
    if algorithm == "smoothquant" and scheme != "W8A8":
        raise ValueError(f"algorithm 'smoothquant' is for W8A8, not for {scheme}")
    if act_order and algorithm != "gptq":
        raise ValueError(f"act_order is an option of 'gptq', not of {algorithm!r}")
    if target.exists():
        raise FileExistsError(f"{str(target)!r} exists; choose another output_dir or remove it")
    if is_gguf(source):
        raise ValueError(
            f"{str(source)!r} is a GGUF file, which is quantised already; give the folder of the "
            "original"
        )
    if not source.is_dir():
        raise FileNotFoundError(f"model folder {str(source)!r} does not exist")
    if find_quantization(read_config(source)):
        raise ValueError(f"{str(source)!r} is quantised already; give the original")


def load_original(source: Path) -> LlamaForCausalLM:
    """The model with the weights of the file, before they are packed for matrix products."""
    from mini_vllm.model.build import Build, default_dtype
    from mini_vllm.model.registry import resolve_model_class
    from mini_vllm.model.sharded_loader import load_parts

    args = load_config(source)
    with default_dtype(torch.float32):
        model = resolve_model_class(args.architectures)(
            args, Build(separates_experts=True)
        ).requires_grad_(False)
    load_parts(model, source)
    return model


def _in_file(model: LlamaForCausalLM, name: str) -> str:
    """The checkpoint's name of our layer; a family renames whole pieces between dots."""
    return model.checkpoint_prefix(f"{name}.").removesuffix(".")


def always_kept(model: LlamaForCausalLM) -> list[str]:
    """Layers that no engine quantises: routers of experts, and vision towers."""
    routers = [
        f"{name}.gate" for name, each in model.named_modules() if isinstance(each, SparseMoE)
    ]
    return [*routers, "re:.*visual.*"] if "images" in model.supports else routers


def _check_norms(model: LlamaForCausalLM, algorithm: str) -> None:
    """Raise ValueError unless each layer has the parts that `readers` uses."""
    if type(model).decoder.layer is not DecoderLayer:
        raise ValueError(
            f"algorithm {algorithm!r} moves scales into the norms before attention and MLP, which "
            f"{type(model).__name__} has elsewhere or not at all; take 'rtn' or 'gptq'"
        )


def readers(model: LlamaForCausalLM) -> list[tuple[str, RMSNorm, Linear]]:
    """Each linear layer whose input is the output of a norm, with that norm."""
    found = []
    for index, layer in enumerate(model.model.layers):
        name = f"model.layers.{index}"
        attention = (f"{name}.self_attn.qkv_proj", layer.input_layernorm, layer.self_attn.qkv_proj)
        mlp = (f"{name}.mlp.gate_up_proj", layer.post_attention_layernorm, layer.mlp.gate_up_proj)
        found += [attention, mlp]
    return found


def _smooth(model: LlamaForCausalLM, inputs: dict[str, LayerInputs]) -> None:
    for name, norm, linear in readers(model):
        weight = linear.weight.data
        scales = smooth_scales(inputs[name].absmax, weight.abs().amax(0))
        fold_into_norm(norm.weight.data, weight, scales)


def _scale_by_importance(
    model: LlamaForCausalLM, inputs: dict[str, LayerInputs], preset: Preset
) -> None:
    def round_trip(weight: Tensor) -> Tensor:
        scale, zero = choose_qparams(weight, preset.bits, preset.group_size or -1, preset.symmetric)
        return dequantize(quantize(weight, scale, zero, preset.bits), scale, zero)

    for name, norm, linear in readers(model):
        scales, _ = search_scale(torch.cat(inputs[name].sample), linear.weight.data, round_trip)
        fold_into_norm(norm.weight.data, linear.weight.data, scales)
    for index, layer in enumerate(model.model.layers):  # each row of up is a column of down
        x = torch.cat(inputs[f"model.layers.{index}.mlp.down_proj"].sample)
        down, up = layer.mlp.down_proj.weight.data, layer.mlp.gate_up_proj.weight.data
        scales, _ = search_scale(x, down, round_trip)
        up[len(up) // 2 :].div_(scales[:, None])
        down.mul_(scales)


def _parts(model: LlamaForCausalLM, name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of one parameter in a checkpoint in full precision: one for each projection."""
    return {file: part.to(dtype) for file, part in _projections(model, name).items()}


def _projections(model: LlamaForCausalLM, name: str) -> dict[str, Tensor]:
    """The parts of a parameter that are separate tensors in a checkpoint, by their names there."""
    from mini_vllm.model.sharded_loader import names_in_file

    parameter, names = model.get_parameter(name).data, names_in_file(model, name)
    module = model.get_submodule(name.rpartition(".")[0])
    sizes = module.output_sizes if len(names) > 1 else [len(parameter)]
    return dict(zip(names, parameter.split(sizes), strict=True))


def original_tensors(model: LlamaForCausalLM, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a checkpoint in full precision, under the checkpoint's names."""
    tensors: dict[str, Tensor] = {}
    for name, _ in model.named_parameters():
        tensors |= _parts(model, name, dtype)
    return tensors


def _quantize_all(
    model: LlamaForCausalLM,
    preset: Preset,
    ignore: Sequence[str],
    hessians: dict[str, Tensor | None],
    act_order: bool,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """All tensors of the new checkpoint, under the checkpoint's names."""
    tensors: dict[str, Tensor] = {}
    for name, _ in model.named_parameters():
        prefix, _, kind = name.rpartition(".")
        module = model.get_submodule(prefix)
        in_file = _in_file(model, prefix)
        if (
            not isinstance(module, Linear)
            or kind == "bias"
            or is_layer_skipped(in_file, ignore, model.stacked)
        ):
            tensors |= _parts(model, name, dtype)
            continue
        for file, weight in _projections(model, name).items():
            made = _quantize_one(preset, weight, hessians.get(prefix), act_order, dtype)
            shard = file.removesuffix("weight")
            tensors |= {f"{shard}{suffix}": tensor for suffix, tensor in made.items()}
    return tensors


def _quantize_one(
    preset: Preset,
    weight: Tensor,
    hessian: Tensor | None,
    act_order: bool,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """The tensors of one projection `[N, K]`, by suffix. Scales are rounded to `dtype` first."""
    if preset.kind == "float":
        block = (128, 128) if preset.strategy == "block" else (1, weight.shape[1])
        numbers, scale = quantize_block(weight, block)
        return {"weight": numbers, "weight_scale": scale}
    if preset.format == "int-quantized":
        numbers, scale = quantize_per_token(weight)
        return {"weight": numbers, "weight_scale": scale}
    group_size = preset.group_size or -1
    group = None
    if hessian is not None:
        stored, scale, zero, group = gptq_quantize(
            weight, hessian, preset.bits, group_size, preset.symmetric, act_order,
            scale_dtype=dtype,
        )  # fmt: skip
    else:
        scale, zero = choose_qparams(weight, preset.bits, group_size, preset.symmetric)
        scale = scale.to(dtype).float()
        stored = quantize(weight, scale, zero, preset.bits)
    if not act_order:
        group = None
    elif group is None:  # an expert without calibration tokens: columns keep their order
        group = torch.arange(weight.shape[1]) // (weight.shape[1] // scale.shape[1])
    return packed_tensors(preset, stored, scale.to(dtype), zero, group)
