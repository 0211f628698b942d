"""Checkpoints with e4m3 weights, under the names that several tools give to the same tensors.

    quant_method   weights have a scale for each                scales in the files
    fp8            matrix, or block                             weight_scale [], weight_scale_inv
    fbgemm_fp8     row                                          weight_scale [N, 1]
    modelopt       matrix, row or block, by its `quant_algo`    weight_scale [], [N], [N/128, 1, K/128, 1]

Activations are not rounded here, so their scales and the bounds of these are not used.
"""  # noqa: E501

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.model.layers import Linear, LinearMethod
from mini_vllm.quantization.base import QuantizationConfig, unquantized_layers
from mini_vllm.quantization.entries import check_kind, check_names, one_of
from mini_vllm.quantization.fp8 import Fp8LinearMethod, Fp8OnlineLinearMethod
from mini_vllm.quantization.matching import is_layer_skipped


class Fp8Config(QuantizationConfig):
    """Source: vllm/model_executor/layers/quantization/fp8.py#L100-L228 (Fp8Config) @ v0.22.1."""

    name = "fp8"

    def __init__(
        self,
        block: tuple[int, int] | None = None,
        static: bool = False,
        ignored: Sequence[str] = (),
        online: bool = False,
    ) -> None:
        self.block, self.static, self.ignored, self.online = block, static, ignored, online

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        block = config.get("weight_block_size")
        if block is not None and (len(block) != 2 or min(block) < 1):
            raise ValueError(
                f"quantization_config: weight_block_size is {block!r}; it must be two numbers, "
                "such as [128, 128]"
            )
        static = one_of(config, "activation_scheme", ["dynamic", "static"], "dynamic") == "static"
        one_of(config, "fmt", ["e4m3", "float8_e4m3fn"], "e4m3")
        ignored = config.get("ignored_layers") or config.get("modules_to_not_convert") or []
        return cls(tuple(block) if block else None, static, ignored)

    def infer_skipped(self, dtypes: Mapping[str, str]) -> None:
        """Add layers that the file does not quantise: configs list them in several ways."""
        self.ignored = [*self.ignored, *unquantized_layers(dtypes)]

    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        is_skipped = is_layer_skipped(prefix, self.ignored, self.stacked, in_file=self.in_file)
        if prefix == "lm_head" or is_skipped:
            return None
        return self.linear_method()

    def linear_method(self) -> LinearMethod:
        """The method of each layer that is quantised."""
        if self.online:
            return Fp8OnlineLinearMethod(self.block)
        name = "weight_scale_inv" if self.block else "weight_scale"
        return Fp8LinearMethod(self.block, not self.block, self.static, name)

    def rename(self, name: str) -> list[str]:
        """transformers writes one scale a matrix under the name of blocks' scales, too."""
        if not self.block:
            name = re.sub(r"\.weight_scale_inv$", ".weight_scale", name)
        return super().rename(re.sub(r"\.activation_scale$", ".input_scale", name))


class FbgemmFp8Config(Fp8Config):
    """Meta's files: rows of e4m3, as those of Llama 3.1 405B.

    Source: vllm/model_executor/layers/quantization/fbgemm_fp8.py#L42-L93 (FBGEMMFp8Config)
    @ v0.22.1.
    """

    name = "fbgemm_fp8"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        return cls(ignored=config.get("modules_to_not_convert") or [])

    def linear_method(self) -> LinearMethod:
        return Fp8LinearMethod()


ALGORITHMS: dict[str, dict[str, Any]] = {
    "FP8": dict(per_tensor=True, static=True),
    "FP8_PER_CHANNEL_PER_TOKEN": dict(scale_dims=1),
    "FP8_PB_WO": dict(block=(128, 128), scale_dims=4),
}
"""The method of a layer for each `quant_algo` of ModelOpt that has e4m3 weights."""


class ModelOptConfig(Fp8Config):
    """Files of NVIDIA's ModelOpt, with its entries in `config.json` or `hf_quant_config.json`.

    Source: vllm/model_executor/layers/quantization/modelopt.py#L131-L344 (ModelOptQuantConfigBase)
    @ v0.22.1.
    """

    name = "modelopt"

    def __init__(self, algorithm: str, ignored: Sequence[str], kv_cache_dtype: str | None) -> None:
        super().__init__(ignored=ignored)
        self.algorithm, self.kv_cache_dtype = algorithm, kv_cache_dtype

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        check_kind("quantization", config.get("quantization"), Mapping, "an object")
        entries = config.get("quantization") or config
        algorithm = entries.get("quant_algo")
        algorithm = algorithm.upper() if isinstance(algorithm, str) else algorithm
        algorithm = one_of({"quant_algo": algorithm}, "quant_algo", [*ALGORITHMS])
        key = "exclude_modules" if entries is not config else "ignore"
        excluded = entries.get(key) or []
        check_names(key, excluded)
        patterns = [f"re:{fnmatch.translate(name)}" for name in excluded]
        return cls(algorithm, patterns, kv_cache_dtype_of(entries))

    def infer_skipped(self, dtypes: Mapping[str, str]) -> None:
        """The files decide, because a pattern such as "*mlp.gate*" for routers is in the name of
        every gate_proj, too."""
        self.ignored = unquantized_layers(dtypes)

    def linear_method(self) -> LinearMethod:
        return Fp8LinearMethod(**ALGORITHMS[self.algorithm])


def kv_cache_dtype_of(entries: Mapping[str, Any]) -> str | None:
    """The KV cache's dtype of ModelOpt's entries: of an object, or of a name in older files."""
    scheme = entries.get("kv_cache_scheme")
    check_kind("kv_cache_scheme", scheme, Mapping, "an object")
    if scheme:
        found = tuple(scheme.get(key) for key in ("type", "num_bits", "dynamic"))
        if found != ("float", 8, False):
            raise ValueError(
                "quantization_config: kv_cache_scheme has type, bits and dynamic "
                f"{found}; supported is ('float', 8, False)"
            )
        return "fp8"
    name = entries.get("kv_cache_quant_algo")
    one_of({"kv_cache_quant_algo": name}, "kv_cache_quant_algo", [None, "", "FP8", "fp8"])
    return "fp8" if name else None
