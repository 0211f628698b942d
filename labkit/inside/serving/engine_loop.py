"""The engine's loop: its mail, its steps and its end."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

from labkit.inside.serving.turns import SPINS, Stuck, named


class ToyScheduler:
    """Requests as names, each with the steps that it still needs."""

    def __init__(self, running: dict[str, int]) -> None:
        from mini_vllm.core.interface import PauseState

        self.requests = dict(running)
        self.finished_req_ids: set[str] = set()
        self.pause_state = PauseState.UNPAUSED

    @property
    def running(self) -> list[str]:
        return list(self.requests)

    def has_requests(self) -> bool:
        return bool(self.requests or self.finished_req_ids)


class ToyCore:
    """An engine whose steps take a second of the toy's clock, and bring one token a request."""

    batch_queue: Sequence[Any] = ()

    def __init__(self, running: dict[str, int], diary: list[Any]) -> None:
        self.scheduler, self.diary, self.now, self.steps = ToyScheduler(running), diary, 0.0, 0

    def preprocess_add_request(self, request: Any) -> Any:
        words = request.cache_salt  # what a script calls it
        if "bad" in words:
            raise ValueError(f"{words} cannot be served")
        if "broken" in words:
            raise RuntimeError(f"{words} fits nothing here")
        return ["prepared", words]

    def add_request(self, request: Any) -> None:
        self.diary.append(["added", request])
        self.scheduler.requests[request[1]] = 3

    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        self.diary.append(["aborted", list(request_ids)])
        found = [i for i in request_ids if self.scheduler.requests.pop(i, None) is not None]
        self.scheduler.finished_req_ids |= set(found)
        return found

    def release_held(self) -> None: ...

    def has_requests(self) -> bool:
        return self.scheduler.has_requests()

    def step(self) -> list[Any]:
        from mini_vllm.core.scheduler_output import EngineCoreOutput

        self.now += 1.0
        self.steps += 1
        if self.steps > SPINS:
            raise Stuck("the loop never ends")
        requests, outputs = self.scheduler.requests, []
        self.scheduler.finished_req_ids.clear()
        for name in list(requests):
            requests[name] -= 1
            ended = requests[name] == 0
            outputs.append(EngineCoreOutput(name, [self.steps], "length" if ended else None))
            if ended:
                del requests[name]
                self.scheduler.finished_req_ids.add(name)
        return outputs

    def make_stats(self) -> None:
        return None


class Mailbox(queue.Queue):  # type: ignore[type-arg]
    """An input queue that knows when its reader falls asleep. `later`: what wakes it."""

    def __init__(self, messages: Sequence[Any], later: Sequence[Any], diary: list[Any]) -> None:
        super().__init__()
        self.later, self.diary = list(later), diary
        self.may_sleep: Any = lambda: True
        for message in messages:
            self.put(message)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.qsize() or not block:
            return super().get(block=False)
        self.diary.append(["slept" if self.may_sleep() else "slept with work to do"])
        if timeout is not None:
            self.diary.append(["slept with a timeout"])
        if not self.later:
            raise Stuck("it sleeps, and no message will wake it")
        return self.later.pop(0)


class ToyClock:
    """Stands for the `time` module: the engine's steps are what makes it go on."""

    def __init__(self, core: ToyCore) -> None:
        self.core, self.looks = core, 0

    def monotonic(self) -> float:
        self.looks += 1
        if self.looks > SPINS:
            raise Stuck("it looks at the clock for ever, and does nothing")
        return self.core.now

    def sleep(self, seconds: float) -> None:
        raise Stuck(f"it sleeps for {seconds} seconds instead of waiting for a message")


def message_of(words: Sequence[Any]) -> tuple[Any, Any]:
    """`["ADD", id, request]`, `["ABORT", ids]`, `["SHUTDOWN", seconds]`, `["RESUME"]`.

    A request in words becomes one of the engine's own, but "no request" comes as bytes that are
    none.
    """
    from mini_vllm.core.engine_request import EngineCoreRequest
    from mini_vllm.engine.clients.messages import MessageKind, UtilityCall
    from mini_vllm.sampling_params import SamplingParams

    kind, *rest = words
    if rest[1:] == ["no request"]:
        rest[1] = b"\xc1"
    elif kind == "ADD" and isinstance(rest[1], str):
        name, salt = rest
        rest[1] = EngineCoreRequest(name, [1], SamplingParams(), None, 0.0, cache_salt=salt)
    if kind == "RESUME":
        return MessageKind.UTILITY, UtilityCall(5, "resume_generation", [])
    return MessageKind[kind], tuple(rest) if kind == "ADD" else rest[0]


