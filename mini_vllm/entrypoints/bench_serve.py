"""``python -m mini_vllm bench serve``: how a server behaves under load, seen from outside.

Works against any server with OpenAI's interface. What it measures of a request::

    sent ──────────► first chunk ──► chunk ──► chunk ──► last chunk
      └──── TTFT ────────┘   └─ ITL ─┘                       │
      └───────────────────── E2EL ───────────────────────────┘
    TPOT = (E2EL - TTFT) / (tokens - 1), tokens from the server's usage: a chunk may hold several

Source: vllm/benchmarks/serve.py#L244-L344 (get_request) @ v0.22.1
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

METRICS = ("ttft", "tpot", "itl", "e2el")
ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


# ---------------------------------------------------------------------- arrivals


def arrival_times(
    num_requests: int, rate: float, burstiness: float, rng: np.random.Generator
) -> list[float]:
    """When each request is sent, in seconds from the start, ascending.

    The gaps are drawn from a gamma distribution with mean ``1 / rate`` and shape ``burstiness``:
    1 is a Poisson process, less comes in bursts, infinity is a metronome. The times are then
    stretched so that the last is ``num_requests / rate``: the rate is what was asked for, whatever
    was drawn. All times are fixed beforehand: a slow server does not slow its clients down, or
    the load would shrink just when it hurts.

    Args:
        rate: requests a second; infinite: all at once.

    Source: vllm/benchmarks/serve.py#L288-L335 (get_request) @ v0.22.1
    """
    if math.isinf(rate):
        return [0.0] * num_requests
    if math.isinf(burstiness):
        gaps = np.full(num_requests, 1.0 / rate)
    else:
        gaps = rng.gamma(burstiness, 1.0 / (rate * burstiness), num_requests)
    times = np.cumsum(gaps)
    return (times * (num_requests / rate / times[-1])).tolist()


# ---------------------------------------------------------------------- one request


@dataclass
class RequestResult:
    """What a client saw of one request; times in seconds."""

    prompt_len: int
    start_time: float = 0.0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0
    output_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def success(self) -> bool:
        return not self.error

    @property
    def tpot(self) -> float:
        """Mean seconds per token after the first; 0 for a single token."""
        if self.output_tokens < 2:
            return 0.0
        return (self.latency - self.ttft) / (self.output_tokens - 1)


class StreamReader:
    """Takes the bytes of a stream as they come, and keeps what they say in a result.

    Events are separated by an empty line, wherever the network has cut. An error event is a
    failure, and so is a stream that ends without ``[DONE]``.
    """

    def __init__(self, result: RequestResult) -> None:
        self.result = result
        self.done = False
        self._rest = b""
        self._num_chunks = 0
        self._last = result.start_time

    def feed(self, data: bytes, now: float) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    self._take(line.removeprefix(b"data: "), now)

    def _take(self, payload: bytes, now: float) -> None:
        if payload.strip() == b"[DONE]":
            self.done = True
            return
        body = json.loads(payload)
        if "error" in body:
            self.result.error = str(body["error"].get("message", body["error"]))
            return
        if usage := body.get("usage"):
            self.result.output_tokens = usage["completion_tokens"]
            self.result.prompt_len = usage["prompt_tokens"]
        choices = body.get("choices")
        if not choices:
            return
        delta = choices[0].get("delta")
        text = choices[0].get("text") if delta is None else delta.get("content")
        if delta is not None and delta.get("role") and not text:
            return  # it only says who will speak
        self._count(text or "", now)

    def _count(self, text: str, now: float) -> None:
        result = self.result
        if self._num_chunks == 0:
            result.ttft = now - result.start_time
        else:
            result.itl.append(now - self._last)
        self._num_chunks += 1
        self._last = now
        result.latency = now - result.start_time
        result.text += text

    def end(self) -> None:
        """The connection was closed."""
        result = self.result
        if not result.error and not self.done:
            result.error = "the stream ended without [DONE]"
        if not result.error and not self._num_chunks:
            result.error = "the stream brought no token"
        result.output_tokens = result.output_tokens or self._num_chunks


async def send(session: Any, url: str, body: Mapping[str, Any], result: RequestResult) -> None:
    """Send one request and read its stream to the end; failures are kept in the result."""
    result.start_time = time.perf_counter()
    reader = StreamReader(result)
    try:
        async with session.post(url, json=body) as answer:
            if answer.status != 200:
                result.error = f"{answer.status}: {(await answer.text())[:300]}"
                return
            async for data, _ in answer.content.iter_chunks():
                reader.feed(data, time.perf_counter())
        reader.end()
    except Exception as error:
        result.error = f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------------- figures


def goodput(results: Sequence[RequestResult], slos: Mapping[str, float], duration: float) -> float:
    """Requests a second that met *all* of their objectives.

    Args:
        results: of successful requests.
        slos: limits in milliseconds by name: "ttft", "tpot" or "e2el".
        duration: of the run, in seconds.

    Source: vllm/benchmarks/serve.py#L455-L485 (calculate_metrics) @ v0.22.1
    """
    good = 0
    for result in results:
        seen = {"ttft": result.ttft, "tpot": result.tpot, "e2el": result.latency}
        good += all(seen[name] * 1000 <= limit for name, limit in slos.items())
    return good / duration


def summarize(
    results: Sequence[RequestResult],
    duration: float,
    percentiles: Sequence[float],
    slos: Mapping[str, float],
) -> dict[str, Any]:
    """The figures of a run, by vLLM's names; times in milliseconds, over successful requests only.

    Source: vllm/benchmarks/serve.py#L396-L590 (calculate_metrics) @ v0.22.1
    """
    good = [result for result in results if result.success]
    inputs = sum(result.prompt_len for result in good)
    outputs = sum(result.output_tokens for result in good)
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(results) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / duration,
        "request_goodput": goodput(good, slos, duration) if slos else None,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
    }
    values = {
        "ttft": [result.ttft for result in good],
        "tpot": [result.tpot for result in good if result.output_tokens > 1],
        "itl": [gap for result in good for gap in result.itl],
        "e2el": [result.latency for result in good],
    }
    for name in METRICS:
        milliseconds = np.array(values[name] or [0.0]) * 1000
        figures[f"mean_{name}_ms"] = float(milliseconds.mean())
        figures[f"median_{name}_ms"] = float(np.median(milliseconds))
        figures[f"std_{name}_ms"] = float(milliseconds.std())
        for p in percentiles:
            word = str(int(p)) if p == int(p) else str(p)
            figures[f"p{word}_{name}_ms"] = float(np.percentile(milliseconds, p))
    return figures


def details(results: Sequence[RequestResult]) -> dict[str, Any]:
    """What was seen of each request, in parallel lists."""
    return {
        "input_lens": [result.prompt_len for result in results],
        "output_lens": [result.output_tokens for result in results],
        "ttfts": [result.ttft for result in results],
        "itls": [result.itl for result in results],
        "start_times": [result.start_time for result in results],
        "generated_texts": [result.text for result in results],
        "errors": [result.error for result in results],
    }


# ---------------------------------------------------------------------- a run


@dataclass
class Load:
    """What is sent, and how fast."""

    url: str
    bodies: list[dict[str, Any]]
    prompt_lens: list[int]
    rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    seed: int = 0
    headers: dict[str, str] = field(default_factory=dict)


async def run_load(load: Load) -> tuple[list[RequestResult], float]:
    """Send everything; the results in order, and the seconds until the last answer."""
    import aiohttp

    times = arrival_times(
        len(load.bodies), load.rate, load.burstiness, np.random.default_rng(load.seed)
    )
    results = [RequestResult(length) for length in load.prompt_lens]
    gate = asyncio.Semaphore(load.max_concurrency or len(load.bodies))
    connector = aiohttp.TCPConnector(limit=0, ssl=False)
    timeout = aiohttp.ClientTimeout(total=6 * 3600)

    async def one(index: int) -> None:
        async with gate:
            await send(session, load.url, load.bodies[index], results[index])

    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=load.headers, trust_env=False
    ) as session:
        start = time.perf_counter()
        tasks = []
        for index, when in enumerate(times):
            delay = start + when - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(asyncio.create_task(one(index)))
        await asyncio.gather(*tasks)
        return results, time.perf_counter() - start


def random_prompts(
    num_prompts: int, length: int, spread: float, vocab_size: int, rng: random.Random
) -> list[list[int]]:
    """Token ids that mean nothing; lengths between ``length * (1 - spread)`` and 1 + spread."""
    lengths = [
        max(1, round(length * rng.uniform(1 - spread, 1 + spread))) for _ in range(num_prompts)
    ]
    return [[rng.randrange(vocab_size) for _ in range(n)] for n in lengths]


def add_bench_serve_options(parser: argparse.ArgumentParser) -> None:
    """Source: vllm/benchmarks/serve.py#L1240-L1640 (add_cli_args) @ v0.22.1"""
    add = parser.add_argument
    add("--backend", choices=tuple(ENDPOINTS), default="openai")
    add("--base-url", help="such as http://127.0.0.1:8000, instead of --host and --port")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--endpoint", help="path; default: that of the backend")
    add("--model", help="the model's name; default: the first that the server has")
    add("--dataset-name", choices=("random",), default="random")
    add("--num-prompts", type=int, default=1000)
    add("--random-input-len", "--input-len", type=int, default=1024)
    add("--random-output-len", "--output-len", type=int, default=128)
    add("--random-range-ratio", type=float, default=0.0, help="spread of both lengths, 0 to 1")
    add("--vocab-size", type=int, default=1000, help="prompts hold token ids below it")
    add("--request-rate", type=float, default=math.inf, help="requests/s (default: all at once)")
    add("--burstiness", type=float, default=1.0)
    add("--max-concurrency", type=int)
    add("--num-warmups", type=int, default=0)
    add("--seed", type=int, default=0)
    add("--ignore-eos", action="store_true")
    add("--temperature", type=float)
    add("--header", nargs="*", default=[], metavar="KEY=VALUE")
    add("--extra-body", type=json.loads, default={}, metavar="JSON")
    add("--metric-percentiles", default="99", help="with commas")
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="such as ttft:200 tpot:50")
    add("--ready-check-timeout-sec", type=int, default=0)
    add("--save-result", action="store_true")
    add("--save-detailed", action="store_true")
    add("--result-dir", type=Path, default=Path("."))
    add("--result-filename")
    add("--plot", type=Path, metavar="FILE.png", help="draw TTFT and ITL over the run")
    add("--json", action="store_true", help="the figures as one JSON object")


