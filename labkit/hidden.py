"""Pytest plugin of the hidden suites: `subject` is what is judged, `reference` is what is right.

Tests never import a learner's module: both fixtures are children (`labkit.worker.Worker`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit import child, overlay
from labkit.manifest import Course
from labkit.worker import Worker

SUBJECT = "LABKIT_SUBJECT"


def _phase_of(request: pytest.FixtureRequest) -> tuple[Path, str]:
    """The checkout and the phase's folder name, from where the test lies: tests/hidden/NN-slug/."""
    for folder in request.path.parents:
        if folder.parent.name == "hidden" and folder.parent.parent.name == "tests":
            return folder.parents[2], folder.name
    raise pytest.UsageError(f"{request.path} does not lie below tests/hidden/NN-slug/")


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Iterator[Worker]:
    """The learner's modules (LAB=labs, the default), the reference, or a mutant."""
    root, slug = _phase_of(request)
    phase = Course(root).phase(slug)
    given = os.environ.get(SUBJECT)
    mapping = json.loads(given) if given is not None else overlay.mapping_for([phase])
    with Worker(root, mapping, child.Limits(10, phase.memory_mb), "subject") as worker:
        yield worker


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest) -> Iterator[Worker]:
    """The engine as it is."""
    root, slug = _phase_of(request)
    phase = Course(root).phase(slug)
    with Worker(root, {}, child.Limits(10, phase.memory_mb), "reference") as worker:
        yield worker
