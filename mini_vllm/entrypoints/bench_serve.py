"""``python -m mini_vllm bench serve``: measure a server under load, as its clients see it.

Works with any server that has OpenAI's interface. :mod:`mini_vllm.entrypoints.load` defines the
metrics.

Source: vllm/benchmarks/serve.py#L244-L344 (get_request) @ v0.22.1
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mini_vllm.entrypoints import bench_words
from mini_vllm.entrypoints.bench_files import Sample
from mini_vllm.entrypoints.bench_plots import (
    PLOT_FORMATS,
    plot_dataset,
    plot_latencies,
    pyplot,
    write_timeline,
)
from mini_vllm.entrypoints.bench_requests import (
    SAMPLING,
    SMALLEST,
    TOKENIZED,
    add_dataset_options,
    make_bodies,
    make_samples,
)
from mini_vllm.entrypoints.bench_target import Target, draft_figures
from mini_vllm.entrypoints.load import (
    METRICS,
    RAMP_UPS,
    RequestResult,
    arrival_times,
    details,
    ramp_up_times,
    read_pieces,
    send,
    summarize,
)
from mini_vllm.extras import from_extra

ENDPOINTS = {
    "openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions",
}  # fmt: skip
READ_AFTERWARDS = 1000
"""Runs with at most this many requests parse the answers after the end; the unparsed answers of
more requests would fill the memory."""
LEAST = {"max_concurrency": 1, "num_warmups": 0, "seed": 0, **SMALLEST}
"""The smallest legal values of options, including those of data sets."""
SWITCHES = ("disable-tqdm", "skip-chat-template", "skip-tokenizer-init", "trust-remote-code")
IGNORED = {
    "tokenizer-mode": "there is one mode only",
    "skip-chat-template": "prompts are sent as they are (--backend openai-chat: as messages)",
    "skip-tokenizer-init": "a tokenizer is loaded only where a data set needs it",
    "trust-remote-code": "no code of a model is ever run",
    "disable-tqdm": "no progress bar is shown",
}
"""Options of vLLM that are accepted and ignored, with the reason."""
REFUSED = {
    "the benchmark has no beam search; leave it out": ("use-beam-search",),
    "prompts are not fetched from a hub; write them to a file, for --dataset-name custom": (
        "no-stream", "hf-subset", "hf-split", "hf-name", "hf-output-len", "sonnet-input-len",
        "sonnet-output-len", "sonnet-prefix-len", "spec-bench-output-len",
        "spec-bench-category", "speed-bench-dataset-subset", "speed-bench-output-len",
        "speed-bench-category", "blazedit-min-distance", "blazedit-max-distance",
    ),
    "prompts are text here": (
        "enable-multimodal-chat", "random-mm-base-items-per-request",
        "random-mm-num-mm-items-range-ratio", "random-mm-limit-mm-per-prompt",
        "random-mm-bucket-config", "asr-max-audio-len-sec", "asr-min-audio-len-sec",
    ),
    "models generate here, and neither embed nor rank": ("random-batch-size", "no-reranker"),
}  # fmt: skip
"""Options of vLLM that are refused by name, by what to do instead."""


# ---------------------------------------------------------------------- a run


@dataclass
class Load:
    """The requests of a run, and their times.

    Attributes:
        prompt_lens: in tokens; replaced by the server's usage, if it reports any.
        times: in seconds from the start; None: all at once.
        rates: requests/s at the time of each request, if the load ramps up.
        headers: of every request.
        request_ids: one per request, sent as X-Request-Id.
        insecure: do not verify the server's certificate.
    """

    url: str
    bodies: list[dict[str, Any]]
    prompt_lens: list[int]
    times: list[float] | None = None
    rates: list[float] | None = None
    max_concurrency: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    request_ids: list[str] = field(default_factory=list)
    insecure: bool = False

    def cut(self, num_requests: int) -> Load:
        """The first requests of the load, all at once."""
        bodies, lens = self.bodies[:num_requests], self.prompt_lens[:num_requests]
        return replace(self, bodies=bodies, prompt_lens=lens, times=None, rates=None)


async def run_load(load: Load) -> tuple[list[RequestResult], float]:
    """Send all requests. Returns their results in order, and the seconds until the last answer."""
    import aiohttp

    results = [RequestResult(length) for length in load.prompt_lens]
    is_read_afterwards = len(results) <= READ_AFTERWARDS
    gate = asyncio.Semaphore(load.max_concurrency or len(load.bodies))
    connector = aiohttp.TCPConnector(limit=0, ssl=not load.insecure)
    timeout = aiohttp.ClientTimeout(total=6 * 3600)

    async def one(index: int) -> None:
        name = {"X-Request-Id": load.request_ids[index]} if load.request_ids else None
        async with gate:
            await send(session, load.url, load.bodies[index], results[index], name)
        if not is_read_afterwards:
            read_pieces(results[index])

    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=load.headers, trust_env=False
    ) as session:
        start = time.perf_counter()
        tasks = []
        for index, when in enumerate(load.times or [0.0] * len(load.bodies)):
            delay = start + when - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(asyncio.create_task(one(index)))
        await asyncio.gather(*tasks)
        duration = time.perf_counter() - start
    for result in results if is_read_afterwards else ():
        read_pieces(result)
    return results, duration


def drive(load: Load) -> tuple[list[RequestResult], float]:
    """:func:`run_load`, on uvloop if it is installed, because a faster client leaves more of the
    machine to the server."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(run_load(load))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_load(load))


