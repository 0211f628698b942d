"""What random traces are drawn from: a kind for each thing that a scheduler can get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm
from random import Random

from labkit.trace.format import TraceConfig
from mini_vllm.core.cache_groups import GroupSpec


@dataclass(frozen=True)
class Shape:
    """What a kind draws its requests from; ranges are inclusive."""

    config: TraceConfig
    prompt: tuple[int, int] = (1, 40)
    max_tokens: tuple[int, int] = (1, 24)
    share: float = 0.3  # chance that a prompt begins with the trace's shared tokens
    reuse: float = 0.0  # chance that a prompt continues an earlier prompt and its output
    priorities: int = 1
    late: float = 0.0  # chance that the arrival time is not the order of arrival
    stops: float = 0.0  # chance of each of: stop tokens, min_tokens, ignore_eos
    aborts: float = 0.05  # aborts per event
    adapters: int = 0  # different adapters that requests choose from, the base beside them
    images: int = 0  # different images that prompts may hold
    alike: bool = True  # whether two prompts may be equal
    external: float = 0.0  # chance that a connector has a part of a prompt
    lost: float = 0.0  # chance that some of that does not arrive
    kept: float = 0.0  # chance that blocks outlive their request
    drain: int = 10000  # most steps after the last event
    burst: int = 3  # most requests that arrive between two steps
    pause: int = 4  # most steps between two arrivals


def image_of(number: int) -> tuple[int] | tuple[int, int]:
    """Length of an image, always the same; of every third, only some positions are embeddings."""
    length = 1 + number * 7 % 19
    return (length, max(1, length - number % 4)) if number % 3 == 2 else (length,)


MAX_BLOCK_SIZE = 16


def _block_size(rng: Random) -> int:
    return rng.choice((1, 2, 3, 4, 4, 8, MAX_BLOCK_SIZE))


def _config(rng: Random, blocks: tuple[int, int], **given: object) -> TraceConfig:
    """A small configuration; `blocks` is the range of blocks that requests can use."""
    values: dict[str, object] = {
        "max_num_batched_tokens": rng.choice((4, 8, 16, 17, 32, 64, 256)),
        "max_num_seqs": rng.choice((1, 2, 3, 4, 8, 16)),
        "block_size": _block_size(rng),
        "num_gpu_blocks": 1 + rng.randint(*blocks),
        "max_model_len": rng.choice((16, 33, 64, 128, 256)),
        "enable_prefix_caching": rng.random() < 0.8,
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "vocab_size": 1000,
    }
    return TraceConfig(**(values | given))  # type: ignore[arg-type]


def _mixed(rng: Random) -> Shape:
    """A little of everything."""
    if rng.random() < 0.1:
        return _large(rng)
    config = _config(
        rng,
        (6, 60),
        policy=rng.choice(("fcfs", "priority")),
        long_prefill_token_threshold=rng.choice((0, 0, 3, 8)),
        vocab_size=rng.choice((20, 1000)),
        eos_token_id=rng.choice((None, 7)),
    )
    return Shape(config, priorities=3, late=0.3, stops=0.3, reuse=0.2)


def _large(rng: Random) -> Shape:
    """Limits as a server has them: many rows, long prompts, a wide budget."""
    config = TraceConfig(
        max_num_batched_tokens=rng.choice((512, 2048)),
        num_gpu_blocks=rng.choice((60, 200, 1024)),
        policy=rng.choice(("fcfs", "priority")),
        scheduler_reserve_full_isl=rng.random() < 0.7,
        max_model_len=1024,
    )
    return Shape(
        config, prompt=(1, 700), max_tokens=(1, 200), priorities=3, reuse=0.2, burst=12, pause=6
    )


def _pressure(rng: Random) -> Shape:
    """Too few blocks for all who want to run: preemption, resumption, waiting."""
    if rng.random() < 0.3:
        return _storm(rng)
    config = _config(
        rng,
        (3, 16),
        max_num_seqs=rng.choice((2, 4, 8, 32)),
        max_num_batched_tokens=rng.choice((8, 16, 64, 256)),
        scheduler_reserve_full_isl=rng.random() < 0.5,
    )
    slots = (config.num_gpu_blocks - 1) * config.block_size
    return Shape(config, prompt=(1, max(2, slots // 2)), max_tokens=(1, max(2, slots)), burst=4)


def _storm(rng: Random) -> Shape:
    """Long prompts in small chunks, admitted without reserve: a chunk evicts several others."""
    config = _config(
        rng,
        (10, 24),
        block_size=1,
        max_num_seqs=16,
        max_num_batched_tokens=rng.choice((12, 16, 24)),
        long_prefill_token_threshold=rng.choice((4, 6)),
        scheduler_reserve_full_isl=False,
        policy=rng.choice(("fcfs", "priority")),
    )
    return Shape(config, prompt=(1, 20), max_tokens=(1, 6), priorities=3, burst=5, pause=2)


def _prefix(rng: Random) -> Shape:
    """Prompts that share heads, repeat each other, or continue earlier conversations."""
    config = _config(
        rng, (8, 80), enable_prefix_caching=True, max_model_len=rng.choice((64, 128, 256))
    )
    return Shape(config, prompt=(1, 48), max_tokens=(1, 12), share=0.7, reuse=0.4, burst=4)


def _priority(rng: Random) -> Shape:
    """Priorities under pressure: victims that were scheduled already, victims of themselves."""
    config = _config(
        rng,
        (4, 24),
        policy="priority",
        max_num_seqs=rng.choice((2, 4, 8, 16)),
        scheduler_reserve_full_isl=rng.random() < 0.5,
    )
    return Shape(config, prompt=(1, 24), max_tokens=(1, 24), priorities=4, late=0.5, burst=4)


def _stop(rng: Random) -> Shape:
    """A small vocabulary, so that EOS and stop tokens come up; min_tokens; short models."""
    config = _config(
        rng,
        (12, 60),
        vocab_size=rng.choice((3, 6, 12)),
        eos_token_id=rng.choice((None, 0, 1)),
        max_model_len=rng.choice((8, 16, 33, 64)),
    )
    return Shape(config, prompt=(1, 20), max_tokens=(1, 40), stops=0.5)


def _abort(rng: Random) -> Shape:
    """Requests that leave in every state: waiting, half computed, decoding, preempted."""
    config = _config(
        rng,
        (4, 30),
        policy=rng.choice(("fcfs", "priority")),
        max_num_batched_tokens=rng.choice((4, 8, 16, 64)),
    )
    return Shape(config, max_tokens=(4, 40), aborts=0.6, priorities=2, burst=3)


def _threshold(rng: Random) -> Shape:
    """Long prompts, a cap on what one of them may take of a step."""
    config = _config(
        rng,
        (12, 100),
        long_prefill_token_threshold=rng.choice((1, 2, 5, 8, 16)),
        max_model_len=rng.choice((64, 128, 256)),
        enable_chunked_prefill=rng.random() < 0.8,
    )
    budget = max(config.max_num_batched_tokens, config.long_prefill_token_threshold)
    return Shape(replace(config, max_num_batched_tokens=budget), prompt=(1, 100), reuse=0.1)


def _chunking_off(rng: Random) -> Shape:
    """A prompt runs whole or waits."""
    budget = rng.choice((8, 16, 32, 64))
    config = _config(rng, (6, 60), enable_chunked_prefill=False, max_num_batched_tokens=budget)
    return Shape(config, prompt=(1, budget), reuse=0.1)


def _lora(rng: Random) -> Shape:
    """More adapters than slots, under pressure, with priorities and in chunks."""
    config = _config(
        rng,
        (6, 40),
        max_loras=rng.choice((1, 1, 2, 3)),
        max_num_seqs=rng.choice((2, 4, 8, 16)),
        policy=rng.choice(("fcfs", "priority")),
        long_prefill_token_threshold=rng.choice((0, 0, 5)),
    )
    return Shape(
        config, prompt=(1, 30), share=0.6, priorities=3, late=0.3, aborts=0.2, adapters=5, burst=4
    )


KINDS: dict[str, Callable[[Random], Shape]] = {
    "mixed": _mixed,
    "pressure": _pressure,
    "prefix": _prefix,
    "priority": _priority,
    "stop": _stop,
    "abort": _abort,
    "threshold": _threshold,
    "chunking-off": _chunking_off,
}
"""What every scheduler must get right: the phases of the scheduler are judged by them."""


def _edge(rng: Random) -> Shape:
    """Prompts that end just below the model's length, where drafts find no room."""
    length = rng.randint(5, 48)
    config = _config(rng, (60, 90), max_model_len=length)
    return Shape(config, prompt=(max(1, length - 9), length - 1), max_tokens=(1, 20))


