"""The engine's inner loop: schedule, run the model, update. One step at a time.

Source: vllm/v1/engine/core.py#L428-L457 (EngineCore.step) @ v0.22.1
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from mini_vllm.config import EngineConfig
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.finish_step import end_hopeless, finish_step
from mini_vllm.core.kv_cache_manager import PrefixCacheStats
from mini_vllm.core.repetition import RepetitionDetection
from mini_vllm.core.restart import Checkpoint, restart
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import (
    EngineCoreOutput,
    ExpertLoad,
    GrammarOutput,
    ModelRunnerOutput,
    RequestTimes,
    SchedulerOutput,
    SchedulerStats,
    accepted_drafts,
)
from mini_vllm.engine.batch_queue import Batch, new_token_ids, step_with_batch_queue
from mini_vllm.engine.checked_config import load_model_args, settled, with_last_position
from mini_vllm.engine.parts.adapters import EngineAdapters
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.engine.parts.images import make_image_processor, with_encoder_limits
from mini_vllm.engine.parts.kv import EngineKV
from mini_vllm.engine.parts.limits import PromptLimits
from mini_vllm.engine.startup import make_ready, say_limits
from mini_vllm.engine.step import step
from mini_vllm.executor.choose import make_executor
from mini_vllm.executor.uniproc import UniProcExecutor
from mini_vllm.kv_transfer.scheduler import RemoteKVScheduler
from mini_vllm.lora.request import LoRARequest, check_lora_id
from mini_vllm.model.checkpoint_files import load_vocabulary, read_eos_token_id
from mini_vllm.observability.profile import profiled
from mini_vllm.plugins import load_general_plugins
from mini_vllm.pooling.config import settle_runner
from mini_vllm.request import Request, RequestStatus
from mini_vllm.spec_decode.metrics import SpecDecodingStats
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.token_index import TokenTable, token_bytes

if TYPE_CHECKING:
    from mini_vllm.executor.worker import Worker
    from mini_vllm.model.llama import LlamaForCausalLM
    from mini_vllm.worker.model_runner import ModelRunner

IDLE_SECONDS = 0.005
"""Longest sleep of a step in which all requests wait for something outside the engine."""

StepObserver = Callable[[SchedulerOutput, list[EngineCoreOutput], float, SchedulerStats], None]
"""Called after every step with its plan, its outputs, its duration in seconds, and gauges."""

P = ParamSpec("P")
R = TypeVar("R")


def whole_or_not_at_all(
    method: Callable[Concatenate[EngineCore, P], R],
) -> Callable[Concatenate[EngineCore, P], R]:
    """Undo what a method of the engine did if anything stops it: Ctrl-C strikes at any line."""

    @functools.wraps(method)
    def guarded(self: EngineCore, *args: P.args, **kwargs: P.kwargs) -> R:
        self.checkpoint = Checkpoint(dict(self.scheduler.requests))
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            self.undo()
            raise

    return guarded


class EngineCore:
    """A scheduler, workers behind an executor, and the loop that drives them.

    It works on token ids; :class:`~mini_vllm.engine.llm_engine.LLMEngine` handles text. The workers
    hold the model.

    Args:
        config: model, cache and scheduler. ``max_model_len`` must not exceed what the model's
            positions allow.
        extensions: see :class:`~mini_vllm.core.extension.SchedulerExtension`.
        replica: which of several engines side by side this is.

    Attributes:
        batch_queue: plans in flight, the newest first; at most ``batch_queue_size``.

    Raises:
        ValueError: for settings that contradict each other, the model or the memory.
    """

    def __init__(
        self,
        config: EngineConfig,
        extensions: Sequence[SchedulerExtension] = (),
        scheduler_cls: type[Scheduler] = Scheduler,
        replica: int = 0,
    ) -> None:
        started = time.monotonic()
        load_general_plugins()  # a process of its own has none yet
        config = settle_runner(config)
        self.model_args = load_model_args(config.model)
        config = settled(config, self.model_args, scheduler_cls)
        self.image_processor = make_image_processor(config, self.model_args)
        if self.image_processor is not None:
            config = with_encoder_limits(config, self.image_processor.largest)
        self.executor = executor = make_executor(config, replica)
        self.batch_queue: deque[Batch] = deque()
        self.batch_queue_size = executor.max_concurrent_batches
        self.config, groups = make_ready(executor, config)
        config = self.config
        cache, num_blocks = config.cache, config.cache.num_gpu_blocks
        assert num_blocks is not None
        if self.image_processor is not None:  # which now has the length
            self.image_processor = make_image_processor(config, self.model_args)
        try:
            self.kv = EngineKV(config, executor, num_blocks, replica)
        except BaseException:
            executor.shutdown()
            raise
        self.structured_output_manager = StructuredOutputManager(
            config.structured,
            self._load_vocabulary,
            self.model_args.eos_token_ids,
            drafts_are_drawn=config.speculative is not None and config.speculative.draws_drafts,
        )
        num_drafts = 0
        if config.speculative is not None:
            num_drafts = config.speculative.num_speculative_tokens
        self._new_scheduler = functools.partial(
            make_scheduler,
            with_last_position(config),
            cache,
            lora=config.lora,
            structured=self.structured_output_manager,
            connector=self.kv.connector,
            kv_load_failure_policy=self.kv.policy,
            kv_events=self.kv.events,
            hash_root=self.kv.hash_root,
            use_eagle=config.speculative is not None and config.speculative.method == "eagle",
            num_speculative_tokens=num_drafts,
            scheduler_cls=scheduler_cls,
            extensions=(RepetitionDetection(), *extensions),
            max_concurrent_batches=self.batch_queue_size,
            groups=groups,
        )
        self.scheduler = self._new_scheduler()
        self.adapters = EngineAdapters(executor, self.scheduler) if config.lora else None
        self.checkpoint = Checkpoint({})
        self.expert_load: ExpertLoad | None = None
        self.spec_decoding = SpecDecodingStats.new(num_drafts)
        """Of all steps; nothing is drafted without speculation."""
        self.limits = PromptLimits(
            self.model_args.vocab_size,
            config.scheduler.max_model_len,
            self.scheduler.kv_cache_manager.block_pool.num_usable_blocks,
            cache.block_size,
            self.scheduler.kv_cache_manager.capacity_in_tokens,
            least_output=0 if config.model.pools else 1,
        )
        self.observers: list[StepObserver] = []
        self._replica, self._recording = replica, ExitStack()
        self.times: dict[str, RequestTimes] = {}
        """Of unfinished requests."""
        say_limits(config, groups, self.model_args, time.monotonic() - started, replica)

    @property
    def model_runner(self) -> ModelRunner:
        """The runner of the worker in this process, for tests and tools.

        Raises:
            AttributeError: if the workers are elsewhere.
        """
        return self._worker().model_runner

    @property
    def model(self) -> LlamaForCausalLM:
        """The model of the worker in this process, in the same way."""
        return self._worker().model

    def _worker(self) -> Worker:
        if not isinstance(self.executor, UniProcExecutor):
            raise AttributeError(
                "the engine's workers are in other processes; look at them with collective_rpc"
            )
        return self.executor.worker

    def _load_vocabulary(self) -> TokenTable:
        """The bytes of every token; read when the first request with a constraint arrives.

        Where a grammar may end, the tokenizer's EOS is allowed, too. It is read from the same
        files.
        """
        folder = self.config.model.tokenizer or self.config.model.model
        vocabulary, end = load_vocabulary(folder), read_eos_token_id(folder)
        ends = self.model_args.ending_with(end).eos_token_ids
        self.structured_output_manager.stop_token_ids = list(ends)
        added = vocabulary.added_tokens_decoder.items()
        special = {token_id: token.content.encode() for token_id, token in added}
        return TokenTable(token_bytes(vocabulary, self.model_args.vocab_size), special)

    def preprocess_add_request(self, request: EngineCoreRequest) -> Request:
        """The engine's own request for what a front end has sent.

        Raises:
            ValueError: if its KV or its adapter cannot be served.

        Source: vllm/v1/engine/core.py#L794-L818 (EngineCore.preprocess_add_request) @ v0.22.1
        """
        params = (request.sampling_params.extra_args or {}).get("kv_transfer_params")
        with self._refusal_is_told(params):
            known = Request(
                request.request_id,
                request.prompt_token_ids,
                request.sampling_params,
                priority=request.priority,
                arrival_time=request.arrival_time,
                eos_token_id=request.eos_token_id,
                cache_salt=request.cache_salt,
                lora_name=self._adapter_of(request),
                mm_features=request.mm_features,
                pooling_params=request.pooling_params,
            )
            self.kv.check_params(known)
            return known

    @contextmanager
    def _refusal_is_told(self, kv_transfer_params: Any) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.request_refused(kv_transfer_params)
            raise

    def request_refused(self, kv_transfer_params: Any) -> None:
        """A request with these parameters was refused, here or in a front end."""
        self.kv.request_refused(kv_transfer_params)

    def _adapter_of(self, request: EngineCoreRequest) -> str | None:
        """The key of the request's adapter, which is loaded now if it was not.

        Raises:
            ValueError: if there is no such adapter, or it cannot be served.
        """
        if request.lora_request is None:
            return None
        lora_request = LoRARequest.of(request.lora_request)
        return self._adapters(lora_request).resolve(lora_request)

    def _adapters(self, wanted: Any = None) -> EngineAdapters:
        if self.adapters is None:
            given = f"lora_request {wanted.lora_name!r} was given, but " if wanted else ""
            raise ValueError(f"{given}the engine runs without adapters; pass enable_lora=True")
        return self.adapters

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter for requests to come; True.

        Raises:
            ValueError: if it cannot be served; the message says why.
        """
        lora_request = LoRARequest.of(lora_request)
        return self._adapters(lora_request).add(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter and free its slot; False if there is none of that number.

        Raises:
            ValueError: if ``lora_id`` is not a number.
        """
        return self._adapters().remove(check_lora_id(lora_id))

    def list_loras(self) -> set[int]:
        """Numbers of the adapters that are loaded."""
        return self._adapters().list()

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in a slot until it is removed; True.

        Raises:
            ValueError: if there is none of that number, or every slot is pinned.
        """
        return self._adapters().pin(check_lora_id(lora_id))

    def add_request(self, request: Request) -> None:
        """Queue a request whose prompt the front end has checked (:attr:`limits`).

        Raises:
            ValueError: for an id that is in use.
        """
        with self._refusal_is_told(request.kv_transfer_params):
            self.scheduler.add_request(request)
        self.times[request.request_id] = RequestTimes(queued=time.monotonic())

    @whole_or_not_at_all
    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        """End requests early; returns the ids of those that were unfinished."""
        aborted = self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
        for request_id in aborted:
            self.times.pop(request_id, None)
        return aborted

    def keep_only(self, request_ids: Sequence[str]) -> list[str]:
        """End all requests but these; returns those of them that are not here (any more).

        For a front end that was interrupted while it talked to the engine.
        """
        known = set(request_ids)
        self.abort_requests([i for i in self.scheduler.requests if i not in known])
        return [i for i in request_ids if i not in self.scheduler.requests]

    def has_requests(self) -> bool:
        """Whether another step is due: to plan something, or to take in what was planned."""
        return self.scheduler.has_requests() or bool(self.batch_queue)

    @whole_or_not_at_all
    def step(self) -> list[EngineCoreOutput]:
        """Schedule, run, update, once. With several plans on their way, the update is that of the
        oldest, and there may be none.

        If the forward pass fails, the requests of this step end with an error, and what they
        had published leaves the prefix cache; the engine itself goes on. If anything else stops the
        step, such as Ctrl-C, it is undone: its requests wait as if it had never begun.

        Raises:
            NoProgressError: see :meth:`~mini_vllm.core.scheduler.Scheduler.schedule`.
            EngineDeadError: if a worker among several has failed, or is gone.
        """
        if self.batch_queue_size == 1 and not self.batch_queue:
            return step(Turn(self), self.executor)
        has_requests = self.scheduler.has_requests
        outputs = step_with_batch_queue(
            self.batch_queue, self.batch_queue_size, has_requests, self._submit, self._finish
        )
        return outputs or []

    @whole_or_not_at_all
    def fill(self) -> None:
        """Submit a plan if none is in flight; :meth:`step` takes in its result."""
        if not self.batch_queue and self.scheduler.has_requests():
            self.batch_queue.appendleft(self._submit())

    def plan_step(self) -> Batch:
        """What the next step computes, not sent yet."""
        started = time.perf_counter()
        hopeless = end_hopeless(self.scheduler)
        plan = self.scheduler.schedule()
        if self.config.parallel.pipeline_parallel_size > 1:
            plan.new_token_ids = new_token_ids(plan, self.scheduler.requests)
        batch = Batch(plan, Future(), hopeless, started, time.monotonic())
        if self.batch_queue_size > 1:
            requests = self.scheduler.requests
            batch.requests = {i: requests[i] for i in plan.num_scheduled_tokens}
            batch.is_deferred = bool(self.batch_queue) and self._needs_answer(batch)
        return batch

    def _submit(self) -> Batch:
        """Plan, and send the plan on its way."""
        batch = self.plan_step()
        self.executor.execute_model(batch.plan.without_padding())
        if not batch.is_deferred:
            self._sample(batch)
        return batch

    def _needs_answer(self, batch: Batch) -> bool:
        """Whether a grammar has to follow a token on its way before this plan can be sampled.

        Source: vllm/v1/core/sched/async_scheduler.py#L26-L29
        (AsyncScheduler._update_after_schedule) @ v0.22.1
        """
        return any(
            request_id in batch.requests and request.num_output_placeholders > 1
            for request_id, request in self.structured_output_manager.requests.items()
        )

    def _sample(self, batch: Batch) -> None:
        plan = batch.plan.without_padding()
        masks = self.structured_output_manager.get_grammar_output(plan)  # while it computes
        batch.answer = self.executor.sample_tokens(masks)
        batch.is_deferred = False

    def _finish(self, batch: Batch) -> list[EngineCoreOutput]:
        """Wait for the answer to a plan, and take it in."""
        return self.take_in(batch, batch.answer.result())

    def take_in(self, batch: Batch, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Update from the answer to a plan."""
        plan = batch.plan
        if result.failed and self.batch_queue_size > 1:  # no later plan has noticed yet
            self.executor.call("scrub")
        for request_id, planned in batch.requests.items():
            if self.scheduler.requests.get(request_id) is not planned:
                result.forget(request_id)
        requests = self.scheduler.requests
        self.checkpoint.num_output_tokens = {
            i: len(requests[i].output_token_ids) for i in plan.num_scheduled_tokens if i in requests
        }
        drafts = accepted_drafts(plan.without_padding(), result)  # before the stop rules cut
        for counts in drafts.values():
            self.spec_decoding.observe_draft(*counts)
        outputs = batch.hopeless + finish_step(self.scheduler, plan, result)
        self.expert_load = result.expert_load or self.expert_load
        if not plan.num_scheduled_tokens:
            self.structured_output_manager.wait(IDLE_SECONDS)
        self.kv.step_done(plan, result, IDLE_SECONDS, self.scheduler)
        self._stamp(plan, outputs, batch.scheduled_at)
        if self.observers:
            stats = replace(self.make_stats(), drafts=drafts)
            for observer in self.observers:
                observer(plan, outputs, time.perf_counter() - batch.started, stats)
        if self.batch_queue and self.batch_queue[0].is_deferred:
            self._sample(self.batch_queue[0])
        return outputs

    def undo(self) -> None:
        """Go back to the last checkpoint; see :mod:`~mini_vllm.core.restart`."""
        self.batch_queue.clear()  # what is on its way is not waited for
        restart(self.scheduler, self._new_scheduler(), self.checkpoint)
        if self.adapters is not None:
            self.adapters.attach(self.scheduler)
        for request_id, request in self.scheduler.requests.items():
            self.times.setdefault(request_id, RequestTimes(queued=request.arrival_time))
        self.executor.call("restart", list(self.scheduler.requests))

    def _stamp(
        self, plan: SchedulerOutput, outputs: list[EngineCoreOutput], scheduled_at: float
    ) -> None:
        """Record when requests were first scheduled and sampled, and add these times to the
        outputs."""
        now = time.monotonic()
        for new in plan.scheduled_new_reqs:
            if new.req_id in self.times:
                self.times[new.req_id].scheduled = scheduled_at
        for output in outputs:
            times = self.times.get(output.request_id)
            if times is None:
                continue
            if times.first_token is None and output.new_token_ids:
                times.first_token = now
                output.times = times
            if output.finish_reason is not None:
                output.times = self.times.pop(output.request_id)

    def make_stats(self) -> SchedulerStats:
        """Gauges of this moment."""
        scheduler, drafts = self.scheduler, self.spec_decoding
        manager = scheduler.kv_cache_manager
        stats = SchedulerStats(
            num_running_reqs=len(scheduler.running),
            num_waiting_reqs=len(scheduler.requests) - len(scheduler.running),
            kv_cache_usage=manager.usage,
            prefix_cache_queries=manager.prefix_cache_stats.queries,
            prefix_cache_hits=manager.prefix_cache_stats.hits,
            num_drafts=drafts.num_drafts,
            num_draft_tokens=drafts.num_draft_tokens,
            num_accepted_tokens_per_pos=list(drafts.num_accepted_tokens_per_pos),
            engine=self._replica,
            num_skipped_waiting_reqs=len(scheduler.skipped_waiting),
            expert_load=self.expert_load,
        )
        if isinstance(scheduler, RemoteKVScheduler):
            external = scheduler.external_cache_stats
            stats.external_cache_queries = external.queries
            stats.external_cache_hits = external.hits
        if self.adapters is not None:
            counts = self.adapters.count(scheduler.running)
            stats.running_lora_adapters, stats.waiting_lora_adapters = counts
        return stats

    @whole_or_not_at_all
    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached KV; False, with nothing done, while requests hold blocks.

        Args:
            reset_running_requests: let them wait, with the output they have, and compute all of
                it anew. KV that other engines were to fetch from here is given up.
        """
        if reset_running_requests:
            self.undo()  # to the state of this moment: only what was computed is lost
        return self.scheduler.reset_prefix_cache()

    def reset_encoder_cache(self) -> None:
        """Forget the encodings of all images, for the encoder's weights may have changed. Requests
        that run wait, with the output they have, and are computed anew.

        Source: vllm/v1/engine/core.py#L638-L656 (EngineCore.reset_encoder_cache) @ v0.22.1
        """
        if self.image_processor is not None:
            self.undo()

    def flush_kv(self) -> None:
        """Return when other engines can find all KV that is to be saved."""
        self.kv.flush()

    def release_held(self) -> None:
        """Free blocks that are held for other engines: this one ends."""
        if isinstance(self.scheduler, RemoteKVScheduler):
            self.scheduler.release_held()

    def sleep(self) -> None:
        """Give back the memory of the KV cache, and on a GPU of the weights, until `wake_up`.

        Raises:
            ValueError: while requests are unfinished.
        """
        if not self.reset_prefix_cache():
            raise ValueError(
                f"{len(self.scheduler.requests)} requests are unfinished; abort them, or wait for "
                "them, before the engine sleeps"
            )
        while self.batch_queue:  # plans of requests that have ended meanwhile
            self._finish(self.batch_queue.pop())
        self.executor.call("sleep")

    def wake_up(self, tags: list[str]) -> None:
        """Take the memory again that `tags` name; what the cache held is forgotten."""
        self.executor.call("wake_up", tags)

    def start_profile(self, path: str) -> None:
        """Write every operation of this process into a file, from now until :meth:`stop_profile`.

        Raises:
            ValueError: if there can be no such file.
        """
        self.stop_profile()
        file = Path(path)
        if self.config.parallel.data_parallel_size > 1:
            file = file.with_stem(f"{file.stem}-{self._replica}")
        self._recording.enter_context(profiled(file))

    def stop_profile(self) -> None:
        """End the recording, if there is one."""
        self._recording.close()

    def collective_rpc(
        self, method: str, timeout: float | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """See :meth:`~mini_vllm.executor.base.Executor.collective_rpc`."""
        return self.executor.collective_rpc(method, timeout, args, kwargs)

    def reset_stats(self) -> None:
        """Count prefix cache hits afresh."""
        self.scheduler.kv_cache_manager.prefix_cache_stats = PrefixCacheStats()

    def shutdown(self) -> None:
        """Let go of the workers and of the threads that compile grammars."""
        self.stop_profile()
        self.structured_output_manager.clear_backend()
        self.kv.shutdown()
        self.executor.shutdown()


class Turn:
    """An engine as the scheduler of one :func:`~mini_vllm.engine.step.step`: with all that it does
    around its scheduler's calls."""

    def __init__(self, core: EngineCore) -> None:
        self.core, self.has_requests = core, core.scheduler.has_requests

    def schedule(self) -> SchedulerOutput:
        self.batch = self.core.plan_step()
        return self.batch.plan.without_padding()

    def get_grammar_bitmask(self, plan: SchedulerOutput) -> GrammarOutput | None:
        return self.core.structured_output_manager.get_grammar_output(self.batch.plan)

    def update_from_output(
        self, plan: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        return self.core.take_in(self.batch, result)


def call_utility(core: EngineCore, method: str, *args: Any) -> Any:
    """Call a public method of the engine by name, as a front end in another process does."""
    if method.startswith("_") or not hasattr(EngineCore, method):
        raise AttributeError(f"the engine has no method {method!r} to call")
    return getattr(core, method)(*args)
