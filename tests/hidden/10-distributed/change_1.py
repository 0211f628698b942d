"""Change request 1, for any partition."""

from __future__ import annotations

import random

import pytest

from mini_vllm.distributed.utils import get_pp_indices

NAME = "MINI_VLLM_PP_LAYER_PARTITION"


@pytest.mark.parametrize("seed", range(30))
def test_change_1_any_partition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [random.Random(seed).randint(1, 9) for _ in range(1 + seed % 5)]
    monkeypatch.setenv(NAME, ",".join(map(str, sizes)))
    for rank, size in enumerate(sizes):
        start = sum(sizes[:rank])
        assert get_pp_indices(sum(sizes), rank, len(sizes)) == (start, start + size)
    with pytest.raises(ValueError):
        get_pp_indices(sum(sizes) + 1, 0, len(sizes))
    with pytest.raises(ValueError):
        get_pp_indices(sum(sizes), 0, len(sizes) + 1)


@pytest.mark.parametrize("value", ["9,-2,5", "-1,6,7", "6,7,-1"])
def test_change_1_nothing_below_zero(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, value)
    for rank in range(3):
        with pytest.raises(ValueError, match=NAME):
            get_pp_indices(12, rank, 3)


@pytest.mark.parametrize("value", ["", None])
def test_change_1_as_before(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if value is not None:
        monkeypatch.setenv(NAME, value)
    sizes = [b - a for a, b in (get_pp_indices(61, rank, 8) for rank in range(8))]
    assert sizes == [7, 7, 8, 8, 8, 8, 8, 7]
