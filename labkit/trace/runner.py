"""Replay a trace on a scheduler: mini_vllm's, one of your own, the learner's, or vLLM's.

`replay` walks through the events and owns nothing but the order of things. What differs between
schedulers is in a `Subject`: how to add and abort a request, and what one step looks like.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from labkit.trace.external import Script
from labkit.trace.format import (
    Abort,
    Add,
    Drain,
    Step,
    Trace,
    TraceConfig,
    draft_tokens,
    parse_trace,
    placeholder,
    prompt_tokens,
    sample_tokens,
    step_fields,
)
from labkit.trace.groups import GroupWatch
from labkit.trace.stand_ins import Grammars, ScriptedConnector, connector_output

Line = dict[str, Any]
MAX_STEPS = 20000
"""Steps after which a trace is given up, so that a scheduler that makes no progress ends too."""


@dataclass(frozen=True)
class Plan:
    """What a scheduler has planned, and the tokens that the pretended model makes of it."""

    output: Any
    requests: dict[str, Any]
    sampled: dict[str, list[int]]


def sampled_tokens(
    requests: Mapping[str, Any],
    drafts: Mapping[str, list[int]],
    late: Mapping[str, list[int]],
    vocab_size: int,
) -> dict[str, list[int]]:
    """Tokens for every planned request whose tokens are all computed after its step.

    Args:
        late: tokens that the step before has sampled, and that the scheduler does not know yet.
    """
    lengths = {i: r.num_tokens + len(late.get(i, ())) for i, r in requests.items()}
    return {
        i: sample_tokens(i, lengths[i], drafts.get(i, ()), vocab_size)
        for i, r in requests.items()
        if r.num_computed_tokens >= lengths[i]
    }


class Subject(Protocol):
    """A scheduler under replay."""

    def add(self, event: Add, prompt_token_ids: list[int]) -> None:
        """Hand a new request to the scheduler."""

    def abort(self, request_id: str) -> bool:
        """Abort a request; False if it is unknown or has finished."""

    def step(self) -> Line:
        """schedule(), the pretended model, update_from_output(): all keys but step and aborted.

        With `async_scheduling` the update is that of the plan before.
        """

    def has_unfinished(self) -> bool:
        """Whether any request is running or waiting."""


def answer_with(replayed: Callable[[Trace], Iterator[Line]], text: str) -> dict[str, Any]:
    """Replay the trace in `text`; what the scheduler raises becomes part of the answer."""
    lines: list[Line] = []
    try:
        for line in replayed(parse_trace(json.loads(text))):
            lines.append(line)
            if len(lines) > MAX_STEPS:
                raise RuntimeError(f"no end after {MAX_STEPS} steps")
    except Exception as error:
        return {"lines": lines, "error": f"{type(error).__name__}: {error}"}
    return {"lines": lines}


def replay(
    trace: Trace,
    subject: Subject,
    fields: Sequence[str] = (),
    tick: Callable[[int], object] = lambda number: None,
) -> Iterator[Line]:
    """Yield one line for every step of the trace.

    Args:
        fields: of a line, in this order; none: `step_fields`.
        tick: called with the number of each step before it.
    """
    fields = fields or step_fields(trace.config)
    aborted: list[str] = []
    number = 0
    for event in trace.events:
        if isinstance(event, Add):
            subject.add(event, prompt_tokens(event.prompt, trace.config.vocab_size))
        elif isinstance(event, Abort):
            aborted += [event.id] if subject.abort(event.id) else []
        for _ in _steps(event, subject):
            tick(number)
            line = {"step": number} | subject.step() | {"aborted": aborted}
            yield {key: line[key] for key in fields}
            aborted, number = [], number + 1


def _steps(event: Any, subject: Subject) -> Iterator[int]:
    """Count the steps an event asks for, looking at the scheduler before each one of a drain."""
    if isinstance(event, Step):
        yield from range(event.n)
    if isinstance(event, Drain):
        for index in range(event.max):
            if not subject.has_unfinished():
                return
            yield index


def ordered_blocks(
    new_block_ids: dict[str, list[int]], scheduled: Iterable[str]
) -> dict[str, list[int]]:
    """Block ids in the order of scheduling, without the requests that got none."""
    order = [i for i in scheduled if i in new_block_ids]
    order += [i for i in new_block_ids if i not in set(order)]
    return {i: list(new_block_ids[i]) for i in order if new_block_ids[i]}


def end_reason(finished_reason: str | None, stop_reason: int | str | None) -> int | str | None:
    """Why a request ended: the stop token or a name if there is one, else "stop" or "length"."""
    return finished_reason if stop_reason is None else stop_reason


class ReferenceSubject:
    """mini_vllm's scheduler, or any class with the same interface.

    It keeps the `Request` objects itself and asks the scheduler only for what its interface
    promises: `schedule`, `update_from_output`, `finish_requests`, `running`, `waiting` and
    `kv_cache_manager.num_free_blocks`. So it can replay on a learner's half-finished class too.

    Raises:
        ValueError: the trace uses a feature that is not there yet; the message names its phase.
    """

    def __init__(self, config: TraceConfig, scheduler_class: Callable[..., Any] | None = None):
        from mini_vllm.config import CacheConfig, LoRAConfig, SchedulerConfig
        from mini_vllm.engine.parts.features import make_scheduler

        self.config = config
        self.requests: dict[str, Any] = {}
        self.grammars: Grammars | None = None
        self.late: Plan | None = None
        """With `async_scheduling`: the plan that has not been taken in yet."""
        self.script = Script(config.connector == "async") if config.connector else None
        script, size = self.script, config.block_size
        writes_kv = config.spec_method in ("draft_model", "eagle")
        lookahead = config.num_lookahead_tokens
        lookahead += config.num_speculative_tokens if writes_kv else 0
        self.scheduler = make_scheduler(
            SchedulerConfig(
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_num_seqs=config.max_num_seqs,
                max_model_len=config.max_model_len,
                policy=config.policy,  # type: ignore[arg-type]
                long_prefill_token_threshold=config.long_prefill_token_threshold,
                enable_chunked_prefill=config.enable_chunked_prefill,
                scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
                uncache_refunded_blocks=config.uncache_refunded_blocks,
                num_lookahead_tokens=lookahead,
                encoder_cache_size=config.encoder_cache_size or None,
                max_num_encoder_input_tokens=config.max_num_encoder_input_tokens or None,
                disable_chunked_mm_input=config.disable_chunked_mm_input,
                async_scheduling=config.async_scheduling,
                profile=config.profile,  # type: ignore[arg-type]
                watermark=config.admission_watermark,
                long_prefill_token_threshold_adaptive=config.long_prefill_token_threshold_adaptive,
            ),
            CacheConfig(
                block_size=config.block_size,
                num_gpu_blocks=config.num_gpu_blocks,
                enable_prefix_caching=config.enable_prefix_caching,
                num_cpu_blocks=config.num_cpu_blocks,
                prefix_cache_retention_interval=config.prefix_cache_retention_interval,
            ),
            lora=LoRAConfig(max_loras=config.max_loras) if config.max_loras else None,
            connector=ScriptedConnector(script, size) if script is not None else None,
            use_eagle=config.spec_method == "eagle" and config.num_speculative_tokens > 0,
            num_speculative_tokens=config.num_speculative_tokens,
            kv_load_failure_policy=config.kv_load_failure_policy,
            scheduler_cls=scheduler_class,  # type: ignore[arg-type]
            groups=config.groups,
        )
        if self.script is not None and not config.uncache_refunded_blocks:
            self.scheduler.breaks_deadlocks = False  # type: ignore[attr-defined]

        self.watch: GroupWatch | None = None
        if config.groups:
            manager = self.scheduler.kv_cache_manager
            self.watch = GroupWatch(manager, "evict", _ids_of_groups)

    def add(self, event: Add, prompt_token_ids: list[int]) -> None:
        from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
        from mini_vllm.request import Request
        from mini_vllm.sampling_params import SamplingParams

        images = [
            MultiModalFeatureSpec(None, "image", mm_hash, PlaceholderRange(offset, length, mask))
            for offset, length, mm_hash, mask in map(placeholder, event.images)
        ]
        params = SamplingParams(
            temperature=0.0,
            max_tokens=event.max_tokens,
            min_tokens=event.min_tokens,
            stop_token_ids=list(event.stop_token_ids),
            ignore_eos=event.ignore_eos,
        )
        request = Request(
            event.id,
            prompt_token_ids=prompt_token_ids,
            sampling_params=params,
            priority=event.priority,
            arrival_time=float(event.arrival),
            eos_token_id=self.config.eos_token_id,
            lora_name=event.lora,
            mm_features=images,
        )
        if event.grammar is not None:
            self._expect_grammar(event.id, event.grammar)
        if self.script is not None:
            self.script.add(event.id, event.external)
        self.requests[event.id] = request
        self.scheduler.add_request(request)

    def _expect_grammar(self, request_id: str, num_steps: int) -> None:
        """Let the scheduler know of grammars, if this is the first, and when this one is ready."""
        if self.grammars is None:
            self.grammars = Grammars()
            self.scheduler.extensions += (self.grammars,)
        self.grammars.wait[request_id] = num_steps

    def abort(self, request_id: str) -> bool:
        from mini_vllm.request import RequestStatus

        request = self.requests.pop(request_id, None)
        if request is None:
            return False
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        return True

    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def step(self) -> Line:
        output = self.scheduler.schedule()
        scheduled = dict(output.num_scheduled_tokens)
        preempted = list(output.preempted_req_ids)
        blocks = ordered_blocks(output.new_block_ids, scheduled)
        tables = self._tables()
        planned = {i: self.requests[i] for i in scheduled if i in self.requests}
        drafts = dict(output.scheduled_spec_decode_tokens)
        late = self.late.sampled if self.late is not None else {}
        due: Plan | None = Plan(
            output, planned, sampled_tokens(planned, drafts, late, self.config.vocab_size)
        )
        if self.config.async_scheduling:
            due, self.late = self.late, due
        sampled = {} if due is None else self._take_in(due)
        rewound = self._rewound()
        finished = self._take_finished(due.requests if due is not None else {})
        return {
            "scheduled": scheduled,
            "preempted": preempted,
            "finished": finished,
            "new_block_ids": blocks,
            "computed": {i: r.num_computed_tokens for i, r in self.requests.items()},
            "running": [r.request_id for r in self.scheduler.running],
            "waiting": [r.request_id for r in self._waiting()],
            "free_blocks": self.scheduler.kv_cache_manager.num_free_blocks,
            "spec": drafts,
            "sampled": {i: tokens for i, tokens in sampled.items() if tokens},
            "drafts": {i: r.spec_token_ids for i, r in self.requests.items() if r.spec_token_ids},
            "encode": dict(output.scheduled_encoder_inputs),
            "forgotten": list(output.free_encoder_mm_hashes),
            "loading": [
                i for i, r in self.requests.items() if r.status.name == "WAITING_FOR_REMOTE_KVS"
            ],
            "held": sorted(getattr(self.scheduler, "held", ())),
            "rewound": rewound,
            **self._groups(output),
            "tables": tables,
        }

    def _tables(self) -> dict[str, list[list[int]]]:
        """The block tables of those who run, by group, if there are groups."""
        if self.watch is None:
            return {}
        manager: Any = self.scheduler.kv_cache_manager
        if not hasattr(manager, "get_group_block_ids"):  # one group that remembers everything
            return {r.request_id: [manager.get_block_ids(r.request_id)] for r in self._running()}
        return {r.request_id: manager.get_group_block_ids(r.request_id) for r in self._running()}

    def _running(self) -> list[Any]:
        return list(self.scheduler.running)

    def _groups(self, output: Any) -> dict[str, Any]:
        if self.watch is None:
            return {}
        admitted = [new.req_id for new in output.scheduled_new_reqs]
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        order = [i for i in output.num_scheduled_tokens if i in admitted or i in resumed]
        return self.watch.line(order, output.group_block_ids)

    def _rewound(self) -> dict[str, int]:
        """Which requests had to go back in this step, and to how many tokens."""
        if self.script is None:
            return {}
        return dict(sorted(self.scheduler.last_rewinds.items()))  # type: ignore[attr-defined]

    def _waiting(self) -> list[Any]:
        """All waiting requests in the order of popping: under "priority" the queues are merged."""
        skipped = [*getattr(self.scheduler, "skipped_waiting", ())]
        both = [*skipped, *self.scheduler.waiting]
        merged = self.config.policy == "priority" and self.config.profile == "v0.22"
        return sorted(both) if skipped and merged else both

    def _take_in(self, plan: Plan) -> dict[str, list[int]]:
        """The tokens that the requests of a plan got in the end, by id."""
        from mini_vllm.core.finish_step import finish_step
        from mini_vllm.core.scheduler_output import ModelRunnerOutput

        lengths = {i: r.num_tokens for i, r in plan.requests.items()}
        result = ModelRunnerOutput(plan.sampled)
        if self.script is not None:
            result.kv_connector_output = connector_output(self.script.report())
        finish_step(self.scheduler, plan.output, result)
        sampled = {i: r.all_token_ids[lengths[i] :] for i, r in plan.requests.items()}
        if self.config.num_speculative_tokens:
            self.scheduler.update_draft_token_ids(
                {
                    i: draft_tokens(i, r.num_tokens, self.config, bool(sampled[i]))
                    for i, r in plan.requests.items()
                }
            )
        return sampled

    def _take_finished(self, scheduled: Mapping[str, Any]) -> list[list[Any]]:
        """Forget the requests that have ended: the scheduled ones first, in their order."""
        order = [i for i in scheduled if i in self.requests]
        order += [i for i in self.requests if i not in scheduled]
        ended = [self.requests[i] for i in order if self.requests[i].is_finished]
        for request in ended:
            del self.requests[request.request_id]
        return [[r.request_id, r.status.name, _reason(r)] for r in ended]


def _ids_of_groups(blocks: Any) -> list[list[int]]:
    grouped = hasattr(blocks, "get_group_block_ids")
    return blocks.get_group_block_ids() if grouped else [blocks.get_block_ids()]


def _reason(request: Any) -> int | str | None:
    from mini_vllm.request import RequestStatus

    if request.status == RequestStatus.FINISHED_ERROR:
        return "error"  # we say why; vLLM does not
    return end_reason(RequestStatus.get_finished_reason(request.status), request.stop_reason)


def load_class(target: str) -> Callable[..., Any]:
    """A policy by its name, or import `path/to/file.py:Class` or `package.module:Class`.

    Raises:
        ValueError: there is no such policy, file, module or class.
    """
    place, colon, name = target.rpartition(":")
    if not colon:
        from mini_vllm.policies import load_scheduler

        return load_scheduler(target)
    if place.endswith(".py"):
        module = _load_file(Path(place))
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(f"there is no module {place!r}: {error}") from None
    found = getattr(module, name, None)
    if found is None:
        raise ValueError(f"{place} has no class {name!r}")
    return found


def _load_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_trace_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


def run_reference(trace: Trace, scheduler: str | None = None) -> Iterator[Line]:
    """Replay on mini_vllm's scheduler, or on the class that `scheduler` names (`load_class`)."""
    scheduler_class = load_class(scheduler) if scheduler else None
    return replay(trace, ReferenceSubject(trace.config, scheduler_class))
