"""Shared by the hidden tests of phase 17: packages are imported before an answer is timed, and
`ask` runs a script in the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labkit.judge.hidden import import_first
from labkit.process.worker import Program

NAMES = ("mini_vllm.model.families.table", "mini_vllm.model.moe.args")


@pytest.fixture(autouse=True)
def _warm(subject: Any, request: pytest.FixtureRequest) -> None:
    import_first(NAMES if request.node.path.stem == "test_names" else ("torch", *NAMES), subject)


@pytest.fixture
def ask(subject: Any) -> Callable[..., Any]:
    """What a script leaves in `told`, given names; of the subject."""

    def run(script: str, **given: Any) -> Any:
        p = Program()
        names = p.execute(script, **given)
        p.see(names["told"])
        return subject.run(p)[0]

    return run
