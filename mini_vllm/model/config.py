"""A model's shape, read from the `config.json` of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_vllm.errors import show
from mini_vllm.model.config_schema import GENERATION_CONFIG, check_config, check_entries
from mini_vllm.model.vision_config import VisionArgs, split_config


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
    vision: VisionArgs | None = None  # of the encoder, if the model sees

    @property
    def eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], source: str = "config.json") -> ModelArgs:
        """Build from a parsed `config.json`.

        Raises ValueError that names `source`, the key, its value and what is allowed.
        """
        config, vision = split_config(config, source)
        check_config(config, source)
        architectures = tuple(config.get("architectures", ()))
        is_qwen2 = "Qwen2ForCausalLM" in architectures  # biases on q, k, v, and only there
        heads, hidden_size = config["num_attention_heads"], config["hidden_size"]
        default_head_dim = 128 if "Qwen3ForCausalLM" in architectures else hidden_size // heads
        attention_bias = config.get("attention_bias", False)
        return cls(
            architectures=architectures,
            vocab_size=config["vocab_size"],
            hidden_size=hidden_size,
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or default_head_dim,
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_parameters=_rope_parameters(config),
            tie_word_embeddings=config.get("tie_word_embeddings", False),
            qkv_bias=is_qwen2 or attention_bias,
            o_bias=attention_bias and not is_qwen2,
            mlp_bias=config.get("mlp_bias", False),
            sliding_windows=_sliding_windows(config),
            eos_token_ids=tuple(dict.fromkeys(_as_list(config.get("eos_token_id")))),
            dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
            vision=vision,
        )


def load_config(folder: str | Path) -> ModelArgs:
    """Read `folder/config.json`; end-of-sequence ids also from `generation_config.json`.

    Raises FileNotFoundError for a missing folder or file, ValueError for a bad value.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"model folder {str(folder)!r} does not exist")
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{str(folder)!r} has no config.json; give the folder of a Hugging Face checkpoint"
        )
    args = ModelArgs.from_dict(read_json(path), str(path))
    generation = folder / "generation_config.json"
    if not generation.is_file():
        return args
    more = read_json(generation)
    check_entries(more, GENERATION_CONFIG, str(generation))
    eos = (*args.eos_token_ids, *_as_list(more.get("eos_token_id")))
    return replace(args, eos_token_ids=tuple(dict.fromkeys(eos)))


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """One form for both spellings: `rope_parameters` (new) and `rope_theta` + `rope_scaling`."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {
        "original_max_position_embeddings": config.get("original_max_position_embeddings")
        or config.get("max_position_embeddings", 2048),
        "rope_theta": config.get("rope_theta", 10000.0),
        "rope_type": given.get("type", "default"),
        **{key: value for key, value in given.items() if key != "type"},
    }


def _sliding_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The window of each layer: Qwen's `use_sliding_window` from layer `max_window_layers` on."""
    num_layers = config["num_hidden_layers"]
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    first = config.get("max_window_layers")
    first = 28 if first is None else first
    kinds = config.get("layer_types") or [
        "sliding_attention" if i >= first else "full_attention" for i in range(num_layers)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _as_list(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError that names the file if it is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {show(value)}; it must be a JSON object, {{...}}")
    return value
