"""The trace format: its fields, their defaults and limits, and the model that a replay pretends.

A trace is one JSON document::

    {"config": {"block_size": 4, "num_gpu_blocks": 10},
     "events": [{"op": "add", "id": "r0", "prompt": {"len": 9, "seed": 1, "share": 4}},
                {"op": "step", "n": 2},
                {"op": "abort", "id": "r0"},
                {"op": "drain"}]}

`step` runs the scheduler n times; `drain` runs it until no request is left, at most `max` times.
A replay prints one JSON line a step, with the keys of `STEP_FIELDS`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

STEP_FIELDS = (
    "step",  # counts from 0
    "scheduled",  # {id: tokens}, in the order of scheduling
    "preempted",  # ids, in the order of preemption
    "finished",  # [id, status, reason] of requests that ended by themselves in this step
    "aborted",  # ids aborted since the step before
    "new_block_ids",  # {id: blocks}: the whole table of a new or resumed request, else the new ones
    "computed",  # {id: tokens} of unfinished requests, in the order in which they were added
    "running",  # ids
    "waiting",  # ids, in the order in which they would be popped
    "free_blocks",
)
DESCRIPTIVE_FIELDS = ("config", "added")
"""What a recording of the engine says about itself besides. Nobody compares by it."""


class TraceError(ValueError):
    """A trace is wrong; the message says where, and what would be right."""


@dataclass(frozen=True)
class TraceConfig:
    """The scheduler's limits; the names are those of `SchedulerConfig` and `CacheConfig`."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    block_size: int = 16
    num_gpu_blocks: int = 1024
    max_model_len: int = 2048
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    policy: str = "fcfs"
    scheduler_reserve_full_isl: bool = True
    uncache_refunded_blocks: bool = False  # mini_vllm's own default is True: see DIFFERENCES.md
    vocab_size: int = 32000
    eos_token_id: int | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt by recipe: the first `share` tokens are common to all prompts of the trace."""

    len: int
    seed: int = 0
    share: int = 0


@dataclass(frozen=True)
class Add:
    """A request arrives."""

    op: ClassVar[str] = "add"
    id: str
    prompt: tuple[int, ...] | Prompt
    max_tokens: int = 8
    priority: int = 0
    arrival: float = 0.0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True)
class Abort:
    """The client goes away. Aborting an unknown or finished request does nothing, as in vLLM."""

    op: ClassVar[str] = "abort"
    id: str


@dataclass(frozen=True)
class Step:
    """Run the scheduler n times."""

    op: ClassVar[str] = "step"
    n: int = 1


@dataclass(frozen=True)
class Drain:
    """Run the scheduler until no request is left, at most `max` times."""

    op: ClassVar[str] = "drain"
    max: int = 10000


Event = Add | Abort | Step | Drain


@dataclass(frozen=True)
class Trace:
    """A checked trace."""

    config: TraceConfig
    events: tuple[Event, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without the fields that have their default value."""
        events: list[dict[str, Any]] = []
        adds = 0
        for event in self.events:
            usual = {"arrival": float(adds)} if isinstance(event, Add) else {}
            adds += isinstance(event, Add)
            events.append({"op": event.op} | _changed(event, usual))
        return {"config": _changed(self.config, {}), "events": events}


