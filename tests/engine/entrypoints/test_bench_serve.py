"""The load generator: arrivals, what counts as a token and as a failure, goodput."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.entrypoints import bench_serve
from mini_vllm.entrypoints.bench_serve import Load, run_load
from mini_vllm.entrypoints.load import (
    RequestResult,
    StreamReader,
    arrival_times,
    goodput,
    summarize,
)


@pytest.mark.parametrize(("burstiness", "slack"), [(0.25, 0.042), (1.0, 0.03), (4.0, 0.03)])
def test_gaps_have_the_mean_and_the_spread_that_were_asked_for(
    burstiness: float, slack: float
) -> None:
    times = arrival_times(10_000, 5.0, burstiness, np.random.default_rng(0))
    gaps = np.diff([0.0, *times])
    assert times[-1] == pytest.approx(10_000 / 5.0)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=2 * slack)
    assert times == sorted(times)


def test_a_metronome_and_a_burst() -> None:
    rng = np.random.default_rng(0)
    assert arrival_times(4, 2.0, math.inf, rng) == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert arrival_times(3, math.inf, 1.0, rng) == [0.0, 0.0, 0.0]


def events(*bodies: object, done: bool = True) -> bytes:
    lines = [b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies]
    return b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def chunk(text: str) -> dict[str, object]:
    return {"choices": [{"text": text}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_bytes_may_be_cut_anywhere(size: int) -> None:
    result = RequestResult(3)
    reader = StreamReader(result)
    data = events(chunk("a"), chunk("é\n\n"), USAGE)
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size], now=1.0 + start)
    reader.end()
    assert result.success and result.text == "aé\n\n" and result.output_tokens == 5
    assert len(result.itl) == 1


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (events(chunk("a"), done=False), "without [DONE]"),
        (events(chunk("a"), {"error": {"message": "no"}}), "no"),
        (events(USAGE), "no token"),
    ],
)
def test_what_is_a_failure(data: bytes, part: str) -> None:
    result = RequestResult(3)
    reader = StreamReader(result)
    reader.feed(data, 1.0)
    reader.end()
    assert not result.success and part in result.error


def test_goodput_asks_for_all_objectives() -> None:
    fast = RequestResult(1, ttft=0.1, latency=0.2, output_tokens=11)
    slow = RequestResult(1, ttft=0.1, latency=2.1, output_tokens=11)
    one = RequestResult(1, ttft=0.1, latency=0.1, output_tokens=1)
    slos = {"ttft": 150.0, "tpot": 100.0}
    assert goodput([fast, slow, one], slos, duration=2.0) == 1.0


def test_failures_are_in_no_percentile() -> None:
    good = RequestResult(2, ttft=0.5, latency=1.0, output_tokens=3, itl=[0.25, 0.25])
    bad = RequestResult(2, error="500")
    figures = summarize([good, bad], 2.0, [99.0], {})
    assert (figures["completed"], figures["failed"]) == (1, 1)
    assert figures["median_ttft_ms"] == figures["p99_ttft_ms"] == 500.0
    assert figures["mean_tpot_ms"] == 250.0 and figures["request_goodput"] is None


def test_tokens_come_from_usage_and_times_from_chunks() -> None:
    """A server of known timing: the first chunk after 100 ms, then two tokens every 20 ms."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        )
        await asyncio.sleep(0.1)
        writer.write(events(chunk("a"), done=False))
        for _ in range(10):
            await asyncio.sleep(0.02)
            writer.write(events(chunk("bc"), done=False))
            await writer.drain()
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 21}}
        writer.write(events(usage))
        await writer.drain()
        writer.close()

    async def go() -> RequestResult:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            load = Load(f"http://127.0.0.1:{port}/v1/completions", [{"prompt": [1]}], [1])
            (result,), _ = await run_load(load)
        return result

    result = asyncio.run(go())
    assert result.success, result.error
    figures = summarize([result], 1.0, [99.0], {})
    assert 90 < figures["mean_ttft_ms"] < 200
    assert 9 < figures["mean_tpot_ms"] < 20, "two tokens a chunk: half the gap between chunks"
    assert 19 < figures["median_itl_ms"] < 40


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_serve.add_bench_serve_options(parser)
    return parser.parse_args(["--model", "m", "--num-prompts", "2", *words])


def test_vllms_options_go_into_every_request() -> None:
    words = ["--top-p", "0.5", "--top-k", "3", "--served-model-name", "other", "--tokenizer", "x"]
    args = options(*words)
    load, model = bench_serve._make_load(args)
    assert model == "other" and len(load.bodies) == 2
    for body in load.bodies:
        assert (body["model"], body["top_p"], body["top_k"]) == ("other", 0.5, 3)
        assert "min_p" not in body and "temperature" not in body


def test_only_the_metrics_asked_for_are_shown() -> None:
    shown = bench_serve._metrics(options("--percentile-metrics", "ttft,e2el").percentile_metrics)
    figures: dict[str, Any] = dict.fromkeys(
        ("completed", "failed", "duration", "request_throughput", "output_throughput",
         "total_token_throughput"), 1,
    )  # fmt: skip
    figures["request_goodput"] = None
    for name in shown:
        figures |= {f"{kind}_{name}_ms": 1.0 for kind in ("mean", "median", "p99")}
    text = bench_serve.report(figures, [99.0], shown)
    assert "TTFT" in text and "E2EL" in text and "TPOT" not in text
    with pytest.raises(ValueError, match="--percentile-metrics has 'speed'"):
        bench_serve._metrics("ttft,speed")


def test_results_are_appended_and_labelled(tmp_path: Path) -> None:
    args = options("--result-dir", str(tmp_path), "--result-filename", "r", "--append-result")
    for number in range(2):
        bench_serve._save(args, {"number": number})
    assert (tmp_path / "r").read_text() == '{"number": 0}\n{"number": 1}\n'
    with pytest.raises(ValueError, match="--metadata has 'x'; it must be KEY=VALUE"):
        bench_serve._make_load(options("--metadata", "x"))
