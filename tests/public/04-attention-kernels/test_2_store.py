"""Task 04.2: the store kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.kernels.attention import STORE_KV

EMPTY = -1.0


def store(
    desk: Any, slots: list[int], heads: int, dim: int, key: Tensor, value: Tensor
) -> list[list[list[float]]]:
    """Store into an empty cache of 2 blocks of 4 slots. Returns keys and values, slot by slot."""
    caches = torch.full((2, 2, 4, heads, dim), EMPTY)
    key_cache, value_cache = caches.unbind()
    desk.run(
        STORE_KV, key=key, value=value, key_cache=key_cache, value_cache=value_cache,
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
    )  # fmt: skip
    rows: list[list[list[float]]] = caches.view(2, 8, -1).tolist()
    return rows


def compare(
    yours: list[list[list[float]]], slots: list[int], key: Tensor, value: Tensor, at: str
) -> None:
    """Slot by slot; what was not stored is still EMPTY."""
    __tracebackhide__ = True
    for name, cache, source in zip(("key", "value"), yours, (key, value), strict=True):
        rows = source.flatten(1).tolist()
        for slot in range(8):
            empty = [EMPTY] * len(rows[0])
            expected = rows[slots.index(slot)] if slot in slots else empty
            expect(cache[slot], expected, at=f"{at}: {name}_cache, slot {slot}", slots=slots)


def numbers(tokens: int, heads: int, dim: int, first: int) -> Tensor:
    """Token t, head h, feature d holds first + 100 t + 10 h + d."""
    t, h, d = torch.arange(tokens), torch.arange(heads), torch.arange(dim)
    return (first + 100 * t[:, None, None] + 10 * h[:, None] + d).float()


def test_04_2_one_token_in_its_slot(desk: Any) -> None:
    """One token of one head: 4 numbers into slot 6, keys and values each into their own cache."""
    key, value = numbers(1, 1, 4, 1000), numbers(1, 1, 4, 2000)
    at = "one token, 4 features, slot 6"
    compare(store(desk, [6], 1, 4, key, value), [6], key, value, at)


def test_04_2_every_token_has_its_own_slot(desk: Any) -> None:
    """Three tokens of two heads, into slots in any order."""
    key, value = numbers(3, 2, 4, 1000), numbers(3, 2, 4, 2000)
    slots = [5, 0, 3]
    at = "three tokens of 2 heads"
    compare(store(desk, slots, 2, 4, key, value), slots, key, value, at)


def test_04_2_a_slot_of_minus_one_stores_nothing(desk: Any) -> None:
    """Padding has slot -1: those tokens are left out, and no other slot changes."""
    key, value = numbers(4, 1, 4, 1000), numbers(4, 1, 4, 2000)
    slots = [-1, 7, -1, 2]
    at = "two of four tokens are padding"
    compare(store(desk, slots, 1, 4, key, value), slots, key, value, at)


def test_04_2_rows_that_are_no_power_of_two(desk: Any) -> None:
    """A row of 3 heads * 5 = 15 numbers in a tile of 16: the last lane must touch nothing."""
    key, value = numbers(2, 3, 5, 1000), numbers(2, 3, 5, 2000)
    slots = [1, 4]
    compare(store(desk, slots, 3, 5, key, value), slots, key, value, "rows of 15 numbers")


def test_04_2_slices_of_one_matrix(desk: Any) -> None:
    """Keys and values lie in the rows of one wide matrix: both are as far apart as its rows."""
    wide = numbers(3, 6, 4, 1000)
    key, value = wide[:, 2:3], wide[:, 4:5]
    slots = [7, 0, 5]
    at = f"rows of keys and of values are {key.stride(0)} numbers apart; ROW is 4"
    compare(store(desk, slots, 1, 4, key, value), slots, key, value, at)


def test_04_2_keys_and_values_are_slices(desk: Any) -> None:
    """Keys and values are slices of wider matrices: their rows lie further apart than ROW."""
    key = numbers(3, 4, 4, 1000)[:, 1:2]
    value = numbers(3, 6, 4, 2000)[:, 3:4]
    slots = [2, 3, 6]
    at = f"key rows are {key.stride(0)} numbers apart, value rows {value.stride(0)}; ROW is 4"
    compare(store(desk, slots, 1, 4, key, value), slots, key, value, at)
