"""Outputs for callers, with vLLM's names.

Source: vllm/outputs.py#L22-L200 (CompletionOutput, RequestOutput) @ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mini_vllm.errors import RequestFailure
from mini_vllm.lora.request import LoRARequest
from mini_vllm.pooling_outputs import ClassificationOutput as ClassificationOutput
from mini_vllm.pooling_outputs import ClassificationRequestOutput as ClassificationRequestOutput
from mini_vllm.pooling_outputs import EmbeddingOutput as EmbeddingOutput
from mini_vllm.pooling_outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
from mini_vllm.pooling_outputs import PoolingOutput as PoolingOutput
from mini_vllm.pooling_outputs import PoolingRequestOutput as PoolingRequestOutput
from mini_vllm.pooling_outputs import ScoringOutput as ScoringOutput
from mini_vllm.pooling_outputs import ScoringRequestOutput as ScoringRequestOutput


@dataclass(slots=True)
class Logprob:
    """One candidate for one position."""

    logprob: float
    rank: int | None = None
    """1 for the most likely token of the vocabulary."""
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: which of the ``n`` completions this is.
        text: the output as text; empty without a tokenizer.
        token_ids: the output as tokens.
        cumulative_logprob: sum of the sampled tokens' log probabilities, if they were asked for.
        logprobs: per token, the candidates that were asked for, by token id; with
            ``flat_logprobs`` a :class:`~mini_vllm.logprobs.FlatLogprobs`.
        finish_reason: "stop", "length", "abort" or "error"; None while it runs.
        stop_reason: the stop token or stop string that ended it, or one of `StopCause`:
            "kv_capacity"; "prompt_limit" of a policy that takes no prompt so long;
            "repetition_detected"; "grammar_end" for a complete text that `min_tokens` or
            `ignore_eos` let no stop token follow.
        routed_experts: vLLM's, always None: which experts ran is not told.
        lora_request: vLLM's, always None: the adapter stands in :class:`RequestOutput`.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    routed_experts: Any = None
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def extend(self, later: CompletionOutput) -> None:
        """Append what ``later`` brings, and take over how it ended.

        Text, tokens and logprobs hold what is new, so they are joined; without logprobs on one
        side, those of the other are all there are. ``cumulative_logprob`` is a sum from the first
        token on, in every output, so the later one holds the earlier: it is taken over, too.
        ``later`` stays as it is, and so do its lists.
        """
        # TODO 14.1
        raise NotImplementedError(
            "TODO 14.1: write CompletionOutput.extend in labs/14-serving/outputs.py"
            " (phase 14, 02-mini-build.md#task-1)"
        )


@dataclass(slots=True)
class RequestMetrics:
    """Times of a request, in seconds of one monotonic clock.

    Attributes:
        arrival_time: when the engine got it.
        first_token_time: when its first token was sampled; None without a token.
        finished_time: when it ended.
        num_preemptions: how often it was preempted.
    """

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0

    @property
    def first_token_ts(self) -> float | None:
        """vLLM's name of ``first_token_time``."""
        return self.first_token_time

    @property
    def last_token_ts(self) -> float | None:
        """vLLM's name of ``finished_time``: a request ends with its last token."""
        return self.finished_time

    @property
    def first_token_latency(self) -> float | None:
        """vLLM's name of :attr:`time_to_first_token`."""
        return self.time_to_first_token

    @property
    def time_to_first_token(self) -> float | None:
        """TTFT in seconds."""
        if self.first_token_time is None:
            return None
        return self.first_token_time - self.arrival_time

    def time_per_output_token(self, num_output_tokens: int) -> float | None:
        """TPOT: mean seconds per token after the first; None for fewer than two tokens."""
        if self.first_token_time is None or self.finished_time is None or num_output_tokens < 2:
            return None
        return (self.finished_time - self.first_token_time) / (num_output_tokens - 1)


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its completions; arguments by position are vLLM's.

    Attributes:
        request_id: chosen by the engine.
        prompt: the prompt as text, if it came as text.
        prompt_token_ids: the prompt as tokens.
        prompt_logprobs: per prompt token the candidates by token id; None for the first.
        outputs: the completions. A whole answer has all of them in order of their index; what comes
            of a stream has those with news, in the order in which they came.
        finished: whether all of them have ended.
        num_cached_tokens: prompt tokens whose KV the prefix cache, or a KV connector, supplied.
        error: why the request failed; None if it did not. The other requests of a batch are
            not affected by a failed one.
        failure: the same, and whose fault it is.
        encoder_prompt, encoder_prompt_token_ids: vLLM's, always None: no model here has an encoder
            of texts.
        metrics: the times of the first completion.
        lora_request: the adapter that was used; None: the base.
        kv_transfer_params: where another engine finds the prompt's KV, if it was to be held.
        pooled: what a pooling model made of the prompt, in numpy; callers get it as a
            :class:`~mini_vllm.pooling_outputs.PoolingRequestOutput`.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestMetrics | None = None
    lora_request: LoRARequest | None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    error: str | None = None
    failure: RequestFailure | None = None
    pooled: Any = None

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        """Merge a later output of the same request into this one, which was not read yet.

        Completions are matched by their ``index``, not by their place: with ``n > 1`` a step may
        bring any of them. One that is not here yet is appended, whatever its index.

        Of the whole: what was finished stays finished, ``num_cached_tokens`` does not shrink, and
        of ``error``, ``failure``, ``kv_transfer_params`` and ``prompt_logprobs`` the first that
        was said stays.

        Args:
            next_output: what came after this.
            aggregate: whether outputs hold only what is new (then texts, tokens and logprobs are
                joined by :meth:`CompletionOutput.extend`) or all there is so far (then the later
                one replaces the earlier).

        Source: vllm/outputs.py#L145-L173 (RequestOutput.add) @ v0.22.1
        """
        # TODO 14.1
        raise NotImplementedError(
            "TODO 14.1: write RequestOutput.add in labs/14-serving/outputs.py"
            " (phase 14, 02-mini-build.md#task-1)"
        )
