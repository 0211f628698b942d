"""A service in small: an engine that does as it is told, clients and sockets that take notes.

Every function is a scenario: plain data in, plain data out. Nothing here waits for real: time is a
counter, and "later" means after so many turns of the event loop. It knows no answer.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

TURNS = 60
"""Turns of the event loop after which whoever has not come back never will."""
SPINS = 200
"""Waits that return at once, after which a loop is called endless."""


class Stuck(Exception):
    """Somebody waits for what will never come, or runs in circles."""


async def turns(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it in an event loop of its own, which keeps quiet about tasks that were left."""

    async def quietly() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        return await work

    return asyncio.run(quietly())


def named(error: BaseException) -> str:
    """An error as text; that of a function nobody has written is raised."""
    if isinstance(error, NotImplementedError):
        raise error
    return f"{type(error).__name__}: {error}".removesuffix(": ")


# ---------------------------------------------------------------------- outputs


def make_output(said: dict[str, Any]) -> Any:
    """A RequestOutput from `{"parts": [...], "finished": ...}`; a part has the fields it names:
    index, text, ids, end, stop, logprob, and `logprobs` (one number a token)."""
    from mini_vllm.outputs import CompletionOutput, Logprob, RequestOutput

    parts = []
    for part in said.get("parts", []):
        numbers = part.get("logprobs")
        ids = list(part.get("ids", []))
        entries = None if numbers is None else [{7: Logprob(number)} for number in numbers]
        parts.append(
            CompletionOutput(
                part.get("index", 0), part.get("text", ""), ids, part.get("logprob"), entries,
                part.get("end"), part.get("stop"),
            )
        )  # fmt: skip
    output = RequestOutput("r", None, [1, 2], parts, said.get("finished", False))
    output.num_cached_tokens = said.get("cached", 0)
    output.error = said.get("error")
    return output


def tell_output(output: Any) -> dict[str, Any]:
    """What there is to see of a RequestOutput."""
    parts = []
    for part in output.outputs:
        numbers = part.logprobs
        numbers = None if numbers is None else [entry[7].logprob for entry in numbers]
        parts.append(
            {
                "index": part.index, "text": part.text, "ids": list(part.token_ids),
                "logprob": part.cumulative_logprob, "logprobs": numbers,
                "end": part.finish_reason, "stop": part.stop_reason,
            }
        )  # fmt: skip
    return {
        "parts": parts, "finished": output.finished, "cached": output.num_cached_tokens,
        "error": output.error,
    }  # fmt: skip


