"""``LLM``: the offline front door. Load a model, hand in a list of prompts, get texts back.

Source: vllm/entrypoints/llm.py#L120-L600 (LLM) @ v0.22.1
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from mini_vllm.config import ModelConfig
from mini_vllm.config.arguments import EngineOptions
from mini_vllm.config.checks import require_at_least
from mini_vllm.config.vllm_names import refuse
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.arg_utils import EngineArgs
from mini_vllm.engine.beam_search import (
    BeamSearch,
    BeamSearchOutput,
    check_width,
    run_searches,
)
from mini_vllm.engine.chat_template import read_template
from mini_vllm.engine.checked_config import make_engine_config, recommended_params
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.offline_chat import OfflineChat
from mini_vllm.engine.offline_inputs import (
    LoRARequests,
    Params,
    Progress,
    Prompts,
    as_list,
    loras_per_prompt,
    progress_bar,
    with_processor_options,
)
from mini_vllm.engine.offline_pooling import OfflinePooling
from mini_vllm.errors import bad_value, show
from mini_vllm.executor.base import Method
from mini_vllm.inputs import PromptType, text_of
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model.lazy_tokenizer import load_lazy_tokenizer
from mini_vllm.observability.reader import Metric
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.param_checks import check_context
from mini_vllm.policies import scheduler_class
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams


class LLM(OfflineChat, OfflinePooling):
    """A model that generates text for batches of prompts, or embeds and classifies them.

    Args:
        model: a folder in Hugging Face layout, the name of a bundled model, or of a hub's, such as
            "Qwen/Qwen3-0.6B", which is downloaded the first time; see :mod:`mini_vllm.hub`.
        skip_tokenizer_init: load no tokenizer; prompts must be token ids, texts stay empty.
        chat_template: what :meth:`chat` formats conversations with unless it is given another:
            Jinja, or a file of it; None: the tokenizer's own.
        profiler_config: where :meth:`start_profile` writes: {"torch_profiler_dir": FOLDER}.
        scheduler_cls: another scheduler with the interface of
            :class:`~mini_vllm.core.scheduler.Scheduler`, a policy's name, or
            "path/to/file.py:ClassName".
        extensions: see :class:`~mini_vllm.core.extension.SchedulerExtension`.
        disable_log_stats: False: :meth:`get_metrics` returns all metrics.
        config: see :meth:`~mini_vllm.config.EngineConfig.from_kwargs`: the fields of most
            sections by name, and ``speculative_config``, ``structured_outputs_config``,
            ``kv_transfer_config`` and ``kv_events_config`` as dicts.

    Raises:
        ValueError: for a value out of range.
        TypeError: for an unknown argument; the message names the nearest.
        FileNotFoundError: if there is no such model.

    Example::

        llm = LLM("storyteller", block_size=16)
        for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
            print(output.outputs[0].text)
    """

    def __init__(
        self,
        model: str | Path,
        *,
        skip_tokenizer_init: bool = False,
        chat_template: str | Path | None = None,
        profiler_config: Mapping[str, Any] | None = None,
        scheduler_cls: type[Scheduler] | str | None = Scheduler,
        extensions: Sequence[SchedulerExtension] = (),
        disable_log_stats: bool = True,
        **config: Unpack[EngineOptions],
    ) -> None:
        scheduler_cls = scheduler_class(scheduler_cls)
        self.chat_template = read_template(chat_template, "chat_template")
        self.config = make_engine_config(model, **config)
        folder = self.config.model.tokenizer or self.config.model.model
        tokenizer = None if skip_tokenizer_init else load_lazy_tokenizer(folder)
        self.engine = LLMEngine(
            self.config,
            tokenizer,
            extensions,
            scheduler_cls,
            log_stats=not disable_log_stats,
            profiler_config=profiler_config,
        )
        self.config = self.engine.config  # with the limits that the engine has settled
        self._enqueued: list[RequestOutput] = []
        self._ids = itertools.count()
        self.default_sampling_params = recommended_params(self.config.model)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Source: vllm/entrypoints/llm.py#L386-L389 (LLM.from_engine_args) @ v0.22.1"""
        return cls(
            engine_args.model,
            skip_tokenizer_init=engine_args.skip_tokenizer_init,
            profiler_config=engine_args.profiler_config,
            scheduler_cls=engine_args.scheduler_cls,
            disable_log_stats=engine_args.disable_log_stats,
            **engine_args.options,
        )

    @property
    def llm_engine(self) -> LLMEngine:
        """vLLM's name of ``engine``."""
        return self.engine

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """What the model does: ("generate",), or the tasks of a pooling model."""
        return self.engine.get_supported_tasks()

    @property
    def runner_type(self) -> str:
        """ "generate" or "pooling"."""
        return "pooling" if self.config.model.pools else "generate"

    @property
    def model_config(self) -> ModelConfig:
        """With the ``max_model_len`` that the engine has settled."""
        return self.config.model

    @property
    def tokenizer(self) -> Any:
        return self.engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What requests without sampling parameters get: what the model's authors recommend.

        Source: vllm/entrypoints/llm.py#L415-L420 (LLM.get_default_sampling_params) @ v0.22.1
        """
        return SamplingParams(**self.default_sampling_params)

    def generate(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        *,
        use_tqdm: Progress = True,
        priority: Sequence[int] | None = None,
        lora_request: LoRARequests = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt.

        Args:
            prompts: one prompt or several; see :data:`~.input_processor.PromptType`.
            sampling_params: for all prompts, or one for each; if left out, see
                :meth:`get_default_sampling_params`.
            use_tqdm: show a progress bar.
            priority: one number per prompt, for the "priority" policy; smaller goes first.
            lora_request: the adapter of all prompts, or one (or None) for each.
            tokenization_kwargs: how texts become tokens, such as ``{"truncation": True,
                "max_length": 512}``; see
                :meth:`~mini_vllm.engine.input_processor.InputProcessor.with_tokenization`.
            mm_processor_kwargs: options of the image processor for prompts that bring none, such
                as ``{"max_pixels": 200704}``.

        Returns:
            One output per prompt, in the order of the prompts. In a batch, a prompt that cannot
            be served has ``error`` set and finish reason "error"; the others are not affected.

        Raises:
            ValueError: if none of the prompts can be served, or the lists' lengths differ.
            KeyboardInterrupt: on Ctrl-C, after its requests were aborted.
        """
        ids: list[str] = []
        try:
            prompts = with_processor_options(prompts, mm_processor_kwargs)
            outputs = self._add_all(
                ids,
                prompts,
                sampling_params,
                priority,
                lora_request,
                tokenization_kwargs,
                stream=False,
            )
            self._complete(outputs, use_tqdm)
            return outputs
        finally:
            self.engine.abort_requests(ids)

    def stream(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        *,
        lora_request: LoRARequests = None,
    ) -> Iterator[RequestOutput]:
        """Like :meth:`generate`, but yields each output every time it has grown.

        Other calls may come between two outputs, :meth:`generate` too: the engine serves them all.
        """
        ids: list[str] = []
        try:
            outputs = self._add_all(ids, prompts, sampling_params, None, lora_request, stream=True)
            yield from (output for output in outputs if output.finished)
            yield from self._grown(outputs)
        finally:
            self.engine.abort_requests(ids)

    def beam_search(
        self,
        prompts: Prompts,
        params: BeamSearchParams,
        lora_request: LoRARequests = None,
        use_tqdm: Progress = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Look for the most probable continuations of every prompt.

        Args:
            concurrency_limit: prompts whose beams are grown together; None: all of them.

        Returns:
            One output per prompt, with at most ``params.beam_width`` texts, the best first.

        Raises:
            ValueError: if a prompt cannot be served with ``params.max_tokens`` more tokens.

        Example::

            best = llm.beam_search("Once", BeamSearchParams(beam_width=4, max_tokens=16))
            print(best[0].sequences[0].text)

        Source: vllm/entrypoints/generate/beam_search/offline.py#L27-L182
        (BeamSearchOfflineMixin.beam_search) @ v0.22.1
        """
        if not isinstance(params, BeamSearchParams):
            raise ValueError(f"params is {show(params)}; it must be a BeamSearchParams")
        if concurrency_limit is not None:
            require_at_least("concurrency_limit", concurrency_limit, 1, "leave it out for all")
        prompts = as_list(prompts)
        loras = loras_per_prompt(prompts, lora_request)
        searches = [
            self._beam_search(prompt, params, lora)
            for prompt, lora in zip(prompts, loras, strict=True)
        ]
        size = concurrency_limit or max(1, len(searches))
        starts = range(0, len(searches), size)
        with progress_bar(len(starts) * params.max_tokens, use_tqdm, "steps") as progress:
            for start in starts:
                batch = searches[start : start + size]
                run_searches(batch, params, self.generate, lambda: progress.update(1))
        return [search.output(self.tokenizer) for search in searches]

    def _beam_search(
        self, prompt: PromptType, params: BeamSearchParams, lora: LoRARequest | None
    ) -> BeamSearch:
        token_ids = self.engine.input_processor.tokenize(prompt)
        check_context(self.config.scheduler.max_model_len, len(token_ids), params.max_tokens)
        check_width(params.beam_width, self.config.model.max_logprobs)
        eos_token_ids = self.engine.input_processor.model.eos_token_ids
        return BeamSearch(prompt, token_ids, params, eos_token_ids, lora)

    if not TYPE_CHECKING:  # a type checker tells a name that is not here by itself

        def __getattr__(self, name: str) -> NoReturn:
            """Only for names that are not here: those of vLLM's are refused with what to do."""
            refuse(self, name)

    def collective_rpc(
        self,
        method: Method,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method on every worker; the answers, in order of rank.

        Args:
            method: of :class:`~mini_vllm.executor.worker.Worker` by name, or a function whose first
                argument is the worker. One that workers cannot import is sent as it is, with
                cloudpickle.
            timeout: seconds; None: as long as it takes.

        Raises:
            Exception: what it raised on a worker; the engine goes on.
            TimeoutError: if a worker did not answer in time.
            EngineDeadError: if a worker is gone.

        Example::

            llm.collective_rpc(lambda worker: worker.rank)      # [0, 1]

        Source: vllm/entrypoints/llm.py#L570-L600 (LLM.collective_rpc) @ v0.22.1
        """
        return self.engine.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """Call ``func(model)`` on every worker, with its part of the model.

        Source: vllm/entrypoints/llm.py#L602-L613 (LLM.apply_model) @ v0.22.1
        """
        return self.engine.apply_model(func)

    def get_world_size(self, include_dp: bool = True) -> int:
        """How many workers there are: tensor × pipeline, and × data parallel if it counts.

        Source: vllm/entrypoints/llm.py#L394-L410 (LLM.get_world_size) @ v0.22.1
        """
        parallel = self.config.parallel
        return parallel.world_size * (parallel.data_parallel_size if include_dp else 1)

    def shutdown(self) -> None:
        """End the engine and its workers now. Left alone, they end with this object."""
        self.engine.shutdown()

    def enqueue(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        lora_request: LoRARequests = None,
        priority: Sequence[int] | None = None,
        use_tqdm: Progress = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Queue prompts without running them; returns their ids. Arguments as of `generate`.

        Source: vllm/entrypoints/llm.py#L487-L530 (LLM.enqueue) @ v0.22.1
        """
        ids: list[str] = []
        try:
            prompts = with_processor_options(prompts, mm_processor_kwargs)
            outputs = self._add_all(
                ids,
                prompts,
                sampling_params,
                priority,
                lora_request,
                tokenization_kwargs,
                stream=False,
            )
        except BaseException:
            self.engine.abort_requests(ids)
            raise
        self._enqueued += outputs
        return ids

    def wait_for_completion(
        self,
        output_type: type[Any] | tuple[type[Any], ...] | None = None,
        *,
        use_tqdm: Progress = True,
    ) -> list[RequestOutput]:
        """Run what :meth:`enqueue` has queued; the outputs, in the order of their arrival.

        Args:
            output_type: vLLM's; what is enqueued has a :class:`RequestOutput`.

        Raises:
            TypeError: for another type. What is queued stays so.
            ValueError: while the engine sleeps. What is queued stays so.

        Source: vllm/entrypoints/llm.py#L547-L568 (LLM.wait_for_completion) @ v0.22.1
        """
        if not issubclass(RequestOutput, output_type or RequestOutput):
            raise TypeError(
                f"output_type is {show(output_type)}; what enqueue() has queued has RequestOutput; "
                "call encode() for a pooling model"
            )
        if self._enqueued:
            self._check_runs()
        outputs, self._enqueued = self._enqueued, []
        try:
            self._complete(outputs, use_tqdm)
            return outputs
        finally:
            self.engine.abort_requests([output.request_id for output in outputs])

    def get_tokenizer(self) -> Any:
        """The tokenizer, of the ``transformers`` kind; None with ``skip_tokenizer_init``."""
        return self.engine.get_tokenizer()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget all cached KV; see
        :meth:`~mini_vllm.engine.offline_controls.OfflineControls.reset_prefix_cache`."""
        return self.engine.reset_prefix_cache(reset_running_requests, reset_connector)

    def reset_mm_cache(self) -> None:
        """Forget the patches of recent images; see
        :meth:`~mini_vllm.engine.offline_controls.OfflineControls.reset_mm_cache`."""
        self.engine.reset_mm_cache()

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record every operation until :meth:`stop_profile`, for https://ui.perfetto.dev.

        Raises:
            ValueError: without a ``profiler_config``, or while another recording goes on.
        """
        self.engine.start_profile(profile_prefix)

    def stop_profile(self) -> None:
        """Write the recording, if there is one."""
        self.engine.stop_profile()

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give back the KV cache's memory until :meth:`wake_up`; see
        :meth:`~mini_vllm.engine.offline_controls.OfflineControls.sleep`."""
        self.engine.sleep(level, mode)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End :meth:`sleep`, or the part of it that `tags` name; see
        :meth:`~mini_vllm.engine.offline_controls.OfflineControls.wake_up`."""
        self.engine.wake_up(tags)

    def get_metrics(self) -> list[Metric]:
        """Figures of this engine, such as ``vllm:spec_decode_num_accepted_tokens``: of speculation
        always, and with ``disable_log_stats=False`` all that a server has at ``/metrics``.

        Source: vllm/entrypoints/llm.py#L846-L857 (LLM.get_metrics) @ v0.22.1
        """
        return self.engine.get_metrics()

    def _add_all(
        self,
        ids: list[str],
        prompts: Prompts,
        params: Params,
        priority: Sequence[int] | None,
        lora_request: LoRARequests,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        *,
        stream: bool,
    ) -> list[RequestOutput]:
        """Queue every prompt that can be served. Each id is in ``ids`` before it is queued."""
        if self.config.model.pools:
            raise ValueError(
                "LLM.generate() is only supported for generative models. Try passing `--runner "
                "generate` to use the model as a generative model."
            )
        self._check_awake()
        prompts = as_list(prompts)
        all_params = _per_prompt(
            prompts, self.get_default_sampling_params() if params is None else params
        )
        loras = loras_per_prompt(prompts, lora_request)
        if not isinstance(priority, Sequence | None):
            raise bad_value("priority", priority, "pass a list with one for each prompt")
        priorities = [0] * len(prompts) if priority is None else list(priority)
        if len(priorities) != len(prompts):
            raise ValueError(
                f"{len(prompts)} prompts but {len(priorities)} priorities; pass one each"
            )
        outputs, errors = [], []
        for prompt, one_params, one_priority, lora in zip(
            prompts, all_params, priorities, loras, strict=True
        ):
            request_id = str(next(self._ids))
            ids.append(request_id)
            try:
                output = self.engine.submit(
                    request_id,
                    prompt,
                    one_params,
                    lora_request=lora,
                    tokenization_kwargs=tokenization_kwargs,
                    priority=one_priority,
                    stream=stream,
                )
            except ValueError as error:
                errors.append(error)
                output = _failed_output(request_id, prompt, str(error))
            outputs.append(output)
        if errors and len(errors) == len(prompts):
            raise errors[0]
        return outputs

    def _check_awake(self) -> None:
        if not self.engine.takes_requests():
            raise ValueError("the engine sleeps; call wake_up() first")

    def _check_runs(self) -> None:
        if self.engine.is_sleeping():
            raise ValueError(
                "the engine sleeps at level 0, so nothing is computed; call "
                "wake_up(['scheduling']) first"
            )

    def _complete(self, outputs: Sequence[RequestOutput], use_tqdm: Progress) -> None:
        """Step until these have finished and the KV that they save for other engines is written."""
        with progress_bar(len(outputs), use_tqdm) as progress:
            progress.update(sum(output.finished for output in outputs))
            for num_finished in self._run(outputs):
                progress.update(num_finished)
        self.engine.flush_kv()

    def _run(self, outputs: Sequence[RequestOutput]) -> Iterator[int]:
        """Step until these have finished; yields how many of them each step has ended."""
        unfinished = {output.request_id for output in outputs if not output.finished}
        while unfinished:
            self._check_runs()
            stepped = self.engine.step() or outputs  # no output: they may have ended otherwise
            ended = unfinished & {output.request_id for output in stepped if output.finished}
            unfinished -= ended
            yield len(ended)

    def _grown(self, outputs: Sequence[RequestOutput]) -> Iterator[RequestOutput]:
        """Step until these have finished; yield each of them whenever it has grown.

        They may grow without us: the caller may run the engine in between.
        """
        sizes = {output.request_id: _size(output) for output in outputs}
        waiting = [output for output in outputs if not output.finished]
        while waiting:
            grown = [output for output in waiting if _size(output) != sizes[output.request_id]]
            if not grown:
                self._check_runs()
                self.engine.step()
            for output in grown:
                sizes[output.request_id] = _size(output)
                yield output
            waiting = [o for o in waiting if not (o.finished and _size(o) == sizes[o.request_id])]


def _size(output: RequestOutput) -> tuple[int, int, bool]:
    """What grows as a request goes on."""
    num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
    return num_tokens, len(output.prompt_logprobs or ()), output.finished


def _per_prompt(
    prompts: Sequence[PromptType], params: SamplingParams | Sequence[SamplingParams]
) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * len(prompts)
    if isinstance(params, str) or not isinstance(params, Sequence):
        raise bad_value(
            "sampling_params", params, "pass a SamplingParams, or a list with one for each prompt"
        )
    if len(params) != len(prompts):
        raise ValueError(
            f"{len(prompts)} prompts but {len(params)} sampling_params; pass one for all, or one "
            "for each"
        )
    return list(params)


def _failed_output(request_id: str, prompt: PromptType, error: str) -> RequestOutput:
    """The result of a prompt that was refused."""
    completion = CompletionOutput(index=0, finish_reason="error")
    return RequestOutput(
        request_id, text_of(prompt), [], outputs=[completion], finished=True, error=error
    )
