"""Gated DeltaNet as a layer: three of four layers of Qwen3-Next and Qwen3.5.

    x -> q, k, v -> convolution, silu -> gated delta rule -> norm -> * silu(z) -> out
      -> a, b -> decay g, strength beta -^                            ^
      -> z -----------------------------------------------------------+

Source: vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py#L1261-L1524 (_forward_core)
@ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.attention import StateMetadata
from mini_vllm.kernels import native_states
from mini_vllm.kernels.mixers import gdn_decode
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.interface import LayerSpec
from mini_vllm.model.layers import Build, Linear
from mini_vllm.model.layout import WHOLE
from mini_vllm.model.mixers.args import GatedDeltaArgs
from mini_vllm.model.mixers.chunks import Chunks
from mini_vllm.model.mixers.gated_delta import (
    chunk_gated_delta_rule,
    l2_norm,
    log_decay,
    recurrent_gated_delta_rule,
)
from mini_vllm.model.mixers.recurrent import ShortConv, StatePlan, kept_in_float32, state_spec

Projected = tuple[Tensor, Tensor, Tensor, Tensor]
"""q, k and v side by side `[T, C]`, z `[T, Hv * Dv]`, b and a `[T, Hv]`."""


def gated_delta_of_prompts(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Tensor, chunks: Chunks
) -> tuple[Tensor, Tensor]:
    """As `chunk_gated_delta_rule`; in C++ where that is compiled, which changes `states`."""
    if native_states.can_run_gated_delta(states):
        return native_states.gated_delta(q, k, v, g, beta, states, chunks.starts)
    return chunk_gated_delta_rule(q, k, v, g, beta, states, chunks)


class GatedRMSNorm(nn.Module):
    """x / rms(x) * weight * silu(gate), each head by itself, in float32.

    Source: vllm/model_executor/layers/layernorm.py#L183-L270 (RMSNormGated) @ v0.22.1.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """`[T, H, D]` both; the result has the dtype of `gate`."""
        wide = x.float()
        normed = wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (normed * self.weight.float() * F.silu(gate.float())).to(gate.dtype)


