"""Task 10.11: a ring buffer with flags instead of a lock."""

from __future__ import annotations

import multiprocessing
import runpy
from pathlib import Path
from typing import Any

import pytest

from labkit.inside.timeouts import Patience
from labkit.testing import expect
from mini_vllm.distributed import shm_broadcast
from mini_vllm.distributed.shm_broadcast import FIRST, MORE, MessageQueue
from mini_vllm.distributed.simulated import interleave

LISTENER = str(Path(__file__).with_name("listener.py"))


def test_10_11_there_and_back(lab: Any) -> None:
    """A message and the bits of its header arrive."""
    ring = lab.Shared()
    ring.writer.commit_write(b"hello", FIRST | MORE)
    expect(ring.readers[0].commit_read(0), (b"hello", FIRST | MORE), at="message, header")
    ring.writer.commit_write(b"", FIRST)
    expect(ring.readers[0].commit_read(0), (b"", FIRST), at="an empty message")


def test_10_11_how_it_lies_in_memory(lab: Any) -> None:
    """Four bytes, little-endian, then the message."""
    ring = lab.Shared()
    ring.writer.commit_write(b"abc", FIRST)
    yours = bytes(ring.readers[0].get_data()[:7])
    expect(yours, b"\x03\x00\x00\x40abc", at="chunk 0")
    expect(list(ring.readers[0].get_metadata()), [1, 0], at="flags: written, read by 0")


def test_10_11_when_a_side_may_read_or_write(lab: Any) -> None:
    """A chunk is free, then the readers', then the writer's again when all have read."""
    ring = lab.Shared(readers=2, chunks=1)
    a, b = ring.readers

    def may() -> list[bool]:
        return [ring.writer.can_write(), a.can_read(0), b.can_read(1)]

    expect(may(), [True, False, False], at="nothing was ever written")
    ring.writer.commit_write(b"x")
    expect(may(), [False, True, True], at="written")
    b.commit_read(1)
    expect(may(), [False, True, False], at="reader 1 has read")
    a.commit_read(0)
    expect(may(), [True, False, False], at="both have read")
    ring.writer.commit_write(b"y")
    expect(may(), [False, True, True], at="written again")


def test_10_11_around_the_ring(lab: Any) -> None:
    """Behind the last chunk comes the first; each side counts for itself."""
    ring, got = lab.Shared(chunks=3), []
    for number in range(10):
        ring.writer.commit_write(bytes([number]))
        if number % 2:
            got += [ring.readers[0].commit_read(0)[0][0] for _ in range(2)]
    expect(got, list(range(10)), at="two written, two read, five times")


def test_10_11_a_reader_falls_behind(lab: Any) -> None:
    """The writer may go around until it meets the slowest."""
    ring = lab.Shared(readers=2, chunks=2)
    for message in (b"0", b"1"):
        ring.writer.commit_write(message)
        ring.readers[0].commit_read(0)
    expect(ring.writer.can_write(), False, at="reader 1 has read nothing")
    expect(ring.readers[1].commit_read(1)[0], b"0", at="reader 1")
    expect(ring.writer.can_write(), True, at="reader 1 has read one")


@pytest.mark.parametrize("chunks", [1, 2])
def test_10_11_a_reader_that_looks_at_any_moment(lab: Any, chunks: int) -> None:
    """Between any two lines of commit_write a reader may look: it sees whole messages only."""
    ring, seen = lab.Shared(chunks=chunks), []
    reader, whole = ring.readers[0], [b"first one", b"2nd", b"the third", b"4"]

    def look() -> None:
        if reader.can_read(0):
            seen.append(reader.commit_read(0)[0])

    for message in whole:
        interleave(look, ring.writer.commit_write, message)
        look()
    expect(seen, whole, at="what a reader got who looked before each line")


def test_10_11_a_writer_that_waits(lab: Any) -> None:
    """Between any two lines of commit_read the writer may write: the message is copied by then."""
    ring, got = lab.Shared(chunks=1), []
    ring.writer.commit_write(b"first")

    def look() -> None:
        if ring.writer.can_write():
            ring.writer.commit_write(b"SECOND")

    got.append(interleave(look, ring.readers[0].commit_read, 0)[0])
    expect(got, [b"first"], at="the writer wrote as soon as it could")


def test_10_11_behind_a_fence(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a fence stands, the message is there and `written` is not yet, or not any more."""
    ring, states = lab.Shared(chunks=1), []
    reader = ring.readers[0]

    def fence() -> None:
        states.append((list(reader.get_metadata()), bytes(reader.get_data()[4:7])))

    monkeypatch.setattr(shm_broadcast, "memory_fence", fence)
    ring.writer.commit_write(b"abc")
    at = "at one of the fences: flags [0, 0], message b'abc'"
    expect(([0, 0], b"abc") in states, True, at=at, fences=states)
    reader.commit_read(0)
    states.clear()
    ring.writer.commit_write(b"def")
    at = "the same chunk again, which was read: flags [0, 0], message b'def'"
    expect(([0, 0], b"def") in states, True, at=at, fences=states)


def answer(process: Any, ours: Any) -> Any:
    """What a reader's process says next, if it neither computes nor sleeps for long before."""
    patience = Patience(15.0, process.pid)
    while not ours.poll(0) and patience.left > 0:
        with patience.turn() as seconds:
            ours.poll(seconds)
    return ours.recv() if ours.poll(0) else f"nothing within {patience.told()}"


def test_10_11_two_processes() -> None:
    """Really: two readers of their own, small messages, and one that takes four chunks."""
    spawn = multiprocessing.get_context("spawn")
    queue, readers = MessageQueue(2, max_chunk_bytes=1024, max_chunks=3), []
    for reader in range(2):
        ours, theirs = spawn.Pipe(duplex=False)
        given = {"handle": queue.export_handle(), "reader": reader, "answers": theirs}
        process = spawn.Process(target=runpy.run_path, args=(LISTENER, given), daemon=True)
        process.start()
        readers.append((process, ours))
    for reader, (process, ours) in enumerate(readers):
        expect(answer(process, ours), "ready", at=f"reader {reader} has started")
    messages: list[Any] = [b"hello", bytes(range(256)) * 14, b"bye"]
    for message in [*messages, "end"]:
        queue.enqueue(message, timeout=15)
    for reader, (process, ours) in enumerate(readers):
        heard = answer(process, ours)
        process.join(5)
        long = [len(messages[1]), sum(messages[1])]
        expect(heard, [b"hello", long, b"bye"], at=f"what reader {reader} heard")
    queue.close()
