"""Statuses and blamed fields follow from types: a server whose errors all have other words answers
as the real one does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.entrypoints import test_request_fields as fields
from tests.engine.entrypoints import test_server_bounds as bounds
from tests.engine.entrypoints.server import Server

REWORDED = "reworded"
HOOK = Path(__file__).with_name(REWORDED)
TOO_MANY = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
NO_TOKEN = {"allowed_token_ids": [5], "structured_outputs": {"choice": ["yes"]}}
OF_ENGINE = [
    ("completions", {"structured_outputs": {"json": TOO_MANY}}),
    ("completions", {"structured_outputs": {"json": TOO_MANY}, "stream": True}),
    ("completions", NO_TOKEN),
    ("completions", NO_TOKEN | {"stream": True}),
    ("completions", {"kv_transfer_params": {"do_remote_prefill": True}}),
    ("completions", {"temperature": -1}),
    ("completions", {"logit_bias": {"5": 1e40}}),
    ("completions", {"repetition_detection": {"min_count": 1, "max_pattern_size": 2}}),
    ("chat/completions", {"messages": []}),
    ("chat/completions", {"messages": [{"content": "no role"}]}),
    ("completions", {"prompt": [10**6]}),
    ("completions", {"prompt": "Once " * 2000}),
]
"""What is refused below the protocol: by the parameters, the limits, and the engine itself."""


def cases(test: Any) -> list[tuple[Any, ...]]:
    """What another test is run with."""
    return next(mark.args[1] for mark in test.pytestmark if mark.name == "parametrize")


CASES = [
    *((path, change) for path, change, _ in cases(fields.test_fields_that_cannot_be_obeyed)),
    *(("completions", c) for c, _ in cases(bounds.test_what_is_too_large_is_refused_with_its_size)),
    *OF_ENGINE,
]  # fmt: skip


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    both = Server(), Server(env={"PYTHONPATH": str(HOOK)})
    try:
        for server in both:
            server.wait()
        yield both
    finally:
        for server in both:
            server.stop()


def refusal(server: Server, path: str, change: dict[str, Any]) -> tuple[list[Any], str]:
    """Status, kind and blamed field; and the words."""
    bodies = {"completions": {"prompt": "Once"}, "chat/completions": {"messages": fields.HELLO}}
    body = bodies.get(path, {"input": "Hello"})
    answer = server.post(f"/v1/{path}", **(body | change))
    error = answer.json()["error"]
    return [answer.status_code, error["type"], error["param"], error["code"]], error["message"]


def test_other_words_change_no_status(servers: tuple[Server, Server]) -> None:
    num_reworded = 0
    for path, change in CASES:
        (wanted, before), (found, words) = (refusal(server, path, change) for server in servers)
        assert found == wanted, f"{path} {str(change)[:80]}: {before}"
        assert wanted[0] == 400
        num_reworded += words != before
    assert num_reworded == len(CASES)  # none kept its words
