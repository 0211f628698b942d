"""The Makefile: every promised target is there, is one line, and calls the Python CLI."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from labkit.cli import COMMANDS
from labkit.course.root import ROOT
from labkit.setup import slips

PROMISED = """setup demo test lint test-fast test-full lab-% trace-diff-% watch-% hint-%
    diff-% reset-% read-% notebook-% run-% grade-% progress doctor check-kernel upstream
    cite-check conformance arena inspect bench bench-scheduler families chat serve gpu-report
    grade-class export student-dist suite-quality prove-% docs update undo book clean help
    hunt-% change-% quiz-% interview-% maintain maintain-% portfolio review real-vllm
    profile tune""".split()
HASTE = ["lab", "%"]
"""What one types in haste; not listed."""


def rules() -> dict[str, list[str]]:
    """Target -> recipe lines."""
    found: dict[str, list[str]] = {}
    target = ""
    for line in (ROOT / "Makefile").read_text().splitlines():
        head = re.match(r"([\w%-]+):(?!=)", line)
        if head:
            target = head.group(1)
            found[target] = []
        elif line.startswith("\t") and target:
            found[target].append(line.strip())
    return found


def make(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_every_promised_target_exists_and_no_other() -> None:
    assert sorted(rules()) == sorted([*PROMISED, *HASTE])


@pytest.mark.parametrize("target", [*PROMISED, *HASTE])
def test_a_target_is_one_line_that_calls_a_known_command(target: str) -> None:
    lines = rules()[target]
    assert len(lines) == 1
    called = re.match(r"\$\((?:LABKIT|SLIP)\) ([\w-]+)", lines[0])
    assert called, lines[0]
    assert called.group(1) in COMMANDS


def test_targets_without_a_number_are_phony() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    listed = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert listed
    assert sorted(listed.group(1).split()) == sorted(t for t in [*PROMISED, *HASTE] if "%" not in t)


def test_make_alone_lists_every_target_with_a_line_of_help() -> None:
    done = make()
    assert done.returncode == 0, done.stderr
    for target in PROMISED:
        assert re.search(rf"^  {target.replace('%', 'NN')} +\w", done.stdout, re.MULTILINE), target


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["lab-03"], "lab 03"),
        (["trace-diff-03", "TRACE=a.json"], "trace-diff 03 a.json"),
        (["diff-02"], "diff 02"),
        (["lab-03", "TASK=2"], "lab 03 --task 2"),
        (["lab-03", "task=2", "args=--all"], "lab 03 --task 2 --all"),
        (["hint-03", "TASK=2"], "hint 03 2"),
        (["reset-03", "TASK=03.2"], "reset 03 --task 03.2"),
        (["check-kernel", "KERNEL=paged", "MODE=gpu"], "check-kernel paged --mode gpu"),
        (["arena", "FILE=mine.py:Mine"], "arena --scheduler mine.py:Mine"),
        (["test", "ARGS=-k name"], "test -k name"),
        (["setup", "PYTHON=/opt/python"], "setup --python /opt/python"),
    ],
)
def test_variables_reach_the_command(words: list[str], command: str) -> None:
    done = make("-n", *words)
    assert " ".join(done.stdout.split()).endswith(f"-m labkit {command}")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("lab_3", "lab 3"),
        ("Lab-03", "lab 03"),
        ("LAB03", "lab 03"),
        ("labs-03", "lab 03"),
        ("hints_3", "hint 3"),
        ("read03", "read 03"),
        ("hunt03.2", "hunt 03.2"),
        ("trace_diff_03", "trace-diff 03"),
        ("grade-class", "grade-class"),
    ],
)
def test_what_spells_one_target_is_run(typed: str, words: str) -> None:
    assert slips.meant(typed) == (words.split(), "")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("lbs-03", "there is no `make lbs-03`; did you mean `make lab-03`?"),
        ("test-03", "did you mean `make lab-03`?"),  # `make test` judges the course
        ("restore-03", "did you mean `make undo`?"),
        ("rest-03", "did you mean `make reset-03`?"),
        ("progres", "did you mean `make progress`?"),
        ("03", "did you mean `make lab-03`?"),
        ("hint", "say which phase: `make hint-03`"),
        ("undo-03", "takes no phase: `make undo`"),
        ("xyzzy", "there is no `make xyzzy`; `make` alone lists what there is"),
        ("../03", "there is no `make ../03`"),
    ],
)
def test_what_is_merely_near_is_said_and_not_run(typed: str, says: str) -> None:
    words, said = slips.meant(typed)
    assert words == []
    assert says in said


def test_a_slip_reaches_labkit_even_where_a_file_has_its_name(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$*"\n')
    python.chmod(0o755)
    done = make("labs", "Lab_03", "ARGS=--all", f"PYTHON={python}")
    assert done.stdout == "-m labkit meant labs --all\n-m labkit meant Lab_03 --all\n"
    assert make("lbs-03").returncode != 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("lab 03", "lab 03"),
        ("hint 3", "meant hint-3"),
        ("labs 03.2", "meant labs-03.2"),
        ("lab 3 2", "lab 3.2"),
        ("hint 3 2", "meant hint-3.2"),
        ("lab-03 2", "lab 03 --task 2"),
        ("hint-03 2", "hint 03 2"),
        ("reset-3 3.2", "reset 3 --task 3.2"),
        ("lab-03 2 TASK=3", "lab 03 --task 3"),
    ],
)
def test_a_number_behind_a_blank_belongs_to_the_word(tmp_path: Path, typed: str, said: str) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$*"\n')
    python.chmod(0o755)
    assert make(*typed.split(), f"PYTHON={python}").stdout.strip() == f"-m labkit {said}"


def test_python_can_be_chosen_for_any_target() -> None:
    assert make("-n", "demo", "PYTHON=/opt/python").stdout.startswith("/opt/python -m labkit demo")


def test_lab_reaches_the_command_through_the_environment(tmp_path: Path) -> None:
    python = tmp_path / "python"  # prints what it was given, in place of running it
    python.write_text('#!/bin/sh\necho "$LAB: $*"\n')
    python.chmod(0o755)
    done = make("lab-03", "LAB=reference", f"PYTHON={python}")
    assert done.stdout == "reference: -m labkit lab 03\n"


@pytest.mark.parametrize(
    ("folder", "words", "command"),
    [
        ("labs/03-scheduler", [], "lab 03"),
        ("labs/03-scheduler", ["hint"], "hint 03"),
        ("labs/03-scheduler", ["lab", "ARGS=--task 2"], "lab 03 --task 2"),
        ("labs/03-scheduler", ["lab-04"], "lab 04"),
        ("labs/03-scheduler", ["lab", "2"], "lab 03 --task 2"),
        ("labs/03-scheduler", ["lab-04", "2"], "lab 04 --task 2"),
        ("labs/03-scheduler", ["hint", "2"], "hint 03 2"),
        ("labs", ["hint-03", "2"], "hint 03 2"),
        ("labs/16-policies-and-capstone", ["diff"], "diff 16"),
        ("labs/03-scheduler", ["progress"], "progress"),
        ("labs", ["lab-03"], "lab 03"),
        ("labs", ["03-scheduler"], "meant 03-scheduler"),
        ("tests", ["lab-03"], "lab 03"),
        ("docs", ["hint-03", "TASK=2"], "hint 03 2"),
        ("phases", ["lab03"], "meant lab03"),
    ],
)
def test_make_in_a_lab_s_own_folder_leads_to_its_phase(
    folder: str, words: list[str], command: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$*"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["make", "--no-print-directory", *words, f"PYTHON={python}"],
        cwd=ROOT / folder,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"-m labkit {command}\n", done.stderr


@pytest.mark.parametrize(
    ("words", "silent"),
    [
        (["lab-03"], True),
        (["update"], True),
        (["hint-03"], True),
        (["inspect"], True),
        (["lint"], False),
        (["setup"], False),
    ],
)
def test_on_a_terminal_make_says_nothing_below_a_screen(
    words: list[str], silent: bool, tmp_path: Path
) -> None:
    """A red phase is no error of make's; elsewhere, and in scripts, its exit code counts."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    main, side = pty.openpty()
    done = subprocess.run(
        ["make", "--no-print-directory", *words, f"PYTHON={python}"],
        cwd=ROOT,
        stdout=side,
        stderr=side,
    )
    os.close(side)
    try:
        said = os.read(main, 4000).decode()
    except OSError:  # nothing was written
        said = ""
    assert (done.returncode == 0, "Error" in said) == (silent, not silent), said
    assert make(*words, f"PYTHON={python}").returncode != 0
