"""The parts every decoder is made of. Activations are flat: `[T, features]`, without padding.

Weights and the KV cache have the model's dtype. Activations have the *compute dtype*: the same
dtype, except on a CPU without bfloat16 arithmetic. There a bfloat16 product is several times slower
than a float32 one, so activations are float32, and so is the multiplication by the weights. A CPU
with bfloat16 arithmetic processes twice as many numbers at a time in bfloat16 as in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.attention import AttentionBackend
from mini_vllm.attention.quantized import FORMATS, QuantizedKV
from mini_vllm.kernels import USES_GEMV, can_launch, native
from mini_vllm.kernels.pointwise import RMS_NORM, SILU_MUL
from mini_vllm.model.layout import (
    SINGLE,
    WHOLE,
    EmbeddingLayout,
    Layout,
    Parallel,
    ParamSpec,
)
from mini_vllm.platforms import platform_of

# A narrow weight with fewer elements than this is also kept unpacked: for many tokens torch's plain
# product is then mostly the fastest, and a call of oneDNN costs more than the product. In half
# precision a plain call packs the weight again each time, so there oneDNN has all weights.
MIN_PACKED_ELEMENTS = 1 << 20
MIN_PACKED_SIZE = 512
"""A weight with at least this many rows and columns is not narrow."""
# From this many tokens on, unpacking oneDNN's weight costs little compared with the product itself.
# A float32 layer needs this only without a compiler.
MIN_UNPACKED_TOKENS = 512
NARROW = 512
"""A model with a smaller hidden size is narrow: the time of a step is mostly the cost of calls."""


@functools.cache
def compute_dtype(dtype: torch.dtype, device: torch.device | str) -> torch.dtype:
    """The dtype of activations for weights of `dtype`; float32 on a CPU without that arithmetic."""
    return platform_of(device).compute_dtype(dtype)


def weights_dtype(dtype: torch.dtype, hidden_size: int, device: torch.device | str) -> torch.dtype:
    """The dtype in which a model of `dtype` is loaded: its own, except for a narrow model on a CPU
    that can compute in bfloat16.

    There most of the time is spent in calls, which `model/narrow.py` avoids in float32. So the few
    weights are stored with the same values in float32, and everything except products uses float32,
    see `Build.values`.
    """
    is_narrow = hidden_size < NARROW and native.can_read(dtype, device)
    return torch.float32 if is_narrow and compute_dtype(dtype, device) == dtype else dtype


def product_dtype(weight: Tensor, device: torch.device | str) -> torch.dtype:
    """The dtype in which a product stores `weight`: that of activations, or the weight's own if our
    product converts it while it multiplies. A small weight has the dtype of activations."""
    is_in_blocks = native.can_pack(weight) and native.can_read(weight.dtype, device)
    if is_in_blocks and not is_small(weight):
        return weight.dtype
    return compute_dtype(weight.dtype, device)


def is_small(weight: Tensor) -> bool:
    """Whether `weight` is narrow and has few elements, so that a second copy is worth its
    memory."""
    return weight.numel() < MIN_PACKED_ELEMENTS and min(weight.shape) < MIN_PACKED_SIZE


def to_compute_dtype(tensor: Tensor) -> Tensor:
    return tensor.to(compute_dtype(tensor.dtype, tensor.device))


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies packed weights of `dtype` correctly on this machine, by a test."""
    x, weight = torch.ones(2, 64, dtype=dtype), torch.ones(64, 64, dtype=dtype)
    try:
        return torch.equal(packed_linear(x, pack(weight), None), F.linear(x, weight))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def pack(weight: Tensor) -> Tensor:
    """A copy of `weight` in the blocked order that oneDNN's small products read fastest."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, 16)


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def process_weights_after_loading(self) -> None:
        self.weight.data = to_compute_dtype(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add `x` to the residual stream; returns the sum's norm, and the sum."""
        return add_rms_norm(x, residual, self.weight, self.eps)


