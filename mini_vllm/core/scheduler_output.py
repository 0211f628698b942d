"""What the scheduler and the worker send each other in each step, as plain data.

A request is described in full once, when it is new or comes back after preemption. From then
on both sides keep their own copy and exchange only what has changed.

Source: vllm/v1/core/sched/output.py#L180-L255 (SchedulerOutput) @ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mini_vllm.errors import RequestFailure
from mini_vllm.mm_features import MultiModalFeatureSpec
from mini_vllm.pooling_params import PoolingParams
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams

PADDING_DRAFT = -1
"""Stands where a draft could be, or was taken out; nothing is known of what follows it."""


@dataclass(frozen=True, slots=True)
class NewRequestData:
    """Everything the worker needs to know of a request it has never seen.

    Source: vllm/v1/core/sched/output.py#L30-L108 (NewRequestData) @ v0.22.1
    """

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_id: int | None
    block_ids: list[int]
    num_computed_tokens: int
    """Tokens that the prefix cache supplied."""
    lora_name: str | None = None
    mm_features: list[MultiModalFeatureSpec] = field(default_factory=list)
    """Images of the prompt, in order of their place."""
    pooling_params: PoolingParams | None = None

    @classmethod
    def from_request(cls, request: Request, block_ids: list[int]) -> NewRequestData:
        return cls(
            req_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            sampling_params=request.sampling_params,
            eos_token_id=request.eos_token_id,
            block_ids=block_ids,
            num_computed_tokens=request.num_computed_tokens,
            lora_name=request.lora_name,
            mm_features=request.mm_features,
            pooling_params=request.pooling_params,
        )


@dataclass(slots=True)
class CachedRequestData:
    """What has changed for requests that the worker has already. The lists run in parallel.

    Source: vllm/v1/core/sched/output.py#L111-L177 (CachedRequestData) @ v0.22.1
    """

    req_ids: list[str]
    num_computed_tokens: list[int]
    """Before this step."""
    resumed_req_ids: set[str]
    """Those that come back after preemption: their ``new_block_ids`` replace the old table."""
    all_token_ids: dict[str, list[int]]
    """Prompt and output so far, for resumed requests only."""


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step.

    Source: vllm/v1/core/sched/output.py#L181-L247 (SchedulerOutput) @ v0.22.1
    """

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    """Tokens to compute per request, drafts included; each at least 1."""
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]
    """Draft tokens to verify, for requests that have any."""
    new_block_ids: dict[str, list[int]]
    """Blocks by request: the whole table of a new or resumed one, only the additional blocks
    of a running one. Requests that got none are absent."""
    preempted_req_ids: list[str]
    """In the order in which they were preempted."""
    finished_req_ids: set[str]
    """Requests that finished since the last step: the worker may forget them."""

    blocks_to_swap_out: list[tuple[int, int]] = field(default_factory=list)
    """(device block, host block) to copy before the forward pass; V1 never swaps."""
    blocks_to_swap_in: list[tuple[int, int]] = field(default_factory=list)
    """(host block, device block)."""
    blocks_to_copy: list[tuple[int, int]] = field(default_factory=list)
    """(source, destination) on the device, for copy-on-write."""
    group_block_ids: dict[str, list[list[int]]] = field(default_factory=dict)
    """As ``new_block_ids``, of the groups 1 and up of a model whose layers remember differently.
    The null block, 0, stands where nothing is read any more."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Batch inputs of scheduler extensions, by name."""
    new_token_ids: dict[str, list[int]] = field(default_factory=dict)
    """With pipeline parallelism: tokens that a rank which does not sample has not seen yet."""
    scheduled_encoder_inputs: dict[str, list[int]] = field(default_factory=dict)
    """Indices of the images to encode in this step, by request."""
    free_encoder_mm_hashes: list[str] = field(default_factory=list)
    """Content hashes of images whose encodings the worker may forget."""
    kv_connector_metadata: Any = None
    """What the scheduler's half of a KV connector sends to the worker's half."""
    rewound: dict[str, int] = field(default_factory=dict)
    """Tokens, prompt and output, of requests that computed over KV that had not arrived: the worker
    forgets what it sampled for them."""

    def num_computed_tokens(self, request_id: str) -> int:
        """Tokens of a scheduled request that were computed before this step."""
        for new in self.scheduled_new_reqs:
            if new.req_id == request_id:
                return new.num_computed_tokens
        cached = self.scheduled_cached_reqs
        return cached.num_computed_tokens[cached.req_ids.index(request_id)]

    def without_padding(self) -> SchedulerOutput:
        """The plan as the worker computes it: without drafts that only fill up rows."""
        padded = [i for i, d in self.scheduled_spec_decode_tokens.items() if d[0] == PADDING_DRAFT]
        if not padded:
            return self
        drafts, num_tokens = (
            dict(self.scheduled_spec_decode_tokens),
            dict(self.num_scheduled_tokens),
        )
        for request_id in padded:
            num_tokens[request_id] -= len(drafts.pop(request_id))
        return replace(
            self,
            num_scheduled_tokens=num_tokens,
            total_num_scheduled_tokens=sum(num_tokens.values()),
            scheduled_spec_decode_tokens=drafts,
        )


