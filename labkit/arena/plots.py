"""The pictures of a contest: goodput, latencies, and the cache over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from labkit.arena.contest import Outcome
from labkit.arena.report import share, short_name
from labkit.arena.workloads import WORKLOADS, Workload

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = ("#999999", "#E69F00", "#56B4E9", "#CC79A7", "#009E73", "#0072B2", "#D55E00", "#000000")
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlesize": 9.5,
}


def save_all(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Draw every picture into `folder`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    played = [outcome for outcome in outcomes if outcome.figures is not None]
    if not played:
        return []
    pictures = {"goodput": goodput(outcomes), "latency": latency(played), "kv": kv_use(played)}
    paths = []
    for name, figure in pictures.items():
        path = folder / f"arena-{name}.png"
        figure.savefig(path, bbox_inches="tight", dpi=140, metadata={"Software": None})
        plt.close(figure)
        paths.append(path)
    return paths


def goodput(outcomes: Sequence[Outcome]) -> Any:
    """A panel for each workload, a bar for each policy; beside it the share within the SLO."""
    workloads, policies = _workloads(outcomes), _policies(outcomes)
    columns = min(3, len(workloads))
    rows = -(-len(workloads) // columns)
    height = 0.55 + 0.24 * len(policies)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            rows, columns, figsize=(3.3 * columns, height * rows), squeeze=False, layout="tight"
        )
        for axis in axes.flat[len(workloads) :]:
            axis.axis("off")
        for axis, workload in zip(axes.flat, workloads, strict=False):
            row = {o.match.policy: o for o in outcomes if o.match.workload == workload.name}
            _goodput_bars(axis, [(p, row.get(p)) for p in policies], _colours(policies))
            axis.set_title(workload.name, loc="left")
    return figure


def _goodput_bars(
    axis: Any, row: Sequence[tuple[str, Outcome | None]], colours: dict[str, str]
) -> None:
    values = [o.figures.goodput if o and o.figures else 0.0 for _, o in row]
    axis.barh(range(len(row)), values, color=[colours[p] for p, _ in row], height=0.72)
    for place, (_, outcome) in enumerate(row):
        figures = outcome.figures if outcome else None
        text = f"{figures.goodput:.2f}/s, {share(figures.within_slo)}" if figures else "out"
        axis.text(values[place] + 0.02 * max(values), place, text, va="center", fontsize=7.5)
    axis.set_yticks(range(len(row)), [short_name(p) for p, _ in row])
    axis.set_xlim(0, max(values) * 1.42 or 1.0)
    axis.set_xticks([])
    axis.invert_yaxis()
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(length=0)


def latency(played: Sequence[Outcome]) -> Any:
    """How many requests had to wait at most so long: TTFT above, TPOT below."""
    workloads, policies = _workloads(played), _policies(played)
    colours = _colours(policies)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            2, len(workloads), figsize=(2.25 * len(workloads) + 0.4, 4.2), squeeze=False,
            sharey=True, layout="tight",
        )  # fmt: skip
        for column, workload in enumerate(workloads):
            rows = [o for o in played if o.match.workload == workload.name]
            _cumulative(axes[0, column], rows, "ttft", workload, colours)
            _cumulative(axes[1, column], rows, "tpot", workload, colours)
            axes[0, column].set_title(workload.name, loc="left")
        axes[0, 0].set_ylabel("share of requests")
        axes[1, 0].set_ylabel("share of requests")
        handles = [plt.Line2D([], [], color=colours[p], label=short_name(p)) for p in policies]
        handles.append(plt.Line2D([], [], color="#444", linestyle=":", label="SLO"))
        figure.legend(
            handles=handles, loc="upper center", ncols=len(handles), frameon=False,
            bbox_to_anchor=(0.5, 0.0),
        )  # fmt: skip
    return figure


def _cumulative(
    axis: Any, rows: Sequence[Outcome], what: str, workload: Workload, colours: dict[str, str]
) -> None:
    """The empirical distribution of one latency, with the promises as dotted lines."""
    shares = np.linspace(0, 1, 101)
    for place, outcome in enumerate(rows):
        assert outcome.run is not None
        values = [getattr(served, what) for served in outcome.run.served]
        axis.plot(
            np.quantile(values, shares), shares, color=colours[outcome.match.policy],
            linewidth=1.2 + 0.4 * (len(rows) - 1 - place),  # so that a line under another shows
        )  # fmt: skip
    for slo in workload.slos.values():
        axis.axvline(getattr(slo, what), color="#444", linestyle=":", linewidth=1)
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(f"{what.upper()}, seconds")
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.25, linewidth=0.5)


def kv_use(played: Sequence[Outcome]) -> Any:
    """The share of held blocks over time, in the workload that uses them most."""
    name = max(played, key=lambda o: o.figures.kv_mean if o.figures else 0.0).match.workload
    rows = [o for o in played if o.match.workload == name]
    colours = _colours(_policies(played))
    longest = max(o.run.seconds for o in rows if o.run)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(rows), 1, figsize=(8.2, 0.95 * len(rows) + 0.5), squeeze=False, sharex=True,
            layout="tight",
        )  # fmt: skip
        for axis, outcome in zip(axes.flat, rows, strict=True):
            _kv_curve(axis, outcome, colours[outcome.match.policy])
            axis.set_xlim(0, longest)
        axes[-1, 0].set_xlabel(f"{name}: seconds")
    return figure


def _kv_curve(axis: Any, outcome: Outcome, colour: str) -> None:
    run = outcome.run
    assert run is not None
    times = [sample.time for sample in run.samples]
    held = [sample.kv_use for sample in run.samples]
    axis.fill_between(
        [0.0, *times], [0.0, *held], step="pre", color=colour, alpha=0.75, linewidth=0
    )
    axis.set_ylim(0, 1)
    axis.set_yticks([0, 1], ["0 %", "100 %"])
    facts = f"{short_name(outcome.match.policy)}: {run.preemptions} preemptions, "
    facts += f"{run.recomputed_tokens:,} tokens recomputed, {run.swapped_blocks:,} blocks swapped"
    axis.set_title(facts, loc="left", fontweight="normal")


def _workloads(outcomes: Sequence[Outcome]) -> list[Workload]:
    return [WORKLOADS[name] for name in dict.fromkeys(o.match.workload for o in outcomes)]


def _policies(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(o.match.policy for o in outcomes))


def _colours(policies: Sequence[str]) -> dict[str, str]:
    return {policy: COLOURS[i % len(COLOURS)] for i, policy in enumerate(policies)}
