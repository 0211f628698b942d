"""The lockstep test of the V0 policies, and recorded decisions of all policies.

`tests/conformance/policies/NAME.jsonl.xz` holds a line of facts and then a line a trace. For
`vllm-v0` and `vllm-v0-chunked` the decisions are those of vLLM 0.8.5's own scheduler; for the
others, whose originals have no interface to ask, our own, so that a change is seen.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.trace import v0_oracle
from labkit.trace.diff import Difference, first_difference, render
from labkit.trace.format import Trace, dump_trace, parse_trace
from labkit.trace.generate import generate
from labkit.trace.generate_v0 import PROFILES, generate_v0
from labkit.trace.runner import Line, ReferenceSubject, load_class, replay
from labkit.trace.v0 import PolicySubject, replay_v0

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "conformance" / "policies"
V0_POLICIES = {"vllm-v0": False, "vllm-v0-chunked": True}
"""Policies with an original to ask, and whether it is the chunked one."""
OUR_PROFILES = ("pressure", "prefix", "abort")
GOLDEN_TRACES = 3
GOLDEN_STEPS = 40


class V0Oracle:
    """V0's scheduler in a process of its own, fetched if need be. A context manager."""

    def __init__(self) -> None:
        if not v0_oracle.fetched():
            print(f"Fetching the Python files of {v0_oracle.PACKAGE} ...", flush=True)
            v0_oracle.fetch()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "labkit.trace.v0_oracle"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        text = self.process.stdout.readline()
        if not text:
            raise RuntimeError("V0's scheduler has died; what it said stands above")
        return json.loads(text)

    def replay(self, trace: Trace) -> tuple[list[Line], str | None]:
        """Step lines, and what the scheduler raised, if it did."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(trace.to_dict()) + "\n")
        self.process.stdin.flush()
        reply = self._read()
        return reply["lines"], reply.get("error")

    def __enter__(self) -> V0Oracle:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def replay_ours(policy: str, trace: Trace) -> list[Line]:
    """The decisions of one of our policies, as its golden file has them."""
    if policy in V0_POLICIES:
        return list(replay_v0(trace, PolicySubject(trace.config)))
    return list(replay(trace, ReferenceSubject(trace.config, load_class(policy))))


def differs(ours: Sequence[Line], theirs: Sequence[Line]) -> Difference | None:
    """The first difference. Victims and ends of one step are a set: V0 keeps them by kind."""
    return first_difference(map(_unordered, ours), map(_unordered, theirs))


def _unordered(line: Line) -> Line:
    return line | {name: sorted(line[name]) for name in ("preempted", "finished")}


def compare(policy: str, total: int, first_seed: int, steps: int) -> int:
    """Compare until so many steps; prints a table. Returns 1 at the first difference."""
    traces: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    preempted = 0
    started = time.perf_counter()
    with V0Oracle() as oracle:
        for profile, seed in _cases(first_seed):
            if counted.total() >= total:
                break
            trace = generate_v0(profile, seed, V0_POLICIES[policy], steps)
            theirs, error = oracle.replay(trace)
            difference = differs(replay_ours(policy, trace), theirs)
            if error or difference:
                print(f"DIFFERENT: {policy}, profile {profile}, seed {seed}\n{dump_trace(trace)}")
                print(error if difference is None else render(difference, "mini_vllm", "vLLM V0"))
                return 1
            traces[profile] += 1
            counted[profile] += len(theirs)
            preempted += sum(len(line["preempted"]) for line in theirs)
    print(f"{'profile':<14}{'traces':>8}{'steps':>10}")
    for profile in counted:
        print(f"{profile:<14}{traces[profile]:>8}{counted[profile]:>10,}")
    seconds = time.perf_counter() - started
    print(
        f"\n{policy}: 0 differences from vLLM {v0_oracle.RELEASE} in {counted.total():,} steps "
        f"with {preempted:,} preemptions ({seconds:.1f} s)."
    )
    return 0


def _cases(first_seed: int) -> Iterator[tuple[str, int]]:
    seed = first_seed
    while True:
        for profile in PROFILES:
            yield profile, seed
        seed += 1


# ------------------------------------------------------------------ recorded decisions


def record(policies: Sequence[str]) -> None:
    """Write the golden files anew."""
    for policy in policies:
        path = FOLDER / f"{policy}.jsonl.xz"
        rows = list(_record_v0(policy) if policy in V0_POLICIES else _record_ours(policy))
        source = f"vllm {v0_oracle.RELEASE}" if policy in V0_POLICIES else "mini_vllm"
        command = f"python -m labkit conformance --policy {policy} --record"
        lines = [{"policy": policy, "decided_by": source, "command": command}, *rows]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        print(f"{path.name:<28}{len(rows):>4} traces {path.stat().st_size:>8,} bytes")


def _record_v0(policy: str) -> Iterator[dict[str, Any]]:
    with V0Oracle() as oracle:
        for profile in PROFILES:
            for seed in range(GOLDEN_TRACES):
                trace = generate_v0(profile, seed, V0_POLICIES[policy], GOLDEN_STEPS)
                lines, error = oracle.replay(trace)
                assert error is None, f"{profile} {seed}: {error}"
                yield {"name": f"{profile}-{seed}", "trace": trace.to_dict(), "lines": lines}


def _record_ours(policy: str) -> Iterator[dict[str, Any]]:
    for profile in OUR_PROFILES:
        for seed in range(GOLDEN_TRACES):
            trace = generate(profile, seed, GOLDEN_STEPS)
            lines = replay_ours(policy, trace)
            yield {"name": f"{profile}-{seed}", "trace": trace.to_dict(), "lines": lines}


def golden(policy: str) -> Iterator[tuple[str, Trace, list[Line]]]:
    """Name, trace and decisions of every recording of a policy."""
    text = lzma.decompress((FOLDER / f"{policy}.jsonl.xz").read_bytes()).decode()
    for row in map(json.loads, text.splitlines()[1:]):
        yield row["name"], parse_trace(row["trace"], f"golden {policy} {row['name']}"), row["lines"]
