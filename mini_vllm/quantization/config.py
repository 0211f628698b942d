"""The quantisation format of a checkpoint, and the method that it gives each layer.

    config.json["quantization_config"]  ->  a QuantizationConfig  ->  a LinearMethod for each layer

Supported formats: compressed-tensors (written by llm-compressor and `oneshot`), gptq, awq,
auto-round, fp8, fbgemm_fp8, modelopt (its FP8) and mxfp4.
`quantization="fp8"` or `"int8"` quantises a checkpoint in full precision while it is loaded.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mini_vllm.gguf import is_gguf, read_gguf
from mini_vllm.kernels import native
from mini_vllm.model.checkpoint import (
    FLOATS,
    OLD_FILES,
    read_header,
    read_quantize_config,
    weight_files,
)
from mini_vllm.model.config import read_config, with_overrides
from mini_vllm.model.families import family, table, with_decoder
from mini_vllm.model.gguf.tensors import BLOCKS, GROUP, sources
from mini_vllm.model.layers import Linear, LinearMethod
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.quantization.base import QuantizationConfig, unquantized_layers
from mini_vllm.quantization.compressed_tensors import CompressedTensorsConfig
from mini_vllm.quantization.entries import (
    check_kind,
    check_kinds,
    check_names,
    get_from_keys,
    naming,
    one_of,
)
from mini_vllm.quantization.fp8_config import FbgemmFp8Config, Fp8Config, ModelOptConfig
from mini_vllm.quantization.gguf import BITS, BlockEmbedding, GGUFLinearMethod
from mini_vllm.quantization.int8 import Int8OnlineLinearMethod
from mini_vllm.quantization.matching import file_names, is_layer_skipped, shards_of
from mini_vllm.quantization.wna16 import Scheme, WNA16LinearMethod

logger = logging.getLogger(__name__)

EMBEDDING = "model.embed_tokens"
ALIASES = {
    "gptq_marlin": "gptq",
    "auto_gptq": "gptq",
    "awq_marlin": "awq",
    "inc": "auto-round",
    "auto_round": "auto-round",
    "intel/auto-round": "auto-round",
}


class GPTQConfig(QuantizationConfig):
    """Source: vllm/model_executor/layers/quantization/auto_gptq.py#L95-L299 (AutoGPTQConfig)
    @ v0.22.1."""

    name = "gptq"

    by_substring = False

    def __init__(
        self,
        scheme: Scheme,
        lm_head: bool,
        skipped: Sequence[str],
        entries: Mapping[str, Any] | None = None,
    ) -> None:
        self.scheme, self.lm_head, self.skipped = scheme, lm_head, list(skipped)
        self.entries = entries or {}
        """The config's entries. In `dynamic`, "+:PATTERN" changes some of them for its layers, and
        "-:PATTERN" leaves its layers unquantised."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        check_kind("dynamic", config.get("dynamic"), Mapping, "an object, by patterns of layers")
        for rule, changes in (config.get("dynamic") or {}).items():
            check_names("dynamic", ["re:" + rule.removeprefix("-:").removeprefix("+:")])
            check_kind(f"dynamic[{rule!r}]", changes, Mapping, "an object", is_needed=True)
            cls.scheme_of({**config, **changes})
        return cls(cls.scheme_of(config), bool(config.get("lm_head", False)), [], config)

    @staticmethod
    def scheme_of(config: Mapping[str, Any]) -> Scheme:
        group_size = get_from_keys(config, ["group_size"])
        key = "format" if config.get("checkpoint_format") is None else "checkpoint_format"
        return Scheme(
            format=one_of(config, key, ["gptq", "gptq_v2"], "gptq"),
            bits=one_of(config, "bits", [4, 8]),
            group_size=group_size,
            symmetric=bool(config.get("sym", True)),
            act_order=bool(config.get("desc_act", False)) and group_size != -1,
        )

    def infer_skipped(self, dtypes: Mapping[str, str]) -> None:
        """The files decide: lists in configs are written by substrings, of which "gate" is also in
        the name of every gate_proj."""
        self.skipped, self.by_substring = unquantized_layers(dtypes), False

    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        if prefix == "lm_head" and not self.lm_head:
            return None
        rules = self.skipped, self.stacked, self.by_substring, self.in_file
        if is_layer_skipped(prefix, *rules):
            return None
        names = shards_of(prefix, self.stacked, self.in_file)
        first, *others = [self.changes_of(name) for name in names]
        if any(changes != first for changes in others):
            raise ValueError(
                f"{prefix!r} is one matrix here, and 'dynamic' of the checkpoint holds its parts "
                f"{names} in different ways; quantise all of it in one way"
            )
        if first is None:
            return None
        return WNA16LinearMethod(
            self.scheme_of({**self.entries, **first}) if first else self.scheme
        )

    def changes_of(self, name: str) -> Mapping[str, Any] | None:
        """The changes of the first rule in `dynamic` that matches the checkpoint's layer; None: it
        is not quantised.

        Source: vllm/model_executor/layers/quantization/utils/gptq_utils.py#L51-L69
        (get_dynamic_override) @ v0.22.1, which matches the name of the stacked layer.
        """
        changes: Mapping[str, Any]
        for rule, changes in (self.entries.get("dynamic") or {}).items():
            if re.match(rule.removeprefix("-:").removeprefix("+:"), name):
                return None if rule.startswith("-:") else changes
        return {}


