"""From sampled tokens to text and :class:`~mini_vllm.outputs.RequestOutput`.

Source: vllm/v1/engine/output_processor.py#L430-L700 (OutputProcessor) @ v0.22.1
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import EngineCoreOutput, LogprobsEntry, StopCause
from mini_vllm.engine.detokenizer import IncrementalDetokenizer
from mini_vllm.engine.vocabulary import MOST_PARTS, vocabulary_of
from mini_vllm.errors import RequestFailure
from mini_vllm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from mini_vllm.sampling_params import SamplingParams


@dataclass(slots=True)
class _Completion:
    """One of a prompt's completions while it runs."""

    request: EngineCoreRequest
    output: CompletionOutput
    detokenizer: IncrementalDetokenizer
    parent: RequestOutput
    metrics: RequestMetrics
    text_as_it_grows: bool
    """Whether the text is needed before the end: by a reader, or for a stop string."""
    taking: EngineCoreOutput | None = None
    """The output that is being taken in; the next two fields are the state before it."""
    num_tokens_before: int = 0
    logprob_before: float | None = None


@dataclass(slots=True)
class ProcessedOutputs:
    """What the caller of a step has to act on."""

    finished: list[RequestOutput]
    """Prompts whose last completion has ended."""
    stop_string_ids: list[str]
    """Requests that a stop string has ended; they still run in the engine."""
    unwatched_ids: list[str]
    """Requests that go on although no caller watches them any more."""


