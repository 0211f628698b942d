"""The front end: an AsyncLLM whose engine is a toy that says what a script says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from labkit.inside.serving.turns import how_ended, named, run, turns


class ToyClient:
    """An engine far away: it notes what it is sent, and says what a script says."""

    def __init__(self, diary: list[Any]) -> None:
        self.diary, self.dead = diary, None
        self.aborted: list[str] = []
        self.info = SimpleNamespace(
            vocab_size=2048, max_model_len=32, num_usable_blocks=64, block_size=16, capacity=1024
        )
        self.coming: asyncio.Queue[Any] = asyncio.Queue()
        self.watched: Any = lambda request_id: True

    def add_request(self, request: Any) -> None:
        known = self.watched(request.request_id)
        self.diary.append(["sent", len(request.prompt_token_ids), known])

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        if request_ids:  # no request to end is no message
            self.diary.append(["abort", len(request_ids)])
            self.aborted += request_ids

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
    from mini_vllm.engine.clients.messages import EngineCoreOutputs

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
        begun: dict[int, float] = {}
        in_time: list[bool] = []

        async def slowly(prompt: Any) -> Any:
            begun[id(prompt)] = time.monotonic()
            await turns(3)
            return await plain(prompt)

        engine.preprocess = slowly

        async def one(request: dict[str, Any]) -> Any:
            params = sampling(n=request.get("n", 1), **request.get("params", {}))
            prompt, before = [3] * request.get("prompt", 2), time.monotonic()
            stream = await engine.add_request(request.get("name", "r"), prompt, params)
            noted = [engine.stats.requests[i].arrival for i in stream.child_ids]
            in_time.append(all(before <= t <= begun.get(id(prompt), 0.0) for t in noted))
            return stream

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
            "arrived before its prompt was read": all(in_time),
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
        mine = stream = await engine.add_request("r", [3, 4], sampling(kind))
        plain, closed = engine.close_stream, []

        def close_stream(stream: Any) -> None:
            closed.append(stream is mine)
            plain(stream)

        engine.close_stream = close_stream
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
        aborted = engine.client.aborted
        own = [i for i in aborted if i in stream.child_ids]
        result = {
            "diary": [["abort", len(aborted)]] if aborted else [],  # together or one by one
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
    from mini_vllm.engine.clients.messages import EngineCoreOutputs

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

    def told(what: str, request_ids: Sequence[str]) -> None:
        if request_ids:  # to end no request is to do nothing
            diary.append([what, list(request_ids)])

    engine = make_engine(diary)
    engine.output_processor = Processor()
    engine._streams = {name: SimpleNamespace(name=name) for name in "ab"}
    engine._deliver = lambda stream: diary.append(["delivered", stream.name])
    engine.stats = SimpleNamespace(
        output_arrived=lambda output, timestamp: diary.append(
            ["counted", output.request_id, timestamp]
        ),
        requests_stopped=lambda request_ids: told("stopped", request_ids),
    )
    engine.client.abort_requests = lambda request_ids: told("abort", request_ids)
    outputs = [EngineCoreOutput(name, list(ids)) for name, ids in lines]
    engine._process(outputs, EngineCoreOutputs(outputs, None, 2.5))
    return {"diary": diary}


def handler(messages: Sequence[Any], error: str = "", late: Sequence[int] = ()) -> dict[str, Any]:
    """What the output handler does with messages of so many outputs each, and with an error.

    Of those whose numbers are in `late` it hears that the next one has arrived already.

    `error`: "dead" (the engine says so), "bug" (processing fails), "cancel", or none. Two streams
    wait. Beside the handler runs a neighbour that counts its turns.
    """
    from mini_vllm.core.scheduler_output import EngineCoreOutput
    from mini_vllm.engine.clients.messages import EngineCoreOutputs
    from mini_vllm.engine.exceptions import EngineDeadError

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

        def step_done(stats: Any) -> None:
            diary.append(["step done", stats])
            if messages[stats]:
                behind.append(neighbour[0] > before[0])

        behind: list[bool] = []
        engine.stats.step_done = step_done
        beside = asyncio.ensure_future(run_beside())
        before = [0]
        task = asyncio.ensure_future(engine._handle_outputs())
        for number, count in enumerate(messages):
            await turns(6)
            before[0] = neighbour[0]
            outputs = [EngineCoreOutput("x", [1]) for _ in range(count)]
            message = EngineCoreOutputs(outputs, number, 1.0, number in late)  # type: ignore[arg-type]
            engine.client.coming.put_nowait(message)
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
            "late": behind,
            "readers": readers,
            "task": "waits" if not task.done() else how_ended(task),
        }
        task.cancel()
        beside.cancel()
        await turns(3)
        return result

    return dict(run(go()))
