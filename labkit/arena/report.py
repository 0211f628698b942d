"""Results as tables: on the screen, and in Markdown for the documentation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from labkit.arena.contest import Outcome
from labkit.arena.leaderboard import Entry
from labkit.arena.metrics import Figures, Percentiles
from labkit.arena.score import Score
from labkit.arena.workloads import Workload

Row = tuple[str, Callable[[Figures], float], Callable[[float], str], int]
"""A label, the value, how it is written, and what is best: 1 the highest, -1 the lowest, 0
neither."""


def share(value: float) -> str:
    """Percent; a dash where there was no request."""
    return "–" if math.isnan(value) else f"{value:.0%}"


def number(value: float) -> str:
    return f"{value:,.0f}"


def rate(value: float) -> str:
    return f"{value:.2f}"


def duration(value: float) -> str:
    """Seconds with three digits, in the unit that suits them."""
    return f"{value:.3g} s" if value >= 0.9995 else f"{value * 1000:.3g} ms"


def _percentiles(name: str, get: Callable[[Figures], Percentiles]) -> list[Row]:
    return [
        (f"{name} p50", lambda f: get(f).p50, duration, -1),
        (f"{name} p90", lambda f: get(f).p90, duration, -1),
        (f"{name} p99", lambda f: get(f).p99, duration, -1),
    ]


ROWS: list[Row] = [
    ("goodput, req/s", lambda f: f.goodput, rate, 1),
    ("within SLO", lambda f: f.within_slo, share, 1),
    ("output tok/s", lambda f: f.tokens_per_second, number, 1),
    *_percentiles("TTFT", lambda f: f.ttft),
    *_percentiles("TPOT", lambda f: f.tpot),
    *_percentiles("E2E", lambda f: f.e2e),
    ("KV in use, mean", lambda f: f.kv_mean, share, 0),
    ("KV in use, peak", lambda f: f.kv_peak, share, 0),
    ("prompt from cache", lambda f: f.cached_share, share, 1),
    ("preemptions", lambda f: f.preemptions, number, -1),
    ("recomputed tokens", lambda f: f.recomputed_tokens, number, -1),
    ("swapped blocks", lambda f: f.swapped_blocks, number, 0),
    ("fairness (Jain)", lambda f: f.fairness, rate, 1),
]


def rows_for(workload: Workload) -> list[Row]:
    """The usual rows; with a line for each priority where there are several."""
    if len(workload.slos) == 1:
        return ROWS
    extra: list[Row] = [
        (f"... of priority {p}", lambda f, p=p: f.within_slo_by_priority.get(p, math.nan), share, 1)  # type: ignore[misc]
        for p in workload.slos
    ]
    return [*ROWS[:2], *extra, *ROWS[2:]]


def short_name(policy: str) -> str:
    """`path/to/file.py:Class` without the folders."""
    path, colon, name = policy.rpartition(":")
    return f"{Path(path).name}:{name}" if colon else policy


def promise(workload: Workload) -> str:
    """The SLO in words."""
    parts = [
        ("" if len(workload.slos) == 1 else f"priority {priority}: ")
        + f"TTFT ≤ {duration(slo.ttft)}, TPOT ≤ {duration(slo.tpot)}"
        for priority, slo in workload.slos.items()
    ]
    return "; ".join(parts)


# ------------------------------------------------------------------ on the screen


def match_table(workload: Workload, outcomes: Sequence[Outcome]) -> Group:
    """One workload: a column for each policy, the best of each line in bold."""
    match = outcomes[0].match
    head = Text(f"{workload.name}: {workload.about}", "bold")
    facts = f"seed {match.seed} · {match.requests:,} requests · SLO: {promise(workload)}"
    done = [(o, o.figures) for o in outcomes if o.figures is not None]
    out = [o for o in outcomes if o.disqualified is not None]
    table = Table(box=None, padding=(0, 0, 0, 1))  # narrow: all of ours fit 80 columns
    table.add_column("", no_wrap=True)
    for outcome, _ in done:
        table.add_column(column_name(outcome.match.policy), justify="right", overflow="fold")
    for label, value, write, best in rows_for(workload) if done else []:
        values = [value(figures) for _, figures in done]
        target = max(values) if best > 0 else min(values)
        varies = best != 0 and len(set(values)) > 1
        cells = [
            Text(write(v), "bold green" if varies and write(v) == write(target) else "")
            for v in values
        ]
        table.add_row(label, *cells)
    losers = [
        Text(f"✗ {short_name(o.match.policy)} is disqualified: it {o.disqualified}", "red")
        for o in out
    ]
    return Group(head, Text(facts, "dim"), table, *losers, Text())


def column_name(policy: str) -> str:
    """The name over a column; a long one in two lines."""
    name = short_name(policy)
    cut = name.rfind("-") if len(name) > 9 else -1
    return f"{name[: cut + 1]}\n{name[cut + 1 :]}" if cut > 0 else name


def leaderboard_table(group: Sequence[Entry]) -> Group:
    """Comparable entries, the best first."""
    first = group[0]
    head = (
        f"{first['workload']} · seed {first['seed']} · {first['requests']:,} requests · prices "
        f"{first['cost_model']}"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("", "policy", "goodput", "within SLO", "TTFT p99", "TPOT p99", "fairness"):
        table.add_column(name, justify="left" if name in ("", "policy") else "right")
    for place, item in enumerate(group, 1):
        name = short_name(item["policy"]) + (f" @{item['source'][:6]}" if item["source"] else "")
        figures = item["figures"]
        if figures is None:
            table.add_row("✗", Text(name, "red"), *["–"] * 5)
            continue
        table.add_row(
            str(place),
            name,
            rate(figures["goodput"]),
            share(figures["within_slo"]),
            duration(figures["ttft"]["p99"]),
            duration(figures["tpot"]["p99"]),
            rate(figures["fairness"]),
        )
    return Group(Text(head, "bold"), table, Text())


def score_table(result: Score) -> Group:
    """The capstone's grade, seed by seed."""
    table = Table(box=None, pad_edge=False)
    for name in ("seed", "goodput", "vllm-v1", "ratio"):
        table.add_column(name, justify="right")
    for row in result.rows:
        ratio = row.goodput / row.baseline
        table.add_row(str(row.seed), rate(row.goodput), rate(row.baseline), f"{ratio:.3f}")
    head = Text(f"{short_name(result.policy)} on {result.workload}", "bold")
    if result.disqualified is not None:
        return Group(head, table, Text(f"✗ score 0: it {result.disqualified}", "red"))
    style = "bold green" if result.ratio > 1 else "bold yellow"
    return Group(head, table, Text(f"score {result.ratio:.3f} (above 1 beats vllm-v1)", style))


