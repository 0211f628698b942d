"""Change request 1: stages by hand."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.distributed.utils import get_pp_indices

NAME = "MINI_VLLM_PP_LAYER_PARTITION"


def stages(layers: int, size: int) -> list[tuple[int, int]]:
    return [get_pp_indices(layers, rank, size) for rank in range(size)]


def test_change_1_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 layers as 5, 5 and 2."""
    monkeypatch.setenv(NAME, "5,5,2")
    expect(stages(12, 3), [(0, 5), (5, 10), (10, 12)], at=f'{NAME}="5,5,2"')


@pytest.mark.parametrize("value", ["5,5", "5,5,3", "5,x,2", "5,5,1,1"])
def test_change_1_what_cannot_be(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """The error names the variable and the value."""
    monkeypatch.setenv(NAME, value)
    with pytest.raises(ValueError) as error:
        get_pp_indices(12, 0, 3)
    expect(NAME in str(error.value) and value in str(error.value), True, at=str(error.value))


def test_change_1_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before."""
    monkeypatch.delenv(NAME, raising=False)
    expect(stages(5, 2), [(0, 3), (3, 5)], at="5 layers, 2 stages")
