"""A model's shape, read from the `config.json` of a Hugging Face folder."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_vllm.config.vllm_names import spelled
from mini_vllm.errors import show
from mini_vllm.gguf import is_gguf
from mini_vllm.json_files import read_json
from mini_vllm.model.config_rules import check_entries
from mini_vllm.model.config_schema import CONFIG, GENERATION_CONFIG, check_config
from mini_vllm.model.families import (
    TABLES,
    family,
    is_foreign,
    sliding_windows,
    table,
    unsupported,
    with_decoder,
    with_defaults,
)
from mini_vllm.model.families.table import LLAMA, Parts
from mini_vllm.model.gguf.config import read_config as read_gguf_config
from mini_vllm.model.gguf.config import read_generation_config
from mini_vllm.model.mixers.args import GatedDeltaArgs, LatentArgs, Mamba2Args
from mini_vllm.model.moe.args import MoEArgs, moe_args
from mini_vllm.model.vision_config import MULTIMODAL, VisionArgs, split_config


@dataclass(frozen=True)
class ModelArgs:
    """The numbers a decoder needs, with the defaults of the Hugging Face config classes."""

    architectures: tuple[str, ...]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: Mapping[str, Any]  # always with "rope_type" and "rope_theta"
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    sliding_windows: tuple[int | None, ...]  # one entry a layer; None = full attention
    eos_token_ids: tuple[int, ...]
    dtype: str  # what the checkpoint says, e.g. "bfloat16"
    hidden_act: str = "silu"
    query_pre_attn_scalar: float | None = None  # scores are divided by its root; None: head_dim
    local_rope_parameters: Mapping[str, Any] | None = None  # of layers with a window; None: same
    moe: MoEArgs | None = None  # of the experts, if the model is a mixture
    gated_delta: GatedDeltaArgs | None = None  # of layers that mix tokens otherwise
    mamba2: Mamba2Args | None = None
    latent: LatentArgs | None = None
    ignored_tensors: tuple[str, ...] = ()  # how names begin that decoding does not need
    vision: VisionArgs | None = None  # of the encoder, if the model sees
    parts: Parts = LLAMA  # of a family that is a table, see `model/families`

    @property
    def eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @property
    def rotary_dim(self) -> int:
        """How many features of a head are rotated; they are the first ones."""
        return int(self.head_dim * self.rope_parameters.get("partial_rotary_factor", 1.0))

    def ending_with(self, token_id: int | None) -> ModelArgs:
        """The same args, with the tokenizer's EOS token before all other end tokens.

        Source: vllm/sampling_params.py#L556-L584 (SamplingParams.update_from_generation_config)
        @ v0.22.1
        """
        ids = (*_as_list(token_id), *self.eos_token_ids)
        return replace(self, eos_token_ids=_known_ids(ids, self.vocab_size))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], source: str = "config.json") -> ModelArgs:
        """Build from a parsed `config.json`.

        Raises ValueError that names `source`, the key, its value and what is allowed.
        """
        config, vision = split_config(with_decoder(config), source)
        config = with_defaults(config)
        try:
            check_config(config, source)
        except ValueError as error:
            if is_foreign(config):  # then this is the error that matters
                message = unsupported(config["architectures"], config)
                raise ValueError(f"{source}: {message}") from error
            raise
        architectures = tuple(config.get("architectures", ()))
        is_qwen2 = "Qwen2ForCausalLM" in architectures  # biases on q, k, v, and only there
        heads, hidden_size = config["num_attention_heads"], config["hidden_size"]
        default_head_dim = 128 if "Qwen3ForCausalLM" in architectures else hidden_size // heads
        rope, local_rope = rope_parameters(config)
        attention_bias = config.get("attention_bias", False)
        own = table(family(config))
        args = cls(
            architectures=architectures,
            vocab_size=config["vocab_size"],
            hidden_size=hidden_size,
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or default_head_dim,
            max_position_embeddings=max_positions(config, rope),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_parameters=rope,
            tie_word_embeddings=config.get("tie_word_embeddings", False),
            qkv_bias=is_qwen2 or attention_bias,
            o_bias=attention_bias and not is_qwen2,
            mlp_bias=config.get("mlp_bias", False),
            sliding_windows=sliding_windows(config),
            eos_token_ids=_known_ids(_as_list(config.get("eos_token_id")), config["vocab_size"]),
            dtype=spelled("dtype", config.get("dtype") or config.get("torch_dtype") or "float32"),
            hidden_act=config.get("hidden_activation") or config.get("hidden_act") or "silu",
            query_pre_attn_scalar=config.get("query_pre_attn_scalar"),
            local_rope_parameters=local_rope,
            vision=vision,
        )
        try:
            parts = own.parts(config) if own.parts else LLAMA
            moe = None if family(config) in TABLES else moe_args(config)
            more = own.args(config) if own.args else {}
            return replace(args, **{"parts": parts, "moe": moe} | more)
        except ValueError as error:  # of entries that do not go together
            raise ValueError(f"{source}: {error}") from error


def load_config(
    folder: str | Path,
    overrides: Mapping[str, Any] | None = None,
    generation: str | Path | None = None,
) -> ModelArgs:
    """The shape of a model: of `folder/config.json`, or of a GGUF file's metadata.

    End-of-sequence ids also come from `generation_config.json`, or from the file `generation` if
    one is given. `overrides` are entries that replace the file's.

    Raises FileNotFoundError for a missing folder or file, ValueError for a bad value.
    """
    folder, path = Path(folder), config_file(folder)
    args = ModelArgs.from_dict(with_overrides(read_config(folder), overrides or {}), str(path))
    path = Path(generation or folder / "generation_config.json")
    if not path.is_file():
        return args
    more = read_generation(path)
    check_entries(more, GENERATION_CONFIG, str(path))
    eos = (*args.eos_token_ids, *_as_list(more.get("eos_token_id")))
    return replace(args, eos_token_ids=_known_ids(eos, args.vocab_size))


def read_generation(path: Path) -> dict[str, Any]:
    """The entries of a `generation_config.json`, or the same entries from a GGUF file."""
    return read_generation_config(path) if is_gguf(path) else read_json(path)


def config_file(model: str | Path) -> Path:
    """The file with a model's shape: the `config.json` of its folder, or a GGUF file."""
    return Path(model) if is_gguf(model) else Path(model) / "config.json"


