"""Logits processors of your own: classes that change the logits of a whole batch.

    class NoDigits(LogitsProcessor):
        def __init__(self, vllm_config, device, is_pin_memory): ...
        def is_argmax_invariant(self): return False
        def update_state(self, batch_update): ...      # which request is in which row
        def apply(self, logits): logits[:, self.digits] = -inf; return logits

    LLM(model, logits_processors=[NoDigits])           or "module:NoDigits" by name

The interface is vLLM's. They run after penalties and before the temperature, in their order.
Source: vllm/v1/sample/logits_processor/interface.py#L60-L106 (LogitsProcessor) @ v0.22.1.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

import torch
from torch import Tensor

from mini_vllm.errors import show
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams

T = TypeVar("T")


class MoveDirectionality(Enum):
    """Whether a request leaves its row empty, or changes places with another.

    Equal to vLLM's of the same name: its helpers compare with their own.
    """

    UNIDIRECTIONAL = auto()
    SWAP = auto()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Enum) and other.name == self.name

    __hash__ = Enum.__hash__


@dataclass(frozen=True)
class BatchUpdate:
    """What has happened to the rows since the last step, in this order.

    Attributes:
        batch_size: rows that there are now.
        removed: rows whose request has left.
        added: requests that are new: (row, params, prompt ids, output ids). The list of output ids
            is the request's own: it grows with every step.
        moved: requests that have another row now: (from, to, whether the two change places).

    Source: vllm/v1/sample/logits_processor/interface.py#L34-L57 (BatchUpdate) @ v0.22.1
    """

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, SamplingParams, Sequence[int], Sequence[int]]]
    moved: Sequence[tuple[int, int, MoveDirectionality]] = ()


class LogitsProcessor(ABC):
    """Derive from this, or from vLLM's class of the same name."""

    @classmethod  # noqa: B027  (most refuse nothing)
    def validate_params(cls, params: SamplingParams) -> None:
        """Called for every request, before it is queued; raises ValueError to refuse it."""

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """`vllm_config` is our `EngineConfig`."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether it never changes which token is the most likely: greedy batches leave it out."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before every step; None if the same requests are in the same rows."""

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """The new logits `[B, V]`; the given ones may be changed."""


RequestLogitsProcessor = Callable[..., Tensor]
"""Changes the logits `[V]` of one request: of ``(output_ids, logits)``, or, if it takes three,
``(prompt_ids, output_ids, logits)``."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Makes a processor of a batch from functions for single requests: derive from it, and say in
    :meth:`new_req_logits_processor` which function a request needs.

    Source: vllm/v1/sample/logits_processor/__init__.py#L234-L341 (AdapterLogitsProcessor) @ v0.22.1
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, _RequestFunction] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The function of a request; None if it needs none."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Keep the function of each row, by :func:`process_dict_updates`: a function may remember
        something, so it is made once, when its request comes, and moves with the request."""
        # TODO 06.10
        raise NotImplementedError(
            "TODO 06.10: write AdapterLogitsProcessor.update_state in labs/06-sampling/custom.py"
            " (phase 06, 02-mini-build.md#task-10)"
        )

    def _function(
        self, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> _RequestFunction | None:
        function = self.new_req_logits_processor(params)
        return None if function is None else _RequestFunction(function, prompt_ids, output_ids)

    def apply(self, logits: Tensor) -> Tensor:
        """Call the function of each row that has one with the row's logits ``[V]``, and write its
        result there, in place. Other rows are not touched. Returns ``logits`` ``[B, V]``."""
        # TODO 06.10
        raise NotImplementedError(
            "TODO 06.10: write AdapterLogitsProcessor.apply in labs/06-sampling/custom.py"
            " (phase 06, 02-mini-build.md#task-10)"
        )


class _RequestFunction:
    def __init__(
        self,
        function: RequestLogitsProcessor,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        self.function, self.output_ids = function, output_ids
        takes_prompt = len(inspect.signature(function).parameters) == 3
        self.arguments = (prompt_ids, output_ids) if takes_prompt else (output_ids,)

    def __call__(self, logits: Tensor) -> Tensor:
        return self.function(*self.arguments, logits)


def process_dict_updates(
    req_entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, Sequence[int], Sequence[int]], T | None],
) -> bool:
    """Keep what a processor knows of each row up to date; True if anything has changed. A row
    that now belongs to another request counts as changed, even if what is known of it is equal. If
    something comes or moves and in the end all is as before, either answer will do.

    None means that all rows stay. An update is read in this order:

    - ``removed``: what is known of these rows is forgotten;
    - ``added``: the row belongs to a new request, and ``new_state`` says what to know of it; what
      was known of an earlier one is forgotten, also if that is None;
    - ``moved``, one after the other: ``(a, b, direction)`` takes the request of row a, and all that
      is known of it, to row b. With SWAP that of b goes to a, otherwise a is empty then, and what
      was known of b is forgotten. A request of which nothing is known moves, too.

    Args:
        req_entries: by row, for rows of which something is known; changed.
        new_state: of ``(params, prompt_ids, output_ids)`` what to know of a request, None: nothing.

    Source: vllm/v1/sample/logits_processor/builtin.py#L294-L332 (process_dict_updates) @ v0.22.1
    """
    # TODO 06.10
    raise NotImplementedError(
        "TODO 06.10: write process_dict_updates in labs/06-sampling/custom.py"
        " (phase 06, 02-mini-build.md#task-10)"
    )


