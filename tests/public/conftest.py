"""Pytest typed by hand: which files are judged, and in which environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from labkit.course.manifest import Course, Phase
from labkit.course.root import find_root
from labkit.process import overlay


def phases_of(words: Sequence[str]) -> list[Phase]:
    """The phases that the words of a command name."""
    return [phase for phase in Course(find_root()).ready if phase.slug in " ".join(words)]


def environment_of(words: Sequence[str]) -> dict[str, str]:
    """The variables of these phases, as `make lab-NN` sets them."""
    named = phases_of(words)
    return {name: value for phase in named for name, value in phase.environment.items()}


TYPED = [*sys.argv, str(Path.cwd())]
if overlay.VARIABLE not in os.environ:  # by hand, and before the phase's conftest imports Triton
    for name, value in environment_of(TYPED).items():
        os.environ.setdefault(name, value)


def pytest_report_header(config: pytest.Config) -> str:
    """The first lines say whose file the tests are about to judge."""
    if json.loads(os.environ.get(overlay.VARIABLE, "{}")):
        return "judged: your files in labs/"
    numbers = [phase.number for phase in phases_of(TYPED)]
    command = f"make lab-{numbers[0] if len(numbers) == 1 else 'NN'}"
    return f"judged: the reference in mini_vllm, not your files; `{command}` judges those"


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the tests compute is small: threads of torch would only get in each other's way."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def pytest_sessionstart(session: pytest.Session) -> None:
    """With `-q` pytest leaves its header out, and with it whose file is judged."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    options = session.config.option
    if reporter and (options.verbose < 0 or options.no_header):
        reporter.write_line(pytest_report_header(session.config))
