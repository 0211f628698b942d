"""Text in, text out: the engine that offline and online front ends share.

Source: vllm/v1/engine/llm_engine.py#L48-L425 (LLMEngine) @ v0.22.1
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from mini_vllm.config import EngineConfig, ModelConfig
from mini_vllm.config.vllm_names import refuse, refuse_argument, with_arguments
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerStats
from mini_vllm.engine.clients.client import EngineClient, InprocClient
from mini_vllm.engine.clients.dp_client import DataParallelClient
from mini_vllm.engine.collector import OutputCutter
from mini_vllm.engine.control_checks import check_seconds
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.input_processor import InputProcessor
from mini_vllm.engine.log_stats import LogStats
from mini_vllm.engine.offline_controls import OfflineControls
from mini_vllm.engine.output_processor import OutputProcessor
from mini_vllm.errors import show
from mini_vllm.executor.base import Method
from mini_vllm.inputs import PromptType, text_of
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model.lazy_tokenizer import load_lazy_tokenizer, whole_tokenizer
from mini_vllm.observability.reader import Metric
from mini_vllm.observability.several import together
from mini_vllm.observability.stats import EngineStats
from mini_vllm.outputs import RequestOutput
from mini_vllm.policies import scheduler_class
from mini_vllm.pooling_outputs import PoolingRequestOutput
from mini_vllm.pooling_params import PoolingParams
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.spec_decode.metrics import SpecDecodingStats, metrics_of

if TYPE_CHECKING:
    from mini_vllm.engine.arg_utils import EngineArgs


class LLMEngine(OfflineControls):
    """Takes prompts, steps, and hands back outputs as they grow.

    Args:
        config: see :class:`~mini_vllm.engine.core.EngineCore`.
        tokenizer: of the ``transformers`` kind, or None to work on token ids only.
        extensions: see :class:`~mini_vllm.core.extension.SchedulerExtension`.
        log_stats: whether :meth:`get_metrics` returns all that a server has.
        profiler_config: see :class:`~mini_vllm.engine.offline_controls.OfflineControls`.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Any = None,
        extensions: Sequence[SchedulerExtension] = (),
        scheduler_cls: type[Scheduler] = Scheduler,
        log_stats: bool = False,
        profiler_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(profiler_config)
        self.cores = _make_cores(config, extensions, scheduler_cls)
        self.core = self.cores[0]
        """The engine; with data parallelism the first of them, all being alike."""
        self.client: EngineClient = InprocClient(self.core)
        if len(self.cores) > 1:
            self.client = DataParallelClient(self.cores)
        self.config = self.core.config
        self.tokenizer = tokenizer
        model = self.core.model_args.ending_with(getattr(tokenizer, "eos_token_id", None))
        images = self.core.image_processor
        self.input_processor = InputProcessor.of(self.config, tokenizer, model, images)
        self.output_processor = OutputProcessor(tokenizer)
        self._cutters: dict[str, OutputCutter] = {}
        """By id, for requests whose steps return what their ``output_kind`` asks for."""
        self._untold: list[RequestOutput] = []
        """What the step under way is to return."""
        self.stats = self._new_stats()
        self.log_stats = LogStats(config) if log_stats else None
        self.client.observers.append(lambda *step: self.stats.record_step(*step))

    if not TYPE_CHECKING:  # a type checker tells a name that is not here by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Only for names that are not here: those of vLLM's are refused with what to do."""
            refuse(self, name)

    @property
    def vllm_config(self) -> EngineConfig:
        """vLLM's name of ``config``."""
        return self.config

    @property
    def model_config(self) -> ModelConfig:
        """With the ``max_model_len`` that the engine has settled."""
        return self.config.model

    @classmethod
    @with_arguments("usage_context", "stat_loggers", "enable_multiprocessing")
    def from_engine_args(cls, engine_args: EngineArgs) -> LLMEngine:
        """For scripts that step the engine themselves.

        Example::

            engine = LLMEngine.from_engine_args(EngineArgs("storyteller"))
            engine.add_request("r0", "Once upon a time", SamplingParams(max_tokens=8))
            while engine.has_unfinished_requests():
                for output in engine.step():
                    print(output.outputs[0].text)

        Source: vllm/v1/engine/llm_engine.py#L151-L177 (LLMEngine.from_engine_args) @ v0.22.1
        """
        config = engine_args.create_engine_config()
        folder = config.model.tokenizer or config.model.model
        tokenizer = None if engine_args.skip_tokenizer_init else load_lazy_tokenizer(folder)
        return cls(
            config,
            tokenizer,
            scheduler_cls=scheduler_class(engine_args.scheduler_cls),
            log_stats=not engine_args.disable_log_stats,
            profiler_config=engine_args.profiler_config,
        )

    @classmethod
    @with_arguments("usage_context", "stat_loggers")
    def from_vllm_config(
        cls, vllm_config: EngineConfig, *, disable_log_stats: bool = False
    ) -> LLMEngine:
        """Start from what :meth:`EngineArgs.create_engine_config` made.

        Source: vllm/v1/engine/llm_engine.py#L134-L149 (LLMEngine.from_vllm_config) @ v0.22.1
        """
        if not isinstance(vllm_config, EngineConfig):
            raise TypeError(
                f"vllm_config is {show(vllm_config)}; pass what EngineArgs.create_engine_config() "
                "returns"
            )
        folder = vllm_config.model.tokenizer or vllm_config.model.model
        return cls(vllm_config, load_lazy_tokenizer(folder), log_stats=not disable_log_stats)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        prompt_text: str | None = None,
    ) -> str:
        """Queue a prompt; with ``params.n > 1``, one request for each completion. Every step
        returns a new output for it, as ``params.output_kind`` says.

        Args:
            arrival_time: by ``time.time()``; None: now.
            lora_request: the adapter to use; None: the base.
            tokenization_kwargs: see
                :meth:`~mini_vllm.engine.input_processor.InputProcessor.with_tokenization`.
            trace_headers: vLLM's; nothing is traced, so only None.
            prompt_text: vLLM's; only None: it belongs to the prompt.

        Returns:
            ``request_id``.

        Raises:
            TypeError: for an id that is no string.
            ValueError: if the prompt or its parameters can never be served. Nothing is queued.

        Source: vllm/v1/engine/llm_engine.py#L210-L272 (LLMEngine.add_request) @ v0.22.1
        """
        if not isinstance(request_id, str):
            raise TypeError(f"request_id is {show(request_id)}; it must be a string")
        for name, value in (("trace_headers", trace_headers), ("prompt_text", prompt_text)):
            refuse_argument("LLMEngine.add_request", name, value)
        self.submit(
            request_id, prompt, params, arrival_time, lora_request, tokenization_kwargs, priority
        )
        return request_id

    def submit(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        stream: bool | None = None,
    ) -> RequestOutput:
        """As :meth:`add_request`, for a caller that keeps the output.

        Args:
            stream: None: each step returns a new output for the request, as ``params.output_kind``
                says. Else steps return the object that is returned here, and keep its text up to
                date at every step (True), or write it at the end only (False).

        Returns:
            The output object that later steps fill.
        """
        now = time.monotonic()
        if arrival_time is not None:
            check_seconds("arrival_time", arrival_time)
            now += arrival_time - time.time()
        try:
            prompt = self.input_processor.with_tokenization(prompt, tokenization_kwargs)
            return self._add_request(
                request_id, prompt, params, priority, stream, lora_request, now
            )
        except BaseException:
            if self.config.kv_transfer is not None and isinstance(params, SamplingParams):
                told = (params.extra_args or {}).get("kv_transfer_params")
                self.client.call("request_refused", told)
            raise

    def _add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        priority: int,
        stream: bool | None,
        lora_request: LoRARequest | None,
        arrival_time: float,
    ) -> RequestOutput:
        token_ids, images = self.input_processor.preprocess(prompt)
        self.core.limits.check(token_ids)
        salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
        self.input_processor.check(request_id, params, priority, salt)
        output = RequestOutput(
            request_id, text_of(prompt), token_ids, outputs=[], lora_request=lora_request
        )
        num_requests = self.input_processor.num_requests
        try:
            requests = self.input_processor.process_completions(
                request_id,
                token_ids,
                params,
                priority=priority,
                arrival_time=arrival_time,
                cache_salt=salt,
                lora_request=lora_request,
                mm_features=images,
            )
            reads_text = params.output_kind != RequestOutputKind.FINAL_ONLY
            self.output_processor.add_requests(
                requests, output, reads_text if stream is None else stream
            )
            if stream is None:
                cutter = self._cutters[request_id] = OutputCutter(
                    output, request_id, params.output_kind
                )
                cutter.expect(len(requests))
            if self.log_stats is not None:
                self.log_stats.requests_added(requests)
            for request in requests:
                self.client.add_request(request)
            return output
        except BaseException:  # refused, or Ctrl-C: all or nothing
            self.input_processor.num_requests = num_requests
            if forgotten := self.output_processor.forget(output):
                self._cutters.pop(request_id, None)
                if self.log_stats is not None:
                    self.log_stats.requests_forgotten(forgotten)
                self.client.abort_requests(forgotten)
            raise

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the outputs that it changed, in the form that ``stream`` of
        :meth:`submit` asks for.

        Of a pooling model they are :class:`~mini_vllm.pooling_outputs.PoolingRequestOutput`; the
        type is that of texts, so that a script which reads texts need not ask.

        If anything stops it, the next call goes on where this one stopped. While the engine sleeps
        at level 0, nothing is computed, and nothing returned.
        """
        if self.is_sleeping():
            return []
        processor = self.output_processor
        outputs: dict[str, RequestOutput] = {}
        try:
            if not processor.inbox:
                processor.inbox.extend(self.client.get_outputs())
                if self.log_stats is not None:
                    self.log_stats.step_done(processor.inbox, self._scheduler_stats())
                if not processor.inbox and not self.client.call("has_requests"):
                    self._agree()  # requests were aborted elsewhere
            processed = processor.process()
            if self.log_stats is not None:
                self.log_stats.service.requests_stopped(processed.stop_string_ids)
            if over := processed.stop_string_ids + processed.unwatched_ids:
                self.client.abort_requests(over)
            for output in processed.finished:
                self.stats.record_request(output)
            outputs |= processor.changed
            processor.changed.clear()
            while outputs:
                request_id = next(iter(outputs))
                if (news := self._news_of(outputs[request_id])) is not None:
                    self._untold.append(news)
                del outputs[request_id]
            made: list[Any] = [
                output if output.pooled is None else PoolingRequestOutput.of(output)
                for output in self._untold
            ]
            self._untold.clear()
            return made
        except BaseException:
            processor.changed |= outputs  # no caller has seen these yet
            self._agree()
            raise

    def _news_of(self, output: RequestOutput) -> RequestOutput | None:
        """What a step returns for a request that has grown; None: nothing yet."""
        cutter = self._cutters.get(output.request_id)
        if output.finished:
            self._cutters.pop(output.request_id, None)
        return output if cutter is None else cutter.cut()

    def abort_requests(self, request_ids: str | Iterable[str] | None = None) -> None:
        """End requests early, all of them by default. Their outputs keep what there is.

        The id of a prompt with several completions ends them all; unknown ids are ignored.
        """
        if request_ids is None:
            request_ids = list(self.output_processor.completions)
        elif isinstance(request_ids, str):
            request_ids = [request_ids]
        unfinished = self.output_processor.unfinished(request_ids)
        try:
            if unfinished:
                self.client.abort_requests(unfinished)
                self.output_processor.abort(unfinished)
                for name in [n for n, one in self._cutters.items() if one.live.finished]:
                    del self._cutters[name]
                if self.log_stats is not None:
                    self.log_stats.service.requests_aborted(unfinished)
        except BaseException:
            self._agree()
            raise

    @with_arguments("internal")
    def abort_request(self, request_ids: list[str]) -> None:
        """vLLM's name of :meth:`abort_requests`."""
        self.abort_requests(request_ids)

    def _agree(self) -> None:
        """Make front end and engine agree on the unfinished requests, wherever an interrupt
        came."""
        processor = self.output_processor
        gone = self.client.call("keep_only", list(processor.completions))
        told = {output.request_id for output in processor.inbox}
        processor.abort([request_id for request_id in gone if request_id not in told])

    def flush_kv(self) -> None:
        """Return when other engines can find all KV that is to be saved."""
        if self.config.kv_transfer is not None:
            self.client.call("flush_kv")

    def _new_stats(self) -> EngineStats:
        if self.config.speculative is None:
            return EngineStats()
        k = self.config.speculative.num_speculative_tokens
        return EngineStats(spec_decode=SpecDecodingStats.new(k))

    def _scheduler_stats(self) -> SchedulerStats:
        return together([core.make_stats() for core in self.cores])

    def get_metrics(self) -> list[Metric]:
        """Figures under vLLM's names: with ``log_stats`` all that a server has at ``/metrics``,
        without them only those of speculation, if it is on.

        Source: vllm/v1/metrics/reader.py#L70-L145 (get_metrics_snapshot) @ v0.22.1
        """
        if self.log_stats is not None:
            return self.log_stats.snapshot(self._scheduler_stats())
        drafts = self.stats.spec_decode
        return [] if drafts is None else list(metrics_of(drafts))

    def do_log_stats(self) -> None:
        """One line in the log, at the level INFO, if there is ``log_stats``: throughput since the
        last one, and gauges.

        Source: vllm/v1/engine/llm_engine.py#L380-L383 (LLMEngine.do_log_stats) @ v0.22.1
        """
        if self.log_stats is not None:
            self.log_stats.line.log()

    def reset_stats(self) -> None:
        """Start counting afresh, for the run that comes next."""
        self.stats = self._new_stats()
        self.client.call("reset_stats")

    def has_unfinished_requests(self) -> bool:
        return bool(self.output_processor.completions)

    def get_num_unfinished_requests(self) -> int:
        """A prompt with ``n`` completions counts ``n`` times."""
        return len(self.output_processor.completions)

    def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model does: ("generate",), or the tasks of a pooling model."""
        return self.input_processor.tasks

    def get_tokenizer(self) -> Any:
        """The tokenizer, of the ``transformers`` kind; None if there is none."""
        return whole_tokenizer(self.tokenizer)

    def collective_rpc(
        self,
        method: Method,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """See :meth:`~mini_vllm.engine.llm.LLM.collective_rpc`."""
        return [
            answer
            for core in self.cores
            for answer in core.executor.collective_rpc(method, timeout, args, kwargs)
        ]

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """Call ``func(model)`` on every worker, with its part of the model."""

        @functools.wraps(func)
        def on_model(worker: Any) -> Any:
            return func(worker.model)

        return self.collective_rpc(on_model)

    def shutdown(self) -> None:
        """End the engine and its workers."""
        self.client.shutdown()


def _make_cores(
    config: EngineConfig,
    extensions: Sequence[SchedulerExtension],
    scheduler_cls: type[Scheduler],
) -> list[EngineCore]:
    """An engine, or several side by side. If one cannot start, none is left."""
    cores: list[EngineCore] = []
    try:
        for replica in range(config.parallel.data_parallel_size):
            cores.append(EngineCore(config, extensions, scheduler_cls, replica))
    except BaseException:
        for core in cores:
            core.shutdown()
        raise
    return cores
