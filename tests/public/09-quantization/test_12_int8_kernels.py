"""Task 09.12: activations as int8, and their product. What may not be touched is watched."""

from __future__ import annotations

from typing import Any

QUANT, PRODUCT = "per_token_quant_int8", "w8a8_gemm"


def test_09_12_each_token_has_its_own_scale(lab: Any) -> None:
    """Three tokens, one of them 30 times as loud."""
    lab.check_kernel(QUANT, "3 tokens of 8", lab.cases.per_token(3, 8))


def test_09_12_half_a_step_goes_to_the_even_one(lab: Any) -> None:
    """2.5 steps are 2, 3.5 are 4."""
    lab.check_kernel(QUANT, "numbers between two steps", lab.cases.per_token(2, 16, halves=True))


def test_09_12_a_row_longer_than_a_power_of_two(lab: Any) -> None:
    """21 features in a tile of 32: lanes behind the row touch nothing."""
    lab.check_kernel(QUANT, "2 tokens of 21", lab.cases.per_token(2, 21))


def test_09_12_zeros_stay_zeros(lab: Any) -> None:
    """A token of zeros has the least scale, and so has one of almost zeros."""
    lab.check_kernel(QUANT, "a token of zeros", lab.cases.per_token(3, 8, zero_row=True))
    lab.check_kernel(QUANT, "numbers of 1e-12", lab.cases.per_token(3, 8, scale=2e-12))


def test_09_12_x_is_a_slice(lab: Any) -> None:
    """Tokens lie x_stride apart."""
    lab.check_kernel(QUANT, "a slice of a wider matrix", lab.cases.per_token(3, 8, strided=True))


def test_09_12_one_tile(lab: Any) -> None:
    """3 tokens, 5 rows, 20 columns."""
    lab.check_kernel(PRODUCT, "3 x 20 times 5 x 20", lab.cases.w8a8(3, 5, 20))


def test_09_12_more_than_a_tile_everywhere(lab: Any) -> None:
    """17 tokens, 66 rows, 70 columns in tiles of 16, 64, 64."""
    lab.check_kernel(PRODUCT, "17 x 70 times 66 x 70", lab.cases.w8a8(17, 66, 70))


def test_09_12_large_sums(lab: Any) -> None:
    """200 columns of 127 times 127: no half-precision number is so large."""
    lab.check_kernel(PRODUCT, "all numbers are +-127", lab.cases.w8a8(2, 4, 200, extreme=True))


def test_09_12_quantised_tokens_in_a_slice(lab: Any) -> None:
    """int8 tokens lie x_stride apart."""
    lab.check_kernel(PRODUCT, "x is a slice", lab.cases.w8a8(3, 4, 20, strided=True))
