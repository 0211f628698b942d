"""One writer sends every message to many processes, through memory that all of them map.

::

    chunk 0   ┌ 4 bytes: length ┬ message ─────────────────┐     flags  written │ read by 0 │ by 1
    chunk 1   └─────────────────┴──────────────────────────┘            written │ read by 0 │ by 1
    ...                                                                  ...

    written=0              free: the writer may take it
    written=1, a read=0    a message that not all have read
    written=1, all read=1  over: the writer may take it

A message is copied once, however many readers there are, and no lock is held: every flag has one
process that sets it. The writer clears ``written`` before it touches a chunk and sets it last.

No process spins. A reader without a message sleeps on a pipe, its *bell*; a byte in it means that
there may be a message. The memory has no name in the file system, so there is nothing to leave
behind, however a process ends.

Source: vllm/distributed/device_communicators/shm_broadcast.py#L209-L344 (ShmRingBuffer) @ v0.22.1
"""

from __future__ import annotations

import mmap
import multiprocessing.reduction as reduction
import os
import pickle
import select
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

HEADER_BYTES = 4
MORE = 1 << 31
"""In a header: the message goes on in the next chunk."""
FIRST = 1 << 30
"""In a header: a message begins here."""
WRITER_NAP = 0.0005
"""Seconds between two looks of a writer that waits for a slow reader."""
_FENCE = threading.Lock()


def memory_fence() -> None:
    """No processor moves a read or write across this. A lock's two halves are such a fence.

    x86 keeps the order of writes anyway; ARM does not, and readers there saw the flag before the
    message.

    Source: vllm/distributed/device_communicators/shm_broadcast.py#L60-L78 (memory_fence) @ v0.22.1
    """
    with _FENCE:
        pass


class ShmRingBuffer:
    """The chunks and their flags. Each side of it is one process, with its own place in the ring.

    Args:
        buffer: at least :meth:`num_bytes` bytes, zeroed at first, that all sides see.
        n_reader: how many must have read a chunk before it may be written again.
        max_chunk_bytes, max_chunks: the ring's size.

    Source: vllm/distributed/device_communicators/shm_broadcast.py#L209-L344 (ShmRingBuffer)
    @ v0.22.1
    """

    def __init__(self, buffer: Any, n_reader: int, max_chunk_bytes: int, max_chunks: int) -> None:
        self.n_reader, self.max_chunks = n_reader, max_chunks
        self.max_chunk_bytes = max_chunk_bytes
        view = memoryview(buffer)
        self.data = view[: max_chunk_bytes * max_chunks]
        self.flags = view[max_chunk_bytes * max_chunks :]
        self.current = 0
        """The chunk that is next for this side."""

    @staticmethod
    def num_bytes(n_reader: int, max_chunk_bytes: int, max_chunks: int) -> int:
        return (max_chunk_bytes + 1 + n_reader) * max_chunks

    def get_data(self) -> memoryview:
        """The bytes of the current chunk."""
        start = self.current * self.max_chunk_bytes
        return self.data[start : start + self.max_chunk_bytes]

    def get_metadata(self) -> memoryview:
        """The flags of the current chunk: written, then read by each reader."""
        start = self.current * (1 + self.n_reader)
        return self.flags[start : start + 1 + self.n_reader]

    def can_write(self) -> bool:
        """Whether the current chunk is free: never written, or read by all.

        Source: vllm/distributed/device_communicators/shm_broadcast.py#L560-L583
        (MessageQueue.acquire_write) @ v0.22.1
        """
        # TODO 10.11
        raise NotImplementedError(
            "TODO 10.11: write ShmRingBuffer.can_write in labs/10-distributed/shm_broadcast.py"
            " (phase 10, 02-mini-build.md#task-11)"
        )

    def can_read(self, reader: int) -> bool:
        """Whether the current chunk holds something that ``reader`` has not read.

        Source: vllm/distributed/device_communicators/shm_broadcast.py#L657-L718
        (MessageQueue.acquire_read) @ v0.22.1
        """
        # TODO 10.11
        raise NotImplementedError(
            "TODO 10.11: write ShmRingBuffer.can_read in labs/10-distributed/shm_broadcast.py"
            " (phase 10, 02-mini-build.md#task-11)"
        )

    def commit_write(self, message: bytes, header: int = 0) -> None:
        """Put ``message`` into the current chunk, behind a header, and go to the next chunk.

        The order is everything, for readers look at any moment: take ``written`` away, write
        header and message, clear all ``read``, and set ``written`` last, behind a call of
        :func:`memory_fence`. The header is 4 bytes, little-endian: the length, and the bits of
        ``header``.

        Source: vllm/distributed/device_communicators/shm_broadcast.py#L584-L610
        (MessageQueue.acquire_write) @ v0.22.1
        """
        # TODO 10.11
        raise NotImplementedError(
            "TODO 10.11: write ShmRingBuffer.commit_write in labs/10-distributed/shm_broadcast.py"
            " (phase 10, 02-mini-build.md#task-11)"
        )

    def commit_read(self, reader: int) -> tuple[bytes, int]:
        """Copy the message out of the current chunk, then say so, and go to the next chunk.

        Not the other way round: once all have said so, the writer may write over it. A call of
        :func:`memory_fence` comes before the first look at the chunk.

        Returns:
            The message, and the header's bits without the length.

        Source: vllm/distributed/device_communicators/shm_broadcast.py#L657-L718
        (MessageQueue.acquire_read) @ v0.22.1
        """
        # TODO 10.11
        raise NotImplementedError(
            "TODO 10.11: write ShmRingBuffer.commit_read in labs/10-distributed/shm_broadcast.py"
            " (phase 10, 02-mini-build.md#task-11)"
        )


