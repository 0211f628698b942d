"""The engine in a process of its own: a busy loop between two queues, and two threads for sockets.

::

    socket ─► input thread ─► input_queue  ─► ┌───────────┐   the only one that
              decodes                         │ busy loop │   touches the scheduler
    socket ◄─ output thread ◄─ output_queue ◄─ └───────────┘
              encodes

The threads wait for sockets and turn bytes into objects, both of which release Python's lock, so
that they overlap with the forward pass. The loop never waits for a client.

Source: vllm/v1/engine/core.py#L835-L948 (EngineCoreProc) @ v0.22.1
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

from mini_vllm.core.interface import PauseState
from mini_vllm.core.scheduler_output import EngineCoreOutput
from mini_vllm.engine.clients.messages import (
    TRAVEL,
    EngineCoreOutputs,
    EngineInfo,
    MessageKind,
    UtilityAnswer,
    decode_call,
    decode_ids,
    decode_request,
    decode_seconds,
    encode,
)
from mini_vllm.errors import bad_value, show

if TYPE_CHECKING:
    from mini_vllm.engine.core import EngineCore

logger = logging.getLogger(__name__)

Frames = Sequence[bytes]
Message = tuple[MessageKind, Any]

LOOP_METHODS = ("pause_generation", "resume_generation", "is_paused")
"""What a front end may call on the loop; every other name is a method of the engine."""
LAST_WORDS_SECONDS = 5.0
"""How long a dying engine waits for its last message to leave."""


class ShutdownState(IntEnum):
    """Source: vllm/v1/engine/core.py#L829-L832 (EngineShutdownState) @ v0.22.1"""

    RUNNING = 0
    REQUESTED = 1
    """No new request is let in; those that run go on until the deadline."""
    SHUTTING_DOWN = 2
    """All requests have ended; the loop is left as soon as all outputs are sent."""


