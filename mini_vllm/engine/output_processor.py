"""From sampled tokens to text and :class:`~mini_vllm.outputs.RequestOutput`.

Source: vllm/v1/engine/output_processor.py#L430-L700 (OutputProcessor) @ v0.22.1
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import GRAMMAR_END, EngineCoreOutput
from mini_vllm.engine.detokenizer import IncrementalDetokenizer
from mini_vllm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput


@dataclass(slots=True)
class _Completion:
    """One of a prompt's completions while it runs."""

    output: CompletionOutput
    detokenizer: IncrementalDetokenizer
    parent: RequestOutput
    metrics: RequestMetrics
    text_as_it_grows: bool
    """Whether anyone looks at the text before the end: a reader, or a stop string."""


@dataclass(slots=True)
class ProcessedOutputs:
    """What one step means for the callers."""

    request_outputs: list[RequestOutput]
    """Every prompt that made progress, once."""
    stop_string_ids: list[str]
    """Requests that a stop string has ended: the scheduler does not know of it yet."""


class OutputProcessor:
    """Collects tokens per completion, turns them into text and watches for stop strings.

    Args:
        tokenizer: of the ``transformers`` kind; None: texts stay empty.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.completions: dict[str, _Completion] = {}

    def add_request(
        self, request: EngineCoreRequest, parent: RequestOutput, index: int, stream: bool = True
    ) -> None:
        """Watch ``request``, the ``index``-th completion of ``parent``.

        Args:
            stream: whether the text is read while it grows.
        """
        params = request.sampling_params
        output = CompletionOutput(index)
        if params.logprobs is not None:
            output.logprobs, output.cumulative_logprob = [], 0.0
        metrics = RequestMetrics(arrival_time=request.arrival_time)
        if index == 0:
            parent.metrics = metrics
            if params.prompt_logprobs is not None:
                parent.prompt_logprobs = [None]
        parent.outputs.append(output)
        detokenizer = IncrementalDetokenizer(self.tokenizer, request.prompt_token_ids, params)
        self.completions[request.request_id] = _Completion(
            output, detokenizer, parent, metrics, stream or bool(params.stop)
        )

    def process(self, outputs: Sequence[EngineCoreOutput]) -> ProcessedOutputs:
        """Take in one step's outputs; finished completions are no longer watched."""
        touched: dict[int, RequestOutput] = {}
        stop_string_ids = []
        now = time.monotonic()
        for output in outputs:
            completion = self.completions.get(output.request_id)
            if completion is None:
                continue  # aborted while the step ran
            if self._advance(completion, output, now):
                stop_string_ids.append(output.request_id)
            if completion.output.finished:
                del self.completions[output.request_id]
            parent = completion.parent
            parent.finished = all(child.finished for child in parent.outputs)
            touched[id(parent)] = parent
        return ProcessedOutputs(list(touched.values()), stop_string_ids)

    def _advance(self, completion: _Completion, output: EngineCoreOutput, now: float) -> bool:
        """Add a step's tokens to a completion; True if a stop string has just ended it."""
        parent, child, metrics = completion.parent, completion.output, completion.metrics
        detokenizer = completion.detokenizer
        # By its last token, which the text leaves out, unless a grammar was complete without one.
        stopped = output.finish_reason == "stop" and output.stop_reason != GRAMMAR_END
        if output.prompt_logprobs is not None and parent.prompt_logprobs is not None:
            parent.prompt_logprobs += [self._to_dict(entry) for entry in output.prompt_logprobs]
        parent.num_cached_tokens = max(parent.num_cached_tokens, output.num_cached_tokens)
        metrics.num_preemptions = max(metrics.num_preemptions, output.num_preemptions)
        if output.new_token_ids:
            metrics.first_token_time = metrics.first_token_time or now
            child.token_ids += output.new_token_ids
            self._add_logprobs(child, output)
            if completion.text_as_it_grows:
                child.text += detokenizer.append(output.new_token_ids, stopped)
        if output.finish_reason is not None:
            child.finish_reason, child.stop_reason = output.finish_reason, output.stop_reason
            if output.finish_reason == "error":
                parent.error = str(output.stop_reason)
        stop_string = detokenizer.stop_reason
        if stop_string is not None:
            child.finish_reason, child.stop_reason = "stop", stop_string
        if child.finished:
            metrics.finished_time = now
            if not completion.text_as_it_grows:
                child.text += detokenizer.append(child.token_ids, stopped)
            child.text += detokenizer.flush()
        return stop_string is not None and output.finish_reason is None

    def _add_logprobs(self, child: CompletionOutput, output: EngineCoreOutput) -> None:
        if child.logprobs is None or output.logprobs is None:
            return
        for token_id, entry in zip(output.new_token_ids, output.logprobs, strict=True):
            candidates = self._to_dict(entry)
            child.logprobs.append(candidates)
            assert child.cumulative_logprob is not None
            child.cumulative_logprob += candidates[token_id].logprob

    def _to_dict(self, entry: Any) -> dict[int, Logprob]:
        """Candidates by token id: the sampled (or prompt) token first, then the most likely."""
        token_ids, logprobs, rank = entry
        ranks = [rank, *range(1, len(token_ids))]
        decode = self.tokenizer.decode if self.tokenizer is not None else lambda ids: None
        candidates: dict[int, Logprob] = {}
        for token_id, logprob, position in zip(token_ids, logprobs, ranks, strict=True):
            candidates.setdefault(token_id, Logprob(logprob, position, decode([token_id])))
        return candidates

    def abort(self, request_ids: Sequence[str]) -> None:
        """Mark completions as aborted and stop watching them."""
        for request_id in request_ids:
            completion = self.completions.pop(request_id, None)
            if completion is not None:
                completion.output.finish_reason = "abort"
                completion.metrics.finished_time = time.monotonic()
                parent = completion.parent
                parent.finished = all(child.finished for child in parent.outputs)
