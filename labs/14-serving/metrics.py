"""Metrics for the operators of a service: counts and times of requests, and gauges of the engine.

Two clocks run here, and no difference is ever taken between them::

    front end   arrival ────────────────────────────► first output ─────────► last output
                   └──────── time to first token ─────────┘                        │
                   └──────────────────── end-to-end latency ───────────────────────┘
    engine             queued ──► scheduled ──► first token ──► token ──► last token
                         └─ queue ─┘ └─ prefill ──┘ └─── decode, inter-token latency ─┘

Source: vllm/v1/metrics/stats.py#L319-L480 (IterationStats) @ v0.22.1
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mini_vllm.config import EngineConfig
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import EngineCoreOutput, RequestTimes, SchedulerStats
from mini_vllm.observability.feature_metrics import (
    Families,
    LoRAProm,
    SleepProm,
    Totals,
    make_features,
)
from mini_vllm.observability.several import together

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
WAITING_REASONS = ("capacity", "deferred")
PROMPT_TOKEN_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


@dataclass(slots=True)
class RequestStats:
    """What is remembered of a request until it ends. ``arrival`` is on the front end's clock,
    ``times`` and ``last_token`` are on the engine's."""

    arrival: float
    num_prompt_tokens: int
    n: int
    max_tokens: int | None
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    times: RequestTimes | None = None
    first_token: float = 0.0
    last_token: float = 0.0
    num_cached_tokens: int = 0
    """Of the prompt, when it was first scheduled."""
    siblings: list[RequestStats] = field(default_factory=list, repr=False, compare=False)
    """The completions of its prompt, itself included."""
    has_ended: bool = False
    sent: EngineCoreRequest | None = field(default=None, repr=False, compare=False)

    @property
    def engine(self) -> int:
        """Which of several engines side by side has it."""
        return (self.sent.data_parallel_rank if self.sent is not None else None) or 0


@dataclass(slots=True)
class FinishedStats:
    """One ended request; times in seconds.

    Source: vllm/v1/metrics/stats.py#L223-L238 (FinishedRequestStats) @ v0.22.1
    """

    finish_reason: str
    request: RequestStats
    e2e_latency: float
    queued_time: float | None = None
    prefill_time: float | None = None
    decode_time: float | None = None
    inference_time: float | None = None
    """None, like the three before, for a request that never got a token."""

    @property
    def mean_time_per_output_token(self) -> float | None:
        """Decode time per token after the first; None if there is no such token."""
        num_gaps = self.request.num_generation_tokens - 1
        if num_gaps < 1 or self.decode_time is None:
            return None
        return self.decode_time / num_gaps


@dataclass(slots=True)
class IterationStats:
    """What the outputs of one step add up to."""

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_preempted: int = 0
    ttfts: list[float] = field(default_factory=list)
    itls: list[float] = field(default_factory=list)
    finished: list[FinishedStats] = field(default_factory=list)
    num_cached_tokens: int = 0
    """Of ``num_prompt_tokens``."""
    num_external_tokens: int = 0
    """Of ``num_cached_tokens``: what a KV connector supplied."""
    finished_prompts: list[list[RequestStats]] = field(default_factory=list)
    """Of prompts whose last completion has ended: all of them."""

    def update_from_output(
        self, output: EngineCoreOutput, request: RequestStats, timestamp: float, now: float
    ) -> None:
        """Count one output of a request.

        The first that holds tokens brings a time to first token, from ``request.arrival`` to
        ``now``, and the prompt's tokens; each later one brings an inter-token latency, from
        ``request.last_token`` to ``timestamp``, however many tokens it holds. A preemption in
        between changes nothing of that. Outputs without tokens bring neither. What the engine
        says of preemptions is a count so far. The largest of a request is remembered, and how far
        a later one exceeds it is added to ``num_preempted``: 2, 0, 1, 3 add 2, 0, 0, 1.

        Args:
            output: of ``request``, which is brought up to date, also without tokens:
                ``num_preemptions``, ``times`` if the output has any, the number of tokens, and as
                ``first_token`` and ``last_token`` the ``timestamp`` of the outputs that held them.
            timestamp: when the step ended, on the engine's clock.
            now: the front end's clock.

        Source: vllm/v1/metrics/stats.py#L349-L397 (IterationStats.update_from_output) @ v0.22.1
        """
        # TODO 14.10
        raise NotImplementedError(
            "TODO 14.10: write IterationStats.update_from_output in labs/14-serving/metrics.py"
            " (phase 14, 02-mini-build.md#task-10)"
        )

    def update_from_finished(self, request: RequestStats, finish_reason: str, now: float) -> None:
        """Count a request that has ended.

        Queue time runs from ``queued`` to ``scheduled``, prefill from there to
        ``request.first_token``, decode from there to ``request.last_token``; inference is prefill
        and decode together. A request that never got a token, or of which the engine has not said
        when it was scheduled, has none of them.

        Source: vllm/v1/metrics/stats.py#L426-L480 (IterationStats.update_from_finished_request)
        @ v0.22.1
        """
        # TODO 14.10
        raise NotImplementedError(
            "TODO 14.10: write IterationStats.update_from_finished in labs/14-serving/metrics.py"
            " (phase 14, 02-mini-build.md#task-10)"
        )


