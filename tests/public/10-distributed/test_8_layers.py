"""Task 10.8: which layers a stage holds."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.distributed.utils import get_pp_indices


def stages(layers: int, size: int) -> list[tuple[int, int]]:
    return [get_pp_indices(layers, rank, size) for rank in range(size)]


def test_10_8_even() -> None:
    """12 layers, 3 stages."""
    expect(stages(12, 3), [(0, 4), (4, 8), (8, 12)], at="12 layers, 3 stages")


def test_10_8_alone() -> None:
    """One stage has them all."""
    expect(stages(7, 1), [(0, 7)], at="7 layers, 1 stage")


def test_10_8_one_left_over() -> None:
    """It goes to the second-last stage: the last one has the head."""
    expect(stages(5, 2), [(0, 3), (3, 5)], at="5 layers, 2 stages")
    expect(stages(7, 3), [(0, 2), (2, 5), (5, 7)], at="7 layers, 3 stages")


def test_10_8_several_left_over() -> None:
    """Backwards from the second-last, one each."""
    sizes = [end - start for start, end in stages(61, 8)]
    expect(sizes, [7, 7, 8, 8, 8, 8, 8, 7], at="61 layers, 8 stages")
    sizes = [end - start for start, end in stages(11, 4)]
    expect(sizes, [3, 3, 3, 2], at="11 layers, 4 stages")


def test_10_8_every_layer_once() -> None:
    """For any numbers: no layer is lost, none is computed twice."""
    for layers in range(1, 40):
        for size in range(1, layers + 1):
            seen = [layer for start, end in stages(layers, size) for layer in range(start, end)]
            expect(seen, list(range(layers)), at=f"{layers} layers, {size} stages")
