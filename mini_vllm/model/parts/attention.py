"""Grouped-query attention with the features that families add to Llama's.

    q, k, v -> norm of q and k -> rotation -> cache -> softmax(q k * scale) v -> o

Source: vllm/model_executor/models/olmo2.py#L68-L186 (Olmo2Attention) @ v0.22.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from mini_vllm.attention import AttentionBackend, AttentionMetadata
from mini_vllm.attention.variants import VariantAttention
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.families.table import QueryGrowth
from mini_vllm.model.interface import LayerSpec
from mini_vllm.model.layers import Build, RMSNorm
from mini_vllm.model.llama import LlamaAttention
from mini_vllm.model.parts.norms import HeadRowsNorm, Norm, UnitNorm, make_norm
from mini_vllm.model.rope import apply_rope


class Attention(LlamaAttention):
    """Llama's attention with norms, rotation, scale and softmax as `args.parts` says.

    Args:
        index: which layer of the model it is in.
        prefix: its name in the checkpoint.
    """

    def __init__(self, args: ModelArgs, build: Build, index: int, prefix: str) -> None:
        parts = args.parts
        super().__init__(args, build, args.sliding_windows[index], prefix)
        self.turns, self.turns_neighbours = parts.turns(index), parts.turns_neighbours
        self.norms_after_rotation = parts.norms_after_rotation
        self.norms_all_heads = parts.qk_norm == "all"
        self.q_norm, self.k_norm = (
            self._make_norm(args, heads) for heads in (self.num_heads, self.num_kv_heads)
        )
        self.qk_norm: Norm | None = None
        if parts.attention_scale is not None:
            self.scale = parts.attention_scale
        self.sinks = nn.Parameter(torch.zeros(self.num_heads)) if parts.has_sinks else None
        self.growth, self.chunk = parts.growth(index), parts.chunk(index)
        chunk = self.chunk
        if parts.has_sinks or parts.attention_softcap is not None or chunk is not None:
            inner = cast(AttentionBackend, build.backend)
            variant = VariantAttention(inner, self.sinks, parts.attention_softcap, chunk)
            self.backend = replace(build, backend=variant).attention()

    @property
    def layer_spec(self) -> LayerSpec:
        if self.chunk is not None:
            return LayerSpec("chunked_local", chunk=self.chunk)
        return super().layer_spec

    def _make_norm(self, args: ModelArgs, num_heads: int) -> Norm | UnitNorm | None:
        """The norm of `num_heads` queries or keys of a token."""
        match args.parts.qk_norm:
            case None:
                return None
            case "length":
                return UnitNorm(args.rms_norm_eps) if self.turns else None
            case "head_rows":
                return HeadRowsNorm(num_heads, self.head_dim, args.rms_norm_eps)
            case "all":
                return make_norm(args.parts.norm, num_heads * self.head_dim, args.rms_norm_eps)
        return make_norm(args.parts.norm, self.head_dim, args.rms_norm_eps)

    def process_weights_after_loading(self) -> None:
        """Join the norms of each query and each key into one, with a row of weights per head."""
        q_norm, k_norm = self.q_norm, self.k_norm
        if isinstance(q_norm, RMSNorm) and isinstance(k_norm, RMSNorm) and not self.norms_all_heads:
            rows = [q_norm.weight] * self.num_heads + [k_norm.weight] * self.num_kv_heads
            norm = type(q_norm)(self.head_dim, q_norm.eps)
            norm.weight = nn.Parameter(torch.stack(rows), requires_grad=False)
            norm.process_weights_after_loading()
            object.__setattr__(self, "qk_norm", norm)  # no submodule: no tensor of a checkpoint

    def norm_qk(self, qk: Tensor) -> Tensor:
        if self.qk_norm is not None:
            return self.qk_norm(qk)
        if self.q_norm is None or self.k_norm is None:
            return qk
        query, key = qk.split([self.num_heads, self.num_kv_heads], dim=1)
        pairs = (self.q_norm, query), (self.k_norm, key)
        return torch.cat([self._norm_heads(norm, heads) for norm, heads in pairs], dim=1)

    def _norm_heads(self, norm: Norm | UnitNorm, heads: Tensor) -> Tensor:
        """Norm queries or keys `[T, H, D]`, reshaped to the rows of the norm."""
        if isinstance(norm, HeadRowsNorm):
            return norm(heads)
        rows = heads.flatten(1) if self.norms_all_heads else heads.flatten(0, 1)
        return norm(rows).view(heads.shape)

    def rotate(self, qk: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate queries and keys `[T, H, D]`, if this layer has a rotation."""
        if not self.turns:
            return qk
        if self.turns_neighbours:
            qk = neighbours_apart(qk, rope[0].shape[-1])
        return apply_rope(qk, *rope)

    def prepare_qk(
        self, qk: Tensor, rope: tuple[Tensor, Tensor], metadata: AttentionMetadata
    ) -> Tensor:
        if self.norms_after_rotation:
            qk = self.norm_qk(self.rotate(qk, rope))
        else:
            qk = self.rotate(self.norm_qk(qk), rope)
        if self.growth is None:
            return qk
        query, key = qk.split([self.num_heads, self.num_kv_heads], dim=1)
        return torch.cat((query * growth(self.growth, metadata).to(qk.dtype), key), dim=1)


def neighbours_apart(x: Tensor, turning: int) -> Tensor:
    """Move the two features of each rotated pair from neighbours to a distance of `turning / 2`.

        x0 y0 x1 y1 x2 y2 | rest   ->   x0 x1 x2 y0 y1 y2 | rest

    Scores do not change when queries and keys are reordered alike, so nothing is moved back.
    """
    pairs = x[..., :turning].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return pairs if turning == x.shape[-1] else torch.cat((pairs, x[..., turning:]), dim=-1)


def growth(by: QueryGrowth, metadata: AttentionMetadata) -> Tensor:
    """The factor of each token's query, `[T, 1, 1]` float32."""
    lens = zip(metadata.query_lens_cpu, metadata.text_lens_cpu, strict=True)
    positions = torch.cat([torch.arange(seq - query, seq) for query, seq in lens])
    steps = ((positions.float() + by.offset) / by.every).floor()
    factors = 1.0 + by.rate * torch.log1p(steps)
    return factors.to(metadata.seq_lens.device)[:, None, None]
