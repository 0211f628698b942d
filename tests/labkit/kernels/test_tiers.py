"""The status line of a phase with kernels: interpreted runs count, the GPU is never assumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from labkit.course.manifest import Course
from labkit.judge.public import PhaseResult, Test
from labkit.learner.screen import kernel_tasks, tiers

PHASE = Course(Path(__file__).parents[3]).phase("04")


def result(environment: dict[str, str]) -> PhaseResult:
    tests = [
        Test("a", "test_04_1_a", "", "04.1", "passed"),
        Test("b", "test_04_2_b", "", "04.2", "passed"),
        Test("c", "test_04_6_c", "", "04.6", "failed"),
    ]
    return PhaseResult(replace(PHASE, environment=environment), tests)


def test_tasks_with_kernels() -> None:
    assert kernel_tasks(PHASE) == {"04.2", "04.4", "04.5", "04.6"}


def test_interpreted_tests_are_counted() -> None:
    assert tiers(result({"TRITON_INTERPRET": "1"})).endswith("interpreter 1/2 · GPU not run")


def test_without_the_variable_nothing_ran_interpreted() -> None:
    assert tiers(result({})).endswith("interpreter not run · GPU not run")
