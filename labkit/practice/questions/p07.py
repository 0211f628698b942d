"""Questions of phase 07: graphs and their padding, and what fused kernels compute."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question, counted


def bucket(rng: Random) -> Question:
    largest, users = rng.choice((64, 128, 200)), rng.randint(1, 130)

    def engine() -> int:
        from mini_vllm.worker.cuda_graphs import choose_bucket, make_buckets

        return choose_bucket(users, make_buckets(largest)) or 0

    def by_hand() -> int:
        rows = users if users <= 2 else 4 if users <= 4 else -(-users // 8) * 8
        return min(rows, largest) if users <= largest else 0

    return Question(
        f"max_num_seqs is {largest}. How many rows does the graph run that serves {users} decodes? (0:"
        " none fits)",
        engine,
        by_hand,
        f"Sizes are 1, 2, 4, then multiples of 8, and {largest} itself.",
    )


def _buckets(largest: int) -> list[int]:
    """1, 2, 4, then multiples of 8 up to 256, of 16 beyond, and the largest itself."""
    sizes = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16)) if size < largest]
    return [*sizes, largest]


def padding(rng: Random) -> Question:
    largest, users = rng.choice((64, 100, 256, 400)), rng.randint(1, 64)

    def engine() -> int:
        from mini_vllm.worker.cuda_graphs import choose_bucket, make_buckets

        return (choose_bucket(users, make_buckets(largest)) or 0) - users

    return Question(
        f"max_num_seqs is {largest}. A step of {counted(users, 'decode')} is replayed as a graph. How many of the"
        " graph's rows are padding?",
        engine,
        lambda: next(size for size in _buckets(largest) if size >= users) - users,
        "Sizes are 1, 2, 4, then multiples of 8, and the limit itself.",
    )


def graphs(rng: Random) -> Question:
    largest = rng.choice((1, 3, 5, rng.randint(8, 300), rng.randint(8, 300), rng.randint(8, 300)))

    def engine() -> int:
        from mini_vllm.worker.cuda_graphs import make_buckets

        return len(make_buckets(largest))

    return Question(
        f"max_num_seqs is {largest}. How many graphs are recorded?",
        engine,
        lambda: len(_buckets(largest)),
        "One each for 1, 2, 4, the multiples of 8 up to 256, of 16 beyond it, and the limit itself.",
    )


def norm(rng: Random) -> Question:
    row = [rng.choice((-4, -3, -2, 1, 2, 3, 4)) for _ in range(4)]
    at = rng.randrange(4)

    def engine() -> float:
        import torch

        from mini_vllm.model.layers import rms_norm

        return float(rms_norm(torch.tensor([row]).float(), torch.ones(4), 0.0)[0, at])

    return Question(
        f"RMSNorm of the row {row}, weights 1, eps 0: what becomes of its number {at}, counted from 0,"
        " to two digits?",
        engine,
        lambda: row[at] / (sum(x * x for x in row) / 4) ** 0.5,
        f"Divide by the root of the mean square, {sum(x * x for x in row)} / 4.",
        tolerance=0.01,
    )


def turned(rng: Random) -> Question:
    size = rng.choice((8, 16, 24, 64, 128))
    feature = rng.randrange(size)

    def engine() -> int:
        import torch

        from mini_vllm.model.rope import apply_rope

        x = torch.zeros(1, 1, size)
        x[0, 0, feature] = 1.0
        sin = torch.cat((-torch.ones(size // 2), torch.ones(size // 2)))[None, None]
        return int(apply_rope(x, torch.zeros(1, 1, size), sin)[0, 0].abs().argmax())

    return Question(
        f"A head of {size} features is turned by a quarter (rotary embedding as in Llama). Only feature"
        f" {feature} is not 0. Which feature is not 0 afterwards?",
        engine,
        lambda: (feature + size // 2) % size,
        f"Feature i and feature i + {size // 2} are a pair.",
    )


MODES = {
    "NONE": ("NONE", "NONE"),
    "PIECEWISE": ("PIECEWISE", "PIECEWISE"),
    "FULL": ("FULL", "FULL"),
    "FULL_DECODE_ONLY": ("FULL", "NONE"),
    "FULL_AND_PIECEWISE": ("FULL", "PIECEWISE"),
}
"""Graphs of decodes, and of all other steps."""


def served(rng: Random) -> Question:
    mode, decodes, tokens = rng.choice(sorted(MODES)), rng.random() < 0.5, rng.randint(1, 40)
    told = counted(tokens, "decode" if decodes else "token")
    what = told if decodes else f"{told}, a prompt among them"

    def engine() -> str:
        from mini_vllm.worker.cudagraph_dispatcher import CUDAGraphMode, dispatch

        sizes = (1, 2, 4, 8, 16, 24, 32)
        kind, padded = dispatch(CUDAGraphMode[mode], sizes, 64, tokens, decodes)
        return f"{kind.name} {padded.num_tokens}"

    def by_hand() -> str:
        kind = MODES[mode][not decodes] if tokens <= 32 else "NONE"
        rows = tokens if tokens <= 2 else 4 if tokens <= 4 else -(-tokens // 8) * 8
        return f"{kind} {tokens if kind == 'NONE' else rows}"

    return Question(
        f"cudagraph_mode is {mode}; there are graphs of 1, 2, 4, 8, 16, 24 and 32 tokens, and at most 64"
        f" requests. A step has {what}. Which kind of graph serves it, and how many tokens does it"
        " run? (such as FULL 8; NONE and the tokens as they are, if none does)",
        engine,
        by_hand,
        "The next size; decodes have the first of a mode's two kinds, other steps the second.",
    )


def moved(rng: Random) -> Question:
    tokens, rows, columns = (rng.choice((16, 64, 128)) for _ in range(3))

    def engine() -> int:
        from mini_vllm.kernels.intensity import product_bytes

        return product_bytes(tokens, rows, columns, 16, 64, 2)

    def by_hand() -> int:
        along_rows = 2 if rows > 64 else 1
        numbers = tokens * columns * along_rows + rows * columns * (tokens // 16) + tokens * rows
        return 2 * numbers

    return Question(
        f"[{tokens}, {columns}] times [{rows}, {columns}] in bfloat16, tiles of 16 tokens and 64 rows. How"
        " many bytes do all programs read and write, without caches?",
        engine,
        by_hand,
        "x once for each tile of rows, the weight once for each tile of tokens, the results once.",
    )


KINDS = {
    "bucket": bucket,
    "padding": padding,
    "graphs": graphs,
    "norm": norm,
    "turned": turned,
    "served": served,
    "moved": moved,
}
