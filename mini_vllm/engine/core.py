"""The engine's inner loop: schedule, run the model, update. One step at a time.

Source: vllm/v1/engine/core.py#L428-L457 (EngineCore.step) @ v0.22.1
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from mini_vllm.config import EngineConfig, combinations
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.finish_step import end_hopeless, finish_step
from mini_vllm.core.kv_cache_manager import PrefixCacheStats
from mini_vllm.core.restart import Checkpoint, restart
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import (
    EngineCoreOutput,
    ModelRunnerOutput,
    RequestTimes,
    SchedulerOutput,
    SchedulerStats,
)
from mini_vllm.engine.adapters import EngineAdapters
from mini_vllm.engine.features import make_scheduler
from mini_vllm.engine.kv import EngineKV, check_config
from mini_vllm.engine.limits import PromptLimits
from mini_vllm.executor.uniproc import UniProcExecutor
from mini_vllm.kv_transfer.scheduler import RemoteKVScheduler
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.config import load_config
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.request import Request, RequestStatus
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.token_index import TokenTable, token_bytes

if TYPE_CHECKING:
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

    It works on token ids; text is the business of
    :class:`~mini_vllm.engine.llm_engine.LLMEngine`. It holds no model: that is a worker's.

    Args:
        config: model, cache and scheduler. ``max_model_len`` must not exceed what the model's
            positions allow.
        extensions: see :class:`~mini_vllm.core.extension.SchedulerExtension`.

    Raises:
        ValueError: for settings that contradict each other, the model or the memory.
    """

    def __init__(
        self,
        config: EngineConfig,
        extensions: Sequence[SchedulerExtension] = (),
        scheduler_cls: type[Scheduler] = Scheduler,
    ) -> None:
        self.model_args = load_config(config.model.model)
        supports = resolve_model_class(self.model_args.architectures).supports
        combinations.check(config, self.model_args, supports, scheduler_cls)
        _check_model_len(config.scheduler.max_model_len, self.model_args.max_position_embeddings)
        check_config(config.kv_transfer)
        self.executor = executor = UniProcExecutor(config)
        executor.call("init_device")
        executor.call("load_model")
        num_blocks = min(executor.call("num_blocks_that_fit"))
        executor.call("initialize", num_blocks)
        executor.call("warm_up")
        self.kv = EngineKV(config, executor, num_blocks)
        cache = replace(config.cache, num_gpu_blocks=num_blocks)
        self.config = replace(config, cache=cache)
        self.structured_output_manager = StructuredOutputManager(
            config.structured, self._load_vocabulary, self.model_args.eos_token_ids
        )
        self._new_scheduler = functools.partial(
            make_scheduler,
            config.scheduler,
            cache,
            lora=config.lora,
            structured=self.structured_output_manager,
            connector=self.kv.connector,
            kv_load_failure_policy=self.kv.policy,
            kv_events=self.kv.events,
            hash_root=self.kv.hash_root,
            use_eagle=config.speculative is not None and config.speculative.method == "eagle",
            scheduler_cls=scheduler_cls,
            extensions=extensions,
        )
        self.scheduler = self._new_scheduler()
        self.adapters = EngineAdapters(executor, self.scheduler) if config.lora else None
        self.checkpoint = Checkpoint({})
        self.limits = PromptLimits(
            self.model_args.vocab_size,
            config.scheduler.max_model_len,
            self.scheduler.kv_cache_manager.block_pool.num_usable_blocks,
            cache.block_size,
        )
        self.observers: list[StepObserver] = []
        self.times: dict[str, RequestTimes] = {}
        """Of unfinished requests."""

    @property
    def model_runner(self) -> ModelRunner:
        """The runner of the worker in this process, for those who look inside."""
        return self.executor.worker.model_runner

    @property
    def model(self) -> LlamaForCausalLM:
        """The model of the worker in this process."""
        return self.executor.worker.model

    def _load_vocabulary(self) -> TokenTable:
        """The bytes of every token; read when the first request with a constraint arrives."""
        model = self.config.model
        tokenizer = load_tokenizer(model.tokenizer or model.model)
        return TokenTable(token_bytes(tokenizer, self.model_args.vocab_size))

    def preprocess_add_request(self, request: EngineCoreRequest) -> Request:
        """The engine's own request for what a front end has sent.

        Source: vllm/v1/engine/core.py#L794-L818 (EngineCore.preprocess_add_request) @ v0.22.1
        """
        self.kv.check_params(
            (request.sampling_params.extra_args or {}).get("kv_transfer_params"),
            len(request.prompt_token_ids),
        )
        return Request(
            request.request_id,
            request.prompt_token_ids,
            request.sampling_params,
            priority=request.priority,
            arrival_time=request.arrival_time,
            eos_token_id=request.eos_token_id,
            cache_salt=request.cache_salt,
            lora_name=self._adapter_of(request),
        )

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
        """Forget an adapter and free its slot; False if there is none of that number."""
        return self._adapters().remove(lora_id)

    def list_loras(self) -> set[int]:
        """Numbers of the adapters that are loaded."""
        return self._adapters().list()

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in a slot until it is removed; True.

        Raises:
            ValueError: if there is none of that number, or every slot is pinned.
        """
        return self._adapters().pin(lora_id)

    def add_request(self, request: Request) -> None:
        """Queue a request, unless the model or the cache can never serve it.

        Raises:
            ValueError: for an empty prompt, a token outside the vocabulary, a prompt that leaves
                no room for a token of output, or an id that is in use.
        """
        self.limits.check(request.prompt_token_ids)
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
        return self.scheduler.has_requests()

    @whole_or_not_at_all
    def step(self) -> list[EngineCoreOutput]:
        """Schedule, run, update, once.

        If the forward pass fails, the requests of this step end with an error, and what they
        had published leaves the prefix cache; the engine itself goes on. Whatever else stops the
        step, such as Ctrl-C, it is undone: its requests wait as if it had never been.

        Raises:
            NoProgressError: see :meth:`~mini_vllm.core.scheduler.Scheduler.schedule`.
        """
        start = time.perf_counter()
        hopeless = end_hopeless(self.scheduler)
        plan = self.scheduler.schedule()
        scheduled_at = time.monotonic()
        self.executor.execute_model(plan)
        masks = self.structured_output_manager.get_grammar_output(plan)  # while it computes
        result = self.executor.sample_tokens(masks).result()
        self.checkpoint.num_output_tokens = {
            request_id: request.num_output_tokens
            for request_id in plan.num_scheduled_tokens
            if (request := self.scheduler.requests.get(request_id)) is not None
        }
        drafts = accepted_drafts(plan, result)  # before the stop rules cut
        outputs = hopeless + finish_step(self.scheduler, plan, result)
        if not plan.num_scheduled_tokens:
            self.structured_output_manager.wait(IDLE_SECONDS)
        self.kv.step_done(plan, result, IDLE_SECONDS, self.scheduler)
        self._stamp(plan, outputs, scheduled_at)
        if self.observers:
            stats = replace(self.make_stats(), drafts=drafts)
            for observer in self.observers:
                observer(plan, outputs, time.perf_counter() - start, stats)
        return outputs

    def undo(self) -> None:
        """Go back to the last checkpoint; see :mod:`~mini_vllm.core.restart`."""
        restart(self.scheduler, self._new_scheduler(), self.checkpoint)
        if self.adapters is not None:
            self.adapters.attach(self.scheduler)
        for request_id, request in self.scheduler.requests.items():
            self.times.setdefault(request_id, RequestTimes(queued=request.arrival_time))
        self.executor.call("restart", list(self.scheduler.requests))

    def _stamp(
        self, plan: SchedulerOutput, outputs: list[EngineCoreOutput], scheduled_at: float
    ) -> None:
        """Write down when requests were first scheduled and sampled, and tell with the outputs."""
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
        scheduler = self.scheduler
        manager = scheduler.kv_cache_manager
        return SchedulerStats(
            num_running_reqs=len(scheduler.running),
            num_waiting_reqs=len(scheduler.requests) - len(scheduler.running),
            kv_cache_usage=manager.usage,
            prefix_cache_queries=manager.prefix_cache_stats.queries,
            prefix_cache_hits=manager.prefix_cache_stats.hits,
        )

    @whole_or_not_at_all
    def reset_prefix_cache(self) -> bool:
        """Forget all cached KV; False, with nothing done, while requests hold blocks."""
        return self.scheduler.reset_prefix_cache()

    def flush_kv(self) -> None:
        """Return when all KV that is to be saved is where others find it."""
        self.kv.flush()

    def release_held(self) -> None:
        """Free blocks that are held for other engines: this one ends."""
        if isinstance(self.scheduler, RemoteKVScheduler):
            self.scheduler.release_held()

    def reset_stats(self) -> None:
        """Count prefix cache hits afresh."""
        self.scheduler.kv_cache_manager.prefix_cache_stats = PrefixCacheStats()

    def shutdown(self) -> None:
        """Let go of the workers and of the threads that compile grammars."""
        self.structured_output_manager.clear_backend()
        self.kv.shutdown()
        self.executor.shutdown()


def accepted_drafts(plan: SchedulerOutput, result: ModelRunnerOutput) -> dict[str, tuple[int, int]]:
    """By request: drafts that a step has verified, and how many of them were accepted.

    A request without a token has failed, and its drafts count for nothing.

    Source: vllm/v1/core/sched/scheduler.py#L1368-L1392 (Scheduler.update_from_output) @ v0.22.1
    """
    return {
        request_id: (len(drafts), len(tokens) - 1)
        for request_id, drafts in plan.scheduled_spec_decode_tokens.items()
        if (tokens := result.sampled_token_ids.get(request_id))
    }


def call_utility(core: EngineCore, method: str, *args: Any) -> Any:
    """Call a public method of the engine by name, as a front end in another process does."""
    if method.startswith("_") or not hasattr(EngineCore, method):
        raise AttributeError(f"the engine has no method {method!r} to call")
    return getattr(core, method)(*args)


def _check_model_len(max_model_len: int, max_positions: int) -> None:
    if max_model_len > max_positions:
        raise ValueError(
            f"max_model_len is {max_model_len}; the model has {max_positions} positions; lower it "
            "or leave it out"
        )
