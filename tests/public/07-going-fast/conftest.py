"""What the tests of phase 07 share: a toy model whose whole state can be read, and its steps.

The toy stores each token's id in its slot and answers with the sum of all ids in the context. So
a wrong slot, a wrong length or a stale input changes a number that you can check by hand.
Blocks hold 4 tokens; block 0 is the null block.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: kernels run on the CPU

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from labkit.testing import Divergence

if TYPE_CHECKING:  # at run time only where it is used: 07.7 does without torch
    from torch import Tensor

    from mini_vllm.attention import AttentionMetadata
    from mini_vllm.worker.cuda_graphs import DecodeGraphs, StaticInputs

    Step = tuple[Tensor, Tensor, AttentionMetadata]

BLOCK_SIZE = 4


class Toy:
    """A model of one number per token. `cache[slot]` is the id stored there, `positions` what the
    last pass was given."""

    def __init__(self) -> None:
        import torch

        self.cache = torch.zeros(8 * BLOCK_SIZE)
        self.calls: list[int] = []
        self.positions: list[int] = []

    def __call__(self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
        import torch

        self.calls.append(len(input_ids))
        self.positions = positions.tolist()
        stored = metadata.slot_mapping >= 0
        self.cache[metadata.slot_mapping[stored]] = input_ids[stored].float()
        place = torch.arange(metadata.block_table.shape[1] * BLOCK_SIZE)
        blocks = metadata.block_table[:, place // BLOCK_SIZE].long()
        visible = place < metadata.seq_lens[:, None]
        return (self.cache[blocks * BLOCK_SIZE + place % BLOCK_SIZE] * visible).sum(1, keepdim=True)


def decode(tokens: Sequence[int], seq_lens: Sequence[int], tables: Sequence[Sequence[int]]) -> Step:
    """A step of decodes: the newest token of each request, and its context with that token."""
    import torch

    from mini_vllm.attention import AttentionMetadata

    metadata = AttentionMetadata.from_lists([1] * len(tokens), seq_lens, tables, BLOCK_SIZE)
    return torch.tensor(list(tokens)), metadata.seq_lens.long() - 1, metadata


def make_graphs(buckets: Sequence[int] = (1, 2, 4), capture: bool = True) -> DecodeGraphs:
    """Graphs of a new toy for up to 4 requests of 16 tokens."""
    import torch

    from mini_vllm.worker.cuda_graphs import DecodeGraphs, StaticInputs, record_eagerly

    inputs = StaticInputs(max(buckets), 16, BLOCK_SIZE, torch.device("cpu"))
    graphs = DecodeGraphs(Toy(), inputs, buckets, record_eagerly)
    if capture:
        graphs.capture()
    return graphs


@pytest.fixture
def toy() -> type[Toy]:
    return Toy


@pytest.fixture
def step() -> Callable[..., Step]:
    return decode


@pytest.fixture
def graphs() -> Callable[..., DecodeGraphs]:
    return make_graphs


@pytest.fixture
def static() -> StaticInputs:
    """Inputs for 4 requests of 16 tokens, as a step of 4 requests has left them."""
    import torch

    from mini_vllm.worker.cuda_graphs import StaticInputs

    inputs = StaticInputs(4, 16, BLOCK_SIZE, torch.device("cpu"))
    inputs.input_ids.copy_(torch.tensor([91, 92, 93, 94]))
    inputs.positions.copy_(torch.tensor([4, 5, 6, 7]))
    inputs.slot_mapping.copy_(torch.tensor([8, 13, 18, 23]))
    inputs.seq_lens.copy_(torch.tensor([5, 6, 7, 8]))
    inputs.block_table.copy_(torch.tensor([[1, 2, 0, 0], [1, 3, 0, 0], [1, 4, 0, 0], [1, 5, 0, 0]]))
    return inputs


def near(yours: Tensor, expected: Tensor, *, at: str, tolerance: float = 1e-5) -> None:
    """Fail at the first element that is further from `expected` than the tolerance, or NaN."""
    __tracebackhide__ = True
    wrong = ~((yours.double() - expected.double()).abs() <= tolerance)
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        count = f"{int(wrong.sum())} of {wrong.numel()} elements"
        raise Divergence(
            f"{at}, element {place}",
            round(float(yours[place]), 6),
            round(float(expected[place]), 6),
            {"wrong": count, "tolerance": tolerance},
        )


@pytest.fixture
def close() -> Callable[..., None]:
    return near
