"""Limits on unfinished requests. A queue without a limit turns an overload into time-outs for
all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mini_vllm.engine.exceptions import QueueFullError


class _Sized(Protocol):
    num_prompt_tokens: int


class Admission:
    """Counts the requests that have not ended, running ones too, and refuses those beyond a limit.

    Args:
        requests: the unfinished ones, by id; the figures keep them up to date.
        max_reqs: most of them; a request with ``n`` completions counts ``n`` times.
        max_tokens: most tokens of their prompts together. None: no limit. 0 is one: none get in.
    """

    def __init__(
        self, requests: Mapping[str, _Sized], max_reqs: int | None, max_tokens: int | None
    ) -> None:
        self.requests, self.max_reqs, self.max_tokens = requests, max_reqs, max_tokens

    def check(self, num_reqs: int, num_tokens: int) -> None:
        """Raise unless this many more may come in. A limit may be reached, not exceeded.

        It does not wait, and its caller must not wait either until the new requests are counted:
        during an ``await`` other callers may check, too, and all be let in.

        Raises:
            QueueFullError: with what is there, how many more would come, the limit by the name of
                the option that sets it (``max_num_queued_reqs=8`` or
                ``max_num_queued_tokens=4096``), and the advice to try again.
        """
        unfinished = len(self.requests)
        if self.max_reqs is not None and unfinished + num_reqs > self.max_reqs:
            raise QueueFullError(
                f"{unfinished} requests are unfinished and {num_reqs} more would exceed "
                f"max_num_queued_reqs={self.max_reqs}; try again later"
            )
        if self.max_tokens is None:
            return
        tokens = sum(request.num_prompt_tokens for request in self.requests.values())
        if tokens + num_tokens > self.max_tokens:
            raise QueueFullError(
                f"prompts of {tokens} tokens are unfinished and {num_tokens} more would exceed "
                f"max_num_queued_tokens={self.max_tokens}; try again later"
            )
