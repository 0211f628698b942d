"""Questions of phase 09: steps, bytes, and what they save."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question


def stored(rng: Random) -> Question:
    largest = rng.choice((7.0, 3.5, 14.0))
    weight = rng.choice((-3.0, -1.2, 0.4, 1.6, 2.9))

    def engine() -> int:
        import torch

        from mini_vllm.quantization.packing import choose_qparams, quantize

        row = torch.tensor([[weight, largest]])
        scale, zero = choose_qparams(row, 4, 2, True)
        return int(quantize(row, scale, zero, 4)[0, 0])

    return Question(
        f"Four bits, symmetric; the loudest weight of the group is {largest}. Which number from 0 to 15"
        f" is stored for the weight {weight}?",
        engine,
        lambda: min(15, max(0, round(weight / (largest / 7)) + 8)),
        f"A step is {largest} / 7 = {largest / 7:g}. {weight} / {largest / 7:g} rounds to"
        f" {round(weight / (largest / 7))}; zero is stored as 8.",
    )


def matrix_bytes(rng: Random) -> Question:
    rows, columns, group = (
        rng.choice((512, 1024, 1536, 2048)),
        rng.choice((1024, 2048, 4096)),
        rng.choice((32, 64, 128)),
    )

    def engine() -> int:
        import torch

        from mini_vllm.quantization.packing import choose_qparams, pack_int32

        scale, _ = choose_qparams(torch.zeros(rows, columns), 4, group, True)
        packed = pack_int32(torch.zeros(rows, columns, dtype=torch.int32), 4, 1)
        return packed.numel() * 4 + scale.numel() * 2

    return Question(
        f"A matrix of {rows} x {columns} in 4 bits, groups of {group} along a row with a scale of 2"
        " bytes each, symmetric: how many bytes?",
        engine,
        lambda: rows * columns // 2 + rows * columns // group * 2,
        f"Half a byte a weight, and {rows} x {columns // group} scales.",
    )


def speed(rng: Random) -> Question:
    gigabytes, bandwidth = rng.choice((8, 14, 16)), rng.choice((100, 1000, 3350))

    def engine() -> float:
        from mini_vllm.observability.roofline import Machine, StepCost, least_seconds

        machine = Machine(1e18, bandwidth * 1e9)
        return 1 / least_seconds(StepCost(1, gigabytes * 1e9 / 4), machine)

    return Question(
        f"A model of {gigabytes} GB in 16 bits on a machine that reads {bandwidth} GB/s. How many tokens a"
        " second can one request get at most with 4-bit weights? (Forget scales and the cache.)",
        engine,
        lambda: bandwidth / (gigabytes / 4),
        f"Each token reads all weights: {gigabytes / 4:g} GB.",
        tolerance=0.02,
    )


KINDS = {"stored": stored, "matrix-bytes": matrix_bytes, "speed": speed}
