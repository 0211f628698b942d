"""Change request 2: a high mark, and a low one."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.testing import expect
from mini_vllm.kv_transfer.store import BlockStore


def fill(folder: Path, count: int, max_bytes: int) -> BlockStore:
    """Files of 100 bytes, the first the oldest."""
    store = BlockStore(folder, bytes(32), max_bytes)
    for number in range(count):
        path = store.path_of(bytes([number]) * 32)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))
    return store


def test_change_2_eleven_become_nine(tmp_path: Path) -> None:
    """Over the limit: down to nine tenths of it."""
    store = fill(tmp_path, 11, 1000)
    expect(store.evict(), 900, at="max_bytes 1000, 11 files of 100 bytes")
    left = [n for n in range(11) if store.path_of(bytes([n]) * 32).exists()]
    expect(left, list(range(2, 11)), at="the files that are left, the oldest was 0")


def test_change_2_ten_stay_ten(tmp_path: Path) -> None:
    """Within the limit: nothing goes."""
    expect(fill(tmp_path, 10, 1000).evict(), 1000, at="max_bytes 1000, 10 files of 100 bytes")
