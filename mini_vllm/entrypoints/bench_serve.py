"""``python -m mini_vllm bench serve``: how a server behaves under load, seen from outside.

Works against any server with OpenAI's interface. What it measures stands in
:mod:`mini_vllm.entrypoints.load`.

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

from mini_vllm.entrypoints.load import (
    METRICS,
    RequestResult,
    arrival_times,
    details,
    send,
    summarize,
)

ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
SAMPLING = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float,
    "frequency_penalty": float, "presence_penalty": float, "repetition_penalty": float,
}  # fmt: skip
"""Options that go into every request as they are."""


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
    add("--served-model-name", help="what requests call the model, if not --model")
    add("--tokenizer", help="vLLM's; not needed, for prompts are token ids")
    add("--disable-tqdm", action="store_true", help="vLLM's; there is no bar")
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
    for name, kind in SAMPLING.items():
        add("--" + name.replace("_", "-"), type=kind)
    add("--header", nargs="*", default=[], metavar="KEY=VALUE")
    add("--extra-body", type=json.loads, default={}, metavar="JSON")
    add("--percentile-metrics", default=",".join(METRICS), help="of which, with commas")
    add("--metric-percentiles", default="99", help="with commas")
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="such as ttft:200 tpot:50")
    add("--ready-check-timeout-sec", type=int, default=0)
    add("--save-result", action="store_true")
    add("--save-detailed", action="store_true")
    add("--result-dir", type=Path, default=Path("."))
    add("--result-filename")
    add("--append-result", action="store_true", help="behind what the file holds, a line each")
    add("--label", help="a name for this run, kept in its result")
    add("--metadata", nargs="*", default=[], metavar="KEY=VALUE", help="kept in the result")
    add("--plot", type=Path, metavar="FILE.png", help="draw TTFT and ITL over the run")
    add("--json", action="store_true", help="the figures as one JSON object")


def run_bench_serve(args: argparse.Namespace) -> int:
    """0 if every request succeeded."""
    shown = _metrics(args.percentile_metrics)
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
        **({} if args.label is None else {"label": args.label}),
        **dict(pair.split("=", 1) for pair in args.metadata),
    }
    print(json.dumps(figures) if args.json else report(figures, percentiles, shown))
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
    for option in ("header", "metadata"):
        for pair in getattr(args, option):
            if "=" not in pair:
                raise ValueError(f"--{option} has {pair!r}; it must be KEY=VALUE")
    headers = dict(pair.split("=", 1) for pair in args.header)
    model = (
        args.served_model_name
        or args.model
        or _first_model(base, headers, args.ready_check_timeout_sec)
    )
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
        given = {name: getattr(args, name) for name in SAMPLING}
        body |= {name: value for name, value in given.items() if value is not None}
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


def _metrics(words: str) -> list[str]:
    """The metrics to show, by name."""
    unknown = [word for word in words.split(",") if word not in METRICS]
    if unknown:
        raise ValueError(
            f"--percentile-metrics has {unknown[0]!r}; it must be of {', '.join(METRICS)}"
        )
    return words.split(",")


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
    with open(args.result_dir / name, "a" if args.append_result else "w", encoding="utf-8") as file:
        file.write(json.dumps(figures) + "\n")


def report(
    figures: Mapping[str, Any], percentiles: Sequence[float], shown: Sequence[str] = METRICS
) -> str:
    """A table for people, of the metrics ``shown``."""
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
    for name in shown:
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
