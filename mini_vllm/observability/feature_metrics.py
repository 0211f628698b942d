"""Figures of features in a registry of ``prometheus_client``, under vLLM's names.

Each is there only if its feature is on: a counter that can never change would mislead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mini_vllm.core.scheduler_output import SchedulerStats

OF_LAYERS = {
    "busiest": "The expert of the layer with most tokens of the last steps.",
    "busiest_ratio": "Its tokens, as a multiple of an expert's average.",
    "num_idle": "Experts of the layer without a token in the last steps.",
}
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


class Families:
    """Metrics of a registry, each made once; every engine has series of its own in them."""

    def __init__(self, registry: Any) -> None:
        self.registry, self.made = registry, dict[str, Any]()

    def series(
        self, kind: Any, name: str, about: str, labels: Mapping[str, str], **more: Any
    ) -> Any:
        """What counts for one set of labels. ``kind``: of ``prometheus_client``, as is ``more``.

        A name without a prefix is one of vLLM's.
        """
        if name not in self.made:
            full = name if ":" in name else "vllm:" + name
            self.made[name] = kind(full, about, list(labels), registry=self.registry, **more)
        return self.made[name].labels(**labels)

    def counter(self, name: str, about: str, labels: Mapping[str, str], **more: str) -> Any:
        """The counter of one set of labels, ``more`` included."""
        from prometheus_client import Counter

        return self.series(Counter, name, about, {**labels, **more})


class Totals:
    """Counters that follow totals of the engine: each grows by what is new.

    If a total has shrunk, the engine has reset its totals or is a new one: all begin anew.

    Args:
        counters: of ``prometheus_client``.
        of: the totals among the engine's gauges, in the order of the counters.
    """

    def __init__(self, counters: Sequence[Any], of: Callable[[SchedulerStats], list[int]]) -> None:
        self.counters, self.of = counters, of
        self.seen = [0] * len(counters)

    def record(self, stats: SchedulerStats) -> None:
        now = self.of(stats)
        if any(total < before for total, before in zip(now, self.seen, strict=True)):
            self.seen = [0] * len(now)
        for counter, total, before in zip(self.counters, now, self.seen, strict=True):
            counter.inc(total - before)
        self.seen = now


def make_features(
    families: Families,
    labels: Mapping[str, str],
    num_spec_tokens: int,
    has_connector: bool,
    num_expert_ranks: int,
) -> list[Totals | ExpertsProm]:
    """Those that are on; for the arguments see :class:`~.metrics.EngineSeries`."""
    made: list[Totals | ExpertsProm] = []
    if num_spec_tokens:
        made.append(spec_decoding(families, labels, num_spec_tokens))
    if has_connector:
        made.append(external_cache(families, labels))
    if num_expert_ranks:
        made.append(ExpertsProm(families, labels, num_expert_ranks))
    return made


def spec_decoding(families: Families, labels: Mapping[str, str], num_spec_tokens: int) -> Totals:
    """Counters of speculation.

    Args:
        num_spec_tokens: k, the most tokens of one draft.

    Source: vllm/v1/spec_decode/metrics.py#L120-L215 (SpecDecodingProm) @ v0.22.1
    """
    counter = functools.partial(families.counter, labels=labels)
    by_place, about = "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by place."
    counters = [
        counter("spec_decode_num_drafts", "Drafts that were verified."),
        counter("spec_decode_num_draft_tokens", "Tokens of these drafts."),
        counter("spec_decode_num_accepted_tokens", "Those that were accepted."),
        *(counter(by_place, about, position=str(place)) for place in range(num_spec_tokens)),
    ]

    def totals(stats: SchedulerStats) -> list[int]:
        accepted = stats.num_accepted_tokens_per_pos or [0] * num_spec_tokens
        return [stats.num_drafts, stats.num_draft_tokens, sum(accepted), *accepted]

    return Totals(counters, totals)


def external_cache(families: Families, labels: Mapping[str, str]) -> Totals:
    """Counters of lookups in a KV connector, and of hits.

    Source: vllm/v1/metrics/loggers.py#L563-L590 (PrometheusStatLogger) @ v0.22.1
    """
    counter = functools.partial(families.counter, labels=labels)
    counters = [
        counter("external_prefix_cache_queries", "Tokens that a KV connector was asked for."),
        counter("external_prefix_cache_hits", "Those that it had."),
    ]
    return Totals(counters, lambda stats: [stats.external_cache_queries, stats.external_cache_hits])


class ExpertsProm:
    """How evenly the experts of a mixture are used, with EPLB. vLLM only logs it, as one number.

    A series for each layer, and none for each expert: 61 layers of 256 experts would be 15616.
    """

    def __init__(self, families: Families, labels: Mapping[str, str], num_ranks: int) -> None:
        self.families, self.labels = families, labels
        counter = functools.partial(families.counter, labels=labels)
        name, about = (
            "mini_vllm:expert_rank_tokens",
            "Rows that the experts of a rank have multiplied.",
        )
        counters = [
            counter("mini_vllm:expert_rearrangements", "How often experts were placed anew."),
            *(counter(name, about, rank=str(rank)) for rank in range(num_ranks)),
        ]
        self.totals = Totals(counters, _expert_totals)

    def record(self, stats: SchedulerStats) -> None:
        """Nothing before the first step."""
        load = stats.expert_load
        if load is None:
            return
        self.totals.record(stats)
        for layer, *numbers in zip(
            load.layers, load.busiest, load.ratios, load.num_idle, strict=True
        ):
            for (name, about), number in zip(OF_LAYERS.items(), numbers, strict=True):
                self._of_layer(name, about, layer).set(number)

    def _of_layer(self, name: str, about: str, layer: int) -> Any:
        from prometheus_client import Gauge

        labels = {**self.labels, "layer": str(layer)}
        return self.families.series(Gauge, "mini_vllm:expert_" + name, about, labels)


def _expert_totals(stats: SchedulerStats) -> list[int]:
    load = stats.expert_load
    assert load is not None
    return [load.num_rearrangements, *load.rank_tokens]


class LoRAProm:
    """Which adapters run and which wait, as labels of one gauge; its value is the time of that.

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
