"""Set-up: the plan for many machines, and the few things that are done for real."""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement as Judge

from labkit.course.root import ROOT
from labkit.setup import bootstrap
from labkit.setup.plan import (
    Machine,
    one_at_a_time,
    plan,
    torch_step,
    venv_state,
    without_index,
)
from labkit.setup.pythons import MINORS, Interpreter, probe
from labkit.setup.requirements import (
    DEFAULT_GROUPS,
    PYTHONS,
    SetupError,
    parse_requirement,
    requirements,
)
from labkit.setup.venv import (
    TORCH,
    TORCH_CPU_INDEX,
    Step,
    Venv,
    answers,
    do,
    explain,
    install_torch,
    pip,
)


def complete(groups: tuple[str, ...] = DEFAULT_GROUPS) -> dict[str, str]:
    """Versions that meet every requirement: the lower bounds."""
    return {need.name: dict(need.bounds).get(">=", "1") for need in requirements(groups)}


BARE = Interpreter("/usr/bin/python3", (3, 12, 1))
FULL = replace(BARE, path="/opt/ready/python3", packages=complete())
OLD = Interpreter("/usr/bin/python3", (3, 9, 6))


def machine(**changes: object) -> Machine:
    laptop = Machine(
        system="linux",
        processor="x86_64",
        has_gpu=False,
        writable=True,
        venv_state="absent",
        venv=None,
        candidates=(BARE,),
    )
    return replace(laptop, **changes)  # type: ignore[arg-type]


def kinds(found: Machine) -> list[str]:
    return [step.kind for step in plan(found, DEFAULT_GROUPS)]


# ---------------------------------------------------------------- requirements
def test_every_requirement_is_understood_as_pip_understands_it() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    versions = "0.9 2.0 2.10.1 2.11 2.13.0+cpu 2.14.0 3.6.0 5.16 6.0 11".split()
    for text in texts:
        ours, judge = parse_requirement(text, "linux"), Judge(text)
        assert ours is not None
        assert ours.name == judge.name
        for version in versions:
            assert ours.accepts(version) == judge.specifier.contains(version), (text, version)


def test_a_marker_keeps_triton_off_a_mac() -> None:
    assert "triton" in [need.name for need in requirements(["engine"], "linux")]
    assert "triton" not in [need.name for need in requirements(["engine"], "darwin")]


@pytest.mark.parametrize("text", ["a ~= 1.0", "a; python_version < '3'", "a[extra]>=1"])
def test_a_form_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="understood"):
        parse_requirement(text)


def test_the_pinned_torch_is_within_the_bounds_of_pyproject() -> None:
    torch = next(n for n in requirements(["engine"]) if n.name == "torch")
    assert torch.accepts(TORCH)


def test_every_python_that_set_up_takes_is_named_and_looked_for() -> None:
    """Ubuntu 26.04, Fedora and Homebrew give 3.14."""
    assert Interpreter("/usr/bin/python3", (3, 14, 2)).supported
    assert not Interpreter("/usr/bin/python3", (3, 15, 0)).supported
    assert f"Python 3.{MINORS[-1]} to 3.{MINORS[0]}" == PYTHONS
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert [text.rpartition(".")[2] for text in classifiers] == [str(m) for m in MINORS[::-1]]


# ---------------------------------------------------------------- the plan
def test_a_fresh_machine_gets_a_venv_then_torch_alone_then_the_rest() -> None:
    steps = plan(machine(), DEFAULT_GROUPS)
    assert [step.kind for step in steps] == ["create", "torch", "install"]
    assert steps[0].words == (BARE.path,)
    assert not any(word.startswith("torch>") for word in steps[2].words)


def test_the_cpu_index_is_asked_only_on_linux_without_a_gpu() -> None:
    def indexes(**changes: object) -> tuple[str, ...]:
        steps = plan(machine(**changes), DEFAULT_GROUPS)
        return next(step.words for step in steps if step.kind == "torch")

    assert indexes() == (TORCH_CPU_INDEX,)
    assert indexes(has_gpu=True) == ()
    assert indexes(system="darwin", processor="arm64") == ()


