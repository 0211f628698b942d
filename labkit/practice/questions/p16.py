"""Questions of phase 16: forks, copies, what preemption costs, and where a fleet sends a prompt."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.practice.question import Question


def _manager() -> Any:
    from mini_vllm.config import CacheConfig
    from mini_vllm.policies.block_manager import BlockManager

    cache = CacheConfig(4, 21, num_cpu_blocks=8)
    return BlockManager(cache, max_model_len=64, hash_root=b"quiz", watermark=0.0)


def _request(name: str, length: int) -> Any:
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=8)
    return Request(name, list(range(length)), params, 0, 0.0)


def forked(rng: Random) -> Question:
    length, members = rng.randint(3, 18), rng.choice((2, 3))

    def engine() -> int:
        manager = _manager()
        requests = [_request(f"r{i}", length) for i in range(members)]
        manager.allocate_slots(requests[0], length)
        requests[0].num_computed_tokens = length
        for child in requests[1:]:
            manager.fork(requests[0], child, length)
        for request in requests:
            request.append_output_token_ids([7])
            manager.append(request, length + 1)
        return 20 - int(manager.num_free_blocks)

    return Question(
        f"Blocks of 4. A request with {length} computed tokens is forked into {members} sequences in"
        " all. Then each of them writes one token. How many blocks are in use?",
        engine,
        lambda: length // 4 + members,
        f"{length // 4} full blocks are shared for good. Each of the {members} sequences then writes"
        " into a block of its own.",
    )


def swapped(rng: Random) -> Question:
    length = rng.randint(3, 24)

    def engine() -> int:
        manager = _manager()
        request = _request("r", length)
        manager.allocate_slots(request, length)
        request.num_computed_tokens = length
        return len(manager.swap_out([request]))

    return Question(
        f"Blocks of 4. A request with {length} computed tokens is swapped out. How many blocks are"
        " copied to the host?",
        engine,
        lambda: (length + 3) // 4,
        f"All blocks with computed tokens: {length} / 4, rounded up.",
    )


def _prices(token: int, trip: int) -> Any:
    from mini_vllm.policies.fleet import Prices

    return Prices(5.0, token, 0.0, trip, 1.0, 1.0, 0.5)


def kept(rng: Random) -> Question:
    prompts = [sorted(rng.sample("ABCDE", rng.randint(1, 3))) for _ in range(4)]
    last = sorted(rng.sample("ABCDE", 3))

    def engine() -> int:
        from mini_vllm.policies.fleet import SecondUse

        book = SecondUse(threshold=2)
        for prompt in prompts:
            book.worth_keeping([ord(block) for block in prompt])
        return len(book.worth_keeping([ord(block) for block in last]))

    asked = "".join(block for prompt in prompts for block in prompt)
    shown = ", ".join(" ".join(prompt) for prompt in prompts)
    return Question(
        "A tier keeps a block from its second use on, and remembers every use. Prompts of these"
        f" blocks came: {shown}. Now {' '.join(last)} comes. How many of its blocks are worth"
        " keeping?",
        engine,
        lambda: sum(block in asked for block in last),
        f"Those that came before: {', '.join(b for b in last if b in asked) or 'none'}. The use"
        " that is noted now counts.",
    )


def loaded(rng: Random) -> Question:
    token, trip = rng.choice((2, 3)), rng.choice((20, 30, 40))
    cached, more = 16 * rng.randint(0, 3), rng.randint(8, 48)

    def engine() -> int:
        from mini_vllm.policies.fleet import tokens_to_load

        return int(tokens_to_load(_prices(token, trip), 200, cached, cached + more))

    carrying, computing = trip + more, token * more
    return Question(
        f"Computing a token takes {token} s. A trip takes {trip} s, and 1 s for each token. The"
        f" machine has {cached} tokens of a prompt, the tier {cached + more}. How many tokens does"
        " it load?",
        engine,
        lambda: more if carrying < computing else 0,
        f"{more} more: {carrying} s to carry, {computing} s to compute. All of them if carrying is"
        " faster, else none.",
    )


def first_token(rng: Random) -> Question:
    here, there = 16 * rng.randint(0, 5), 16 * rng.randint(0, 5)
    queued, busy = 10 * rng.randint(0, 9), 10 * rng.randint(1, 9)

    def engine() -> float:
        from mini_vllm.policies.fleet import Job, View, first_token_seconds

        first, second = View(here, queued, 0, 0), View(there, busy, 3, 500)
        return float(first_token_seconds(_prices(2, 10), Job(100, 1.0, 1.0), first, second))

    return Question(
        "A prompt takes 5 s and 2 s for each token that is computed; a trip takes 10 s, and 1 s"
        " for each token that travels. A prompt of 100 tokens goes to a prefill machine that has"
        f" {here} of them and {queued} s of other work, then to a decode machine that has {there}"
        f" of them and {busy} s of prompts. After how many seconds is the first token there?",
        engine,
        lambda: float(queued + 5 + 2 * (100 - here) + 10 + (100 - there)),
        f"{queued} + (5 + 2 * {100 - here}) + (10 + {100 - there}): the queue of the machine that"
        " computes, what it lacks, and the trip with what the other one lacks.",
    )


KINDS = {
    "forked": forked,
    "swapped": swapped,
    "kept": kept,
    "loaded": loaded,
    "first-token": first_token,
}
