"""Mamba2 as a layer: Mamba2's own, and most layers of Granite 4.

    x -> x, B, C -> convolution, silu -> state space -> * silu(z) -> norm -> out
      -> dt -> softplus ----------------^                 ^
      -> z -----------------------------------------------+

Source: vllm/model_executor/layers/mamba/mamba_mixer2.py#L669-L1046 (MambaMixer2.conv_ssm_forward)
@ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.attention import StateMetadata
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.interface import LayerSpec
from mini_vllm.model.layers import Build, Linear
from mini_vllm.model.layout import WHOLE, Layout, Parallel, ParamSpec, Part
from mini_vllm.model.mixers.args import Mamba2Args
from mini_vllm.model.mixers.mamba2 import chunk_scan, selective_state_update
from mini_vllm.model.mixers.recurrent import ShortConv, StatePlan, kept_in_float32, state_spec


class NormAfterGate(nn.Module):
    """(x * silu(gate)) / rms * weight, each group of heads by itself, in float32.

    If all ranks share one group, each rank has a part of it, and the squares are summed over ranks.

    Args:
        whole: the args of the whole model.
        n_groups: on this rank.
    Source: vllm/model_executor/layers/mamba/mamba_mixer2.py#L97-L146 (forward_native) @ v0.22.1.
    """

    def __init__(self, whole: Mamba2Args, n_groups: int, eps: float, parallel: Parallel) -> None:
        super().__init__()
        sizes, column = [whole.inner_size], parallel.column()
        self.parts, self.whole_parts = (one.parts(1, sizes) for one in (column, WHOLE))
        self.weight = nn.Parameter(torch.empty(self.parts[0].output_size))
        self.weight.spec = ParamSpec(out_dim=0)  # type: ignore[attr-defined]
        self.n_groups, self.eps = n_groups, eps
        self.group_size = whole.inner_size // whole.n_groups
        is_cut = self.parts[0].output_size < n_groups * self.group_size
        self.layout = parallel.row() if is_cut else WHOLE

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """`[T, size]` both; the result has the dtype of `gate`."""
        gated = (x.float() * F.silu(gate.float())).unflatten(-1, (self.n_groups, -1))
        squares = self.layout.finish(gated.square().sum(-1, keepdim=True))
        normed = gated * (squares / self.group_size + self.eps).rsqrt()
        return (normed.flatten(-2) * self.weight.float()).to(gate.dtype)


class Beside:
    """A `Layout` of stacked projections that have a layout each."""

    adds_bias = True

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = layouts

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        pairs = zip(self.layouts, output_sizes, strict=True)
        return [part for layout, size in pairs for part in layout.parts(input_size, [size])]

    def finish(self, y: Tensor) -> Tensor:
        return y


class Mamba2Mixer(nn.Module):
    """The mixer; arguments as of every mixer, see `model/decoder.py`."""

    file_name = "mixer"

    def __init__(self, args: ModelArgs, build: Build, index: int, prefix: str) -> None:
        super().__init__()
        assert args.mamba2 is not None
        whole, column = args.mamba2, build.parallel.column()
        prefix = f"{prefix.rpartition('.')[0]}.{self.file_name}"
        shared = WHOLE if whole.n_groups == 1 else column  # one group is shared by all heads
        conv = [column, shared, shared]  # x, B and C
        sizes = [whole.inner_size, *whole.conv_sizes, whole.num_heads]  # z, these, and dt
        layout, hidden, bias = Beside([column, *conv, column]), args.hidden_size, whole.use_bias
        self.in_proj = Linear(hidden, sizes, bias, build, layout, f"{prefix}.in_proj")
        self.conv1d = ShortConv(
            whole.conv_sizes, whole.conv_kernel, whole.use_conv_bias, Beside(conv)
        )
        heads = [whole.num_heads]
        self.parts, self.whole_parts = (one.parts(1, heads) for one in (column, WHOLE))
        self.args = own = whole.share(self.parts[0].output_size)
        self.A_log, self.dt_bias, self.D = (kept_in_float32(own.num_heads) for _ in range(3))
        self.norm = NormAfterGate(whole, own.n_groups, args.rms_norm_eps, build.parallel)
        self.out_proj = Linear(
            whole.inner_size, hidden, bias, build, build.parallel.row(), f"{prefix}.out_proj"
        )

    @property
    def layer_spec(self) -> LayerSpec:
        """What it keeps for a request, see `LlamaForCausalLM.kv_cache_spec`."""
        own = self.args
        matrix = (own.num_heads, own.head_dim, own.state_size)
        return state_spec(own.conv_size, own.conv_kernel, matrix, self.conv1d.weight)

    def forward(
        self, x: Tensor, rope: object, kv_cache: tuple[Tensor, Tensor], metadata: StateMetadata
    ) -> Tensor:
        """`[T, H] -> [T, H]`; `kv_cache` has the matrices `[blocks, heads, P, N]` in float32 and
        the tails `[blocks, width - 1, C]`. Positions are not used."""
        own, (matrices, tails) = self.args, kv_cache
        plan = StatePlan.of(metadata, own.conv_kernel, x.device)
        z, xbc, dt = self.in_proj(x).split([own.inner_size, own.conv_size, own.num_heads], dim=-1)
        xbc = self.conv1d(xbc, tails, metadata, plan.conv_rows).float()
        dt = F.softplus(dt.float() + self.dt_bias)
        heads = {"a": -self.A_log.exp(), "d": self.D}
        one, many = partial(selective_state_update, **heads), partial(chunk_scan, **heads)
        out = plan.run(one, many, self.heads(xbc, dt), matrices, metadata)
        return self.out_proj(self.norm(out.flatten(1), z))

    def heads(self, xbc: Tensor, dt: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x `[T, heads, P]`, dt `[T, heads]`, B and C `[T, groups, N]`."""
        own = self.args
        shared = own.n_groups * own.state_size
        x, b, c = xbc.split([own.inner_size, shared, shared], dim=-1)
        b, c = (one.unflatten(-1, (own.n_groups, own.state_size)) for one in (b, c))
        return x.unflatten(-1, (own.num_heads, own.head_dim)), dt, b, c


class GraniteMamba2Mixer(Mamba2Mixer):
    """The same mixer under its name in Granite's files."""

    file_name = "mamba"
