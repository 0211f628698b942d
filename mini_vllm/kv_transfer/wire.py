"""How two engines exchange blocks: one question, one answer, over TCP.

::

    decode side                              prefill side
    [READ | request, lease, block ids] ──►   checks that it still holds them, copies
                ◄── [answer | payload]       the blocks' bytes, one after the other
    [DONE | request, lease] ──────────────►  lets go of its blocks

ZeroMQ frames the messages, connects, and tries again; msgpack writes the first frame. ZeroMQ is
imported when a side is made: a lease, which only looks at questions, needs none.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

POLL_MS = 50
"""How often the server looks whether it is to end."""
LINGER_MS = 1000
"""How long a message that needs no answer may still try to leave."""


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a decode side."""

    kind: str
    """ "read" or "done"."""
    engine_id: str
    """Of the prefill side: an address may belong to another engine by now."""
    request_id: str
    lease: str
    """Of this very request: an id may belong to another request by now."""
    namespace: bytes
    block_ids: list[int]


class BlockServer:
    """Answers questions, in a thread of its own.

    Args:
        serve: gives the payload for a "read", and is called for a "done"; a ValueError from it
            is the answer.

    Raises:
        ValueError: if the port is taken.
    """

    def __init__(self, host: str, port: int, serve: Callable[[Question], bytes | None]) -> None:
        import zmq

        self._serve = serve
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.host = host
        try:
            if port:
                self._socket.bind(f"tcp://{host}:{port}")
                self.port = port
            else:
                self.port = self._socket.bind_to_random_port(f"tcp://{host}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ValueError(
                f"port {port} of {host!r} cannot be used: {error}; choose another, or 0 for any"
            ) from None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-server", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._socket.poll(POLL_MS):
                caller, *frames = self._socket.recv_multipart()
                answer = self._answer(frames)
                if answer is not None:
                    self._socket.send_multipart([caller, *answer])
        self._socket.close()

    def _answer(self, frames: Sequence[bytes]) -> list[bytes] | None:
        """Both frames of an answer; None if the question needs none. A malformed question gets an
        error."""
        try:
            fields = msgspec.msgpack.decode(frames[0])
            question = Question(**fields)
            payload = self._serve(question)
            if payload is None:
                return None
            head: dict[str, Any] = {"error": None, "checksum": zlib.crc32(payload)}
        except Exception as error:
            payload, head = b"", {"error": str(error) or type(error).__name__, "checksum": 0}
        return [msgspec.msgpack.encode(head), payload]

    def close(self) -> None:
        self._ended.set()
        self._thread.join(timeout=2.0)
        self._context.destroy(linger=0)


class BlockClient:
    """Sends questions and notices. May be called from several threads."""

    def __init__(self) -> None:
        import zmq

        self._context = zmq.Context()

    def read(self, host: str, port: int, question: Question, timeout: float) -> bytes:
        """The bytes of blocks. Waits for them.

        Raises:
            ValueError: if they cannot be had: no answer within ``timeout`` seconds, a refusal, or
                bytes that were damaged on their way.
        """
        import zmq

        with self._context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(f"tcp://{host}:{port}")
            socket.send(msgspec.msgpack.encode(asdict(question)))
            if not socket.poll(max(int(timeout * 1000), 0)):
                raise ValueError(f"{host}:{port} has not answered within {timeout:.1f} s")
            head, payload = socket.recv_multipart()
        answer = msgspec.msgpack.decode(head)
        if answer["error"] is not None:
            raise ValueError(f"{host}:{port} refuses: {answer['error']}")
        if zlib.crc32(payload) != answer["checksum"]:
            raise ValueError(f"what {host}:{port} has sent was damaged on its way")
        return payload

    def tell(self, host: str, port: int, question: Question) -> None:
        """Send a message that has no answer, and do not wait: it is sent when the other side
        listens.

        A peer that cannot be reached within ``LINGER_MS``, or an address without a peer, never gets
        it.
        """
        import zmq

        with (
            contextlib.suppress(zmq.ZMQError),
            self._context.socket(zmq.DEALER) as socket,
        ):
            socket.linger = LINGER_MS
            socket.connect(f"tcp://{host}:{port}")
            socket.send(msgspec.msgpack.encode(asdict(question)), zmq.NOBLOCK)

    def close(self) -> None:
        self._context.destroy(linger=0)
