"""Task 17.11: find the first layer that differs."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.model.bring_up import first_difference


def search(num_layers: int, first: int) -> tuple[int | None, list[int]]:
    """What is found where `first` and all behind it differ, and the layers that were asked."""
    asked: list[int] = []

    def differs(index: int) -> bool:
        asked.append(index)
        if not 0 <= index < num_layers:
            raise AssertionError(f"there is no layer {index}; there are {num_layers}")
        return index >= first

    return first_difference(num_layers, differs), asked


def test_17_11_every_layer_may_be_the_first() -> None:
    """Each of eight layers may be the first that differs."""
    found = [search(8, first)[0] for first in range(8)]
    expect(found, [*range(8)], at="8 layers, of which the first, second, ... differs")


def test_17_11_none_differs() -> None:
    """If none differs the answer is None, which is not 0 and not the last layer."""
    expect(search(8, 8)[0], None, at="8 layers, all right")
    expect(search(1, 1)[0], None, at="1 layer, right")


def test_17_11_one_layer() -> None:
    """A model of one layer: that one differs, or none."""
    expect(search(1, 0)[0], 0, at="1 layer, wrong")


def test_17_11_no_layers() -> None:
    """Without layers `differs` is not called."""
    expect(search(0, 0), (None, []), at="0 layers")


def test_17_11_halves_and_does_not_walk() -> None:
    """Each question runs the model: six for 61 layers, never the same twice."""
    for first in (0, 1, 30, 45, 60, 61):
        _, asked = search(61, first)
        where = f"61 layers, layer {first} differs" if first < 61 else "61 layers, none differs"
        expect(len(asked) <= 6, True, at=f"{where}: asked {asked}")
        expect(len(set(asked)), len(asked), at=f"{where}: asked {asked}")
