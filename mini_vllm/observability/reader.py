"""The figures of an engine as plain objects, for scripts that look at them without a server.

Source: vllm/v1/metrics/reader.py#L11-L145 (get_metrics_snapshot) @ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mini_vllm.spec_decode.metrics import Counter, Vector

__all__ = ["Counter", "Gauge", "Histogram", "Metric", "Vector", "get_metrics_snapshot"]


@dataclass(frozen=True)
class Gauge:
    """A number that goes up and down."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Histogram:
    """Observations by size: how many were at most as large as each bucket's bound."""

    name: str
    count: int
    sum: float
    buckets: dict[str, int]
    labels: dict[str, str] = field(default_factory=dict)


Metric = Counter | Vector | Gauge | Histogram
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


def get_metrics_snapshot(registry: Any) -> list[Metric]:
    """All there is in a registry of ``prometheus_client``, as it is now."""
    found: list[Metric] = []
    for family in registry.collect():
        if family.name == PER_POSITION:
            samples = [s for s in family.samples if s.name.endswith("_total")]
            found.append(Vector(family.name, [int(sample.value) for sample in samples]))
        elif family.type == "histogram":
            found += _histograms(family)
        else:
            for sample in family.samples:
                if family.type == "counter" and sample.name.endswith("_total"):
                    found.append(Counter(family.name, int(sample.value), sample.labels))
                elif family.type == "gauge":
                    found.append(Gauge(family.name, sample.value, sample.labels))
    return found


def _histograms(family: Any) -> list[Metric]:
    """Those of a family, one for each set of labels: here there is one."""
    values = {"_sum": 0.0, "_count": 0.0}
    buckets, labels = {}, {}
    for sample in family.samples:
        ending = sample.name.removeprefix(family.name)
        if ending == "_bucket":
            buckets[sample.labels["le"]] = int(sample.value)
        elif ending in values:
            values[ending], labels = sample.value, sample.labels
    return [Histogram(family.name, int(values["_count"]), values["_sum"], buckets, labels)]