@functools.cache
def scalar(value: float) -> Tensor:
    """`value` as a tensor, which `addcmul` needs, made once."""
    return torch.tensor(value, dtype=torch.float32)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of each row of `x` `[T, size]`, or `[T, H, D]` with a weight `[H, D]`.

    The mean is taken in float32.
    """
    if can_launch(x):
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        RMS_NORM.run(x=x, weight=weight, output=output, eps=eps)
        return output
    if native.can_run(x) and weight.dtype == x.dtype:
        return native.rms_norm(x, weight, eps)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = torch.addcmul(scalar(eps), length, length, value=1 / x.shape[-1]).rsqrt_()
    return (x * scale).to(x.dtype).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of `x + residual`, and that sum; `residual` may be overwritten with it."""
    if can_launch(x):
        output = torch.empty_like(x)
        RMS_NORM.run(x=x, weight=weight, output=output, eps=eps, residual=residual)
        return output, residual
    if native.can_run(x) and weight.dtype == x.dtype == residual.dtype:
        return native.rms_norm(x, weight, eps, residual), residual
    residual = residual + x
    return rms_norm(residual, weight, eps), residual


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, `[T, 2 * size] -> [T, size]`; gate is the first half of each row."""
    gate, up = gate_up.chunk(2, dim=-1)
    if can_launch(gate_up):
        output = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        SILU_MUL.run(gate_up=gate_up, output=output)
        return output
    if native.can_run(gate_up):
        return native.silu_mul(gate_up)
    return F.silu(gate).mul_(up)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up, with the tanh approximation; shapes as in `silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)


ACTIVATIONS = {"silu": silu_mul, "gelu_pytorch_tanh": gelu_mul}


class LinearMethod(Protocol):
    """How the weights of a linear layer are stored, and how to multiply by them.

    Source: vllm/model_executor/layers/linear.py#L141-L179 (LinearMethodBase) @ v0.22.1.
    """

    def create_weights(self, layer: Linear) -> None:
        """Register the parameters of `layer`, empty, each with a `spec`: its `ParamSpec`."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        """Convert the weights to the format that is fastest to multiply. Called once."""

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        """x @ weight^T + bias, `[T, in] -> [T, sum(out)]`."""


class Adapters(Protocol):
    """The LoRA adapters of a linear layer, which add to its result."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """`y` `[T, sum(out)]` plus the adapters' output for `x` `[T, in]`; may change `y` in
        place."""


class QuantConfig(Protocol):
    """How a checkpoint is quantised."""

    blocks: Collection[str]
    """Names of a GGUF file's tensors that layers keep in blocks."""
    rounds_tied_head: bool
    """Whether a head that shares the embedding's weight multiplies by a rounded copy of it."""
    keeps_experts: bool
    """Whether experts have the model's dtype after loading."""

    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        """The method of the layer called `prefix`, or None if it is not quantised."""

    def share_blocks(self, head: Linear, embedding: nn.Module) -> nn.Module:
        """Before loading, let a head that shares the weight of `embedding` keep it in blocks.

        Returns an embedding that reads its rows from the head, or `embedding` unchanged.
        """

    def rename(self, name: str) -> Sequence[str]:
        """Our names of the checkpoint's tensor `name`; usually only `name` itself."""


@dataclass(frozen=True)
class Build:
    """The settings with which every layer of a model is built.

    Args:
        backend: computes attention; None for a model that does not run.
        quant: how weights are quantised; None: all have the model's dtype.
        parallel: which part of each layer this rank has.
        kv_cache_dtype: the dtype of the KV cache; "auto": the model's dtype.
        values: the model's dtype, in which products may store weights that are loaded in a wider
            one.
        separates_experts: each expert gets its own linear layers, also where one tensor could hold
            all of them.
    """

    backend: AttentionBackend | None = None
    quant: QuantConfig | None = None
    parallel: Parallel = SINGLE
    kv_cache_dtype: str = "auto"
    values: torch.dtype | None = None
    separates_experts: bool = False

    @property
    def stacks_experts(self) -> bool:
        """Whether one tensor holds the weights of all experts of a layer."""
        keeps = self.quant is None or self.quant.keeps_experts
        return keeps and not self.separates_experts

    @property
    def is_plain(self) -> bool:
        """Whether this rank has every matrix as a whole, in the model's dtype."""
        return self.quant is None and self.parallel is SINGLE

    def method(self, layer: Linear, prefix: str) -> LinearMethod:
        method = self.quant.get_quant_method(layer, prefix) if self.quant else None
        return method or UnquantizedLinearMethod(self.values)

    def for_tied_head(self) -> Build:
        """The settings of a head that shares its weight with the embedding."""
        rounds = self.quant is not None and self.quant.rounds_tied_head
        return self if rounds else Build(values=self.values)

    def attention(self) -> AttentionBackend:
        """The attention backend of one layer."""
        form = FORMATS.get(self.kv_cache_dtype)
        backend = cast(AttentionBackend, self.backend)
        return QuantizedKV(backend, form) if form else backend


