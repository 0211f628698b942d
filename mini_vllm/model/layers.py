"""The parts every decoder is made of. Activations are flat: `[T, features]`, without padding.

Weights and the KV cache have the model's dtype. Activations have the *compute dtype*: the same,
except on a CPU without bfloat16 arithmetic. There a bfloat16 product is several times slower than a
float32 one, so activations are float32 and the weights' values are multiplied as float32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Below this many elements a call costs more than the product, and plain calls cost less.
MIN_PACKED_ELEMENTS = 1 << 20
# From this many tokens on, unpacking the weight costs nothing beside the product itself.
MIN_UNPACKED_TOKENS = 512


@functools.cache
def compute_dtype(dtype: torch.dtype, device_type: str) -> torch.dtype:
    """The dtype of activations for weights of `dtype`: float32 where the CPU has no other."""
    if device_type != "cpu" or dtype == torch.float32:
        return dtype
    needed = {torch.bfloat16: "avx512_bf16", torch.float16: "avx512_fp16"}[dtype]
    detect = getattr(torch.cpu, "get_capabilities", None)  # older versions of torch lack it
    return dtype if detect and detect().get(needed) else torch.float32


def to_compute_dtype(tensor: Tensor) -> Tensor:
    return tensor.to(compute_dtype(tensor.dtype, tensor.device.type))


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies packed weights of `dtype` correctly here: tried on a small one."""
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
        self.eps = torch.tensor(eps, dtype=torch.float32)

    def process_weights_after_loading(self) -> None:
        self.weight.data = to_compute_dtype(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """The norm in few operations; `eps` is a float32 scalar. The mean is taken in float32."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt_()
    return (x * scale).to(x.dtype).mul_(weight)


class Embedding(nn.Module):
    """One row of `weight` for each token id: `[T] -> [T, hidden]`."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, input_ids: Tensor) -> Tensor:
        return F.embedding(input_ids, self.weight)


class Linear(nn.Module):
    """x @ weight^T + bias, `[T, in] -> [T, sum(out)]`.

    Several projections of the same input are one matrix whose rows are stacked; `output_sizes`
    says how many rows each has. One product instead of three costs less than three small ones.
    Source: vllm/model_executor/layers/linear.py#L607-L972 (MergedColumnParallelLinear) @ v0.22.1.
    """

    def __init__(self, input_size: int, output_sizes: int | Sequence[int], bias: bool) -> None:
        super().__init__()
        self.output_sizes = [output_sizes] if isinstance(output_sizes, int) else list(output_sizes)
        self.weight = nn.Parameter(torch.empty(sum(self.output_sizes), input_size))
        self.bias = nn.Parameter(torch.empty(sum(self.output_sizes))) if bias else None
        self.packed: Tensor | None = None

    def process_weights_after_loading(self) -> None:
        """On a CPU, bring the weight into the form that is fastest to multiply."""
        if self.weight.device.type != "cpu":
            return
        weight = to_compute_dtype(self.weight)
        if self.bias is not None:
            self.bias.data = to_compute_dtype(self.bias)
        if weight.numel() >= MIN_PACKED_ELEMENTS and can_pack(weight.dtype):
            self.packed, self.weight = pack(weight), None
        else:  # a new parameter: a tied embedding keeps the old one
            self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is None:
            return F.linear(x, self.weight, self.bias)
        if len(x) >= MIN_UNPACKED_TOKENS and x.dtype == torch.float32:
            return F.linear(x, self.packed.to_dense(), self.bias)
        return packed_linear(x, self.packed, self.bias)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up stacked in one matrix."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden_size, [intermediate_size] * 2, bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate).mul_(up))
