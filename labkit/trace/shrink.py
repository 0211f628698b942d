"""Make a failing trace smaller, keeping it failing, until nothing more can go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from labkit.trace.format import Abort, Add, Drain, Event, Prompt, Step, Trace, TraceConfig
from labkit.trace.generate import deliberate_difference

MAX_TRIES = 3000

T = TypeVar("T")


def shrink(trace: Trace, fails: Callable[[Trace], bool]) -> Trace:
    """Greedily drop events and lower numbers.

    Args:
        trace: a trace for which `fails` is true.
        fails: must say the same thing each time it is asked. It is asked at most `MAX_TRIES`
            times, and never about a trace with a deliberate difference.
    """
    tries = 0
    progress = True
    while progress and tries < MAX_TRIES:
        progress = False
        for candidate in _smaller(trace):
            if deliberate_difference(candidate):
                continue
            tries += 1
            if fails(candidate):
                trace, progress = candidate, True
                break
            if tries >= MAX_TRIES:
                break
    return trace


def _smaller(trace: Trace) -> Iterator[Trace]:
    """Simpler traces, the boldest first: without many events, without one, with lower numbers."""
    events = _without_orphans(trace.events)
    size = len(events) // 2
    while size >= 1:
        for start in range(0, len(events), size):
            yield replace(trace, events=events[:start] + events[start + size :])
        size //= 2
    for index, event in enumerate(events):
        for simpler in _simpler_event(event):
            yield replace(trace, events=events[:index] + (simpler,) + events[index + 1 :])
    for config in _simpler_config(trace.config):
        yield replace(trace, config=config)


def _without_orphans(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Drop aborts of requests that are no longer in the trace."""
    added = {event.id for event in events if isinstance(event, Add)}
    return tuple(e for e in events if not isinstance(e, Abort) or e.id in added)


def _lower(value: int, least: int) -> Iterator[int]:
    """Least, half and one less."""
    yield from dict.fromkeys(v for v in (least, value // 2, value - 1) if least <= v < value)


def _with(item: T, name: str, value: Any) -> T:
    """A copy of a dataclass with one other field."""
    return replace(item, **{name: value})  # type: ignore[type-var]


def _simpler_event(event: Event) -> Iterator[Event]:
    if isinstance(event, Step):
        yield from (Step(n) for n in _lower(event.n, 1))
    if isinstance(event, Drain):
        yield Step(1)
    if isinstance(event, Add):
        yield from _simpler_add(event)


def _simpler_add(event: Add) -> Iterator[Add]:
    for name, least in (("max_tokens", 1), ("min_tokens", 0), ("priority", 0)):
        yield from (_with(event, name, v) for v in _lower(getattr(event, name), least))
    if event.stop_token_ids:
        yield replace(event, stop_token_ids=())
    if event.ignore_eos:
        yield replace(event, ignore_eos=False)
    if isinstance(event.prompt, Prompt):
        prompt = event.prompt
        yield from (replace(event, prompt=replace(prompt, len=n)) for n in _lower(prompt.len, 1))
        yield from (
            replace(event, prompt=replace(prompt, share=n)) for n in _lower(prompt.share, 0)
        )
    else:
        lengths = _lower(len(event.prompt), 1)
        yield from (replace(event, prompt=event.prompt[:n]) for n in lengths)


def _simpler_config(config: TraceConfig) -> Iterator[TraceConfig]:
    default = TraceConfig()
    for name in ("policy", "enable_prefix_caching", "enable_chunked_prefill", "eos_token_id",
                 "scheduler_reserve_full_isl", "long_prefill_token_threshold"):  # fmt: skip
        if getattr(config, name) != getattr(default, name):
            yield _with(config, name, getattr(default, name))
    for name, least in (("block_size", 1), ("num_gpu_blocks", 2), ("max_num_seqs", 1),
                        ("max_num_batched_tokens", 1), ("max_model_len", 2)):  # fmt: skip
        yield from (_with(config, name, v) for v in _lower(getattr(config, name), least))
