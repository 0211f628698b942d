"""What a format of quantised checkpoints tells: the method of a layer, and names of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from mini_vllm.model.checkpoint import FLOATS
from mini_vllm.model.layers import Linear, LinearMethod
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.quantization.matching import InFile, Stacked

KV_SCALES = {
    ".self_attn.k_scale": ("k_scale",),
    ".self_attn.v_scale": ("v_scale",),
    ".self_attn.attn.k_scale": ("k_scale",),
    ".self_attn.attn.v_scale": ("v_scale",),
    ".self_attn.k_proj.k_scale": ("k_scale",),
    ".self_attn.v_proj.v_scale": ("v_scale",),
    ".self_attn.qkv_proj.k_scale": ("k_scale",),
    ".self_attn.qkv_proj.v_scale": ("v_scale",),
    ".self_attn.k_proj.output_scale": ("k_scale",),
    ".self_attn.v_proj.output_scale": ("v_scale",),
    ".self_attn.kv_scale": ("k_scale", "v_scale"),
}
"""Names of the scales of the KV cache in checkpoints, and our names.

Source: vllm/model_executor/model_loader/weight_utils.py#L1527-L1630 (maybe_remap_kv_scale_name)
@ v0.22.1.
"""
NOT_READ = (".self_attn.q_scale", ".self_attn.prob_scale", ".self_attn.attn.q_scale")
"""Scales of queries and of probabilities, which attention here does not round."""


class QuantizationConfig(ABC):
    """How the weights of one checkpoint are quantised.

    Source: vllm/model_executor/layers/quantization/base_config.py#L70-L214 (QuantizationConfig)
    @ v0.22.1.
    """

    name: ClassVar[str]
    blocks: Collection[str] = ()
    rounds_tied_head: bool = False
    keeps_experts: bool = False
    """See :class:`~mini_vllm.model.layers.QuantConfig`."""
    kv_cache_dtype: str | None = None
    """The KV cache's dtype for "auto"; None: the model's dtype."""
    stacked: Stacked = LlamaForCausalLM.stacked
    """The layers of the checkpoint that are stacked in one of ours. Rules name the checkpoint's."""
    in_file: InFile = str
    """The checkpoint's name of a projection, where its family has other names than ours."""
    file: Path = Path("config.json")
    """The file with the entries, for error messages."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        """From `quantization_config`. Raises ValueError for unsupported entries."""

    @abstractmethod
    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        """The method of the layer called `prefix`, or None if it is not quantised."""

    def infer_skipped(self, dtypes: Mapping[str, str]) -> None:
        """Find unquantised layers by the dtypes of the checkpoint's tensors."""
        return

    def share_blocks(self, head: Linear, embedding: nn.Module) -> nn.Module:
        """See :class:`~mini_vllm.model.layers.QuantConfig`. By default, nothing is shared."""
        return embedding

    def rename(self, name: str) -> list[str]:
        """Our names of the checkpoint's tensor `name`; none if it is not read."""
        if name.endswith(NOT_READ):
            return []
        for suffix, ours in KV_SCALES.items():
            if name.endswith(suffix):
                base = name.removesuffix(suffix)
                return [f"{base}.self_attn.{scale}" for scale in ours]
        return [name]


def unquantized_layers(dtypes: Mapping[str, str]) -> list[str]:
    """Layers of a checkpoint whose tensors are all floating point numbers, at full width.

    Source: vllm/model_executor/layers/quantization/awq.py#L151-L169
    (AWQConfig.maybe_update_config) @ v0.22.1.
    """
    layers = {name.rpartition(".")[0] for name in dtypes}
    packed = {name.rpartition(".")[0] for name, dtype in dtypes.items() if dtype not in FLOATS}
    return sorted(layers - packed)
