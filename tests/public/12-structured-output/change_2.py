"""Change request 2: a compilation has a limit of time."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.request import StructuredOutputRequest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What `time.monotonic()` says; change it to let time pass."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.seconds)
    return now


def manager_of(**futures: Future[Any]) -> StructuredOutputManager:
    """A manager that has submitted these at 100 s."""
    manager = StructuredOutputManager(StructuredOutputsConfig(), lambda: None, [0])  # type: ignore[arg-type,return-value]
    for name, future in futures.items():
        constraint = StructuredOutputRequest(StructuredOutputsParams(regex=name))
        constraint.future, constraint.submitted = future, 100.0
        request = SimpleNamespace(request_id=name, structured_output_request=constraint)
        manager.requests[name] = request  # type: ignore[assignment]
    return manager


def test_change_2_too_late(clock: SimpleNamespace) -> None:
    """At 109 s all is well, at 111 s the request has failed."""
    manager = manager_of(slow=Future())
    clock.seconds = 109.0
    expect(manager.failures(), {}, at="9 s after it was submitted")
    clock.seconds = 111.0
    found = manager.failures()
    expect(list(found), ["slow"], at="11 s after it was submitted")
    expect("10 s" in str(found["slow"]), True, at=f"the limit in the reason: {found['slow']}")


def test_change_2_what_is_compiled_is_not_late(clock: SimpleNamespace) -> None:
    """Compiled, but no place was free for it: that is no failure."""
    done: Future[Any] = Future()
    done.set_result(object())
    manager = manager_of(done=done)
    clock.seconds = 200.0
    expect(manager.failures(), {}, at="compiled, 100 s later")


def test_change_2_errors_as_before(clock: SimpleNamespace) -> None:
    """What failed by itself keeps its own reason."""
    bad: Future[Any] = Future()
    bad.set_exception(ValueError("regex '(': missing )"))
    manager = manager_of(bad=bad)
    clock.seconds = 200.0
    found = {name: str(why) for name, why in manager.failures().items()}
    expect(found, {"bad": "regex '(': missing )"}, at="it failed by itself")
