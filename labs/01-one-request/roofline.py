"""The roofline: how fast a step could be, from what it must compute and what it must read.

A machine does so many floating-point operations a second, and reads so many bytes a second. A
step needs some of both, and the scarcer one sets the pace::

    FLOP/s │        ┌──────────────── peak: compute-bound
           │      ／
           │    ／   slope = bandwidth: memory-bound
           │  ／
           └──────────────────────── FLOPs per byte (arithmetic intensity)
             decode           prefill

Decode reads every weight to compute one token per request; prefill reads the same weights once
for a whole prompt. That is why decoding starves the arithmetic units.

Source: Williams, Waterman, Patterson: "Roofline", Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mini_vllm.model.config import ModelArgs
from mini_vllm.platforms import platform_of


@dataclass(frozen=True)
class StepCost:
    """What one forward pass needs."""

    flops: float
    """Floating-point operations; a multiply-add counts as two."""
    bytes: float
    """Bytes read from or written to memory, each weight once."""


@dataclass(frozen=True)
class Machine:
    """What a machine offers."""

    flops_per_s: float
    bytes_per_s: float


def layer_weights(config: ModelArgs) -> int:
    """Numbers in the matrices of one decoder layer: q, k, v, o and the gated MLP's three."""
    q = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    attention = config.hidden_size * (q + 2 * kv) + q * config.hidden_size
    return attention + 3 * config.hidden_size * config.intermediate_size


def step_flops(config: ModelArgs, query_lens: Sequence[int], seq_lens: Sequence[int]) -> int:
    """Operations of one forward pass that computes ``query_lens[i]`` tokens of request ``i``.

    Three terms (norms, rotations and softmax are small beside them and left out):

    - layers: 2 per weight and token (:func:`layer_weights`), over ``num_hidden_layers``;
    - LM head: 2 per number of the ``hidden_size`` x ``vocab_size`` matrix, but only for the
      last token of each request;
    - attention, in every layer and query head: each token meets every token up to itself, with
      2 operations per number of that head for the score and 2 for the value. Request ``i``'s
      tokens end at length ``seq_lens[i]``, so token ``j`` of its ``n`` meets
      ``seq_lens[i] - n + j + 1``.

    Args:
        query_lens: new tokens per request.
        seq_lens: tokens of context after the step, per request.
    """
    # TODO 01.3
    raise NotImplementedError(
        "TODO 01.3: write step_flops in labs/01-one-request/roofline.py"
        " (phase 01, 02-mini-build.md#task-3)"
    )


def step_bytes(
    config: ModelArgs, query_lens: Sequence[int], seq_lens: Sequence[int], itemsize: int
) -> int:
    """Bytes that the same forward pass must move at the least.

    - every weight of the layers and of the LM head once, however many tokens use it (the
      embedding's few rows are left out);
    - keys and values in every layer: those of the whole context are read, ``seq_lens[i]``
      tokens per request, and those of the new tokens are written.

    Args:
        itemsize: bytes per number of weights and KV, such as 2 for bfloat16.
    """
    # TODO 01.4
    raise NotImplementedError(
        "TODO 01.4: write step_bytes in labs/01-one-request/roofline.py"
        " (phase 01, 02-mini-build.md#task-4)"
    )


def step_cost(
    config: ModelArgs, query_lens: Sequence[int], seq_lens: Sequence[int], itemsize: int
) -> StepCost:
    """:func:`step_flops` and :func:`step_bytes` together."""
    return StepCost(
        step_flops(config, query_lens, seq_lens),
        step_bytes(config, query_lens, seq_lens, itemsize),
    )


def arithmetic_intensity(cost: StepCost) -> float:
    """Operations per byte: where the step stands on the roofline's horizontal axis."""
    # TODO 01.5
    raise NotImplementedError(
        "TODO 01.5: write arithmetic_intensity in labs/01-one-request/roofline.py"
        " (phase 01, 02-mini-build.md#task-5)"
    )


def bound_of(cost: StepCost, machine: Machine) -> str:
    """ "memory" if moving the bytes takes longer than the operations, else "compute"."""
    # TODO 01.5
    raise NotImplementedError(
        "TODO 01.5: write bound_of in labs/01-one-request/roofline.py"
        " (phase 01, 02-mini-build.md#task-5)"
    )


def least_seconds(cost: StepCost, machine: Machine) -> float:
    """The time below which no implementation can get: the longer of the two."""
    # TODO 01.5
    raise NotImplementedError(
        "TODO 01.5: write least_seconds in labs/01-one-request/roofline.py"
        " (phase 01, 02-mini-build.md#task-5)"
    )


def measure_machine(device: str = "cpu", dtype: str = "float32") -> Machine:
    """Measure what this machine reaches, rather than what its maker prints.

    Operations: the best of several square matrix products of ``dtype``. Bytes: the best of
    several passes over an array far larger than the caches. Takes about a second on a laptop.
    """
    import torch  # only measuring needs it; counting does not

    is_host = platform_of(device).is_host
    size = 1024 if is_host else 8192
    a = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))
    flops = 2 * size**3 / _best_seconds(lambda: a @ a, device)
    data = torch.ones(2**25 if is_host else 2**29, device=device)
    bandwidth = data.numel() * data.itemsize / _best_seconds(data.sum, device)
    return Machine(flops, bandwidth)


def _best_seconds(action: Callable[[], object], device: str, repeats: int = 7) -> float:
    best = float("inf")
    for _ in range(repeats):
        _wait_for(device)
        start = time.perf_counter()
        action()
        _wait_for(device)
        best = min(best, time.perf_counter() - start)
    return best


def _wait_for(device: str) -> None:
    platform_of(device).synchronize()