def run_bench_serve(args: argparse.Namespace) -> int:
    """0 if every request succeeded."""
    load, model = _make_load(args)
    if args.num_warmups:
        warm = Load(
            load.url, load.bodies[: args.num_warmups], load.prompt_lens, headers=load.headers
        )
        warm.prompt_lens = warm.prompt_lens[: len(warm.bodies)]
        asyncio.run(run_load(warm))
    results, duration = asyncio.run(run_load(load))
    percentiles = [float(word) for word in args.metric_percentiles.split(",")]
    figures: dict[str, Any] = {
        "date": datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": args.backend,
        "model_id": model,
        "num_prompts": args.num_prompts,
        "request_rate": "inf" if math.isinf(args.request_rate) else args.request_rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        **summarize(results, duration, percentiles, _slos(args.goodput)),
    }
    print(json.dumps(figures) if args.json else report(figures, percentiles))
    for error in list(dict.fromkeys(r.error for r in results if r.error))[:10]:
        print(f"failed: {error}", file=sys.stderr)
    if args.save_result or args.save_detailed:
        _save(args, figures | (details(results) if args.save_detailed else {}))
    if args.plot is not None:
        plot(results, args.plot)
    return 1 if figures["failed"] else 0


def _make_load(args: argparse.Namespace) -> tuple[Load, str]:
    """Raises ValueError for options that cannot be, and if the server does not answer."""
    if args.num_prompts < 1:
        raise ValueError(f"--num-prompts is {args.num_prompts}; it must be at least 1")
    if not args.request_rate > 0 or not args.burstiness > 0:
        raise ValueError("--request-rate and --burstiness must be above 0")
    if not 0 <= args.random_range_ratio < 1:
        raise ValueError("--random-range-ratio must be at least 0 and below 1")
    base = args.base_url or f"http://{args.host}:{args.port}"
    headers = dict(pair.split("=", 1) for pair in args.header)
    model = args.model or _first_model(base, headers, args.ready_check_timeout_sec)
    rng = random.Random(args.seed)
    spread = args.random_range_ratio
    prompts = random_prompts(args.num_prompts, args.random_input_len, spread, args.vocab_size, rng)
    bodies = []
    for prompt in prompts:
        tokens = max(1, round(args.random_output_len * rng.uniform(1 - spread, 1 + spread)))
        body: dict[str, Any] = {"model": model, "max_tokens": tokens, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if args.backend == "openai":
            body["prompt"] = prompt
        else:
            text = " ".join(f"word{token}" for token in prompt)
            body["messages"] = [{"role": "user", "content": text}]
        if args.ignore_eos:
            body["ignore_eos"] = True
        if args.temperature is not None:
            body["temperature"] = args.temperature
        bodies.append(body | args.extra_body)
    load = Load(
        base + (args.endpoint or ENDPOINTS[args.backend]),
        bodies,
        [len(prompt) for prompt in prompts],
        args.request_rate,
        args.burstiness,
        args.max_concurrency,
        args.seed,
        headers,
    )
    return load, model


def _first_model(base: str, headers: Mapping[str, str], timeout: float) -> str:
    from urllib.error import URLError
    from urllib.request import ProxyHandler, Request, build_opener

    end = time.monotonic() + timeout
    opener = build_opener(ProxyHandler({}))
    while True:
        try:
            with opener.open(Request(f"{base}/v1/models", headers=dict(headers)), timeout=10) as r:
                return str(json.load(r)["data"][0]["id"])
        except (URLError, OSError) as error:
            if time.monotonic() > end:
                raise ValueError(f"no server answers at {base}: {error}; is it running?") from error
            time.sleep(0.5)


def _slos(words: Sequence[str]) -> dict[str, float]:
    slos = {}
    for word in words:
        name, colon, limit = word.partition(":")
        if not colon or name not in ("ttft", "tpot", "e2el"):
            raise ValueError(f"--goodput has {word!r}; it must be ttft:MS, tpot:MS or e2el:MS")
        slos[name] = float(limit)
    return slos


def _save(args: argparse.Namespace, figures: Mapping[str, Any]) -> None:
    name = args.result_filename or f"{args.backend}-{figures['date']}.json"
    args.result_dir.mkdir(parents=True, exist_ok=True)
    (args.result_dir / name).write_text(json.dumps(figures) + "\n", encoding="utf-8")


def report(figures: Mapping[str, Any], percentiles: Sequence[float]) -> str:
    """A table for people."""
    lines = [
        f"{figures['completed']} requests in {figures['duration']:.2f} s, "
        f"{figures['failed']} failed",
        f"requests/s     {figures['request_throughput']:.2f}",
        f"output         {figures['output_throughput']:.1f} tokens/s",
        f"total          {figures['total_token_throughput']:.1f} tokens/s",
    ]
    if figures["request_goodput"] is not None:
        lines.insert(2, f"goodput        {figures['request_goodput']:.2f} requests/s")
    words = [str(int(p)) if p == int(p) else str(p) for p in percentiles]
    lines.append(
        " " * 15 + "".join(f"{c:>10}" for c in ("mean", "median", *(f"p{w}" for w in words)))
    )
    for name in METRICS:
        keys = (f"mean_{name}_ms", f"median_{name}_ms", *(f"p{w}_{name}_ms" for w in words))
        lines.append(
            f"{name.upper():<4} in ms     " + "".join(f"{figures[k]:>10.2f}" for k in keys)
        )
    return "\n".join(lines)


def plot(results: Sequence[RequestResult], file: Path) -> None:
    """TTFT over the time of sending, and the distribution of inter-token latencies."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    good = [result for result in results if result.success]
    begin = min((result.start_time for result in good), default=0.0)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    left.plot([r.start_time - begin for r in good], [r.ttft * 1000 for r in good], ".")
    left.set(xlabel="sent after (s)", ylabel="time to first token (ms)")
    right.hist([gap * 1000 for r in good for gap in r.itl], bins=50)
    right.set(xlabel="inter-token latency (ms)", ylabel="chunks")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
