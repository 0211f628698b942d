"""The online front end: one asyncio loop that many callers share, and an engine process behind it.

::

    generate("a") ──┐ ADD                                      ┌── outputs of a step
    generate("b") ──┼──────────►  engine process  ─────────────┤
    generate("c") ──┘ ABORT                                    └─► output handler, one task for all
         ▲                                                             │ text, stop strings
         └──────────────── one collector a request ◄───────────────────┘

Source: vllm/v1/engine/async_llm.py#L74-L1056 (AsyncLLM) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mini_vllm.config import EngineConfig, ModelConfig
from mini_vllm.config.vllm_names import with_arguments
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import EngineCoreOutput
from mini_vllm.engine.admission import Admission
from mini_vllm.engine.arg_utils import AsyncEngineArgs
from mini_vllm.engine.checked_config import load_model_args
from mini_vllm.engine.clients.dp_process_client import DataParallelProcessClient
from mini_vllm.engine.clients.loops import do_in, post_to
from mini_vllm.engine.clients.messages import EngineCoreOutputs, check_travels
from mini_vllm.engine.clients.process_client import ProcessClient
from mini_vllm.engine.collector import OutputCutter, RequestOutputCollector
from mini_vllm.engine.control_checks import check_seconds
from mini_vllm.engine.controls import EngineControls
from mini_vllm.engine.exceptions import EngineDeadError, EngineGenerateError
from mini_vllm.engine.input_processor import InputProcessor
from mini_vllm.engine.online_pooling import OnlinePooling
from mini_vllm.engine.output_processor import OutputProcessor
from mini_vllm.engine.parts.images import make_image_processor
from mini_vllm.engine.parts.limits import PromptLimits
from mini_vllm.engine.startup import with_limits
from mini_vllm.errors import bad_value, show
from mini_vllm.inputs import PromptType, text_of
from mini_vllm.kv_transfer.params import holder_of
from mini_vllm.lora.request import LoRARequest
from mini_vllm.mm_features import MultiModalFeatureSpec
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.config import ModelArgs
from mini_vllm.observability.log_line import LogLine
from mini_vllm.observability.metrics import RequestStats, ServiceStats
from mini_vllm.observability.profile import check_profiler_config
from mini_vllm.outputs import RequestOutput
from mini_vllm.pooling.config import settle_runner
from mini_vllm.pooling_params import PoolingParams
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

OUTPUT_CHUNK = 128
"""Outputs processed before other tasks of the loop get their turn."""
LONG_TEXT = 4096
"""Characters from which on a prompt is tokenized in a thread, for the loop must not wait."""


def check_rank(rank: int | None, num_engines: int) -> None:
    """Raises ValueError for an engine that is not there."""
    if rank is not None and not (type(rank) is int and 0 <= rank < num_engines):
        most = f"from 0 to {num_engines - 1}" if num_engines > 1 else "0, for there is one engine"
        raise bad_value("data_parallel_rank", rank, f"it must be {most}")


def start_engines(
    config: EngineConfig, scheduler: str
) -> ProcessClient | DataParallelProcessClient:
    """One engine in a process of its own, or several that share the requests."""
    several = config.parallel.data_parallel_size > 1
    return (DataParallelProcessClient if several else ProcessClient)(config, scheduler)


@dataclass(slots=True)
class Stream:
    """One caller's request: a prompt, with all its completions."""

    external_id: str
    live: RequestOutput
    cutter: OutputCutter
    collector: RequestOutputCollector
    child_ids: list[str]

    @property
    def request_id(self) -> str:
        """vLLM's name of ``external_id``."""
        return self.external_id

    async def get(self) -> RequestOutput:
        """The next output, for scripts that read what :meth:`AsyncLLM.add_request` returned as in
        vLLM; :meth:`AsyncLLM.outputs` also closes the request when its reader leaves."""
        return await self.collector.get()

    def get_nowait(self) -> RequestOutput | None:
        """The next output if it is there; else None."""
        return self.collector.get_nowait()


