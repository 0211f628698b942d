"""For an unknown family: find a known family with the same tensors.

Many new architectures are Llama under another name. The names of tensors do not prove that, because
a scale, a window or another rotation has no tensor. So nothing is assumed: the error names the
known family that has exactly these tensors, and the option that runs the model as that family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mini_vllm.gguf import is_gguf
from mini_vllm.model.checkpoint import OF_ROTATION, read_header, weight_files
from mini_vllm.model.config import ModelArgs, config_file, read_config, with_overrides
from mini_vllm.model.families import unsupported
from mini_vllm.model.families.tripwire import needs
from mini_vllm.model.layers import Build
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.model.sharded_loader import part_targets

LIKELY = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""The families to compare with, the simplest first."""


def refusal(
    folder: str | Path, architectures: Sequence[str], overrides: Mapping[str, Any] | None = None
) -> str:
    """The message that these architectures are not supported, with the option that runs the model
    if a known family has the same tensors."""
    config = with_overrides(read_config(Path(folder)), overrides or {})
    message = f"{config_file(folder)}: {unsupported(architectures, config)}"
    same = None if needs(config) or is_gguf(folder) else same_tensors(Path(folder), config)
    if same is None:
        return message
    return (
        f"{message}; its tensors and their shapes are exactly those of {same}, and no entry of its "
        f"config contradicts it: if the model computes as {same} does, pass "
        f'hf_overrides={{"architectures": ["{same}"]}}'
    )


def same_tensors(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The simplest known family with the same tensors and shapes as the folder's files."""
    try:
        found = {
            name: info.shape
            for file in weight_files(folder)
            for name, info in read_header(file).items()
            if not name.endswith(OF_ROTATION)
        }
    except (OSError, ValueError):  # files are missing or damaged
        return None
    for name in LIKELY:
        try:
            args = ModelArgs.from_dict({**config, "architectures": [name]})
        except ValueError:
            continue
        with torch.device("meta"):
            model = resolve_model_class([name])(args, Build())
        wanted = {tensor: target.shape for tensor, target in part_targets(model).items()}
        if args.tie_word_embeddings:
            found.pop("lm_head.weight", None)
        if found == wanted:
            return name
    return None
