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

        row = torch.zeros(1, columns)  # all rows are alike
        scale, _ = choose_qparams(row, 4, group, True)
        packed = pack_int32(row.int(), 4, 1)
        return rows * (packed.numel() * 4 + scale.numel() * 2)

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


def word(rng: Random) -> Question:
    numbers = [rng.randrange(16) for _ in range(8)]

    def engine() -> str:
        import torch

        from mini_vllm.quantization.packing import pack_int32

        packed = int(pack_int32(torch.tensor([numbers], dtype=torch.int32), 4, 1)[0, 0])
        return f"{packed & 0xFFFFFFFF:08x}"

    return Question(
        f"Eight numbers of 4 bits, {numbers}, go into one word, the first into its lowest bits. What is"
        " the word in hexadecimal? (eight digits, small letters)",
        engine,
        lambda: "".join(f"{number:x}" for number in reversed(numbers)),
        "Each number is a digit; the first is the last digit.",
    )


def token_steps(rng: Random) -> Question:
    largest, value = rng.choice((1.27, 2.54, 12.7, 25.4)), rng.randint(-9, 9) / 10
    while round(abs(value * 127 / largest) % 1, 6) == 0.5:  # on it rounding decides
        value = rng.randint(-9, 9) / 10
    row = [value, -largest, largest / 3, 0.0]

    def engine() -> int:
        import torch

        from mini_vllm.quantization.int8 import quantize_per_token

        return int(quantize_per_token(torch.tensor([row], dtype=torch.float64))[0][0, 0])

    return Question(
        f"A token's largest magnitude is {largest}. Which int8 number stands for its value {value}?",
        engine,
        lambda: round(value * 127 / largest),
        f"A step is {largest} / 127 = {largest / 127:g}; {value} is {value * 127 / largest:g} of them.",
    )


KINDS = {
    "stored": stored,
    "matrix-bytes": matrix_bytes,
    "speed": speed,
    "word": word,
    "token-steps": token_steps,
}
