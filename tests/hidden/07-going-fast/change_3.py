"""Change request 3, with graphs that share their memory, over random steps."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from mini_vllm.worker.cuda_graphs import DecodeGraphs, StaticInputs

HIDDEN = 6
ROWS = 8


class SharedPool:
    """Records as a GPU does: all outputs begin at the same address, and a replay marks what it
    writes, padding too."""

    def __init__(self) -> None:
        self.memory = torch.zeros(ROWS, HIDDEN)

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        output = self.memory[: len(run())]

        def replay() -> None:
            output.copy_(run())

        return replay, output


def new_graphs() -> DecodeGraphs:
    def forward(input_ids: Tensor, positions: Tensor, metadata: Any) -> Tensor:
        return (input_ids * 10 + positions)[:, None] + torch.arange(HIDDEN, dtype=torch.float32)

    inputs = StaticInputs(ROWS, 64, 4, torch.device("cpu"))
    graphs = DecodeGraphs(forward, inputs, [1, 2, 4, ROWS], SharedPool())
    graphs.capture()
    return graphs


def replayed(graphs: DecodeGraphs, tokens: list[int]) -> Tensor:
    rows = len(tokens)
    metadata = graphs.inputs.metadata(rows)
    answer = graphs.replay(torch.tensor(tokens), torch.arange(rows), metadata)
    assert answer is not None
    return answer


def expected(tokens: list[int]) -> Tensor:
    start = torch.tensor(tokens) * 10.0 + torch.arange(len(tokens))
    return start[:, None] + torch.arange(HIDDEN, dtype=torch.float32)


@pytest.mark.parametrize("seed", range(20))
def test_change_3_an_answer_stays_until_the_second_replay(seed: int) -> None:
    rng = Random(seed)
    graphs = new_graphs()
    steps = [[rng.randint(0, 99) for _ in range(rng.randint(1, ROWS))] for _ in range(30)]
    before: tuple[Tensor, list[int]] | None = None
    storages = set()
    for tokens in steps:
        answer = replayed(graphs, tokens)
        assert answer.shape == (len(tokens), HIDDEN)
        assert torch.equal(answer, expected(tokens))
        if before is not None:
            assert torch.equal(before[0], expected(before[1]))
        before = answer, tokens
        storages.add(answer.untyped_storage().data_ptr())
    assert len(storages) == 2, "two tensors, made once"
    assert graphs.graphs[1][1].untyped_storage().data_ptr() not in storages


def test_change_3_padding_is_not_copied() -> None:
    """What lies behind the rows of an answer stays as an answer before left it."""
    graphs = new_graphs()
    full = replayed(graphs, list(range(ROWS)))
    kept = full.clone()
    replayed(graphs, [1])
    again = replayed(graphs, [50, 51, 52])  # bucket 4: one row of padding
    assert again.data_ptr() == full.data_ptr()
    assert torch.equal(full[3:], kept[3:])