class AWQConfig(GPTQConfig):
    """Source: vllm/model_executor/layers/quantization/awq.py#L34-L169 (AWQConfig) @ v0.22.1."""

    name = "awq"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        one_of(config, "version", ["gemm", "GEMM"], "gemm")
        bits = get_from_keys(config, ["bits", "w_bit"])
        one_of({"bits": bits}, "bits", [4])
        scheme = Scheme(
            format="awq",
            bits=bits,
            group_size=get_from_keys(config, ["group_size", "q_group_size"]),
            symmetric=not get_from_keys(config, ["zero_point"]),
        )
        made = cls(
            scheme,
            bool(config.get("lm_head", False)),
            config.get("modules_to_not_convert") or [],
        )
        made.by_substring = bool(made.skipped)
        return made


class AutoRoundConfig(GPTQConfig):
    """AutoRound's files, which are packed as GPTQ's or AWQ's.

    Source: vllm/model_executor/layers/quantization/inc.py#L38-L517 (INCConfig) @ v0.22.1.
    """

    name = "auto-round"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        one_of(config, "data_type", ["int"], "int")
        forms = ["auto_round:auto_gptq", "auto_round:auto_awq"]
        form = one_of(config, "packing_format", forms, forms[0])
        extra = config.get("extra_config")
        check_kind("extra_config", extra, Mapping, "an object, by layers")
        for layer, changes in (extra or {}).items():
            check_kind(f"extra_config[{layer!r}]", changes, Mapping, "an object", is_needed=True)
            for key in ("bits", "group_size", "sym"):
                is_whole = changes.get("bits", 0) >= 16  # the tensors tell that, too
                if not is_whole and changes.get(key, config.get(key)) != config.get(key):
                    raise ValueError(
                        f"quantization_config: extra_config[{layer!r}] has {key} {changes[key]}, "
                        f"and the other layers {config.get(key)}; all must be held in one way"
                    )
        chosen = AWQConfig if form.endswith("awq") else GPTQConfig
        return chosen.from_config({**config, "zero_point": not config.get("sym", True)})


class Int8Config(QuantizationConfig):
    """Rows of weights are quantised to int8 while loading, and each token's activations while
    running.

    The head is quantised, too, because each step reads all of it. An embedding with the same weight
    keeps its own unquantised copy, because it reads only a few rows.
    """

    name = "int8"
    rounds_tied_head = True

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        return cls()

    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        return Int8OnlineLinearMethod()


