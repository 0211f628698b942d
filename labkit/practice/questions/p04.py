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

        from mini_vllm.attention.reference import attend

        keys = torch.zeros(4, 1, 4)
        keys[:, 0, 0] = torch.tensor([*first, *second])
        query = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
        weights = attend(
            query, keys, torch.eye(4)[:, None], torch.ones(1, 4, dtype=torch.bool), 1.0
        )
        return float(1 / weights.max())  # the largest weight is exp(0) over the sum

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


def visible(rng: Random) -> Question:
    new, context = rng.randint(1, 5), rng.randint(5, 12)
    window = rng.choice((None, 2, 3, 4))

    def engine() -> int:
        from mini_vllm.attention.reference import causal_mask

        return int(causal_mask(new, context, window).sum())

    def by_hand() -> int:
        seen = [place + 1 for place in range(context - new, context)]
        return sum(min(count, window or count) for count in seen)

    told = f", a sliding window of {window}" if window else ""
    return Question(
        f"{new} new tokens are the last of a context of {context}{told}. How many pairs of a new"
        " token and a key that it sees are there?",
        engine,
        by_hand,
        "The token at position i sees i + 1 keys, itself among them, and no more than the window.",
    )


def shared_head(rng: Random) -> Question:
    kv_heads, group = rng.choice((1, 2, 4)), rng.choice((2, 3, 4, 8))
    head = rng.randrange(kv_heads * group)

    def engine() -> int:
        import torch

        from mini_vllm.attention.reference import attend

        numbers = torch.arange(float(kv_heads))[None, :, None]
        query = torch.zeros(1, kv_heads * group, 1)
        mask = torch.ones(1, 1, dtype=torch.bool)
        return int(attend(query, torch.zeros_like(numbers), numbers, mask, 1.0)[0, head, 0])

    return Question(
        f"{kv_heads * group} query heads share {kv_heads} KV heads. Which KV head does query head"
        f" {head} read? (both from 0)",
        engine,
        lambda: head // group,
        f"Groups of {group} neighbours: {head} // {group}.",
    )


KINDS = {
    "slot": slot,
    "running-sum": rescale,
    "traffic": traffic,
    "visible": visible,
    "shared-head": shared_head,
}