@dataclass(slots=True)
class GrammarOutput:
    """Which tokens the grammars of a step let through, one bit a token.

    Made after the forward pass was started, so that the CPU works while the device does.

    Source: vllm/v1/core/sched/output.py#L259-L263 (GrammarOutput) @ v0.22.1
    """

    rows: dict[str, tuple[int, int]]
    """Request to (first row, number of rows); a request with k drafts has k + 1 rows."""
    words: bytes
    """``[rows, ceil(V / 32)]`` int32, little-endian; bit t % 32 of word t // 32 is token t."""


class StopCause:
    """Why a request has ended, where its finish reason does not say it all and no token did it."""

    KV_CAPACITY = "kv_capacity"
    """It outgrew the whole KV cache."""
    PROMPT_LIMIT = "prompt_limit"
    """Its prompt is longer than the policy ever takes in."""
    GRAMMAR_END = "grammar_end"
    """Its grammar was complete, and no stop token was allowed to follow."""
    REPETITION = "repetition_detected"
    """Its output ended in copies of one pattern."""


class LogprobsEntry(NamedTuple):
    """The candidates for one position: the sampled (or prompt) token, then the most likely."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Of the first token."""

    def top(self, num_logprobs: int) -> LogprobsEntry:
        """The same with at most ``num_logprobs`` of the most likely tokens."""
        end = num_logprobs + 1
        return LogprobsEntry(self.token_ids[:end], self.logprobs[:end], self.rank)


class PromptLogprobs(NamedTuple):
    """Entries for prompt tokens that follow one another.

    The same may come twice: from another completion of the prompt, or after a preemption.
    """

    start: int
    """Position of the first in the prompt."""
    entries: list[LogprobsEntry]


@dataclass(slots=True)
class KVConnectorOutput:
    """What the worker's half of a KV connector reports after a step.

    Source: vllm/v1/outputs.py#L195-L219 (KVConnectorOutput) @ v0.22.1
    """

    finished_sending: set[str] | None = None
    """Ended requests whose blocks are not read any more."""
    finished_recving: set[str] | None = None
    """Requests whose blocks are not written any more: their KV has arrived, or will not."""
    invalid_block_ids: set[int] = field(default_factory=set)
    """Blocks whose KV did not arrive."""
    kv_connector_worker_meta: Any = None
    """What else this connector's worker half reports to its scheduler half."""

    def is_empty(self) -> bool:
        return not (
            self.finished_sending
            or self.finished_recving
            or self.invalid_block_ids
            or self.kv_connector_worker_meta
        )


@dataclass(slots=True)
class ExpertLoad:
    """How evenly a mixture's experts are used: of the last steps, layer by layer."""

    layers: list[int]
    """Those that have experts; the lists below say something of each."""
    busiest: list[int]
    """The expert with most tokens."""
    ratios: list[float]
    """Its tokens, as a multiple of what an expert has on average; 0 before the first token."""
    num_idle: list[int]
    """Experts without a token."""
    rank_tokens: list[int]
    """Since the start, by rank: rows that its experts have multiplied."""
    num_rearrangements: int = 0
    """Since the start: how often experts were placed anew."""


