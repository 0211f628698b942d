"""The ring of shared memory: flags in every order, wrap-around, slow readers, sleep."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from typing import Any

import pytest

from mini_vllm.distributed.shm_broadcast import MessageQueue, ShmRingBuffer
from tests.engine.pace import PATIENCE

CHUNKS, CHUNK_BYTES, READERS = 3, 16, 2


def rings() -> list[ShmRingBuffer]:
    """The writer's side, and each reader's, of one ring in plain memory."""
    memory = bytearray(ShmRingBuffer.num_bytes(READERS, CHUNK_BYTES, CHUNKS))
    return [ShmRingBuffer(memory, READERS, CHUNK_BYTES, CHUNKS) for _ in range(READERS + 1)]


def test_a_chunk_is_free_again_when_all_have_read() -> None:
    writer, *readers = rings()
    for number in range(CHUNKS):
        assert writer.can_write()
        writer.commit_write(bytes([number]))
    assert not writer.can_write(), "the ring is full"
    assert readers[0].commit_read(0) == (b"\0", 0)
    assert not writer.can_write(), "one has read, the other has not"
    assert readers[1].can_read(1)
    readers[1].commit_read(1)
    assert writer.can_write()
    writer.commit_write(b"new")
    for number in (b"\1", b"\2", b"new"):
        assert readers[0].commit_read(0)[0] == number
    assert not readers[0].can_read(0)


def test_a_reader_never_sees_a_message_that_is_being_written() -> None:
    """Every write of one byte is looked at from the readers' side."""
    looks: list[tuple[bool, bytes]] = []

    class Watched(bytearray):
        pass

    memory = Watched(ShmRingBuffer.num_bytes(READERS, CHUNK_BYTES, 1))
    writer, *readers = (ShmRingBuffer(memory, READERS, CHUNK_BYTES, 1) for _ in range(3))

    class Data:
        """The chunk, with a look from outside at every assignment."""

        def __init__(self, view: Any) -> None:
            self.view = view

        def __setitem__(self, key: Any, value: Any) -> None:
            looks.append((readers[0].can_read(0), bytes(readers[0].get_data()[4:7])))
            self.view[key] = value

        def __getitem__(self, key: Any) -> Any:
            return self.view[key]

    data, flags = writer.get_data(), writer.get_metadata()
    writer.get_data = lambda: Data(data)  # type: ignore[method-assign, assignment, return-value]
    writer.get_metadata = lambda: Data(flags)  # type: ignore[method-assign, assignment, return-value]
    for message in (b"one", b"two"):
        looks.clear()
        writer.commit_write(message)
        assert looks and not any(can_read for can_read, _ in looks), "readable half-written"
        for number, reader in enumerate(readers):
            assert reader.commit_read(number)[0] == message


def read_all(handle: Any, rank: int, answers: Any) -> None:
    queue = MessageQueue.create_from_handle(handle, rank)
    try:
        while True:
            answers.send(queue.dequeue())
    except EOFError:
        answers.send("over")


def test_two_processes_hear_everything_and_sleep_in_between() -> None:
    """In order, long messages too; and the end, when the writer goes."""
    context = multiprocessing.get_context("spawn")
    queue = MessageQueue(2, max_chunk_bytes=64, max_chunks=3)
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    readers = [
        context.Process(target=read_all, args=(queue.export_handle(), rank, pipes[rank][1]))
        for rank in range(2)
    ]
    for reader in readers:
        reader.start()
    messages = [("a", 1), "x" * 1000, None, *range(30)]
    for message in messages:
        queue.enqueue(message, timeout=60)
    for ours, _ in pipes:
        assert [ours.recv() for _ in messages] == messages
    queue.close()
    for (ours, _), reader in zip(pipes, readers, strict=True):
        assert ours.recv() == "over"
        reader.join(60)
        assert reader.exitcode == 0


def test_waiting_costs_nothing() -> None:
    queue = MessageQueue(1)
    reader = MessageQueue.create_from_handle(queue.export_handle(), 0)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append((reader.dequeue(), time.thread_time())))
    thread.start()
    time.sleep(0.5)
    queue.enqueue("now")
    thread.join(PATIENCE)
    assert got[0][0] == "now" and got[0][1] < 0.1


def test_a_full_ring_and_an_empty_one_say_so() -> None:
    queue = MessageQueue(2, max_chunk_bytes=64, max_chunks=2)
    first, second = (MessageQueue.create_from_handle(queue.export_handle(), r) for r in range(2))
    with pytest.raises(TimeoutError, match=r"no message within 0.01 s"):
        first.dequeue(timeout=0.01)
    queue.enqueue(1)
    queue.enqueue(2)
    first.dequeue()
    with pytest.raises(TimeoutError, match=r"the ring is full: readers \[1\] do not read"):
        queue.enqueue(3, timeout=0.01)
    assert second.dequeue() == 1
    queue.enqueue(3, timeout=5)
    assert [first.dequeue(), first.dequeue(), second.dequeue(), second.dequeue()] == [2, 3, 2, 3]
    with pytest.raises(ValueError, match="larger than its header"):
        MessageQueue(1, max_chunk_bytes=4)


def test_an_interrupted_writer_drops_its_half_message() -> None:
    """Ctrl-C between two chunks: the half message is dropped, the next one is whole."""
    queue = MessageQueue(1, max_chunk_bytes=32, max_chunks=8)
    reader = MessageQueue.create_from_handle(queue.export_handle(), 0)
    ring, calls = queue._ring_bells, []

    def interrupted() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        ring()

    queue._ring_bells = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue("x" * 100)
    queue.enqueue("whole")
    assert reader.dequeue() == "whole"


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm on this system")
def test_nothing_has_a_name() -> None:
    before = set(os.listdir("/dev/shm"))
    queue = MessageQueue(2)
    queue.enqueue("something")
    assert set(os.listdir("/dev/shm")) <= before
    queue.close()
