"""Task 15.11: keep the store below its size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from labkit.testing import expect

PAYLOAD = b"x" * 1000


def filled(lab: Any, folder: Path, room: int, ages: str = "abc") -> Any:
    """Files called by letters, the first the oldest, and room for so many of them."""
    store = lab.store(folder)
    for age, name in enumerate(ages):
        path = store.path_of(lab.key(name))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(PAYLOAD)
        os.utime(path, (1000 + age, 1000 + age))
    store.max_bytes = room * len(PAYLOAD)
    return store


def left(lab: Any, store: Any, ages: str = "abc") -> str:
    return "".join(name for name in ages if store.contains(lab.key(name)))


def test_15_11_the_oldest_go_until_the_rest_fits(lab: Any, tmp_path: Path) -> None:
    """And not one more."""
    store = filled(lab, tmp_path, room=2)
    expect(store.evict(), 2000, at="bytes left, 3 files, room for 2")
    expect(left(lab, store), "bc", at="a is the oldest")


def test_15_11_what_fits_stays(lab: Any, tmp_path: Path) -> None:
    """Nothing is deleted if all fits, or if there is no limit."""
    store = filled(lab, tmp_path, room=3)
    expect((store.evict(), left(lab, store)), (3000, "abc"), at="room for all three")
    store.max_bytes = None
    expect((store.evict(), left(lab, store)), (3000, "abc"), at="no limit")


def test_15_11_another_engine_was_faster(lab: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A file that has vanished since it was counted is no error."""
    store = filled(lab, tmp_path, room=1)
    scan = list(store._scan())
    store.path_of(lab.key("a")).unlink()
    monkeypatch.setattr(store, "_scan", lambda: iter(scan))
    expect(store.evict(), 1000, at="bytes left")
    expect(left(lab, store), "c", at="a was deleted by another engine")


def test_15_11_leftovers(lab: Any, tmp_path: Path) -> None:
    """An unfinished file goes when its writer must be dead, and not before."""
    store = filled(lab, tmp_path, room=3)
    folder = store.path_of(lab.key("a")).parent
    old, new = folder / ".a.1.0.tmp", folder / ".a.2.0.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    store.evict()
    expect((old.exists(), new.exists()), (False, True), at="one is old, one is being written")


def test_15_11_only_blocks_are_counted(lab: Any, tmp_path: Path) -> None:
    """A young file that does not end in .kv is no block, whatever its name: it is left alone."""
    store = filled(lab, tmp_path, room=3)
    note = store.path_of(lab.key("a")).parent / "note.txt"
    note.write_bytes(PAYLOAD)
    expect((store.evict(), left(lab, store)), (3000, "abc"), at="three blocks, and note.txt")
    expect(note.exists(), True, at="note.txt")
