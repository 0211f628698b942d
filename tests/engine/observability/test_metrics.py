"""What a service tells: under vLLM's names, counted once, and on the right clock."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import EngineCoreOutput, RequestTimes, SchedulerStats
from mini_vllm.observability.metrics import (
    FINISH_REASONS,
    IterationStats,
    PrometheusRecorder,
    RequestStats,
    ServiceStats,
    build_1_2_5_buckets,
    percentile_from_buckets,
)
from mini_vllm.sampling_params import SamplingParams

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "mini_vllm" / "entrypoints" / "openai" / "dashboard.html"


def service() -> tuple[ServiceStats, PrometheusRecorder]:
    stats, recorder = ServiceStats(), PrometheusRecorder("m", 64)
    stats.recorders.append(recorder)
    return stats, recorder


def values(recorder: PrometheusRecorder) -> dict[str, float]:
    """Samples by name; of histograms the counts and sums, of counters with a reason each one."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(recorder.render()[0].decode()):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason", "")
            found[sample.name + reason] = sample.value
    return found


def add(stats: ServiceStats, request_id: str, num_prompt: int = 5) -> None:
    params = SamplingParams(max_tokens=8)
    request = EngineCoreRequest(request_id, list(range(num_prompt)), params, None, 0.0)
    stats.request_added(request, 1)


def test_every_reason_is_there_before_the_first_request() -> None:
    _, recorder = service()
    found = values(recorder)
    assert [found["vllm:request_success_total" + reason] for reason in FINISH_REASONS] == [0] * 5
    assert found["vllm:generation_tokens_total"] == 0


