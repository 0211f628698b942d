"""The front end's side of an engine in another process.

Source: vllm/v1/engine/core_client.py#L863-L1100 (AsyncMPClient) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import itertools
import logging
import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from mini_vllm.config import EngineConfig
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.engine.clients.loops import do_in, runs_elsewhere
from mini_vllm.engine.clients.messages import (
    EngineCoreOutputs,
    EngineInfo,
    MessageKind,
    UtilityAnswer,
    UtilityCall,
    decode_answer,
    decode_info,
    decode_outputs,
    decode_text,
    encode,
    encode_call,
)
from mini_vllm.engine.exceptions import EngineDeadError

logger = logging.getLogger(__name__)

HINT = (
    "; its own output above has the reason. The process imports the script that starts it: put "
    "the script's statements behind `if __name__ == '__main__':`"
)
LAST_OUTPUTS_SECONDS = 2.0
"""How long an engine's last outputs may lie unread after its end."""
MOST_AT_ONCE = 8
"""Steps that are read without a pause, however many wait: then others of the loop have a turn."""


def make_engine_core(config: EngineConfig, scheduler: str, replica: int = 0) -> Any:
    """Build the engine, in the process that calls this; the front end never imports torch for it.

    Args:
        scheduler: a policy's name, or ``path/to/file.py:ClassName``.
        replica: which of several engines side by side this is.
    """
    from mini_vllm.engine.core import EngineCore
    from mini_vllm.policies import load_scheduler

    core = EngineCore(config, scheduler_cls=load_scheduler(scheduler), replica=replica)
    core.executor.call("leave_a_core")
    return core


def _run(
    config: EngineConfig, scheduler: str, replica: int, input_path: str, output_path: str
) -> None:
    from mini_vllm.engine.clients.core_proc import run_engine_core

    make_core = functools.partial(make_engine_core, config, scheduler, replica)
    run_engine_core(make_core, input_path, output_path)