@dataclass(slots=True)
class ModelRunnerOutput:
    """What one forward pass brought. Plain data: it may come from another process.

    Source: vllm/v1/outputs.py#L230-L280 (ModelRunnerOutput) @ v0.22.1
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    """New tokens; requests whose prompt is not fully computed are absent."""
    logprobs: dict[str, list[LogprobsEntry]] = field(default_factory=dict)
    """One entry per new token, where asked for."""
    prompt_logprobs: dict[str, PromptLogprobs] = field(default_factory=dict)
    """The same for the prompt tokens after those computed in this step."""
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)
    """What a proposer guesses will come next."""
    failed: dict[str, RequestFailure | str] = field(default_factory=dict)
    """Requests that got no token because something went wrong, with the reason."""
    kv_connector_output: KVConnectorOutput | None = None
    """What the worker's half of a KV connector reports to the scheduler's half."""
    pooler_output: dict[str, Any] = field(default_factory=dict)
    """Of a pooling model, by request whose prompt is computed: what is made of it, in numpy,
    ``[D]`` or ``[tokens, D]`` float32. The request ends with it."""
    expert_load: ExpertLoad | None = None
    """With EPLB."""

    def forget(self, request_id: str) -> None:
        """Drop all results of a request that has ended."""
        parts: tuple[dict[str, Any], ...] = (
            self.sampled_token_ids, self.logprobs, self.prompt_logprobs, self.draft_token_ids,
            self.failed, self.pooler_output,
        )  # fmt: skip
        for part in parts:
            part.pop(request_id, None)


@dataclass(slots=True)
class RequestTimes:
    """When things happened to a request inside the engine, in seconds of one monotonic clock.

    Source: vllm/v1/metrics/stats.py#L202-L220 (RequestStateStats) @ v0.22.1
    """

    queued: float
    """It entered the scheduler."""
    scheduled: float | None = None
    """A step computed tokens of it for the first time."""
    first_token: float | None = None


@dataclass(slots=True)
class SchedulerStats:
    """Gauges after a step.

    Source: vllm/v1/metrics/stats.py#L170-L198 (SchedulerStats) @ v0.22.1
    """

    num_running_reqs: int
    num_waiting_reqs: int
    kv_cache_usage: float
    """Share of the pool's blocks that requests hold."""
    prefix_cache_queries: int
    """Tokens looked up in the prefix cache since the counters were reset, and those found."""
    prefix_cache_hits: int
    drafts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of this step, by request: drafts that were verified, and how many of them were accepted. A
    stop rule may have cut accepted ones from the output."""
    num_drafts: int = 0
    """Drafts that were verified since the start, their tokens, and those that were accepted."""
    num_draft_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    running_lora_adapters: dict[str, int] = field(default_factory=dict)
    """Requests by the name of their adapter: those that run, and those that wait."""
    waiting_lora_adapters: dict[str, int] = field(default_factory=dict)
    engine: int = 0
    """Number of the engine that reports this, if several run side by side."""
    num_skipped_waiting_reqs: int = 0
    """Waiting requests that wait for something other than a place in the batch: a grammar, KV from
    elsewhere, a slot for their adapter."""
    external_cache_queries: int = 0
    """Tokens that a KV connector was asked for since the start, and those that it had."""
    external_cache_hits: int = 0
    expert_load: ExpertLoad | None = None
    """With EPLB, after the first step."""


@dataclass(slots=True)
class EngineCoreOutput:
    """The result of one step for one request. It has all that a front end needs: that may be in
    another process, and does not have the :class:`~mini_vllm.request.Request`.

    Source: vllm/v1/engine/__init__.py#L168-L198 (EngineCoreOutput) @ v0.22.1
    """

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    """ "stop", "length", "abort" or "error" once the request has finished."""
    stop_reason: int | str | None = None
    """The stop token that ended it, or a :class:`StopCause`."""
    logprobs: list[LogprobsEntry] | None = None
    """One entry per new token; None if no request asked."""
    prompt_logprobs: PromptLogprobs | None = None
    """Entries for prompt tokens computed in this step."""
    num_cached_tokens: int = 0
    """Prompt tokens whose KV the prefix cache supplied at the first admission."""
    num_preemptions: int = 0
    times: RequestTimes | None = None
    """With the first token, and when the request has finished."""
    kv_transfer_params: dict[str, Any] | None = None
    """With the end of a request: where others find its KV."""
    num_external_tokens: int = 0
    """Of ``num_cached_tokens``, those that a KV connector supplied."""
    pooling_output: Any = None
    """With the end of a request to a pooling model: its entry of
    :attr:`ModelRunnerOutput.pooler_output`."""
    failure: RequestFailure | None = None
    """With the finish reason "error": what went wrong, and which side is at fault."""

    @classmethod
    def failed(cls, request_id: str, reason: RequestFailure | Exception | str) -> EngineCoreOutput:
        """The end of a request because something went wrong."""
        return cls(request_id, [], "error", failure=RequestFailure.of(reason))

    @classmethod
    def last(
        cls, request: Request, token_ids: list[int], status: RequestStatus
    ) -> EngineCoreOutput:
        """What a request that has just finished hands over, with the reason why it has."""
        return cls(
            request.request_id,
            token_ids,
            RequestStatus.get_finished_reason(status),
            request.stop_reason,
            num_cached_tokens=request.num_cached_tokens,
            num_external_tokens=request.num_external_tokens,
            num_preemptions=request.num_preemptions,
            failure=request.failure,
        )


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