class EngineCoreProc:
    """Drives an :class:`~mini_vllm.engine.core.EngineCore` by messages.

    It knows two queues and nothing of sockets, so that a test can put messages in and look at
    what comes out.

    Args:
        core: the engine.
        input_queue: ``(kind, content)``, decoded.
        output_queue: the same, to be encoded; None ends the thread that does it.
    """

    def __init__(
        self,
        core: EngineCore,
        input_queue: queue.Queue[Message],
        output_queue: queue.Queue[Message | None],
    ) -> None:
        self.core = core
        self.input_queue = input_queue
        self.output_queue = output_queue
        self.shutdown_state = ShutdownState.RUNNING
        self.deadline = float("inf")
        """On the monotonic clock, for requests that still run when a shutdown is requested."""
        self._pauses: list[tuple[Future[None], bool]] = []
        """Pauses that wait until no request runs, and whether each clears the cache then."""

    def run_busy_loop(self) -> None:
        """Take messages, step, and so on, until a shutdown is complete.

        Source: vllm/v1/engine/core.py#L1193-L1201 (EngineCoreProc.run_busy_loop) @ v0.22.1
        """
        while self._handle_shutdown():
            self._process_input_queue()
            self._step()

    def _handle_shutdown(self) -> bool:
        """Move a requested shutdown forward; False when the loop is to be left.

        RUNNING goes on. REQUESTED goes on while a request is unfinished, there is work, and the
        deadline is still to come; then :meth:`_abort_all` ends the remaining requests and sends
        their outputs, and the state becomes SHUTTING_DOWN. That ends when there is no work
        left: the workers must first have got the ids of all ended requests.

        Source: vllm/v1/engine/core.py#L1258-L1292 (EngineCoreProc._handle_shutdown) @ v0.22.1
        """
        # TODO 14.4
        raise NotImplementedError(
            "TODO 14.4: write EngineCoreProc._handle_shutdown in labs/14-serving/core_proc.py"
            " (phase 14, 02-mini-build.md#task-4)"
        )

    def _abort_all(self) -> None:
        """Abort all requests, send their outputs, and free the blocks that are held for other
        engines."""
        self._send_aborted(self.core.abort_requests(list(self.core.scheduler.requests)))
        self.core.release_held()

    def _process_input_queue(self) -> None:
        """Handle all messages that are there; without work, wait for one.

        As long as there is nothing to do (:meth:`_has_work`) and the loop is RUNNING, it waits
        in ``input_queue.get``: an idle engine uses no CPU. Before each such wait
        :meth:`_call_when_idle` tells the callers that asked to know. With work in hand nothing is
        waited for, and a burst of messages is taken in whole before the next step.

        Source: vllm/v1/engine/core.py#L1203-L1232 (EngineCoreProc._process_input_queue) @ v0.22.1
        """
        # TODO 14.3
        raise NotImplementedError(
            "TODO 14.3: write EngineCoreProc._process_input_queue in labs/14-serving/core_proc.py"
            " (phase 14, 02-mini-build.md#task-3)"
        )

    def _handle_message(self, kind: MessageKind, content: Any) -> None:
        """Do what one message asks for. One that cannot be served ends alone.

        ADD: ``content`` is ``(request id, EngineCoreRequest)``; bytes stand for a request that
        could not be decoded, and :func:`decode_request` raises what is wrong with them. The core
        turns it into a request of its own (``preprocess_add_request``) and takes it in
        (``add_request``). Whatever is raised on the way ends this request alone
        (:meth:`EngineCoreOutput.failed`). Once a shutdown was asked for, the request is answered
        as aborted instead.
        ABORT: the ids to end. No output is sent: the sender needs none. Unknown ids are no error.
        UTILITY: a call for :meth:`_handle_call`.
        SHUTDOWN: seconds that unfinished requests still have. The state is at least REQUESTED then,
        and the earliest deadline counts, on the monotonic clock.

        Source: vllm/v1/engine/core.py#L1294-L1349 (EngineCoreProc._handle_client_request)
        @ v0.22.1
        """
        # TODO 14.3
        raise NotImplementedError(
            "TODO 14.3: write EngineCoreProc._handle_message in labs/14-serving/core_proc.py"
            " (phase 14, 02-mini-build.md#task-3)"
        )

    def _handle_call(self, call: Any) -> None:
        """Call a method by name, and send what it returns or why it failed.

        A method that returns a Future is answered when that is done.

        Source: vllm/v1/engine/core.py#L1351-L1367 (EngineCoreProc._invoke_utility_method) @ v0.22.1
        """
        try:
            if call.method in LOOP_METHODS:
                value = getattr(self, call.method)(*call.args)
            else:
                from mini_vllm.engine.core import call_utility

                value = call_utility(self.core, call.method, *call.args)
        except Exception as error:
            self._answer(call.call_id, None, error)
            return
        if isinstance(value, Future):
            value.add_done_callback(lambda done: self._answer(call.call_id, None, done.exception()))
        else:
            self._answer(call.call_id, value)

    def _answer(self, call_id: int, value: Any, error: BaseException | None = None) -> None:
        answer = UtilityAnswer(call_id, value)
        if error is not None:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            answer = UtilityAnswer(call_id, error=f"{kind}{error}")
        self.output_queue.put((MessageKind.ANSWER, answer))

    def _step(self) -> None:
        """One step, if there is work, and its outputs on their way."""
        if not self._has_work():
            return
        self._send_outputs(self.core.step())

    def _has_work(self) -> bool:
        """Whether a step would do anything: plan tokens, or report finished requests to the worker.

        Source: vllm/v1/engine/core.py#L1181-L1187 (EngineCoreProc.has_work) @ v0.22.1
        """
        scheduler = self.core.scheduler
        if scheduler.pause_state == PauseState.PAUSED_ALL:  # but clients may leave meanwhile
            return bool(scheduler.finished_req_ids)
        if scheduler.pause_state == PauseState.PAUSED_NEW:
            return bool(scheduler.running or scheduler.finished_req_ids or self.core.batch_queue)
        return self.core.has_requests()

    # ------------------------------------------------------------------ pausing

    def pause_generation(self, mode: str, clear_cache: bool) -> Future[None]:
        """Stop handing out tokens, so that something can be changed, such as the weights.

        Args:
            mode: "abort" ends all requests now; "wait" lets those that run come to their end;
                "keep" holds all requests where they are. New requests queue in each case. With
                "wait" so do requests that were preempted, or that lost their blocks to an earlier
                "keep".
            clear_cache: forget cached KV when the engine is idle; with "keep" at once, and the held
                requests compute their KV anew when they go on.

        Returns:
            Done when nothing runs any more; with "keep", at once. It fails if
            :meth:`resume_generation` comes before: otherwise the caller would take a busy engine
            for an idle one. If a "keep" comes before, it waits on.

        Source: vllm/v1/engine/core.py#L1571-L1618 (EngineCoreProc.pause_scheduler) @ v0.22.1
        """
        scheduler = self.core.scheduler
        done: Future[None] = Future()
        if mode == "keep":
            scheduler.pause_state = PauseState.PAUSED_ALL
            if clear_cache:
                self.core.reset_prefix_cache(reset_running_requests=True)
            done.set_result(None)
            return done
        if mode not in ("abort", "wait"):
            raise bad_value("mode", mode, "it must be 'abort', 'wait' or 'keep'")
        if mode == "abort":
            self._send_aborted(self.core.abort_requests(list(scheduler.requests)))
        scheduler.pause_state = PauseState.PAUSED_NEW
        self._pauses.append((done, clear_cache))
        return done

    def resume_generation(self) -> None:
        """Go on after a pause; the call for a pause that is not complete yet fails."""
        self.core.scheduler.pause_state = PauseState.UNPAUSED
        for done, _ in self._take_pauses():
            done.set_exception(
                ValueError("the engine was resumed before all running requests had ended")
            )

    def _take_pauses(self) -> list[tuple[Future[None], bool]]:
        pauses, self._pauses = self._pauses, []
        return pauses

    def is_paused(self) -> bool:
        """From the moment a pause was asked for, whether or not all requests have ended."""
        return bool(self.core.scheduler.pause_state != PauseState.UNPAUSED)

    def _call_when_idle(self) -> None:
        """Complete the pauses that wait; not while a "keep" holds unfinished requests."""
        scheduler = self.core.scheduler
        if scheduler.pause_state == PauseState.PAUSED_ALL and scheduler.requests:
            return
        for done, clear_cache in self._take_pauses():
            if clear_cache:
                self.core.reset_prefix_cache()
            done.set_result(None)

    # ------------------------------------------------------------------ sending

    def _send_outputs(self, outputs: list[EngineCoreOutput]) -> None:
        stats = self.core.make_stats()
        message = EngineCoreOutputs(outputs, stats, time.monotonic())
        self.output_queue.put((MessageKind.OUTPUTS, message))

    def _send_aborted(self, request_ids: list[str]) -> None:
        if request_ids:
            self._send_outputs([EngineCoreOutput(i, [], "abort") for i in request_ids])


