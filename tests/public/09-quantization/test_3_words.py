"""Task 09.3: pack eight 4-bit numbers into an int32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.quantization.packing import pack_int32, unpack_int32

DIGITS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def test_09_3_the_first_number_is_in_the_lowest_bits() -> None:
    """3 1 4 1 5 9 2 6 is 0x62951413."""
    word = pack_int32(DIGITS, 4, 1)
    expect((word.dtype, hex(word.item())), (torch.int32, "0x62951413"), at="bits 4")


def test_09_3_numbers_come_out_again(lab: Any) -> None:
    """Also of a negative word, whose highest bit is set."""
    stored = torch.tensor([[15, 0, 15, 8, 1, 2, 3, 15]])
    words = pack_int32(stored, 4, 1)
    expect(words.item() < 0, True, at="the last number is 15: the word is negative")
    expect(lab.listed(unpack_int32(words, 4, 1, 8)), stored.tolist(), at="unpack(pack(x))")


def test_09_3_a_last_word_may_be_part_empty(lab: Any) -> None:
    """Eleven numbers fill two words; the rest are zeros, and are cut off again."""
    stored = torch.arange(11)[None]
    words = pack_int32(stored, 4, 1)
    expect(list(words.shape), [1, 2], at="11 numbers of 4 bits")
    expect(hex(words[0, 1].item()), "0xa98", at="the second word")
    expect(lab.listed(unpack_int32(words, 4, 1, 11)), stored.tolist(), at="size=11")


@pytest.mark.parametrize("bits", [4, 8])
def test_09_3_along_either_dimension(lab: Any, bits: int) -> None:
    """dim=0 packs the rows of a column."""
    stored = torch.arange(16).reshape(8, 2)
    words = pack_int32(stored, bits, 0)
    expect(list(words.shape), [bits // 4, 2], at=f"[8, 2] along dim 0, {bits} bits")
    expect(words.tolist(), pack_int32(stored.T, bits, 1).T.tolist(), at="as along dim 1, turned")
    expect(lab.listed(unpack_int32(words, bits, 0, 8)), stored.tolist(), at="back again")