# ------------------------------------------------------------------ in Markdown


def goodput_matrix(workloads: Sequence[Workload], outcomes: Sequence[Outcome]) -> str:
    """Workloads down, policies across: goodput, and the share of requests within their SLO."""
    policies = list(dict.fromkeys(o.match.policy for o in outcomes))
    found = {(o.match.workload, o.match.policy): o for o in outcomes}
    lines = [_line(["workload", *policies]), _line(["---"] + ["---:"] * len(policies))]
    for workload in workloads:
        row = [found[workload.name, policy] for policy in policies]
        best = max(o.figures.goodput for o in row if o.figures)
        lines.append(_line([f"`{workload.name}`", *(_goodput(o, best) for o in row)]))
    return "\n".join(lines)


def _goodput(outcome: Outcome, best: float) -> str:
    figures = outcome.figures
    if figures is None:
        return "disqualified"
    text = f"{rate(figures.goodput)} ({share(figures.within_slo)})"
    return f"**{text}**" if rate(figures.goodput) == rate(best) else text


def figures_table(workload: Workload, outcomes: Sequence[Outcome]) -> str:
    """One workload in Markdown, a column for each policy."""
    names = [o.match.policy for o in outcomes]
    lines = [_line(["", *names]), _line(["---"] + ["---:"] * len(names))]
    for label, value, write, _ in rows_for(workload):
        cells = [write(value(o.figures)) if o.figures else "✗" for o in outcomes]
        lines.append(_line([label, *cells]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
