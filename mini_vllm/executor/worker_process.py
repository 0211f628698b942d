"""What a worker's process runs: take a call from the ring, do it, answer.

::

    engine ── (number, method, arguments) ──► ring ──► every worker
           ◄── (number, rank, outcome) ───── pipe ──── each worker

Source: vllm/v1/executor/multiproc_executor.py#L575-L980 (WorkerProc) @ v0.22.1
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.distributed.parallel_state import Rendezvous
from mini_vllm.distributed.shm_broadcast import Handle, MessageQueue
from mini_vllm.executor.base import run_method

LAST_WORDS_SECONDS = 2.0
"""How long a worker without a parent may go on: it may sit in an exchange that never ends."""
STEP_METHODS = ("execute_model", "sample_tokens")


@dataclass(frozen=True)
class Call:
    """Calls that go to all workers.

    Args:
        number: of the call; answers repeat it, so that a late one is not taken for another's.
        method: a name, or a function as bytes.
        output_rank: the one whose value is wanted; None: all of them. All others answer None.
    """

    number: int
    method: str | bytes
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None = None
    output_rank: int | None = None

    @property
    def has_answer(self) -> bool:
        """The first half of a step is answered with the second."""
        return self.method != "execute_model"


@dataclass(frozen=True)
class Answer:
    """What one worker answers: a value, or what went wrong."""

    number: int
    value: Any = None
    error: BaseException | None = None
    is_fatal: bool = False
    """The ranks may have got out of step: the engine cannot go on."""


def run_worker(
    config: EngineConfig,
    rank: int,
    rendezvous: Rendezvous | None,
    device_index: int,
    handle: Handle,
    answers: Connection,
) -> None:
    """Serve calls until the engine shuts down, or is gone."""
    # Ctrl-C in a terminal reaches every process of it; only the front end decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    from mini_vllm.executor.uniproc import LoneWorker
    from mini_vllm.executor.worker import Worker

    queue = MessageQueue.create_from_handle(handle, rank)
    worker = Worker(config, rank, rendezvous, device_index)
    steps = LoneWorker(worker) if config.parallel.world_size == 1 else worker
    while True:
        try:
            call: Call = queue.dequeue()
        except EOFError:
            os._exit(0)
        answer = _serve(steps if call.method in STEP_METHODS else worker, call, rank)
        if call.has_answer or answer.error is not None:
            _send(answers, answer, must_be_read=call.method not in STEP_METHODS)
        if call.method == "shutdown":
            return


def _serve(worker: Any, call: Call, rank: int) -> Answer:
    try:
        method = call.method if isinstance(call.method, str) else pickle.loads(call.method)
        value = run_method(worker, method, call.args, call.kwargs)
    except Exception as error:
        error.add_note(f"in worker {rank} (pid {os.getpid()}):\n{traceback.format_exc()}")
        return Answer(call.number, error=error, is_fatal=call.method in STEP_METHODS)
    return Answer(call.number, value if call.output_rank in (None, rank) else None)


def _send(answers: Connection, answer: Answer, must_be_read: bool) -> None:
    """Send an answer; a value or error that cannot be pickled is replaced by its description."""
    try:
        message = pickle.dumps(answer)
        if must_be_read or answer.error is not None:
            pickle.loads(message)  # some objects, exceptions above all, can be written and not read
    except Exception as problem:
        if answer.error is not None:
            error: Exception = RuntimeError(f"{type(answer.error).__name__}: {answer.error}")
        else:
            error = TypeError(f"the answer, a {type(answer.value).__name__}, {problem}")
        message = pickle.dumps(Answer(answer.number, error=error, is_fatal=answer.is_fatal))
    answers.send_bytes(message)


def _die_with_parent() -> None:
    """An engine that was killed cannot say so. A worker that waits for a call hears it by the
    ring; this is for a worker inside an exchange whose other ranks are gone, too."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        time.sleep(LAST_WORDS_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
