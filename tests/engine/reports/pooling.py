"""The ways of reports of pooling models: what the routes answer, with each vector as its length."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from typing import Any

from starlette.testclient import TestClient

from tests.engine.pooling.here import make_engine, serve

STARTED = ExitStack()
CHANGES = ("id", "created", "model", "usage", "meta")
"""What no case can know, or what others look at."""


@cache
def client() -> TestClient:
    engine = make_engine("storyteller", runner="pooling", dtype="float32")
    return STARTED.enter_context(serve(engine))


def answer(given: dict[str, Any]) -> Any:
    """The answer to `body` at `path`, or the refusal: its field and its message."""
    response = client().post(given["path"], json=_with_nulls(given))
    if response.status_code != 200:
        error = response.json()["error"]
        told = {"status": response.status_code, "param": error["param"], "says": error["message"]}
        return {key: value for key, value in told.items() if value is not None}
    return shape(response.json())


def _with_nulls(given: dict[str, Any]) -> dict[str, Any]:
    """The body, with the fields that are to be null: plain data here has no word for it."""
    return given["body"] | dict.fromkeys(given.get("nulls", ()))


def shape(value: Any) -> Any:
    """A number that was computed is "number", and a list of them is how many there are."""
    if isinstance(value, dict):
        return {key: shape(v) for key, v in value.items() if key not in CHANGES and v is not None}
    if isinstance(value, list):
        if value and all(isinstance(one, int | float) for one in value):
            return f"{len(value)} numbers"
        return [shape(one) for one in value]
    return "number" if isinstance(value, float) else value
