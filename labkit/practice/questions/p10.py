"""Questions of phase 10: heads, layers, messages and routes."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question, counted


def kv_head(rng: Random) -> Question:
    kv_heads = rng.choice((1, 2, 4))
    heads, p = kv_heads * rng.choice((4, 8)), kv_heads * rng.choice((1, 2, 4))
    rank = rng.randrange(p)

    def engine() -> float:
        from mini_vllm.distributed.linear import QKVParallel
        from mini_vllm.distributed.parallel_state import GroupCoordinator

        group = GroupCoordinator(range(p), rank)
        parts = QKVParallel(group, heads, kv_heads).parts(8, [heads, kv_heads, kv_heads])
        return float(parts[1].out.start)

    def by_hand() -> float:
        first_query = rank * heads // p
        return float(first_query // (heads // kv_heads))

    return Question(
        f"{counted(heads, 'query head')}, {counted(kv_heads, 'KV head')}, {counted(p, 'rank')}."
        f" Which KV head has rank {rank}?"
        " (from 0)",
        engine,
        by_hand,
        f"Its first query head is {rank * heads // p}, and {heads // kv_heads} neighbouring query heads"
        " look at each KV head.",
    )


def stage(rng: Random) -> Question:
    size = rng.randint(2, 6)
    layers, rank = rng.randint(size, 40), rng.randrange(size)

    def engine() -> float:
        from mini_vllm.distributed.utils import get_pp_indices

        start, end = get_pp_indices(layers, rank, size)
        return float(end - start)

    def by_hand() -> float:
        each, rest = layers // size, layers % size
        gets_one = size - 2 - rank in range(rest)
        return float(each + gets_one)

    return Question(
        f"{layers} layers, {size} stages. How many layers has stage {rank}? (from 0)",
        engine,
        by_hand,
        f"{layers // size} each, and {layers % size} left over: one each from the second-last stage"
        " backwards.",
    )


def message(rng: Random) -> Question:
    p, kib = rng.choice((2, 4, 8)), rng.choice((8, 64, 1024))
    alpha, speed = rng.choice((2, 5, 10)), rng.choice((50, 100, 300))

    def engine() -> float:
        from mini_vllm.distributed.collectives import ring_time

        return 1e6 * ring_time(kib * 1024, p, alpha / 1e6, 1 / (speed * 1e9))

    def by_hand() -> float:
        each = alpha + kib * 1024 / p / (speed * 1e3)
        return 2 * (p - 1) * each

    return Question(
        f"{p} ranks add up {kib} KiB around a ring. A message takes {alpha} µs, a link carries"
        f" {speed} GB/s. How many µs?",
        engine,
        by_hand,
        f"{2 * (p - 1)} messages of {kib * 1024 // p:,} bytes, {alpha} µs and"
        f" {kib * 1024 / p / (speed * 1e3):.3g} µs each.",
        tolerance=0.02,
    )


def routed(rng: Random) -> Question:
    counts = [(rng.randint(0, 2), rng.randint(0, 9)) for _ in range(3)]

    def engine() -> float:
        from mini_vllm.distributed.dp_router import DPRouter

        router = DPRouter(3)
        for number, (waiting, running) in enumerate(counts):
            router.set_counts(number, waiting, running)
        return float(router.get_core_engine_for_request("r"))

    scores = [4 * waiting + running for waiting, running in counts]

    def by_hand() -> float:
        return float(scores.index(min(scores)))

    told = ", ".join(f"{waiting} and {running}" for waiting, running in counts)
    return Question(
        f"A new router. Engines 0, 1, 2 have waiting and running: {told}. Which one gets the request?",
        engine,
        by_hand,
        f"The smallest 4 * waiting + running of {scores}; of equals the first, as no engine had a"
        " turn yet.",
    )


def vocabulary(rng: Random) -> Question:
    size, p = rng.choice((100, 1000, 32000, 32003, 151936)), rng.choice((2, 4, 8))
    rank = rng.randrange(p)

    def engine() -> int:
        from mini_vllm.distributed.vocab import vocab_range

        return vocab_range(size, rank, p).start

    padded = -(-size // 64) * 64  # 2, 4 and 8 divide 64
    return Question(
        f"A vocabulary of {size}, padded to a multiple of 64 and shared by {p} ranks. With which token"
        f" does rank {rank} begin?",
        engine,
        lambda: padded // p * rank,
        f"Padded to {padded}: {padded // p} rows for each rank.",
    )


KINDS = {
    "kv-head": kv_head,
    "stage": stage,
    "message": message,
    "routed": routed,
    "vocabulary": vocabulary,
}
