"""The norms of families, by their name in the tables.

rms             x / rms(x) * w                       Llama
gemma           x / rms(x) * (1 + w), in float32     Gemma
layer           (x - mean) / std * w + b             StarCoder2, Phi
layer_no_bias   (x - mean) / std * w                 Cohere
layer_1p        (x - mean) / std * (1 + w) + b       Nemotron
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.model.layers import RMSNorm


def gemma_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """x / rms(x) * scale over the last dimension; `scale` is float32 and includes the 1.

    Source: vllm/model_executor/layers/layernorm.py#L131-L178 (GemmaRMSNorm) @ v0.22.1.
    """
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * scale).to(x.dtype)


class GemmaRMSNorm(RMSNorm):
    """The factor is 1 + the checkpoint's weight."""

    def process_weights_after_loading(self) -> None:
        self.weight.data = self.weight.float() + 1

    def forward(self, x: Tensor) -> Tensor:
        return gemma_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + x
        return self(residual), residual


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension, in float32.

    Source: vllm/model_executor/models/starcoder2.py#L190-L191 (Starcoder2DecoderLayer) @ v0.22.1.
    """

    has_bias = True

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if self.has_bias else None
        self.eps = eps

    def process_weights_after_loading(self) -> None:
        self.weight.data = self.weight.float()
        if self.bias is not None:
            self.bias.data = self.bias.float()

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x.float(), x.shape[-1:], self.weight, self.bias, self.eps)
        return y.to(x.dtype)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add `x` to the residual stream; returns the sum's norm, and the sum."""
        residual = residual + x
        return self(residual), residual


class LayerNormNoBias(LayerNorm):
    has_bias = False


class LayerNorm1P(LayerNorm):
    """The factor is 1 + the checkpoint's weight."""

    def process_weights_after_loading(self) -> None:
        super().process_weights_after_loading()
        self.weight.data = self.weight + 1


class HeadRowsNorm(LayerNormNoBias):
    """A norm of each head by itself, `[T, H, D]`, with a row of weights per head: `[H, D]`."""

    def __init__(self, num_heads: int, size: int, eps: float) -> None:
        super().__init__(size, eps)
        self.weight = nn.Parameter(torch.ones(num_heads, size))

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x.float(), x.shape[-1:], eps=self.eps)
        return (y * self.weight).to(x.dtype)


class UnitNorm(nn.Module):
    """x / rms(x), without a weight."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype)


Norm = RMSNorm | LayerNorm
NORMS: dict[str, type[Norm]] = {
    "rms": RMSNorm,
    "gemma": GemmaRMSNorm,
    "layer": LayerNorm,
    "layer_no_bias": LayerNormNoBias,
    "layer_1p": LayerNorm1P,
}


def make_norm(kind: str, size: int, eps: float) -> Norm:
    """A norm over `size` features of the kind that a table names."""
    return NORMS[kind](size, eps)
