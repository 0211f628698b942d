"""Phase 01: the steps of one model under the roofs of two GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.reader.drawings.canvas import BLUE, GREY, INK, ORANGE, PALE, RED, Canvas
from mini_vllm.model.config import ModelArgs
from mini_vllm.observability.roofline import Machine, arithmetic_intensity, step_cost

QWEN3 = ModelArgs.from_dict(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "dtype": "bfloat16",
    }
)
"""The shape of Qwen3-0.6B."""
MACHINES = {"H100": Machine(989e12, 3.35e12), "H200": Machine(989e12, 4.8e12)}
"""From the makers' data sheets: bfloat16 on tensor cores, without sparsity."""
STEPS: dict[str, tuple[list[int], list[int]]] = {
    "decode, 1 request": ([1], [129]),
    "decode, 16": ([1] * 16, [129] * 16),
    "decode, 64": ([1] * 64, [129] * 64),
    "prefill, 128 tokens": ([128], [128]),
    "prefill, 2,048 tokens": ([2048], [2048]),
}
LEFT, RIGHT, TOP, BOTTOM = 76, 640, 30, 300
X, Y = (0.6, 3000), (1.5e12, 2e15)


def ridge(machine: Machine) -> float:
    """FLOPs that the machine can do while it fetches one byte."""
    return machine.flops_per_s / machine.bytes_per_s


def critical_tokens(ridge: float, config: ModelArgs = QWEN3, itemsize: int = 2) -> int:
    """The shortest prompt whose prefill does at least `ridge` FLOPs a byte."""
    for num_tokens in range(1, 100_000):
        cost = step_cost(config, [num_tokens], [num_tokens], itemsize)
        if arithmetic_intensity(cost) >= ridge:
            return num_tokens
    raise ValueError(f"no prompt below 100,000 tokens does {ridge} FLOPs a byte")


def _at(intensity: float, rate: float) -> tuple[float, float]:
    """Where a point stands: both axes are logarithmic."""
    across = math.log(intensity / X[0]) / math.log(X[1] / X[0])
    up = math.log(rate / Y[0]) / math.log(Y[1] / Y[0])
    return LEFT + across * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)


def draw() -> Canvas:
    """FLOP/s that a step can reach, over its FLOPs per byte."""
    canvas = Canvas(680, 352, "Roofline of H100 and H200 with five steps of Qwen3-0.6B in bfloat16")
    _axes(canvas)
    for machine, colour in ((MACHINES["H200"], BLUE), (MACHINES["H100"], ORANGE)):
        corner = _at(ridge(machine), machine.flops_per_s)
        start = _at(X[0], X[0] * machine.bytes_per_s)
        canvas.line([start, corner, _at(X[1], machine.flops_per_s)], colour=colour, width=2)
        canvas.line([corner, (corner[0], BOTTOM)], colour=colour, dashed=True)
    canvas.text(
        *_shift(_at(3.2, 3.2 * 4.8e12), -8, -10),
        "H200: 4.8 TB/s",
        colour=BLUE,
        anchor="end",
        size=12,
    )
    canvas.text(*_shift(_at(4.4, 4.4 * 3.35e12), 10, 8), "H100: 3.35 TB/s", colour=ORANGE, size=12)
    canvas.text(RIGHT, TOP - 8, "989 TFLOP/s, both", anchor="end", size=12)
    canvas.text(_at(206, 1e12)[0] - 4, BOTTOM - 10, "206", colour=BLUE, anchor="end", size=12)
    canvas.text(_at(295, 1e12)[0] + 4, BOTTOM - 10, "295", colour=ORANGE, size=12)
    for name, (query_lens, seq_lens) in STEPS.items():
        _step(canvas, name, query_lens, seq_lens)
    return canvas


def _axes(canvas: Canvas) -> None:
    canvas.line([(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)], colour=INK)
    for intensity in (1, 10, 100, 1000):
        x = _at(intensity, 1e12)[0]
        canvas.line([(x, TOP), (x, BOTTOM)], colour=PALE, width=0.7)
        canvas.text(x, BOTTOM + 14, f"{intensity:,}", anchor="middle", size=12, colour=GREY)
    for rate, label in ((1e13, "10"), (1e14, "100"), (1e15, "1,000")):
        y = _at(1, rate)[1]
        canvas.line([(LEFT, y), (RIGHT, y)], colour=PALE, width=0.7)
        canvas.text(LEFT - 8, y, label, anchor="end", size=12, colour=GREY)
    canvas.text((LEFT + RIGHT) / 2, BOTTOM + 36, "FLOPs per byte", anchor="middle")
    canvas.text(LEFT - 62, TOP - 12, "TFLOP/s")


def _step(canvas: Canvas, name: str, query_lens: Sequence[int], seq_lens: Sequence[int]) -> None:
    """A dot under the roof of the H200, with the step's name."""
    cost = step_cost(QWEN3, query_lens, seq_lens, itemsize=2)
    intensity = arithmetic_intensity(cost)
    machine = MACHINES["H200"]
    x, y = _at(intensity, min(intensity * machine.bytes_per_s, machine.flops_per_s))
    canvas.dot(x, y, RED)
    left = name.startswith("prefill")
    shown = f"{name}: {intensity:,.0f}"
    if intensity > ridge(machine):
        canvas.text(x, y + 18, shown, anchor="middle", size=12)
    elif left:
        canvas.text(x - 9, y - 9, shown, anchor="end", size=12)
    else:
        canvas.text(x + 20, y + 11, shown, size=12)


def _shift(point: tuple[float, float], dx: float, dy: float) -> tuple[float, float]:
    return point[0] + dx, point[1] + dy
