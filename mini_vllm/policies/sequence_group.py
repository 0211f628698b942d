"""Which requests are completions of one prompt: vLLM V0 scheduled them as one group."""

from __future__ import annotations

from collections.abc import Iterable

from mini_vllm.request import Request


class SequenceGroups:
    """Groups of requests by name: a request of its own is a group of one.

    The engine makes a request with ``n > 1`` into children ``0_name``, ``1_name``, ... (see
    :mod:`mini_vllm.engine.parallel_sampling`); those with one prompt make up the group ``name``.
    """

    def __init__(self) -> None:
        self._members: dict[tuple[str, bool], list[Request]] = {}
        """By name, and whether it is that of a parent: a request may have the same id."""
        self._keys: dict[str, tuple[str, bool]] = {}

    def add(self, request: Request) -> None:
        """Note a new request."""
        index, _, parent = request.request_id.partition("_")
        key = (parent, True)
        siblings = self._members.get(key, [])
        if not index.isdigit() or not parent or not all(_same_kv(request, r) for r in siblings):
            key = (request.request_id, False)
        self._keys[request.request_id] = key
        self._members.setdefault(key, []).append(request)

    def remove(self, request: Request) -> None:
        """Forget a request that has finished, and its group with the last of its members."""
        key = self._keys.pop(request.request_id)
        self._members[key].remove(request)
        if not self._members[key]:
            del self._members[key]

    def of(self, request: Request) -> list[Request]:
        """The unfinished members of the request's group."""
        return self._members[self._keys[request.request_id]]

    def ids(self, name: str) -> list[str]:
        """The ids that a name may stand for: a group's members, and the name itself."""
        return [*(request.request_id for request in self._members.get((name, True), [])), name]

    def split(self, requests: Iterable[Request]) -> list[list[Request]]:
        """``requests`` by group; the groups in the order of their first members."""
        groups: dict[tuple[str, bool], list[Request]] = {}
        for request in requests:
            groups.setdefault(self._keys[request.request_id], []).append(request)
        return list(groups.values())


def _same_kv(one: Request, other: Request) -> bool:
    """Whether two requests write the same KV for their prompts."""
    return (one.prompt_token_ids, one.lora_name, one.cache_salt, one.mm_hashes) == (
        other.prompt_token_ids,
        other.lora_name,
        other.cache_salt,
        other.mm_hashes,
    )