def make_loop(running: dict[str, int], messages: Sequence[Any], later: Sequence[Any]) -> Any:
    """(the loop, its diary, what it sends)."""
    from mini_vllm.engine.clients import core_proc

    diary: list[Any] = []
    core = ToyCore(running, diary)
    inbox = Mailbox([message_of(m) for m in messages], [message_of(m) for m in later], diary)
    sent: queue.Queue[Any] = queue.Queue()
    loop = core_proc.EngineCoreProc(core, inbox, sent)  # type: ignore[arg-type]
    inbox.may_sleep = lambda: not loop._has_work()
    return loop, diary, sent


def sent_by(sent: queue.Queue[Any]) -> list[Any]:
    """What a loop has sent: `[id, finish reason, what went wrong]` of each output, or an answer.

    Older answers to the task write what went wrong as the stop reason; it is taken there, too.
    """
    found: list[Any] = []
    while not sent.empty():
        kind, content = sent.get()
        if kind.name == "OUTPUTS":
            for o in content.outputs:
                why = o.stop_reason if o.failure is None else o.failure.message
                found.append([o.request_id, o.finish_reason, why])
        else:
            found.append([kind.name, content.call_id, content.error])
    return found


def take_messages(
    running: dict[str, int],
    messages: Sequence[Any],
    later: Sequence[Any] = (),
    state: str = "RUNNING",
    paused: str = "UNPAUSED",
) -> dict[str, Any]:
    """What one turn of `_process_input_queue` does; messages are noted, ADDs and ABORTs obeyed."""
    from mini_vllm.core.interface import PauseState
    from mini_vllm.engine.clients.core_proc import ShutdownState

    loop, diary, _ = make_loop(running, messages, later)
    loop.shutdown_state = ShutdownState[state]
    scheduler = loop.core.scheduler
    scheduler.pause_state = PauseState[paused]

    def handle(kind: Any, content: Any) -> None:
        diary.append(["handled", kind.name])
        if kind.name == "ADD":
            scheduler.requests[content[0]] = 3
        elif kind.name == "SHUTDOWN":
            loop.shutdown_state = ShutdownState.REQUESTED
        elif kind.name == "UTILITY":
            scheduler.pause_state = PauseState.UNPAUSED

    loop._handle_message = handle
    loop._call_when_idle = lambda: diary.append(["idle"])
    try:
        loop._process_input_queue()
    except Stuck as error:
        diary.append(["stuck", str(error)])
    return {"diary": diary, "left": loop.input_queue.qsize()}


def handle_messages(
    running: dict[str, int], messages: Sequence[Any], state: str = "RUNNING", now: float = 0.0
) -> dict[str, Any]:
    """What `_handle_message` does with each message: to the engine, to those outside."""
    from mini_vllm.engine.clients.core_proc import ShutdownState

    loop, diary, sent = make_loop(running, [], [])
    loop.shutdown_state, loop.core.now = ShutdownState[state], now
    with_clock(loop.core)
    try:
        for words in messages:
            loop._handle_message(*message_of(words))
    except Exception as error:
        diary.append(["raised", named(error)])
    finally:
        with_clock(None)
    return {
        "diary": diary, "sent": sent_by(sent), "state": loop.shutdown_state.name,
        "deadline": loop.deadline,
    }  # fmt: skip


def with_clock(core: ToyCore | None) -> None:
    """Let the loop's module see the toy's clock, or the real one again."""
    import time

    from mini_vllm.engine.clients import core_proc

    core_proc.time = time if core is None else ToyClock(core)  # type: ignore[assignment]


def run_loop(
    running: dict[str, int],
    messages: Sequence[Any],
    later: Sequence[Any] = (),
    paused: str = "UNPAUSED",
) -> dict[str, Any]:
    """What the busy loop does until it is left."""
    from mini_vllm.core.interface import PauseState

    loop, diary, sent = make_loop(running, messages, later)
    loop.core.scheduler.pause_state = PauseState[paused]
    with_clock(loop.core)
    try:
        loop.run_busy_loop()
    except Stuck as error:
        diary.append(["stuck", str(error)])
    finally:
        with_clock(None)
    return {
        "diary": diary, "sent": sent_by(sent), "steps": loop.core.steps,
        "state": loop.shutdown_state.name, "left": dict(loop.core.scheduler.requests),
    }  # fmt: skip