# ---------------------------------------------------------------------- the process


def run_engine_core(make_core: Callable[[], EngineCore], input_path: str, output_path: str) -> None:
    """What the engine's process runs, from its start to its end.

    Args:
        make_core: builds the engine; called here, so that the weights live here only.
        input_path, output_path: sockets that the front end has bound.

    Source: vllm/v1/engine/core.py#L1092-L1178 (EngineCoreProc.run_engine_core) @ v0.22.1
    """
    # Ctrl-C, `timeout` and a shell's kill signal every process of a group, and systemd every one of
    # a service. Only the front end decides what they mean, which may be to let requests end. So the
    # engine leaves its group, ignores SIGTERM, and takes SHUTDOWN as a message.
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with_parent()
    input_queue: queue.Queue[Message] = queue.Queue()
    output_queue: queue.Queue[Message | None] = queue.Queue()
    writer = threading.Thread(target=_write, args=(output_path, output_queue), daemon=True)
    writer.start()
    try:
        core = make_core()
    except Exception as error:
        kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
        output_queue.put((MessageKind.FAILED, f"{kind}{error}"))
        _say_last_words(output_queue, writer)
        os._exit(1)
    # What was made until here lives as long as the process. A collection that looked at it, and
    # torch brings some 200,000 objects, would hold up the next token of all requests.
    gc.collect()
    gc.freeze()
    engine = EngineCoreProc(core, input_queue, output_queue)
    threading.Thread(target=_read, args=(input_path, input_queue), daemon=True).start()
    output_queue.put((MessageKind.READY, _info(core)))
    dying = threading.Lock()

    def die(text: str) -> NoReturn:
        dying.acquire()  # the loop and the failure callback may both get here; one is enough
        output_queue.put((MessageKind.DEAD, f"the engine has died: {text}"))
        _say_last_words(output_queue, writer)
        os._exit(1)

    core.executor.register_failure_callback(die)  # an idle loop waits for messages, not for workers
    try:
        engine.run_busy_loop()
    except BaseException as error:
        logger.exception("the engine has died")
        die(traceback.format_exception_only(error)[-1].strip())
    core.shutdown()
    output_queue.put((MessageKind.DEAD, "the engine was shut down"))
    _say_last_words(output_queue, writer)
    os._exit(0)  # the input thread sits in its socket for ever