class Mxfp4Config(QuantizationConfig):
    """Experts in mxfp4 and all other weights in the model's dtype, as in gpt-oss.

    There is no matrix product for mxfp4 here: `moe/files.py` unpacks experts while they are loaded.

    Source: vllm/model_executor/layers/quantization/mxfp4.py#L41-L92 (Mxfp4Config) @ v0.22.1.
    """

    name = "mxfp4"
    keeps_experts = True

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        return cls()

    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        return None


class GGUFConfig(QuantizationConfig):
    """Layers keep the blocks of a GGUF file, if all parts of a stacked layer have one known type.

    Source: vllm/model_executor/layers/quantization/gguf.py#L49-L132 (GGUFConfig) @ v0.22.1.
    """

    name = "gguf"

    def __init__(self, types: Mapping[str, str]) -> None:
        self.types = types
        """The type of each tensor, by its name in a checkpoint."""
        self.blocks: set[str] = set()

    @classmethod
    def from_file(cls, path: Path) -> GGUFConfig:
        found = sources(read_gguf(path)).items()
        made = cls({name: source.tensor.type.name for name, source in found})
        made.stacked = resolve_model_class(read_config(path)["architectures"]).stacked
        return made

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        raise ValueError("quant_method 'gguf' is that of a .gguf file; give the file itself")

    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        names = [f"{name}.weight" for name in shards_of(prefix, self.stacked)]
        types = {self.types.get(name, "") for name in names}
        if len(types) > 1 or not types <= BITS.keys():
            return None
        self.blocks.update(names)
        return GGUFLinearMethod(types.pop())

    def share_blocks(self, head: Linear, embedding: nn.Module) -> nn.Module:
        """Let the head and the embedding share the file's blocks: each step reads the whole head.

        In float32 there is no product for blocks, and nothing changes.
        """
        type_name = self.types.get(f"{EMBEDDING}.weight", "")
        rows, columns = head.weight.shape
        is_known = native.can_multiply_groups(rows, columns, GROUP)
        if torch.get_default_dtype() == torch.float32 or type_name not in BITS or not is_known:
            return embedding
        self.blocks.add(f"{EMBEDDING}.weight")
        del head.weight
        head.quant_method = GGUFLinearMethod(type_name)
        head.quant_method.create_weights(head)
        return BlockEmbedding(head)

    def rename(self, name: str) -> list[str]:
        """The embedding's blocks are the head's, where the two share them."""
        return ["lm_head." + BLOCKS] if name == f"{EMBEDDING}.{BLOCKS}" else super().rename(name)


FORMATS: dict[str, type[QuantizationConfig]] = {
    config.name: config
    for config in (
        AWQConfig,
        AutoRoundConfig,
        CompressedTensorsConfig,
        FbgemmFp8Config,
        Fp8Config,
        GPTQConfig,
        ModelOptConfig,
        Mxfp4Config,
    )
}


def register_quantization_config(
    quantization: str,
) -> Callable[[type[QuantizationConfig]], type[QuantizationConfig]]:
    """A decorator that registers a class for checkpoints with this `quant_method`, for plugins.

    Raises:
        ValueError: if another class is registered, or it is no :class:`QuantizationConfig`.

    Source: vllm/model_executor/layers/quantization/__init__.py#L59-L106
    (register_quantization_config) @ v0.22.1. Difference: there a later class replaces the first,
    with a warning.
    """

    def register(config: type[QuantizationConfig]) -> type[QuantizationConfig]:
        if not issubclass(config, QuantizationConfig):
            raise ValueError(f"{config.__name__} must be a subclass of QuantizationConfig")
        if FORMATS.setdefault(quantization, config) is not config:
            raise ValueError(
                f"quantization {quantization!r} is read by {FORMATS[quantization].__name__} "
                f"already; register {config.__name__} under another name"
            )
        return config

    return register


