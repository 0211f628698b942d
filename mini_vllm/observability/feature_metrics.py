"""Figures of features in a registry of ``prometheus_client``, under vLLM's names.

Each is there only if its feature is on; a counter that can never move would be a lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.core.scheduler_output import SchedulerStats

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


class Families:
    """Metrics of a registry, each made once; every engine has series of its own in them."""

    def __init__(self, registry: Any) -> None:
        self.registry, self.made = registry, dict[str, Any]()

    def series(
        self, kind: Any, name: str, about: str, labels: Mapping[str, str], **more: Any
    ) -> Any:
        """What counts for one set of labels. ``kind``: of ``prometheus_client``, as is ``more``."""
        if name not in self.made:
            names = list(labels)
            self.made[name] = kind("vllm:" + name, about, names, registry=self.registry, **more)
        return self.made[name].labels(**labels)


class SpecDecodingProm:
    """Counters of speculation.

    Args:
        num_spec_tokens: k, the most tokens of one draft.

    Source: vllm/v1/spec_decode/metrics.py#L120-L215 (SpecDecodingProm) @ v0.22.1
    """

    def __init__(self, families: Families, labels: Mapping[str, str], num_spec_tokens: int) -> None:
        from prometheus_client import Counter

        def counter(name: str, about: str, **more: str) -> Any:
            return families.series(Counter, "spec_decode_" + name, about, {**labels, **more})

        by_place, about = "num_accepted_tokens_per_pos", "Accepted tokens by place."
        self.counters = [
            counter("num_drafts", "Drafts that were verified."),
            counter("num_draft_tokens", "Tokens of these drafts."),
            counter("num_accepted_tokens", "Those that were accepted."),
            *(counter(by_place, about, position=str(place)) for place in range(num_spec_tokens)),
        ]
        self.seen = [0] * len(self.counters)

    def record(self, stats: SchedulerStats) -> None:
        """The engine tells totals; a counter takes what is new."""
        accepted = stats.num_accepted_tokens_per_pos
        now = [stats.num_drafts, stats.num_draft_tokens, sum(accepted), *accepted]
        for counter, value, before in zip(self.counters, now, self.seen, strict=False):
            counter.inc(max(value - before, 0))
        self.seen = now


class ExternalCacheProm:
    """Counters of lookups in a KV connector, and of hits.

    Source: vllm/v1/metrics/loggers.py#L563-L590 (PrometheusStatLogger) @ v0.22.1
    """

    def __init__(self, families: Families, labels: Mapping[str, str]) -> None:
        from prometheus_client import Counter

        def counter(name: str, about: str) -> Any:
            return families.series(Counter, "external_prefix_cache_" + name, about, labels)

        self.counters = [
            counter("queries", "Tokens that a KV connector was asked for."),
            counter("hits", "Those that it had."),
        ]
        self.seen = [0, 0]

    def record(self, stats: SchedulerStats) -> None:
        """The engine tells totals; a counter takes what is new."""
        now = [stats.external_cache_queries, stats.external_cache_hits]
        for counter, value, before in zip(self.counters, now, self.seen, strict=True):
            counter.inc(max(value - before, 0))
        self.seen = now


class LoRAProm:
    """Which adapters run and which wait, as labels of one gauge: when that was so.

    Source: vllm/v1/metrics/loggers.py#L1012-L1034 (PrometheusStatLogger) @ v0.22.1
    """

    def __init__(self, registry: Any, max_loras: int) -> None:
        from prometheus_client import Gauge

        names = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        about = "When these adapters ran and waited, in seconds since 1970."
        self.gauge = Gauge("vllm:lora_requests_info", about, names, registry=registry)
        self.max_loras = max_loras
        self.record(SchedulerStats(0, 0, 0.0, 0, 0))

    def record(self, stats: SchedulerStats) -> None:
        self.gauge.clear()  # what was so before is not kept
        self.gauge.labels(
            max_lora=self.max_loras,
            waiting_lora_adapters=",".join(sorted(stats.waiting_lora_adapters)),
            running_lora_adapters=",".join(sorted(stats.running_lora_adapters)),
        ).set_to_current_time()


class SleepProm:
    """Whether the engine is awake.

    Source: vllm/v1/metrics/loggers.py#L1218-L1235 (PrometheusStatLogger.record_sleep_state)
    @ v0.22.1
    """

    def __init__(self, families: Families, labels: Mapping[str, str]) -> None:
        from prometheus_client import Gauge

        about = "awake; or asleep, its weights kept (1) or thrown away (2)."
        self.states = {
            state: families.series(
                Gauge, "engine_sleep_state", about, {**labels, "sleep_state": state}
            )
            for state in SLEEP_STATES
        }
        self.record(is_asleep=False)

    def record(self, is_asleep: bool) -> None:
        self.states["awake"].set(not is_asleep)
        self.states["weights_offloaded"].set(is_asleep)
