"""The doctor: each finding for good and bad facts, and one real run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.course.root import ROOT
from labkit.setup import doctor
from labkit.setup.pythons import Interpreter

BROKEN = {"error": "ModuleNotFoundError: No module named 'x'"}
CPU = {"version": "2.13.0+cpu", "cuda": None, "gpu": None}
CARD = {"name": "NVIDIA H200", "capability": "9.0", "memory_gib": 139.7, "count": 1}
CUDA = {"version": "2.13.0", "cuda": "13.0", "gpu": CARD}
DRIVER = "NVIDIA H200, 580.159.03"
PYTHON = Interpreter("/x/python", (3, 12, 1))


@pytest.mark.parametrize(
    ("finding", "status", "words"),
    [
        (doctor.python(PYTHON), "ok", "3.12.1"),
        (doctor.python(Interpreter("/x", (3, 9, 6))), "FAIL", "3.9.6"),
        (doctor.environment(PYTHON), "FAIL", "torch>="),
        (doctor.tools(PYTHON), "warn", "ruff"),
        (doctor.jupyter(PYTHON), "ok", "make notebook-00"),
        (doctor.torch(BROKEN, None), "FAIL", "No module"),
        (doctor.torch(CPU, None), "ok", "CPU build"),
        (doctor.torch(CPU, DRIVER), "warn", "although there is a GPU"),
        (doctor.torch(CUDA, DRIVER), "ok", "CUDA 13.0"),
        (doctor.graphics(CUDA, DRIVER), "ok", "capability 9.0, driver 580.159.03"),
        (doctor.graphics(CPU, DRIVER), "warn", "torch does not see it"),
        (doctor.graphics(CPU, None), "ok", "the CPU is enough"),
        (doctor.graphics(CPU | {"mps": True}, None), "warn", '`device="mps"` was never seen'),
        (doctor.graphics(BROKEN, None), "ok", "none"),
        (doctor.triton(BROKEN, "linux"), "FAIL", "No module"),
        (doctor.triton(BROKEN, "darwin"), "ok", "off Linux"),
        (doctor.triton({"version": "3.7.1", "interpreter": True}, "linux"), "ok", "works"),
        (doctor.triton({"version": "3.7.1", "interpreter": False}, "linux"), "FAIL", "wrongly"),
        (doctor.transformers(BROKEN), "FAIL", "No module"),
        (doctor.transformers({"version": "5.19.0"}), "ok", "5.19.0"),
        (doctor.kernels(BROKEN), "warn", "No module"),
        (doctor.kernels({"built": True, "folder": "/c"}), "ok", "built, in /c"),
        (doctor.kernels({"built": False, "why": "X is 0"}), "ok", "switched off: X is 0"),
        (
            doctor.kernels({"built": False, "without": "it is slow", "why": "no compiler"}),
            "warn",
            "it is slow: no compiler",
        ),
        (doctor.program("no-such-program", "for x"), "warn", "not found"),
        (doctor.model(doctor.ROOT / "nowhere"), "FAIL", "model.safetensors is missing"),
    ],
)
def test_a_finding_has_the_right_status(finding: doctor.Finding, status: str, words: str) -> None:
    assert finding.status == status
    assert words in finding.detail
    assert bool(finding.fix) == (status != "ok")


def test_a_little_disk_fails_and_a_small_memory_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**29))
    assert doctor.disk().status == "FAIL"
    monkeypatch.setattr(doctor.os, "sysconf", lambda name: 2**15)
    assert doctor.memory().status == "warn"


def test_no_compiler_matters_only_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert doctor.compiler(has_gpu=False).status == "ok"
    assert doctor.compiler(has_gpu=True).status == "warn"


def test_an_interpreter_that_dies_is_four_findings_and_no_traceback() -> None:
    facts = doctor.ask("/nowhere/python")
    assert set(facts) == {"torch", "triton", "transformers", "kernels"}
    assert all("without an answer" in fact["error"] for fact in facts.values())


def test_a_machine_that_is_too_busy_to_answer_is_not_set_up_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wait(*words: object, **more: object) -> None:
        raise subprocess.TimeoutExpired("python", 180)

    monkeypatch.setattr(doctor.subprocess, "run", wait)
    found = doctor.torch(doctor.ask("python")["torch"], None)
    assert found.status == "FAIL"
    assert found.fix == "close other programs, and run `make doctor` again"


def test_the_exit_code_follows_the_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine, warning = doctor.Finding("ok", "a", "b"), doctor.Finding("warn", "c", "d", "do this")
    monkeypatch.setattr(doctor, "examine", lambda: [fine, warning])
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[ok]   a              b",
        "[warn] c              d",
        "                      fix: do this",
        "1 ok, 1 warnings, 0 failures. Next: `make demo`.",
    ]
    monkeypatch.setattr(doctor, "examine", lambda: [fine, doctor.Finding("FAIL", "e", "f", "g")])
    assert doctor.main([]) == 1


def test_a_real_run_answers_as_json_and_finds_this_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "labkit", "doctor", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    for name in (
        "Python",
        "environment",
        "torch",
        "triton",
        "transformers",
        "C++ kernels",
        "test tools",
    ):
        assert findings[name]["status"] == "ok", findings[name]
    assert done.returncode == int(any(f["status"] == "FAIL" for f in findings.values()))