def test_a_complete_venv_is_used_and_comes_before_a_ready_python() -> None:
    venv = replace(FULL, path="/repo/.venv/bin/python")
    steps = plan(machine(venv_state="ready", venv=venv, candidates=(FULL,)), DEFAULT_GROUPS)
    assert [(step.kind, step.words) for step in steps] == [("use", (venv.path,))]


def test_a_ready_python_is_used_as_it_is_even_in_a_read_only_folder() -> None:
    found = machine(candidates=(BARE, FULL), writable=False)
    assert plan(found, DEFAULT_GROUPS)[0].words == (FULL.path,)


def test_a_usable_venv_gets_only_what_it_lacks() -> None:
    packages = complete() | {"transformers": "4.57.0"}
    del packages["ruff"]
    venv = replace(BARE, packages=packages)
    steps = plan(machine(venv_state="usable", venv=venv), DEFAULT_GROUPS)
    assert [step.kind for step in steps] == ["install"]
    assert {word.split(">")[0] for word in steps[0].words} == {"transformers", "ruff"}


def test_an_interrupted_venv_is_removed_and_made_again() -> None:
    assert kinds(machine(venv_state="broken")) == ["remove", "create", "torch", "install"]


def test_a_folder_that_is_no_environment_is_never_removed() -> None:
    with pytest.raises(SetupError, match="move it away"):
        plan(machine(venv_state="foreign"), DEFAULT_GROUPS)


def test_the_override_wins_over_a_complete_venv() -> None:
    venv = replace(FULL, path="/repo/.venv/bin/python", version=(3, 11, 0))
    found = machine(venv_state="ready", venv=venv, override=BARE)
    assert kinds(found) == ["remove", "create", "torch", "install"]
    assert kinds(replace(found, override=FULL)) == ["use"]


def test_a_second_python_serves_as_base_when_the_first_is_too_old() -> None:
    steps = plan(machine(candidates=(OLD, BARE)), DEFAULT_GROUPS)
    assert steps[0].words == (BARE.path,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"candidates": (OLD,)}, "3.9.6.*make setup PYTHON="),
        ({"candidates": ()}, "found: none"),
        ({"candidates": (replace(BARE, has_venv=False),)}, "apt install python3.12-venv"),
        ({"writable": False}, "read-only.*copy the repository"),
        ({"system": "darwin"}, "Intel"),
        ({"override": OLD}, "3.9.6"),
    ],
)
def test_what_cannot_be_set_up_says_why_and_what_to_do(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(SetupError) as error:
        plan(machine(**changes), DEFAULT_GROUPS)
    assert "fix: " in str(error.value)
    assert re.search(words, str(error.value), re.DOTALL), error.value


# ---------------------------------------------------------------- the folder on disk
@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path)


def fake_python(venv: Venv, script: str) -> None:
    """A `.venv/bin/python` that does what a test wants."""
    venv.python.parent.mkdir(parents=True, exist_ok=True)
    venv.python.write_text(f"#!/bin/sh\n{script}\n")
    venv.python.chmod(venv.python.stat().st_mode | stat.S_IXUSR)


def state(venv: Venv) -> str:
    return venv_state(venv, DEFAULT_GROUPS, list(complete()))[0]


def test_a_venv_interrupted_at_its_start_is_recognised_as_ours(venv: Venv) -> None:
    assert state(venv) == "absent"
    with pytest.raises(KeyboardInterrupt), venv.writing():
        raise KeyboardInterrupt
    assert state(venv) == "broken"


def test_a_dangling_python_makes_a_venv_broken(venv: Venv) -> None:
    venv.python.parent.mkdir(parents=True)
    venv.write_stamp(DEFAULT_GROUPS, "3.11.7")
    venv.python.symlink_to("/nowhere/python")
    assert state(venv) == "broken"


