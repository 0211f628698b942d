"""Change request 2, for stores of any size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mini_vllm.kv_transfer.store import BlockStore


@pytest.mark.parametrize("count", [0, 1, 5, 9, 10, 11, 19, 20, 21, 30])
@pytest.mark.parametrize("limit", [None, 50, 1000, 1999, 2000, 5000])
def test_change_2_any_store(tmp_path: Path, count: int, limit: int | None) -> None:
    store = BlockStore(tmp_path, bytes(32), limit)
    for number in range(count):
        path = store.path_of(bytes([number]) * 32)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))
    left = count
    if limit is not None and 100 * count > limit:
        while 100 * left > limit * 9 // 10:
            left -= 1
    assert store.evict() == 100 * left == store.num_bytes
    kept = [n for n in range(count) if store.path_of(bytes([n]) * 32).exists()]
    assert kept == list(range(count - left, count))
