"""Questions of phase 18: what layers hold, what hits, and the arithmetic of states and sinks."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from labkit.practice.question import Question

BLOCK = 4


def _specs(*kinds: str, window: int = 16) -> list[Any]:
    from mini_vllm.core.cache_groups import GroupSpec

    made = {
        "full": GroupSpec("full", BLOCK),
        "window": GroupSpec("sliding_window", BLOCK, window=window),
        "state": GroupSpec("mamba", BLOCK, mode="align"),
    }
    return [made[kind] for kind in kinds]


def _engine(specs: list[Any]) -> Any:
    from mini_vllm.config import CacheConfig, SchedulerConfig
    from mini_vllm.engine.parts.features import make_scheduler

    return make_scheduler(SchedulerConfig(256, 4, 512), CacheConfig(BLOCK, 400), groups=specs)


def _request(name: str, tokens: list[int], answer: int) -> Any:
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams

    return Request(name, tokens, SamplingParams(temperature=0.0, max_tokens=answer))


def _run(engine: Any, request: Any, until: int) -> None:
    """Steps until the request has so many computed tokens."""
    from mini_vllm.core.finish_step import finish_step
    from mini_vllm.core.scheduler_output import ModelRunnerOutput

    engine.add_request(request)
    while request.num_computed_tokens < until and request.request_id in engine.requests:
        plan = engine.schedule()
        due = request.num_computed_tokens >= request.num_tokens
        finish_step(engine, plan, ModelRunnerOutput({request.request_id: [7]} if due else {}))


def window_held(rng: Random) -> Question:
    window, length = rng.choice((8, 12, 16, 20)), rng.randint(40, 120)

    def engine() -> int:
        one = _engine(_specs("full", "window", window=window))
        _run(one, _request("r", list(range(30)), 200), length)
        return sum(map(bool, one.kv_cache_manager.get_group_block_ids("r")[1]))

    first = (length - window) // BLOCK
    last = (length - 1) // BLOCK
    return Question(
        f"Blocks of {BLOCK}, a window of {window} tokens, itself included. A request has just"
        f" computed its token {length - 1}, so {length} in all. How many blocks did its window"
        " hold in that step?",
        engine,
        lambda: last - first + 1,
        f"Token {length - 1} reads {length - window} to {length - 1}: blocks {first} to {last}.",
    )


def hit(rng: Random) -> Question:
    length, with_state = rng.randint(9, 40), rng.random() < 0.7

    def engine() -> int:
        kinds = ("full", "state") if with_state else ("full", "window")
        one = _engine(_specs(*kinds))
        _run(one, _request("first", list(range(length)), 1), length)
        again = _request("again", list(range(length)), 1)
        one.add_request(again)
        return int(one.kv_cache_manager.get_computed_blocks(again)[1])

    def by_hand() -> int:
        limit = (length - 1) // BLOCK * BLOCK
        kept = length // BLOCK * BLOCK
        return (kept if kept <= limit else 0) if with_state else limit

    layers = "full layers and states" if with_state else "full layers and windows of 16"
    return Question(
        f"Blocks of {BLOCK}, {layers}, a large budget. A prompt of {length} tokens was served. The"
        " same prompt comes again. How many tokens hit?",
        engine,
        by_hand,
        "One token must be computed, and hits are whole blocks."
        + (
            f" A state was kept after {length // BLOCK * BLOCK} tokens only."
            if with_state
            else " The window's last blocks are still there."
        ),
    )


def skipped(rng: Random) -> Question:
    kind = rng.choice(("window", "chunk", "state"))
    size, length = rng.choice((8, 12, 16)), rng.randint(20, 90)

    def engine() -> int:
        from mini_vllm.core.block_pool import BlockPool
        from mini_vllm.core.cache_groups import GroupSpec
        from mini_vllm.core.group_managers import MANAGERS

        names = {"window": "sliding_window", "chunk": "chunked_local", "state": "mamba"}
        spec = GroupSpec(names[kind], BLOCK, window=size, chunk=size)
        manager = MANAGERS[spec.kind](spec, 0, BlockPool(9, True), BLOCK, 64, 512)
        return int(manager.num_skipped_tokens(length))

    answers = {
        "window": max(0, length - size + 1),
        "chunk": length // size * size,
        "state": length - 1,
    }
    texts = {
        "window": f"a window of {size} tokens, itself included",
        "chunk": f"chunks of {size} tokens, and reads only its own",
        "state": "a state",
    }
    return Question(
        f"A layer has {texts[kind]}. {length} tokens are computed. How many at the front does no"
        " later token read?",
        engine,
        lambda: answers[kind],
        {
            "window": f"Token {length} reads {length - size + 1} to {length}.",
            "chunk": f"Token {length} is in the chunk that begins at {length // size * size}.",
            "state": "The state behind the last token stands for all before it.",
        }[kind],
    )


def groups_made(rng: Random) -> Question:
    full = rng.randint(2, 6)
    windows = rng.randint(2 * full, 8 * full)

    def engine() -> int:
        from mini_vllm.core.cache_groups import group_layers

        return len(group_layers(["full"] * full + ["window"] * windows))

    return Question(
        f"A model has {full} full layers and {windows} windows, all of one size. How many groups are"
        " made?",
        engine,
        lambda: 1 + -(-windows // full),
        f"{full} full layers give the size. {windows} windows fill {windows} / {full} groups of it,"
        " rounded up.",
    )


def forgetting(rng: Random) -> Question:
    first, second = 2 * rng.randint(1, 9), 2 * rng.randint(1, 9)

    def engine() -> float:
        import torch

        from mini_vllm.model.mixers.gated_delta import recurrent_gated_delta_rule

        state, one = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1)
        for value, decay in ((first, 1.0), (second, 0.5)):
            g, beta = torch.full((1, 1), math.log(decay)), torch.full((1, 1), 0.5)
            out, state = recurrent_gated_delta_rule(one, one, value * one, g, beta, state)
        return float(out)

    return Question(
        "A state of one number, from zero; key and query are 1, the strength 0.5. Token 1 has the"
        f" value {first} and forgets nothing; before token 2, of value {second}, half is forgotten."
        " What is the output of token 2?",
        engine,
        lambda: first / 4 + 0.5 * (second - first / 4),
        f"After token 1: 0.5 * {first} = {first / 2:g}. It decays to {first / 4:g}; {second} less"
        " that is missing, and half of it is written.",
        tolerance=1e-3,
    )


KINDS = {
    "window-held": window_held,
    "hit": hit,
    "skipped": skipped,
    "groups": groups_made,
    "forgetting": forgetting,
}
