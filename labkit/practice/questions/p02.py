"""Questions of phase 02: blocks, counts and hits."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.practice.question import Question, counted


def _manager(block_size: int, usable: int) -> Any:
    from mini_vllm.core.kv_cache_manager import KVCacheManager

    return KVCacheManager(usable + 1, block_size, max_model_len=512, hash_root=b"quiz")


def _request(manager: Any, name: str, tokens: list[int]) -> Any:
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams

    request = Request(name, tokens, SamplingParams(temperature=0.0, max_tokens=8), 0, 0.0)
    request.set_block_hasher(manager.block_hasher)
    return request


def block_ids(rng: Random) -> Question:
    size, usable = rng.choice((2, 4, 8)), 12
    a, b, c = (rng.randint(1, 4 * size) for _ in range(3))

    def engine() -> str:
        manager = _manager(size, usable)
        tables = dict[str, Any]()
        for name, length in (("r0", a), ("r1", b)):
            request = _request(manager, name, [1000 * len(tables) + i for i in range(length)])
            manager.allocate_slots(request, length)
            tables[name] = request
        manager.free(tables["r0"])
        request = _request(manager, "r2", [9000 + i for i in range(c)])
        manager.allocate_slots(request, c)
        return " ".join(map(str, manager.get_block_ids("r2")))

    def by_hand() -> str:
        queue = list(range(1, usable + 1))
        first, queue = queue[: -(-a // size)], queue[-(-a // size) :]
        queue = queue[-(-b // size) :] + first[::-1]
        return " ".join(map(str, queue[: -(-c // size)]))

    return Question(
        f"Blocks of {size} tokens, {usable} of them usable: 1 to {usable}, all free, in order. The"
        f" tokens of r0, r1 and r2 number {a}, {b} and {c}. r0 gets its slots, then r1. r0 ends and is"
        " freed. Then r2, which shares nothing with them, gets its own. Which block ids does r2"
        " get, in order?",
        engine,
        by_hand,
        f"Blocks of r0: {-(-a // size)}, of r1: {-(-b // size)}. They come from the front of the"
        " free queue. r0's go to its back, the last block first. r2 takes from the front.",
    )


def hits(rng: Random) -> Question:
    size = rng.choice((2, 4, 8))
    shared = rng.randint(0, 5 * size)
    mine = shared + rng.choice((0, rng.randint(0, 2 * size)))
    mine = max(mine, 1)
    shared = min(shared, mine)

    def engine() -> int:
        manager = _manager(size, 40)
        first = _request(manager, "a", [*range(shared), *range(500, 500 + 2 * size)])
        manager.allocate_slots(first, first.num_tokens)
        second = _request(manager, "b", [*range(shared), *range(900, 900 + mine - shared)])
        return int(manager.get_computed_blocks(second)[1])

    return Question(
        f"Blocks of {size}. A request of {shared + 2 * size} tokens has just been computed. A second"
        f" one has {counted(mine, 'token')}, of which the first {shared} are the same. How many"
        f" of its tokens"
        " does it find in the prefix cache?",
        engine,
        lambda: min(shared // size, (mine - 1) // size) * size,
        f"Only full blocks are found; {shared // size} of those are the same. And at least one token"
        f" must be left to compute, so the blocks that may hit are at most {(mine - 1) // size}.",
    )


def waste(rng: Random) -> Question:
    size = rng.choice((4, 8, 16))
    lengths = [rng.randint(1, 40) for _ in range(3)]

    def engine() -> int:
        manager = _manager(size, 60)
        for index, length in enumerate(lengths):
            request = _request(manager, f"r{index}", [100 * index + i for i in range(length)])
            manager.allocate_slots(request, length)
        held = sum(len(manager.get_block_ids(f"r{index}")) for index in range(3))
        return held * size - sum(lengths)

    return Question(
        f"Three requests of {lengths[0]}, {lengths[1]} and {counted(lengths[2], 'token')}, which"
        f" share nothing,"
        f" in blocks of {size}: how many slots are allocated and empty?",
        engine,
        lambda: sum(-length % size for length in lengths),
        "Only the last block of each can have empty slots: "
        + " + ".join(f"{-length % size}" for length in lengths) + ".",
    )  # fmt: skip


def queue_order(rng: Random) -> Question:
    gone, taken = rng.sample(range(3, 7), 2), rng.randint(1, 2)

    def engine() -> str:
        from mini_vllm.core.block_pool import FreeKVCacheBlockQueue, KVCacheBlock

        blocks = [KVCacheBlock(number) for number in range(1, 8)]
        queue = FreeKVCacheBlockQueue(blocks)
        out = [queue.popleft() for _ in range(taken)]
        for number in gone:
            queue.remove(blocks[number - 1])
        for block in (*out, *(blocks[number - 1] for number in gone)):
            queue.append(block)
        return " ".join(str(queue.popleft().block_id) for _ in range(7))

    def by_hand() -> str:
        rest = [number for number in range(taken + 1, 8) if number not in gone]
        return " ".join(map(str, [*rest, *range(1, taken + 1), *gone]))

    return Question(
        f"The free queue holds blocks 1 to 7 in order. {taken} leave at the front, then blocks"
        f" {gone[0]} and {gone[1]} leave from where they stand. All of them come back in the order in"
        " which they left. In which order are the blocks given out now? (seven numbers)",
        engine,
        by_hand,
        "What stayed keeps its order; what comes back goes to the end.",
    )


def new_blocks(rng: Random) -> Question:
    size, first, more = rng.choice((4, 8, 16)), rng.randint(1, 40), rng.randint(1, 20)

    def engine() -> int:
        manager = _manager(size, 40)
        request = _request(manager, "r", list(range(first + more)))
        manager.allocate_slots(request, first)
        request.num_computed_tokens = first
        return len(manager.allocate_slots(request, more).blocks)

    return Question(
        f"Blocks of {size}. A request has slots for its {first} computed tokens, and {more} more are"
        " to be computed. How many new blocks does it get?",
        engine,
        lambda: -(-(first + more) // size) - -(-first // size),
        f"{counted(-(-(first + more) // size), 'block')} in all, of which it has"
        f" {-(-first // size)}.",
    )


KINDS = {
    "block-ids": block_ids,
    "hits": hits,
    "waste": waste,
    "queue-order": queue_order,
    "new-blocks": new_blocks,
}
