"""Logits processors of your own: classes that change the logits of a whole batch.

    class NoDigits(LogitsProcessor):
        def __init__(self, vllm_config, device, is_pin_memory): ...
        def is_argmax_invariant(self): return False
        def update_state(self, batch_update): ...      # who is in which row now
        def apply(self, logits): logits[:, self.digits] = -inf; return logits

    LLM(model, logits_processors=[NoDigits])           or "module:NoDigits" by name

The interface is vLLM's. They run after penalties and before the temperature, in their order.
Source: vllm/v1/sample/logits_processor/interface.py#L60-L106 (LogitsProcessor) @ v0.22.1.
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from mini_vllm.errors import show
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams

T = TypeVar("T")


@dataclass(frozen=True)
class BatchUpdate:
    """Who has left which row, and who is there now: (row, params, prompt ids, output ids).

    The list of output ids is the request's own: it grows with every step.
    """

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, SamplingParams, Sequence[int], Sequence[int]]]
    moved: Sequence[tuple[int, int, Any]] = ()


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
        process_dict_updates(self.req_info, batch_update, self._function)

    def _function(
        self, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> _RequestFunction | None:
        """A request that only has another row keeps its function, which may remember something."""
        for known in self.req_info.values():
            if known.output_ids is output_ids:
                return known
        function = self.new_req_logits_processor(params)
        return None if function is None else _RequestFunction(function, prompt_ids, output_ids)

    def apply(self, logits: Tensor) -> Tensor:
        for row, function in self.req_info.items():
            logits[row] = function(logits[row])
        return logits


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
    """Keep what a processor knows of each row up to date; whether anything has changed.

    Args:
        req_entries: by row; changed.
        new_state: of ``(params, prompt_ids, output_ids)`` what to know of a request, None: nothing.

    Source: vllm/v1/sample/logits_processor/builtin.py#L294-L332 (process_dict_updates) @ v0.22.1
    """
    if batch_update is None:
        return False
    added = {
        row: new_state(params, prompt_ids, output_ids)
        for row, params, prompt_ids, output_ids in batch_update.added
    }
    before = dict(req_entries)
    for row in (*batch_update.removed, *added):
        req_entries.pop(row, None)
    req_entries |= {row: entry for row, entry in added.items() if entry is not None}
    return req_entries != before


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
        self.num_rows = 0

    def rows_changed(self, rows: Sequence[SamplingRow]) -> None:
        """Other requests are sampled now, or in other rows."""
        added = [
            (index, row.params, row.prompt_token_ids, row.output_token_ids)
            for index, row in enumerate(rows)
        ]
        update = BatchUpdate(len(rows), list(range(self.num_rows)), added)
        self.num_rows = len(rows)
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
