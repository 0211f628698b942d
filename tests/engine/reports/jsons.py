"""Damaged JSON, by the engine's one reader of it."""

from __future__ import annotations

from typing import Any

from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.json_files import parse_json
from tests.engine.reports.loading import checkpoint


def parsed(given: dict[str, Any]) -> Any:
    """The value of a text, `times` over; or the words that refuse it."""
    try:
        return parse_json(given["text"] * given.get("times", 1))
    except ValueError as error:
        return str(error)


def started(given: dict[str, Any]) -> str:
    """What a start says about a checkpoint with this damaged file; without the folder's name."""
    with checkpoint({}) as folder:
        (folder / given["file"]).write_text(given["text"] * given.get("times", 1))
        try:
            make_engine_config(str(folder))
        except ValueError as error:
            return str(error).replace(f"{folder}/", "")
    return ""
