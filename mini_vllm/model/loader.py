"""Load a Hugging Face checkpoint folder into our modules.

A checkpoint names each projection apart; we keep those that read the same input in one matrix:

    checkpoint                                our parameter `...self_attn.qkv_proj.weight`
    ...self_attn.q_proj.weight [q, hidden] -> rows 0 .. q
    ...self_attn.k_proj.weight [k, hidden] -> rows q .. q + k
    ...self_attn.v_proj.weight [k, hidden] -> rows q + k .. q + 2 k

Each tensor is copied once, from the mapped file straight into its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from mini_vllm.model.checkpoint import read_shapes, weight_files
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.memory import drop_pages

STACKED_PARAMS = LlamaForCausalLM.stacked


def checkpoint_names(parameter_name: str) -> list[str]:
    """The checkpoint's names of what `parameter_name` holds, in the order of its rows.

    "layers.0.mlp.gate_up_proj.weight" -> ["layers.0.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight"]; a parameter that is not stacked keeps its one name.
    Source: vllm/model_executor/models/llama.py#L436-L498 (LlamaModel.load_weights) @ v0.22.1.
    """
    for stacked, parts in STACKED_PARAMS.items():
        if f".{stacked}." in parameter_name:
            return [parameter_name.replace(stacked, part) for part in parts]
    return [parameter_name]


def weight_targets(model: LlamaForCausalLM) -> dict[str, Tensor]:
    """For each name in the checkpoint, the view of our parameter that receives its tensor.

    A stacked parameter is split into consecutive rows by its module's `output_sizes`. A tied
    `lm_head` is the embedding itself and appears once, under the embedding's name.
    """
    targets: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        parts = checkpoint_names(name)
        sizes = [len(parameter)]
        if len(parts) > 1:
            sizes = model.get_submodule(name.rpartition(".")[0]).output_sizes
        targets.update(zip(parts, parameter.data.split(sizes), strict=True))
    return targets


def load_weights(model: LlamaForCausalLM, folder: Path) -> None:
    """Copy every tensor of the folder's safetensors files into `model`.

    Each is copied once: from the file, which is mapped, straight into the parameter.

    Raises ValueError for a missing or unexpected tensor, a wrong shape, or a damaged file.
    """
    targets = weight_targets(model)
    file_of = {name: file for file in weight_files(folder) for name in read_shapes(file)}
    check_names(targets, file_of, folder, tied=model.config.tie_word_embeddings)
    for file in dict.fromkeys(file_of.values()):
        with safe_open(file, framework="pt") as tensors:
            for name in filter(targets.__contains__, tensors.keys()):
                tensor = tensors.get_tensor(name)
                copy_weight(targets[name], tensor, name, file)
                drop_pages(tensor)


def check_names(targets: Iterable[str], found: Iterable[str], folder: Path, tied: bool) -> None:
    """Raise ValueError unless the checkpoint holds exactly the tensors the model needs.

    The message has their number, the folder, and the first of them in order. Two kinds may be
    there without need: a tied `lm_head.weight`, and the rotary frequencies that old checkpoints
    store (`...rotary_emb.inv_freq`) although they follow from the config.
    """
    missing = sorted(set(targets) - set(found))
    if missing:
        raise ValueError(
            f"{len(missing)} tensor(s) missing from {str(folder)!r}, first {missing[0]!r}; "
            "is a file missing, or does config.json belong to other weights?"
        )
    unexpected = sorted(
        name
        for name in set(found) - set(targets)
        if not name.endswith("rotary_emb.inv_freq") and not (tied and name == "lm_head.weight")
    )
    if unexpected:
        raise ValueError(
            f"{len(unexpected)} tensor(s) in {str(folder)!r} that this model does not have, "
            f"first {unexpected[0]!r}; does config.json belong to these weights?"
        )


def copy_weight(target: Tensor, tensor: Tensor, name: str, file: Path) -> None:
    """Copy `tensor` into `target`, converting its dtype. Raises ValueError if the shapes differ."""
    if target.shape != tensor.shape:
        raise ValueError(
            f"{name!r} in {file} has shape {list(tensor.shape)}; "
            f"config.json asks for {list(target.shape)}"
        )
    target.copy_(tensor)
