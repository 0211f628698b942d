"""Task 10.9: what a stage receives and hands on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.distributed.pipeline import PipelineStage, missing_tokens
from mini_vllm.distributed.simulated import run_ranks
from mini_vllm.model.interface import IntermediateTensors

CPU = torch.device("cpu")


def stage(group: Any) -> PipelineStage:
    return PipelineStage(group, 2, torch.float32, CPU)


class Line:
    """A pipeline's group that writes down what is done, in order. Nothing really travels.

    Its stages have the numbers 1, 3, 5 in the engine, as the second shards of two have.
    """

    def __init__(self, place: int, size: int) -> None:
        self.rank_in_group, self.world_size = place, size
        self.ranks = [2 * stage + 1 for stage in range(size)]
        self.rank = self.ranks[place]
        self.next_rank, self.prev_rank = self.ranks[(place + 1) % size], self.ranks[place - 1]
        self.is_first_rank, self.is_last_rank = place == 0, place == size - 1
        self.log: list[str] = []
        self.tensors: list[Tensor] = []

    def _begin(self, what: str, x: Tensor, other: int) -> Any:
        log, number = self.log, len(self.tensors)
        log.append(f"{what} {number}, stage {other}")
        self.tensors.append(x)

        class Waiting:
            def wait(self) -> None:
                log.append(f"wait {number}")

        return Waiting()

    def isend(self, x: Tensor, dst: int) -> Any:
        return self._begin("send", x, dst)

    def irecv(self, x: Tensor, src: int) -> Any:
        x.fill_(float(len(self.tensors)))
        return self._begin("receive", x, src)


def test_10_9_the_first_receives_nothing() -> None:
    """Tokens come in there."""
    group = Line(0, 3)
    expect(stage(group).receive(4), {}, at="stage 0 of 3")
    expect(group.log, [], at="messages")


def test_10_9_both_tensors_come() -> None:
    """The branch and the stream it is added to, [T, H] each, from the stage before."""
    group = Line(1, 3)
    got = stage(group).receive(4)
    expect(sorted(got), ["intermediate"], at="what the model is called with")
    both = got["intermediate"]
    shapes = [list(both.hidden_states.shape), list(both.residual.shape)]
    expect(shapes, [[4, 2], [4, 2]], at="4 tokens, hidden size 2")
    values = [both.hidden_states[0, 0].item(), both.residual[0, 0].item()]
    expect(values, [0.0, 1.0], at="first came the hidden states, then the residual stream")
    expect(sorted(group.log), ["receive 0, stage 0", "receive 1, stage 0", "wait 0", "wait 1"],
           at="all that was begun was waited for")  # fmt: skip


def test_10_9_the_last_keeps_its_result() -> None:
    """Hidden states of the last stage go to the head, not to a stage."""
    group, result = Line(2, 3), torch.ones(4, 2)
    expect(stage(group).hand_on(result) is result, True, at="stage 2 of 3")
    expect(group.log, [], at="messages")


def test_10_9_handing_on_does_not_wait() -> None:
    """The next stage may be busy: its own plan can wait, you go on."""
    group = Line(0, 2)
    yours = stage(group).hand_on(IntermediateTensors(torch.ones(1, 2), torch.ones(1, 2) * 2))
    expect(yours, None, at="a stage that is not the last returns")
    expect(group.log, ["send 0, stage 1", "send 1, stage 1"], at="what was done")
    values = [x[0, 0].item() for x in group.tensors]
    expect(values, [1.0, 2.0], at="hidden states first, then the residual stream")


def test_10_9_the_ones_before_have_left() -> None:
    """Before a step sends, the tensors of the last step must be gone."""
    group = Line(0, 2)
    first = stage(group)
    for _ in range(3):
        first.hand_on(IntermediateTensors(torch.ones(1, 2), torch.ones(1, 2)))
    right = ["send 0, stage 1", "send 1, stage 1"]
    for n in (2, 4):
        right += [f"wait {n - 2}", f"wait {n - 1}", f"send {n}, stage 1", f"send {n + 1}, stage 1"]
    log = group.log
    for n in (2, 6):  # which of two messages is waited for first is free
        log[n : n + 2] = sorted(log[n : n + 2])
    expect(log, right, at="three steps, one after another")


def test_10_9_views_are_made_whole() -> None:
    """A transport sends contiguous memory."""
    group, wide = Line(0, 2), torch.ones(3, 4)
    stage(group).hand_on(IntermediateTensors(wide[:, :2], wide[:, 2:]))
    contiguous = [x.is_contiguous() for x in group.tensors]
    expect(contiguous, [True, True], at="views of a wider tensor")


def test_10_9_through_three_stages() -> None:
    """Each adds 1 to one tensor and 10 to the other; three steps are under way."""

    def work(group: Any) -> list[float]:
        here, seen = stage(group), []
        for step in range(3):
            got = here.receive(5)
            both = got.get("intermediate") or IntermediateTensors(
                torch.full((5, 2), float(step)), torch.zeros(5, 2)
            )
            hidden, residual = both.hidden_states + 1, both.residual + 10
            if group.is_last_rank:
                seen.append(float((hidden + residual).mean()))
                here.hand_on(hidden)
            else:
                here.hand_on(IntermediateTensors(hidden, residual))
        return seen

    expect(run_ranks(3, work)[2], [33.0, 34.0, 35.0], at="stage 2: step + 3 + 30")


@pytest.mark.parametrize(
    ("known", "computed", "new", "right"),
    [
        (5, 3, [7, 8, 9], [9]),
        (10, 4, [1, 2, 3], []),
        (6, 6, [4], [4]),
        (7, 6, [4], []),
        (6, 6, [4, 5], [4, 5]),
    ],
)
def test_10_9_only_what_is_missing(
    known: int, computed: int, new: list[int], right: list[int]
) -> None:
    """A chunk of a prompt brings tokens that every stage has."""
    at = f"{known} tokens known, {computed} computed, the plan computes {new}"
    expect(missing_tokens(known, computed, new), right, at=at)
