"""What the rules of another release of vLLM ask of a learner's module: `lab NN --profile current`.

The tasks of a phase follow the pin. Where a newer release decides otherwise, the file
`profile_current.py` among the phase's public tests has a test for each rule, and none of them
counts for a task.
"""

from __future__ import annotations

import textwrap

from labkit.course.console import Screen
from labkit.course.manifest import ManifestError, Phase
from labkit.judge import diagnose, public
from labkit.learner import screen
from labkit.process import overlay
from mini_vllm.config.profiles import PROFILES, RELEASES


def judge_and_show(phase: Phase, profile: str) -> bool:
    """Show, rule by rule, whether the phase's modules decide as a release does; True if all do.

    Raises:
        ManifestError: there is no such profile, or the phase decides nothing that it changes.
    """
    if profile not in PROFILES:
        raise ManifestError(f"no profile {profile!r}; it must be one of {', '.join(PROFILES)}")
    tests = phase.public_tests / f"profile_{profile}.py"
    if not tests.is_file():
        raise ManifestError(
            f"no rule of profile {profile!r} asks anything of phase {phase.number}'s functions; "
            f"make lab-{phase.number} judges them"
        )
    out, mapping = Screen(), overlay.mapping_for([phase])
    screen.show_header(out, phase, f"under the rules of vLLM {RELEASES[profile]}")
    problem = diagnose.before(phase, notebook=False) if mapping else None
    if problem:
        screen.show_problem(out, problem)
        return False
    result = public.run_tests(phase, [tests], mapping)
    if result.broken:
        screen.show_problem(out, diagnose.import_problem(phase, result.broken))
        return False
    for test in result.tests:
        rule, _, advice = test.title.partition(": ")
        out.line(f"{'✓' if test.passed else '✗'} {rule}", "green" if test.passed else "red", 2)
        if not test.passed:
            for row in textwrap.wrap(advice, 72):
                out.line(row, indent=6)
            for key in ("at", "yours", "expected", "message"):
                if value := test.detail.get(key):
                    out.pair(key, str(value), "", 6)
    failed = [test for test in result.tests if not test.passed]
    out.line()
    if failed:
        count = f"{len(failed)} of {len(result.tests)} rules"
        said = f"next: {count} are not followed; see mini_vllm/config/profiles.py"
    else:
        said = f"all {len(result.tests)} rules of vLLM {RELEASES[profile]} are followed"
    out.line(said, "bold")
    return bool(result.tests) and not failed