class Inherited:
    """A file descriptor that a child gets when it is started; pickling sends it along."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _adopt, (reduction.DupFd(self.fd),)


def _adopt(duplicate: Any) -> Inherited:
    return Inherited(duplicate.detach())


@dataclass(frozen=True)
class Handle:
    """What a reader needs to join. It goes to a child process as an argument."""

    n_reader: int
    max_chunk_bytes: int
    max_chunks: int
    memory: Inherited
    bells: tuple[Inherited, ...]


class MessageQueue:
    """A queue with one writer and ``n_reader`` readers, each of which gets every message.

    A message of more than one chunk takes several, one after another.

    Args:
        n_reader: how many readers there are; all must keep reading, or the ring fills and the
        writer waits. max_chunk_bytes, max_chunks: the ring's size. Memory is taken as it is written
        to.

    Example::

        queue = MessageQueue(n_reader=2)
        handle = queue.export_handle()            # to each child, when it is started
        queue.enqueue(("hello", 1))
        MessageQueue.create_from_handle(handle, rank=0).dequeue()     # in a child

    Source: vllm/distributed/device_communicators/shm_broadcast.py#L347-L764 (MessageQueue)
    @ v0.22.1
    """

    def __init__(self, n_reader: int, max_chunk_bytes: int = 1 << 20, max_chunks: int = 10) -> None:
        if max_chunk_bytes <= HEADER_BYTES or max_chunks < 1 or n_reader < 1:
            raise ValueError(
                f"max_chunk_bytes={max_chunk_bytes}, max_chunks={max_chunks}, n_reader={n_reader}: "
                f"a chunk must be larger than its header of {HEADER_BYTES} bytes, and there must "
                "be at least one chunk and one reader"
            )
        memory = _nameless_memory(ShmRingBuffer.num_bytes(n_reader, max_chunk_bytes, max_chunks))
        pipes = [os.pipe() for _ in range(n_reader)]
        for _, write_end in pipes:
            os.set_blocking(write_end, False)
        bells = tuple(Inherited(read_end) for read_end, _ in pipes)
        self.handle = Handle(n_reader, max_chunk_bytes, max_chunks, Inherited(memory), bells)
        self._open(self.handle)
        self.reader: int | None = None
        self._bell = -1
        self._ropes = [write_end for _, write_end in pipes]

    def _open(self, handle: Handle) -> None:
        size = handle.n_reader, handle.max_chunk_bytes, handle.max_chunks
        self.memory = mmap.mmap(handle.memory.fd, ShmRingBuffer.num_bytes(*size))
        self.ring = ShmRingBuffer(self.memory, *size)

    def export_handle(self) -> Handle:
        """What readers are made from. Processes get it as an argument when they are started."""
        return self.handle

    @classmethod
    def create_from_handle(cls, handle: Handle, rank: int) -> MessageQueue:
        """The side of reader ``rank``. A new reader gets all messages from the first."""
        queue = cls.__new__(cls)
        queue._open(handle)
        queue.handle, queue.reader, queue._ropes = handle, rank, []
        queue._bell = handle.bells[rank].fd
        return queue

    # ------------------------------------------------------------------ writing

    def enqueue(self, message: Any, timeout: float | None = None) -> None:
        """Send anything that can be pickled to all readers.

        Returns as soon as it is in the ring. A ring that is full is waited for.

        Raises:
            TimeoutError: if some reader has not made room within ``timeout`` seconds.

        Source: vllm/distributed/device_communicators/shm_broadcast.py#L720-L763
        (MessageQueue.enqueue) @ v0.22.1
        """
        rest = memoryview(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
        room, header = self.ring.max_chunk_bytes - HEADER_BYTES, FIRST
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._wait_for_room(deadline)
            piece, rest = rest[:room], rest[room:]
            self.ring.commit_write(bytes(piece), header | (MORE if rest else 0))
            self._ring_bells()
            if not rest:
                return
            header = 0

    def _wait_for_room(self, deadline: float | None) -> None:
        while not self.ring.can_write():
            if deadline is not None and time.monotonic() > deadline:
                flags = self.ring.get_metadata()[1:]
                late = [reader for reader, has_read in enumerate(flags) if not has_read]
                raise TimeoutError(f"the ring is full: readers {late} do not read")
            time.sleep(WRITER_NAP)

    def _ring_bells(self) -> None:
        for rope in self._ropes:
            try:
                os.write(rope, b"\0")
            except BlockingIOError:
                pass  # the pipe is full of bytes, so the reader will look anyway
            except BrokenPipeError:
                pass  # the reader is gone; the process that started it will notice

    # ------------------------------------------------------------------ reading

    def dequeue(self, timeout: float | None = None) -> Any:
        """The next message; waits for it without using the processor.

        Raises:
            TimeoutError: if there is none within ``timeout`` seconds.
            EOFError: if the writer is gone.

        Source: vllm/distributed/device_communicators/shm_broadcast.py#L765-L790
        (MessageQueue.dequeue) @ v0.22.1
        """
        assert self.reader is not None, "the writer does not read"
        pieces: list[bytes] = []
        while True:
            while not self.ring.can_read(self.reader):
                self._wait_for_bell(timeout)
            piece, header = self.ring.commit_read(self.reader)
            if header & FIRST:
                pieces = []  # the writer was interrupted, and began anew
            pieces.append(piece)
            if not header & MORE:
                return pickle.loads(b"".join(pieces))

    def _wait_for_bell(self, timeout: float | None) -> None:
        if not select.select([self._bell], [], [], timeout)[0]:
            raise TimeoutError(f"no message within {timeout} s")
        if not os.read(self._bell, 4096) and not self.ring.can_read(self.reader or 0):
            raise EOFError("the writer is gone")

    def close(self) -> None:
        """Let go of the ring. Readers find out when they have read what is in it."""
        for rope in self._ropes:
            os.close(rope)
        if self._ropes:
            for inherited in (self.handle.memory, *self.handle.bells):
                os.close(inherited.fd)
        self._ropes = []


def _nameless_memory(num_bytes: int) -> int:
    """A descriptor of shared memory that no name leads to."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("message_queue")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, num_bytes)
    return fd
