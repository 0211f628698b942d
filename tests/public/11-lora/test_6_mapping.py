"""Task 11.6: which token uses which slot."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect

NAMES = (
    "token_lora_mapping", "token_indices_sorted_by_lora_ids", "active_lora_ids",
    "num_tokens_per_lora", "lora_token_start_loc",
)  # fmt: skip


def tensors_of(meta: Any) -> list[list[int]]:
    return [getattr(meta, name).tolist() for name in NAMES]


def test_11_6_the_picture_of_the_guide(lab: Any) -> None:
    """Eight tokens of the base and two adapters."""
    slots = [0, 0, -1, 1, 1, 1, -1, 0]
    found = tensors_of(lab.meta_of(slots, max_loras=2))
    expected = [slots, [2, 6, 0, 1, 7, 3, 4, 5], [-1, 0, 1], [2, 3, 3], [0, 2, 5, 8]]
    for name, yours, right in zip(NAMES, found, expected, strict=True):
        expect(yours, right, at=name, slots=slots)


def test_11_6_one_adapter(lab: Any) -> None:
    """All tokens use slot 2: one segment, and the lists end."""
    meta = lab.meta_of([2, 2, 2])
    expect(meta.active_lora_ids.tolist(), [2, -1, -1, -1], at="slots that occur")
    expect(meta.num_tokens_per_lora.tolist(), [3, 0, 0, 0], at="their tokens")
    expect(meta.lora_token_start_loc.tolist(), [0, 3, 0, 0, 0], at="where segments begin")


def test_11_6_the_base_alone(lab: Any) -> None:
    """A segment of -1 is a segment like any other."""
    meta = lab.meta_of([-1, -1])
    expect(meta.active_lora_ids.tolist(), [-1, -1, -1, -1], at="slots that occur")
    expect(meta.num_tokens_per_lora.tolist(), [2, 0, 0, 0], at="their tokens")


def test_11_6_tokens_of_a_slot_keep_their_order(lab: Any) -> None:
    """Twenty tokens of two slots in turns."""
    meta = lab.meta_of([0, 1] * 10, room=20)
    order = meta.token_indices_sorted_by_lora_ids.tolist()
    expect(order, [*range(0, 20, 2), *range(1, 20, 2)], at="even tokens, then odd ones")


@pytest.mark.parametrize("second", [[0], [-1, -1], [1, 2]])
def test_11_6_nothing_is_left_of_the_step_before(lab: Any, second: list[int]) -> None:
    """A smaller step after a larger one: what lies behind its end is -1 or 0."""
    found, fresh = lab.meta_of([0, 1, 2, -1, 2, 2], second), lab.meta_of(second)
    for name in (
        "token_lora_mapping",
        "active_lora_ids",
        "num_tokens_per_lora",
        "lora_token_start_loc",
    ):
        at = f"{name} after a step of 6 tokens and one of {len(second)}"
        expect(getattr(found, name).tolist(), getattr(fresh, name).tolist(), at=at, slots=second)


def test_11_6_the_tensors_never_move(lab: Any) -> None:
    """They are written in place, and stay int32: a recorded graph reads these addresses."""
    meta = lab.meta_of([0, 1])
    before = [getattr(meta, name).data_ptr() for name in NAMES]
    import numpy as np

    meta.prepare_tensors(np.array([1, -1, 2], dtype=np.int32))
    moved = [n for n, at in zip(NAMES, before, strict=True) if getattr(meta, n).data_ptr() != at]
    expect(moved, [], at="tensors with another address than before")
    dtypes = {str(getattr(meta, name).dtype) for name in NAMES}
    expect(dtypes, {"torch.int32"}, at="dtypes")


def test_11_6_the_same_array_comes_again(lab: Any) -> None:
    """Its caller writes other slots into it for the next step. It is read, and not written."""
    import numpy as np

    slots = np.array([2, 0, 1], dtype=np.int32)
    meta = lab.meta_of([])
    meta.prepare_tensors(slots)
    expect(slots.tolist(), [2, 0, 1], at="the caller's array afterwards")
    slots[:] = [1, -1, 1]
    meta.prepare_tensors(slots)
    expect(tensors_of(meta), tensors_of(lab.meta_of([2, 0, 1], [1, -1, 1])), at="all five tensors")