class AsyncLLM(OnlinePooling, EngineControls):
    """Serves many requests at once; each is an async iterator of its outputs.

    Args:
        config: of the engine.
        tokenizer: of the ``transformers`` kind, or None to work on token ids only.
        scheduler: a policy's name, or ``path/to/file.py:ClassName``.
        stream_interval: tokens between two outputs of a stream.
        max_num_queued_reqs, max_num_queued_tokens: see :class:`~.admission.Admission`.
        client: of an engine that runs already; None: start one, in a process of its own.
        profiler_config: where a recording goes: {"torch_profiler_dir": FOLDER}.

    Raises:
        ValueError: for settings that contradict each other, the model or the memory.

    Example::

        engine = AsyncLLM.from_engine_args(AsyncEngineArgs("storyteller"))
        async for output in engine.generate("Once", SamplingParams(max_tokens=32), "r0"):
            print(output.outputs[0].text)
        engine.shutdown()
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Any = None,
        scheduler: str = "vllm-v1",
        stream_interval: int = 1,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
        client: ProcessClient | DataParallelProcessClient | None = None,
        profiler_config: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(config, EngineConfig):
            raise TypeError(
                f"config is {show(config)}; it must be an EngineConfig; to start from a model's "
                "name use AsyncLLM.from_engine_args(AsyncEngineArgs(NAME))"
            )
        self.config = config = settle_runner(config)
        self.profiler_config = check_profiler_config(profiler_config)
        self.tokenizer = tokenizer
        self.stream_interval = stream_interval
        args = load_model_args(config.model)
        self.model_args: ModelArgs = args.ending_with(getattr(tokenizer, "eos_token_id", None))
        self.client = client or start_engines(config, scheduler)
        info = self.client.info
        self.config = config = with_limits(
            config, info.num_usable_blocks + 1, info.block_size, info.max_model_len
        )
        self.limits = PromptLimits(
            info.vocab_size,
            info.max_model_len,
            info.num_usable_blocks,
            info.block_size,
            info.capacity,
            least_output=0 if config.model.pools else 1,
        )
        images = make_image_processor(config, self.model_args)
        self.input_processor = InputProcessor.of(config, tokenizer, self.model_args, images)
        self.output_processor = OutputProcessor(tokenizer)
        if (vocabulary := self.output_processor.vocabulary) is not None:
            vocabulary.texts  # noqa: B018  (made here: later all requests would wait for it)
        self.stats = ServiceStats()
        self.log_line = LogLine()
        self.stats.recorders.append(self.log_line)
        self.admission = Admission(self.stats.requests, max_num_queued_reqs, max_num_queued_tokens)
        self._streams: dict[str, Stream] = {}
        """By internal id: unique, whatever ids callers choose."""
        self._handler: asyncio.Task[None] | None = None

    @classmethod
    @with_arguments("start_engine_loop", "usage_context", "stat_loggers")
    def from_engine_args(cls, engine_args: AsyncEngineArgs) -> AsyncLLM:
        args = engine_args
        if not isinstance(args, AsyncEngineArgs):
            raise TypeError(
                f"engine_args is {show(args)}; pass AsyncEngineArgs, such as "
                "AsyncEngineArgs('storyteller')"
            )
        config = args.create_engine_config()
        folder = config.model.tokenizer or config.model.model
        tokenizer = None if args.skip_tokenizer_init else load_tokenizer(folder)
        return cls(
            config,
            tokenizer,
            args.scheduler,
            args.stream_interval,
            args.max_num_queued_reqs,
            args.max_num_queued_tokens,
            profiler_config=args.profiler_config,
        )

    @classmethod
    @with_arguments("start_engine_loop", "usage_context", "stat_loggers")
    def from_vllm_config(
        cls,
        vllm_config: EngineConfig,
        *,
        scheduler: str = "vllm-v1",
        stream_interval: int = 1,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
        profiler_config: Mapping[str, Any] | None = None,
    ) -> AsyncLLM:
        """Start from what :meth:`AsyncEngineArgs.create_engine_config` made, as vLLM can, too."""
        if not isinstance(vllm_config, EngineConfig):
            raise TypeError(
                f"vllm_config is {show(vllm_config)}; pass what "
                "AsyncEngineArgs.create_engine_config() returns"
            )
        model = vllm_config.model
        return cls(
            vllm_config,
            load_tokenizer(model.tokenizer or model.model),
            scheduler,
            stream_interval,
            max_num_queued_reqs,
            max_num_queued_tokens,
            profiler_config=profiler_config,
        )

    # ------------------------------------------------------------------ one request

    @with_arguments("prompt_text", "trace_headers", "reasoning_ended", "reasoning_parser_kwargs")
    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt; yields as ``sampling_params.output_kind`` says.

        A caller that stops iterating, by leaving or by cancellation, ends the request: its blocks
        are free a step later.

        Args:
            request_id: what the outputs are called; need not be unique.
            tokenization_kwargs: see :meth:`InputProcessor.with_tokenization`.
            data_parallel_rank: which of several engines side by side serves it; None: whichever
                has the least to do.

        Raises:
            ValueError: if the request can never be served. Nothing was sent to the engine.
            QueueFullError: if too much waits already.
            EngineDeadError: if the engine is gone.
            EngineGenerateError: if it failed for another reason than its caller.

        Source: vllm/v1/engine/async_llm.py#L524-L635 (AsyncLLM.generate) @ v0.22.1
        """
        try:
            self.input_processor.check(request_id, sampling_params, priority, None)
            if tokenization_kwargs:  # it may take time
                prompt = await asyncio.to_thread(
                    self.input_processor.with_tokenization, prompt, tokenization_kwargs
                )
            stream = await self.add_request(
                request_id,
                prompt,
                sampling_params,
                lora_request=lora_request,
                priority=priority,
                data_parallel_rank=data_parallel_rank,
            )
        except BaseException:
            extra = getattr(sampling_params, "extra_args", None) or {}
            self.request_refused(extra.get("kv_transfer_params"))
            raise
        async with contextlib.aclosing(self.outputs(stream)) as outputs:
            async for output in outputs:
                yield output

    def request_refused(self, kv_transfer_params: Any) -> None:
        """A request was refused: tell the engine that holds KV for it, if there is one.

        The call does not wait for an answer. If this engine is gone, the other one's lease ends by
        itself.
        """
        holder = holder_of(kv_transfer_params)
        if holder is not None and self.config.kv_transfer is not None:
            self.client.tell("request_refused", holder)

    async def outputs(self, stream: Stream) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of a request that was added, until one says that it is finished.

        However the reader leaves, by the end, by an error, by being cancelled or by closing this
        iterator, :meth:`close_stream` is called, once; what was raised goes on to the reader.

        Source: vllm/v1/engine/async_llm.py#L565-L635 (AsyncLLM.generate) @ v0.22.1
        """
        # TODO 14.5
        raise NotImplementedError(
            "TODO 14.5: write AsyncLLM.outputs in labs/14-serving/async_llm.py"
            " (phase 14, 02-mini-build.md#task-5)"
        )

    def close_stream(self, stream: Stream) -> None:
        """No caller reads this request any more: if it still runs, it is aborted on both sides."""
        self._abort_stream(stream)
        self._streams.pop(stream.live.request_id, None)

    async def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> Stream:
        """Check a prompt, watch for its outputs, and only then send it to the engine.

        In this order, for the first output may be back before this function goes on. Its steps:
        :meth:`check_health`; note when it arrived, by ``time.monotonic()``; :meth:`preprocess` the
        prompt into its token ids and images, which may take time; ``limits.check(token_ids)``;
        ``admission.check``, where each of ``params.n`` completions counts, and its prompt, too;
        :meth:`start` the output handler; :meth:`_make_stream`, :meth:`_make_requests`,
        :meth:`_watch`; hand each request to the client. From the admission on nothing is awaited:
        the requests count only when they are watched, and if this function were cancelled after
        that, its stream would never be closed.

        Returns:
            What :meth:`outputs` reads from.

        Raises:
            ValueError: if it can never be served. Nothing was sent.
            QueueFullError: if too much waits already. Nothing was sent.
            EngineDeadError: if the engine is gone.

        Source: vllm/v1/engine/async_llm.py#L280-L398 (AsyncLLM.add_request) @ v0.22.1
        """
        # TODO 14.5
        raise NotImplementedError(
            "TODO 14.5: write AsyncLLM.add_request in labs/14-serving/async_llm.py"
            " (phase 14, 02-mini-build.md#task-5)"
        )

    def _make_stream(
        self,
        request_id: str,
        prompt: PromptType,
        token_ids: list[int],
        params: SamplingParams | PoolingParams,
    ) -> Stream:
        internal_id = f"{request_id}-{uuid.uuid4().hex[:8]}"
        live = RequestOutput(internal_id, text_of(prompt), token_ids, outputs=[])
        cutter = OutputCutter(live, request_id, params.output_kind, self.stream_interval)
        return Stream(
            request_id, live, cutter, RequestOutputCollector(params.output_kind), child_ids=[]
        )

    def _make_requests(
        self,
        stream: Stream,
        prompt: PromptType,
        images: list[MultiModalFeatureSpec],
        params: SamplingParams | PoolingParams,
        priority: int,
        arrival_time: float,
        lora_request: LoRARequest | None,
        data_parallel_rank: int | None = None,
    ) -> list[EngineCoreRequest]:
        """One request a completion; raises ValueError for parameters that cannot be."""
        check_rank(data_parallel_rank, self.config.parallel.data_parallel_size)
        salt = prompt.get("cache_salt") if isinstance(prompt, dict) else None
        self.input_processor.check(stream.external_id, params, priority, salt)
        token_ids = stream.live.prompt_token_ids
        stream.live.lora_request = lora_request
        requests = self.input_processor.process_completions(
            stream.live.request_id,
            token_ids,
            params,
            priority=priority,
            arrival_time=arrival_time,
            cache_salt=salt,
            lora_request=lora_request,
            mm_features=images,
            data_parallel_rank=data_parallel_rank,
        )
        check_travels(requests[0])  # the others have the same
        return requests

    def _watch(
        self, stream: Stream, requests: list[EngineCoreRequest], kind: RequestOutputKind
    ) -> None:
        """Register a request and its completions with everything that follows them."""
        reads_text = kind != RequestOutputKind.FINAL_ONLY
        self.output_processor.add_requests(requests, stream.live, reads_text)
        siblings: list[RequestStats] = []
        for request in requests:
            self.stats.request_added(request, len(requests), siblings)
            stream.child_ids.append(request.request_id)
        stream.cutter.expect(len(requests))
        self._streams[stream.live.request_id] = stream

    async def preprocess(self, prompt: PromptType) -> tuple[list[int], list[MultiModalFeatureSpec]]:
        """The prompt's token ids and its images, which are processed in a thread."""
        about_images = ("multi_modal_data", "mm_processor_kwargs")
        if isinstance(prompt, dict) and any(prompt.get(key) for key in about_images):
            return await asyncio.to_thread(self.input_processor.preprocess, prompt)
        token_ids = await self.tokenize(prompt)
        if self.input_processor.images is not None:  # a placeholder without its image is refused
            return self.input_processor.preprocess(token_ids)
        return token_ids, []

    async def tokenize(self, prompt: PromptType) -> list[int]:
        """The prompt's token ids. A long text is tokenized in a thread: the loop does not wait."""
        if len(text_of(prompt) or "") > LONG_TEXT:
            return await asyncio.to_thread(self.input_processor.tokenize, prompt)
        return self.input_processor.tokenize(prompt)

    @with_arguments("internal")
    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End every request that its callers named so; their iterators end with "abort".

        Source: vllm/v1/engine/async_llm.py#L709-L721 (AsyncLLM.abort) @ v0.22.1
        """
        given = [request_id] if isinstance(request_id, str) else request_id
        names = list(given) if isinstance(given, Iterable) else [given]
        if not all(isinstance(name, str) for name in names):
            raise bad_value(
                "request_id", request_id, "it must be the name of a request, or a list of names"
            )
        for stream in [s for s in self._streams.values() if s.external_id in names]:
            self._abort_stream(stream)

    def _abort_stream(self, stream: Stream) -> None:
        """End a request on both sides: nothing waits for it here, nothing computes for it there.

        One that is finished is left alone. Else those of its completions that still run
        (``output_processor.completions`` knows them by id) end in the output processor, in the
        figures (``stats.requests_aborted``) and in the engine, by their own ids: what callers
        call a request need not be unique. Then the last output is delivered.

        Source: vllm/v1/engine/output_processor.py#L450-L510 (OutputProcessor.abort_requests)
        @ v0.22.1
        """
        # TODO 14.5
        raise NotImplementedError(
            "TODO 14.5: write AsyncLLM._abort_stream in labs/14-serving/async_llm.py"
            " (phase 14, 02-mini-build.md#task-5)"
        )

    # ------------------------------------------------------------------ the output handler

    def start(self) -> None:
        """Start the one task that serves all, once for each loop: it needs one that runs.

        A second ``asyncio.run`` has a loop of its own, and the task of the first ended with it.
        """
        loop = asyncio.get_running_loop()
        if self._handler is None or (self._handler.done() and self._handler.get_loop() != loop):
            self._handler = asyncio.create_task(self._handle_outputs())
            self.client.on_death(lambda reason: post_to(loop, self._fail, EngineDeadError(reason)))

    async def _handle_outputs(self) -> None:
        """Take in what the engine sends, for ever; a failure here reaches every caller.

        The outputs of a step are processed in slices of ``OUTPUT_CHUNK``, and between two of them
        other tasks of the loop have one turn (``asyncio.sleep(0)``), not behind the last: waiting
        for the next message gives them one. Then ``stats.step_done`` gets the step's figures.
        No turn is given while the next step's message waits (``message.is_late``): readers that
        cannot keep up get several tokens in one piece, which is less work for all.
        If the engine has died (EngineDeadError), every caller gets that error (:meth:`_fail`), and
        the task ends. Any other exception is a mistake in this code: every caller gets an
        EngineGenerateError that names its type and says what it says, and it is raised on. Being
        cancelled is neither.

        Source: vllm/v1/engine/async_llm.py#L637-L715 (AsyncLLM._run_output_handler) @ v0.22.1
        """
        # TODO 14.6
        raise NotImplementedError(
            "TODO 14.6: write AsyncLLM._handle_outputs in labs/14-serving/async_llm.py"
            " (phase 14, 02-mini-build.md#task-6)"
        )

    def _process(self, outputs: list[EngineCoreOutput], message: EngineCoreOutputs) -> None:
        """Take in a slice of a step's outputs.

        Each is counted first (``stats.output_arrived``, with the message's timestamp). The output
        processor turns what is put into its ``inbox`` into text; it ignores unknown
        requests. A stop string ends a request on this side only: count it
        (``stats.requests_stopped``), and abort it in the engine. Last, each changed output is
        delivered to its stream, if that still exists.

        Source: vllm/v1/engine/output_processor.py#L576-L693 (OutputProcessor.process_outputs)
        @ v0.22.1
        """
        # TODO 14.6
        raise NotImplementedError(
            "TODO 14.6: write AsyncLLM._process in labs/14-serving/async_llm.py"
            " (phase 14, 02-mini-build.md#task-6)"
        )

    def _deliver(self, stream: Stream) -> None:
        output = stream.cutter.cut()
        if output is not None:
            stream.collector.put(output)

    def fail_all(self, error: Exception) -> None:
        """End every request with ``error``, each with a copy: raising one grows its traceback."""
        for stream in self._streams.values():
            if not stream.live.finished:
                stream.collector.put(copy.copy(error))

    def _fail(self, error: Exception) -> None:
        """End every request and every call with ``error``, because the engine is gone."""
        self.fail_all(error)
        self.client.fail_calls(error)

    # ------------------------------------------------------------------ the engine as a whole

    @property
    def vllm_config(self) -> EngineConfig:
        """vLLM's name of ``config``."""
        return self.config

    @property
    def model_config(self) -> ModelConfig:
        """With the ``max_model_len`` that the engine has settled."""
        return self.config.model

    @property
    def errored(self) -> bool:
        return self.client.dead is not None

    @property
    def dead_error(self) -> EngineDeadError:
        return EngineDeadError(self.client.dead or "the engine is alive")

    async def check_health(self) -> None:
        """Raises EngineDeadError if the engine is gone."""
        if self.errored:
            raise self.dead_error

    @property
    def num_unfinished_requests(self) -> int:
        """Completions that were asked for and have not ended."""
        return len(self.output_processor.completions)

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the engine by name."""
        self.start()
        return await self.client.call(method, *args)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine, after ``timeout`` seconds at most for requests that still run; None: 0.

        It waits for that; so that the loop can serve them, call it in another thread:
        ``await asyncio.to_thread(engine.shutdown, 30)``. What is unfinished in the end gets an
        EngineDeadError. Raises ValueError for what is no time, with nothing ended.
        """
        timeout = 0.0 if timeout is None else timeout
        check_seconds("timeout", timeout)
        self.client.shutdown(timeout)
        do_in(None if self._handler is None else self._handler.get_loop(), self._end)

    def _end(self) -> None:
        if self._handler is not None:
            self._handler.cancel()
        self._fail(EngineDeadError("the engine was shut down"))