def add_bench_serve_options(parser: argparse.ArgumentParser) -> None:
    """Source: vllm/benchmarks/serve.py#L1240-L1640 (add_cli_args) @ v0.22.1"""
    add = parser.add_argument
    add("--backend", choices=tuple(ENDPOINTS), default="openai",
        help="interface of the server (default openai: completions)")  # fmt: skip
    add("--base-url", help="such as http://127.0.0.1:8000, instead of --host and --port")
    add("--host", default="127.0.0.1", help="of the server (default 127.0.0.1)")
    add("--port", type=int, default=8000, help="of the server (default 8000)")
    add("--endpoint", help="path; default: that of the backend")
    add("--insecure", action="store_true", help="take the server's certificate as it is")
    add("--model", help="the model's name; default: the first that the server has")
    add("--served-model-name", help="what requests call the model, if not --model")
    add("--lora-modules", nargs="+", metavar="NAME", help="adapters that answer, one a request")
    add("--lora-assignment", choices=("random", "round-robin"), default="random",
        help="which of them a request gets (default random)")  # fmt: skip
    add_dataset_options(parser)
    add("--tokenizer", help="that counts conversations; default: that of the model")
    add("--request-rate", type=float, default=math.inf, help="requests/s (default: all at once)")
    add("--burstiness", type=float, default=1.0,
        help="of arrivals; 1: Poisson (default), below: in bursts, above: evenly")  # fmt: skip
    add("--ramp-up-strategy", choices=RAMP_UPS, help="let the rate grow over the run")
    add("--ramp-up-start-rps", type=float, metavar="RATE", help="of the first request")
    add("--ramp-up-end-rps", type=float, metavar="RATE", help="of the last")
    add("--max-concurrency", type=int, help="most requests at once (default: no limit)")
    add("--num-warmups", type=int, default=0, help="requests before the first that counts")
    add("--profile", action="store_true", help="have the server record itself meanwhile")
    add("--ignore-eos", action="store_true", help="answers have their full length")
    add("--logprobs", type=int, metavar="N", help="ask for those of each token and N others")
    for name, number in SAMPLING.items():
        about = f"of every request: {number.about}"
        add("--" + name.replace("_", "-"), type=number.plain, help=about)
    add("--header", nargs="*", default=[], metavar="KEY=VALUE", help="sent with requests")
    add("--extra-body", type=bench_words.json_object, default={}, metavar="JSON",
        help="fields that every request has, too")  # fmt: skip
    add("--request-id-prefix", help="requests carry it and their number as X-Request-Id")
    add("--percentile-metrics", default=",".join(METRICS), help="of which, with commas")
    add("--metric-percentiles", default="99", help="with commas")
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="such as ttft:200 tpot:50")
    add("--ready-check-timeout-sec", type=int, default=0,
        help="how long to wait for the server to answer (default 0)")  # fmt: skip
    add("--save-result", action="store_true", help="write the figures into a file")
    add("--save-detailed", action="store_true", help="with those of each request")
    add("--result-dir", type=Path, default=Path("."), help="folder of that file (default: here)")
    add("--result-filename", metavar="NAME", help="its name; default: backend, rate, model, time")
    add("--append-result", action="store_true", help="behind what the file holds, a line each")
    add("--label", help="a name for this run, kept in its result")
    add("--metadata", nargs="*", default=[], metavar="KEY=VALUE", help="kept in the result")
    add("--plot", type=Path, metavar="FILE.png", help="draw TTFT and ITL over the run")
    add("--plot-timeline", action="store_true", help="a page that shows when each request ran")
    add("--timeline-itl-thresholds", default="25,50", metavar="MS,MS", help="of its colors")
    add("--plot-dataset-stats", action="store_true", help="draw how long prompts and answers were")
    add("--json", action="store_true", help="the figures as one JSON object")
    for name, about in IGNORED.items():
        add(
            f"--{name}",
            action="store_true" if name in SWITCHES else "store",
            help="vLLM's; " + about,
        )
    for about, names in REFUSED.items():
        for name in names:
            add(f"--{name}", nargs="*", action=_Refused, about=about, help=argparse.SUPPRESS)


