"""Runs schedulers over workloads; one that breaks a rule is out, and the others go on.

The project's own policies run in this process. A policy from a file runs in a child process with
limits of time and memory, so that an endless loop in it is an end and not a wait. The child is no
prison: it keeps accidents in, not attacks.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from labkit.arena.cost import load_model
from labkit.arena.metrics import Figures, figures
from labkit.arena.referee import RuleBroken
from labkit.arena.simulator import Run, Sample, Served, simulate
from labkit.arena.workloads import WORKLOADS
from labkit.course.root import ROOT
from labkit.inside import child
from labkit.process import overlay
from mini_vllm.core.interface import NoProgressError
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.policies import POLICIES, load_scheduler
from mini_vllm.policies.v0_plan import PreemptionMode, V0Options
from mini_vllm.policies.vllm_v0 import VllmV0


class VllmV0Swap(VllmV0):
    """V0 as it is when it swaps every preempted request, and computes none again."""

    options = V0Options(preemption_mode=PreemptionMode.SWAP)


BASELINE = "vllm-v1"
ENTRANTS: dict[str, type[Scheduler]] = {
    **{name: policy for name, policy in POLICIES.items() if name != BASELINE},
    "vllm-v0-swap": VllmV0Swap,
    BASELINE: POLICIES[BASELINE],
}
"""Policies by name, the baseline last."""
CHILD_SECONDS = 120.0
CHILD_MEMORY_MB = 2048
Tick = Callable[[], object]


@dataclass(frozen=True)
class Match:
    """One policy on one workload under one seed.

    Attributes:
        policy: a name of `ENTRANTS`, or `path/to/file.py:Class`.
        cost_model: the file with the prices.
        check_every: see `simulate`.
    """

    policy: str
    workload: str
    seed: int
    requests: int
    cost_model: str
    check_every: int = 64


@dataclass(frozen=True)
class Outcome:
    """How a match ended: with figures, or with the rule that was broken."""

    match: Match
    figures: Figures | None = None
    run: Run | None = None
    disqualified: str | None = None


def play(match: Match, tick: Tick = lambda: None, seconds: float = CHILD_SECONDS) -> Outcome:
    """Play one match.

    Args:
        tick: called now and then while it runs; nothing is known of a child until its end.
        seconds: that a policy from a file may compute or sleep.

    Raises:
        ValueError: there is no such policy, or its file cannot be imported.
    """
    if match.policy in ENTRANTS:
        answer = attempt(match, ENTRANTS[match.policy], tick)
    else:
        answer = _attempt_in_child(match, seconds)
    if isinstance(answer, str):
        return Outcome(match, disqualified=answer)
    cost = load_model(Path(match.cost_model))
    return Outcome(match, figures(answer, WORKLOADS[match.workload], cost), answer)


def attempt(match: Match, scheduler_cls: type[Scheduler], tick: Tick = lambda: None) -> Run | str:
    """The run, or why it was stopped."""
    workload = WORKLOADS[match.workload]
    arrivals = workload.arrivals(match.seed, match.requests)
    cost = load_model(Path(match.cost_model))
    try:
        return _without_gc(
            lambda: simulate(scheduler_cls, workload, arrivals, cost, match.check_every, tick)
        )
    except RuleBroken as error:
        return f"broke a rule: {error}"
    except NoProgressError as error:
        return f"makes no progress: {error}"
    except Exception as error:
        return what_was_raised(error)


def what_was_raised(error: Exception) -> str:
    """An error of a policy in words, with the place in its file."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"raised {type(error).__name__}: {error} (in {frame.name}, {place})"


def _without_gc(run: Callable[[], Run]) -> Run:
    """No cycle is made on purpose, so the collector would only look at live requests again and
    again; it stays off until the end."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return run()
    finally:
        if was_on:
            gc.enable()


# ------------------------------------------------------------------ in a child


def _attempt_in_child(match: Match, seconds: float) -> Run | str:
    """As :func:`attempt`, in a process of its own with limits."""
    answer = answer_of_child("labkit.arena.contest", match, seconds)
    if "wrong" in answer:
        raise ValueError(answer["wrong"])
    return answer["stopped"] if "stopped" in answer else decode_run(answer["run"])


def answer_of_child(module: str, match: Any, seconds: float) -> dict[str, Any]:
    """What a module that plays a match writes, in a process of its own with limits; "stopped" says
    why there is no answer."""
    with tempfile.TemporaryDirectory() as folder:
        answer_file = Path(folder) / "answer.json"
        command = ["-m", module, json.dumps(asdict(match)), str(answer_file)]
        limits = child.Limits(seconds=seconds, memory_mb=CHILD_MEMORY_MB)
        done = child.run(command, overlay.environment(ROOT, {}), limits)
        if done.timed_out:
            place = _innermost(done.stderr)
            stood = f"; it stood in {place}" if place else ""
            return {"stopped": f"took more than {done.after}{stood}"}
        if not answer_file.is_file():
            last = done.stderr.strip().splitlines()[-1:]
            return {"stopped": f"ended its process with code {done.code}{': '.join(['', *last])}"}
        answer: dict[str, Any] = json.loads(answer_file.read_text(encoding="utf-8"))
        return answer


def _innermost(stack: str) -> str:
    """The first frame of the stack that a child prints when it is asked where it hangs."""
    found = re.search(r'File "(.+)", line (\d+) in (\S+)', stack)
    return f"{found[3]}, {Path(found[1]).name}:{found[2]}" if found else ""


def main(argv: list[str]) -> int:
    """The child's side: play the match in the first word, write the answer to the second."""
    match, answer_file = Match(**json.loads(argv[0])), Path(argv[1])
    answer: dict[str, Any]
    try:
        result = attempt(match, load_scheduler(match.policy))
        answer = {"stopped": result} if isinstance(result, str) else {"run": encode_run(result)}
    except ValueError as error:  # only load_scheduler raises here
        answer = {"wrong": str(error)}
    answer_file.write_text(json.dumps(answer), encoding="utf-8")
    return 0


def encode_run(run: Run) -> dict[str, Any]:
    """A run as plain data; floats survive JSON exactly."""
    return {f.name: getattr(run, f.name) for f in fields(run)}


def decode_run(data: dict[str, Any]) -> Run:
    """What :func:`encode_run` made."""
    data["served"] = [Served(*entry) for entry in data["served"]]
    data["samples"] = [Sample(*entry) for entry in data["samples"]]
    return Run(**data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
