"""`docs/metrics.md` names what a server has at `/metrics`, and what of vLLM's it has not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from mini_vllm.config import EngineConfig, ParallelConfig
from mini_vllm.core.scheduler_output import EngineCoreOutput, ExpertLoad, SchedulerStats
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.entrypoints.openai.api_server import build_app
from mini_vllm.observability.metrics import IterationStats, PrometheusRecorder, RequestStats
from mini_vllm.observability.reader import Counter

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
HERE, NOT_HERE = PAGE.split("## What vLLM has")

UPSTREAM = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason engine_sleep_state
kv_cache_usage_perc corrupted_requests prefix_cache_queries prefix_cache_hits
external_prefix_cache_queries external_prefix_cache_hits mm_cache_queries mm_cache_hits
num_preemptions prompt_tokens prompt_tokens_by_source prompt_tokens_cached generation_tokens
request_success request_prompt_tokens request_generation_tokens iteration_tokens_total
request_max_num_generation_tokens request_params_n request_params_max_tokens
time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
e2e_request_latency_seconds request_queue_time_seconds request_inference_time_seconds
request_prefill_time_seconds request_decode_time_seconds request_prefill_kv_computed_tokens
kv_block_lifetime_seconds kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds
lora_requests_info cache_config_info spec_decode_num_drafts spec_decode_num_draft_tokens
spec_decode_num_accepted_tokens spec_decode_num_accepted_tokens_per_pos kv_offload_total_bytes
kv_offload_total_time kv_offload_size estimated_flops_per_gpu_total
estimated_read_bytes_per_gpu_total estimated_write_bytes_per_gpu_total
""".split()
"""Of vLLM 0.22.1, each with "vllm:" before it; from v1/metrics, v1/spec_decode/metrics.py and the
connectors' metrics."""