def update_of(before: Sequence[SamplingRow], after: Sequence[SamplingRow]) -> BatchUpdate:
    """What has happened to the rows of a batch. A request is known by its list of output ids.

    Those that have left are removed, new ones take the first free rows, and then each row that has
    the wrong request gets the right one: by a swap, or, where it is free, by a move.
    """
    wanted = [id(row.output_token_ids) for row in after]
    known = [id(row.output_token_ids) for row in before]
    removed = [row for row, key in enumerate(known) if key not in set(wanted)]
    place = {key: row for row, key in enumerate(known) if row not in removed}
    free = (row for row in itertools.count() if row not in place.values())
    added = []
    for key, (params, prompt_ids, output_ids, *_) in zip(wanted, after, strict=True):
        if key not in place:
            place[key] = next(free)
            added.append((place[key], params, prompt_ids, output_ids))
    moved = []
    for row, key in enumerate(wanted):
        if (source := place[key]) != row:
            other = next((k for k, at in place.items() if at == row), None)
            if other is not None:
                place[other] = source
            place[key] = row
            kind = "UNIDIRECTIONAL" if other is None else "SWAP"
            moved.append((source, row, MoveDirectionality[kind]))
    return BatchUpdate(len(after), removed, added, moved)


def load_classes(given: Sequence[str | type] | None) -> list[type]:
    """The classes that `LLM(logits_processors=...)` names.

    Raises ValueError for what is none; the message says what is lacking.
    """
    if given is None:
        return []
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(
            f"logits_processors is {show(given)}; it must be a list of classes, or of their names"
        )
    return [_load_class(one) for one in given]


def _load_class(given: str | type) -> type:
    if isinstance(given, str):
        module, _, name = given.replace(":", ".").rpartition(".")
        try:
            given = getattr(importlib.import_module(module), name)
        except (ImportError, ValueError, AttributeError) as error:
            raise ValueError(
                f"logits_processors names {given!r}, which cannot be imported ({error}); write "
                "'module:ClassName'"
            ) from error
    needed = ("apply", "update_state", "is_argmax_invariant")
    lacks = [name for name in needed if not hasattr(given, name)]
    if lacks or not isinstance(given, type):
        raise ValueError(
            f"logits_processors has {show(given)}, which is no LogitsProcessor: it lacks "
            f"{', '.join(lacks) or 'a class'}; derive it from mini_vllm.sample.custom"
        )
    return given


class CustomSampler(Sampler):
    """The sampler, with processors of a user's own between penalties and temperature."""

    def __init__(self, processors: Sequence[Any]) -> None:
        super().__init__()
        self.processors = list(processors)
        self.rows: Sequence[SamplingRow] = ()

    def rows_changed(self, rows: Sequence[SamplingRow]) -> None:
        """Other requests are sampled now, or in other rows."""
        update = update_of(self.rows, rows)
        self.rows = rows
        for processor in self.processors:
            processor.update_state(update)

    def rows_stayed(self) -> None:
        for processor in self.processors:
            processor.update_state(None)

    def apply_processors(  # type: ignore[override]
        self, logits: Tensor, metadata: SamplingMetadata
    ) -> Tensor:
        changed = Sampler.apply_processors(logits, metadata)
        own = changed.clone() if changed is logits else changed
        for processor in self.processors:
            if not (metadata.all_greedy and processor.is_argmax_invariant()):
                own = processor.apply(own)
        return own