class Recorder(Protocol):
    """Where the figures go."""

    def record(self, stats: SchedulerStats | None, iteration: IterationStats) -> None: ...


class ServiceStats:
    """Follows the requests of a front end, and hands each step's figures to recorders."""

    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self.requests: dict[str, RequestStats] = {}
        self.latest: SchedulerStats | None = None
        """Gauges of the engine after its last step."""
        self._iteration = IterationStats()

    def request_added(
        self, request: EngineCoreRequest, n: int, siblings: list[RequestStats] | None = None
    ) -> None:
        """``siblings``: a list that the ``n`` completions of one prompt share."""
        added = RequestStats(
            request.arrival_time,
            len(request.prompt_token_ids),
            n,
            request.sampling_params.max_tokens if request.pooling_params is None else None,
            siblings=[] if siblings is None else siblings,
            sent=request,
        )
        added.siblings.append(added)
        self.requests[request.request_id] = added

    def output_arrived(self, output: EngineCoreOutput, timestamp: float) -> None:
        request = self.requests.get(output.request_id)
        if request is None:
            return  # ended here while the step ran
        now = time.monotonic()
        if output.new_token_ids and not request.num_generation_tokens:
            request.num_cached_tokens = output.num_cached_tokens
            self._iteration.num_cached_tokens += output.num_cached_tokens
            self._iteration.num_external_tokens += output.num_external_tokens
        if output.pooling_output is not None:  # there is no first token to count the prompt with
            request.num_cached_tokens = output.num_cached_tokens
            self._iteration.num_cached_tokens += output.num_cached_tokens
            self._iteration.num_prompt_tokens += request.num_prompt_tokens
        self._iteration.update_from_output(output, request, timestamp, now)
        if output.finish_reason is not None:
            self._finish([output.request_id], output.finish_reason)

    def requests_stopped(self, request_ids: Iterable[str]) -> None:
        """A stop string has ended them: only the front end knows."""
        self._finish(request_ids, "stop")

    def requests_aborted(self, request_ids: Iterable[str]) -> None:
        self._finish(request_ids, "abort")

    def _finish(self, request_ids: Iterable[str], reason: str) -> None:
        for request_id in request_ids:
            request = self.requests.pop(request_id, None)
            if request is None:
                continue
            self._iteration.update_from_finished(request, reason, time.monotonic())
            request.has_ended = True
            if len(request.siblings) == request.n and all(
                r.has_ended
                for r in reversed(request.siblings)  # the last usually ends last
            ):
                self._iteration.finished_prompts.append(request.siblings)

    def step_done(self, stats: SchedulerStats | None) -> None:
        """All outputs of a step have arrived: hand the figures on, and begin anew."""
        iteration, self._iteration = self._iteration, IterationStats()
        self.latest = stats or self.latest
        for recorder in self.recorders:
            recorder.record(stats, iteration)

    def sleep_changed(self, is_asleep: bool) -> None:
        for recorder in self.recorders:
            if isinstance(recorder, PrometheusRecorder):
                recorder.sleep_changed(is_asleep)


