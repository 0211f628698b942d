"""Stored responses, which later requests can continue without sending them again.

They are in memory, up to a number of bytes. The oldest are removed first; all are lost when the
server ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.errors import show

MOST_BYTES = 64 * 2**20
"""Most bytes of all stored conversations together, as JSON."""


@dataclass
class Kept:
    """A stored response with its conversation.

    Attributes:
        body: as it was sent.
        items: of the whole conversation, with those of the response last.
        num_input: how many of the items were the input.
        size: in bytes, as JSON.
    """

    body: dict[str, Any]
    items: list[dict[str, Any]]
    num_input: int
    size: int


class ResponseStore:
    """Stored responses by id.

    Attributes:
        items: output items of the stored responses, by the item's id.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.kept: dict[str, Kept] = {}
        self.items: dict[str, dict[str, Any]] = {}
        self.num_bytes = 0

    def add(self, body: dict[str, Any], items: Sequence[dict[str, Any]]) -> None:
        """Store a response with the items that it answers, unless it is larger than
        ``most_bytes``."""
        self._forget(body["id"])
        whole = [*items, *body["output"]]
        size = len(orjson.dumps([body, whole]))
        if size > self.most_bytes:
            return
        while self.num_bytes + size > self.most_bytes:
            self._forget(next(iter(self.kept)))
        self.kept[body["id"]] = Kept(body, whole, len(items), size)
        self.items |= {item["id"]: item for item in body["output"]}
        self.num_bytes += size

    def get(self, response_id: str, param: str | None = None) -> Kept:
        """Raises APIError (404) for a response that is not stored."""
        if response_id not in self.kept:
            raise APIError(
                f"the response {show(response_id)} is not kept here: it was never stored, was "
                "deleted, or made room for later ones; send the conversation as input",
                HTTPStatus.NOT_FOUND,
                param,
            )
        return self.kept[response_id]

    def delete(self, response_id: str) -> None:
        """Raises APIError (404) for a response that is not stored."""
        self.get(response_id)
        self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        kept = self.kept.pop(response_id, None)
        if kept is not None:
            self.num_bytes -= kept.size
            for item in kept.body["output"]:
                self.items.pop(item["id"], None)