def merge(aggregate: bool, outputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first output, after the others were added to it."""
    first, *later = map(make_output, outputs)
    for output in later:
        first.add(output, aggregate)
    return tell_output(first)


# ---------------------------------------------------------------------- the collector


class Bell(asyncio.Event):
    """An event that notices when somebody asks it for ever and it is always set."""

    spins = 0

    async def wait(self) -> Any:
        self.spins = self.spins + 1 if self.is_set() else 0
        if self.spins > SPINS:
            raise Stuck("the reader asks again and again: the event is set and the slot is empty")
        return await super().wait()


def collect(kind: str, script: Sequence[Any]) -> list[Any]:
    """Do to a collector what a script says; what each step showed.

    Steps: `["put", output]`, `["fail", text]`, `["look"]` (take what is there), `["read"]` (wait
    for an output), `["begin"]` (begin to wait), `["end"]` (what came of that).
    """
    from mini_vllm.engine.collector import RequestOutputCollector
    from mini_vllm.sampling_params import RequestOutputKind

    async def go() -> list[Any]:
        collector = RequestOutputCollector(RequestOutputKind[kind])
        collector.ready = Bell()
        seen: list[Any] = []
        reader: Any = None
        for step in script:
            what = step[0]
            if what == "put":
                collector.put(make_output(step[1]))
            elif what == "fail":
                collector.put(ValueError(step[1]))
            elif what == "look":
                try:
                    found = collector.get_nowait()
                    seen.append(None if found is None else tell_output(found))
                except Exception as error:
                    seen.append(named(error))
            else:
                if what != "end":
                    reader = asyncio.ensure_future(collector.get())
                await turns(5)
                if what != "begin":
                    seen.append(await what_came(reader))
        return seen

    return list(run(go()))


async def what_came(task: asyncio.Future[Any]) -> Any:
    """The output that a reader got, its error, or that it still waits."""
    await turns(5)
    if not task.done():
        task.cancel()
        await turns(5)
        return "waits"
    try:
        return tell_output(task.result())
    except Exception as error:
        return named(error)


# ---------------------------------------------------------------------- the engine's loop


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

    def __init__(self, running: dict[str, int], diary: list[Any]) -> None:
        self.scheduler, self.diary, self.now, self.steps = ToyScheduler(running), diary, 0.0, 0

    def preprocess_add_request(self, request: Any) -> Any:
        if "bad" in str(request):
            raise ValueError(f"{request} cannot be served")
        return ["prepared", request]

    def add_request(self, request: Any) -> None:
        self.diary.append(["added", request])
        self.scheduler.requests[request[1]] = 3

    def abort_requests(self, ids: Sequence[str]) -> list[str]:
        self.diary.append(["aborted", list(ids)])
        found = [i for i in ids if self.scheduler.requests.pop(i, None) is not None]
        self.scheduler.finished_req_ids |= set(found)
        return found

    def release_held(self) -> None: ...

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
            raise Stuck("it sleeps, and nobody will wake it")
        return self.later.pop(0)


class ToyClock:
    """Stands for the `time` module: the engine's steps are what makes it go on."""

    def __init__(self, core: ToyCore) -> None:
        self.core = core

    def monotonic(self) -> float:
        return self.core.now

    def sleep(self, seconds: float) -> None:
        raise Stuck(f"it sleeps for {seconds} seconds instead of waiting for a message")


def message_of(words: Sequence[Any]) -> tuple[Any, Any]:
    """`["ADD", id, request]`, `["ABORT", ids]`, `["SHUTDOWN", seconds]`, `["RESUME"]`."""
    from mini_vllm.engine.messages import MessageKind, UtilityCall

    kind, *rest = words
    if kind == "RESUME":
        return MessageKind.UTILITY, UtilityCall(5, "resume_generation", [])
    return MessageKind[kind], tuple(rest) if kind == "ADD" else rest[0]


def make_loop(running: dict[str, int], messages: Sequence[Any], later: Sequence[Any]) -> Any:
    """(the loop, its diary, what it sends)."""
    from mini_vllm.engine import core_proc

    diary: list[Any] = []
    core = ToyCore(running, diary)
    inbox = Mailbox([message_of(m) for m in messages], [message_of(m) for m in later], diary)
    sent: queue.Queue[Any] = queue.Queue()
    loop = core_proc.EngineCoreProc(core, inbox, sent)  # type: ignore[arg-type]
    inbox.may_sleep = lambda: not loop._has_work()
    return loop, diary, sent


def sent_by(sent: queue.Queue[Any]) -> list[Any]:
    """What a loop has sent: `[id, finish reason, stop reason]` of each output, or an answer."""
    found: list[Any] = []
    while not sent.empty():
        kind, content = sent.get()
        if kind.name == "OUTPUTS":
            found += [[o.request_id, o.finish_reason, o.stop_reason] for o in content.outputs]
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
    from mini_vllm.engine.core_proc import ShutdownState

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


def handle_messages(running: dict[str, int], messages: Sequence[Any]) -> dict[str, Any]:
    """What `_handle_message` does with each message: to the engine, to those outside."""
    loop, diary, sent = make_loop(running, [], [])
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

    from mini_vllm.engine import core_proc

    core_proc.time = time if core is None else ToyClock(core)  # type: ignore[assignment]


def run_loop(
    running: dict[str, int], messages: Sequence[Any], later: Sequence[Any] = ()
) -> dict[str, Any]:
    """What the busy loop does until it is left."""
    loop, diary, sent = make_loop(running, messages, later)
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


# ---------------------------------------------------------------------- the front end


class ToyClient:
    """An engine far away: it notes what it is sent, and says what a script says."""

    def __init__(self, diary: list[Any]) -> None:
        self.diary, self.dead = diary, None
        self.info = SimpleNamespace(
            vocab_size=2048, max_model_len=32, num_usable_blocks=64, block_size=16
        )
        self.coming: asyncio.Queue[Any] = asyncio.Queue()
        self.watched: Any = lambda request_id: True

    def add_request(self, request: Any) -> None:
        known = self.watched(request.request_id)
        self.diary.append(["sent", len(request.prompt_token_ids), known])

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.diary.append(["abort", len(request_ids)])
        self.aborted = list(request_ids)

    def on_death(self, tell: Any) -> None: ...

    def fail_calls(self, error: Exception) -> None:
        self.diary.append(["calls fail", named(error)])

    async def get_outputs(self) -> Any:
        said = await self.coming.get()
        if isinstance(said, BaseException):
            raise said
        return said


def make_engine(diary: list[Any], **limits: Any) -> Any:
    """An AsyncLLM before a toy of an engine; no tokenizer, so texts stay empty."""
    from mini_vllm.config import EngineConfig
    from mini_vllm.engine.async_llm import AsyncLLM

    client: Any = ToyClient(diary)
    config = EngineConfig.from_kwargs("storyteller", max_model_len=32)
    engine = AsyncLLM(config, client=client, **limits)
    watching = (engine.output_processor.completions, engine.stats.requests)
    client.watched = lambda request_id: all(request_id in known for known in watching)
    return engine


def say(engine: Any, *lines: Sequence[Any]) -> None:
    """Let the toy send a step's outputs: `[stream, token ids, finish reason]`, with a completion's
    number behind if there are several."""
    from mini_vllm.core.scheduler_output import EngineCoreOutput
    from mini_vllm.engine.messages import EngineCoreOutputs

    outputs = []
    for stream, ids, reason, *number in lines:
        request_id = stream if isinstance(stream, str) else stream.child_ids[(*number, 0)[0]]
        outputs.append(EngineCoreOutput(request_id, list(ids), reason))
    engine.client.coming.put_nowait(EngineCoreOutputs(outputs, None, 1.0))


def sampling(kind: str = "DELTA", **more: Any) -> Any:
    from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(output_kind=RequestOutputKind[kind], **more)


def add_requests(
    asked: Sequence[dict[str, Any]],
    at_once: bool = False,
    dead: bool = False,
    **limits: Any,
) -> dict[str, Any]:
    """Hand requests in, `{"prompt": length, "n": ..., "name": ...}`: what was sent, refused, left.

    Preprocessing takes some turns of the loop, as a long text does.
    """
    diary: list[Any] = []

    async def go() -> dict[str, Any]:
        engine = make_engine(diary, **limits)
        engine.client.dead = "it fell" if dead else None
        plain = engine.preprocess

        async def slowly(prompt: Any) -> Any:
            await turns(3)
            return await plain(prompt)

        engine.preprocess = slowly

        async def one(request: dict[str, Any]) -> Any:
            params = sampling(n=request.get("n", 1), **request.get("params", {}))
            prompt = [3] * request.get("prompt", 2)
            return await engine.add_request(request.get("name", "r"), prompt, params)

        if at_once:
            answers = await asyncio.gather(*map(one, asked), return_exceptions=True)
        else:
            answers = [(await asyncio.gather(one(r), return_exceptions=True))[0] for r in asked]
        for answer in answers:
            if isinstance(answer, NotImplementedError):
                raise answer
        streams = [a for a in answers if not isinstance(a, BaseException)]
        ids = [i for stream in streams for i in stream.child_ids]
        result = {
            "diary": diary,
            "answers": [type(a).__name__ for a in answers],
            "different": len(set(ids)) == len(ids),
            "watched": len(engine.output_processor.completions),
            "counted": len(engine.stats.requests),
            "streams": len(engine._streams),
            "arrived": all(r.arrival > 0 for r in engine.stats.requests.values()),
            "handler": engine._handler is not None,
        }
        await end(engine)
        return result

    return dict(run(go()))


async def end(engine: Any) -> None:
    if engine._handler is not None:
        engine._handler.cancel()
        await turns(3)


def read_stream(
    steps: Sequence[Any], leave: str = "end", after: int = 99, kind: str = "DELTA"
) -> dict[str, Any]:
    """One reader of one stream, whose outputs come as `steps` say: `[token ids, finish reason]`.

    After so many outputs it leaves: "end" (reads on), "break" (and closes the iterator),
    "cancel" (its task is cancelled while it waits), "raise" (its own code fails), "engine" (an
    error is put into its slot).
    """
    diary: list[Any] = []

    async def go() -> dict[str, Any]:
        engine = make_engine(diary)
        stream = await engine.add_request("r", [3, 4], sampling(kind))
        plain, closed = engine.close_stream, []

        def close(one: Any) -> None:
            closed.append(one is stream)
            plain(one)

        engine.close_stream = close
        got: list[Any] = []

        async def read() -> str:
            iterator = engine.outputs(stream)
            if asyncio.iscoroutine(iterator):  # without a yield it is none: it says why itself
                await iterator
            try:
                async for output in iterator:
                    got.append([list(part.token_ids) for part in output.outputs])
                    if len(got) == after and leave == "break":
                        break
                    if len(got) == after and leave == "raise":
                        raise KeyError("the reader's own mistake")
            finally:
                await iterator.aclose()
            return "left" if leave == "break" and len(got) == after else "read to the end"

        reader = asyncio.ensure_future(read())
        for index, (ids, reason) in enumerate(steps):
            if index == after and leave == "cancel":
                reader.cancel()
            if index == after and leave == "engine":
                stream.collector.put(ValueError("no"))
            await turns(4)
            say(engine, [stream, ids, reason])
            await turns(4)
        await turns()
        result = {
            "got": got, "how": how_ended(reader), "closed": closed, "diary": diary,
            "left": len(engine._streams), "watched": len(engine.output_processor.completions),
        }  # fmt: skip
        reader.cancel()
        await end(engine)
        return result

    return dict(run(go()))


def how_ended(task: asyncio.Future[Any]) -> str:
    if not task.done():
        return "waits for ever"
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return str(task.result()) if error is None else named(error)


def abort_stream(n: int, ended: Sequence[int], twins: int = 0) -> dict[str, Any]:
    """Abort one stream of `n` completions, some of which have ended; others may have its name."""
    diary: list[Any] = []

    async def go() -> dict[str, Any]:
        engine = make_engine(diary)
        stream, *others = [
            await engine.add_request("r", [3, 4], sampling(n=n)) for _ in range(1 + twins)
        ]
        if ended:
            say(engine, *[[stream, [9], "length", number] for number in ended])
            await turns(5)
        diary.clear()
        engine._abort_stream(stream)
        engine._abort_stream(stream)  # a second time changes nothing
        try:
            last = stream.collector.get_nowait()
        except Exception as error:
            last = named(error)
        own = [i for i in getattr(engine.client, "aborted", []) if i in stream.child_ids]
        result = {
            "diary": diary,
            "own": len(own),
            "watched": len(engine.output_processor.completions),
            "counted": len(engine.stats.requests),
            "aborted": sum(d.finish_reason == "abort" for d in engine.stats._iteration.finished),
            "last": last.finished if hasattr(last, "finished") else None,
            "reasons": sorted(str(part.finish_reason) for part in stream.live.outputs),
            "others wait": all(other.collector.output is None for other in others),
        }
        await end(engine)
        return result

    return dict(run(go()))


def slice_of_outputs(lines: Sequence[Any], stopped: Sequence[str] = ()) -> dict[str, Any]:
    """What `_process` does with outputs `[id, token ids]`, of which "a" and "b" have streams, and
    "c" is known to the output processor only. Some end by a stop string."""
    from mini_vllm.core.scheduler_output import EngineCoreOutput
    from mini_vllm.engine.messages import EngineCoreOutputs

    diary: list[Any] = []
    known = {name: SimpleNamespace(request_id=name) for name in "abc"}

    class Processor:
        inbox: list[Any] = []  # noqa: RUF012

        def process(self) -> Any:
            ids = [output.request_id for output in self.inbox]
            diary.append(["processed", ids])
            self.changed = [known[i] for i in dict.fromkeys(ids) if i in known]
            self.inbox.clear()
            ended = [i for i in stopped if i in ids]
            return SimpleNamespace(finished=[], stop_string_ids=ended, unwatched_ids=[])

        def take_changed(self) -> list[Any]:
            changed, self.changed = self.changed, []
            return changed

    engine = make_engine(diary)
    engine.output_processor = Processor()
    engine._streams = {name: SimpleNamespace(name=name) for name in "ab"}
    engine._deliver = lambda stream: diary.append(["delivered", stream.name])
    engine.stats = SimpleNamespace(
        output_arrived=lambda output, stamp: diary.append(["counted", output.request_id, stamp]),
        requests_stopped=lambda ids: diary.append(["stopped", list(ids)]),
    )
    engine.client.abort_requests = lambda ids: diary.append(["abort", list(ids)])
    outputs = [EngineCoreOutput(name, list(ids)) for name, ids in lines]
    engine._process(outputs, EngineCoreOutputs(outputs, None, 2.5))
    return {"diary": diary}


def handler(messages: Sequence[Any], error: str = "") -> dict[str, Any]:
    """What the output handler does with messages of so many outputs each, and with an error.

    `error`: "dead" (the engine says so), "bug" (processing fails), "cancel", or none. Two streams
    wait. Beside the handler runs a neighbour that counts its turns.
    """
    from mini_vllm.core.scheduler_output import EngineCoreOutput
    from mini_vllm.engine.exceptions import EngineDeadError
    from mini_vllm.engine.messages import EngineCoreOutputs

    diary: list[Any] = []

    async def go() -> dict[str, Any]:
        engine = make_engine(diary)
        streams = [await engine.add_request(name, [3], sampling()) for name in "ab"]
        diary.clear()
        engine._handler.cancel()
        await turns(3)
        neighbour = [0]

        async def run_beside() -> None:
            while True:
                neighbour[0] += 1
                await asyncio.sleep(0)

        def process(outputs: Sequence[Any], message: Any) -> None:
            diary.append(["slice", len(outputs), neighbour[0] - before[0]])
            before[0] = neighbour[0]
            if error == "bug":
                raise KeyError("a mistake of ours")

        engine._process = process
        engine.stats.step_done = lambda stats: diary.append(["step done", stats])
        beside = asyncio.ensure_future(run_beside())
        before = [0]
        task = asyncio.ensure_future(engine._handle_outputs())
        for number, count in enumerate(messages):
            await turns(6)
            before[0] = neighbour[0]
            outputs = [EngineCoreOutput("x", [1]) for _ in range(count)]
            engine.client.coming.put_nowait(EngineCoreOutputs(outputs, number, 1.0))  # type: ignore[arg-type]
            await turns(12)
        if error == "dead":
            engine.client.coming.put_nowait(EngineDeadError("it fell"))
        if error == "cancel":
            task.cancel()
        await turns()
        readers = []
        for stream in streams:
            try:
                readers.append(stream.collector.get_nowait())
            except Exception as problem:
                readers.append(named(problem))
        result = {
            "diary": [[*line[:2]] if line[0] == "slice" else line for line in diary],
            "shared": [line[2] > 0 for line in diary if line[0] == "slice"],
            "readers": readers,
            "task": "waits" if not task.done() else how_ended(task),
        }
        task.cancel()
        beside.cancel()
        await turns(3)
        return result

    return dict(run(go()))


# ---------------------------------------------------------------------- the wire


def send_stream(
    events: int, error: str = "", fails_at: int = -1, done: str = "data: [DONE]\n\n"
) -> dict[str, Any]:
    """What an EventStream sends of so many events, when making one fails, or sending one.

    `error`: "value", "busy" (an APIError, 503), "bug", "gone" (OSError) or "cancel", raised where
    event number `fails_at` would be made; "send": sending the message of that number fails.
    """
    from mini_vllm.entrypoints.openai.errors import APIError
    from mini_vllm.entrypoints.openai.sse import EventStream

    errors: dict[str, BaseException] = {
        "value": ValueError("temperature is -1"), "busy": APIError("full", 503),
        "bug": KeyError("x"), "gone": ConnectionResetError("reset"),
        "cancel": asyncio.CancelledError(),
    }  # fmt: skip
    diary: list[Any] = []

    async def make() -> AsyncIterator[bytes]:
        try:
            for number in range(events):
                if number == fails_at and error in errors:
                    raise errors[error]
                diary.append(["made", number])
                yield b"data: %d\n\n" % number
            if fails_at >= events and error in errors:
                raise errors[error]
        finally:
            diary.append(["closed"])

    async def go() -> dict[str, Any]:
        how = await end_of_stream()
        return {"diary": list(diary), "how": how}  # now: the loop's own end closes what was left

    async def end_of_stream() -> str:
        stream = EventStream(make(), lambda: None, done=done.encode())
        count = [0]

        async def send(message: Any) -> None:
            if error == "send" and count[0] == fails_at:
                raise ConnectionResetError("reset")
            count[0] += 1
            if message["type"] == "http.response.start":
                headers = {name.decode(): value.decode() for name, value in message["headers"]}
                kept = {k: headers.get(k) for k in ("content-type", "content-length")}
                diary.append(["start", message["status"], kept])
            else:
                body = bytes(message["body"]).decode()
                diary.append(["sent", body, bool(message.get("more_body", False))])

        try:
            await stream._send_all(send)
        except BaseException as problem:
            return named(problem).partition(":")[0]
        return "returned"

    return dict(run(go()))


def race(
    work: int, gone: int, *, fails: bool = False, cleanup: int = 0, cancelled: int = -1
) -> dict[str, Any]:
    """Work that takes so many turns beside a client that leaves after so many (-1: never).

    `fails`: the work raises. `cleanup`: turns that it needs once it is cancelled. `cancelled`:
    turns after which whoever waits for the race is cancelled.
    """
    from mini_vllm.entrypoints.openai.sse import with_cancellation

    diary: list[str] = []

    async def working() -> str:
        try:
            for _ in range(work):
                await asyncio.sleep(0)
            if fails:
                raise KeyError("the work's own")
            return "answer"
        except asyncio.CancelledError:
            await turns(cleanup)
            diary.append("work cancelled and cleaned up")
            raise

    async def go() -> str:
        count = [0]

        async def receive() -> dict[str, str]:
            count[0] += 1
            if count[0] == 1:
                return {"type": "http.request"}
            try:
                if gone < 0:
                    await asyncio.Event().wait()
                for _ in range(gone):
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                diary.append("listening ended")
                raise
            return {"type": "http.disconnect"}

        task = asyncio.ensure_future(with_cancellation(receive, working()))  # type: ignore[arg-type]
        if cancelled >= 0:
            await turns(cancelled)
            task.cancel()
        for _ in range(SPINS):
            if task.done():
                break
            await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task(), task}
        left = len([one for one in others if not one.done()])
        diary.append(f"{left} tasks left")
        for one in (*others, task):
            one.cancel()
        await turns(3)
        return how_ended(task)

    how = run(go())
    return {"how": how, "diary": sorted(diary)}


