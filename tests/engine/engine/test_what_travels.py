"""Between two processes goes plain data only: what is none is refused, and nothing of it stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mini_vllm import AsyncEngineArgs, AsyncLLM, SamplingParams
from mini_vllm.engine.clients.messages import MessageKind
from mini_vllm.outputs import RequestOutput
from tests.engine.pace import PATIENCE


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    args = AsyncEngineArgs("storyteller-draft", max_model_len=64, num_gpu_blocks=32)
    made = AsyncLLM.from_engine_args(args)
    yield made
    made.shutdown()


async def ask(engine: AsyncLLM, **params: Any) -> RequestOutput:
    greedy = SamplingParams(temperature=0, max_tokens=3, **params)
    async for output in engine.generate([200, 201], greedy, "r"):
        last = output
    return last


async def check_alive(engine: AsyncLLM) -> None:
    output = await asyncio.wait_for(ask(engine), PATIENCE)
    assert output.finished and output.error is None
    assert not engine._streams and not engine.num_unfinished_requests and not engine.stats.requests
    assert await asyncio.wait_for(engine.reset_prefix_cache(), PATIENCE)


@pytest.mark.parametrize(
    "value",
    [
        {"a": 10**30},
        {"a": object()},
        {1: 2},
        {None: 1},
        {"a": "\ud800"},
        {"kv_transfer_params": {"remote_engine_id": object()}},
    ],
)
def test_arguments_of_a_request(value: Any, engine: AsyncLLM) -> None:
    async def work() -> None:
        with pytest.raises(ValueError, match=r"extra_args is .* must be plain data"):
            await ask(engine, extra_args=value)
        await check_alive(engine)

    asyncio.run(work())


def test_arguments_that_travel(engine: AsyncLLM) -> None:
    values = {"a": [1, 2.5, None, True, {"b": "c"}], "d": 2**63}
    assert asyncio.run(ask(engine, extra_args=values)).error is None


@pytest.mark.parametrize("argument", [10**30, object(), "\ud800"])
def test_arguments_of_a_call(argument: Any, engine: AsyncLLM) -> None:
    async def work() -> None:
        for call in (engine.remove_lora, engine.pin_lora, engine.add_lora):
            with pytest.raises(ValueError, match=r"_lora is called with .* must be plain data"):
                await call(argument)
        await check_alive(engine)

    asyncio.run(work())


@pytest.mark.parametrize("name", [None, 5, b"is_paused", ["is_paused"]])
def test_the_name_of_a_call(name: Any, engine: AsyncLLM) -> None:
    async def work() -> None:
        with pytest.raises(ValueError, match=r"method is .*; it must be the name of a method"):
            await engine.call(name)
        await check_alive(engine)

    asyncio.run(work())


def test_an_answer_that_cannot_travel(engine: AsyncLLM) -> None:
    """A worker's method may return anything; its caller is told, and all others are served."""

    async def work() -> None:
        with pytest.raises(RuntimeError, match=r"is the answer, and no plain data"):
            await asyncio.wait_for(engine.collective_rpc("__reduce_ex__", args=[2]), PATIENCE)
        await check_alive(engine)

    asyncio.run(work())


@pytest.mark.parametrize("kind", [MessageKind.UTILITY, MessageKind.ABORT, MessageKind.SHUTDOWN])
def test_a_message_that_cannot_be_decoded_is_left_out(kind: MessageKind, engine: AsyncLLM) -> None:
    engine.client._send(kind, b"\xc1")  # type: ignore[union-attr]
    asyncio.run(check_alive(engine))


@pytest.mark.parametrize("seconds", ["x", float("nan"), float("inf"), -1, [], True])
def test_what_is_no_time(seconds: Any, engine: AsyncLLM) -> None:
    with pytest.raises(ValueError, match=r"timeout is .*; it must be a number of seconds"):
        engine.shutdown(seconds)

    async def work() -> None:
        with pytest.raises(ValueError, match=r"drain_timeout is .*; it must be a number of"):
            await engine.wait_for_requests_to_drain(seconds)
        with pytest.raises(ValueError, match=r"reset_running_requests is .*; it must be True or"):
            await engine.reset_prefix_cache([seconds])  # type: ignore[arg-type]
        await check_alive(engine)

    asyncio.run(work())


@pytest.mark.parametrize("names", [None, 5, b"r", [None], ["r", 5], object()])
def test_abort_takes_only_names_of_requests(names: Any, engine: AsyncLLM) -> None:
    async def work() -> None:
        with pytest.raises(ValueError, match=r"request_id is .*; it must be the name of a request"):
            await engine.abort(names)
        await engine.abort(["unknown"])
        await check_alive(engine)

    asyncio.run(work())
