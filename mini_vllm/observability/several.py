"""Figures of several engines that look like one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mini_vllm.core.scheduler_output import SchedulerStats


def together(stats: Sequence[SchedulerStats]) -> SchedulerStats:
    """Gauges of all engines as one: requests are added, cache usage is the mean."""

    def total(name: str) -> int:
        return sum(getattr(one, name) for one in stats)

    by_place = [one.num_accepted_tokens_per_pos for one in stats]
    return dataclasses.replace(
        stats[-1],
        engine=0,
        num_running_reqs=total("num_running_reqs"),
        num_waiting_reqs=total("num_waiting_reqs"),
        num_skipped_waiting_reqs=total("num_skipped_waiting_reqs"),
        external_cache_queries=total("external_cache_queries"),
        external_cache_hits=total("external_cache_hits"),
        kv_cache_usage=sum(one.kv_cache_usage for one in stats) / len(stats),
        prefix_cache_queries=total("prefix_cache_queries"),
        prefix_cache_hits=total("prefix_cache_hits"),
        num_drafts=total("num_drafts"),
        num_draft_tokens=total("num_draft_tokens"),
        num_accepted_tokens_per_pos=[sum(counts) for counts in zip(*by_place, strict=True)],
        running_lora_adapters=added_up(one.running_lora_adapters for one in stats),
        waiting_lora_adapters=added_up(one.waiting_lora_adapters for one in stats),
    )


def added_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter()))
