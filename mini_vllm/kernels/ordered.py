"""How the kernel of `attention/ordered_decode.py` is launched, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from mini_vllm.kernels.attention import decode_launch, work_paged_decode
from mini_vllm.kernels.launch import KernelSpec, Launch, Work, tensor_bytes

AT_ONCE = 4
"""Programs of a decode that a processor holds at the same time. With 128 features in half precision
one takes 39 KB of shared memory: four fit on sm_80, five on sm_90."""


def order_matters(num_programs: int, num_processors: int) -> bool:
    """Whether programs wait for others to end: where all start at once, none comes first."""
    return num_programs > AT_ONCE * num_processors


def plan_ordered_decode(order: Tensor, **problem: Any) -> list[Launch]:
    """The problem and the arguments of `decode_launch`, and `order` `[R]` int64: each request
    once."""
    launch = decode_launch("ordered_decode_kernel", **problem)
    num_reqs, num_kv_heads = launch.grid
    args = {"order_ptr": order} | launch.args
    return [replace(launch, grid=(num_kv_heads, num_reqs), args=args)]


def work_ordered_decode(order: Tensor, **problem: Any) -> Work:
    """Attention of one token a request, and the order."""
    return work_paged_decode(**problem) + Work(tensor_bytes(order), 0, flops=0)


ORDERED_DECODE = KernelSpec(
    name="ordered_decode",
    module="mini_vllm.attention.ordered_decode",
    kernels=("ordered_decode_kernel",),
    plan=plan_ordered_decode,
    work=work_ordered_decode,
    outputs=("output",),
)

SPECS = (ORDERED_DECODE,)
