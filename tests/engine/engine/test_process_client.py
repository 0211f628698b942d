"""The front end's socket to the engine: whether the engine listens on its other end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
import zmq.asyncio

from mini_vllm.distributed.dp_router import DPRouter
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.engine.clients.dp_process_client import DataParallelProcessClient
from mini_vllm.engine.clients.loops import post_to
from mini_vllm.engine.clients.messages import EngineCoreOutputs, EngineInfo, MessageKind, encode
from mini_vllm.engine.clients.process_client import ProcessClient
from mini_vllm.engine.exceptions import EngineDeadError
from tests.engine.pace import PATIENCE


class Client(ProcessClient):
    """Its sockets without its engine; what is sent within a process has arrived at once."""

    def __init__(self, folder: Path) -> None:
        self.input, self.output = f"inproc://{folder}/input", f"inproc://{folder}/output"
        self._context = zmq.Context()
        self._sender = self._bind(zmq.PUSH, self.input)
        self._sending = threading.Lock()
        self._receiver = self._bind(zmq.PULL, self.output)
        self._async_receiver = zmq.asyncio.Socket.from_socket(self._receiver)
        self.process = SimpleNamespace(is_alive=lambda: True)  # type: ignore[assignment]
        self.dead = None
        self._closing = False
        self._num_at_once = 0
        self._on_death = lambda reason: None


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    made = Client(tmp_path)
    yield made
    made._context.destroy(linger=0)


def test_an_engine_that_is_ready_takes_requests(client: Client) -> None:
    """It says so over one socket, and is to listen on another, which connects on its own."""

    def engine() -> None:
        output, listens = client._context.socket(zmq.PUSH), client._context.socket(zmq.PULL)
        output.connect(client.output)
        info = EngineInfo(8, 8, 8, 8, 64, "float32", 0)
        output.send_multipart([MessageKind.READY.value, encode(info)])
        time.sleep(0.3)
        listens.connect(client.input)
        heard.append(listens.recv_multipart())

    heard: list[list[bytes]] = []
    thread = threading.Thread(target=engine, daemon=True)
    thread.start()
    assert client._wait_until_ready().vocab_size == 8
    client._send(MessageKind.ADD, b"r0")
    thread.join(PATIENCE)
    assert heard == [[MessageKind.ADD.value, b"r0"]]


def test_an_engine_that_hung_up_is_dead(client: Client) -> None:
    """Though its end was not reported yet."""
    client.abort_requests(["r0"])
    client.dead = None
    with pytest.raises(EngineDeadError, match="does not listen"):
        client._send(MessageKind.ADD, b"r0")
    assert client.dead is not None


def test_outputs_that_are_followed_by_others_are_late(client: Client) -> None:
    """Three steps wait, then one comes that is awaited."""

    async def read() -> list[bool]:
        engine = client._context.socket(zmq.PUSH)
        engine.connect(client.output)
        outputs = [MessageKind.OUTPUTS.value, encode(EngineCoreOutputs())]
        for _ in range(3):
            engine.send_multipart(outputs)
        late = [(await client.get_outputs()).is_late for _ in range(3)]
        asyncio.get_running_loop().call_later(0.1, engine.send_multipart, outputs)
        return [*late, (await asyncio.wait_for(client.get_outputs(), PATIENCE)).is_late]

    assert asyncio.run(read()) == [True, True, False, False]


def test_others_have_a_turn_though_ever_more_steps_wait(client: Client) -> None:
    async def read() -> list[int]:
        engine = client._context.socket(zmq.PUSH)
        engine.connect(client.output)
        for _ in range(20):
            engine.send_multipart([MessageKind.OUTPUTS.value, encode(EngineCoreOutputs())])
        turns = 0

        async def neighbour() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(neighbour())
        await asyncio.sleep(0)
        begin, seen = turns, []
        for _ in range(20):
            await client.get_outputs()
            seen.append(turns - begin)
        beside.cancel()
        return seen

    assert asyncio.run(read()) == [0] * 8 + [1] * 8 + [2] * 4


def test_a_pause_of_another_kind_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="mode is 'now'; it must be 'abort', 'wait' or 'keep'"):
        asyncio.run(AsyncLLM.pause_generation(object(), mode="now"))  # type: ignore[arg-type]


# ---------------------------------------------------------------- one loop after another
class OneMessage:
    """An engine of several that says one thing at once, and then nothing."""

    def __init__(self, name: str) -> None:
        self.messages = [EngineCoreOutputs([SimpleNamespace(request_id=name, finish_reason=None)])]  # type: ignore[list-item]

    async def get_outputs(self) -> EngineCoreOutputs:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop()


def several(*engines: OneMessage) -> DataParallelProcessClient:
    client = object.__new__(DataParallelProcessClient)
    client.router, client.clients, client._reading = DPRouter(len(engines)), list(engines), {}  # type: ignore[arg-type]
    return client


def test_what_came_as_a_loop_ended_is_for_the_next_loop() -> None:
    client = several(OneMessage("a"), OneMessage("b"))
    found = [asyncio.run(client.get_outputs()).outputs[0].request_id for _ in range(2)]
    assert sorted(found) == ["a", "b"]
    assert len(client._reading) == 0


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_read_of_a_loop_that_was_left_is_begun_again(is_closed: bool) -> None:
    """`run_until_complete` cancels nothing, as `asyncio.run` does."""
    client = several(OneMessage("a"), OneMessage("b"))
    loop = asyncio.new_event_loop()
    for _ in range(2):
        loop.run_until_complete(client.get_outputs())
    with pytest.raises(TimeoutError):
        loop.run_until_complete(asyncio.wait_for(client.get_outputs(), 0.01))
    left = list(client._reading)
    if is_closed:
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    client.clients[1] = OneMessage("later")  # type: ignore[call-overload]
    answer = asyncio.run(client.get_outputs())
    assert answer.outputs[0].request_id == "later"
    if not is_closed:
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_closed_loop_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    heard: list[str] = []
    post_to(loop, heard.append, "open")
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    post_to(loop, heard.append, "closed")
    assert heard == ["open"]
