"""The experts of a layer: E gated MLPs, of which each token uses k.

    grouped.py    sorts pairs of tokens and experts, so that each expert multiplies once
    here          the experts themselves: one tensor [E, out, in], or modules of any kind; on a GPU
                  a kernel reads rows in place (`kernels/grouped_gemm.py`)

Source: vllm/model_executor/layers/fused_moe/fused_moe.py#L1664-L1869 (fused_experts_impl)
@ v0.22.1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import cast

import torch
from torch import Tensor, nn

from mini_vllm.kernels import can_launch, native, unpacked
from mini_vllm.kernels.experts import grouped_gemm
from mini_vllm.kernels.moe_layout import moe_align_block_size, rows_tile
from mini_vllm.model.layers import (
    ACTIVATIONS,
    Build,
    GatedMLP,
    UnquantizedLinearMethod,
    to_compute_dtype,
)
from mini_vllm.model.layout import SINGLE, WHOLE, ExpertPlacement, Layout, Parallel, ParamSpec
from mini_vllm.model.moe.args import MoEArgs
from mini_vllm.model.moe.grouped import mix_experts, product_by_expert, sort_by_expert
from mini_vllm.platforms import platform_of

SWIGLU_ALPHA = 1.702
"""With this alpha, x * sigmoid(alpha * x) is nearly gelu(x)."""


def swigluoai_mul(gate_up: Tensor, limit: float) -> Tensor:
    """(up + 1) * gate * sigmoid(1.702 * gate), `[T, 2 * size] -> [T, size]`; gate is the first half
    of each row. Gate is at most `limit`, and up lies between -limit and limit.

    Source: vllm/model_executor/layers/activation.py#L389-L397 (SwigluOAIAndMul.forward_native)
    @ v0.22.1.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(SWIGLU_ALPHA * gate))


def activation(args: MoEArgs) -> Callable[[Tensor], Tensor]:
    """The activation between an expert's two products, `[T, 2 * size] -> [T, size]`."""
    if args.hidden_act == "swigluoai":
        return partial(swigluoai_mul, limit=args.swiglu_limit)
    return ACTIVATIONS[args.hidden_act]


