"""Task 15.10: check a stored block before it is used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.kv_transfer.store import HEADER, pack_entry, unpack_entry

PAYLOAD = b"keys and values" * 20


def entry(lab: Any, name: str = "a") -> bytes:
    return b"".join(pack_entry(lab.NORTH, lab.key(name), PAYLOAD))


def test_15_10_a_sound_entry(lab: Any) -> None:
    """What was packed can be unpacked."""
    yours = unpack_entry(lab.NORTH, lab.key("a"), entry(lab))
    expect(yours == PAYLOAD, True, at="a sound entry")


def test_15_10_whose_and_which(lab: Any) -> None:
    """Another model's entry, and another block's, are not believed."""
    expect(unpack_entry(lab.SOUTH, lab.key("a"), entry(lab)), None, at="another namespace asks")
    expect(unpack_entry(lab.NORTH, lab.key("b"), entry(lab)), None, at="another block is wanted")


@pytest.mark.parametrize("place", [0, 20, 50, 78, *range(-4, 0)])
def test_15_10_a_flipped_bit_of_the_header(lab: Any, place: int) -> None:
    """A bit that was flipped in any field of the header is noticed, in each byte of the last."""
    damaged = bytearray(entry(lab))
    damaged[place % HEADER.size] ^= 4
    yours = unpack_entry(lab.NORTH, lab.key("a"), bytes(damaged))
    expect(yours, None, at=f"byte {place % HEADER.size} of a header of {HEADER.size} is damaged")


@pytest.mark.parametrize("place", [0, 20, 50, 78, HEADER.size, -1])
def test_15_10_a_flipped_bit(lab: Any, place: int) -> None:
    """A bit that was flipped anywhere is noticed."""
    damaged = bytearray(entry(lab))
    damaged[place] ^= 4
    yours = unpack_entry(lab.NORTH, lab.key("a"), bytes(damaged))
    expect(yours, None, at=f"byte {place} of {len(damaged)} is damaged")


@pytest.mark.parametrize("length", [0, 20, HEADER.size - 1, HEADER.size, HEADER.size + 9])
def test_15_10_cut_off(lab: Any, length: int) -> None:
    """A file that ends too early is noticed, and raises nothing."""
    yours = unpack_entry(lab.NORTH, lab.key("a"), entry(lab)[:length])
    expect(yours, None, at=f"the first {length} bytes")
    yours = unpack_entry(lab.NORTH, lab.key("a"), entry(lab) + b"more")
    expect(yours, None, at="four bytes too many")


def test_15_10_a_checksum_of_0_is_one(lab: Any) -> None:
    """An entry whose checksum was wiped out is damaged like any other."""
    damaged = bytearray(entry(lab))
    damaged[HEADER.size - 4 : HEADER.size] = bytes(4)
    yours = unpack_entry(lab.NORTH, lab.key("a"), bytes(damaged))
    expect(yours, None, at="the four bytes of the checksum are 0")


def test_15_10_put_and_get(lab: Any, tmp_path: Path) -> None:
    """A block that was put is there, for every engine of the namespace."""
    store = lab.store(tmp_path)
    expect(store.put(lab.key("a"), PAYLOAD), True, at="put")
    expect(lab.store(tmp_path).get(lab.key("a")) == PAYLOAD, True, at="got by another engine")
    expect(store.get(lab.key("b")), None, at="never put")
    expect(lab.store(tmp_path, lab.SOUTH).get(lab.key("a")), None, at="another namespace")


def test_15_10_whole_or_not_at_all(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader sees nothing of a file before it is complete."""
    store = lab.store(tmp_path)
    seen: list[bool] = []
    rename = os.replace

    def replace(source: Any, target: Any) -> None:
        seen.append(store.path_of(lab.key("a")).exists())
        expect(Path(source).read_bytes() == entry(lab), True, at="the file that is renamed")
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    store.put(lab.key("a"), PAYLOAD)
    expect(seen, [False], at="before os.replace, which is called once")


def test_15_10_two_writers_at_once(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is about to rename, another writes the same block: neither touches the other's."""
    store = lab.store(tmp_path)
    other: list[bool] = []
    rename = os.replace

    def replace(source: Any, target: Any) -> None:
        if not other:
            other.append(False)
            other[0] = store.put(lab.key("a"), PAYLOAD)
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    first = store.put(lab.key("a"), PAYLOAD)
    expect([first, *other], [True, True], at="what both are told")
    expect(store.get(lab.key("a")) == PAYLOAD, True, at="got afterwards")


def test_15_10_a_disk_that_fails(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is raised into the step, nothing is left behind."""
    store = lab.store(tmp_path)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    expect(store.put(lab.key("a"), PAYLOAD), False, at="put on a full disk")
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    expect(left, [], at="files left behind")


def test_15_10_a_bad_file_goes(lab: Any, tmp_path: Path) -> None:
    """An unsound file is deleted, so that no later request is offered it."""
    store = lab.store(tmp_path)
    store.put(lab.key("a"), PAYLOAD)
    path = store.path_of(lab.key("a"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    expect(store.get(lab.key("a")), None, at="a damaged file")
    expect(store.contains(lab.key("a")), False, at="afterwards")


def test_15_10_reading_makes_young(lab: Any, tmp_path: Path) -> None:
    """A block that was read is younger than one that was not."""
    store = lab.store(tmp_path)
    store.put(lab.key("a"), PAYLOAD)
    path = store.path_of(lab.key("a"))
    os.utime(path, (1000, 1000))
    store.get(lab.key("a"))
    expect(path.stat().st_mtime > 1000, True, at="its time, after it was read")


def test_15_10_written_once(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is there already costs the disk nothing."""
    store, replace, renamed = lab.store(tmp_path), os.replace, []

    def counted(source: Any, target: Any) -> None:
        renamed.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", counted)
    there = [store.put(lab.key("a"), PAYLOAD) for _ in range(2)]
    expect([there, len(renamed)], [[True, True], 1], at="put twice: there, files written")


def test_15_10_a_file_that_has_just_gone(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when it was looked for, and another engine deletes it before it is read."""
    store = lab.store(tmp_path)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    expect(store.get(lab.key("a")), None, at="a file that vanishes")


def test_15_10_what_cannot_be_read_now_may_be_sound(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses says nothing of the file: it is no hit now, and it stays."""
    store = lab.store(tmp_path)
    store.put(lab.key("a"), PAYLOAD)

    def refuse(*_: Any) -> bytes:
        raise OSError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refuse)
        patched.setattr(Path, "open", refuse)
        patched.setattr("builtins.open", refuse)
        expect(store.get(lab.key("a")), None, at="the disk refuses")
    expect(store.get(lab.key("a")) == PAYLOAD, True, at="the next time it does not")
