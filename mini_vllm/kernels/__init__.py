"""Triton kernels and what launches them.

    launch.py      Launch (grid, arguments, constants of one kernel call) and KernelSpec
    attention.py   how the kernels of `attention/triton_paged.py` are launched
    pointwise.py   how the kernels of `kernels/fused.py` are launched
    fused.py       the fused kernels: norm with residual, rope, silu-mul

A kernel module holds kernels and nothing else. All that surrounds one, the grid, the arguments, the
tile sizes, lives in a launcher, which the engine and the kernel checker share.
"""
