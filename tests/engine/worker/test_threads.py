"""How many threads a step runs on; how long it takes is not checked here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from mini_vllm.kernels import native
from mini_vllm.worker import threads
from mini_vllm.worker.threads import StepThreads


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(threads, "_at_start", 4)
    monkeypatch.setattr(threads, "_set_here", None)
    yield
    native.use_more_threads(0)
    torch.set_num_threads(before)


def counts(chosen: StepThreads, *steps: int, num_requests: int = 1) -> list[int]:
    """PyTorch's threads; the kernels of our own have as many, or what it leaves, too."""
    found = []
    for num_tokens in steps:
        chosen.prepare(num_tokens, num_requests)
        found.append(torch.get_num_threads())
        assert native.threads() == (4 if found[-1] == 3 and not chosen.wanted else found[-1])
    return found


def test_a_narrow_model_splits_only_large_steps() -> None:
    assert counts(StepThreads(None, 128), 1, 255, 256, 2048, 16) == [1, 1, 4, 4, 1]
    assert counts(StepThreads(None, 1024), 1, 2048) == [4, 4]  # after a small one, too
    assert counts(StepThreads(None, 1024, most=2), 1, 2048) == [2, 2]


def test_many_requests_of_a_narrow_model_leave_a_core_to_the_front_end() -> None:
    narrow, wide, given = StepThreads(None, 128), StepThreads(None, 1024), StepThreads(3, 128)
    assert counts(narrow, 512, num_requests=16) == [4]  # leaves_a_core is not set
    for chosen in (narrow, wide, given):
        chosen.leaves_a_core = True
    assert counts(narrow, 16, 512, num_requests=16) == [1, 3]
    assert counts(narrow, 512, num_requests=15) == [4]
    assert counts(wide, 512, num_requests=16) == [4]
    assert counts(given, 512, num_requests=16) == [3]
    torch.set_num_threads(1)
    alone = StepThreads(None, 128)
    alone.leaves_a_core = True
    assert counts(alone, 512, num_requests=16) == [1]


def test_a_number_that_was_given_counts() -> None:
    assert counts(StepThreads(3, 128), 1, 2048) == [3, 3]
    torch.set_num_threads(2)  # by another library
    assert counts(StepThreads(None, 1024), 1) == [2]


@pytest.mark.parametrize(("given", "expected"), [(None, "1000"), ("7", "7")])
def test_the_spin_is_short_unless_the_user_says_otherwise(given: str | None, expected: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    if given is not None:
        environment["GOMP_SPINCOUNT"] = given
    code = "import mini_vllm, os, sys; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == [expected, "False"]
