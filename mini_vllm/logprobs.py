"""Logprobs of many positions in a few flat lists.

A dict of :class:`Logprob` objects a position is easy to read; a long output with many candidates is
then a hundred thousand objects, which Python's garbage collector walks again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.outputs import Logprob

Position = dict[int, Logprob]
"""The candidates for one position by token id; empty for the first token of a prompt."""


@dataclass
class FlatLogprobs(MutableSequence[Any]):
    """The candidates for each position, to be read like a list of dicts.

    The candidates of position i are entries ``start_indices[i]`` to ``end_indices[i] - 1`` of the
    last four lists.

    Source: vllm/logprobs.py#L30-L153 (FlatLogprobs) @ v0.22.1
    """

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append(self, value: Position | None) -> None:
        """Add the candidates for the next position."""
        self.start_indices.append(len(self.token_ids))
        for token_id, entry in (value or {}).items():
            self.token_ids.append(token_id)
            self.logprobs.append(entry.logprob)
            self.ranks.append(entry.rank)
            self.decoded_tokens.append(entry.decoded_token)
        self.end_indices.append(len(self.token_ids))

    def extend(self, values: Iterable[Position | None]) -> None:
        """Add the candidates for several positions."""
        for value in values:
            self.append(value)

    def __len__(self) -> int:
        """The number of positions."""
        return len(self.start_indices)

    def __getitem__(self, index: Any) -> Any:
        """The candidates for one position, or a copy of those for a slice."""
        if isinstance(index, slice):
            part = FlatLogprobs()
            part.extend(self[i] for i in range(*index.indices(len(self))))
            return part
        return {
            self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i])
            for i in range(self.start_indices[index], self.end_indices[index])
        }

    def __iter__(self) -> Iterator[Position]:
        return (self[i] for i in range(len(self)))

    def __add__(self, other: Iterable[Position | None]) -> FlatLogprobs:
        joined = self[:]
        joined.extend(other)
        return joined

    def __radd__(self, other: Iterable[Position | None]) -> FlatLogprobs:
        return FlatLogprobs() + other + self

    def __setitem__(self, index: Any, value: Iterable[Position | None]) -> None:
        """Put other positions in the place of neighbours: ``flat[2:5] = ...``."""
        first, stop = self._neighbours(index)
        behind = self[stop:]
        del self[first:]
        self.extend([*value, *behind])

    def __delitem__(self, index: Any) -> None:
        """Delete the last positions: ``del flat[5:]``."""
        first, stop = self._neighbours(index)
        if stop < len(self):
            raise TypeError("only the last positions can be deleted: del flat[5:]")
        keep = self.start_indices[first] if first < len(self) else len(self.token_ids)
        for entries in (self.token_ids, self.logprobs, self.ranks, self.decoded_tokens):
            del entries[keep:]
        del self.start_indices[first:], self.end_indices[first:]

    def _neighbours(self, index: Any) -> tuple[int, int]:
        if not isinstance(index, slice) or index.step not in (None, 1):
            raise TypeError(f"index is {index!r}; positions are changed by slices, such as [5:]")
        first, stop, _ = index.indices(len(self))
        return first, max(first, stop)

    def insert(self, index: int, value: Position | None) -> None:
        """Put a position before another."""
        self[index:index] = [value]
