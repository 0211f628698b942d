"""Task 09.14: kernels: store and read an int8 KV cache. Slots of no request are watched."""

from __future__ import annotations

from typing import Any

STORE, DECODE = "store_kv_int8", "paged_decode_int8"


def test_09_14_one_head(lab: Any) -> None:
    """Eight numbers and the four bytes of their scale."""
    lab.check_kernel(STORE, "one token, one head of 8", lab.cases.store(1, 1, 8, 4))


def test_09_14_heads_do_not_touch_each_other(lab: Any) -> None:
    """Three heads of 6 features, 10 bytes each; keys and values for themselves."""
    lab.check_kernel(STORE, "4 tokens of 3 heads", lab.cases.store(4, 3, 6, 4))


def test_09_14_half_a_step_goes_to_the_even_one(lab: Any) -> None:
    """Rounded, not cut off."""
    lab.check_kernel(STORE, "numbers between two steps", lab.cases.store(2, 1, 8, 4, halves=True))


def test_09_14_a_slot_of_minus_one(lab: Any) -> None:
    """Padding is not stored, and not even read."""
    lab.check_kernel(STORE, "3 tokens, 2 of them padding", lab.cases.store(1, 2, 8, 4, padding=2))


def test_09_14_nothing_in_a_page_is_infinite(lab: Any) -> None:
    """Infinity, NaN and a head of zeros."""
    lab.check_kernel(STORE, "odd numbers", lab.cases.store(3, 2, 8, 4, odd=True))


def test_09_14_keys_are_slices_of_qkv(lab: Any) -> None:
    """Tokens lie key_stride and value_stride apart."""
    lab.check_kernel(STORE, "slices", lab.cases.store(3, 2, 8, 4, slices=("key", "value")))


def test_09_14_one_token_of_context(lab: Any) -> None:
    """Its weight is 1, so the output is the value: numbers times scale."""
    lab.check_kernel(DECODE, "one token", lab.cases.decode([1], 1, 1, 8, 4))


def test_09_14_scales_differ_from_token_to_token(lab: Any) -> None:
    """Loud and quiet tokens in contexts that end before, at and behind a page."""
    lab.check_kernel(DECODE, "3, 4 and 9 tokens", lab.cases.decode([3, 4, 9], 2, 2, 8, 4))


def test_09_14_more_than_a_tile(lab: Any) -> None:
    """70 tokens in tiles of 32: the maximum grows on the way."""
    lab.check_kernel(DECODE, "70 tokens", lab.cases.decode([70], 2, 1, 8, 16))


def test_09_14_a_window(lab: Any) -> None:
    """Only the last 5 tokens are visible."""
    lab.check_kernel(DECODE, "a window of 5", lab.cases.decode([4, 12], 1, 1, 8, 4, 5))


def test_09_14_a_row_without_a_request(lab: Any) -> None:
    """Padding of a recorded graph: its output is 0."""
    lab.check_kernel(DECODE, "0 and 6 tokens", lab.cases.decode([0, 6], 2, 1, 8, 4))


def test_09_14_scores_far_below_zero(lab: Any) -> None:
    """Only the true maximum can be subtracted from scores of -110."""
    lab.check_kernel(DECODE, "scores of -110", lab.cases.decode([40], 1, 1, 8, 16, low=True))