def test_of_an_unusable_link_the_link_is_removed_and_never_what_it_leads_to(
    venv: Venv, tmp_path: Path
) -> None:
    others = tmp_path / "theirs" / ".venv"
    others.mkdir(parents=True)
    (others / "installing").touch()
    venv.path.symlink_to(others)
    assert state(venv) == "broken"
    do(Step("remove", ""), venv)
    assert not venv.path.is_symlink() and (others / "installing").exists()
    venv.path.symlink_to(tmp_path / "gone")
    assert state(venv) == "broken", "a link that leads nowhere is no folder to install into"


def test_checkouts_that_link_to_one_environment_wait_for_each_other(
    venv: Venv, tmp_path: Path
) -> None:
    others = tmp_path / "theirs"
    (others / ".venv").mkdir(parents=True)
    venv.path.symlink_to(others / ".venv")
    with one_at_a_time(venv):
        assert (others / ".venv.lock").exists() and not venv.path.with_name(".venv.lock").exists()


def test_a_folder_with_other_files_is_foreign(venv: Venv) -> None:
    venv.path.mkdir()
    (venv.path / "notes.txt").write_text("mine")
    assert state(venv) == "foreign"


def test_a_venv_without_pip_is_broken(venv: Venv) -> None:
    answer = {"path": "x", "version": [3, 11, 7], "packages": {}, "has_venv": True}
    fake_python(venv, f"echo '{json.dumps(answer)}'")
    venv.write_stamp([], "")
    assert state(venv) == "broken"
    (venv.python.parent / "pip").touch()
    assert state(venv) == "usable"


def test_an_install_cut_short_makes_a_venv_broken_and_a_failed_one_does_not(venv: Venv) -> None:
    answer = {"path": "x", "version": [3, 11, 7], "packages": {}, "has_venv": True}
    fake_python(venv, f"echo '{json.dumps(answer)}'")
    (venv.python.parent / "pip").touch()
    with pytest.raises(SetupError), venv.writing():
        raise SetupError("no index", "go online")
    assert state(venv) == "usable"
    with pytest.raises(KeyboardInterrupt), venv.writing():
        raise KeyboardInterrupt
    assert state(venv) == "broken"


def test_a_stamp_counts_only_while_the_requirements_stay_the_same(
    venv: Venv, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"path": "x", "version": [3, 11, 7], "packages": complete(), "has_venv": True}
    fake_python(venv, f"echo '{json.dumps(answer)}'")
    (venv.python.parent / "pip").touch()
    venv.write_stamp(DEFAULT_GROUPS, "3.11.7")
    assert state(venv) == "ready"
    monkeypatch.setattr("labkit.setup.venv.stamp_key", lambda groups: "other")
    assert venv.groups() == []
    assert state(venv) == "usable"


def test_a_package_removed_by_hand_is_noticed(venv: Venv) -> None:
    packages = complete()
    del packages["rich"]
    answer = {"path": "x", "version": [3, 11, 7], "packages": packages, "has_venv": True}
    fake_python(venv, f"echo '{json.dumps(answer)}'")
    (venv.python.parent / "pip").touch()
    venv.write_stamp(DEFAULT_GROUPS, "3.11.7")
    assert state(venv) == "usable"