def _info(core: EngineCore) -> EngineInfo:
    return EngineInfo(
        core.limits.vocab_size,
        core.limits.max_model_len,
        core.limits.num_usable_blocks,
        core.limits.block_size,
        core.limits.capacity,
        core.executor.call("model_dtype")[0],
        os.getpid(),
    )


def _read(path: str, input_queue: queue.Queue[Message]) -> None:
    """The input thread: frames from the socket, decoded, into the queue. One message that cannot
    be read concerns its sender only: it is left out, and the next is read."""
    import zmq

    socket = zmq.Context().socket(zmq.PULL)
    socket.set_hwm(0)
    socket.connect(path)
    decoders: dict[MessageKind, Callable[[Frames], Any]] = {
        MessageKind.ADD: _decode_add,
        MessageKind.ABORT: lambda frames: decode_ids(frames[0]),
        MessageKind.UTILITY: lambda frames: decode_call(frames[0]),
        MessageKind.SHUTDOWN: lambda frames: decode_seconds(frames[0]),
    }
    while True:
        first, *frames = socket.recv_multipart()
        try:
            kind = MessageKind(first)
            content = decoders[kind](frames)
        except Exception as error:
            logger.error("a message to the engine cannot be read: %s: %s", first, error)
            continue
        input_queue.put((kind, content))


def _decode_add(frames: Frames) -> tuple[str, Any]:
    """The id, and the request; its bytes if they cannot be read, for the loop to refuse."""
    request_id = frames[0].decode()
    try:
        return request_id, decode_request(frames[1])
    except Exception:
        return request_id, frames[1]


def _write(path: str, output_queue: queue.Queue[Message | None]) -> None:
    """The output thread: from the queue, encoded, to the socket."""
    import zmq

    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.set_hwm(0)
    socket.linger = int(LAST_WORDS_SECONDS * 1000)
    socket.connect(path)
    while (message := output_queue.get()) is not None:
        kind, content = message
        try:
            frame = encode(content)
        except Exception as error:
            if not isinstance(content, UtilityAnswer):
                raise
            said = f"{show(content.value)} is the answer, and no {TRAVEL}: {error}"
            frame = encode(UtilityAnswer(content.call_id, error=said))
        socket.send_multipart([kind.value, frame])
    socket.close()
    context.term()  # returns when everything has left, or after the linger


def _say_last_words(output_queue: queue.Queue[Message | None], writer: threading.Thread) -> None:
    output_queue.put(None)
    writer.join(LAST_WORDS_SECONDS)


def _die_with_parent() -> None:
    """A front end that was killed cannot say so: its engine ends when it is gone."""
    import multiprocessing
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
