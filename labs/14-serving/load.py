"""Load of a benchmark: arrival times, one request as the client sees it, and the metrics.

::

    sent ──────────► first chunk ──► chunk ──► chunk ──► last chunk
      └──── TTFT ────────┘   └─ ITL ─┘                       │
      └───────────────────── E2EL ───────────────────────────┘
    TPOT = (E2EL - TTFT) / (tokens - 1), tokens from the server's usage: a chunk may hold several

Source: vllm/benchmarks/serve.py#L244-L344 (get_request) @ v0.22.1
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

METRICS = ("ttft", "tpot", "itl", "e2el")
RAMP_UPS = ("linear", "exponential")


# ---------------------------------------------------------------------- arrivals


def arrival_times(
    num_requests: int, rate: float, burstiness: float, rng: np.random.Generator
) -> list[float]:
    """When each request is sent, in seconds from the start, ascending.

    The gaps are drawn from a gamma distribution with mean ``1 / rate`` and shape ``burstiness``:
    1 is a Poisson process, less than 1 gives bursts, infinity gives equal gaps. There is a gap
    before the first request, too. The times are then scaled so that the last is
    ``num_requests / rate``: so the mean rate is exactly the given one. All times are fixed
    beforehand: otherwise a slow server would slow its clients down, and the load would shrink
    under overload.

    Args:
        rate: requests a second; infinite: all at once.

    Source: vllm/benchmarks/serve.py#L288-L335 (get_request) @ v0.22.1
    """
    # TODO 14.13
    raise NotImplementedError(
        "TODO 14.13: write arrival_times in labs/14-serving/load.py"
        " (phase 14, 02-mini-build.md#task-13)"
    )


def ramp_up_times(
    num_requests: int,
    strategy: str,
    start_rps: float,
    end_rps: float,
    burstiness: float,
    rng: np.random.Generator,
) -> tuple[list[float], list[float]]:
    """When each request is sent if the rate grows during the run, and the rate at that time.

    The rate goes from ``start_rps`` for the first request to ``end_rps`` for the last, by equal
    steps a request ("linear") or by equal factors ("exponential"); the gap before a request is
    drawn as in :func:`arrival_times`, with its own mean. The times are not scaled: how long the
    run takes is not known beforehand.

    Raises:
        ValueError: for another strategy, or rates that are not above 0.

    Source: vllm/benchmarks/serve.py#L222-L244 (_get_current_request_rate) @ v0.22.1
    """
    if strategy not in RAMP_UPS or not 0 < start_rps <= end_rps:
        raise ValueError(
            f"a {strategy!r} ramp-up from {start_rps} to {end_rps} requests/s: it must be "
            f"{' or '.join(RAMP_UPS)}, from above 0 to at least as much"
        )
    progress = np.arange(num_requests) / max(num_requests - 1, 1)
    if strategy == "linear":
        rates = start_rps + (end_rps - start_rps) * progress
    else:
        rates = start_rps * (end_rps / start_rps) ** progress
    gaps = 1.0 / rates
    if not math.isinf(burstiness):
        gaps = rng.gamma(burstiness, gaps / burstiness)
    return np.cumsum(gaps).tolist(), rates.tolist()


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
    pieces: list[tuple[bytes, float]] = field(default_factory=list, repr=False)
    """Bytes with their arrival times, until :func:`read_pieces` has read them."""

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
    """Parses the bytes of a stream as they arrive, and fills in a result.

    An empty line separates events; a piece from the network may end anywhere. An error event is a
    failure, and so is a stream that ends without ``[DONE]``.
    """

    def __init__(self, result: RequestResult) -> None:
        self.result = result
        self.done = False
        self._rest = b""
        self._num_chunks = 0
        self._last = result.start_time

    def feed(self, data: bytes, now: float) -> None:
        data = self._rest + data
        if b"\r" in data:  # some servers end lines with \r\n, which two pieces may share
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._take(line.removeprefix(b"data:"), now)

    def _take(self, payload: bytes, now: float) -> None:
        if payload.strip() == b"[DONE]":
            self.done = True
            return
        body = msgspec.json.decode(payload)
        if error := body.get("error"):
            is_object = isinstance(error, dict)
            self.result.error = str(error.get("message", error) if is_object else error)
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
            return  # it has only the role
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


async def send(
    session: Any,
    url: str,
    body: Mapping[str, Any],
    result: RequestResult,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send one request and keep the bytes of its answer with their times. An error goes into the
    result.

    The answer is not parsed yet: the client shares the machine with the server, so parsing now
    would delay the tokens whose times are measured.
    """
    result.start_time = time.perf_counter()
    try:
        async with session.post(url, json=body, headers=headers) as answer:
            if answer.status != 200:
                result.error = f"{answer.status}: {(await answer.text())[:300]}"
                return
            async for data in answer.content.iter_any():
                result.pieces.append((data, time.perf_counter()))
    except Exception as error:
        result.error = f"{type(error).__name__}: {error}"


def read_pieces(result: RequestResult) -> None:
    """Parse a stream that has ended, with the times at which its pieces arrived."""
    reader, failure = StreamReader(result), result.error
    try:
        for data, now in result.pieces:
            reader.feed(data, now)
        if not failure:
            reader.end()
    except Exception as error:
        result.error = f"{type(error).__name__}: {error}"
    result.error = failure or result.error
    result.pieces.clear()


# ---------------------------------------------------------------------- figures


def goodput(results: Sequence[RequestResult], slos: Mapping[str, float], duration: float) -> float:
    """Requests a second that met *all* of their objectives. A limit may be reached, not exceeded.

    Args:
        results: of successful requests; each has its own `ttft`, `tpot` and `latency`, in seconds.
        slos: limits in milliseconds by name: "ttft", "tpot" or "e2el".
        duration: of the run, in seconds.

    Source: vllm/benchmarks/serve.py#L455-L485 (calculate_metrics) @ v0.22.1
    """
    # TODO 14.13
    raise NotImplementedError(
        "TODO 14.13: write goodput in labs/14-serving/load.py"
        " (phase 14, 02-mini-build.md#task-13)"
    )


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
        **peaks(good),
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


def peaks(good: Sequence[RequestResult]) -> dict[str, float]:
    """Peaks over all seconds: the most chunks that arrived, and the most requests that ran.

    Seconds are counted from the first request. As in vLLM, a chunk counts as one token.

    Source: vllm/benchmarks/serve.py#L486-L545 (calculate_metrics) @ v0.22.1
    """
    begin = min((result.start_time for result in good), default=0.0)
    tokens: Counter[int] = Counter()
    running: Counter[int] = Counter()
    for result in good:
        sent = result.start_time - begin
        arrivals = np.cumsum([sent + result.ttft, *result.itl])
        tokens.update(arrivals.astype(int).tolist())
        running.update(range(int(sent), int(sent + result.latency) + 1))
    return {
        "max_output_tokens_per_s": float(max(tokens.values(), default=0)),
        "max_concurrent_requests": max(running.values(), default=0),
    }


def details(results: Sequence[RequestResult]) -> dict[str, Any]:
    """Measurements of each request, in parallel lists."""
    return {
        "input_lens": [result.prompt_len for result in results],
        "output_lens": [result.output_tokens for result in results],
        "ttfts": [result.ttft for result in results],
        "itls": [result.itl for result in results],
        "start_times": [result.start_time for result in results],
        "generated_texts": [result.text for result in results],
        "errors": [result.error for result in results],
    }