ONLINE: dict[str, QuantizationConfig] = {
    "fp8": Fp8Config(online=True),
    "fp8_per_tensor": Fp8Config(online=True),
    "fp8_per_block": Fp8Config((128, 128), online=True),
    "int8": Int8Config(),
}
"""Values of `quantization=` for a checkpoint in full precision."""


def find_quantization(config: Mapping[str, Any]) -> Any:
    """The quantisation entry of a `config.json`: by one of its names, of which the last is MLX's,
    or in the `text_config` of a vision-language model."""
    text = config.get("text_config")
    for home in (config, text if isinstance(text, Mapping) else {}):
        for name in ("quantization_config", "compression_config", "quantization"):
            if home.get(name):
                return home[name]
    return None


def get_quantization_config(
    folder: str | Path,
    quantization: str | None = None,
    hf_overrides: Mapping[str, Any] | None = None,
) -> QuantizationConfig | None:
    """The quantisation of the checkpoint in `folder`; None: it is in the model's dtype.

    `hf_overrides` are entries that override those of its `config.json`.

    Raises ValueError for an unknown format, and for a `quantization` that contradicts it.

    Source: vllm/config/model.py#L1002-L1103 (ModelConfig._verify_quantization) @ v0.22.1.
    """
    folder = Path(folder)
    whole = with_decoder(with_overrides(read_config(folder), hf_overrides or {}))
    wanted = quantization and quantization.lower()
    wanted = ALIASES.get(wanted or "", wanted)
    found = find_quantization(whole) or read_quantize_config(folder, wanted)
    if wanted == GGUFConfig.name and is_gguf(folder):
        return GGUFConfig.from_file(folder)
    if not found:
        if wanted is not None and wanted not in ONLINE:
            raise ValueError(
                f"quantization is {quantization!r}, but the checkpoint is not quantised; "
                f"what can be done while loading is {', '.join(ONLINE)}, or with a .gguf file "
                "gguf; or leave it out"
            )
        return ONLINE[wanted] if wanted else None
    files = ("config.json", *OLD_FILES) if find_quantization(whole) else OLD_FILES
    file = next((folder / name for name in files if (folder / name).is_file()), folder)
    with naming(file):
        check_kinds(found)
    method = str(found.get("quant_method", "")).lower()
    method = ALIASES.get(method, method)
    if method not in FORMATS:
        raise ValueError(
            f"{file}: quant_method is {method or _unnamed(found)!r}; supported are "
            f"{sorted(FORMATS)}; take the model in full precision, with quantization='int8' if it "
            "shall be small, or quantise it with `oneshot`"
        )
    if wanted is not None and wanted != method:
        raise ValueError(
            f"quantization is {quantization!r}, but {file.name} says {method!r}; leave it out"
        )
    with naming(file):
        config = FORMATS[method].from_config(found)
    config.file = file
    config.stacked = resolve_model_class(whole.get("architectures") or ()).stacked
    dtypes: dict[str, str] = {}
    if list(folder.glob("*.safetensors")):
        headers = [read_header(each) for each in weight_files(folder)]
        dtypes = {n: info.dtype for header in headers for n, info in header.items()}
        config.infer_skipped(dtypes)
        if FLOATS.keys() >= set(dtypes.values()) and method != CompressedTensorsConfig.name:
            warn_if_left_over(method, file)  # the other says so itself
    config.in_file = file_names(dtypes, table(family(whole)).names)
    return config


def _unnamed(found: Mapping[str, Any]) -> str:
    """The format of entries that do not name it: of older bitsandbytes, or of MLX."""
    if any(key.startswith("load_in_") for key in found):
        return "bitsandbytes"
    return "mlx" if {"bits", "group_size"} <= found.keys() else ""


@functools.cache
def warn_if_left_over(method: str, file: Path) -> None:
    """Log that no weight is quantised, although the config says so. vLLM takes them as they are,
    too, in silence."""
    logger.warning(
        "%s: quantization_config says %s, but all weights are in full precision, and are used so; "
        "remove the entry",
        file, method,
    )  # fmt: skip