class UnquantizedLinearMethod:
    """The weight in the model's dtype; on a CPU in the format that is fastest to multiply.

    Args:
        values: the weight's original dtype, if it is loaded in a wider one.

    Source: vllm/model_executor/layers/linear.py#L182-L228 (UnquantizedLinearMethod) @ v0.22.1.
    """

    def __init__(self, values: torch.dtype | None = None) -> None:
        self.values = values

    def create_weights(self, layer: Linear) -> None:
        layer.packed = layer.blocks = None
        layer.weight = nn.Parameter(torch.empty(sum(layer.output_sizes), layer.input_size))
        layer.weight.spec = ParamSpec(out_dim=0, in_dim=1)

    def process_weights_after_loading(self, layer: Linear) -> None:
        if not platform_of(layer.weight.device).is_host:
            return
        weight = layer.weight.to(self.kept_dtype(layer.weight))
        is_alone = is_multiplied(weight, weight.dtype)
        is_float = compute_dtype(weight.dtype, "cpu") == torch.float32
        if (is_float or is_alone) and native.can_run(weight) and native.can_pack(weight):
            is_last = (is_alone or not is_small(weight)) and not hasattr(layer.weight, "has_rows")
            layer.blocks = native.pack(weight, in_place=is_last)
            if layer.bias is not None:
                layer.bias.data = layer.bias.float()  # sums are float32 for weights of any dtype
        elif not (is_float and is_small(weight)) and can_pack(weight.dtype):
            layer.packed = pack(weight)
        is_twice = not is_small(weight) and (layer.blocks is not None or layer.packed is not None)
        # A new parameter, or none beside a packed one: a tied embedding keeps the old one.
        layer.weight = None if is_twice or is_alone else nn.Parameter(weight, requires_grad=False)

    def kept_dtype(self, weight: Tensor) -> torch.dtype:
        """The dtype in which products on a CPU store `weight`."""
        values = self.values or weight.dtype
        return values if is_multiplied(weight, values) else product_dtype(weight, "cpu")

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        weight: Tensor | None = layer.weight
        if USES_GEMV and can_launch(x):
            from mini_vllm.kernels import products

            if weight is not None and products.takes_gemv(x, weight, bias):
                return products.gemv(x, weight)
        has_rival = x.dtype == torch.float32 and not native.has_narrow_mkl()
        is_ours = weight is None or len(x) <= native.FEW_TOKENS or not has_rival
        if layer.blocks is not None and is_ours and native.can_run(x):
            return native.linear(x, layer.blocks, bias)
        is_onednns = not has_rival or len(x) < MIN_UNPACKED_TOKENS
        if layer.packed is not None and is_onednns:
            return packed_linear(x, layer.packed, bias)
        bias = None if bias is None else bias.to(x.dtype)
        return F.linear(x, (unpacked(layer) if weight is None else weight).to(x.dtype), bias)


