"""Builders for the tests of phase 10. Ranks are threads of this process; what they exchange is
handed over when both sides have begun, and a rank that waits in vain says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mini_vllm.core.scheduler_output import CachedRequestData, SchedulerOutput
from mini_vllm.distributed.shm_broadcast import ShmRingBuffer
from mini_vllm.engine.batch_queue import Batch, step_with_batch_queue
from mini_vllm.model.layout import Part

if TYPE_CHECKING:
    from torch import Tensor

    from mini_vllm.distributed.linear import ModelParallel
    from mini_vllm.distributed.parallel_state import GroupCoordinator
    from mini_vllm.model.layers import Linear


# ---------------------------------------------------------------- the ranks
def rank(number: int, world_size: int) -> GroupCoordinator:
    """One of several ranks, for arithmetic: it has no neighbours."""
    from mini_vllm.distributed.parallel_state import GroupCoordinator

    return GroupCoordinator(range(world_size), number)


def deaf(number: int, world_size: int) -> GroupCoordinator:
    """A rank whose exchanges only say what they were given."""
    made = rank(number, world_size)
    made.all_reduce = lambda x: x + 1000  # type: ignore[method-assign]
    return made


def parallel(group: GroupCoordinator) -> ModelParallel:
    """The layouts of this shard; there is one stage."""
    from mini_vllm.distributed.linear import ModelParallel

    return ModelParallel(group, rank(0, 1))


def rows(parts: Iterable[Part]) -> list[list[int]]:
    """The first row and the end of each part, as a learner counts them."""
    return [[part.out.start, part.out.stop] for part in parts]


def columns(parts: Iterable[Part]) -> list[list[int]]:
    return [[part.in_.start, part.in_.stop] for part in parts]


# ---------------------------------------------------------------- layers
def whole_numbers(seed: int, *shape: int) -> Tensor:
    """Small whole numbers: their sums are exact in any order."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=draw).float()


def row_layer(group: GroupCoordinator, weight: Tensor, bias: Tensor | None) -> Linear:
    """A rank's part of a row-parallel layer, filled from the whole."""
    from mini_vllm.model.layers import PLAIN, Linear

    outputs, inputs = weight.shape
    layer = Linear(inputs, outputs, bias is not None, PLAIN, parallel(group).row())
    layer.weight.data.copy_(weight[:, layer.parts[0].in_])
    if bias is not None:
        layer.bias.data.copy_(bias)
    return layer


# ---------------------------------------------------------------- plans on their way
def plan(sizes: dict[str, int], cached: CachedRequestData | None = None) -> SchedulerOutput:
    none = CachedRequestData([], [], set(), {})
    return SchedulerOutput([], cached or none, sizes, sum(sizes.values()), {}, {}, [], set())


class Engine:
    """Plans so many tokens in each step, and writes down what it does.

    ``answer(n)`` is the moment at which the answer to plan n comes.
    """

    def __init__(self, sizes: Sequence[int], depth: int) -> None:
        self.sizes, self.depth = list(sizes), depth
        self.queue: deque[Batch] = deque()
        self.log: list[str] = []
        self.answers: list[Future[Any]] = []

    def submit(self) -> Batch:
        size = self.sizes.pop(0)
        self.log.append(f"submit {len(self.answers)}")
        self.answers.append(Future())
        number = float(len(self.answers) - 1)
        return Batch(plan({"ada": size} if size else {}), self.answers[-1], [], number, 0.0)

    def finish(self, batch: Batch) -> str:
        self.log.append(f"finish {batch.started:.0f}")
        return self.log[-1]

    def answer(self, number: int) -> None:
        self.answers[number].set_result(None)

    def step(self) -> str | None:
        return step_with_batch_queue(
            self.queue, self.depth, lambda: bool(self.sizes), self.submit, self.finish
        )


# ---------------------------------------------------------------- a ring in memory
class Shared:
    """Memory with a writer and some readers, each with its own place in the ring."""

    def __init__(self, readers: int = 1, chunks: int = 2, room: int = 16) -> None:
        memory = bytearray(ShmRingBuffer.num_bytes(readers, room, chunks))
        sides = [ShmRingBuffer(memory, readers, room, chunks) for _ in range(readers + 1)]
        self.writer, self.readers = sides[0], sides[1:]

    def flags(self) -> list[int]:
        """Of the writer's next chunk."""
        return list(self.writer.get_metadata())


def run_messages(inputs: Sequence[Tensor], function: Callable[..., Tensor]) -> Any:
    from mini_vllm.distributed import simulated

    return simulated.run_messages(inputs, function)


@pytest.fixture
def lab() -> SimpleNamespace:
    """All builders of this file."""
    builders = (
        rank, deaf, parallel, rows, columns, whole_numbers, row_layer, plan, Engine, Shared,
        run_messages,
    )  # fmt: skip
    return SimpleNamespace(**{b.__name__: b for b in builders})
