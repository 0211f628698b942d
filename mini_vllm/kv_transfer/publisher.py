"""Sends an engine's KV events to its subscribers, and again to subscribers that have missed some.

Source: vllm/distributed/kv_events.py#L274-L498 (ZmqEventPublisher) @ v0.22.1
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from mini_vllm.config import KVEventsConfig
from mini_vllm.kv_transfer.events import KVEvent

END_SEQ = (-1).to_bytes(8, "big", signed=True)
"""Ends an answer to a subscriber that has missed batches."""
POLL_SECONDS = 0.05


class ZmqEventPublisher:
    """A batch a step, as three frames: topic, number from 0 in eight bytes, content.

    A thread sends, so that no step waits for a subscriber.

    Args:
        rank: of the engine, if several run side by side; each has an endpoint of its own, see
            :func:`endpoint_of`.

    Raises:
        ValueError: if an endpoint cannot be used.
    """

    def __init__(self, config: KVEventsConfig, rank: int = 0) -> None:
        self.config, self.rank = config, rank
        self._batches: queue.Queue[list[Any] | None] = queue.Queue(config.max_queue_size)
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._context = zmq.Context()
        self._publish = self._context.socket(zmq.PUB)
        self._publish.set_hwm(config.hwm)
        self._replay = None
        endpoint = endpoint_of(config.endpoint, rank)
        replay_endpoint = config.replay_endpoint and endpoint_of(config.replay_endpoint, rank)
        try:
            binds = any(sign in endpoint for sign in ("*", "::", "ipc://", "inproc://"))
            (self._publish.bind if binds else self._publish.connect)(endpoint)
            if replay_endpoint is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                self._replay.bind(replay_endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ValueError(
                f"endpoint is {endpoint!r} and replay_endpoint {replay_endpoint!r}; "
                f"they cannot be used: {error}; choose others"
            ) from None
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Hand a step's events over."""
        if events:
            self._batches.put([time.time(), [event.to_wire() for event in events], self.rank])

    def _run(self) -> None:
        number = 0
        while True:
            if self._replay is not None and self._replay.poll(0):
                self._send_again()
            try:
                batch = self._batches.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if batch is None:
                return
            content = msgspec.msgpack.encode(batch)
            self._publish.send_multipart((self.config.topic.encode(), _number(number), content))
            self._sent.append((number, content))
            number += 1

    def _send_again(self) -> None:
        """All batches from the number that a subscriber names."""
        assert self._replay is not None
        caller, *_, first = self._replay.recv_multipart()
        start = int.from_bytes(first, "big")
        for number, content in self._sent:
            if number >= start:
                self._replay.send_multipart((caller, b"", _number(number), content))
        self._replay.send_multipart((caller, b"", END_SEQ, b""))

    def shutdown(self) -> None:
        if self._thread.is_alive():
            self._batches.put(None)
            self._thread.join(timeout=2.0)
        self._context.destroy(linger=200)


def endpoint_of(endpoint: str, rank: int) -> str:
    """Where engine number ``rank`` publishes: the port as many higher, or the name with a suffix.

    Source: vllm/distributed/kv_events.py#L467-L498 (ZmqEventPublisher.offset_endpoint_port)
    @ v0.22.1
    """
    address, _, port = endpoint.rpartition(":")
    if rank == 0 or (endpoint.startswith("tcp:") and not port.isdigit()):
        return endpoint
    if endpoint.startswith("tcp:"):
        return f"{address}:{int(port) + rank}"
    return f"{endpoint}_dp{rank}"


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")