def names_in(text: str) -> set[str]:
    """In the first column of the tables."""
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(?:(?:mini_)?vllm:)?([a-z0-9_]+)`", row)}


def everything() -> EngineConfig:
    config = make_engine_config(
        "storyteller",
        enable_lora=True,
        kv_transfer_config={
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": 2**20},
        },
        speculative_config={"method": "ngram", "num_speculative_tokens": 2},
    )
    ranks = ParallelConfig(
        tensor_parallel_size=2, enable_expert_parallel=True, enable_eplb=True
    )  # which the storyteller, without experts, refuses
    return replace(config, parallel=ranks)


LOAD = ExpertLoad(
    layers=[1, 3], busiest=[7, 0], ratios=[2.5, 1.0], num_idle=[3, 0], rank_tokens=[30, 12],
    num_rearrangements=2,
)  # fmt: skip


def app_of(recorder: PrometheusRecorder, keys: tuple[str, ...] = ()) -> TestClient:
    engine: Any = SimpleNamespace(
        errored=False, profiler_config={}, request_refused=lambda params: None,
        check_alive=lambda: None, is_paused=lambda: False,
    )  # fmt: skip
    state: Any = SimpleNamespace(
        engine=engine, metrics=recorder, num_in_flight=0, readers=set(), draining=False,
        enable_request_id_headers=False, enable_tokenizer_info_endpoint=False,
        check_model=lambda name: None,
    )  # fmt: skip
    return TestClient(build_app(state, keys), raise_server_exceptions=False)


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_each_of_vllms_names_is_here_or_said_why_not() -> None:
    here, not_here = names_in(HERE), names_in(NOT_HERE)
    missing = [name for name in UPSTREAM if name not in here | not_here]
    assert not missing
    assert not here & not_here


def test_the_page_names_what_a_server_has() -> None:
    recorder = PrometheusRecorder.of(everything(), "m")
    recorder.record(SchedulerStats(0, 0, 0, 0, 0, expert_load=LOAD), IterationStats())
    text = app_of(recorder).get("/metrics").text
    found = {name.rpartition(":")[2].removesuffix("_total") for name in families(text)}
    named = {name.removesuffix("_total") for name in names_in(HERE)}
    engine = {name for name in named if not name.startswith(("http_", "python_"))}
    assert engine <= found, "named and not there"
    found = {name for name in found if not name.endswith("_created")}
    others = ("http_", "process_", "python_")
    assert {name for name in found if not name.startswith(others)} <= named
    assert {"process_resident_memory_bytes", "process_cpu_seconds", "python_info"} <= found


def test_http_requests_are_counted_as_vllms_are() -> None:
    client = app_of(PrometheusRecorder("m", 64), ("key",))
    for path in ("/v1/models", "/nowhere", "/health", "/metrics"):
        client.get(path)
    client.post("/v1/completions", content="{", headers={"authorization": "Bearer key"})
    found = families(client.get("/metrics").text)
    counts = {
        (s.labels["handler"], s.labels["method"], s.labels["status"]): s.value
        for s in found["http_requests"].samples
        if s.name == "http_requests_total"
    }
    assert counts == {
        ("/v1/models", "GET", "4xx"): 1.0,  # without the key
        ("none", "GET", "4xx"): 1.0,
        ("/v1/completions", "POST", "4xx"): 1.0,
    }
    assert found["http_request_duration_seconds"].type == "histogram"
    assert found["http_request_duration_highr_seconds"].type == "histogram"
    assert {s.labels.get("handler") for s in found["http_request_size_bytes"].samples} >= {"none"}
    assert "http_response_size_bytes" in found


def value(recorder: PrometheusRecorder, name: str, **labels: str) -> float | None:
    labels = {"model_name": "m", "engine": "0", **labels}
    return recorder.registry.get_sample_value(f"vllm:{name}", labels)


@pytest.mark.parametrize(("deferred", "waiting"), [(0, 5), (2, 5), (5, 5)])
def test_waiting_requests_are_counted_by_reason(deferred: int, waiting: int) -> None:
    recorder = PrometheusRecorder("m", 64)
    stats = SchedulerStats(1, waiting, 0.5, 0, 0, num_skipped_waiting_reqs=deferred)
    recorder.record(stats, IterationStats())
    name = "num_requests_waiting_by_reason"
    assert value(recorder, name, reason="deferred") == deferred
    assert value(recorder, name, reason="capacity") == waiting - deferred
    assert value(recorder, "num_requests_waiting") == waiting


def test_prompt_tokens_are_told_by_source() -> None:
    recorder = PrometheusRecorder.of(everything(), "m")
    iteration = IterationStats(num_prompt_tokens=20, num_cached_tokens=12, num_external_tokens=4)
    stats = SchedulerStats(1, 0, 0.5, 0, 0, external_cache_queries=16, external_cache_hits=4)
    recorder.record(stats, iteration)
    recorder.record(stats, IterationStats())
    found = [
        value(recorder, "prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    ]
    assert found == [8, 8, 4]
    assert value(recorder, "external_prefix_cache_queries_total") == 16
    assert value(recorder, "external_prefix_cache_hits_total") == 4


def test_how_evenly_experts_are_used_is_told_by_layer_and_by_rank() -> None:
    recorder = PrometheusRecorder.of(everything(), "m")
    first = replace(LOAD, rank_tokens=[10, 4], num_rearrangements=0)
    for load in (None, first, LOAD, None, LOAD):
        recorder.record(SchedulerStats(1, 0, 0.5, 0, 0, expert_load=load), IterationStats())

    def own(name: str, **labels: str) -> float | None:
        labels = {"model_name": "m", "engine": "0", **labels}
        return recorder.registry.get_sample_value(f"mini_vllm:expert_{name}", labels)

    by_layer = [
        [own(name, layer=layer) for name in ("busiest", "busiest_ratio", "num_idle")]
        for layer in ("1", "3", "0")
    ]
    assert by_layer == [[7, 2.5, 3], [0, 1, 0], [None, None, None]]
    assert [own("rank_tokens_total", rank=str(rank)) for rank in (0, 1)] == [30, 12]
    assert own("rearrangements_total") == 2
    without = PrometheusRecorder("m", 64).render()[0]
    assert b"expert" not in without


def test_an_engine_tells_what_its_connector_supplied() -> None:
    """The cache is thrown away, and the host's tier has the blocks: the second prompt loads."""
    from mini_vllm import LLM, SamplingParams

    config = everything().kv_transfer
    llm = LLM("storyteller", num_gpu_blocks=40, kv_transfer_config=config, disable_log_stats=False)
    params = SamplingParams(temperature=0, max_tokens=2)
    prompt = [[5 + n for n in range(40)]]
    llm.generate(prompt, params, use_tqdm=False)
    llm.reset_prefix_cache()
    llm.generate(prompt, params, use_tqdm=False)
    stats = llm.engine.core.make_stats()
    assert (stats.external_cache_queries, stats.external_cache_hits) == (80, 32)
    tokens = {
        metric.labels["source"]: metric.value
        for metric in llm.get_metrics()
        if isinstance(metric, Counter) and metric.name == "vllm:prompt_tokens_by_source"
    }
    assert tokens == {"local_compute": 48, "local_cache_hit": 0, "external_kv_transfer": 32}
    llm.shutdown()


def test_an_output_carries_the_external_tokens() -> None:
    request = RequestStats(0.0, 8, 1, None)
    assert request.num_cached_tokens == 0
    assert EngineCoreOutput("a", []).num_external_tokens == 0
