"""phase.toml: a valid one loads, and each mistake is answered with the file, the key and the
fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.course.manifest import Course, ManifestError
from tests.labkit.toy_course import HINTS, MANIFEST, PLANNED, write


def course(root: Path, manifest: str = MANIFEST, hints: str = HINTS) -> Course:
    write(root, "phases/00-toy/phase.toml", manifest)
    write(root, "phases/00-toy/hints.toml", hints)
    write(root, "phases/01-later/phase.toml", PLANNED)
    return Course(root)


def test_a_valid_manifest_loads(tmp_path: Path) -> None:
    phase = course(tmp_path).phase("00")
    assert [exercise.id for exercise in phase.exercises] == ["00.1", "00.2"]
    for typed in ("2", "00.2", "0.2", "00.02"):
        assert phase.exercise(typed).test_prefix == "test_00_2_"
    assert phase.lab_path("toy.fifo") == "labs/00-toy/fifo.py"
    assert sorted(phase.holes("toy.fifo")) == ["Fifo.drain", "Fifo.head", "clamp"]


def test_variables_for_the_processes_of_a_phase(tmp_path: Path) -> None:
    assert course(tmp_path).phase("00").environment == {}
    text = MANIFEST.replace("hours = 1\n", 'hours = 1\nenvironment = { TOY = "1" }\n')
    assert course(tmp_path, text).phase("00").environment == {"TOY": "1"}


def test_a_planned_phase_says_what_is_coming(tmp_path: Path) -> None:
    later = course(tmp_path).phase("1")
    assert not later.ready
    assert later.coming == ("a clock", "a calendar")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('hours = 1\n', "", ["hours", "missing"]),
        ('hours = 1\n', 'hours = "one"\n', ["hours", "'one'", "int or float"]),
        ('title = "A toy"', 'titel = "A toy"', ["title", "missing"]),
        ("test_seconds = 1", "test_second = 1", ["test_second", "test_seconds"]),
        ('slug = "00-toy"', 'slug = "00-toys"', ["slug", "00-toys", "00-toy"]),
        ('status = "ready"', 'status = "done"', ["status", "done", "planned"]),
        ("test_seconds = 1", 'run = "demo"', ["run", "demo", "engine, kernels, naive"]),
        ('id = "00.2"', 'id = "00.3"', ["exercises[1].id", "00.3", "00.2"]),
        ("points = 5", "points = 0", ["exercises[0].points", "0", "at least 1"]),
        ("points = 5", "points = true", ["exercises[0].points", "True", "int"]),
        ('functions = ["clamp"]', "functions = []", ["exercises[0].functions", "empty"]),
        ('functions = ["clamp"]', 'functions = [""]', ["exercises[0].functions[0]", "non-empty"]),
        ('functions = ["clamp"]', 'functions = ["Fifo.head"]', ["exercises[1]", "Fifo.head"]),
        ('modules = ["toy.fifo"]', 'modules = ["toy.lifo"]', ["exercises[0].module", "toy.fifo"]),
        ('modules = ["toy.fifo"]', 'modules = ["toy.fifo", "a.fifo"]', ["labs/00-toy/fifo.py"]),
        ("hours = 1", "hours = 1\nenvironment = { A = 1 }", ["environment.A", "1", "string"]),
        ("[[exercises]]", "[[exercises", ["not valid TOML"]),
    ],
)  # fmt: skip
def test_a_mistake_names_file_and_key(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    assert old in MANIFEST
    with pytest.raises(ManifestError) as caught:
        _ = course(tmp_path, MANIFEST.replace(old, new, 1)).phases
    message = str(caught.value)
    assert message.startswith("phases/00-toy/phase.toml: ")
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"Two bounds.", ', "", ["00.1: hints", "3 texts", "nearly the code"]),
        ("test_00_1_limit", "test_00_2_limit", ["00.1: tests.test_00_2_limit", "test_00_1_"]),
        ('["00.2"]', '["00.3"]', ["00.2 is missing"]),
        ('["00.1"]', "[00.1", ["not valid TOML"]),
    ],
)
def test_a_mistake_in_the_hints_too(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        _ = course(tmp_path, hints=HINTS.replace(old, new, 1)).phases
    message = str(caught.value)
    assert message.startswith("phases/00-toy/hints.toml: ")
    assert all(word in message for word in words), message


def test_two_phases_cannot_own_one_module(tmp_path: Path) -> None:
    write(
        tmp_path,
        "phases/02-twin/phase.toml",
        MANIFEST.replace("00-toy", "02-twin").replace("00.", "02."),
    )
    hints = HINTS.replace("00.", "02.").replace("00_", "02_")
    write(tmp_path, "phases/02-twin/hints.toml", hints)
    with pytest.raises(ManifestError, match=r"toy\.fifo already belongs to phase 00-toy"):
        _ = course(tmp_path).phases


def test_an_unknown_phase_or_task_lists_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no phase '7'.*00-toy, 01-later"):
        course(tmp_path).phase("7")
    with pytest.raises(ManifestError, match=r"no task '9'.*00.1, 00.2"):
        course(tmp_path).phase("0").exercise("9")