# ---------------------------------------------------------------------- histograms


def build_1_2_5_buckets(max_value: int) -> list[int]:
    """Upper bounds 1, 2, 5, 10, 20, 50, ... that do not exceed ``max_value``.

    Source: vllm/v1/metrics/loggers.py#L1259-L1265 (build_1_2_5_buckets) @ v0.22.1
    """
    # TODO 14.11
    raise NotImplementedError(
        "TODO 14.11: write build_1_2_5_buckets in labs/14-serving/metrics.py"
        " (phase 14, 02-mini-build.md#task-11)"
    )


def percentile_from_buckets(
    bounds: Sequence[float], cumulative: Sequence[float], quantile: float
) -> float | None:
    """What a histogram can say of a quantile: a point inside the right bucket, on a line.

    Of ten observations the quantile 0.6 is the sixth: its rank is 0.6 * 10. It lies in the first
    bucket whose count reaches the rank, and as far inside as the rank is between the counts there::

        bound        0        1        2        4       inf
        cumulative   0        4        8        8       10
                     └── 4 ───┴── 4 ───┴── 0 ───┴── 2 ──┘
        rank 6                     ▲ 1 + (2 - 1) * (6 - 4) / (8 - 4) = 1.5

    The first bucket begins at 0. The quantile 0 of a histogram whose first bucket is empty is in
    that bucket, and there is no line in it: it is the bucket's lower bound. This is PromQL's
    ``histogram_quantile``. The error is at most the bucket's width.

    Args:
        bounds: ``[N]`` ascending upper bounds, the last may be infinite.
        cumulative: ``[N]``, observations up to each bound; the last is the number of all.
        quantile: between 0 and 1.

    Returns:
        None without observations. In the infinite bucket, its lower bound: nothing more is known.
    """
    # TODO 14.11
    raise NotImplementedError(
        "TODO 14.11: write percentile_from_buckets in labs/14-serving/metrics.py"
        " (phase 14, 02-mini-build.md#task-11)"
    )


