"""Blocks in files: whole or not at all, and checked before they are used."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from mini_vllm.kv_transfer.store import HEADER, BlockStore

OURS, THEIRS = b"o" * 32, b"t" * 32
KEYS = [bytes([number]) * 32 for number in range(6)]
PAYLOAD = bytes(range(256)) * 4


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path, OURS)


def test_what_was_put_can_be_had(store: BlockStore, tmp_path: Path) -> None:
    assert not store.contains(KEYS[0]) and store.get(KEYS[0]) is None
    assert store.put(KEYS[0], PAYLOAD) and store.contains(KEYS[0])
    assert BlockStore(tmp_path, OURS).get(KEYS[0]) == PAYLOAD
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".tmp"]


def test_another_namespace_sees_nothing(store: BlockStore, tmp_path: Path) -> None:
    store.put(KEYS[0], PAYLOAD)
    foreign = BlockStore(tmp_path, THEIRS)
    assert not foreign.contains(KEYS[0])
    path = foreign.path_of(KEYS[0])
    path.parent.mkdir(parents=True)
    shutil.copy(store.path_of(KEYS[0]), path)
    assert foreign.get(KEYS[0]) is None, "copied by hand: its header says whose it is"
    assert not path.exists()


@pytest.mark.parametrize("place", [0, 9, 41, 75, 80, HEADER.size, HEADER.size + 500, -1])
def test_a_flipped_bit_anywhere_is_found_and_the_file_goes(store: BlockStore, place: int) -> None:
    store.put(KEYS[0], PAYLOAD)
    path = store.path_of(KEYS[0])
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)
    assert store.get(KEYS[0]) is None
    assert not store.contains(KEYS[0]), "it is not offered again"


@pytest.mark.parametrize("length", [0, 10, HEADER.size, HEADER.size + 5, -1])
def test_a_file_that_was_cut_off_is_found(store: BlockStore, length: int) -> None:
    store.put(KEYS[0], PAYLOAD)
    path = store.path_of(KEYS[0])
    path.write_bytes(path.read_bytes()[:length])
    assert store.get(KEYS[0]) is None and not path.exists()


def test_swapped_files_are_found(store: BlockStore) -> None:
    store.put(KEYS[0], PAYLOAD)
    store.put(KEYS[1], PAYLOAD[::-1])
    first, second = store.path_of(KEYS[0]), store.path_of(KEYS[1])
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert store.get(KEYS[0]) is None and store.get(KEYS[1]) is None


def test_the_oldest_go_first_and_reading_makes_young(tmp_path: Path) -> None:
    entry = HEADER.size + len(PAYLOAD)
    store = BlockStore(tmp_path, OURS, max_bytes=3 * entry)
    for age, key in enumerate(KEYS[:3]):
        store.put(key, PAYLOAD)
        os.utime(store.path_of(key), (1000 + age, 1000 + age))
    assert store.get(KEYS[0]) == PAYLOAD
    store.put(KEYS[3], PAYLOAD)
    assert [store.contains(key) for key in KEYS[:4]] == [True, False, True, True]
    assert store.evict() == 3 * entry


def test_leftovers_of_the_dead_are_swept(store: BlockStore) -> None:
    store.put(KEYS[0], PAYLOAD)
    folder = store.path_of(KEYS[0]).parent
    old, fresh = folder / ".dead.1.0.tmp", folder / ".alive.2.0.tmp"
    old.write_bytes(b"half"), fresh.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    store.evict()
    assert (old.exists(), fresh.exists()) == (False, True)


def _write_much(root: Path, seed: int) -> None:
    store = BlockStore(root, OURS, max_bytes=8 * (HEADER.size + len(PAYLOAD)))
    for number in range(60):
        key = bytes([(number + seed) % 20]) * 32
        store.put(key, PAYLOAD)
        found = store.get(bytes([number % 20]) * 32)
        assert found in (None, PAYLOAD)


def test_several_processes_write_read_and_evict_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_much, args=(tmp_path, seed)) for seed in (0, 5, 9)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    store = BlockStore(tmp_path, OURS, max_bytes=8 * (HEADER.size + len(PAYLOAD)))
    assert store.evict() <= 8 * (HEADER.size + len(PAYLOAD))
    assert all(store.get(bytes([n]) * 32) in (None, PAYLOAD) for n in range(20))


def test_a_place_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be made"):
        BlockStore(tmp_path / "file", OURS)


def test_a_disk_that_fails_raises_nothing(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    assert store.put(KEYS[0], PAYLOAD) is False
    assert not store.contains(KEYS[0])
    assert not list(store.folder.rglob("*.tmp")), "no leftovers"


def test_a_disk_that_deletes_nothing_keeps_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, if there is one too many; the next one asks again."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    store = BlockStore(tmp_path, OURS, max_bytes=1)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert store.put(KEYS[0], PAYLOAD) and store.put(KEYS[1], PAYLOAD)
    assert store.contains(KEYS[0]) and store.contains(KEYS[1])


def test_a_file_in_the_place_of_a_folder(store: BlockStore) -> None:
    """Neither the block nor a part of it can be written there, and no error is raised."""
    store.path_of(KEYS[0]).parent.write_bytes(b"")
    assert not store.put(KEYS[0], b"kv") and store.get(KEYS[0]) is None