def listen(kinds: Sequence[str]) -> dict[str, Any]:
    """How many messages are read until the listener is content."""
    from mini_vllm.entrypoints.openai.sse import listen_for_disconnect

    read = [0]

    async def receive() -> dict[str, str]:
        if read[0] == len(kinds):
            await asyncio.Event().wait()
        read[0] += 1
        return {"type": kinds[read[0] - 1]}

    async def go() -> bool:
        task = asyncio.ensure_future(listen_for_disconnect(receive))  # type: ignore[arg-type]
        await turns(3 * len(kinds) + 5)
        done = task.done()
        if done:
            task.result()
        task.cancel()
        return done

    return {"done": run(go()), "read": read[0]}


# ---------------------------------------------------------------------- admission and figures


def admit(
    unfinished: Sequence[int], max_reqs: int | None, max_tokens: int | None, asked: Sequence[Any]
) -> list[str]:
    """What is said to requests `[how many, tokens]`, while prompts of these sizes are there."""
    from mini_vllm.engine.admission import Admission

    known = {str(i): SimpleNamespace(num_prompt_tokens=size) for i, size in enumerate(unfinished)}
    admission, answers = Admission(known, max_reqs, max_tokens), []
    for count, tokens in asked:
        try:
            admission.check(count, tokens)
            answers.append("in")
        except Exception as error:
            answers.append(named(error))
    return answers


