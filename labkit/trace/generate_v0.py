"""Random traces for the policies of vLLM V0's kind.

None of them holds what ours do differently on purpose (`upstream_notes/POLICIES.md`): a request
always fits the pool and the host, no request is swapped out under "priority", and no prompt finds
another's blocks.
"""

from __future__ import annotations

from random import Random

from labkit.trace.format import Abort, Add, Drain, Event, Prompt, Step, Trace, TraceConfig

PROFILES = ("tight", "swap", "priority", "delay", "lookahead", "watermark", "cached")


def generate_v0(profile: str, seed: int, chunked: bool, steps: int = 100) -> Trace:
    """A trace of about `steps` steps, for the default policy or the chunked one.

    Raises:
        ValueError: there is no such profile.
    """
    if profile not in PROFILES:
        raise ValueError(f"no profile {profile!r}; it must be one of {', '.join(PROFILES)}")
    rng = Random(f"{profile}/{seed}/{chunked}/{steps}")
    config = _config(rng, profile, chunked)
    longest = _longest(config, chunked)
    events: list[Event] = []
    added = now = 0
    work = 0.0
    while now < steps:
        for _ in range(rng.randint(0, 3)):
            if work < 1.5 * now + 30:
                event = _request(rng, f"r{added}", longest, config, now + added / 4096)
                events.append(event)
                added, work = added + 1, work + event.max_tokens / min(config.max_num_seqs, 4)
        if added and rng.random() < 0.08:
            events.append(Abort(f"r{rng.randrange(max(0, added - 6), added)}"))
        count = rng.randint(1, 4)
        events.append(Step(count))
        now += count
    return Trace(config, (*events, Drain(4000)))


def _config(rng: Random, profile: str, chunked: bool) -> TraceConfig:
    block_size = rng.choice((1, 2, 4, 4, 8))
    seqs = rng.choice((1, 2, 3, 4, 8))
    blocks = rng.randint(6, 24) if profile != "cached" else 2000
    budget = rng.choice((8, 16, 32, 64)) // block_size * block_size
    return TraceConfig(
        block_size=block_size,
        num_gpu_blocks=1 + blocks,
        num_cpu_blocks=4000 if profile == "swap" else 0,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(budget, seqs, block_size),
        max_model_len=4096,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=profile == "cached",
        scheduler_reserve_full_isl=False,
        policy="priority" if profile == "priority" else "fcfs",
        preemption_mode="swap" if profile == "swap" else rng.choice((None, "recompute")),
        delay_factor=rng.choice((0.5, 1.0, 2.0)) if profile == "delay" else 0.0,
        num_lookahead_tokens=rng.choice((1, 3, 5)) if profile == "lookahead" else 0,
        watermark=rng.choice((0.1, 0.3)) if profile == "watermark" else 0.01,
        vocab_size=10**6,
    )


def _longest(config: TraceConfig, chunked: bool) -> int:
    """Most tokens of prompt and output together that fit the pool alone, with room to spare."""
    blocks = config.num_gpu_blocks - 1
    kept = int(config.watermark * blocks)
    slots = (blocks - kept - 1) * config.block_size - config.num_lookahead_tokens
    longest = max(2, min(slots, 200))
    return longest if chunked else min(longest, config.max_num_batched_tokens)


def _request(rng: Random, name: str, longest: int, config: TraceConfig, now: float) -> Add:
    length = rng.choice((1, 2, rng.randint(1, longest - 1), rng.randint(1, longest - 1)))
    length = min(length, longest - 1)
    if config.preemption_mode == "swap":  # in V0 a prompt longer than a step never comes back
        length = min(length, config.max_num_batched_tokens)
    output = rng.randint(1, longest - length)
    priority = rng.randrange(3) if config.policy == "priority" else 0
    return Add(name, Prompt(length, seed=int(name[1:]) + 1), output, priority, now)