_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
         10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0)  # fmt: skip
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
            240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class EngineSeries:
    """What is counted of one engine, under vLLM's names.

    Args:
        labels: ``model_name`` and ``engine``.
        max_model_len: ends the buckets of token counts.
        num_spec_tokens: drafts a step; 0: without speculation.
        has_connector: whether KV comes from elsewhere, too.
        num_expert_ranks: that share experts and move them; 0: none do.
    """

    def __init__(
        self,
        families: Families,
        labels: dict[str, str],
        max_model_len: int,
        num_spec_tokens: int,
        has_connector: bool = False,
        num_expert_ranks: int = 0,
    ) -> None:
        import prometheus_client as prometheus

        def gauge(name: str, about: str) -> Any:
            return families.series(prometheus.Gauge, name, about, labels)

        def counter(name: str, about: str) -> Any:
            return families.counter(name, about, labels)

        def histogram(name: str, about: str, buckets: Sequence[float]) -> Any:
            return families.series(prometheus.Histogram, name, about, labels, buckets=buckets)

        tokens = build_1_2_5_buckets(max_model_len)
        self.running = gauge("num_requests_running", "Requests that hold a place in the batch.")
        self.waiting = gauge("num_requests_waiting", "Requests that wait for one.")
        name = "num_requests_waiting_by_reason"
        about = "Those for a place (capacity), and those for something else (deferred)."
        self.waiting_by_reason = {
            reason: families.series(prometheus.Gauge, name, about, {**labels, "reason": reason})
            for reason in WAITING_REASONS
        }
        self.kv_usage = gauge("kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.")
        self.prefix_cache = Totals(
            [
                counter("prefix_cache_queries", "Tokens looked up in the prefix cache."),
                counter("prefix_cache_hits", "Tokens found in the prefix cache."),
            ],
            lambda stats: [stats.prefix_cache_queries, stats.prefix_cache_hits],
        )
        self.preemptions = counter("num_preemptions", "Requests that lost their blocks.")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens processed.")
        self.cached = counter("prompt_tokens_cached", "Those whose KV was there already.")
        about = "Prompt tokens that were computed, found in the cache, or came by a connector."
        self.by_source = {
            source: families.counter("prompt_tokens_by_source", about, labels, source=source)
            for source in PROMPT_TOKEN_SOURCES
        }
        self.generation_tokens = counter("generation_tokens", "Tokens generated.")
        # All of them from the start, at 0: a rate needs a value before the first event.
        about = "Requests that have ended."
        self.success = {
            reason: families.counter("request_success", about, labels, finished_reason=reason)
            for reason in FINISH_REASONS
        }
        self.request_prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", tokens)
        self.request_generation = histogram(
            "request_generation_tokens", "Tokens generated for a request.", tokens
        )
        self.request_computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens without cached ones.", tokens
        )
        self.request_most = histogram(
            "request_max_num_generation_tokens", "Tokens of the longest completion.", tokens
        )
        self.iteration = histogram("iteration_tokens_total", "Tokens of a step.", _ITERATION)
        self.params_n = histogram("request_params_n", "Completions asked for.", (1, 2, 5, 10, 20))
        self.params_max_tokens = histogram("request_params_max_tokens", "max_tokens.", tokens)
        self.ttft = histogram("time_to_first_token_seconds", "From arrival to a token.", _TTFT)
        self.itl = histogram("inter_token_latency_seconds", "Between two outputs.", _ITL)
        self.tpot = histogram(
            "request_time_per_output_token_seconds", "Decode time per token of a request.", _ITL
        )
        self.e2e = histogram("e2e_request_latency_seconds", "From arrival to the end.", _LATENCY)
        self.phases = {
            "queued_time": histogram("request_queue_time_seconds", "Waiting.", _LATENCY),
            "prefill_time": histogram(
                "request_prefill_time_seconds", "From the first step to a token.", _LATENCY
            ),
            "decode_time": histogram(
                "request_decode_time_seconds", "From the first token to the last.", _LATENCY
            ),
            "inference_time": histogram(
                "request_inference_time_seconds", "From the first step to the end.", _LATENCY
            ),
        }
        self.sleep = SleepProm(families, labels)
        self.features = make_features(
            families, labels, num_spec_tokens, has_connector, num_expert_ranks
        )

    def record(self, stats: SchedulerStats | None, iteration: IterationStats) -> None:
        """Add one step's figures."""
        if stats is not None:
            self.running.set(stats.num_running_reqs)
            self.waiting.set(stats.num_waiting_reqs)
            deferred = stats.num_skipped_waiting_reqs
            by_reason = (stats.num_waiting_reqs - deferred, deferred)
            for reason, number in zip(WAITING_REASONS, by_reason, strict=True):
                self.waiting_by_reason[reason].set(number)
            self.kv_usage.set(stats.kv_cache_usage)
            self.prefix_cache.record(stats)
            for feature in self.features:
                feature.record(stats)
        self.preemptions.inc(iteration.num_preempted)
        self.prompt_tokens.inc(iteration.num_prompt_tokens)
        self.cached.inc(iteration.num_cached_tokens)
        computed = iteration.num_prompt_tokens - iteration.num_cached_tokens
        local = iteration.num_cached_tokens - iteration.num_external_tokens
        counts = (computed, local, iteration.num_external_tokens)
        for source, number in zip(PROMPT_TOKEN_SOURCES, counts, strict=True):
            self.by_source[source].inc(number)
        self.generation_tokens.inc(iteration.num_generation_tokens)
        num_tokens = iteration.num_prompt_tokens + iteration.num_generation_tokens
        if num_tokens:
            self.iteration.observe(num_tokens)
        for seconds in iteration.ttfts:
            self.ttft.observe(seconds)
        for seconds in iteration.itls:
            self.itl.observe(seconds)

    def count_prompt(self, completions: Sequence[RequestStats]) -> None:
        """All completions of a prompt have ended."""
        self.params_n.observe(len(completions))
        self.request_most.observe(max(one.num_generation_tokens for one in completions))

    def count_finished(self, done: FinishedStats) -> None:
        request = done.request
        self.success[done.finish_reason].inc()
        self.e2e.observe(done.e2e_latency)
        self.request_prompt.observe(request.num_prompt_tokens)
        self.request_generation.observe(request.num_generation_tokens)
        self.request_computed.observe(request.num_prompt_tokens - request.num_cached_tokens)
        if request.max_tokens is not None:
            self.params_max_tokens.observe(request.max_tokens)
        for name, histogram in self.phases.items():
            if (seconds := getattr(done, name)) is not None:
                histogram.observe(seconds)
        tpot = done.mean_time_per_output_token
        if tpot is not None:
            self.tpot.observe(tpot)