class GroupedLinear(nn.Module):
    """E linear layers of one shape: row r of x is multiplied by the weight of its expert.

    Args:
        num_experts, input_size, output_sizes: as of `Linear`, of each expert.
        bias: whether each has one.
        layout: which rows and columns of each expert's matrix this rank has.
        values: see `UnquantizedLinearMethod`.

    The weight is `[E, sum(out), in]`, so that each expert's part has the form of `Linear`. In
    bfloat16 on a CPU it is stored in blocks for our own product,
    `[E, sum(out) / 32, in / 2, 32, 2]`.
    """

    def __init__(
        self,
        num_experts: int,
        input_size: int,
        output_sizes: list[int],
        bias: bool,
        layout: Layout,
        values: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.layout, self.values = layout, values
        self.matrices: ctypes.Array[native.Matrix] | None = None
        self.parts, self.whole_parts = (
            each.parts(input_size, output_sizes) for each in (layout, WHOLE)
        )
        self.input_size = self.parts[0].input_size
        self.output_sizes = [part.output_size for part in self.parts]
        rows = sum(self.output_sizes)
        self.weight = nn.Parameter(torch.empty(num_experts, rows, self.input_size))
        self.weight.spec = ParamSpec(out_dim=0, in_dim=1)
        self.bias = nn.Parameter(torch.empty(num_experts, rows)) if bias else None
        if self.bias is not None:
            self.bias.spec = ParamSpec(out_dim=0)

    def process_weights_after_loading(self) -> None:
        kept = self.weight.data
        if platform_of(kept.device).is_host:
            kept = kept.to(UnquantizedLinearMethod(self.values).kept_dtype(kept[0]))
        is_ours = kept.dtype == torch.bfloat16 and native.can_run(kept) and not can_launch(kept)
        if is_ours and native.can_pack(kept[0]):
            self.weight.data = torch.stack([native.pack(one) for one in kept])
            matrices = [native.Matrix.of_floats(one) for one in self.weight.data]
            self.matrices = (native.Matrix * len(matrices))(*matrices)
        else:
            self.weight.data = to_compute_dtype(kept)
        if self.bias is not None:
            self.bias.data = to_compute_dtype(self.bias)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """`[P, in] -> [P, sum(out)]`: the first `counts[0]` rows are for expert 0, and so on."""
        if self.matrices is not None:
            y = native.grouped_multiply(x, self.matrices, counts)
        else:
            y = grouped_product(x, self.weight, counts)
        if self.bias is not None and self.layout.adds_bias:
            y += self.bias.repeat_interleave(counts, 0)
        return y

    def of_expert(self, place: int) -> Tensor:
        """The weight `[sum(out), in]` of the expert in a place."""
        weight = self.weight.data[place]
        return weight if self.matrices is None else native.unpack(weight)

    def launch(self, x: Tensor, ids: Tensor, lists: tuple[Tensor, Tensor], top_k: int) -> Tensor:
        """`[P / top_k, in] -> [P, sum(out)]` by the kernel, which does not move rows.

        `ids` `[P]` is the expert of each pair, `lists` are those of `moe_align_block_size`.
        """
        y = grouped_gemm(x, self.weight, *lists, top_k, len(ids))
        if self.bias is not None and self.layout.adds_bias:
            y += self.bias[ids]
        return y


def grouped_product(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """x @ weight[e]^T for the rows of each expert e: `[P, in]`, `[E, out, in]` -> `[P, out]`.

    `counts` `[E]` says how many rows each has; they follow one another. So do those of the result,
    whose rows torch pads to whole 16 bytes.
    """
    if can_group(x, weight):
        ends = counts.cumsum(0, dtype=torch.int32)
        return torch._grouped_mm(x, weight.transpose(1, 2), offs=ends).contiguous()
    return product_by_expert(x, weight, counts)


def can_group(x: Tensor, weight: Tensor) -> bool:
    """Whether torch's grouped product can be used: rows must be a multiple of 16 bytes."""
    has_it = hasattr(torch, "_grouped_mm") and x.dtype == weight.dtype
    return has_it and weight.shape[-1] * weight.itemsize % 16 == 0


class Experts(nn.Module):
    """The base of all forms of experts: sort rows, multiply, add."""

    can_be_recorded = False  # the number of rows of each expert is read from the device

    def __init__(self, args: MoEArgs, placement: ExpertPlacement | None) -> None:
        super().__init__()
        self.num_experts, self.placement = args.num_experts, placement
        self.local_experts = placement.local_experts if placement else [*range(args.num_experts)]
        """The expert in each place of this rank, with its number in the files."""
        self.scales_input = args.routing == "topk_sigmoid"

    def take_places(self, local_experts: list[int]) -> None:
        """Use these experts in the places of this rank; their weights have arrived."""
        self.local_experts = local_experts

    def run(self, x: Tensor, counts: Tensor) -> Tensor:
        """The experts' results `[P, H]` of rows `[P, H]`: `counts[0]` rows for expert 0, and so
        on."""
        raise NotImplementedError

    def run_in_places(self, x: Tensor, places: Tensor) -> Tensor:
        """The experts' results `[P, H]` of rows `[P, H]` in any order, given their places `[P]`."""
        if not len(x):
            return x
        order, counts = sort_by_expert(places, len(self.local_experts))
        results = torch.empty_like(x)
        results[order] = self.run(x[order], counts)
        return results

    def forward(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The weighted sum `[T, H]` of each token's experts; `weights` and `ids` are `[T, k]`."""
        if self.placement is None:
            return mix_experts(x, weights, ids, self.num_experts, self.run, self.scales_input)
        places, number = self.placement.to_places(ids), self.placement.num_physical
        return mix_experts(x, weights, places, number, self._run_elsewhere, self.scales_input)

    def _run_elsewhere(self, rows: Tensor, counts: Tensor) -> Tensor:
        """As `run`, with `counts` for the places of all ranks."""
        assert self.placement is not None
        places = torch.arange(len(counts), device=rows.device).repeat_interleave(counts)
        return self.placement.exchange(rows, places, self.run_in_places)


class StackedExperts(Experts):
    """Experts in the model's dtype: each of the two products is one call with one tensor.

    On a GPU it is one launch, whose grid does not depend on the chosen experts.
    """

    can_be_recorded = True

    def __init__(self, hidden_size: int, args: MoEArgs, build: Build, prefix: str) -> None:
        super().__init__(args, build.parallel.experts(args.num_experts))
        parallel = build.parallel if self.placement is None else SINGLE
        number, size, bias = len(self.local_experts), args.moe_intermediate_size, args.expert_bias
        column, row = parallel.column(), parallel.row()
        sizes, values = [size, size], build.values
        self.gate_up_proj = GroupedLinear(number, hidden_size, sizes, bias, column, values)
        self.down_proj = GroupedLinear(number, size, [hidden_size], bias, row, values)
        self.act_mul = activation(args)

    def process_weights_after_loading(self) -> None:
        """Copy the weights of each expert's first place to its other places."""
        for place, expert in enumerate(self.local_experts):
            first = self.local_experts.index(expert)
            for weight in self.parameters() if first < place else ():
                weight.data[place] = weight.data[first]

    def run(self, x: Tensor, counts: Tensor) -> Tensor:
        return self.down_proj(self.act_mul(self.gate_up_proj(x, counts)), counts)

    def run_in_places(self, x: Tensor, places: Tensor) -> Tensor:
        return (
            self.launch(x, places, 1)
            if can_launch(x) and len(x)
            else super().run_in_places(x, places)
        )

    def forward(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        if not can_launch(x) or self.placement is not None:
            return super().forward(x, weights, ids)
        scale, k = weights.to(x.dtype)[..., None], ids.shape[1]
        if self.scales_input:  # then each pair has its own row
            results = self.launch((x[:, None] * scale).flatten(0, 1), ids, 1)
            return results.unflatten(0, (-1, k)).sum(1)
        return (self.launch(x, ids, k).unflatten(0, (-1, k)) * scale).sum(1)

    def launch(self, x: Tensor, ids: Tensor, top_k: int) -> Tensor:
        """The results `[P, H]` of all pairs of a row and one of its `top_k` experts."""
        pairs, number = ids.flatten(), len(self.local_experts)
        tile = rows_tile(len(pairs), number)
        sorted_ids, expert_ids, _ = moe_align_block_size(pairs, tile, number)
        lists = sorted_ids, expert_ids
        gate_up = self.gate_up_proj.launch(x, pairs, lists, top_k)
        return self.down_proj.launch(self.act_mul(gate_up), pairs, lists, 1)


class SeparateExperts(Experts):
    """Experts as separate modules, whose linear layers may be quantised in any format."""

    def __init__(self, hidden_size: int, args: MoEArgs, build: Build, prefix: str) -> None:
        super().__init__(args, build.parallel.experts(args.num_experts))
        self.act_mul = activation(args)
        build = without_sums(build) if self.placement is None else replace(build, parallel=SINGLE)
        for index in dict.fromkeys(self.local_experts):
            mlp = GatedMLP(
                hidden_size, args.moe_intermediate_size, args.expert_bias, build,
                f"{prefix}.{index}",
            )  # fmt: skip
            mlp.act_mul = self.act_mul  # type: ignore[assignment]
            self.add_module(str(index), mlp)

    def take_places(self, local_experts: list[int]) -> None:
        for index in {*self.local_experts} - {*local_experts}:
            delattr(self, str(index))
        self.__dict__.pop("matrices", None)  # cached for the old places
        super().take_places(local_experts)

    @cached_property
    def matrices(self) -> list[ctypes.Array[native.Matrix]] | None:
        """Both products of all experts, for one call each; None: `cpu.cpp` does not support
        them."""
        found = []
        for name in ("gate_up_proj", "down_proj"):
            linears = [getattr(self.get_submodule(str(e)), name) for e in self.local_experts]
            if any(linear.matrix is None or linear.order is not None for linear in linears):
                return None
            matrices = [linear.matrix.with_bias(linear.bias) for linear in linears]
            found.append((native.Matrix * len(matrices))(*matrices))
        return found

    def run(self, x: Tensor, counts: Tensor) -> Tensor:
        if native.can_run(x) and self.matrices:
            gate_up, down = self.matrices
            # If unpacking pays for the expert with the most rows, each product decides by itself.
            if not unpacked.is_faster(gate_up[0].kind, int(counts.max()), x.dtype):
                inner = self.act_mul(native.grouped_multiply(x, gate_up, counts))
                return native.grouped_multiply(inner, down, counts)
        rows = zip(x.split(counts.tolist()), self.local_experts, strict=True)
        return torch.cat([self.get_submodule(str(e))(own) for own, e in rows if len(own)])


def make_experts(hidden_size: int, args: MoEArgs, build: Build, prefix: str) -> Experts:
    """The experts of the layer `prefix`, in the form that suits the format of their weights."""
    kind = StackedExperts if build.stacks_experts else SeparateExperts
    return kind(hidden_size, args, build, prefix)


class PartialSums:
    """A `Layout` that leaves the results of ranks unsummed, so that several are summed at once."""

    def __init__(self, layout: Layout) -> None:
        self.parts, self.adds_bias = layout.parts, layout.adds_bias

    def finish(self, y: Tensor) -> Tensor:
        return y


class WithoutSums:
    """A `Parallel` whose row-parallel layers leave the sum over ranks to the caller."""

    def __init__(self, parallel: Parallel) -> None:
        self.parallel = parallel

    def row(self) -> Layout:
        return PartialSums(self.parallel.row())

    def column(self) -> Layout:
        return self.parallel.column()


def without_sums(build: Build) -> Build:
    """`build` for layers whose results are added to others before the sum over ranks."""
    if build.parallel is SINGLE:
        return build
    return replace(build, parallel=cast(Parallel, WithoutSums(build.parallel)))
