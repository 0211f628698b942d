"""The same arrivals before a real server: `python -m labkit arena live`.

The arena's clock is a model. Here nothing is: `mini_vllm serve` runs with the scheduler in a
process of its own, clients send the workload's prompts at its times, over HTTP, and look at their
watches. So it takes as long as the workload, and the figures are of this machine, now.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from labkit.arena.arguments import polite
from labkit.arena.contest import BASELINE
from labkit.arena.metrics import Percentiles
from labkit.arena.report import duration, share, short_name
from labkit.arena.workloads import Arrival, Workload, find_workload
from labkit.course.root import ROOT
from mini_vllm.entrypoints.load import RequestResult, send
from mini_vllm.policies import load_scheduler

MODEL = "storyteller"
VOCAB_SIZE = 2048
UP_SECONDS = 90.0
console = Console(highlight=False)


@contextmanager
def server(scheduler: str, workload: Workload) -> Iterator[str]:
    """`mini_vllm serve` with this scheduler and the workload's limits; its address.

    Raises:
        ValueError: it does not come up; the message has its last words.
    """
    limits, cache = workload.scheduler, workload.cache
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "mini_vllm", "serve", MODEL, "--port", str(port),
        "--scheduler", scheduler, "--dtype", "float32",
        "--max-model-len", str(limits.max_model_len),
        "--max-num-batched-tokens", str(limits.max_num_batched_tokens),
        "--max-num-seqs", str(limits.max_num_seqs),
        "--long-prefill-token-threshold", str(limits.long_prefill_token_threshold),
        "--num-gpu-blocks", str(cache.num_gpu_blocks), "--block-size", str(cache.block_size),
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=log
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Any) -> None:
    end = time.monotonic() + UP_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            log.seek(0)
            last = log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise ValueError(f"the server ended: {' '.join(last)}")
        try:
            with urllib.request.urlopen(url + "/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ValueError(f"the server did not come up within {UP_SECONDS:g} s")


def body_of(arrival: Arrival) -> dict[str, Any]:
    """A request with the arrival's lengths. Ranges become ids of the model's vocabulary; equal
    ranges stay equal text."""
    prompt = [1 + token % (VOCAB_SIZE - 2) for token in arrival.tokens()]
    return {
        "model": MODEL, "prompt": prompt, "max_tokens": arrival.max_tokens, "ignore_eos": True,
        "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        "priority": arrival.priority,
    }  # fmt: skip


async def replay(url: str, arrivals: Sequence[Arrival]) -> list[RequestResult]:
    """Send each request at its time, whether or not the others are done."""
    import aiohttp

    results = [RequestResult(arrival.prompt_len) for arrival in arrivals]
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        target = url + "/v1/completions"
        await send(session, target, body_of(arrivals[0]), RequestResult(0))  # warms up
        start = time.perf_counter()

        async def one(arrival: Arrival, result: RequestResult) -> None:
            await asyncio.sleep(start + arrival.time - time.perf_counter())
            await send(session, target, body_of(arrival), result)

        await asyncio.gather(*map(one, arrivals, results))
    return results


def serve_live(
    scheduler: str, workload: Workload, seed: int, requests: int, speed: float
) -> list[RequestResult]:
    """What clients saw of a real server with this scheduler.

    Raises:
        ValueError: the server does not come up, or a request failed.
    """
    arrivals = [replace(a, time=a.time / speed) for a in workload.arrivals(seed, requests)]
    with server(scheduler, workload) as url:
        results = asyncio.run(replay(url, arrivals))
    for arrival, result in zip(arrivals, results, strict=True):
        if result.error:
            raise ValueError(f"a request failed under {short_name(scheduler)}: {result.error}")
        if result.output_tokens != arrival.max_tokens:
            raise ValueError(
                f"a request under {short_name(scheduler)} ended with {result.output_tokens} of "
                f"{arrival.max_tokens} tokens"
            )
    return results


def in_time(results: Sequence[RequestResult], workload: Workload) -> float:
    """Share of the requests that kept both promises; all at priority 0."""
    slo = workload.slos[0]
    return sum(r.ttft <= slo.ttft and r.tpot <= slo.tpot for r in results) / len(results)


def live(
    scheduler: Annotated[
        list[str], typer.Option(help="path/to/file.py:Class, or a name; may be repeated")
    ] = [],  # noqa: B006 (Typer copies it)
    workload: Annotated[str, typer.Option(help="whose arrivals")] = "documents",
    requests: Annotated[int, typer.Option(help="how many")] = 100,
    seed: Annotated[int, typer.Option(help="of the arrivals")] = 0,
    speed: Annotated[float, typer.Option(help="times the workload's own arrival rate")] = 1.0,
) -> None:
    """The real engine behind the real server: yours and vllm-v1, on the same arrivals."""

    with polite():
        world = find_workload(workload)
        if requests < 1 or speed <= 0:
            raise ValueError(f"{requests} requests at {speed:g} times the rate; both above 0")
        if len(world.slos) > 1:
            raise ValueError(f"{workload} has priorities, which this command does not tell apart")
        names = [*scheduler, BASELINE]
        for name in names:
            load_scheduler(name)
        rows = {name: serve_live(name, world, seed, requests, speed) for name in names}
    table = Table(box=None, title=f"{workload}, {requests} requests, real", title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(short_name(name), justify="right")
    table.add_row("in time", *(share(in_time(rows[name], world)) for name in names))
    for label, get in (("TTFT", lambda r: r.ttft), ("TPOT", lambda r: r.tpot)):
        found = [Percentiles.of([get(r) for r in rows[name]]) for name in names]
        table.add_row(f"{label} p50", *(duration(p.p50) for p in found))
        table.add_row(f"{label} p90", *(duration(p.p90) for p in found))
    console.print(table)