def _changed(item: Any, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that differ from their default, in order, ready for JSON."""
    defaults = {f.name: f.default for f in fields(item)} | dict(usual)
    values = {f.name: getattr(item, f.name) for f in fields(item)}
    plain = {k: v for k, v in values.items() if v != defaults[k]}
    return {
        k: _changed(v, {}) if isinstance(v, Prompt) else list(v) if isinstance(v, tuple) else v
        for k, v in plain.items()
    }


# ------------------------------------------------------------------ the pretended model


def fnv1a64(text: str) -> int:
    """The 64-bit FNV-1a hash of the text's UTF-8 bytes (http://www.isthe.com/chongo/tech/comp/fnv)."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def sample_token(request_id: str, position: int, vocab_size: int) -> int:
    """The token that the pretended model puts at `position` of prompt + output."""
    return fnv1a64(f"{request_id}:{position}") % vocab_size


def prompt_tokens(prompt: tuple[int, ...] | Prompt, vocab_size: int) -> list[int]:
    """The token ids of a prompt, written out or by recipe."""
    if not isinstance(prompt, Prompt):
        return list(prompt)
    seeds = ["shared" if i < prompt.share else str(prompt.seed) for i in range(prompt.len)]
    return [fnv1a64(f"{seed}:{i}") % vocab_size for i, seed in enumerate(seeds)]


# ------------------------------------------------------------------ reading and checking

# Smallest legal value of every whole number.
_MINIMUM = {
    "max_num_batched_tokens": 1, "max_num_seqs": 1, "block_size": 1, "num_gpu_blocks": 2,
    "max_model_len": 1, "long_prefill_token_threshold": 0, "vocab_size": 1, "eos_token_id": 0,
    "max_tokens": 1, "min_tokens": 0, "len": 1, "share": 0, "n": 0, "max": 0,
}  # fmt: skip
_EVENTS: dict[str, type[Add] | type[Abort] | type[Step] | type[Drain]] = {
    cls.op: cls for cls in (Add, Abort, Step, Drain)
}


def load_trace(path: Path) -> Trace:
    """Read a trace file.

    Raises:
        TraceError: the file is missing, is no JSON, or is no trace.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{path}, line {error.lineno}, column {error.colno}"
        raise TraceError(f"{place}: this is not JSON: {error.msg}") from None
    return parse_trace(data, str(path))


def parse_trace(data: Any, where: str = "trace") -> Trace:
    """Check a trace that has been read from JSON, and fill in the defaults.

    Raises:
        TraceError: naming the place, the value and what would be right.
    """
    _keys(data, ("config", "events"), where)
    config = _build(TraceConfig, data.get("config", {}), f"{where}: config")
    if config.policy not in ("fcfs", "priority"):
        raise TraceError(
            f"{where}: config: policy is {config.policy!r}; it must be 'fcfs' or 'priority'"
        )
    listed = data.get("events")
    if not isinstance(listed, list):
        raise TraceError(f"{where}: events must be a list of objects")
    events: list[Event] = []
    seen: set[str] = set()
    for index, item in enumerate(listed):
        events.append(_event(item, seen, config, f"{where}: events[{index}]"))
    return Trace(config, tuple(events))


def _event(item: Any, seen: set[str], config: TraceConfig, where: str) -> Event:
    """Check one event; `seen` holds the ids added before it."""
    if not isinstance(item, dict) or "op" not in item:
        raise TraceError(f"{where}: an event is an object with an `op`: {', '.join(_EVENTS)}")
    cls = _EVENTS.get(item["op"]) if isinstance(item["op"], str) else None
    if cls is None:
        raise TraceError(f"{where}: no op {item['op']!r}{_nearest(item['op'], _EVENTS)}")
    values = {k: v for k, v in item.items() if k != "op"}
    if cls is Add:
        values.setdefault("arrival", float(len(seen)))
    event = _build(cls, values, where)
    if isinstance(event, Add):
        _check_add(event, seen, config, where)
        seen.add(event.id)
    return event


def _check_add(event: Add, seen: set[str], config: TraceConfig, where: str) -> None:
    """What the fields of one request mean to each other."""
    if event.id in seen:
        raise TraceError(f"{where}: id {event.id!r} was added before; ids must be unique")
    if event.min_tokens > event.max_tokens:
        raise TraceError(
            f"{where}: min_tokens is {event.min_tokens}; it must be at most max_tokens, "
            f"{event.max_tokens}; lower it or raise max_tokens"
        )
    length = event.prompt.len if isinstance(event.prompt, Prompt) else len(event.prompt)
    if length > config.max_model_len:
        raise TraceError(
            f"{where}: the prompt has {length} tokens; max_model_len is {config.max_model_len}; "
            "shorten it or raise max_model_len"
        )


def _build(cls: Any, data: Any, where: str) -> Any:
    """Make a dataclass from a JSON object, checking keys, types and limits."""
    known = {f.name: f for f in fields(cls)}
    _keys(data, tuple(known), where)
    values = {k: _value(k, v, str(known[k].type), where) for k, v in data.items()}
    missing = [k for k in ("id", "prompt", "len") if k in known and k not in values]
    if missing:
        raise TraceError(f"{where}: `{missing[0]}` is missing")
    return cls(**values)


def _value(name: str, value: Any, kind: str, where: str) -> Any:
    """Check one value against the annotation of its field."""
    if name == "prompt":
        if isinstance(value, dict):
            return _build(Prompt, value, f"{where}: prompt")
        return _tokens(name, value, where, at_least=1)
    if name == "stop_token_ids":
        return _tokens(name, value, where, at_least=0)
    if kind == "int | None" and value is None:
        return None
    want: dict[str, tuple[type | tuple[type, ...], str]] = {
        "bool": (bool, "true or false"),
        "str": (str, "a text"),
        "float": ((int, float), "a number"),
        "int": (int, "a whole number"),
        "int | None": (int, "a whole number or null"),
    }
    types, words = want[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
        raise TraceError(f"{where}: {name} is {value!r}; it must be {words}")
    if isinstance(value, float) and not math.isfinite(value):
        raise TraceError(f"{where}: {name} is {value}; it must be finite")
    if isinstance(value, int) and value < _MINIMUM.get(name, value):
        raise TraceError(f"{where}: {name} is {value}; it must be at least {_MINIMUM[name]}")
    return value


def _tokens(name: str, value: Any, where: str, at_least: int) -> tuple[int, ...]:
    """Check a list of token ids."""
    good = isinstance(value, (list, tuple)) and all(
        isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value
    )
    if not good:
        also = ', or {"len": n, "seed": s, "share": k}' if name == "prompt" else ""
        raise TraceError(f"{where}: {name} is {value!r}; it must be a list of token ids{also}")
    if len(value) < at_least:
        raise TraceError(f"{where}: {name} is empty; it must hold at least {at_least} token")
    return tuple(value)


def _keys(data: Any, known: Sequence[str], where: str) -> None:
    """Refuse anything but an object whose keys are known."""
    if not isinstance(data, dict):
        raise TraceError(f"{where}: must be an object, not {type(data).__name__}")
    for key in data:
        if key not in known:
            raise TraceError(f"{where}: no key {key!r}{_nearest(key, known)}")


def _nearest(word: Any, known: Sequence[str] | Mapping[str, Any]) -> str:
    """The end of a sentence about an unknown word."""
    near = get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; it must be one of {', '.join(known)}"


def dump_trace(trace: Trace) -> str:
    """A trace as text, one event a line."""
    data = trace.to_dict()
    events = ",\n  ".join(json.dumps(event) for event in data["events"])
    return f'{{"config": {json.dumps(data["config"])},\n "events": [\n  {events}\n ]}}\n'


def dump_line(line: Mapping[str, Any]) -> str:
    """One step as the replay prints it."""
    return json.dumps(line, separators=(",", ":"))


def config_dict(config: TraceConfig) -> dict[str, Any]:
    """Every field of a configuration, the default ones too."""
    return asdict(config)
