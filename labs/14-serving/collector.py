"""Between the engine, which must never wait, and a reader, which may be slow: one slot a request.

::

    step 1   step 2   step 3            the reader comes back here
      "On"    "ce"     " upon"  put ─►  [ "Once upon" ]  ─► get

What has not been read yet grows in place. So the memory that a slow reader costs is one output,
however slow it is, and the engine never blocks.

Source: vllm/v1/engine/output_processor.py#L45-L106 (RequestOutputCollector) @ v0.22.1
"""

from __future__ import annotations

import asyncio

from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import RequestOutputKind


class RequestOutputCollector:
    """The slot of one request: outputs go in, merged outputs come out.

    Args:
        output_kind: whether outputs hold what is new (DELTA) or all there is.
    """

    def __init__(self, output_kind: RequestOutputKind) -> None:
        self.aggregate = output_kind == RequestOutputKind.DELTA
        self.output: RequestOutput | Exception | None = None
        self.ready = asyncio.Event()

    def put(self, output: RequestOutput | Exception) -> None:
        """Hand in an output, or the error that ends the request. Never waits.

        An empty slot takes it. An unread output is merged with it (:meth:`RequestOutput.add`).
        An error takes the slot whatever is in it, and nothing that comes later replaces it.

        Source: vllm/v1/engine/output_processor.py#L62-L76 (RequestOutputCollector.put) @ v0.22.1
        """
        # TODO 14.2
        raise NotImplementedError(
            "TODO 14.2: write RequestOutputCollector.put in labs/14-serving/collector.py"
            " (phase 14, 02-mini-build.md#task-2)"
        )

    async def get(self) -> RequestOutput:
        """Wait for an output and take it; raises the error if one was put.

        Source: vllm/v1/engine/output_processor.py#L78-L86 (RequestOutputCollector.get) @ v0.22.1
        """
        # TODO 14.2
        raise NotImplementedError(
            "TODO 14.2: write RequestOutputCollector.get in labs/14-serving/collector.py"
            " (phase 14, 02-mini-build.md#task-2)"
        )

    def get_nowait(self) -> RequestOutput | None:
        """What is in the slot, which is empty afterwards; raises the error if one was put.

        Source: vllm/v1/engine/output_processor.py#L88-L96 (RequestOutputCollector.get_nowait)
        @ v0.22.1
        """
        # TODO 14.2
        raise NotImplementedError(
            "TODO 14.2: write RequestOutputCollector.get_nowait in labs/14-serving/collector.py"
            " (phase 14, 02-mini-build.md#task-2)"
        )


class OutputCutter:
    """Makes a reader's outputs from the one output that grows with every step.

    Args:
        live: the output that grows.
        request_id: what its caller calls it.
        kind: what to cut; see :class:`RequestOutputKind`.
        stream_interval: tokens between two outputs of a completion; its first token and its end
            come at once.

    Source: vllm/v1/engine/output_processor.py#L272-L345 (RequestState.make_request_output)
    @ v0.22.1
    """

    def __init__(
        self,
        live: RequestOutput,
        request_id: str,
        kind: RequestOutputKind,
        stream_interval: int = 1,
    ) -> None:
        self.live, self.request_id, self.kind = live, request_id, kind
        self.stream_interval = stream_interval
        self._sent: list[tuple[int, int, bool]] = []
        """By completion: how many characters and tokens were handed over, and whether its
        end was."""

    def expect(self, num_completions: int) -> None:
        """Say how many completions there are, before the first output."""
        self._sent = [(0, 0, False)] * num_completions

    def cut(self) -> RequestOutput | None:
        """What there is to hand over now; None if there is nothing."""
        live = self.live
        if self.kind == RequestOutputKind.FINAL_ONLY:
            return self._wrap(live.outputs) if live.finished else None
        completions = []
        for place, child in enumerate(live.outputs):
            completion = self._cut_completion(place, child)
            if completion is not None:
                completions.append(completion)
        return self._wrap(completions) if completions else None

    def _cut_completion(self, place: int, child: CompletionOutput) -> CompletionOutput | None:
        num_chars, num_tokens, ended = self._sent[place]
        num_new = len(child.token_ids) - num_tokens
        is_due = num_new > 0 and (num_tokens == 0 or num_new >= self.stream_interval)
        has_ended = child.finish_reason is not None
        if ended or not (is_due or has_ended):
            return None
        self._sent[place] = (len(child.text), len(child.token_ids), has_ended)
        if self.kind == RequestOutputKind.CUMULATIVE:
            num_chars, num_tokens = 0, 0
        return CompletionOutput(
            child.index,
            child.text[num_chars:],
            child.token_ids[num_tokens:],
            child.cumulative_logprob,
            None if child.logprobs is None else child.logprobs[num_tokens:],
            child.finish_reason,
            child.stop_reason,
        )

    def _wrap(self, completions: list[CompletionOutput]) -> RequestOutput:
        live = self.live
        return RequestOutput(
            self.request_id,
            live.prompt,
            live.prompt_token_ids,
            outputs=completions,
            finished=live.finished,
            prompt_logprobs=live.prompt_logprobs,
            num_cached_tokens=live.num_cached_tokens,
            error=live.error,
            metrics=live.metrics,
            lora_request=live.lora_request,
            kv_transfer_params=live.kv_transfer_params,
            pooled=live.pooled,
            failure=live.failure,
        )
