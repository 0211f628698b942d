"""`make test`, `test-fast`, `lint`, `clean`: the project's own checks, one table of stages.

Every stage runs, also after a failure. pytest comes last, so that its summary line is the last
thing a passing run prints. The exit code is 0 only when every stage passed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.course.root import ROOT

PYTEST = ("-m", "pytest")
SLOWEST = ("--durations=10", "--durations-min=1")
NO_TESTS = 5  # pytest's exit code when nothing was selected


@dataclass(frozen=True)
class Stage:
    """One check: a name to print and the words after `python`."""

    name: str
    words: tuple[str, ...]
    may_be_empty: bool = False

    @property
    def is_pytest(self) -> bool:
        return self.words[:2] == PYTEST


LINT = (
    Stage("ruff check", ("-m", "ruff", "check", ".")),
    Stage("ruff format", ("-m", "ruff", "format", "--check", ".")),
    Stage("mypy", ("-m", "mypy")),
    # import-linter has a console script only, which need not be on the PATH.
    Stage("import rules", ("-c", "from importlinter.cli import lint_imports_command as go; go()")),
    Stage("sync --check", ("-m", "labkit", "sync", "--check")),
    Stage("cite-check", ("-m", "labkit", "cite-check")),
)
# Only `--full` runs these: they take longer than a coffee.
FULL = (
    Stage("phase matrix", ("-m", "labkit", "matrix")),
    Stage("mutants", ("-m", "labkit", "mutants", "--hidden")),
    Stage("hidden suites", ("-m", "labkit", "suite-quality", "--only", "named,alternatives")),
    Stage("historic bugs", ("-m", "labkit", "history")),
    Stage("kernel corpus", ("-m", "labkit", "kernel-corpus")),
    Stage("browser tests", (*PYTEST, "-q", "tests/browser")),
)


SMOKE = (
    *("core/test_kv_cache_manager.py", "core/test_scheduler.py", "attention/test_attention.py"),
    *("config/test_engine_config.py", "distributed/test_collectives.py"),
    *("engine/test_detokenizer.py", "entrypoints/test_bodies.py", "kernels/test_native.py"),
    *("kv_transfer/test_store.py", "lora/test_gate.py", "model/test_generation.py"),
    *("multimodal/test_pictures.py", "observability/test_metrics_list.py"),
    *("platforms/test_platforms.py", "pooling/test_pooling.py"),
    *("policies/test_block_manager.py", "quantization/test_packing.py", "sample/test_sampler.py"),
    *("spec_decode/test_ngram_proposer.py", "structured_output/test_json_text.py"),
    *("worker/test_lazy_pool.py", "whole/test_families.py"),
)
"""Of `tests/engine`: what `make test-fast` runs, at least one file for each package."""


def together() -> tuple[str, ...]:
    """pytest's words for tests side by side. A file stays with one process, which makes its
    fixtures (models, servers) once: a fifth less processor time than with tests dealt out singly.
    One process more than there are cores, because many tests wait for a server or a worker.
    """
    return "-n", str(min((os.cpu_count() or 1) + 1, 4)), "--dist", "loadfile"


def tests(full: bool, words: Sequence[str]) -> tuple[Stage, ...]:
    """Tests marked `serial` first and alone, then all others side by side."""
    fast = "" if full else " and not slow"
    return (
        Stage(
            "serial tests",
            (*PYTEST, "-q", *SLOWEST, "-m", f"serial{fast}", *words),
            may_be_empty=True,
        ),
        Stage("tests", (*PYTEST, "-q", *SLOWEST, *together(), "-m", f"not serial{fast}", *words)),
    )


def smoke(words: Sequence[str]) -> Stage:
    files = [f"tests/engine/{name}" for name in SMOKE]
    quick = "not slow and not serial"
    return Stage("tests", (*PYTEST, "-q", *SLOWEST, *together(), "-m", quick, *files, *words))


def test(argv: Sequence[str]) -> int:
    """`labkit test [--fast | --full] [pytest's own words]`: run every stage."""
    parser = argparse.ArgumentParser(prog="labkit test", description=test.__doc__)
    parser.add_argument("--full", action="store_true", help="the slow tests and matrices too")
    parser.add_argument("--fast", action="store_true", help="lint, and some tests of each package")
    options, words = parser.parse_known_args(argv)
    if options.fast:
        return run((*LINT, smoke(words)))
    return run((*LINT, *(FULL if options.full else ()), *tests(options.full, words)))


def lint(argv: Sequence[str]) -> int:
    """`labkit lint`: the checks that run no code."""
    argparse.ArgumentParser(prog="labkit lint", description=lint.__doc__).parse_args(argv)
    return run(LINT)


def run(stages: Sequence[Stage]) -> int:
    """Run the stages in order, print what each took, and return 1 if any failed."""
    failed = []
    for stage in stages:
        if stage.is_pytest:
            print(f"---- {stage.name}: pytest", flush=True)
        begun = time.monotonic()
        code, output = execute(stage)
        passed = code == 0 or (code == NO_TESTS and stage.may_be_empty)
        if not passed:
            failed.append(stage.name)
            print(output.rstrip(), flush=True)
        if not stage.is_pytest:
            verdict = "ok  " if passed else "FAIL"
            print(f"{verdict} {stage.name:<14} {time.monotonic() - begun:6.1f} s", flush=True)
    if failed:
        print(f"FAILED: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def execute(stage: Stage) -> tuple[int, str]:
    """Run one stage from the repository's root. pytest writes to the terminal as it goes."""
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, *stage.words],
        cwd=ROOT,
        env=os.environ | environment,
        text=True,
        stdout=None if stage.is_pytest else subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout or ""


CACHES = {
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".import_linter_cache",
    ".ipynb_checkpoints",
}
BUILT = ("site", "build", "dist", "reports")


def clean(argv: Sequence[str]) -> int:
    """`labkit clean`: remove caches and built files; your labs, your progress and .venv stay."""
    parser = argparse.ArgumentParser(prog="labkit clean", description=clean.__doc__)
    parser.add_argument("--all", action="store_true", help="remove .venv too")
    options = parser.parse_args(argv)
    doomed = [ROOT / name for name in BUILT]
    for folder, names, _ in os.walk(ROOT):
        doomed += [ROOT / folder / name for name in names if name in CACHES]
        names[:] = [n for n in names if n not in CACHES and (n == ".github" or n[0] != ".")]
    if options.all:
        doomed.append(ROOT / ".venv")
    for path in doomed:
        if path.exists():
            shutil.rmtree(path)
            print(f"removed {path.relative_to(ROOT)}")
    return 0
