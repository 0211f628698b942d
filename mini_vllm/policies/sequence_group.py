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
        self._members: dict[str, list[Request]] = {}
        self._names: dict[str, str] = {}

    def add(self, request: Request) -> None:
        """Note a new request."""
        index, _, parent = request.request_id.partition("_")
        name = parent if index.isdigit() and parent else request.request_id
        members = self._members.get(name, [])
        if any(not _same_prompt(request, other) for other in members):
            name = request.request_id
        self._names[request.request_id] = name
        self._members.setdefault(name, []).append(request)

    def remove(self, request: Request) -> None:
        """Forget a request that has finished, and its group with the last of its members."""
        name = self._names.pop(request.request_id)
        self._members[name].remove(request)
        if not self._members[name]:
            del self._members[name]

    def of(self, request: Request) -> list[Request]:
        """The unfinished members of the request's group."""
        return self._members[self._names[request.request_id]]

    def ids(self, name: str) -> list[str]:
        """The ids behind a name: those of a group's members, or the name itself."""
        return [request.request_id for request in self._members.get(name, [])] or [name]

    def split(self, requests: Iterable[Request]) -> list[list[Request]]:
        """``requests`` by group; the groups in the order of their first members."""
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(self._names[request.request_id], []).append(request)
        return list(groups.values())


def _same_prompt(one: Request, other: Request) -> bool:
    """Whether two requests write the same KV for their prompts."""
    return (one.prompt_token_ids, one.lora_name, one.cache_salt, one.mm_hashes) == (
        other.prompt_token_ids,
        other.lora_name,
        other.cache_salt,
        other.mm_hashes,
    )
