"""Task 09.4: unpack the layouts of AWQ and GPTQ."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.quantization.packing import unpack_awq, unpack_gptq_zeros


def word(*nibbles: int) -> torch.Tensor:
    """One word from its eight nibbles, the lowest first."""
    value = sum(nibble << (4 * place) for place, nibble in enumerate(nibbles))
    return torch.tensor([[value - 2**32 if value >= 2**31 else value]], dtype=torch.int32)


def test_09_4_awq_columns_stand_in_order_again(lab: Any) -> None:
    """Nibble i holds column 0 2 4 6 1 3 5 7."""
    words = word(10, 12, 14, 8, 11, 13, 15, 9)
    at = "column 0 is 10, column 1 is 11, column 2 is 12 ..."
    expect(lab.listed(unpack_awq(words)), [[10, 11, 12, 13, 14, 15, 8, 9]], at=at)


def test_09_4_every_word_has_its_own_eight_columns(lab: Any) -> None:
    """Two words a row: columns 0 to 7, then 8 to 15."""
    words = torch.cat((word(0, 2, 4, 6, 1, 3, 5, 7), word(8, 10, 12, 14, 9, 11, 13, 15)), 1)
    expect(lab.listed(unpack_awq(words)), [list(range(16))], at="sixteen columns")


def test_09_4_gptq_stores_zero_minus_one(lab: Any) -> None:
    """Version 1 holds 7 for zero 8, and 15 for zero 0."""
    words = word(7, 15, 0, 1, 14, 3, 2, 9)
    zeros = unpack_gptq_zeros(words, 4, is_v2=False)
    expect(lab.listed(zeros), [[8, 0, 1, 2, 15, 4, 3, 10]], at="version 1: one more, modulo 16")


def test_09_4_gptq_v2_stores_zero(lab: Any) -> None:
    """Version 2 holds zero itself."""
    zeros = unpack_gptq_zeros(word(7, 15, 0, 1, 14, 3, 2, 9), 4, is_v2=True)
    expect(lab.listed(zeros), [[7, 15, 0, 1, 14, 3, 2, 9]], at="gptq_v2")