def is_multiplied(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether our own product uses the processor's bfloat16 instructions for `weight` in `dtype`.

    It is then the fastest for few tokens, and nearly as fast as oneDNN for many, so the weight is
    stored only once, for this product.
    """
    return dtype == torch.bfloat16 and native.multiplies_bf16() and native.can_pack(weight)


def unpacked(layer: Linear) -> Tensor:
    """The unpacked weight of a layer that stores it packed."""
    if layer.packed is not None:
        return layer.packed.to_dense()
    return to_compute_dtype(native.unpack(layer.blocks))


UNQUANTIZED = UnquantizedLinearMethod()
PLAIN = Build()


class Embedding(nn.Module):
    """One row of `weight` for each token id: `[T] -> [T, hidden]`.

    If this rank has only some rows, the layout looks them up and sums the ranks' results.
    """

    def __init__(self, vocab_size: int, hidden_size: int, layout: Layout = WHOLE) -> None:
        super().__init__()
        self.layout, self.parts = layout, layout.parts(hidden_size, [vocab_size])
        self.whole_parts = WHOLE.parts(hidden_size, [vocab_size])
        self.is_whole = self.parts == self.whole_parts
        self.weight = nn.Parameter(torch.empty(self.parts[0].output_size, hidden_size))
        self.weight.spec = ParamSpec(out_dim=0)
        self.weight.has_rows = True  # rows are read one by one: a tied head must not reorder them

    def forward(self, input_ids: Tensor) -> Tensor:
        if self.is_whole:
            return F.embedding(input_ids, self.weight)
        return cast(EmbeddingLayout, self.layout).lookup(input_ids, self.weight)


class TiedEmbedding(nn.Module):
    """An :class:`Embedding` that reads its rows from `blocks`, the packed weight of the head.

    So the shared weight is in memory only once. Rows are converted to `dtype`, the model's, because
    a product may store its weight in a narrower dtype.
    """

    def __init__(self, blocks: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.blocks, self.dtype, self.is_whole = blocks, dtype, True

    @property
    def weight(self) -> Tensor:
        """All rows `[vocab, hidden]`: a copy, made each time."""
        return native.unpack(self.blocks).to(self.dtype)

    def forward(self, input_ids: Tensor) -> Tensor:
        return native.unpack_rows(self.blocks, input_ids).to(self.dtype)


class Linear(nn.Module):
    """x @ weight^T + bias, `[T, in] -> [T, sum(out)]`.

    Several projections of the same input are one matrix whose rows are stacked; `output_sizes` has
    the number of rows of each. One large product costs less than three small ones.

    Three strategies are independent of each other: `quant_method` (how weights are stored),
    `layout` (which part this rank has) and `adapters` (added to the result; None, or set after
    loading).

    Args:
        input_size: of the whole matrix; the attribute is that of this rank's part.
        output_sizes: the same.
        bias: whether there is one.
        build: chooses the `quant_method`.
        layout: this rank's part.
        prefix: the layer's name in the model, under which a quantised checkpoint lists it.

    Source: vllm/model_executor/layers/linear.py#L607-L972 (MergedColumnParallelLinear) @ v0.22.1.
    """

    def __init__(
        self,
        input_size: int,
        output_sizes: int | Sequence[int],
        bias: bool,
        build: Build = PLAIN,
        layout: Layout = WHOLE,
        prefix: str = "",
    ) -> None:
        super().__init__()
        sizes = [output_sizes] if isinstance(output_sizes, int) else list(output_sizes)
        self.layout, self.prefix = layout, prefix
        self.parts, self.whole_parts = (each.parts(input_size, sizes) for each in (layout, WHOLE))
        self.input_size = self.parts[0].input_size
        self.output_sizes = [part.output_size for part in self.parts]
        self.adapters: Adapters | None = None
        self.blocks: Tensor | None = None
        self.matrix: native.Matrix | None = None
        """The weight for `cpu.cpp`, if it is quantised in a format that `cpu.cpp` supports."""
        self.order: Tensor | None = None  # the order of the stored columns, if it is not their own
        self.is_stacked_in_file = False  # whether its projections are one tensor in the checkpoint
        self.quant_method = build.method(self, prefix)
        self.quant_method.create_weights(self)
        self.bias = nn.Parameter(torch.empty(sum(self.output_sizes))) if bias else None
        if self.bias is not None:
            self.bias.spec = ParamSpec(out_dim=0)

    def process_weights_after_loading(self) -> None:
        if self.bias is not None:
            self.bias.data = to_compute_dtype(self.bias)
        self.quant_method.process_weights_after_loading(self)
        if self.matrix is not None and self.bias is not None:
            self.bias.data = self.bias.float()  # sums begin with it

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias if self.layout.adds_bias else None
        y = self.quant_method.apply(self, x, bias)
        if self.adapters is not None:  # before the ranks' parts are added: it is a partial sum, too
            y = self.adapters(x, y)
        return self.layout.finish(y)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up stacked in one matrix; act is mostly silu."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool,
        build: Build = PLAIN,
        prefix: str = "",
        act: str = "silu",
    ) -> None:
        super().__init__()
        self.act_mul = ACTIVATIONS[act]
        column, row = build.parallel.column(), build.parallel.row()
        sizes = [intermediate_size] * 2
        self.gate_up_proj = Linear(
            hidden_size, sizes, bias, build, column, f"{prefix}.gate_up_proj"
        )
        self.down_proj = Linear(
            intermediate_size, hidden_size, bias, build, row, f"{prefix}.down_proj"
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_mul(self.gate_up_proj(x)))
