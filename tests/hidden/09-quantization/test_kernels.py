"""All kernels through the whole checker: adversarial cases from a fresh seed, watched in the
interpreter, compiled for a GPU, and their bytes counted."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton exists on Linux only")


def test_09_12_quantising_through_the_checker(judge: Any) -> None:
    """Half steps, zeros, numbers near the limit of float16, and rows far apart."""
    judge("per_token_quant_int8")


def test_09_12_the_int8_product_through_the_checker(judge: Any) -> None:
    """Odd sizes, the largest sums, and rows far apart."""
    judge("w8a8_gemm")


def test_09_13_the_4_bit_product_through_the_checker(judge: Any) -> None:
    """Groups inside tiles, a last word that is not full, and rows far apart."""
    judge("w4a16_gemm")


def test_09_14_storing_through_the_checker(judge: Any) -> None:
    """Half steps, infinities, head sizes of every kind, and slots of -1."""
    judge("store_kv_int8")


def test_09_14_decoding_through_the_checker(judge: Any) -> None:
    """Windows, shared pages, low scores, and pages behind the 2^31st byte."""
    judge("paged_decode_int8")
