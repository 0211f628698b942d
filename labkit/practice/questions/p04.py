"""Questions of phase 04: slots, tiles and traffic."""

from __future__ import annotations

import math
from random import Random

from labkit.practice.question import Question


def slot(rng: Random) -> Question:
    size = rng.choice((4, 8, 16))
    table = rng.sample(range(1, 40), 4)
    position = rng.randrange(4 * size)

    def engine() -> int:
        import torch

        from mini_vllm.attention.reference import compute_slot_mapping

        rows, places = torch.zeros(1, dtype=torch.int64), torch.tensor([position])
        return int(compute_slot_mapping(torch.tensor([table]), rows, places, size)[0])

    return Question(
        f"Blocks of {size} tokens; a request's block table is {table}. In which slot lies its token"
        f" at position {position}?",
        engine,
        lambda: next(b * size + o for n, b in enumerate(table) for o in range(size)
                     if n * size + o == position),
        f"Position {position} is in entry {position // size} of the table, block"
        f" {table[position // size]}, at offset {position % size}: block x {size} + offset.",
    )  # fmt: skip


def rescale(rng: Random) -> Question:
    first = [rng.randint(-3, 3) for _ in range(2)]
    second = [rng.randint(-3, 5) for _ in range(2)]

    def engine() -> float:
        import torch

        scores = torch.tensor([*first, *second], dtype=torch.float64)
        return float((scores - scores.max()).exp().sum())

    def by_hand() -> float:
        largest = max(first)
        total = sum(math.exp(s - largest) for s in first)
        new = max(largest, *second)
        return total * math.exp(largest - new) + sum(math.exp(s - new) for s in second)

    return Question(
        f"Online softmax: the first tile has scores {first}, the second {second}. What is the running"
        " sum after both, to two digits?",
        engine,
        by_hand,
        f"After the first tile the maximum is {max(first)}. The new one is {max(*first, *second)}: the"
        " old sum is multiplied by exp(old - new), then the new terms are added.",
        tolerance=0.01,
    )


def traffic(rng: Random) -> Question:
    heads, group = rng.choice((2, 4, 8)), rng.choice((1, 2, 4))
    size, context = rng.choice((64, 128)), rng.choice((500, 1000, 4000))

    def engine() -> int:
        import torch

        from mini_vllm.model.interface import KVCacheSpec
        from mini_vllm.worker.kv_cache import bytes_per_block

        return bytes_per_block(KVCacheSpec(1, heads, size, torch.float16), 1) * context

    return Question(
        f"One decode of {heads * group} query heads over {heads} KV heads of {size}, float16, one layer,"
        f" {context} tokens of context. How many bytes of keys and values does a kernel read that"
        " reads nothing twice?",
        engine,
        lambda: 2 * 2 * heads * size * context,
        f"Keys and values of {heads} KV heads; the {group} query heads of a group share what was read:"
        f" 2 x {heads} x {size} x 2 bytes x {context}.",
    )


KINDS = {"slot": slot, "running-sum": rescale, "traffic": traffic}
