"""`python -m labkit arena`: let schedulers race, keep the results, grade the capstone."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from labkit.arena import leaderboard, page, report
from labkit.arena.arguments import polite, whole_number, words_of
from labkit.arena.contest import BASELINE, CHILD_SECONDS, ENTRANTS, Match, Outcome, play
from labkit.arena.cost import DEFAULT, CostModel, load_model
from labkit.arena.fleet.cli import fleet, prices
from labkit.arena.live import live
from labkit.arena.score import score as play_for_score
from labkit.arena.workloads import WORKLOADS, find_workload
from labkit.course.root import ROOT

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    help="Schedulers race on the same load, with the real scheduler code and a virtual clock.",
)
app.command()(fleet)
app.command()(prices)
app.command()(live)
console = Console(highlight=False)

POLICY_HELP = "names, such as static,vllm-v1; default: all"
FILE_HELP = "a policy of your own, path/to/file.py:Class; may be repeated"
COST_HELP = "another file of prices; `arena fit` writes one"
CostModelFile = Annotated[Path, typer.Option("--cost-model", help=COST_HELP)]
Seconds = Annotated[float, typer.Option("--limit", help="seconds for a policy from a file")]


@app.callback()
def race(
    context: typer.Context,
    policies: Annotated[str, typer.Option(help=POLICY_HELP)] = "",
    workloads: Annotated[str, typer.Option(help="names, such as chat,bursts; default: all")] = "",
    seed: Annotated[int, typer.Option(help="of the arrivals")] = page.SEED,
    requests: Annotated[int, typer.Option(help="per workload; default: its own number")] = 0,
    scheduler: Annotated[list[str], typer.Option(help=FILE_HELP)] = [],  # noqa: B006 (Typer copies it)
    cost_model: CostModelFile = DEFAULT,
    limit: Seconds = CHILD_SECONDS,
    plots: Annotated[Path | None, typer.Option(help="draw pictures into this folder")] = None,
    save: Annotated[bool, typer.Option("--save", help="enter the leaderboard")] = False,
    show_leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="show it; no race")
    ] = False,
) -> None:
    """Race: every policy on every workload, one table for each workload."""
    if context.invoked_subcommand is not None:
        return
    with polite():
        if show_leaderboard:
            return show_results()
        names = words_of(policies, ENTRANTS) if policies or not scheduler else [BASELINE]
        chosen = words_of(workloads, WORKLOADS)
        matches = make_matches([*names, *scheduler], chosen, seed, requests, cost_model)
        outcomes = play_all(matches, limit, _show_when_complete(len(names) + len(scheduler)))
        if save:
            count = leaderboard.add(outcomes, leaderboard.FILE)
            console.print(f"leaderboard: {count} entries in {_short(leaderboard.FILE)}")
        if plots is not None:
            from labkit.arena.plots import save_all

            for path in save_all(outcomes, plots):
                console.print(f"wrote {path}")
    if any(outcome.disqualified is not None for outcome in outcomes):
        raise typer.Exit(1)


def make_matches(
    policies: Sequence[str],
    workloads: Sequence[str],
    seed: int,
    requests: int,
    cost_model: Path = DEFAULT,
) -> list[Match]:
    """All pairs, workload by workload.

    Raises:
        ValueError: a number or a file of prices is wrong.
    """
    if requests < 0:
        raise ValueError(f"requests is {requests}; it must be at least 1")
    load_model(cost_model)
    return [
        Match(policy, name, seed, requests or find_workload(name).num_requests, str(cost_model))
        for name in workloads
        for policy in policies
    ]


def play_all(
    matches: Sequence[Match],
    limit: float = CHILD_SECONDS,
    after: Callable[[Outcome], object] = lambda outcome: None,
) -> list[Outcome]:
    """Play matches one after the other under a progress bar; `after` gets each outcome."""
    outcomes = []
    with progress_bar() as bar:
        task = bar.add_task("", total=sum(match.requests for match in matches))
        served = 0
        for match in matches:
            name = f"{match.workload}, {report.short_name(match.policy)}"
            bar.update(task, description=name)
            outcomes.append(play(match, lambda: bar.advance(task), limit))
            served += match.requests
            bar.update(task, completed=served)
            after(outcomes[-1])
    return outcomes


def progress_bar() -> Progress:
    """Requests served so far; nothing at all where the output is no terminal."""
    return Progress(
        TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def _show_when_complete(per_workload: int) -> Callable[[Outcome], None]:
    """Print the table of a workload as soon as all of its policies have run."""
    group: list[Outcome] = []

    def show(outcome: Outcome) -> None:
        group.append(outcome)
        if len(group) == per_workload:
            console.print(report.match_table(WORKLOADS[outcome.match.workload], group))
            group.clear()

    return show


def show_results() -> None:
    """Print the leaderboard."""
    groups = leaderboard.ranked(leaderboard.read(leaderboard.FILE))
    if not groups:
        console.print("The leaderboard is empty; `python -m labkit arena --save` fills it.")
    for group in groups:
        console.print(report.leaderboard_table(group))


@app.command()
def fit(
    scenes: Annotated[int, typer.Option(help="how many crowds to run")] = 32,
    repeats: Annotated[int, typer.Option(help="runs of each; the shortest time counts")] = 3,
    seed: Annotated[int, typer.Option(help="of the crowds")] = 0,
    out: Annotated[Path, typer.Option(help="the file of prices")] = DEFAULT,
    judge: Annotated[
        bool, typer.Option("--judge", help="fit nothing: note how far its prices are off today")
    ] = False,
) -> None:
    """Measure steps of the real engine, fit prices to half of them, report the error on the
    others."""
    from labkit.arena import measure

    timed = []
    with progress_bar() as bar, polite():
        if scenes < 2 or repeats < 1:
            raise ValueError(f"{scenes} scenes, {repeats} repeats; at least 2 and 1 are needed")
        old = load_model(out) if judge else None
        task = bar.add_task("measuring", total=scenes)
        for steps in measure.measure(scenes, repeats, seed):
            timed.append(steps)
            bar.advance(task)
    if old is None:
        model = measure.fit_and_judge(timed, repeats, seed)
    else:
        error = measure.judge(old, [step for steps in timed for step in steps])
        how = {"scenes": scenes, "repeats": repeats, "seed": seed}
        model = CostModel(
            old.prices, {**old.facts, "error_on_a_later_measurement": {**error, **how}}
        )
    model.save(out)
    console.print(page.prices(model))
    console.print(f"\nwrote {_short(out)}")


@app.command()
def score(
    policy: Annotated[str, typer.Argument(help="path/to/file.py:Class, or a name")],
    workload: Annotated[str, typer.Argument(help="on which load")],
    seeds: Annotated[str, typer.Option(help="such as 1,2,3")] = "1,2,3",
    requests: Annotated[int, typer.Option(help="per seed; default: the workload's")] = 0,
    cost_model: CostModelFile = DEFAULT,
    limit: Seconds = CHILD_SECONDS,
) -> None:
    """Grade a policy: its goodput against vllm-v1's, with every step checked."""
    with polite():
        numbers = [whole_number(word) for word in seeds.split(",") if word.strip()]
        count = requests or find_workload(workload).num_requests
        with progress_bar() as bar:
            task = bar.add_task("scoring", total=2 * count * len(numbers))
            result = play_for_score(
                policy, workload, numbers, count, cost_model, limit, lambda: bar.advance(task)
            )
    console.print(report.score_table(result))
    raise typer.Exit(0 if result.ratio > 1 else 1)