def test_probe_tells_about_this_python_and_not_about_a_stub(venv: Venv) -> None:
    found = probe(sys.executable, ["pytest", "no-such-package"])
    assert found is not None
    assert found.version == tuple(sys.version_info[:3])
    assert list(found.packages) == ["pytest"]
    fake_python(venv, "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    assert probe(str(venv.python)) is None


# ---------------------------------------------------------------- what pip says
OFFLINE = """WARNING: Retrying after connection broken by 'NewConnectionError(...)': /simple/torch/
ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)
ERROR: No matching distribution found for torch==2.13.0"""
NOT_THERE = "ERROR: No matching distribution found for libcst<2,>=1.8"


def test_a_missing_index_is_one_error_that_names_the_package_and_the_fix(venv: Venv) -> None:
    fake_python(venv, f'cat <<"END"\n{OFFLINE}\nEND\nexit 1')
    with pytest.raises(SetupError) as error:
        pip(venv, ["torch==2.13.0", "rich>=13.9"])
    text = str(error.value)
    assert "no package index answers" in text
    assert "torch==2.13.0 and 1 more" in text
    assert "PIP_INDEX_URL" in text
    assert "PYTHON=" in text
    assert OFFLINE.splitlines()[-1] in venv.log.read_text()


def test_an_index_without_the_package_and_a_full_disk_have_their_own_errors(venv: Venv) -> None:
    text = str(explain(NOT_THERE, ["libcst"], venv.log))
    assert "has no libcst<2,>=1.8" in text
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    assert "disk is full" in str(explain(full, ["torch"], venv.log))
    assert "boom" in str(explain("boom", ["torch"], venv.log))


def test_torch_falls_back_to_the_package_index(
    venv: Venv, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr("labkit.setup.venv.pip", lambda _, words: calls.append(list(words)))
    monkeypatch.setattr("labkit.setup.venv.answers", lambda url: False)
    install_torch(torch_step(machine()), venv)
    assert calls == [["torch==2.13.0"]]
    assert "does not answer" in capsys.readouterr().out
    monkeypatch.setattr("labkit.setup.venv.answers", lambda url: True)
    install_torch(torch_step(machine()), venv)
    assert calls[1][0] == "--index-url"


def test_an_address_that_does_not_answer_is_given_up_soon() -> None:
    assert not answers("http://127.0.0.1:9", seconds=0.5)


# ---------------------------------------------------------------- offline, and entering
def without(*names: str) -> Interpreter:
    packages = {name: version for name, version in complete().items() if name not in names}
    return replace(FULL, packages=packages)


def test_offline_a_python_that_lacks_only_test_tools_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labkit.setup.plan.index_reachable", lambda *_: False)
    found = machine(candidates=(BARE, without("ruff", "mypy")))
    assert without_index(found, DEFAULT_GROUPS) == FULL.path
    assert "ruff, mypy" in capsys.readouterr().out
    assert without_index(machine(candidates=(without("torch"),)), DEFAULT_GROUPS) is None


def test_online_a_python_that_lacks_test_tools_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("labkit.setup.plan.index_reachable", lambda *_: True)
    assert without_index(machine(candidates=(without("ruff"),)), DEFAULT_GROUPS) is None


def test_entering_a_ready_python_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "replace_process", lambda *_: pytest.fail("left this Python"))
    monkeypatch.setattr(bootstrap, "setup", lambda *_: pytest.fail("installed something"))
    bootstrap.enter(("engine", "course"), ["lab", "03"])


def test_a_command_never_loops_between_broken_environments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(bootstrap.ENTERED, "1")
    monkeypatch.setattr(bootstrap, "installed", lambda names: {})
    monkeypatch.setattr(Venv, "groups", lambda self: [])
    with pytest.raises(SetupError, match="lacks torch>="):
        bootstrap.enter(("engine",), ["demo"])
    assert bootstrap.ENTERED not in os.environ


SETUP = ("__init__", "bootstrap", "plan", "pythons", "requirements", "venv")
FIRST_READ = ["__init__", "__main__", "cli", "course/__init__", "course/root"]


@pytest.mark.parametrize("name", [*FIRST_READ, *(f"setup/{name}" for name in SETUP)])
def test_an_old_python_can_read_the_files_that_refuse_it(name: str) -> None:
    text = (ROOT / "labkit" / f"{name}.py").read_text()
    ast.parse(text, feature_version=(3, 8))


def test_an_old_python_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 6))
    monkeypatch.setattr(bootstrap, "other_pythons", lambda: iter(()))
    with pytest.raises(SetupError, match=r"needs Python 3.11.*\n.*make setup PYTHON="):
        bootstrap.require_python(["demo"])


def test_set_up_starts_without_any_installed_package() -> None:
    code = (
        "import sys; import labkit.cli, labkit.setup.bootstrap, labkit.setup.doctor;"
        "print([n for n in ('torch', 'typer', 'rich', 'yaml') if n in sys.modules])"
    )
    command = [sys.executable, "-S", "-c", code]  # -S: no site-packages
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
