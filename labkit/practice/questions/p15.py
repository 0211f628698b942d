"""Questions of phase 15: bytes, links, holes and routes."""

from __future__ import annotations

import math
from random import Random

from labkit.practice.question import Question


def break_even(rng: Random) -> Question:
    size, rate = rng.choice((1000, 2000)), rng.choice((500, 1000))
    speed, fixed = rng.choice((1, 2, 4, 8)) * size * rate, rng.choice((10, 30))

    def engine() -> float:
        from mini_vllm.kv_transfer.economics import break_even_tokens

        tokens = break_even_tokens(size, speed, rate, fixed / 1000)
        return -1.0 if math.isinf(tokens) else tokens

    def by_hand() -> float:
        gain = 1 / rate - size / speed
        return fixed / 1000 / gain if gain > 0 else -1.0

    computed, carried = 1e3 / rate, 1e3 * size / speed
    return Question(
        f"{size} bytes a token, {rate} tokens computed a second, a link of {speed / 1e6:g} MB/s,"
        f" {fixed} ms a trip: from how many tokens on is carrying faster? (a fraction, within a"
        " hundredth of it; -1: never)",
        engine,
        by_hand,
        f"A token takes {computed:g} ms to compute and {carried:g} ms to carry. The difference has to"
        f" pay for a trip of {fixed} ms; if there is none, it never does.",
        tolerance=0.01,
    )


def rewound(rng: Random) -> Question:
    computed, this_step = rng.randint(9, 24), rng.randint(0, 8)
    table = rng.sample(range(1, 20), math.ceil(computed / 4))
    lost = sorted(rng.sample(table, 2))

    def engine() -> float:
        from mini_vllm.kv_transfer.remote_kv import find_rewinds
        from mini_vllm.request import Request

        request = Request("r", range(30))
        request.num_computed_tokens = computed
        scheduled = {"r": this_step} if this_step else {}
        found = find_rewinds([request], lost, {"r": table}, scheduled, 4)
        return float(found.get("r", -1))

    def by_hand() -> float:
        blocks = table[: math.ceil((computed - this_step) / 4)]
        holes = [index for index, block in enumerate(blocks) if block in lost]
        return float(4 * holes[0]) if holes else -1.0

    return Question(
        f"Blocks of 4. A request has computed {computed} tokens, {this_step} of them in this step,"
        f" in blocks {table}. Blocks {lost} did not arrive. How many of its tokens are sound? (-1:"
        " it need not go back)",
        engine,
        by_hand,
        f"Before this step {computed - this_step} tokens were computed, in blocks"
        f" {table[: math.ceil((computed - this_step) / 4)]}. Sound is what lies before the first lost one"
        " of these; none of them lost, and it need not go back.",
    )


def routed(rng: Random) -> Question:
    scores = [rng.randint(0, 6) for _ in range(3)]
    queued = [rng.randrange(0, 120, 5) for _ in range(3)]

    def engine() -> float:
        from mini_vllm.kv_transfer.routing import choose_worker

        return float(choose_worker(scores, queued, 100, 16))

    def by_hand() -> float:
        return float(costs.index(min(costs)))

    costs = [q + 100 - 16 * s for s, q in zip(scores, queued, strict=True)]
    return Question(
        f"A prompt of 100 tokens, blocks of 16. Workers 0, 1, 2 have {scores} of its blocks and"
        f" {queued} tokens queued. Which one gets it?",
        engine,
        by_hand,
        f"The smallest of queued + 100 - 16 * blocks, which are {costs}; of equals the first.",
    )


def tier(rng: Random) -> Question:
    stored, asked = rng.sample("abcdef", 4), rng.choice("abcdef")
    room = rng.choice((1, 2))

    def engine() -> str:
        from mini_vllm.kv_transfer.offload_manager import BlockStatus, LRUCachePolicy

        policy = LRUCachePolicy(4)
        for place, key in enumerate(stored):
            policy.insert(key.encode(), BlockStatus(place, 0))
        policy.touch([asked.encode()])
        return " ".join(key.decode() for key, _ in policy.evict(room, ()) or ())

    def by_hand() -> str:
        rest = [key for key in stored if key != asked] + [asked] * (asked in stored)
        return " ".join(rest[:room])

    return Question(
        f"A tier stores the blocks {', '.join(stored)}, in this order, all ready. Then {asked} is asked"
        f" for. {room} block{'s' * (room > 1)} must go, the least recently used first. Which, in order?",
        engine,
        by_hand,
        "A use makes a block the youngest; one that is not there changes nothing.",
    )


def prefix(rng: Random) -> Question:
    prompt = "abcde"
    stored, removed = rng.sample(prompt, 4) + [rng.choice(prompt)], rng.sample(prompt, 2)

    def engine() -> int:
        from mini_vllm.kv_transfer.events import BlockRemoved, BlockStored
        from mini_vllm.kv_transfer.routing import PrefixIndex

        index = PrefixIndex()
        index.apply("w", [BlockStored([key.encode()], None, [], 1) for key in stored])
        index.apply("w", [BlockRemoved([key.encode()]) for key in removed])
        return index.score("w", [key.encode() for key in prompt])

    def by_hand() -> int:
        left = [stored.count(key) - removed.count(key) > 0 for key in prompt]
        return [*left, False].index(False)

    return Question(
        f"A worker tells that it has stored the blocks {', '.join(stored)} (twice: two copies), then"
        f" that it has removed {', '.join(removed)}. A prompt's blocks are {', '.join(prompt)}. How many"
        " of them count for this worker?",
        engine,
        by_hand,
        "Copies are counted; a block behind a gap is worth nothing.",
    )


KINDS = {
    "break-even": break_even,
    "rewound": rewound,
    "routed": routed,
    "tier": tier,
    "prefix": prefix,
}
