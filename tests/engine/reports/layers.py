"""Layers of quantised checkpoints, by the rules that their config writes."""

from __future__ import annotations

from typing import Any

from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.quantization.matching import find_group, is_layer_skipped

STACKED = LlamaForCausalLM.stacked


def group_of(given: dict[str, Any]) -> str:
    """The `config_groups` entry that a layer of ours belongs to; or the words that refuse it."""
    groups = {t: {"name": name} for name, targets in given["groups"].items() for t in targets}
    try:
        return (find_group(given["layer"], groups, STACKED) or {"name": ""})["name"]
    except ValueError as error:
        return str(error)


def is_left_out(given: dict[str, Any]) -> bool | str:
    """Whether a list leaves a layer of ours in full precision; or the words that refuse it."""
    try:
        return is_layer_skipped(given["layer"], given["ignore"], STACKED)
    except ValueError as error:
        return str(error)
