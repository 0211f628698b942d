"""`python -m labkit arena fleet`: policies for several machines, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from labkit.arena.arguments import polite, whole_number, words_of
from labkit.arena.contest import CHILD_SECONDS
from labkit.arena.cost import DEFAULT
from labkit.arena.fleet.contest import LINK_FILE, FleetMatch, FleetOutcome, play
from labkit.arena.fleet.traces import TRACES
from labkit.arena.report import column_name, share, short_name
from mini_vllm.policies.fleet import FLEET_POLICIES

console = Console(highlight=False)


def race(
    policies: Sequence[str],
    traces: Sequence[str],
    seeds: Sequence[int],
    machines: int,
    prefill: int | None,
    speed: float,
    tpot: float | None = None,
    cost_model: Path = DEFAULT,
    link: Path = LINK_FILE,
    seconds: float = CHILD_SECONDS,
) -> dict[tuple[str, str], list[FleetOutcome]]:
    """All outcomes, by trace and policy.

    Raises:
        ValueError: a name, a number or a file is wrong.
    """
    if speed <= 0 or (tpot is not None and tpot <= 0):
        raise ValueError(f"speed is {speed:g} and tpot {tpot}; both must be above 0")
    found: dict[tuple[str, str], list[FleetOutcome]] = {}
    for trace in traces:
        for policy in policies:
            for seed in seeds:
                match = FleetMatch(
                    policy, trace, seed, machines, prefill, None, speed, tpot, str(cost_model),
                    str(link),
                )  # fmt: skip
                found.setdefault((trace, policy), []).append(play(match, seconds))
    return found


def share_table(found: dict[tuple[str, str], list[FleetOutcome]]) -> Table:
    """Share of requests in time: a row for each trace, a column for each policy."""
    traces = list(dict.fromkeys(trace for trace, _ in found))
    policies = list(dict.fromkeys(policy for _, policy in found))
    table = Table(box=None, title="requests in time", title_justify="left")
    table.add_column("trace")
    for policy in policies:
        table.add_column(column_name(policy), justify="right")
    for trace in traces:
        cells = [_cell(found[trace, policy]) for policy in policies]
        table.add_row(trace, *cells)
    return table


def _cell(outcomes: Sequence[FleetOutcome]) -> str:
    figures = [outcome.figures for outcome in outcomes if outcome.figures is not None]
    if len(figures) < len(outcomes):
        return "✗"
    return share(sum(f.in_time for f in figures) / sum(f.requests for f in figures))


def detail_table(outcome: FleetOutcome) -> Table:
    """One policy on one trace, figure by figure."""
    assert outcome.figures is not None
    f = outcome.figures
    table = Table(box=None, show_header=False)
    rows = {
        "requests": f"{f.requests:,}",
        "in time": share(f.share),
        "first token in time": share(f.first_in_time / f.requests),
        "pace in time": share(f.pace_in_time / f.requests),
        "goodput per machine": f"{f.goodput:.2f} requests/s",
        "prompts computed where they are answered": share(f.local / f.requests),
        "prompt tokens that were had": share(f.had_share),
        "prefill machines busy": share(f.prefill_busy),
        "decode machines busy": share(f.decode_busy),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def fleet(
    policies: Annotated[
        str, typer.Option(help=f"names, default all: {', '.join(FLEET_POLICIES)}")
    ] = "",
    policy: Annotated[
        list[str], typer.Option(help="one of your own, path/to/file.py:Class; may be repeated")
    ] = [],  # noqa: B006 (Typer copies it)
    traces: Annotated[str, typer.Option(help=f"default all: {', '.join(TRACES)}")] = "",
    seeds: Annotated[str, typer.Option(help="of the arrivals, such as 1,2,3")] = "0",
    machines: Annotated[int, typer.Option(help="in all; arrivals grow with them")] = 8,
    prefill: Annotated[int, typer.Option(help="of them, for prompts; default: 3 of 8")] = -1,
    speed: Annotated[float, typer.Option(help="times the trace's own arrival rate")] = 1.0,
    tpot: Annotated[float, typer.Option(help="promise another time per token, in seconds")] = 0.0,
    cost_model: Annotated[Path, typer.Option("--cost-model", help="prices of a step")] = DEFAULT,
    link: Annotated[Path, typer.Option(help="prices of a transfer")] = LINK_FILE,
    limit: Annotated[float, typer.Option(help="seconds for a policy from a file")] = CHILD_SECONDS,
) -> None:
    """Fleets: who computes a prompt, who answers it, and what is kept, on six traces."""

    with polite():
        names = words_of(policies, FLEET_POLICIES) if policies or not policy else []
        found = race(
            [*names, *policy], words_of(traces, TRACES),
            [whole_number(word) for word in seeds.split(",")], machines,
            None if prefill < 0 else prefill, speed, tpot or None, cost_model, link, limit,
        )  # fmt: skip
    console.print(share_table(found))
    outcomes = [outcome for group in found.values() for outcome in group]
    if len(outcomes) == 1 and outcomes[0].figures is not None:
        console.print(detail_table(outcomes[0]))
    lost = [outcome for outcome in outcomes if outcome.disqualified is not None]
    for outcome in lost[:3]:
        name = short_name(outcome.match.policy)
        console.print(
            f"✗ {name} is disqualified on {outcome.match.trace}: it {outcome.disqualified}",
            style="red", markup=False,
        )  # fmt: skip
    if lost:
        raise typer.Exit(1)


def prices(
    out: Annotated[Path, typer.Argument(help="a JSON file")],
    cost_model: Annotated[Path, typer.Option("--cost-model", help="prices of a step")] = DEFAULT,
    link: Annotated[Path, typer.Option(help="prices of a transfer")] = LINK_FILE,
) -> None:
    """Write what a fleet policy knows of the machines, for the proxy's `--prices`."""
    import json
    from dataclasses import asdict

    from labkit.arena.cost import load_model
    from labkit.arena.fleet.contest import load_link
    from labkit.arena.fleet.simulator import prices_of
    from labkit.course.files import write_text

    with polite():
        known = prices_of(load_model(cost_model), load_link(link))
    write_text(out, json.dumps(asdict(known), indent=1) + "\n")
    console.print(f"wrote {out}")