class _Refused(argparse.Action):
    """An option of vLLM that is refused with a hint what to do instead."""

    def __init__(self, *args: Any, about: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.about = about

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error(f"{self.option_strings[0]} is not supported; {self.about}")


def run_bench_serve(args: argparse.Namespace) -> int:
    """Run ``bench serve``; returns 0 if every request succeeded. Options are checked before the
    load.

    Raises:
        ValueError: for an invalid option, a server that does not answer, or a missing package.
    """
    with from_extra("serve", "bench serve"):
        import aiohttp  # noqa: F401
        import prometheus_client  # noqa: F401
    if args.plot is not None or args.plot_dataset_stats:
        pyplot()
    shown = bench_words.metrics(args.percentile_metrics)
    thresholds = bench_words.thresholds(args.timeline_itl_thresholds)
    percentiles = bench_words.percentiles(args.metric_percentiles)
    slos = bench_words.slos(args.goodput)
    target = _target(args)
    load, model = _make_load(args, target)
    _check_files(args)
    if args.num_warmups:
        drive(load.cut(args.num_warmups))
    if args.profile:
        target.profile("start")
    drafts = target.draft_counts()
    started = datetime.datetime.now()
    results, duration = drive(load)
    drafted = draft_figures(drafts, target.draft_counts())
    if args.profile:
        target.profile("stop")
    figures: dict[str, Any] = {
        "date": started.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": model,
        "tokenizer_id": args.tokenizer,
        "num_prompts": len(load.bodies),
        **dict(pair.split("=", 1) for pair in args.metadata),
        "request_rate": "inf" if math.isinf(args.request_rate) else args.request_rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        **_ramp_up(args, load, started),
        **summarize(results, duration, percentiles, slos),
        **drafted,
    }
    print(json.dumps(figures) if args.json else report(figures, percentiles, shown))
    for error in list(dict.fromkeys(r.error for r in results if r.error))[:10]:
        print(f"failed: {error}", file=sys.stderr)
    path = _result_path(args, figures)
    if args.save_result or args.save_detailed or args.append_result:
        _save(args, path, figures | (details(results) if args.save_detailed else {}))
    if args.plot is not None:
        plot_latencies(results, args.plot)
    if args.plot_timeline or args.plot_dataset_stats:
        path.parent.mkdir(parents=True, exist_ok=True)
    if args.plot_timeline:
        write_timeline(results, thresholds, path.with_suffix(".timeline.html"))
    if args.plot_dataset_stats:
        plot_dataset(results, path.with_suffix(".dataset_stats.png"))
    return 1 if figures["failed"] else 0


def _target(args: argparse.Namespace) -> Target:
    """The server to measure. Raises ValueError for an invalid URL or header."""
    for option in ("header", "metadata"):
        for pair in getattr(args, option):
            if "=" not in pair:
                raise ValueError(f"--{option} has {pair!r}; it must be KEY=VALUE")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    headers |= dict(pair.split("=", 1) for pair in args.header)
    return Target(_base_url(args), headers, args.insecure)


def _as_texts(samples: list[Sample], target: Target, model: str) -> list[Sample]:
    """Samples for chats, which take no token ids; as they are, if the server has no tokenizer."""
    drawn = [sample.prompt for sample in samples if not isinstance(sample.prompt, str)]
    texts = target.texts(model, drawn)
    if texts is None or len(texts) < len(samples):  # or they are texts
        return samples
    return [replace(sample, prompt=text) for sample, text in zip(samples, texts, strict=True)]


def _make_load(args: argparse.Namespace, target: Target) -> tuple[Load, str]:
    """The load and the model's name. Raises ValueError for invalid options, and if the server does
    not answer."""
    for name, least in LEAST.items():
        value = getattr(args, name)
        if value is not None and value < least:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} is {value}; it must be at least {least}")
    rng = random.Random(args.seed)
    patience = args.ready_check_timeout_sec
    if args.dataset_name in TOKENIZED and args.tokenizer is None:
        args.tokenizer = args.model or target.first_model(patience)[1]
    samples = make_samples(args, rng)
    times, rates = _times(args, len(samples))
    model = args.served_model_name or args.model or target.first_model(patience)[0]
    if args.backend == "openai-chat":
        samples = _as_texts(samples, target, model)
    prefix = args.request_id_prefix
    load = Load(
        target.base + (args.endpoint or ENDPOINTS[args.backend]),
        make_bodies(args, samples, model, rng),
        [sample.prompt_len for sample in samples],
        times,
        rates,
        args.max_concurrency,
        dict(target.headers),
        [] if prefix is None else [f"{prefix}{number}" for number in range(len(samples))],
        args.insecure,
    )
    return load, model