def life(outputs: Sequence[dict[str, Any]], reason: str | None, ends: float) -> dict[str, Any]:
    """What iteration statistics make of one request that arrived at 100.0 with 7 prompt tokens.

    An output has `tokens`, `stamp` (the engine's clock), `now` (ours), and may have `times`
    (queued, scheduled) and `preempted`.
    """
    from mini_vllm.core.scheduler_output import EngineCoreOutput, RequestTimes
    from mini_vllm.observability.metrics import IterationStats, RequestStats

    request, steps = RequestStats(100.0, 7, 1, 16), []
    for said in outputs:
        iteration = IterationStats()
        times = said.get("times")
        output = EngineCoreOutput(
            "r", [5] * said["tokens"], num_preemptions=said.get("preempted", 0),
            times=None if times is None else RequestTimes(*times),
        )  # fmt: skip
        iteration.update_from_output(output, request, said["stamp"], said["now"])
        steps.append(
            {
                "prompt": iteration.num_prompt_tokens, "tokens": iteration.num_generation_tokens,
                "preempted": iteration.num_preempted, "ttfts": rounded(iteration.ttfts),
                "itls": rounded(iteration.itls),
            }
        )  # fmt: skip
    if reason is None:
        return {"steps": steps}
    last = IterationStats()
    last.update_from_finished(request, reason, ends)
    (done,) = last.finished
    names = ("e2e_latency", "queued_time", "prefill_time", "decode_time", "inference_time")
    times_seen = {name: rounded([getattr(done, name)])[0] for name in names}
    times_seen["tpot"] = rounded([done.mean_time_per_output_token])[0]
    return {"steps": steps, "reason": done.finish_reason, **times_seen}


def rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 6) for value in values]


# ---------------------------------------------------------------------- tools and load


def parse_pieces(pieces: Sequence[str]) -> dict[str, Any]:
    """What a streamed answer's deltas add up to, and in which order each call's parts came."""
    from mini_vllm.entrypoints.openai.tool_parser import HermesToolParser

    parser = HermesToolParser()
    content, deltas = "", []
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        news = parser.extract_streaming(piece)
        deltas.append(sorted(news))
        content += news.get("content", "")
        for change in news.get("tool_calls", []):
            call = calls.setdefault(change["index"], {"names": [], "arguments": "", "ids": 0})
            function = change["function"]
            if "name" in function:
                call["names"].append(function["name"])
                call["ids"] += 1 if str(change.get("id", "")).startswith("chatcmpl-tool-") else 0
            elif not call["names"]:
                call["names"].append("arguments before a name")
            call["arguments"] += function.get("arguments", "")
    content += parser.finish().get("content", "")
    return {"content": content, "calls": calls, "deltas": deltas}


def load_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """When the requests of a load are sent."""
    import numpy as np

    from mini_vllm.entrypoints.load import arrival_times

    times = arrival_times(count, rate, burstiness, np.random.default_rng(seed))
    return [float(time) for time in times]


def good(results: Sequence[Any], slos: dict[str, float], duration: float) -> float:
    """Goodput of requests `[ttft, latency, tokens]`."""
    from mini_vllm.entrypoints.load import RequestResult, goodput

    seen = [RequestResult(1, ttft=t, latency=e, output_tokens=n) for t, e, n in results]
    return round(goodput(seen, slos, duration), 9)
