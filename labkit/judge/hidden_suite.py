"""Run the hidden suite of a phase on some files, with as much time as a grade gives."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.course.files import set_aside
from labkit.course.manifest import Phase
from labkit.judge import hidden, public, variables

LEAST_TEST_SECONDS = 120.0
"""For all answers of one test. An endless loop ends sooner, by the time of its one answer; this is
for a submission that is merely slow, and must not hit a right one on a busy machine."""
PUBLIC_TIMES = 6
"""How many times as long as a public test a hidden one may take, where that is more."""
RUN_SECONDS = 1800.0


def run_hidden(
    phase: Phase,
    mapping: Mapping[str, str],
    seed: int,
    tasks: Sequence[str] = (),
    only: str = "",
    stop: bool = False,
    rung: str = "plain",
    base: Mapping[str, str] | None = None,
    asked: Path | None = None,
    follow: public.Follow | None = None,
) -> public.PhaseResult:
    """Pytest itself runs without the files; the worker that it asks has them
    (`labkit.judge.hidden`).

    Args:
        mapping: module -> file; the other modules are the reference's.
        seed: of the random inputs.
        tasks: only the tests of these; () = all.
        only: only tests whose name has this in it; "" = all.
        stop: at the first failure, without looking for a smaller example of it.
        rung: of `isolation.LADDER`, what the worker is locked up in.
        base: the environment that pytest starts with; default: this process's.
        asked: a file for what the subject is asked (`hidden.ASKED`).
        follow: as for `public.run_tests`.
    """
    options = ["-p", "labkit.judge.hidden", "-p", "_hypothesis_pytestplugin"]
    options += [f"--hypothesis-seed={seed}", "-k", only, *(["-x"] if stop else [])]
    extra = {
        hidden.SUBJECT: json.dumps(dict(mapping)),
        hidden.ISOLATION: rung,
        hidden.TASKS: ",".join(tasks),
        "HYPOTHESIS_PROFILE": "unshrunk" if stop else "graded",
        variables.SECONDS: str(max(LEAST_TEST_SECONDS, PUBLIC_TIMES * phase.test_seconds)),
    }
    extra |= {hidden.ASKED: str(asked)} if asked else {}
    with set_aside() as aside:
        os.chmod(aside, 0o711)  # a worker may be another user's
        extra["TMPDIR"] = aside  # what pytest, the reference or a killed run leaves behind goes too
        tests = [phase.hidden_tests]
        return public.run_tests(phase, tests, {}, options, extra, base, RUN_SECONDS, follow)