class GatedDeltaNet(nn.Module):
    """The mixer with the projections of Qwen3.5's files: one each for qkv, z, b and a.

    Args:
        index: which layer of the model it is in.
        prefix: its name in the model.
    """

    file_name = "linear_attn"

    def __init__(self, args: ModelArgs, build: Build, index: int, prefix: str) -> None:
        super().__init__()
        assert args.gated_delta is not None
        whole, column = args.gated_delta, build.parallel.column()
        prefix = f"{prefix.rpartition('.')[0]}.{self.file_name}"
        self.make_projections(whole, args.hidden_size, build, prefix)
        sizes = [whole.key_size, whole.key_size, whole.value_size]
        self.conv1d = ShortConv(sizes, whole.conv_kernel_dim, False, column)
        heads = [whole.num_value_heads]
        self.parts, self.whole_parts = (one.parts(1, heads) for one in (column, WHOLE))
        self.args = own = whole.share(self.parts[0].output_size)
        self.A_log = kept_in_float32(own.num_value_heads)
        self.dt_bias = kept_in_float32(own.num_value_heads)
        self.norm = GatedRMSNorm(own.value_head_dim, args.rms_norm_eps)
        self.out_proj = Linear(
            whole.value_size, args.hidden_size, False, build, build.parallel.row(),
            f"{prefix}.out_proj",
        )  # fmt: skip

    def make_projections(
        self, whole: GatedDeltaArgs, hidden_size: int, build: Build, prefix: str
    ) -> None:
        """Register the layers for `project`; a rank has the rows of its own heads."""
        sizes: dict[str, int | list[int]] = {
            "in_proj_qkv": [whole.key_size, whole.key_size, whole.value_size],
            "in_proj_z": whole.value_size,
            "in_proj_b": whole.num_value_heads,
            "in_proj_a": whole.num_value_heads,
        }
        self.make_columns(sizes, hidden_size, build, prefix)

    def make_columns(
        self, sizes: Mapping[str, int | list[int]], hidden_size: int, build: Build, prefix: str
    ) -> None:
        for name, size in sizes.items():
            column = build.parallel.column()
            layer = Linear(hidden_size, size, False, build, column, f"{prefix}.{name}")
            setattr(self, name, layer)

    def project(self, x: Tensor) -> Projected:
        return self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)

    @property
    def layer_spec(self) -> LayerSpec:
        """What it keeps for a request, see `LlamaForCausalLM.kv_cache_spec`."""
        own = self.args
        matrix = (own.num_value_heads, own.key_head_dim, own.value_head_dim)
        return state_spec(own.conv_size, own.conv_kernel_dim, matrix, self.conv1d.weight)

    def forward(
        self, x: Tensor, rope: object, kv_cache: tuple[Tensor, Tensor], metadata: StateMetadata
    ) -> Tensor:
        """`[T, H] -> [T, H]`; `kv_cache` has the matrices `[blocks, Hv, Dk, Dv]` in float32 and the
        tails `[blocks, width - 1, C]`. Positions are not used."""
        matrices, tails = kv_cache
        plan = StatePlan.of(metadata, self.args.conv_kernel_dim, x.device)
        qkv, z, b, a = self.project(x)
        qkv = self.conv1d(qkv, tails, metadata, plan.conv_rows)
        g, beta = log_decay(a, self.A_log, self.dt_bias), b.float().sigmoid()
        tokens = (*self.heads(qkv), g, beta)
        one, many = recurrent_gated_delta_rule, gated_delta_of_prompts
        out = plan.run(one, many, tokens, matrices, metadata, gdn_decode)
        return self.out_proj(self.norm(out, z.view(out.shape)).flatten(1))

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k `[T, Hv, Dk]`, of length 1 before q is scaled, and v `[T, Hv, Dv]`, in float32.

        A key head serves neighbouring value heads.
        """
        own = self.args
        sizes = [own.key_size, own.key_size, own.value_size]
        q, k, v = qkv.float().split(sizes, dim=-1)
        shared = own.num_value_heads // own.num_key_heads
        q, k = (
            l2_norm(x.view(len(x), -1, own.key_head_dim)).repeat_interleave(shared, dim=1)
            for x in (q, k)
        )
        return q * own.key_head_dim**-0.5, k, v.view(len(v), -1, own.value_head_dim)


class GatedDeltaNetByKeyHead(GatedDeltaNet):
    """The mixer with the projections of Qwen3-Next's files: two, with rows grouped by key head.

    The rows of each key head are its q and k, and v and z of the value heads that it serves. The
    second projection has b and a of these value heads.
    Source: vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py#L644-L694
    (fix_query_key_value_ordering) @ v0.22.1.
    """

    def make_projections(
        self, whole: GatedDeltaArgs, hidden_size: int, build: Build, prefix: str
    ) -> None:
        sizes: dict[str, int | list[int]] = {
            "in_proj_qkvz": whole.conv_size + whole.value_size,
            "in_proj_ba": 2 * whole.num_value_heads,
        }
        self.make_columns(sizes, hidden_size, build, prefix)

    def project(self, x: Tensor) -> Projected:
        own = self.args
        values = own.num_value_heads // own.num_key_heads
        sizes = [own.key_head_dim] * 2 + [values * own.value_head_dim] * 2
        by_head = self.in_proj_qkvz(x).view(len(x), own.num_key_heads, -1)
        q, k, v, z = (part.flatten(1) for part in by_head.split(sizes, dim=-1))
        ba = self.in_proj_ba(x).view(len(x), own.num_key_heads, 2, values)
        b, a = (part.flatten(1) for part in ba.unbind(2))
        return torch.cat((q, k, v), dim=-1), z, b, a