def _base_url(args: argparse.Namespace) -> str:
    """The server's URL, without a slash at the end."""
    host = f"[{args.host}]" if ":" in args.host else args.host
    base = (args.base_url or f"http://{host}:{args.port}").rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise ValueError(f"--base-url is {base!r}; it must begin with http:// or https://")
    return base


def _check_files(args: argparse.Namespace) -> None:
    """Raises ValueError for a file that could not be written after the measurement."""
    files = [args.plot] if args.plot is not None else []
    if args.plot is not None and args.plot.suffix[1:] not in PLOT_FORMATS:
        raise ValueError(
            f"--plot is {args.plot}; its name must end with .{', .'.join(PLOT_FORMATS)}"
        )
    if args.save_result or args.save_detailed or args.append_result or args.plot_timeline:
        files.append(Path(args.result_dir, args.result_filename or "result.json"))
    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"{file} could not be written: {error}; choose another folder"
            ) from error
        if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            raise ValueError(f"{file} cannot be written; choose another place for it")


def _times(args: argparse.Namespace, num_requests: int) -> tuple[list[float], list[float] | None]:
    """When each request is sent, and the rate at its time if the rate changes."""
    if not args.request_rate > 0 or not args.burstiness > 0:
        raise ValueError("--request-rate and --burstiness must be above 0")
    draw = np.random.default_rng(args.seed)
    bounds = (args.ramp_up_start_rps, args.ramp_up_end_rps)
    if args.ramp_up_strategy is None:
        if bounds != (None, None):
            raise ValueError(
                "--ramp-up-start-rps and --ramp-up-end-rps belong to a ramp-up; give "
                f"--ramp-up-strategy, {' or '.join(RAMP_UPS)}"
            )
        return arrival_times(num_requests, args.request_rate, args.burstiness, draw), None
    if not math.isinf(args.request_rate):
        raise ValueError("--request-rate is fixed and a ramp-up is not; leave one of them out")
    if None in bounds:
        raise ValueError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    return ramp_up_times(num_requests, args.ramp_up_strategy, *bounds, args.burstiness, draw)