class ProcessClient:
    """Starts an engine process, talks to it, and notices when it dies.

    Sending never waits: the sockets' queues have no limit here, and the engine empties them
    between any two steps. What bounds them is admission, before anything is sent.

    Args:
        config: of the engine.
        scheduler: a policy's name, or ``path/to/file.py:ClassName``.
        replica: which of several engines side by side this is.

    Raises:
        ValueError: what the engine says of settings that contradict the model or the memory.
        EngineDeadError: if its process ends before it is ready.
    """

    def __init__(self, config: EngineConfig, scheduler: str = "vllm-v1", replica: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mini_vllm_", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        input_path, output_path = f"ipc://{folder}/input", f"ipc://{folder}/output"
        self._context = zmq.Context()
        self._sender = self._bind(zmq.PUSH, input_path)
        self._sending = threading.Lock()  # a socket is for one thread at a time
        self._receiver = self._bind(zmq.PULL, output_path)
        self._async_receiver = zmq.asyncio.Socket.from_socket(self._receiver)
        # Spawned, not forked: a fork would copy threads' locks, and CUDA does not survive it.
        self.process = multiprocessing.get_context("spawn").Process(
            target=_run,
            args=(config, scheduler, replica, input_path, output_path),
            name=f"engine-{replica}",
        )
        self.dead: str | None = None
        """Why the engine is gone; None while it runs."""
        self._closing = False
        self._num_at_once = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that reads, once one does."""
        self._read_to_the_end = threading.Event()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count()
        self._on_death: Callable[[str], object] = lambda reason: None
        self.process.start()
        atexit.register(self.close)  # or Python would wait for the engine for ever
        try:
            self.info = self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        atexit.register(self.shutdown)  # the last is called first: ask, before anything is forced
        threading.Thread(target=self._watch, daemon=True).start()

    def _bind(self, kind: int, path: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.linger = 0
        socket.bind(path)
        return socket

    def _wait_until_ready(self) -> EngineInfo:
        """The engine's first message. Loading may take minutes, but a dead process says nothing."""
        while not self._receiver.poll(100):
            if not self.process.is_alive() and not self._receiver.poll(100):
                code = self.process.exitcode
                raise EngineDeadError(
                    f"the engine process ended with code {code} while starting{HINT * (code == 1)}"
                )
        kind, content = self._receiver.recv_multipart()
        if MessageKind(kind) == MessageKind.FAILED:
            raise ValueError(decode_text(content))
        while not self._sender.poll(100, zmq.POLLOUT):  # the two sockets connect on their own
            if not self.process.is_alive():
                raise EngineDeadError("the engine process ended before it took a request")
        return decode_info(content)

    def _watch(self) -> None:
        """A thread that sleeps until the process ends. Polling would notice late, and a heartbeat
        would mistake a long step for a death."""
        wait([self.process.sentinel])
        if not self._closing:
            self.process.join()
            code = self.process.exitcode
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"code {code}"
            self._die(f"the engine process has ended ({how})")

    def _die(self, reason: str) -> None:
        if self.dead is None:
            self.dead = reason
            if not self._closing:
                logger.error(reason)
            self._on_death(reason)

    def on_death(self, tell: Callable[[str], object]) -> None:
        """Have ``tell(reason)`` called, in any thread, when the engine dies; at once if it has."""
        self._on_death = tell
        if self.dead is not None:
            tell(self.dead)

    # ------------------------------------------------------------------ sending

    def _send(self, kind: MessageKind, *frames: bytes) -> None:
        try:
            with self._sending:
                if self.dead is not None:
                    raise EngineDeadError(self.dead)
                self._sender.send_multipart([kind.value, *frames], flags=zmq.NOBLOCK)
        except zmq.Again:  # the process has ended, and `_watch` has not noticed yet
            self._die("the engine process does not listen any more")
            raise EngineDeadError(self.dead) from None

    def add_request(self, request: EngineCoreRequest) -> None:
        self._send(MessageKind.ADD, request.request_id.encode(), encode(request))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        if request_ids and self.dead is None:
            with contextlib.suppress(EngineDeadError):  # then there is nothing left to end
                self._send(MessageKind.ABORT, encode(list(request_ids)))

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the engine. Raises RuntimeError with what the engine says, ValueError
        for what cannot be sent to it."""
        call_id = next(self._call_ids)
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            call = UtilityCall(call_id, method, list(args))
            self._send(MessageKind.UTILITY, encode_call(call))
            return await future
        finally:
            self._calls.pop(call_id, None)

    def tell(self, method: str, *args: Any) -> None:
        """Call a method of the engine without waiting for its answer, if the engine runs and the
        arguments can be sent."""
        with contextlib.suppress(EngineDeadError, ValueError):
            call = UtilityCall(next(self._call_ids), method, list(args))
            self._send(MessageKind.UTILITY, encode_call(call))

    async def get_outputs(self) -> EngineCoreOutputs:
        """What the next step brings. Answers to calls are handed to their callers on the way.

        Raises:
            EngineDeadError: when the engine has sent its last message.
        """
        self._loop = asyncio.get_running_loop()
        if self._num_at_once == MOST_AT_ONCE:  # what waits already is received without a pause
            self._num_at_once = 0
            await asyncio.sleep(0)
        while not self._async_receiver.closed:
            first, content = await self._async_receiver.recv_multipart()
            kind = MessageKind(first)
            if kind == MessageKind.OUTPUTS:
                outputs = decode_outputs(content)
                outputs.is_late = bool(int(self._receiver.get(zmq.EVENTS)) & zmq.POLLIN)
                self._num_at_once = self._num_at_once + 1 if outputs.is_late else 0
                return outputs
            if kind == MessageKind.ANSWER:
                self._take_answer(decode_answer(content))
            elif kind == MessageKind.DEAD:
                self._read_to_the_end.set()
                self._die(decode_text(content))
                break
        raise EngineDeadError(self.dead or "")

    def _take_answer(self, answer: UtilityAnswer) -> None:
        future = self._calls.get(answer.call_id)
        if future is None or future.done():
            return
        if answer.error is None:
            future.set_result(answer.value)
        else:
            future.set_exception(RuntimeError(answer.error))

    def fail_calls(self, error: Exception) -> None:
        """No answer will come any more."""
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)

    # ------------------------------------------------------------------ the end

    def ask_to_end(self, timeout: float = 0.0) -> None:
        """Ask the engine to end, after ``timeout`` seconds at most for requests that still run."""
        if not self._closing:
            self._closing = True
            self._sender.linger = 1000
            with contextlib.suppress(EngineDeadError):
                self._send(MessageKind.SHUTDOWN, encode(float(timeout)))

    def shutdown(self, timeout: float = 0.0) -> None:
        """Ask the engine to end, and wait until it has.

        Called in the loop's own thread, it blocks the loop, and no request is served meanwhile.
        Called in another thread, it lets running requests go on, and their last outputs are read
        before the socket is closed.
        """
        self.ask_to_end(timeout)
        if self.dead is None:
            self.process.join(timeout + 5.0)
            if self._loop is not None and runs_elsewhere(self._loop):
                self._read_to_the_end.wait(LAST_OUTPUTS_SECONDS)
        self.close()

    def close(self) -> None:
        """Let go of the process and the sockets, whatever state they are in."""
        self._closing = True
        atexit.unregister(self.close)
        atexit.unregister(self.shutdown)
        if self.process.is_alive():  # it loads, or hangs: it was asked to end
            self.process.kill()
            self.process.join()
        self.dead = self.dead or "the engine was shut down"
        # The asynchronous receiver comes first, so that the loop stops watching its descriptor. The
        # next engine's socket may get the same one, and the loop would take it for watched already.
        do_in(self._loop, lambda: self._async_receiver.close(linger=0))
        with self._sending:
            for socket in (self._sender, self._receiver):
                socket.close(linger=0)
        self._context.term()
        self._folder.cleanup()
