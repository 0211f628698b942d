"""Small numbers and their words, against plain loops and compressed-tensors' own packer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import pack_to_int32
from torch import Tensor

from mini_vllm.quantization import packing


def random_stored(*shape: int, bits: int = 4) -> Tensor:
    return torch.randint(0, 2**bits, shape, generator=torch.Generator().manual_seed(7)).int()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [32, 37, 1])
def test_words_are_those_of_compressed_tensors(bits: int, columns: int) -> None:
    stored = random_stored(5, columns, bits=bits)
    signed = (stored - 2 ** (bits - 1)).to(torch.int8)
    words = packing.pack_int32(stored, bits, 1)
    assert torch.equal(words, pack_to_int32(signed, bits))
    assert torch.equal(packing.unpack_int32(words, bits, 1, columns), stored)


def test_other_dimension() -> None:
    stored = random_stored(16, 3)
    words = packing.pack_int32(stored, 4, 0)
    assert torch.equal(words, packing.pack_int32(stored.T, 4, 1).T)
    assert torch.equal(packing.unpack_int32(words, 4, 0, 16), stored)


def test_awq_columns_come_back_in_order() -> None:
    """Against the layout written with a loop over words and nibbles."""
    stored = random_stored(3, 16).numpy().astype(np.uint32)
    words = np.zeros((3, 2), np.uint32)
    for word in range(2):
        for nibble, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            words[:, word] |= stored[:, word * 8 + column] << (4 * nibble)
    unpacked = packing.unpack_awq(torch.from_numpy(words.view(np.int32)))
    assert unpacked.tolist() == stored.tolist()


def test_gptq_zeros_of_both_versions() -> None:
    zeros = torch.tensor([[0, 1, 8, 15, 7, 3, 2, 9]]).int()
    v1 = packing.pack_int32((zeros - 1) & 15, 4, 1)
    v2 = packing.pack_int32(zeros, 4, 1)
    assert torch.equal(packing.unpack_gptq_zeros(v1, 4, is_v2=False), zeros)
    assert torch.equal(packing.unpack_gptq_zeros(v2, 4, is_v2=True), zeros)


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [8, 16, -1])
def test_rounding_is_within_half_a_step(bits: int, symmetric: bool, group_size: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 32)
    weight[2] = 0
    weight[3] = weight[3].abs() + 1  # zero is not between the smallest and the largest
    scale, zero = packing.choose_qparams(weight, bits, group_size, symmetric)
    assert scale.shape == zero.shape == (6, 1 if group_size == -1 else 32 // group_size)
    stored = packing.quantize(weight, scale, zero, bits)
    assert stored.min() >= 0 and stored.max() < 2**bits
    back = packing.dequantize(stored, scale, zero)
    step = scale.repeat_interleave(32 // scale.shape[1], 1)
    assert ((back - weight).abs() <= step * (0.5001 if symmetric else 1.0001)).all()
    assert (back[2] == 0).all(), "a row of zeros stays zeros"


def test_half_steps_go_to_even() -> None:
    scale, zero = torch.ones(1, 1), torch.full((1, 1), 7)
    stored = packing.quantize(torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 99.0]]), scale, zero, 4)
    assert stored.tolist() == [[7, 9, 9, 7, 5, 15]]


def test_a_group_that_does_not_divide_is_named() -> None:
    with pytest.raises(ValueError, match="group_size 24 does not divide the 32 columns"):
        packing.choose_qparams(torch.randn(2, 32), 4, 24, True)