@app.command()
def speed(
    requests: Annotated[int, typer.Option(help="how many")] = 100_000,
    policy: Annotated[str, typer.Option(help="whose scheduler")] = "vllm-v1",
    workload: Annotated[str, typer.Option(help="on which load")] = "steady",
    cost_model: CostModelFile = DEFAULT,
    save: Annotated[bool, typer.Option("--save", help="keep the figures")] = False,
) -> None:
    """How many requests the simulator serves in a second of CPU time."""
    with polite():
        names = [find_workload(workload).name]
        (match,) = make_matches([policy], names, 0, requests, cost_model)
        gc.collect()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        (outcome,) = play_all([replace(match, check_every=0)])
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    if outcome.run is None:
        console.print(f"disqualified: it {outcome.disqualified}", style="red")
        raise typer.Exit(1)
    facts = {
        "policy": policy,
        "workload": workload,
        "requests": requests,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),  # what is left of it when nothing else runs
        "requests_per_cpu_second": round(requests / cpu),
        "steps": outcome.run.steps,
        "tokens_scheduled": outcome.run.computed_tokens,
    }
    for name, value in facts.items():
        console.print(f"{name.replace('_', ' '):<20} {value}")
    if save:
        _save_speed(facts)


def _save_speed(facts: dict[str, object]) -> None:
    import json

    from labkit.arena.measure import machine
    from labkit.course.files import write_text

    path = ROOT / "benchmarks/results/arena/speed.json"
    write_text(path, json.dumps(facts | {"machine": machine()}, indent=1) + "\n")
    console.print(f"wrote {_short(path)}")


def play_for_docs() -> list[Outcome]:
    """Every contest that docs/arena.md shows."""
    return play_all(make_matches(list(ENTRANTS), list(WORKLOADS), page.SEED, 0))


def _short(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
