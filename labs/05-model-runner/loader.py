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
    # TODO 05.7
    raise NotImplementedError(
        "TODO 05.7: write checkpoint_names in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-7)"
    )


def weight_targets(model: LlamaForCausalLM) -> dict[str, Tensor]:
    """For each name in the checkpoint, the view of our parameter that receives its tensor.

    A stacked parameter is split into consecutive rows by its module's `output_sizes`. A tied
    `lm_head` is the embedding itself and appears once, under the embedding's name.
    """
    # TODO 05.7
    raise NotImplementedError(
        "TODO 05.7: write weight_targets in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-7)"
    )


def load_weights(model: LlamaForCausalLM, folder: Path) -> None:
    """Copy every tensor of the folder's safetensors files into `model`.

    Each is copied once: from the file, which is mapped, straight into the parameter.

    Raises ValueError for a missing or unexpected tensor, a wrong shape, or a damaged file.
    """
    # TODO 05.8
    raise NotImplementedError(
        "TODO 05.8: write load_weights in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-8)"
    )


def check_names(targets: Iterable[str], found: Iterable[str], folder: Path, tied: bool) -> None:
    """Raise ValueError unless the checkpoint holds exactly the tensors the model needs.

    The message has their number, the folder, and the first of them in order. Two kinds may be
    there without need: a tied `lm_head.weight`, and the rotary frequencies that old checkpoints
    store (`...rotary_emb.inv_freq`) although they follow from the config.
    """
    # TODO 05.8
    raise NotImplementedError(
        "TODO 05.8: write check_names in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-8)"
    )


def copy_weight(target: Tensor, tensor: Tensor, name: str, file: Path) -> None:
    """Copy `tensor` into `target`, converting its dtype. Raises ValueError if the shapes differ."""
    # TODO 05.8
    raise NotImplementedError(
        "TODO 05.8: write copy_weight in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-8)"
    )
