"""GitHub Classroom's workflow, its steps run one after the other as the runner runs them.

They are read from the file that `student-dist --classroom` writes, so they cannot drift from it.
Not run here are the actions of others: checkout and Python (the tree and the running Python stand
in), and the reporter, whose reading of the outputs is done here instead.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from labkit.course.manifest import Course
from labkit.course.root import find_root
from labkit.grading import student_dist

ROOT = find_root()
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="not run: the workflow asks for an Ubuntu runner"
)
GRADED = Path("labs/00-orientation/request.py")


class Runner:
    """A job's state: its folders, the secret, and the outputs of its steps so far."""

    def __init__(self, tree: Path, temp: Path, key: str) -> None:
        self.tree, self.temp, self.key = tree, temp, key
        self.outputs: dict[str, dict[str, str]] = {}
        text = (tree / ".github/workflows/classroom.yml").read_text(encoding="utf-8")
        self.workflow: dict[str, Any] = yaml.safe_load(text)
        self.steps: list[dict[str, Any]] = self.workflow["jobs"]["autograding"]["steps"]
        (temp / "bin").mkdir(parents=True)
        python = temp / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
        python.chmod(0o755)

    def run(self) -> subprocess.CompletedProcess[str]:
        """All `run:` steps up to the first that fails; the last one's process."""
        done = None
        for step in self.steps:
            if "run" in step:
                done = self._run(step)
                if done.returncode:
                    break
        assert done is not None
        return done

    def _run(self, step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        script, output = self.temp / "step.sh", self.temp / "output"
        script.write_text(step["run"], encoding="utf-8")
        output.write_text("", encoding="utf-8")
        kept = {k: v for k, v in os.environ.items() if k not in ("LAB", "PYTHONPATH")}
        env = kept | {
            "PATH": f"{self.temp / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(output),
            **self.workflow["env"],
            **{k: self.fill_in(v) for k, v in step.get("env", {}).items()},
        }
        done = subprocess.run(
            ["bash", "-e", str(script)],
            cwd=self.tree, env=env, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        lines = output.read_text(encoding="utf-8").splitlines()
        self.outputs[step.get("id", "")] = dict(line.split("=", 1) for line in lines)
        return done

    def fill_in(self, text: str) -> str:
        """Put values for `${{ ... }}`: the secret, or a step's output ("" if it has none)."""

        def value(match: re.Match[str]) -> str:
            if match[1] == "secrets.HIDDEN_PACK_KEY":
                return self.key
            _, step, _, name = match[1].split(".")
            return self.outputs[step].get(name, "")

        return re.sub(r"\$\{\{ ([\w.]+) \}\}", value, text)

    def report(self) -> list[dict[str, Any]]:
        """What the reporter reads: for each of `runners`, the variable RUNNER_RESULTS."""
        (step,) = (step for step in self.steps if "autograding-grading-reporter" in str(step))
        env = {name: self.fill_in(text) for name, text in step["env"].items()}
        names = self.fill_in(step["with"]["runners"]).split(",")
        texts = [env[f"{name.upper()}_RESULTS"] for name in names]
        return [json.loads(base64.b64decode(text, validate=True)) for text in texts]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A fresh student's repository for phase 00, with an untouched skeleton."""
    tree = tmp_path / "repository"
    key = student_dist.new_key(tmp_path / "course.key")
    student_dist.pack_course(ROOT, tree, key, walkthroughs=False, classroom="00")
    return Runner(tree, tmp_path / "temp", key.decode())


def test_a_file_that_is_no_python_is_reported_task_by_task(runner: Runner) -> None:
    (runner.tree / GRADED).write_text("def broken(:\n", encoding="utf-8")
    done = runner.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (runner.temp / "key").exists(), "the secret stays on no disk"
    report = runner.report()
    assert [document["status"] for document in report] == ["fail"] * 5
    assert sum(document["max_score"] for document in report) == 50
    assert "cannot import" in report[0]["tests"][0]["name"]
    assert "repository: 0 of 50 points" in done.stdout


@pytest.mark.slow
def test_a_wrong_function_costs_its_task_and_not_all(runner: Runner) -> None:
    text = (ROOT / "mini_vllm" / "request.py").read_text(encoding="utf-8")
    right = "RequestStatus.WAITING < status < RequestStatus.RUNNING"
    wrong = "RequestStatus.WAITING < status <= RequestStatus.RUNNING"
    assert right in text
    (runner.tree / GRADED).write_text(text.replace(right, wrong), encoding="utf-8")
    shutil.copy(ROOT / "mini_vllm" / "engine" / "step.py", (runner.tree / GRADED).parent)
    done = runner.run()
    assert done.returncode == 0, done.stdout + done.stderr
    report = runner.report()
    status = [document["status"] for document in report]
    assert status[:2] == ["pass"] * 2, "the others put the request into the scheduler, too"
    assert status[3] == "fail"
    for document in report:
        (test,) = document["tests"]
        assert test["score"] == (document["max_score"] if test["status"] == "pass" else 0)


def test_without_the_secret_it_says_which_one_is_missing(runner: Runner) -> None:
    runner.key = ""
    done = runner.run()
    assert done.returncode != 0
    assert "set the organisation secret HIDDEN_PACK_KEY" in done.stderr


def test_a_grader_that_fails_is_reported_as_an_error(runner: Runner) -> None:
    """Not as points lost: a hidden suite that does not load is no fault of the student's."""
    steps = [step for step in runner.steps if step.get("id") == "grade"]
    suite = "tests/hidden/00-orientation"
    broken = f"for f in {suite}/test_*.py; do echo 'import nothing_there' > $f; done\n"
    steps[0]["run"] = broken + steps[0]["run"]
    done = runner.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert {document["status"] for document in runner.report()} == {"error"}


def test_every_task_of_every_phase_has_a_variable() -> None:
    text = (ROOT / student_dist.WORKFLOW).read_text(encoding="utf-8")
    most = max(len(phase.exercises) for phase in Course(ROOT).ready)
    for name in ["result", *(f"task{i}" for i in range(1, most + 1))]:
        line = f"{name.upper()}_RESULTS: ${{{{ steps.grade.outputs.{name} }}}}"
        assert line in text
