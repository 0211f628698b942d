"""What a step asks of the device before its graph is replayed. What the launch writes:
`tests/engine/kernels/test_triton.py`."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mini_vllm.attention import AttentionMetadata
from mini_vllm.kernels.launch import Launch
from mini_vllm.worker import decode_inputs
from mini_vllm.worker.decode_inputs import DecodeInputs


class Operations(TorchDispatchMode):
    """Notes the operations that a GPU would run; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def fill() -> list[str]:
    """Operations and launches that fill a bucket of 4 with 3 requests."""
    inputs = DecodeInputs(8, 64, 4, torch.device("cpu"))
    step = AttentionMetadata.from_lists([1] * 3, [1, 6, 9], [[1], [2, 3], [4, 5, 6]], 4)
    input_ids, positions = torch.arange(3), step.seq_lens.long() - 1
    with Operations() as seen:
        inputs.fill(input_ids, positions, step, 4)
    return seen.names


def test_without_kernels_it_is_five_copies_and_two_fills() -> None:
    assert sorted(fill()) == ["copy_"] * 5 + ["fill_"] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="Triton exists on Linux only")
def test_with_kernels_it_is_one_launch_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[Launch] = []
    monkeypatch.setattr(decode_inputs, "can_launch_on", lambda device: True)
    monkeypatch.setattr(Launch, "run", lambda launch, kernels: launches.append(launch))
    assert fill() == []
    assert [(launch.kernel, launch.grid) for launch in launches] == [
        ("decode_inputs_kernel", (4, 1))
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="Triton exists on Linux only")
def test_no_number_of_a_step_makes_triton_compile_again() -> None:
    from mini_vllm.kernels.decode_inputs import decode_inputs_kernel

    numbers = [p for p in decode_inputs_kernel.params
               if not p.is_constexpr and not p.name.endswith("_ptr")]  # fmt: skip
    assert len(numbers) == 4 and all(number.do_not_specialize for number in numbers)
