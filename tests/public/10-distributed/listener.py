"""What a reader's process runs: `handle`, `reader` and `answers` are given by the test, which knows
how long to wait: the other reader may start late on a busy machine."""

from __future__ import annotations

from typing import Any

from mini_vllm.distributed.shm_broadcast import MessageQueue

given: dict[str, Any] = globals()
queue = MessageQueue.create_from_handle(given["handle"], given["reader"])
given["answers"].send("ready")
heard: list[Any] = []
while (message := queue.dequeue(300)) != "end":
    heard.append(message if len(message) < 100 else [len(message), sum(message)])
given["answers"].send(heard)
