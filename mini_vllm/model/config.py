"""A model's shape, read from the `config.json` of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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

    @property
    def eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelArgs:
        """Build from a parsed `config.json`. Raises ValueError naming a missing or bad entry."""
        architectures = tuple(config.get("architectures") or ())
        is_qwen2 = "Qwen2ForCausalLM" in architectures  # biases on q, k, v, and only there
        heads = _required(config, "num_attention_heads")
        hidden_size = _required(config, "hidden_size")
        default_head_dim = 128 if "Qwen3ForCausalLM" in architectures else hidden_size // heads
        kv_heads = config.get("num_key_value_heads") or heads
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise ValueError(f"config.json: hidden_act is {activation!r}; only 'silu' is supported")
        if heads % kv_heads:
            raise ValueError(
                f"config.json: num_attention_heads {heads} is not a multiple of "
                f"num_key_value_heads {kv_heads}"
            )
        attention_bias = bool(config.get("attention_bias", False))
        return cls(
            architectures=architectures,
            vocab_size=_required(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_required(config, "intermediate_size"),
            num_hidden_layers=_required(config, "num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=config.get("head_dim") or default_head_dim,
            max_position_embeddings=config.get("max_position_embeddings", 2048),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_parameters=_rope_parameters(config),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=is_qwen2 or attention_bias,
            o_bias=attention_bias and not is_qwen2,
            mlp_bias=bool(config.get("mlp_bias", False)),
            sliding_windows=_sliding_windows(config),
            eos_token_ids=tuple(dict.fromkeys(_as_list(config.get("eos_token_id")))),
            dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
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
    config = read_json(path)
    generation = folder / "generation_config.json"
    more_eos = read_json(generation).get("eos_token_id") if generation.is_file() else None
    eos = [*_as_list(config.get("eos_token_id")), *_as_list(more_eos)]
    return ModelArgs.from_dict({**config, "eos_token_id": eos})


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
    num_layers = _required(config, "num_hidden_layers")
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    first = config.get("max_window_layers", 28)
    kinds = config.get("layer_types") or [
        "sliding_attention" if i >= first else "full_attention" for i in range(num_layers)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _required(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {key} is {value!r}; it must be an integer of at least 1")
    return value


def _as_list(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError that names the file if it is not one."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
