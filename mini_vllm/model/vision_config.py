"""The vision encoder's shape in the `config.json` of a multimodal model.

Such a file has two parts, `text_config` and `vision_config`. The decoder reads the first like a
file of its own; this module splits the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mini_vllm.model.config_rules import OBJECT, Rule, check_entries, integer, is_integer, list_of
from mini_vllm.model.families import is_foreign, with_defaults

MAX_SIZE = 2**24
_SIZE = integer(1, MAX_SIZE, required=True)
_TOKEN = integer(0, MAX_SIZE, required=True)
_LAYERS = list_of(integer(0, 1024), "layer numbers")

MULTIMODAL: dict[str, Rule] = {
    "text_config": Rule(OBJECT.legal, OBJECT.says, required=True),
    "vision_config": Rule(OBJECT.legal, OBJECT.says, required=True),
    "image_token_id": _TOKEN,
}
VISION: dict[str, Rule] = {
    "depth": integer(1, 1024, required=True),
    "hidden_size": _SIZE,
    "intermediate_size": _SIZE,
    "num_heads": _SIZE,
    "in_channels": integer(1, 16),
    "patch_size": _SIZE,
    "spatial_merge_size": integer(1, 64),
    "temporal_patch_size": integer(1, 64),
    "out_hidden_size": _SIZE,
    "num_position_embeddings": _SIZE,
    "deepstack_visual_indexes": Rule(_LAYERS.legal, _LAYERS.says, required=True),
    "hidden_act": Rule(
        lambda value: value == "gelu_pytorch_tanh", "only 'gelu_pytorch_tanh' is supported"
    ),
    "rope_parameters": OBJECT.or_null(),
}


@dataclass(frozen=True)
class VisionArgs:
    """The shape of the encoder and of its tokens, with Hugging Face's defaults."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    spatial_merge_size: int  # patches a side that become one token
    temporal_patch_size: int  # frames in a patch; a picture is repeated to fill it
    out_hidden_size: int
    num_position_embeddings: int
    deepstack_visual_indexes: tuple[int, ...]  # after these layers features go to the decoder
    rope_theta: float
    image_token_id: int
    mrope_section: tuple[int, int, int]  # pairs of a head for time, height, width

    @property
    def patch_dim(self) -> int:
        """Numbers in a patch."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def pixels_per_token(self) -> int:
        return (self.patch_size * self.spatial_merge_size) ** 2


def split_config(
    config: Mapping[str, Any], source: str
) -> tuple[Mapping[str, Any], VisionArgs | None]:
    """The decoder's part of a `config.json`, in the form of a separate file, and the encoder's
    part.

    A file without `vision_config` is returned unchanged, with None.
    Raises ValueError that names `source`, the key, its value and what is allowed.
    """
    if "vision_config" not in config or is_foreign(config):
        return config, None
    check_entries(config, MULTIMODAL, source)
    named = {
        key: config[key]
        for key in ("architectures", "tie_word_embeddings", "quantization_config")
        if key in config
    }
    text = with_defaults({**config["text_config"], **named})
    for key in ("dtype", "torch_dtype", "eos_token_id"):
        if text.get(key) is None and config.get(key) is not None:
            text[key] = config[key]
    rope: Any = text.get("rope_scaling") or text.get("rope_parameters") or {}
    section = rope.get("mrope_section", [24, 20, 20]) if isinstance(rope, dict) else None
    _check_section(section, text["head_dim"], source)
    return text, _vision_args(config, tuple(section), source)  # type: ignore[arg-type]


def _check_section(section: Any, head_dim: Any, source: str) -> None:
    good = isinstance(section, list) and len(section) == 3 and all(map(is_integer, section))
    if not good or not is_integer(head_dim) or 2 * sum(section) != head_dim or min(section) < 0:
        raise ValueError(
            f"{source}: mrope_section is {section!r} and head_dim {head_dim!r}; the section must "
            "be three integers whose sum is half of head_dim"
        )


def _vision_args(
    config: Mapping[str, Any], section: tuple[int, int, int], source: str
) -> VisionArgs:
    vision = config["vision_config"]
    check_entries(vision, VISION, source, "vision_config.")
    hidden_size, heads = vision["hidden_size"], vision["num_heads"]
    if hidden_size % (4 * heads):
        raise ValueError(
            f"{source}: vision_config.hidden_size is {hidden_size}; it must be a multiple of "
            f"4 * num_heads, which is {4 * heads}: a head is turned by rows and by columns"
        )
    levels = vision["deepstack_visual_indexes"]
    if levels and max(levels) >= vision["depth"]:
        raise ValueError(
            f"{source}: vision_config.deepstack_visual_indexes names layer {max(levels)}; there "
            f"are {vision['depth']}, counted from 0"
        )
    if vision["out_hidden_size"] != config["text_config"].get("hidden_size"):
        raise ValueError(
            f"{source}: vision_config.out_hidden_size is {vision['out_hidden_size']}; the "
            f"decoder's hidden_size is {config['text_config'].get('hidden_size')}; they must "
            "be equal"
        )
    return VisionArgs(
        depth=vision["depth"],
        hidden_size=hidden_size,
        intermediate_size=vision["intermediate_size"],
        num_heads=heads,
        in_channels=vision.get("in_channels", 3),
        patch_size=vision["patch_size"],
        spatial_merge_size=vision.get("spatial_merge_size", 2),
        temporal_patch_size=vision.get("temporal_patch_size", 2),
        out_hidden_size=vision["out_hidden_size"],
        num_position_embeddings=vision["num_position_embeddings"],
        deepstack_visual_indexes=tuple(levels),
        rope_theta=float((vision.get("rope_parameters") or {}).get("rope_theta", 10000.0)),
        image_token_id=config["image_token_id"],
        mrope_section=section,
    )