class OutputProcessor:
    """Collects tokens per completion, turns them into text and watches for stop strings.

    A front end that has outputs of the engine puts them into ``inbox`` at once, and only then calls
    :meth:`process`. So nothing is lost and nothing is counted twice, wherever Ctrl-C strikes:
    an output leaves the inbox when it is taken in completely, and is taken in anew if it was not.

    Args:
        tokenizer: of the ``transformers`` kind; None: texts stay empty.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = None if tokenizer is None else vocabulary_of(tokenizer)
        """What the tokens of logprobs are called, and their bytes."""
        self.completions: dict[str, _Completion] = {}
        """By the id of their own request."""
        self.children: dict[str, list[str]] = {}
        """Ids of the completions' requests, of prompts with several."""
        self.inbox: deque[EngineCoreOutput] = deque()
        """Outputs that the engine has sent and that are not taken in yet."""
        self.changed: dict[str, RequestOutput] = {}
        """Prompts that made progress and are in no step's outputs yet."""

    def add_requests(
        self, requests: Sequence[EngineCoreRequest], parent: RequestOutput, stream: bool = True
    ) -> None:
        """Watch ``requests``, the completions of ``parent``: all of them, or none.

        Args:
            stream: whether the text is read while it grows.

        Raises:
            ValueError: if an id is in use, or a stop string needs a tokenizer.
        """
        ids = [request.request_id for request in requests]
        for request_id in {parent.request_id, *ids}:
            if self.unfinished([request_id]):
                raise ValueError(
                    f"request id {request_id!r} is in use by an unfinished request; "
                    "ids must be unique; choose another"
                )
        completions = {
            request.request_id: self._completion(request, parent, index, stream)
            for index, request in enumerate(requests)
        }
        first = completions[ids[0]]
        parent.metrics = first.metrics
        if first.request.sampling_params.prompt_logprobs is not None:
            parent.prompt_logprobs = _container(first.request.sampling_params)
            parent.prompt_logprobs.append(None)
        parent.outputs = [completion.output for completion in completions.values()]
        if len(ids) > 1:
            self.children[parent.request_id] = ids
        self.completions.update(completions)

    def _completion(
        self, request: EngineCoreRequest, parent: RequestOutput, index: int, stream: bool
    ) -> _Completion:
        params = request.sampling_params
        output = CompletionOutput(index)
        if params.wants_logprobs:
            output.logprobs, output.cumulative_logprob = _container(params), 0.0
        return _Completion(
            request,
            output,
            self._detokenizer(request),
            parent,
            RequestMetrics(arrival_time=request.arrival_time),
            text_as_it_grows=stream or bool(params.stop),
        )

    def _detokenizer(self, request: EngineCoreRequest) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(
            self.tokenizer, request.prompt_token_ids, request.sampling_params
        )

    def unfinished(self, request_ids: Iterable[str]) -> list[str]:
        """The unfinished requests among these, several for a prompt with several completions."""
        return [
            found
            for request_id in request_ids
            for found in (request_id, *self.children.get(request_id, ()))
            if found in self.completions
        ]

    def process(self) -> ProcessedOutputs:
        """Take in what is in the inbox; finished completions are no longer watched."""
        finished = []
        stop_string_ids, unwatched_ids = [], []
        now = time.monotonic()
        while self.inbox:
            output = self.inbox[0]
            completion = self.completions.get(output.request_id)
            if completion is None:
                if output.finish_reason is None:
                    unwatched_ids.append(output.request_id)
                self.inbox.popleft()
                continue
            parent = completion.parent
            self._advance(completion, output, now)
            self.changed[parent.request_id] = parent
            if completion.output.finished():
                # The last usually ends last: of thousands only one is looked at.
                parent.finished = all(child.finished() for child in reversed(parent.outputs))
                if parent.finished:
                    finished.append(parent)
                    self.children.pop(parent.request_id, None)
                del self.completions[output.request_id]
                if output.finish_reason is None:
                    stop_string_ids.append(output.request_id)
            self.inbox.popleft()
        return ProcessedOutputs(finished, stop_string_ids, unwatched_ids)

    def take_changed(self) -> list[RequestOutput]:
        """The prompts that made progress since the last call."""
        changed = list(self.changed.values())
        self.changed.clear()
        return changed

    def _advance(self, completion: _Completion, output: EngineCoreOutput, now: float) -> None:
        """Add a step's tokens to a completion."""
        parent, child, metrics = completion.parent, completion.output, completion.metrics
        self._begin(completion, output)
        detokenizer = completion.detokenizer
        # By its last token, which the text leaves out, unless a grammar was complete without one.
        stopped = output.finish_reason == "stop" and output.stop_reason != StopCause.GRAMMAR_END
        if output.prompt_logprobs is not None and parent.prompt_logprobs is not None:
            start, entries = output.prompt_logprobs
            end = start + len(entries)
            prompt = parent.prompt_token_ids
            parent.prompt_logprobs[start:end] = [
                self._to_dict(entry, prompt[max(place - MOST_PARTS, 0) : place])
                for place, entry in enumerate(entries, start)
            ]
        parent.num_cached_tokens = max(parent.num_cached_tokens, output.num_cached_tokens)
        parent.kv_transfer_params = parent.kv_transfer_params or output.kv_transfer_params
        parent.pooled = output.pooling_output
        metrics.num_preemptions = max(metrics.num_preemptions, output.num_preemptions)
        if output.new_token_ids:
            metrics.first_token_time = metrics.first_token_time or now
            child.token_ids += output.new_token_ids
            self._add_logprobs(completion, output)
            if completion.text_as_it_grows:
                child.text += detokenizer.append(output.new_token_ids, stopped)
        if output.finish_reason is not None:
            child.finish_reason, child.stop_reason = output.finish_reason, output.stop_reason
            if output.finish_reason == "error":
                parent.failure = output.failure or RequestFailure(str(output.stop_reason))
                parent.error = parent.failure.message
        if detokenizer.stop_reason is not None:
            child.finish_reason, child.stop_reason = "stop", detokenizer.stop_reason
            cut(child, detokenizer.num_output_tokens)
        if child.finished():
            metrics.finished_time = now
            if not completion.text_as_it_grows:
                child.text += detokenizer.append(child.token_ids, stopped)
            child.text += detokenizer.flush()

    def _begin(self, completion: _Completion, output: EngineCoreOutput) -> None:
        """Remember what there is before ``output``, or go back there if it was begun before."""
        child = completion.output
        if completion.taking is not output:
            completion.num_tokens_before = len(child.token_ids)
            completion.logprob_before = child.cumulative_logprob
            completion.taking = output
            return
        del child.token_ids[completion.num_tokens_before :]
        child.cumulative_logprob = completion.logprob_before
        if child.logprobs is not None:
            del child.logprobs[completion.num_tokens_before :]
        child.finish_reason = child.stop_reason = None
        completion.detokenizer = self._detokenizer(completion.request)
        child.text = ""
        if completion.text_as_it_grows:
            child.text = completion.detokenizer.append(child.token_ids)

    def _add_logprobs(self, completion: _Completion, output: EngineCoreOutput) -> None:
        child = completion.output
        if child.logprobs is None or output.logprobs is None:
            return
        num_new = len(output.new_token_ids)
        recent = child.token_ids[-num_new - MOST_PARTS :]
        recent = [*completion.parent.prompt_token_ids[-MOST_PARTS:], *recent]
        for index, entry in enumerate(output.logprobs):
            candidates = self._to_dict(entry, recent[: index - num_new])
            child.logprobs.append(candidates)
            assert child.cumulative_logprob is not None
            child.cumulative_logprob += candidates[output.new_token_ids[index]].logprob

    def _to_dict(self, entry: LogprobsEntry, before: Sequence[int]) -> dict[int, Logprob]:
        """Candidates by token id: the sampled (or prompt) token first, then the most likely.

        Args:
            before: the tokens before them; the last :data:`MOST_PARTS` count.
        """
        token_ids, logprobs, rank = entry
        ranks = [rank, *range(1, len(token_ids))]
        name = (lambda *_: None) if self.vocabulary is None else self.vocabulary.name
        candidates: dict[int, Logprob] = {}
        for token_id, logprob, position in zip(token_ids, logprobs, ranks, strict=True):
            candidates.setdefault(token_id, Logprob(logprob, position, name(token_id, before)))
        return candidates

    def abort(self, request_ids: Iterable[str]) -> None:
        """Mark completions as aborted, with the text of all their tokens; stop watching them.

        What waits in the inbox for them, after an interrupt, is dropped.
        """
        request_ids = dict.fromkeys(request_ids)
        for request_id in request_ids:
            completion = self.completions.get(request_id)
            if completion is None:
                continue
            parent, child = completion.parent, completion.output
            detokenizer = self._detokenizer(completion.request)
            child.text = detokenizer.append(child.token_ids) + detokenizer.flush()
            child.finish_reason = "abort"
            completion.metrics.finished_time = time.monotonic()
            parent.finished = all(other.finished() for other in reversed(parent.outputs))
            if parent.finished:
                self.children.pop(parent.request_id, None)
            del self.completions[request_id]
        if self.inbox:
            self.inbox = deque(o for o in self.inbox if o.request_id not in request_ids)

    def forget(self, parent: RequestOutput) -> list[str]:
        """Stop watching the completions of ``parent``, as if they had never been added.

        Returns:
            The ids of their requests.
        """
        if not parent.outputs:
            return []  # it never came that far
        if len(parent.outputs) > 1:
            self.children.pop(parent.request_id, None)
        ids = [i for i, completion in self.completions.items() if completion.parent is parent]
        for request_id in ids:
            del self.completions[request_id]
        return ids


def _container(params: SamplingParams) -> list[Any]:
    """For logprobs of position after position: a list, or what is read like one."""
    if not params.flat_logprobs:
        return []
    from mini_vllm.logprobs import FlatLogprobs

    return cast(list[Any], FlatLogprobs())


def cut(completion: CompletionOutput, num_tokens: int) -> None:
    """End a completion after ``num_tokens``: a step of several tokens may reach past its stop.

    Upstream keeps the surplus token ids; here a text that was guessed ahead ends where it would
    have ended token by token.
    """
    del completion.token_ids[num_tokens:]
    if completion.logprobs is not None:
        del completion.logprobs[num_tokens:]
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        completion.cumulative_logprob = sum(entry[token].logprob for token, entry in pairs)