class PrometheusRecorder:
    """Writes the figures into a registry of ``prometheus_client``, by engine.

    Args:
        model_name: value of the label; upstream's dashboards select by it.
        max_model_len: ends the buckets of token counts.
        config: shown by the info gauge ``vllm:cache_config_info``.
        num_spec_tokens: drafts a step; 0: without speculation.
        max_loras: adapters side by side; 0: without any.
        num_engines: side by side; each has series of its own, labelled with its number.
        has_connector: whether KV comes from elsewhere, too.
        num_expert_ranks: that share experts and move them; 0: none do.

    Source: vllm/v1/metrics/loggers.py#L404-L1180 (PrometheusStatLogger) @ v0.22.1
    """

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        config: Mapping[str, Any] | None = None,
        num_spec_tokens: int = 0,
        max_loras: int = 0,
        num_engines: int = 1,
        has_connector: bool = False,
        num_expert_ranks: int = 0,
    ) -> None:
        import prometheus_client as prometheus

        self.registry = prometheus.CollectorRegistry()
        families = Families(self.registry)
        self.engines = [
            EngineSeries(
                families,
                {"model_name": model_name, "engine": str(engine)},
                max_model_len,
                num_spec_tokens,
                has_connector,
                num_expert_ranks,
            )
            for engine in range(num_engines)
        ]
        for engine in range(num_engines if config is not None else 0):
            words = {key: str(value) for key, value in (config or {}).items()}
            families.series(
                prometheus.Gauge,
                "cache_config_info",
                "Settings of the KV cache.",
                {**words, "engine": str(engine)},
            ).set(1)
        self.loras = LoRAProm(self.registry, max_loras) if max_loras else None
        self._latest: dict[int, SchedulerStats] = {}

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        model_name: str,
        num_gpu_blocks: int | None = None,
        num_engines: int = 1,
    ) -> PrometheusRecorder:
        """One for engines of this configuration, each with so many KV blocks."""
        cache = dataclasses.asdict(config.cache)
        if num_gpu_blocks is not None:
            cache["num_gpu_blocks"] = num_gpu_blocks
        k = config.speculative.num_speculative_tokens if config.speculative is not None else 0
        max_loras = config.lora.max_loras if config.lora is not None else 0
        ranks = config.parallel
        return cls(
            model_name,
            config.scheduler.max_model_len,
            cache,
            k,
            max_loras,
            num_engines,
            config.kv_transfer is not None,
            ranks.tensor_parallel_size if ranks.enable_eplb else 0,
        )

    def record(self, stats: SchedulerStats | None, iteration: IterationStats) -> None:
        """Add one step's figures. Requests may have ended here that are another engine's."""
        self.engines[0 if stats is None else stats.engine].record(stats, iteration)
        for done in iteration.finished:
            self.engines[done.request.engine].count_finished(done)
        for completions in iteration.finished_prompts:
            self.engines[completions[0].engine].count_prompt(completions)
        if self.loras is not None and stats is not None:
            self._latest[stats.engine] = stats
            self.loras.record(together(list(self._latest.values())))

    def sleep_changed(self, is_asleep: bool) -> None:
        for engine in self.engines:
            engine.sleep.record(is_asleep)

    def render(self) -> tuple[bytes, str]:
        """The metrics as text, and its content type."""
        import prometheus_client as prometheus

        return prometheus.generate_latest(self.registry), prometheus.CONTENT_TYPE_LATEST
