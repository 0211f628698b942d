"""Rotary position embedding: rotate pairs of features by angles that grow with the position.

    features of one head (D = 8)     x0 x1 x2 x3 | x4 x5 x6 x7
    pair i is (x_i, x_{i + D/2})     rotated by the angle position * inv_freq[i]

A scaling type changes the frequencies so that a model can read longer texts than in its training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mini_vllm.kernels import can_launch, native
from mini_vllm.kernels.pointwise import ROPE
from mini_vllm.model.config import ModelArgs

NEEDED_PARAMETERS = {
    "default": [],
    "linear": ["factor"],
    "llama3": ["factor", "low_freq_factor", "high_freq_factor"],
    "yarn": [],
    "longrope": ["short_factor"],
}


def compute_inv_freq(args: ModelArgs) -> tuple[Tensor, float]:
    """The angle per position of each feature pair, `[R / 2]` float32, and a factor for cos and sin.

    R is the rotated part of a head, mostly all of it. Types: default, linear, llama3, yarn, and
    longrope with its short factors. Raises ValueError for any other: with "dynamic" the angles
    change with the length, and keys that are already cached would be wrong.
    Source: vllm/model_executor/layers/rotary_embedding/__init__.py#L33-L384 (get_rope) @ v0.22.1.
    """
    rope = args.rope_parameters
    kind = rope["rope_type"]
    if kind not in NEEDED_PARAMETERS:
        raise ValueError(
            f"rope_type {kind!r} is not supported; use default, linear, llama3, yarn or longrope"
        )
    for name in NEEDED_PARAMETERS[kind]:
        if name not in rope:
            raise ValueError(f"rope_type {kind!r} needs {name!r} in config.json")
    dim = args.rotary_dim
    inv_freq = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
    match kind:
        case "linear":
            return inv_freq / rope["factor"], 1.0
        case "llama3":
            return _llama3(inv_freq, args), 1.0
        case "yarn":
            return _yarn(inv_freq, args)
        case "longrope":
            # As floats of their own: a model is made while torch's default type is the model's.
            factors = torch.tensor(rope["short_factor"], dtype=torch.float32)
            return inv_freq / factors, _longrope_factor(rope)
    return inv_freq, 1.0


def _llama3(inv_freq: Tensor, args: ModelArgs) -> Tensor:
    """Divide slow frequencies by `factor`, keep fast ones, and interpolate between them."""
    rope = args.rope_parameters
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)  # 0 = slow pair, 1 = fast pair
    return keep * inv_freq + (1 - keep) * inv_freq / rope["factor"]


def _yarn(inv_freq: Tensor, args: ModelArgs) -> tuple[Tensor, float]:
    """Like llama3, with a ramp over the pair's index, and a factor that makes attention sharper."""
    rope, dim = args.rope_parameters, args.rotary_dim
    original = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or args.max_position_embeddings / original

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    first = pair_that_turns(rope.get("beta_fast") or 32)
    last = pair_that_turns(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    ramp = (torch.arange(dim // 2).float() - first) / max(last - first, 0.001)
    keep = 1 - ramp.clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / factor, _yarn_attention_factor(args, factor)


def _yarn_attention_factor(args: ModelArgs, factor: float) -> float:
    rope = args.rope_parameters
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"])
    return mscale(1.0)


def _longrope_factor(rope: Mapping[str, Any]) -> float:
    """The factor that makes attention sharper, from the ratio of the new to the original length."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    original = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or rope["max_position_embeddings"] / original
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


class RotaryEmbedding(nn.Module):
    """Computes cos and sin once per step; all layers rotate with the same two tensors."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        # Not buffers: casting the model to bfloat16 must not round the frequencies.
        self.inv_freq, self.scaling = compute_inv_freq(args)
        # Negative angles in the first half: cos does not change, and sin gets its sign.
        self.turns = torch.cat((-self.inv_freq, self.inv_freq))

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin of each token's angles, `[T, 1, R]` each, in `dtype`.

        Both halves of a head have the same angles; `sin` is negated in the first half.
        """
        angles = positions[:, None, None].float() * self.turns
        cos, sin = angles.cos(), angles.sin()
        if self.scaling != 1.0:
            cos, sin = cos * self.scaling, sin * self.scaling
        return cos.to(dtype), sin.to(dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` `[T, heads, D]` by `cos` and `sin` `[T, 1, R]`; `x` may be overwritten.

    Only the first R features of a head are rotated; mostly these are all.
    (first, second) becomes (first * cos - second * sin, second * cos + first * sin). Rolling by
    half a head swaps first and second, and the sign is in `sin`, so three operations suffice.
    """
    if native.can_run(x) and cos.dtype == x.dtype:
        return native.rope(x, cos, sin)
    if (turning := cos.shape[-1]) < x.shape[-1]:
        turned = apply_rope(x[..., :turning].contiguous(), cos, sin)
        return torch.cat((turned, x[..., turning:]), dim=-1)
    if can_launch(x):
        ROPE.run(x=x, cos=cos, sin=sin)
        return x
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)
