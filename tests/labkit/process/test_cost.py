"""Counted operations, with which tests judge what a docstring says of cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

from labkit.inside.cost import elements, peak_bytes, steps, waits

V = 10_000
logits = torch.zeros(2, V)
few = torch.tensor([3, 4, 5])
values = torch.zeros(3)
zeros = np.zeros(V)


def test_steps_grow_as_the_loops_do() -> None:
    def once(size: int) -> int:
        return sum(number for number in range(size))

    def each_from_the_start(size: int) -> int:
        return sum(once(number) for number in range(size))

    one, two, three = (steps(once, size) for size in (10, 20, 30))
    assert three - two == two - one > 0, "linear"
    one, two, three = (steps(each_from_the_start, size) for size in (10, 20, 30))
    assert three - two > two - one + 10 * 10


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda: logits * 2, 2 * V),
        (lambda: logits.clone().mul_(2), 4 * V),
        (lambda: logits.sum(), 2 * V),
        (lambda: torch.where(logits > 0, logits, values[0]), 4 * V),
        (lambda: torch.cat([logits, logits]), 4 * V),
        (lambda: logits[:, 1:].T.unsqueeze(0).expand(7, -1, -1), 0),
        (lambda: torch.empty_like(logits), 0),
        (lambda: logits.topk(3), 2 * V),
        (lambda: logits.topk(V), 2 * V * 14),
        (lambda: logits.sort(), 2 * V * 14),
        (lambda: logits.argsort(dim=-1), 2 * V * 14),
        (lambda: logits[0, few], 3),
        (lambda: logits[0].gather(0, few), 3),
        (lambda: logits[0].index_put_((few,), values), 3),
        (lambda: logits[0].index_put((few,), values), V),
        (lambda: zeros.sum(), 0),
    ],
)
def test_elements_are_what_operators_touch(function: Callable[[], Any], count: int) -> None:
    assert elements(function) == count


def test_peak_bytes_are_what_was_in_use_at_one_time() -> None:
    one_by_one = peak_bytes(lambda: [zeros.copy().sum() for _ in range(3)])
    assert 8 * V <= one_by_one < 16 * V, "less than two copies; other threads count, too"
    assert peak_bytes(lambda: zeros[5:].sum()) < V
    assert peak_bytes(list, range(V)) >= 8 * V


@pytest.mark.parametrize("count", [steps, elements, peak_bytes])
def test_a_call_gets_its_arguments_and_leaves_nothing_behind(
    count: Callable[..., int],
) -> None:
    seen: list[Any] = []
    before = sys.gettrace()
    count(lambda *args, **kwargs: seen.append((args, kwargs)), 1, 2, a=3)
    assert seen == [((1, 2), {"a": 3})]
    with pytest.raises(ZeroDivisionError):
        count(divmod, 1, 0)
    assert sys.gettrace() is before
    count(lambda: None)


def test_the_counter_of_steps_stays_on() -> None:
    with pytest.raises(RuntimeError, match="leave it alone"):
        steps(lambda: sys.settrace(None))


@pytest.mark.parametrize("counter", [steps, elements, waits])
def test_what_another_thread_does_is_not_left_out(counter: Callable[..., int]) -> None:
    def elsewhere() -> None:
        worker = Thread(target=logits.sum)
        worker.start()
        worker.join()

    with pytest.raises(RuntimeError, match="a thread was started"):
        counter(elsewhere)