def _ramp_up(args: argparse.Namespace, load: Load, started: datetime.datetime) -> dict[str, Any]:
    """How the rate grew: its bounds, and when it reached each whole number in between.

    Source: vllm/benchmarks/serve.py#L806-L831 (benchmark) @ v0.22.1
    """
    if load.rates is None or load.times is None:
        return {}
    events: list[dict[str, Any]] = [{"rps": int(load.rates[0]), "timestamp": started.isoformat()}]
    for rate, seconds in zip(load.rates, load.times, strict=True):
        when = (started + datetime.timedelta(seconds=seconds)).isoformat()
        first, last = events[-1]["rps"] + 1, int(rate + 1e-9)  # 10.0 may come out as 9.99...
        events += [{"rps": whole, "timestamp": when} for whole in range(first, last + 1)]
    return {
        "ramp_up_strategy": args.ramp_up_strategy,
        "ramp_up_start_rps": args.ramp_up_start_rps,
        "ramp_up_end_rps": args.ramp_up_end_rps,
        "rps_change_events": events,
    }


def _result_path(args: argparse.Namespace, figures: Mapping[str, Any]) -> Path:
    """The file of the results; plots are saved beside it.

    Source: vllm/benchmarks/serve.py#L1203-L1243 (compute_result_filename) @ v0.22.1
    """
    if args.result_filename:
        return Path(args.result_dir, args.result_filename)
    rate = f"{figures['request_rate']}qps"
    if args.ramp_up_strategy is not None:
        bounds = f"{args.ramp_up_start_rps:g}qps-{args.ramp_up_end_rps:g}qps"
        rate = f"ramp-up-{args.ramp_up_strategy}-{bounds}"
    limit = "" if args.max_concurrency is None else f"-concurrency{args.max_concurrency}"
    model = figures["model_id"].rpartition("/")[2]
    label = args.label or args.backend
    return Path(args.result_dir, f"{label}-{rate}{limit}-{model}-{figures['date']}.json")


def _save(args: argparse.Namespace, path: Path, figures: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a" if args.append_result else "w", encoding="utf-8") as file:
        file.write(json.dumps(figures) + "\n")


def report(
    figures: Mapping[str, Any], percentiles: Sequence[float], shown: Sequence[str] = METRICS
) -> str:
    """A readable table of the metrics ``shown``."""
    lines = [
        f"{figures['completed']} requests in {figures['duration']:.2f} s, "
        f"{figures['failed']} failed",
        f"requests/s     {figures['request_throughput']:.2f}",
        f"output         {figures['output_throughput']:.1f} tokens/s",
        f"total          {figures['total_token_throughput']:.1f} tokens/s",
    ]
    lines.append(
        f"in one second  at most {figures['max_output_tokens_per_s']:.0f} chunks, "
        f"{figures['max_concurrent_requests']} requests that ran in it"
    )
    if figures["request_goodput"] is not None:
        lines.insert(2, f"goodput        {figures['request_goodput']:.2f} requests/s")
    if "spec_decode_num_drafts" in figures:
        lines.append(
            f"drafts         {figures['spec_decode_acceptance_rate']:.1f} % of their tokens right, "
            f"{figures['spec_decode_acceptance_length']:.2f} tokens a step"
        )
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
