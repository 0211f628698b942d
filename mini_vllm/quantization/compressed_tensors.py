"""Checkpoints of llm-compressor and `oneshot`: groups of layers, each with its own scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.model.layers import Linear, LinearMethod
from mini_vllm.quantization.base import QuantizationConfig, unquantized_layers
from mini_vllm.quantization.entries import check_kind, naming
from mini_vllm.quantization.fp8 import Fp8LinearMethod
from mini_vllm.quantization.int8 import W8A8LinearMethod
from mini_vllm.quantization.matching import find_group, is_layer_skipped, shards_of
from mini_vllm.quantization.wna16 import Scheme, WNA16LinearMethod


class CompressedTensorsConfig(QuantizationConfig):
    """
    Source: vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py#L74-L800
    (CompressedTensorsConfig) @ v0.22.1.
    """  # noqa: E501

    name = "compressed-tensors"

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, Any]],
        ignore: Sequence[str],
        kv_cache_dtype: str | None,
    ) -> None:
        self.groups, self.ignore, self.kv_cache_dtype = groups, ignore, kv_cache_dtype
        self.whole: frozenset[str] = frozenset()
        self.rounded: frozenset[str] = frozenset()
        """The layers of the files in full precision, and those that are quantised."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        check_kind("kv_cache_scheme", config.get("kv_cache_scheme"), Mapping, "an object")
        for key in ("sparsity_config", "transform_config"):
            entry = config.get(key)
            is_dense = isinstance(entry, Mapping) and entry.get("format") == "dense"  # a remark
            if entry and not is_dense:
                raise ValueError(f"quantization_config: {key} is not supported; leave it out")
        groups: dict[str, Mapping[str, Any]] = {}
        for group in (config.get("config_groups") or {}).values():
            held = {key: value for key, value in group.items() if key != "targets"}
            held["format"] = group.get("format") or config.get("format")
            groups |= dict.fromkeys(group.get("targets") or [], held)
        kv_scheme = config.get("kv_cache_scheme")
        return cls(groups, config.get("ignore") or [], kv_cache_dtype_of(kv_scheme))

    def infer_skipped(self, dtypes: Mapping[str, str]) -> None:
        self.whole = frozenset(unquantized_layers(dtypes))
        self.rounded = frozenset(name.rpartition(".")[0] for name in dtypes) - self.whole

    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        group = None
        if not is_layer_skipped(prefix, self.ignore, self.stacked, in_file=self.in_file):
            group = find_group(prefix, self.groups, self.stacked, self.in_file)
        names = shards_of(prefix, self.stacked, self.in_file)
        with naming(self.file):
            self._check_agreement(names[0], group is not None)
            return None if group is None else get_scheme(group)

    def _check_agreement(self, name: str, is_quantized: bool) -> None:
        """Raise ValueError if the rules of the config and the file's tensors of a layer differ."""
        if is_quantized and name in self.whole and name != "lm_head":
            raise ValueError(
                f"quantization_config: config_groups say that {name!r} is quantised, and the files "
                "have it in full precision; add it to 'ignore', or remove quantization_config if "
                "it belongs to other files"
            )
        if not is_quantized and name in self.rounded:
            raise ValueError(
                f"quantization_config: the files have {name!r} quantised, and no target in "
                "config_groups is it, or 'ignore' lists it; use the config.json that was saved "
                "with these files"
            )


def kv_cache_dtype_of(scheme: Mapping[str, Any] | None) -> str | None:
    if not scheme:
        return None
    found = tuple(scheme.get(key) for key in ("type", "num_bits", "strategy"))
    if found != ("float", 8, "tensor") or scheme.get("dynamic"):
        raise ValueError(
            f"quantization_config: kv_cache_scheme has type, bits and strategy {found}; supported "
            "is ('float', 8, 'tensor') with scales in the checkpoint"
        )
    return "fp8"


BY_G_IDX = ("group", "dynamic", True)
"""Values of `actorder` for which `weight_g_idx` has the group of each column. "weight" and "static"
concern only the order of quantisation."""


def get_scheme(group: Mapping[str, Any]) -> LinearMethod:
    """The method for one of compressed-tensors' `config_groups`.

        weights                     activations            format
        int 4 or 8                  none                   pack-quantized    WNA16LinearMethod
        int 8, channel or tensor    int 8, token or tensor int-quantized     W8A8LinearMethod
        float 8, channel or tensor  float 8                float-quantized   Fp8LinearMethod

    Raises ValueError for everything else, with format, type, bits and strategy.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py#L608-L709
    (CompressedTensorsConfig._get_scheme_from_parts) @ v0.22.1.
    """  # noqa: E501
    weights: Mapping[str, Any] = group.get("weights") or {}
    inputs: Mapping[str, Any] = group.get("input_activations") or {}
    kind, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    strategy, group_size = weights.get("strategy"), weights.get("group_size", -1)
    if strategy is None:
        is_row, is_all = group_size == -1, weights.get("group_size") is None
        strategy = "tensor" if is_all else "channel" if is_row else "group"
    form, static = group.get("format"), bool(inputs) and not inputs.get("dynamic")
    packed = kind == "int" and not inputs and form == "pack-quantized" and bits in (4, 8)
    if packed and strategy in ("group", "channel"):
        scheme = Scheme(
            format="compressed-tensors",
            bits=bits,
            group_size=group_size if strategy == "group" else -1,
            symmetric=bool(weights.get("symmetric", True)),
            act_order=weights.get("actorder") in BY_G_IDX and strategy == "group",
        )
        return WNA16LinearMethod(scheme)
    per_row_or_tensor = strategy in ("channel", "tensor") and bits == 8
    whole = kind == "int" and form in ("int-quantized", None) and per_row_or_tensor
    symmetric = weights.get("symmetric", True) and inputs.get("symmetric", True)
    eight = inputs.get("num_bits") == 8 and inputs.get("strategy") in ("token", "tensor")
    if whole and symmetric and eight:
        return W8A8LinearMethod(per_tensor=strategy == "tensor", static=static)
    if kind == "float" and form in ("float-quantized", "naive-quantized", None):
        if per_row_or_tensor:
            return Fp8LinearMethod(per_tensor=strategy == "tensor", static=static)
        if strategy == "block" and bits == 8:
            rows, columns = weights.get("block_structure") or (128, 128)
            return Fp8LinearMethod(block=(rows, columns), static=static)
    raise ValueError(
        f"quantization_config: format {form!r} with {kind} weights of {bits} bits, strategy "
        f"{strategy!r} and activations {inputs and inputs.get('type')} is not supported; "
        "supported are pack-quantized (int, 4 or 8 bits, group or channel), int-quantized (8 bits, "
        "symmetric, channel or tensor) and float-quantized (8 bits, channel, tensor or block)"
    )