def _drafts(rng: Random) -> Shape:
    """One of the kinds above, or the edge of the model's length, with drafts to verify."""
    shape = rng.choice((_mixed, _pressure, _priority, _prefix, _stop, _edge))(rng)
    drafted = replace(
        shape.config,
        num_speculative_tokens=rng.choice((1, 2, 3, 4, 7)),
        spec_method=rng.choice(("ngram", "draft_model", "eagle")),
        spec_accept=rng.choice((0, 300, 700, 900, 1000)),
        spec_ragged=rng.random() < 0.5,
    )
    blocks = drafted.num_gpu_blocks + -(-2 * drafted.num_speculative_tokens // drafted.block_size)
    return replace(shape, config=replace(drafted, num_gpu_blocks=blocks))


def _images(rng: Random) -> Shape:
    """Images that share a small cache and a small budget, under pressure and with aborts."""
    count = rng.choice((3, 6, 12))
    largest = max(image_of(number)[0] for number in range(count))
    config = _config(
        rng,
        (8, 40),
        max_num_batched_tokens=rng.choice((4, 8, 16, 32, 64)),
        max_num_seqs=rng.choice((1, 2, 4, 8)),
        max_model_len=rng.choice((64, 128)),
        long_prefill_token_threshold=rng.choice((0, 0, 5)),
        encoder_cache_size=largest + rng.choice((0, 1, 7, 20, 60)),
        max_num_encoder_input_tokens=largest + rng.choice((0, 0, 5, 30)),
    )
    if rng.random() < 0.25:  # with room for all: see `deliberate_difference`
        blocks = config.max_num_seqs * -(-config.max_model_len // config.block_size)
        config = replace(config, policy="priority", num_gpu_blocks=1 + blocks)
    return Shape(
        config, prompt=(1, 60), max_tokens=(1, 12), priorities=3, aborts=0.15, images=count, burst=4
    )


def _external(rng: Random) -> Shape:
    """A connector has parts of prompts: at once or later, whole or not, kept after the end or not.

    What does not arrive of a synchronous load stays in vLLM's prefix cache (DIFFERENCES.md), so
    there no two prompts are alike, and none is preempted, for one that comes back would find it.
    """
    lost = rng.choice((0.0, 0.4))
    connector = rng.choice(("sync", "async"))
    alone = connector == "sync" and lost > 0
    config = _config(
        rng,
        (60, 90) if alone else rng.choice(((12, 30), (30, 80))),
        connector=connector,
        kv_load_failure_policy=rng.choice(("recompute", "fail")),
        policy=rng.choice(("fcfs", "priority")),
        enable_prefix_caching=True,
        long_prefill_token_threshold=rng.choice((0, 0, 5)),
        max_model_len=rng.choice((33, 64, 128)),
    )
    if alone:  # as many tokens, however small the blocks are: room for all requests
        num_gpu_blocks = config.num_gpu_blocks * MAX_BLOCK_SIZE // config.block_size
        config = replace(config, num_gpu_blocks=num_gpu_blocks)
    return Shape(
        config,
        prompt=(1, 40),
        max_tokens=(1, 12),
        share=0.0 if alone else 0.5,
        reuse=0.0 if alone else 0.2,
        alike=not alone,
        priorities=2,
        aborts=0.3,
        external=0.7,
        lost=lost,
        kept=0.3,
        drain=300,
    )


def _hybrid(rng: Random) -> Shape:
    """Layers that remember differently: windows, chunks or states, alone or beside full attention.

    The pool holds what one request holds at most, for vLLM lets one that needs more wait for ever.
    """
    size = rng.choice((4, 4, 8, 16))
    length = rng.choice((64, 96, 160))
    full = GroupSpec("full", size)
    window = GroupSpec(
        "sliding_window", size, window=rng.choice((3, size, size + 1, 2 * size, 5 * size))
    )
    local = GroupSpec("chunked_local", size, chunk=size * rng.choice((1, 2, 3)))
    groups = rng.choice(
        (
            (full, window),
            (window, full, window),
            (full, replace(window, block_size=size * rng.choice((2, 4)))),
            (replace(full, block_size=2 * size), window),
            (window,),
            (full, local),
            (full, GroupSpec("mamba", size, mode="align")),
            (full, GroupSpec("mamba", size, mode="align")),
            (full, GroupSpec("mamba", size, mode="all")),
            (full, GroupSpec("mamba", length, mode="none")),
        )
    )
    modes = {group.mode for group in groups if group.kind == "mamba"}
    budget = max(rng.choice((17, 24, 40, 64, 160)), size)
    most = sum(held_at_most(group, budget, length) for group in groups)
    config = TraceConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=rng.choice((2, 4, 8)),
        num_gpu_blocks=1 + rng.choice((most + rng.randint(0, most // 2), most * rng.randint(3, 6))),
        max_model_len=length,
        enable_prefix_caching="none" not in modes and (bool(modes) or rng.random() < 0.85),
        long_prefill_token_threshold=rng.choice((0, 0, max(16, size))),
        policy=rng.choice(("fcfs", "fcfs", "fcfs", "priority")),
        scheduler_reserve_full_isl=rng.random() < 0.5,
        groups=groups,
    )
    return Shape(
        config, prompt=(1, length - 8), max_tokens=(1, 60), share=0.4, reuse=0.4, priorities=3,
        aborts=0.1,
    )  # fmt: skip


def held_at_most(group: GroupSpec, budget: int, length: int) -> int:
    """Blocks of a group that one request holds or reserves at most."""
    whole = -(-length // group.block_size)
    if group.kind == "sliding_window":
        return min(whole, -(-min(group.window - 1 + budget, length) // group.block_size)) + 1
    return 3 if group.mode == "align" else whole


FEATURE_KINDS: dict[str, Callable[[Random], Shape]] = {
    "drafts": _drafts,
    "lora": _lora,
    "images": _images,
    "external": _external,
    "hybrid": _hybrid,
}
"""Those of features that a scheduler may lack."""

ALL_KINDS = KINDS | FEATURE_KINDS


def _headroom(rng: Random) -> Shape:
    """Options that vLLM 0.22 does not have: a watermark, a cap that adapts."""
    shape = rng.choice((_mixed, _pressure, _priority, _prefix, _threshold))(rng)
    config = replace(
        shape.config,
        admission_watermark=rng.choice((0.0, 0.02, 0.1, 0.3, 0.6)),
        long_prefill_token_threshold_adaptive=rng.random() < 0.6,
    )
    return replace(shape, config=config)


def _retention(rng: Random) -> Shape:
    """Layers that remember differently, of which more places are kept than requests begin at."""
    shape = _hybrid(rng)
    alignment = lcm(*(group.block_size for group in shape.config.groups))
    interval = alignment * rng.choice((1, 2, 3))
    kept = any(group.kind in ("sliding_window", "mamba") for group in shape.config.groups)
    config = replace(shape.config, prefix_cache_retention_interval=interval if kept else 0)
    return replace(shape, config=config)


NEWER_KINDS: dict[str, Callable[[Random], Shape]] = {
    "headroom": _headroom,
    "retention": _retention,
}
"""Those that the release of the pin cannot replay."""

ASYNC_KINDS = tuple(name for name in ALL_KINDS if name not in ("drafts", "external"))
"""Those that can be replayed with late results: neither drafts nor transfers go with them."""


def kinds_of(profile: str, async_scheduling: bool = False) -> tuple[str, ...]:
    """What is compared with the release of a profile."""
    kinds = ASYNC_KINDS if async_scheduling else tuple(ALL_KINDS)
    if profile == "v0.22":
        return kinds
    return (*kinds, *NEWER_KINDS)
