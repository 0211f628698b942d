"""Text in, text out: the engine that offline and online front ends share.

Source: vllm/v1/engine/llm_engine.py#L48-L425 (LLMEngine) @ v0.22.1
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.client import InprocClient
from mini_vllm.engine.core import EngineCore
from mini_vllm.engine.input_processor import InputProcessor, PromptType
from mini_vllm.engine.output_processor import OutputProcessor
from mini_vllm.engine.parallel_sampling import child_requests
from mini_vllm.observability.stats import EngineStats
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams


class LLMEngine:
    """Takes prompts, steps, and hands back outputs as they grow.

    Args:
        config: see :class:`~mini_vllm.engine.core.EngineCore`.
        tokenizer: of the ``transformers`` kind, or None to work on token ids only.
        extensions: see :class:`~mini_vllm.core.extension.SchedulerExtension`.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Any = None,
        extensions: Sequence[SchedulerExtension] = (),
        scheduler_cls: type[Scheduler] = Scheduler,
    ) -> None:
        self.core = EngineCore(config, extensions, scheduler_cls)
        self.client = InprocClient(self.core)
        self.config = self.core.config
        self.tokenizer = tokenizer
        self.input_processor = InputProcessor(
            tokenizer,
            self.core.model_args,
            config.scheduler.max_model_len,
            config.model.seed,
            config.structured,
        )
        self.output_processor = OutputProcessor(tokenizer)
        self.stats = EngineStats()
        self.client.observers.append(lambda *step: self.stats.record_step(*step))

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        priority: int = 0,
        stream: bool = True,
    ) -> RequestOutput:
        """Queue a prompt; with ``params.n > 1``, one request for each completion.

        Args:
            stream: keep the text up to date at every step, not only at the end.

        Returns:
            The output object that later steps fill.

        Raises:
            ValueError: if the prompt or its parameters can never be served. Nothing is queued.
        """
        arrival_time = time.monotonic()
        token_ids = self.input_processor.tokenize(prompt)
        salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
        text = prompt if isinstance(prompt, str) else None
        output = RequestOutput(request_id, text, token_ids, outputs=[])
        # The children differ in their seeds only: if the first is not refused, none is.
        for index, (child_id, child_params) in enumerate(child_requests(request_id, params)):
            request = self.input_processor.process(
                child_id, token_ids, child_params, priority, arrival_time, salt
            )
            self.client.add_request(request)
            self.output_processor.add_request(request, output, index, stream)
        return output

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the outputs that it changed."""
        processed = self.output_processor.process(self.client.get_outputs())
        if processed.stop_string_ids:
            self.client.abort_requests(processed.stop_string_ids)
        for output in processed.request_outputs:
            if output.finished:
                self.stats.record_request(output)
        return processed.request_outputs

    def abort_requests(self, request_ids: Sequence[str] | None = None) -> None:
        """End requests early, all of them by default."""
        if request_ids is None:
            request_ids = list(self.output_processor.completions)
        self.client.abort_requests(request_ids)
        self.output_processor.abort(request_ids)

    def reset_stats(self) -> None:
        """Start counting afresh, for the run that comes next."""
        self.stats = EngineStats()
        self.client.call("reset_stats")

    def has_unfinished_requests(self) -> bool:
        return bool(self.output_processor.completions)