def read_config(model: str | Path) -> dict[str, Any]:
    """The entries of a model's `config.json`, or the same entries from a GGUF file.

    Raises FileNotFoundError for a missing folder or file, ValueError for one that is damaged.
    """
    folder = Path(model)
    if is_gguf(folder):
        return read_gguf_config(folder)
    if not folder.is_dir():
        is_there = "is a file; give its folder" if folder.is_file() else "does not exist"
        raise FileNotFoundError(f"model folder {str(folder)!r} {is_there}")
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{str(folder)!r} has no config.json; {_instead_of(folder)}")
    return read_json(path)


def _instead_of(folder: Path) -> str:
    """What to give in place of a folder without a `config.json`."""
    if (folder / "adapter_config.json").is_file():
        return "it is an adapter: load its base, and give this folder as LoRARequest"
    if (folder / "params.json").is_file():
        return (
            "it has params.json, the form of the model's authors; take the model in the form of "
            "transformers, with config.json and model.safetensors"
        )
    inner = sorted((*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")))
    if len(inner) == 1:
        return f"its folder {str(inner[0].parent.relative_to(folder))!r} has one; give that"
    return "give the folder of a Hugging Face checkpoint"


def with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a `config.json`, with `overrides` in place of the file's.

    A multimodal model has its decoder's entries in `text_config`. An override of one of these may
    stand inside a `text_config` of the overrides, or beside it.

    Raises ValueError for an override that the engine does not read; it names the nearest.
    """
    check_overrides(config, overrides)
    merged = _overridden(config, overrides)
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return merged
    for part in ("text_config", "vision_config"):
        if isinstance(config.get(part), Mapping) and isinstance(overrides.get(part), Mapping):
            merged[part] = _overridden(config[part], overrides[part])
    outer = {key: overrides[key] for key in overrides if key not in config or key in text}
    outer = {key: value for key, value in outer.items() if not key.endswith("_config")}
    if outer and isinstance(merged["text_config"], Mapping):
        merged["text_config"] = _overridden(merged["text_config"], outer)
    return merged


ONE_FACT = (("dtype", "torch_dtype"), ("num_experts", "num_local_experts"),
            ("quantization_config", "compression_config"))  # fmt: skip
"""Entries that have one name in older files and another in newer ones."""


OF_POOLING = (
    "classifier_from_token", "id2label", "is_causal", "is_matryoshka", "is_original_qwen3_reranker",
    "matryoshka_dimensions", "method", "num_labels", "problem_type", "use_sep_token",
)  # fmt: skip
"""Entries about pooling, which :mod:`mini_vllm.pooling.config` reads."""


def check_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Raise ValueError for the first override that the engine does not read and no file has."""
    text = config.get("text_config")
    own = table(family({**config, **overrides}))
    known = {*CONFIG, *MULTIMODAL, *OF_POOLING, *sum(ONE_FACT, ()), *config}
    known |= {*own.rules, *own.defaults, *own.spelled}
    known |= set(text) if isinstance(text, Mapping) else set()
    for key in overrides:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), sorted(known), n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else "leave it out"
            raise ValueError(
                f"hf_overrides has {key}={show(overrides[key])}, which the engine does not read; "
                f"{hint}"
            )


def _overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with `overrides`. An override also replaces an entry with an older or newer name.

    Old files have some entries beside `rope_parameters` that new files have inside it. An override
    replaces them in both places; what it does not name stays as in the file.
    """
    merged = {**config, **overrides}
    for names in ONE_FACT:
        if any(name in overrides for name in names):
            merged = {k: v for k, v in merged.items() if k not in names or k in overrides}
    if "rope_parameters" in overrides:  # it replaces the older `rope_scaling` as a whole
        merged["rope_scaling"] = overrides.get("rope_scaling")
        return merged
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return merged
    whole = rope.get("full_attention")  # of the layers with full attention
    whole = whole if isinstance(whole, Mapping) else rope
    kept = {name: whole[name] for name in BESIDE_ROPE if name in whole}
    moved = {name: overrides[name] for name in BESIDE_ROPE if name in overrides}
    if isinstance(overrides.get("rope_scaling"), Mapping):
        merged["rope_scaling"] = {**kept, **moved, **overrides["rope_scaling"]}
    elif moved:
        new = {**whole, **moved}
        merged["rope_parameters"] = new if whole is rope else {**rope, "full_attention": new}
    return merged


BESIDE_ROPE = ("rope_theta", "partial_rotary_factor")


def rope_parameters(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The rotation's parameters, and those of layers with a window if they differ.

    The result has one form for all spellings: `rope_parameters` (new, possibly by layer type), or
    `rope_theta` with `rope_scaling` and `rope_local_base_freq`. If both are given, `rope_scaling`
    counts, as in transformers.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if "full_attention" not in given:
        local = config.get("rope_local_base_freq")
        return _one_rope(config, given), _one_rope(config, {"rope_theta": local}) if local else None
    whole, local = (given.get(f"{kind}_attention") or {} for kind in ("full", "sliding"))
    theta = config.get("rope_local_base_freq", 10000.0)
    return _one_rope(config, whole), _one_rope(config, {"rope_theta": theta, **local})


def _one_rope(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    most = config.get("max_position_embeddings", 2048)
    kind = given.get("rope_type", given.get("type", "default"))
    return {
        "original_max_position_embeddings": config.get("original_max_position_embeddings") or most,
        "max_position_embeddings": most,
        "rope_theta": config.get("rope_theta", 10000.0),
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
        **{key: value for key, value in given.items() if key != "type" and value is not None},
        "rope_type": "longrope" if kind == "su" else kind,
    }


def max_positions(config: Mapping[str, Any], rope: Mapping[str, Any]) -> int:
    """The longest sequence that the model can read: its training length times the rotation's scale.

        default, llama3    max_position_embeddings, which is already scaled
        linear             factor * max_position_embeddings
        yarn               factor * original_max_position_embeddings
        longrope           original_max_position_embeddings, the range of the short factors; with
                           the long factors, keys that are already cached would have wrong angles

    Source: vllm/config/model.py#L2119-L2256 (_get_and_verify_max_len) @ v0.22.1
    """
    most: int = rope["max_position_embeddings"]
    original: int = rope["original_max_position_embeddings"]
    factor = rope.get("factor")
    match rope["rope_type"]:
        case "longrope":
            return original
        case "linear" if factor and family(config) not in STRETCHED_ALREADY:
            return int(factor * most)
        case "yarn" if factor:
            return int(factor * original)
    return most


STRETCHED_ALREADY = ("Gemma3ForCausalLM",)
"""Families whose `max_position_embeddings` is already scaled, for every type of rotation."""


def _known_ids(token_ids: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    """The ids without repetitions, and without those outside the vocabulary, which are never
    sampled; shrunken copies of a model have such ids."""
    return tuple(dict.fromkeys(token for token in token_ids if token < vocab_size))


def _as_list(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)
