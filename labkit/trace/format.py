"""The trace format: its fields, their defaults and limits, and the model that a replay pretends.

A trace is one JSON document::

    {"config": {"block_size": 4, "num_gpu_blocks": 10},
     "events": [{"op": "add", "id": "r0", "prompt": {"len": 9, "seed": 1, "share": 4}},
                {"op": "step", "n": 2},
                {"op": "abort", "id": "r0"},
                {"op": "drain"}]}

`step` runs the scheduler n times; `drain` runs it until no request is left, at most `max` times.
A replay prints one JSON line a step, with the keys of `STEP_FIELDS`.

Features have keys of their own, all left out where a feature is not used. A configuration with
`num_speculative_tokens`, `max_loras`, `encoder_cache_size`, `connector` or `groups` switches one
on; then requests may say `lora`, `images` or `external`, and step lines have the keys of
`FEATURE_FIELDS`.
`grammar` needs no switch: the request is ready that many steps after it came.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

from mini_vllm.config.profiles import PROFILES
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.json_files import parse_json

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
FEATURE_FIELDS: dict[str, tuple[str, ...]] = {
    # {id: drafts scheduled}, {id: tokens taken in}, {id: drafts for the next step}
    "num_speculative_tokens": ("spec", "sampled", "drafts"),
    # {id: images encoded}, hashes that the worker may forget
    "encoder_cache_size": ("encode", "forgotten"),
    # ids whose KV is on its way, ids that have ended but keep blocks, {id: tokens kept}
    "connector": ("loading", "held", "rewound"),
    # {id: blocks of groups 1 and up}, {admitted id: [tokens found, blocks of each group]}, ids in
    # the order in which they became free and lost their hash, {running id: its tables}
    "groups": ("group_block_ids", "hits", "freed", "evicted", "tables"),
}
"""What a step line says besides, by the key of the configuration that switches it on."""
DESCRIPTIVE_FIELDS = ("config", "added")
"""What a recording of the engine says about itself besides. No comparison uses it."""


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
    num_speculative_tokens: int = 0
    spec_method: str = "ngram"  # all but "ngram" need a KV slot for every draft
    spec_accept: int = 700  # drafts in a thousand that are right
    spec_ragged: bool = False  # the number of drafts changes from step to step
    max_loras: int = 0
    encoder_cache_size: int = 0
    max_num_encoder_input_tokens: int = 0
    disable_chunked_mm_input: bool = False
    connector: str | None = None  # "sync" or "async"
    kv_load_failure_policy: str = "recompute"  # or "fail"
    num_cpu_blocks: int = 0  # this and the following: for policies of vLLM V0's kind
    num_lookahead_tokens: int = 0
    preemption_mode: str | None = None  # "swap" or "recompute"; null: by the group
    delay_factor: float = 0.0
    watermark: float = 0.01
    async_scheduling: bool = False  # each step is planned before the one before is taken in
    profile: str = "v0.22"  # the release of vLLM whose decisions are made
    long_prefill_token_threshold_adaptive: bool = False
    admission_watermark: float = 0.0  # `watermark` of the scheduler; the one above is V0's
    prefix_cache_retention_interval: int | None = None  # null: as the profile has it
    groups: tuple[GroupSpec, ...] = ()  # what layers remember; `block_size` is that of the first

    def __post_init__(self) -> None:
        if self.groups:
            object.__setattr__(self, "groups", tuple(map(_group, self.groups)))
            object.__setattr__(self, "block_size", self.groups[0].block_size)


def _group(item: Any) -> GroupSpec:
    """Raises ValueError unless `item` is a group, or an object with the arguments of one."""
    if isinstance(item, GroupSpec):
        return item
    names = [field.name for field in fields(GroupSpec)]
    if not isinstance(item, Mapping) or not {"kind", "block_size"} <= item.keys() <= set(names):
        raise ValueError(f"groups holds {item!r}; each is an object with {', '.join(names)}")
    return GroupSpec(**item)


CHOICES = {
    "policy": ("fcfs", "priority"),
    "spec_method": ("ngram", "draft_model", "eagle"),
    "connector": (None, "sync", "async"),
    "kv_load_failure_policy": ("recompute", "fail"),
    "preemption_mode": (None, "swap", "recompute"),
    "profile": tuple(PROFILES),
}


def step_fields(config: TraceConfig) -> tuple[str, ...]:
    """The keys of a step line under this configuration, in order."""
    more = [names for switch, names in FEATURE_FIELDS.items() if getattr(config, switch)]
    return STEP_FIELDS + tuple(name for names in more for name in names)


@dataclass(frozen=True)
class Prompt:
    """A prompt by recipe: the first `share` tokens are common to all prompts of the trace."""

    len: int
    seed: int = 0
    share: int = 0


Image = tuple[int, int, str] | tuple[int, int, str, int]
"""(offset, length, content hash) of an image in the prompt, and how many of its tokens are
embeddings, if not all."""


def placeholder(image: Image) -> tuple[int, int, str, tuple[bool, ...] | None]:
    """Offset, length, hash, and which positions are embeddings: None for all, else the last."""
    offset, length, mm_hash, *embeds = image
    mask = tuple(index >= length - embeds[0] for index in range(length)) if embeds else None
    return offset, length, mm_hash, mask


@dataclass(frozen=True)
class External:
    """What a KV connector holds of a request, and how its transfer goes."""

    answers: tuple[int | None, ...] = (0,)  # tokens that it has, load by load; null: ask again
    arrive: int = 0  # steps that an asynchronous transfer takes
    invalid: tuple[int, ...] = ()  # indices of blocks, of those loaded, that do not arrive
    keep: int = 0  # steps for which the blocks are kept when the request has ended


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
    lora: str | None = None
    images: tuple[Image, ...] = ()
    grammar: int | None = None
    external: External | None = None


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
    return {k: _plain(v) for k, v in plain.items()}


def _plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, (Prompt, External, GroupSpec)):
        return _changed(value, {})
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


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


def draft_tokens(request_id: str, num_tokens: int, config: TraceConfig, sampled: bool) -> list[int]:
    """What the pretended proposer guesses after `num_tokens` tokens: right now and then.

    With `spec_ragged` the guess has any length, and there is none after a chunk of a prompt.
    """
    count, vocab_size = config.num_speculative_tokens, config.vocab_size
    if config.spec_ragged:
        count = fnv1a64(f"drafts:{request_id}:{num_tokens}") % (count + 1) if sampled else 0
    guesses = []
    for position in range(num_tokens, num_tokens + count):
        is_right = fnv1a64(f"accept:{request_id}:{position}") % 1000 < config.spec_accept
        token = sample_token(request_id, position, vocab_size)
        guesses.append(token if is_right else (token + 1) % vocab_size)
    return guesses


def sample_tokens(
    request_id: str, num_tokens: int, drafts: Sequence[int], vocab_size: int
) -> list[int]:
    """The pretended model's answer to a request of `num_tokens` tokens: the drafts up to the first
    that is wrong, and one token more."""
    tokens = [sample_token(request_id, num_tokens, vocab_size)]
    for draft in drafts:
        if draft != tokens[-1]:
            break
        tokens.append(sample_token(request_id, num_tokens + len(tokens), vocab_size))
    return tokens


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
    "num_speculative_tokens": 0, "spec_accept": 0, "max_loras": 0, "encoder_cache_size": 0,
    "num_cpu_blocks": 0, "num_lookahead_tokens": 0,
    "max_num_encoder_input_tokens": 0, "grammar": 0, "arrive": 0, "keep": 0,
}  # fmt: skip
# A field of a request, and the key of the configuration without which it means nothing.
_NEEDS = {"lora": "max_loras", "images": "encoder_cache_size", "external": "connector"}
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
        data = parse_json(text)
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
    for name, choices in CHOICES.items():
        if (value := getattr(config, name)) not in choices:
            words = " or ".join(repr(choice) for choice in choices if choice)
            raise TraceError(f"{where}: config: {name} is {value!r}; it must be {words}")
    for name in ("num_speculative_tokens", "connector"):
        if config.async_scheduling and getattr(config, name):
            raise TraceError(f"{where}: config: async_scheduling does not go with {name}")
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
    for name, switch in _NEEDS.items():
        if getattr(event, name) and not getattr(config, switch):
            raise TraceError(f"{where}: {name} needs {switch} in the config; set it")
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
    try:
        return cls(**values)
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from None


def _value(name: str, value: Any, kind: str, where: str) -> Any:
    """Check one value against the annotation of its field."""
    if name == "prompt":
        if isinstance(value, dict):
            return _build(Prompt, value, f"{where}: prompt")
        return _tokens(name, value, where, at_least=1)
    if name in ("stop_token_ids", "invalid"):
        return _tokens(name, value, where, at_least=0)
    if name == "images":
        return _images(value, where)
    if name == "answers":
        return tuple(_value("answer", item, "int | None", where) for item in _list(value, where))
    if "| None" in kind and value is None:
        return None
    if name == "groups":
        return _list(value, where)
    if name == "external":
        return _build(External, value, f"{where}: external")
    want: dict[str, tuple[type | tuple[type, ...], str]] = {
        "bool": (bool, "true or false"),
        "str": (str, "a text"),
        "float": ((int, float), "a number"),
        "int": (int, "a whole number"),
        "int | None": (int, "a whole number or null"),
        "str | None": (str, "a text or null"),
    }
    types, words = want[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
        raise TraceError(f"{where}: {name} is {value!r}; it must be {words}")
    if isinstance(value, float) and not math.isfinite(value):
        raise TraceError(f"{where}: {name} is {value}; it must be finite")
    if isinstance(value, int) and value < _MINIMUM.get(name, value):
        raise TraceError(f"{where}: {name} is {value}; it must be at least {_MINIMUM[name]}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise TraceError(f"{where}: answers is {value!r}; it must be a list")
    return value


def _images(value: Any, where: str) -> tuple[Image, ...]:
    """Check a list of images."""
    shape = [int, int, str, int]
    good = isinstance(value, list) and all(
        isinstance(image, list) and [type(part) for part in image] in (shape[:3], shape)
        for image in value
    )
    if not good:
        raise TraceError(
            f"{where}: images is {value!r}; it must be a list of [offset, length, hash], or "
            "[offset, length, hash, embeddings]"
        )
    return tuple(tuple(image) for image in value)


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
    """Every field of a configuration, the default ones too, but not those of unused features."""
    names = [f.name for f in fields(config)]
    features = names[names.index("num_speculative_tokens") :]
    changed = _changed(config, {})
    return {k: v for k, v in asdict(config).items() if k not in features or k in changed}
