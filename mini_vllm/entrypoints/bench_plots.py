"""Plots of a run of ``bench serve``: latencies, a timeline of requests, and lengths.

Source: vllm/benchmarks/plot.py#L25-L120 (generate_timeline_plot) @ v0.22.1
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_vllm.entrypoints.load import RequestResult
from mini_vllm.extras import from_extra

COLORS = ("#636efa", "#109618", "#ff7f0e", "#d62728")
"""Colors of the time to first token, and of gaps below, between and above the two thresholds."""
PLOT_FORMATS = ("png", "pdf", "svg", "jpg")
ROW, WIDTH, LABELS = 14, 1200, 60
"""Sizes of the timeline in pixels: the height of a row, the width, and the width of the labels."""


def pyplot() -> Any:
    """Matplotlib's pyplot, drawing into files. Raises ValueError if it is not installed."""
    with from_extra("bench", "a plot"):
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    return plt


def plot_latencies(results: Sequence[RequestResult], file: Path) -> None:
    """TTFT over the time of sending, and the distribution of inter-token latencies."""
    plt = pyplot()
    good = [result for result in results if result.success]
    begin = min((result.start_time for result in good), default=0.0)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    left.plot([r.start_time - begin for r in good], [r.ttft * 1000 for r in good], ".")
    left.set(xlabel="sent after (s)", ylabel="time to first token (ms)")
    right.hist([gap * 1000 for r in good for gap in r.itl], bins=50)
    right.set(xlabel="inter-token latency (ms)", ylabel="chunks")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def plot_dataset(results: Sequence[RequestResult], file: Path) -> None:
    """Histograms of the lengths of prompts, answers and both, and a bar for each request.

    Source: vllm/benchmarks/plot.py#L227-L316 (generate_dataset_stats_plot) @ v0.22.1
    """
    plt = pyplot()
    prompts = [result.prompt_len for result in results]
    outputs = [result.output_tokens for result in results]
    totals = [result.prompt_len + result.output_tokens for result in results]
    figure, axes = plt.subplots(2, 2, figsize=(11, 8))
    named = zip(axes.flat, (prompts, outputs, totals), ("prompt", "output", "total"), strict=False)
    for axis, values, name in named:
        axis.hist(values, bins=30)
        axis.set(xlabel=f"{name} tokens", ylabel="requests")
    numbers = range(len(results))
    axes[1, 1].bar(numbers, prompts, label="prompt")
    axes[1, 1].bar(numbers, outputs, bottom=prompts, label="output")
    axes[1, 1].set(xlabel="request", ylabel="tokens")
    axes[1, 1].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def write_timeline(
    results: Sequence[RequestResult], thresholds: tuple[float, float], file: Path
) -> None:
    """An HTML page with one row per request: a bar until its first token, then one for each gap.

    ::

        0   ▇▇▇▇▇▇▇▇▇▇▇│▂▂│▂▂│▂▂▂▂│▂▂│
        1      ▇▇▇▇▇▇▇▇▇▇▇▇│▂▂│▂▂▂▂│▂▂│          it needs nothing but a browser

    Args:
        thresholds: in seconds, ascending; they choose a gap's color.

    Source: vllm/benchmarks/plot.py#L25-L120 (generate_timeline_plot) @ v0.22.1
    """
    good = [(i, result) for i, result in enumerate(results) if result.success]
    begin = min((result.start_time for _, result in good), default=0.0)
    end = max((result.start_time + result.latency for _, result in good), default=begin + 1.0)
    scale = (WIDTH - LABELS) / max(end - begin, 1e-9)
    rows = [
        _row(place, number, result, begin, scale, thresholds)
        for place, (number, result) in enumerate(good)
    ]
    low, high = (f"{limit * 1000:g} ms" for limit in thresholds)
    names = ("time to first token", f"gap below {low}", f"{low} to {high}", f"from {high} on")
    legend = " ".join(
        f'<span style="color:{color}">■</span> {name}'
        for color, name in zip(COLORS, names, strict=True)
    )
    height = ROW * len(rows) + 4
    file.write_text(
        '<!doctype html><meta charset="utf-8"><title>Timeline of requests</title>\n'
        f'<body style="font:13px sans-serif"><p>{legend}; {end - begin:.2f} s in all</p>\n'
        f'<svg width="{WIDTH}" height="{height}">\n' + "\n".join(rows) + "\n</svg></body>\n",
        encoding="utf-8",
    )


def _row(
    place: int,
    number: int,
    result: RequestResult,
    begin: float,
    scale: float,
    thresholds: tuple[float, float],
) -> str:
    """One request's bars, with tooltips."""
    y, x = place * ROW, LABELS + (result.start_time - begin) * scale
    about = f"request {number}: {result.prompt_len} + {result.output_tokens} tokens"
    bars = [f'<text x="0" y="{y + ROW - 3}">{number}</text>']
    kinds = [(0, "first token", result.ttft)]
    kinds += [(1 + sum(gap >= limit for limit in thresholds), "gap", gap) for gap in result.itl]
    for kind, name, seconds in kinds:
        title = html.escape(f"{about}; {name} {seconds * 1000:.1f} ms")
        bars.append(
            f'<rect x="{x:.2f}" y="{y}" width="{seconds * scale:.2f}" height="{ROW - 2}" '
            f'fill="{COLORS[kind]}"><title>{title}</title></rect>'
        )
        x += seconds * scale
    return "".join(bars)
