"""Data parallelism: several whole engines, and a router that decides which one gets a request.

Source: vllm/v1/engine/core_client.py#L1382-L1410 (DPLBAsyncMPClient.get_core_engine_for_request)
@ v0.22.1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mini_vllm.errors import RequestError

WAITING_WEIGHT = 4
"""A waiting request weighs more than a running one: it shows that the engine is full."""


class DPRouter:
    """Sends each request to the engine with the least to do.

    Args:
        num_engines: how many there are.

    Attributes:
        counts: ``[waiting, running]`` of each engine, as far as the router knows.
        engines: which engine has a request, by its id; what has finished is forgotten.
    """

    def __init__(self, num_engines: int) -> None:
        self.counts = [[0, 0] for _ in range(num_engines)]
        self.engines: dict[str, int] = {}
        self.next_engine = 0
        """The one that a tie goes to."""

    def get_core_engine_for_request(
        self, request_id: str, data_parallel_rank: int | None = None
    ) -> int:
        """Choose the engine for a request, and remember it.

        The smallest ``4 * waiting + running`` wins; of equal ones the first from ``next_engine``
        on, around the ring, which then is the one behind the chosen. The request counts as
        waiting there at once: the engine's own counts come later, and a burst must not go to one
        engine only because its count has not come yet.

        Args:
            data_parallel_rank: the caller's own choice, which wins. Ties are not moved by it.

        Raises:
            ValueError: if there is no such engine.

        Source: vllm/v1/engine/core_client.py#L1382-L1410
        (DPLBAsyncMPClient.get_core_engine_for_request) @ v0.22.1
        """
        # TODO 10.12
        raise NotImplementedError(
            "TODO 10.12: write DPRouter.get_core_engine_for_request in labs/10-distributed/dp_router.py"
            " (phase 10, 02-mini-build.md#task-12)"
        )

    def score(self, engine: int) -> int:
        """How much an engine has to do, by ``self.counts``: ``4 * waiting + running``."""
        # TODO 10.12
        raise NotImplementedError(
            "TODO 10.12: write DPRouter.score in labs/10-distributed/dp_router.py"
            " (phase 10, 02-mini-build.md#task-12)"
        )

    def set_counts(self, engine: int, num_waiting: int, num_running: int) -> None:
        """What an engine says of itself, which is newer than what the router has counted."""
        self.counts[engine] = [num_waiting, num_running]

    def finish(self, request_ids: Iterable[str]) -> None:
        """Forget requests that have ended."""
        for request_id in request_ids:
            self.engines.pop(request_id, None)

    def split(self, request_ids: Sequence[str]) -> dict[int, list[str]]:
        """Requests by the engine that has them; unknown ones are left out."""
        by_engine: dict[int, list[str]] = {}
        for request_id in request_ids:
            if request_id in self.engines:
                by_engine.setdefault(self.engines[request_id], []).append(request_id)
        return by_engine


def one_answer(method: str, answers: Sequence[Any]) -> Any:
    """One answer for several engines: flags are joined, otherwise it is the answer of the first.

    Adapters come with requests, so each engine may have others.
    """
    if method == "list_loras":
        return set[int]().union(*answers)
    if method in ("has_requests", "remove_lora"):
        return any(answers)
    return all(answers) if isinstance(answers[0], bool) else answers[0]