def test_a_life_is_counted_once() -> None:
    stats, recorder = service()
    add(stats, "a")
    times = RequestTimes(queued=10.0, scheduled=10.5)
    stats.output_arrived(EngineCoreOutput("a", []), 10.8)  # a chunk of its prompt: no token
    stats.output_arrived(EngineCoreOutput("a", [1], times=times), 11.0)
    stats.output_arrived(EngineCoreOutput("a", [2, 3], num_preemptions=1), 12.0)
    stats.output_arrived(EngineCoreOutput("a", [4], "length", num_preemptions=1), 14.0)
    stats.output_arrived(EngineCoreOutput("a", [5]), 15.0)  # too late: it has ended
    stats.step_done(None)
    found = values(recorder)
    assert found["vllm:prompt_tokens_total"] == 5
    assert found["vllm:generation_tokens_total"] == 4
    assert found["vllm:time_to_first_token_seconds_count"] == 1
    assert found["vllm:inter_token_latency_seconds_count"] == 2
    assert found["vllm:inter_token_latency_seconds_sum"] == pytest.approx(3.0)
    assert found["vllm:num_preemptions_total"] == 1
    assert found["vllm:request_queue_time_seconds_sum"] == pytest.approx(0.5)
    assert found["vllm:request_prefill_time_seconds_sum"] == pytest.approx(0.5)
    assert found["vllm:request_decode_time_seconds_sum"] == pytest.approx(3.0)
    assert found["vllm:request_inference_time_seconds_sum"] == pytest.approx(3.5)
    assert found["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx(1.0)
    assert found["vllm:request_success_totallength"] == 1
    assert not stats.requests


def test_a_request_without_a_token_has_no_times() -> None:
    stats, recorder = service()
    add(stats, "a")
    stats.requests_aborted(["a", "unknown"])
    stats.step_done(SchedulerStats(0, 0, 0.0, 0, 0))
    found = values(recorder)
    assert found["vllm:request_success_totalabort"] == 1
    assert found["vllm:e2e_request_latency_seconds_count"] == 1
    assert found["vllm:request_decode_time_seconds_count"] == 0
    assert found["vllm:time_to_first_token_seconds_count"] == 0


def test_a_stamp_that_goes_back_takes_nothing_away() -> None:
    iteration, (stats, _) = IterationStats(), service()
    add(stats, "a")
    request = stats.requests["a"]
    for preemptions in (2, 1, 2, 3):
        output = EngineCoreOutput("a", [1], num_preemptions=preemptions)
        iteration.update_from_output(output, request, 1.0, 1.0)
    assert iteration.num_preempted == 3


def test_tokens_that_were_there_already_are_told_apart() -> None:
    stats, recorder = service()
    add(stats, "a", 10)
    stats.output_arrived(EngineCoreOutput("a", [1], num_cached_tokens=8), 1.0)
    stats.output_arrived(EngineCoreOutput("a", [2], "length", num_cached_tokens=10), 2.0)
    stats.step_done(None)
    found = values(recorder)
    assert found["vllm:prompt_tokens_total"] == 10 and found["vllm:prompt_tokens_cached_total"] == 8
    assert found["vllm:request_prefill_kv_computed_tokens_sum"] == 2


def test_several_completions_are_one_prompt() -> None:
    """Its ``n`` and its longest completion are told once, when the last of them has ended."""
    stats, recorder = service()
    siblings: list[RequestStats] = []
    for name in ("0_a", "1_a"):
        request = EngineCoreRequest(name, [1, 2], SamplingParams(max_tokens=8), None, 0.0)
        stats.request_added(request, 2, siblings)
    stats.output_arrived(EngineCoreOutput("0_a", [1, 2, 3], "stop"), 1.0)
    stats.step_done(None)
    assert values(recorder)["vllm:request_params_n_count"] == 0
    stats.output_arrived(EngineCoreOutput("1_a", [1], "length"), 2.0)
    stats.step_done(None)
    found = values(recorder)
    assert (found["vllm:request_params_n_count"], found["vllm:request_params_n_sum"]) == (1, 2)
    assert found["vllm:request_max_num_generation_tokens_sum"] == 3


def test_totals_of_drafts_become_counters() -> None:
    recorder = PrometheusRecorder("m", 64, num_spec_tokens=2)
    totals = SchedulerStats(0, 0, 0.0, 0, 0, {}, 3, 6, [2, 1])
    for _ in range(2):  # told twice, counted once
        recorder.record(totals, IterationStats())
    found = values(recorder)
    assert found["vllm:spec_decode_num_drafts_total"] == 3
    assert found["vllm:spec_decode_num_draft_tokens_total"] == 6
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == 3
    assert not [name for name in names_that_are_told() if "spec_decode" in name]


def test_counters_go_on_after_an_engine_has_reset_its_totals() -> None:
    recorder = PrometheusRecorder("m", 64, num_spec_tokens=2)
    for totals in (
        SchedulerStats(0, 0, 0.0, 8, 4, {}, 3, 6, [2, 1]),
        SchedulerStats(0, 0, 0.0, 5, 4, {}, 1, 2, [1, 0]),
    ):
        recorder.record(totals, IterationStats())
    found = values(recorder)
    assert found["vllm:prefix_cache_queries_total"] == 13
    assert found["vllm:prefix_cache_hits_total"] == 8
    assert found["vllm:spec_decode_num_drafts_total"] == 4
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == 4


def test_bounds_of_histograms() -> None:
    assert build_1_2_5_buckets(100) == [1, 2, 5, 10, 20, 50, 100]
    assert build_1_2_5_buckets(1) == [1]
    assert build_1_2_5_buckets(49) == [1, 2, 5, 10, 20]


def test_what_a_histogram_knows_of_a_quantile() -> None:
    bounds, counts = [1.0, 2.0, math.inf], [4.0, 8.0, 10.0]
    assert percentile_from_buckets(bounds, counts, 0.2) == 0.5
    assert percentile_from_buckets(bounds, counts, 0.6) == 1.5
    assert percentile_from_buckets(bounds, counts, 0.99) == 2.0
    assert percentile_from_buckets(bounds, [0.0, 0.0, 0.0], 0.5) is None


def names_that_are_told() -> set[str]:
    _, recorder = service()
    lines = recorder.render()[0].decode().splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if line.startswith("vllm:")}


def test_grafana_asks_for_names_that_there_are() -> None:
    board = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"vllm:\w+", query)}
    assert asked and asked <= names_that_are_told(), asked - names_that_are_told()


def test_the_live_page_asks_for_names_that_there_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    plain = re.findall(r'(?:sum|gain)\("(\w+)"', text)
    quantiles = re.findall(r'quantile\("(\w+)"', text)
    asked = {f"vllm:{name}" for name in plain} | {f"vllm:{name}_bucket" for name in quantiles}
    assert len(asked) > 8 and asked <= names_that_are_told(), asked - names_that_are_told()
