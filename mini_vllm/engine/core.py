"""The engine's inner loop: schedule, run the model, update. One step at a time.

Source: vllm/v1/engine/core.py#L428-L457 (EngineCore.step) @ v0.22.1
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mini_vllm.config import EngineConfig, combinations
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.finish_step import end_hopeless, finish_step
from mini_vllm.core.kv_cache_manager import PrefixCacheStats
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import (
    EngineCoreOutput,
    ModelRunnerOutput,
    RequestTimes,
    SchedulerOutput,
    SchedulerStats,
)
from mini_vllm.engine.features import make_scheduler
from mini_vllm.engine.limits import PromptLimits
from mini_vllm.executor.uniproc import UniProcExecutor
from mini_vllm.model.config import load_config
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from mini_vllm.model.llama import LlamaForCausalLM
    from mini_vllm.worker.model_runner import ModelRunner

StepObserver = Callable[[SchedulerOutput, list[EngineCoreOutput], float, SchedulerStats], None]
"""Called after every step with its plan, its outputs, its duration in seconds, and gauges."""


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
        self.executor = executor = UniProcExecutor(config)
        executor.call("init_device")
        executor.call("load_model")
        num_blocks = min(executor.call("num_blocks_that_fit"))
        executor.call("initialize", num_blocks)
        executor.call("warm_up")
        cache = replace(config.cache, num_gpu_blocks=num_blocks)
        self.config = replace(config, cache=cache)
        self.scheduler = make_scheduler(
            config.scheduler,
            cache,
            use_eagle=config.speculative is not None and config.speculative.method == "eagle",
            scheduler_cls=scheduler_cls,
            extensions=extensions,
        )
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

    def preprocess_add_request(self, request: EngineCoreRequest) -> Request:
        """The engine's own request for what a front end has sent.

        Source: vllm/v1/engine/core.py#L794-L818 (EngineCore.preprocess_add_request) @ v0.22.1
        """
        return Request(
            request.request_id,
            request.prompt_token_ids,
            request.sampling_params,
            priority=request.priority,
            arrival_time=request.arrival_time,
            eos_token_id=request.eos_token_id,
            cache_salt=request.cache_salt,
        )

    def add_request(self, request: Request) -> None:
        """Queue a request, unless the model or the cache can never serve it.

        Raises:
            ValueError: for an empty prompt, a token outside the vocabulary, a prompt that leaves
                no room for a token of output, or an id that is in use.
        """
        self.limits.check(request.prompt_token_ids)
        self.scheduler.add_request(request)
        self.times[request.request_id] = RequestTimes(queued=time.monotonic())

    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        """End requests early; returns the ids of those that were unfinished."""
        aborted = self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
        for request_id in aborted:
            self.times.pop(request_id, None)
        return aborted

    def has_requests(self) -> bool:
        return self.scheduler.has_requests()

    def step(self) -> list[EngineCoreOutput]:
        """Schedule, run, update, once.

        If the forward pass fails, the requests of this step end with an error, and what they
        had published leaves the prefix cache; the engine itself goes on.

        Raises:
            NoProgressError: see :meth:`~mini_vllm.core.scheduler.Scheduler.schedule`.
        """
        start = time.perf_counter()
        hopeless = end_hopeless(self.scheduler)
        plan = self.scheduler.schedule()
        scheduled_at = time.monotonic()
        try:
            self.executor.execute_model(plan)
            result = self.executor.sample_tokens(None).result()
        except BaseException:  # Ctrl-C between writing and computing: nobody may find the blocks
            self.scheduler.fail_requests(plan, dict.fromkeys(plan.num_scheduled_tokens, ""))
            raise
        drafts = accepted_drafts(plan, result)  # before the stop rules cut
        outputs = hopeless + finish_step(self.scheduler, plan, result)
        self._stamp(plan, outputs, scheduled_at)
        if self.observers:
            stats = replace(self.make_stats(), drafts=drafts)
            for observer in self.observers:
                observer(plan, outputs, time.perf_counter() - start, stats)
        return outputs

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

    def reset_prefix_cache(self) -> bool:
        """Forget all cached KV; False, with nothing done, while requests hold blocks."""
        return self.scheduler.reset_prefix_cache()

    def reset_stats(self) -> None:
        """Count prefix cache hits afresh."""
        self.scheduler.kv_cache_manager.prefix_cache_stats = PrefixCacheStats()

    def shutdown(self) -> None:
        """Let go of the workers."""
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
