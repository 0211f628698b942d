"""`kernel-corpus`: does the checker still accept what is right, and nothing else?

honest    other correct kernels: all must pass the whole check
cheats    each must be stopped at the stage and for the reason that cheats.toml says
changes   each change of our kernels by rule must be found out, unless it changes nothing
checker   each check that is taken out of the checker must be missed by its self-test
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

import typer

from labkit.course.console import polite
from labkit.course.files import entries_as_json, write_text
from labkit.course.root import find_root
from labkit.kernels.check import Checker
from labkit.kernels.proof import corpus
from labkit.kernels.proof.corpus import SEED, WORKERS, Bench, Cheat, Fault, Honest

Outcome = tuple[int, list[str]]  # how many were judged, and what is wrong


# ---------------------------------------------------------------- honest files and cheats
def refused(checker: Checker, entry: Honest) -> str:
    """Why a correct kernel is not accepted, or ""."""
    result = checker.check(entry.spec, entry.path, seed=SEED)
    if result.passed:
        return ""
    told = "; ".join(f"{f.kind} {f.line}: {f.message}" for f in result.findings[:2])
    return f"{entry.name}, {entry.spec}: {result.status}: {told}"


def accepted(checker: Checker, cheat: Cheat) -> str:
    """What the checker says of a cheat instead of what it should, or ""."""
    path = corpus.folder() / "cheats" / f"{cheat.name}.py"
    result = checker.check(cheat.spec, path, seed=SEED)
    failed = next((stage for stage in result.stages if stage.status == "failed"), None)
    found = (failed.name, {finding.kind for finding in failed.findings}) if failed else ("", set())
    if failed is None and cheat.stage == "passed":
        return ""
    if found[0] == cheat.stage and cheat.kind in found[1]:
        return ""
    wanted = f"{cheat.stage} {cheat.kind}".strip()
    return f"{cheat.name}: expected {wanted}, got {found[0] or 'passed'} {sorted(found[1])}"


def judge_honest(every: int) -> Outcome:
    entries = corpus.honest()[::every]
    with Checker() as checker:
        return len(entries), [text for entry in entries if (text := refused(checker, entry))]


def judge_cheats(every: int) -> Outcome:
    entries = [cheat for cheat in corpus.cheats() if cheat.name][::every]
    with Checker() as checker:
        return len(entries), [text for entry in entries if (text := accepted(checker, entry))]


# ---------------------------------------------------------------- changes of our kernels
def judge_changes(every: int) -> Outcome:
    outcome, _ = find_changes(every)
    return outcome


def find_changes(
    every: int = 1, kernels: Sequence[str] = (), new: bool = False
) -> tuple[Outcome, dict[str, Fault]]:
    """Judge all changes, or each so-manyth, but those that are known to change nothing.

    With `kernels` only the changes of these; with `new` only those of which results.json has none.
    The faults include what is known of the others.
    """
    known, harmless, faults = corpus.changes(), corpus.equivalent(), corpus.known_faults()
    faults = {name: fault for name, fault in faults.items() if name in known}
    unknown = set(kernels) - {mutation.kernel for mutation, _ in known.values()}
    if unknown:
        raise ValueError(f"no kernel is called {', '.join(sorted(unknown))}")
    wrong = [f"equivalent.toml: no such change any more: {name}" for name in harmless if
             name not in known]  # fmt: skip
    chosen = [
        entry
        for name, entry in known.items()
        if name not in harmless
        and (not kernels or entry[0].kernel in kernels)
        and not (new and name in faults)
    ][::every]
    with Bench() as bench:
        found = bench.faults(chosen, faults)
    wrong += [f"not found out: {name}" for name, fault in found.items() if fault is None]
    rest = faults if kernels or new else {}
    kept = {name: found.get(name, rest.get(name)) for name in known if name not in harmless}
    return (len(chosen), wrong), {name: fault for name, fault in kept.items() if fault}


def write_results(faults: dict[str, Fault]) -> None:
    """results.json: what finds each change out, and how many each stage and kind does."""
    stages = Counter(fault.stage for fault in faults.values())
    kinds = Counter(fault.kind for fault in faults.values())
    data = {
        "command": "python -m labkit kernel-corpus changes --write",
        "seed": SEED,
        "equivalent": len(corpus.equivalent()),
        "found": len(faults),
        "by_stage": dict(stages.most_common()),
        "by_kind": dict(kinds.most_common()),
        "changes": {name: list(astuple(fault)) for name, fault in faults.items()},
    }
    write_text(corpus.folder() / "results.json", entries_as_json(data))


# ---------------------------------------------------------------- the checker without a check
@dataclass(frozen=True)
class Weakened:
    """One check taken out of the checker, and the words with which its self-test asks for it."""

    about: str
    file: str
    old: str
    new: str
    words: tuple[str, ...]


def weakened() -> list[Weakened]:
    text = (corpus.folder() / "checker.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["weakened"]
    return [Weakened(**{**entry, "words": tuple(entry["words"])}) for entry in entries]


def self_test(checkout: Path, words: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the self-test of the checker in a checkout."""
    return subprocess.run(
        [sys.executable, "-m", "labkit.kernels.proof.selftest", *words],
        cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def unnoticed(copy: Path, entry: Weakened) -> str:
    """Why the self-test of a copy of the checker does not miss this check, or ""."""
    file = copy / "labkit" / "kernels" / entry.file
    text = file.read_text(encoding="utf-8")
    if text.count(entry.old) != 1:
        return f"{entry.about}: {entry.file} no longer holds {entry.old!r} once"
    try:
        file.write_text(text.replace(entry.old, entry.new), encoding="utf-8")
        done = self_test(copy, entry.words)
    finally:
        file.write_text(text, encoding="utf-8")
    if done.returncode == 1 and "escaped:" in done.stdout:
        return ""
    last = (done.stdout + done.stderr).strip().splitlines()[-1:]
    return f"{entry.about}: the self-test says: {' '.join(last)}"


def judge_checker(every: int) -> Outcome:
    """The checker as it is, then each weakened one in a copy of its own, several at a time."""
    entries = weakened()[::every]
    whole = self_test(find_root())
    escapes = [] if whole.returncode == 0 else whole.stdout.splitlines()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        copies = [Path(folder, str(number)) for number in range(WORKERS)]
        for copy in copies:
            (copy / "phases").mkdir(parents=True)  # what makes it a checkout
            for package in ("labkit", "mini_vllm"):
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(find_root() / package, copy / package, ignore=ignored)

        def share(number: int) -> list[str]:
            mine = entries[number::WORKERS]
            return [text for entry in mine if (text := unnoticed(copies[number], entry))]

        wrong = [text for found in pool.map(share, range(WORKERS)) for text in found]
    return len(entries) + 1, escapes[:1] + wrong


# ---------------------------------------------------------------- the command
PARTS: dict[str, Callable[[int], Outcome]] = {
    "honest": judge_honest,
    "cheats": judge_cheats,
    "changes": judge_changes,
    "checker": judge_checker,
}


@polite
def main(
    parts: list[str] = typer.Argument(None, help=f"{', '.join(PARTS)}; default: all"),
    every: int = typer.Option(1, help="judge only each so-manyth entry"),
    write: bool = typer.Option(False, help="write what finds each change out to results.json"),
    kernels: list[str] = typer.Option(
        [], "--kernel", help="judge the changes of this kernel only; may be repeated"
    ),
    new: bool = typer.Option(False, help="judge only changes that results.json does not know"),
) -> None:
    """Judge the corpus that keeps the kernel checker honest. Exit code 0 only if all is well."""
    unknown = sorted(set(parts or ()) - set(PARTS))
    if unknown or every < 1:
        raise ValueError(f"{unknown or every}: the parts are {', '.join(PARTS)}, and --every >= 1")
    failed = False
    for part in parts or PARTS:
        begin = time.monotonic()
        if part == "changes":
            (count, wrong), faults = find_changes(every, kernels, new)
            if write:
                if every > 1:
                    raise ValueError("--write needs every change of a kernel, not each so-manyth")
                write_results(faults)
        else:
            count, wrong = PARTS[part](every)
        failed = failed or bool(wrong)
        for text in wrong:
            print(f"  {text}")
        seconds = time.monotonic() - begin
        print(f"{part}: {count - len(wrong)} of {count} as expected ({seconds:.0f} s)", flush=True)
    raise typer.Exit(1 if failed else 0)
