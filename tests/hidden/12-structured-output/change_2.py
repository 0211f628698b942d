"""Change request 2: each request has its own clock, and the limit is a setting."""

from __future__ import annotations

import time
from concurrent.futures import Future
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.request import StructuredOutputRequest


@pytest.mark.parametrize("seed", range(40))
def test_change_2_any_requests(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    config = StructuredOutputsConfig()
    manager = StructuredOutputManager(config, lambda: None, [0])  # type: ignore[arg-type,return-value]
    assert manager.max_compile_seconds == 10  # type: ignore[attr-defined]
    limit = rng.choice([10, 3, 0.5])
    manager.max_compile_seconds = limit  # type: ignore[attr-defined]
    submitted, states = {}, {}
    for number in range(5):
        name = f"r{number}"
        future: Future[Any] = Future()
        states[name] = rng.choice(["running", "done", "failed", "cancelled", "none"])
        if states[name] == "done":
            future.set_result(object())
        elif states[name] == "failed":
            future.set_exception(ValueError(name))
        elif states[name] == "cancelled":
            future.cancel()
        constraint = StructuredOutputRequest(StructuredOutputsParams(regex="same"))
        constraint.future = None if states[name] == "none" else future
        submitted[name] = constraint.submitted = rng.choice([0.0, 5.0, 40.0])
        manager.requests[name] = SimpleNamespace(  # type: ignore[assignment]
            request_id=name, structured_output_request=constraint
        )
    now = rng.choice([5.25, 12.0, 50.0, 55.0])
    monkeypatch.setattr(time, "monotonic", lambda: now)
    found = {name: str(why) for name, why in manager.failures().items()}
    late = {n for n in states if states[n] == "running" and now - submitted[n] > limit}
    assert found.keys() == late | {n for n in states if states[n] == "failed"}
    assert all(f"{limit:g}" in found[name] for name in late)
    assert all(found[name] == name for name in states if states[name] == "failed")
