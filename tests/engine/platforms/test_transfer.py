"""From the host's memory into a device's, with a stand-in for the device in the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from mini_vllm import LLM, SamplingParams
from mini_vllm.platforms import transfer
from mini_vllm.platforms.transfer import ALIGNMENT, LEAST_BYTES, Transfer, on_device

LIMITS: dict[str, Any] = {
    "dtype": "float32", "block_size": 4, "num_gpu_blocks": 40, "max_model_len": 64,
    "max_num_batched_tokens": 24,
}  # fmt: skip
PROMPTS = [[200, 201, 202], list(range(300, 322)), [700] * 9, list(range(300, 318)), [5, 6]]


@pytest.fixture()
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The CPU is a device with memory of its own, full of rubbish until a copy arrives; here is
    how many bytes each copy had."""
    made: list[int] = []

    def copy_over(source: Tensor, target: Tensor) -> None:
        made.append(source.numel() * source.itemsize)
        target.copy_(source)

    begin = Transfer._begin

    def rubbish(self: Transfer, num_bytes: int) -> None:
        begin(self, num_bytes)
        if self._chunk is not None:
            self._chunk[1].fill_(0x5B)

    monkeypatch.setattr(transfer, "is_apart", lambda _: True)
    monkeypatch.setattr(transfer, "copy_over", copy_over)
    monkeypatch.setattr(Transfer, "_begin", rubbish)
    yield made


TENSORS = (
    torch.arange(7), torch.tensor([True, False, True]), torch.arange(12).int().view(3, 4).T,
    torch.zeros(0, dtype=torch.int64), torch.tensor([0.5, -2.0]), torch.tensor(9),
    torch.zeros(0, 4, dtype=torch.int32),
)  # fmt: skip


def test_what_is_put_together_arrives_in_one_copy(copies: list[int]) -> None:
    sender = Transfer("cpu")
    with sender.together():
        there = [sender.put(tensor) for tensor in TENSORS]
        part = there[0][2:4]
        assert copies == [] and there[0].tolist() != TENSORS[0].tolist()
    assert len(copies) == 1
    assert all(map(torch.equal, there, TENSORS)) and part.tolist() == [2, 3]
    assert all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in there if tensor.numel())


def test_alone_each_is_a_copy(copies: list[int]) -> None:
    sender = Transfer("cpu")
    there = [sender.put(tensor) for tensor in TENSORS] + [on_device(TENSORS[0], "cpu")]
    assert len(copies) == len(TENSORS) + 1
    assert all(map(torch.equal, there, [*TENSORS, TENSORS[0]]))


def test_what_does_not_fit_goes_in_two_copies_once(copies: list[int]) -> None:
    sender, large = Transfer("cpu"), torch.arange(LEAST_BYTES)
    for expected in (2, 1, 1):
        copies.clear()
        with sender.together():
            there = [sender.put(torch.arange(5)), sender.put(large)]
        assert len(copies) == expected
        assert all(map(torch.equal, there, [torch.arange(5), large]))


def test_a_step_does_not_write_over_the_one_before(copies: list[int]) -> None:
    sender, found = Transfer("cpu"), []
    for step in range(3):
        with sender.together():
            found.append(sender.put(torch.full((9,), step)))
    assert [tensor.tolist() for tensor in found] == [[step] * 9 for step in range(3)]


def test_after_a_mistake_the_next_step_is_whole(copies: list[int]) -> None:
    sender = Transfer("cpu")
    with pytest.raises(ValueError, match="between"), sender.together():
        sender.put(torch.arange(3))
        raise ValueError("between")
    assert copies == []
    with sender.together():
        there = sender.put(torch.arange(4))
    assert there.tolist() == [0, 1, 2, 3] and len(copies) == 1


def test_on_the_host_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "copy_over", lambda *_: pytest.fail("a copy"))
    sender, tensor = Transfer("cpu"), torch.arange(3)
    with sender.together():
        assert sender.put(tensor) is tensor
    assert sender.put(tensor) is tensor and on_device(tensor, "cpu") is tensor
    llm = LLM("storyteller-draft", **LIMITS)
    assert tokens(llm, {"temperature": 0.7, "seed": 1, "repetition_penalty": 1.2})
    llm.shutdown()


def test_a_gpu_fetches_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the copy would wait for the step that is under way."""
    asked: list[tuple[Any, Any]] = []
    empty = torch.empty

    def told(*shape: Any, **options: Any) -> Tensor:
        asked.append((options.pop("device", None), options.pop("pin_memory", False)))
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", told)
    monkeypatch.setattr(torch, "empty_like", lambda source, **options: told(source.shape))
    sender = Transfer("cuda")
    with sender.together():
        sender.put(torch.arange(3))
    on_device(torch.arange(3), "cuda")
    assert [pinned for device, pinned in asked] == [False, True, True, False]


# ---------------------------------------------------------------- the engine
def tokens(llm: LLM, params: dict[str, Any]) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=12, **params), use_tqdm=False)
    assert not any(output.error for output in outputs)
    return [list(output.outputs[0].token_ids) for output in outputs]


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "random": {"seed": 3},
    "filters": {"seed": 3, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "processors": {"seed": 3, "logit_bias": {7: 1.5}, "min_tokens": 3, "presence_penalty": 0.5},
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_steady_step_is_one_copy_and_any_other_two(
    kind: str, late: bool, copies: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the step's arrays, and one of the rows' parameters when other rows are sampled."""
    with monkeypatch.context() as plain:
        plain.setattr(transfer, "is_apart", lambda _: False)
        with_nothing_copied = LLM("storyteller-draft", **LIMITS)
        expected = tokens(with_nothing_copied, KINDS[kind])
    llm = LLM("storyteller-draft", async_scheduling=late, **LIMITS)
    runner = llm.engine.core.model_runner
    steps: list[tuple[list[str], int]] = []  # requests of a step of decodes alone, copies before
    execute: Callable[[Any], None] = runner.execute_model

    def begin(plan: Any) -> None:
        planned = plan.num_scheduled_tokens
        steps.append((list(planned) if set(planned.values()) == {1} else [], len(copies)))
        execute(plan)

    monkeypatch.setattr(runner, "execute_model", begin)
    assert tokens(llm, KINDS[kind]) == expected
    steps.append(([], len(copies)))
    counts = [after - before for (_, before), (_, after) in pairwise(steps)]
    assert max(counts) == 2
    same = [bool(now) and now == before for (before, _), (now, _) in pairwise(steps)]
    steady = [count for count, is_same in zip(counts[1:], same, strict=False) if is_same]
    assert len(steady) > 5 and set(steady) == {1}, (counts, same)
