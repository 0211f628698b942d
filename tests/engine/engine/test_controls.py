"""What operators ask of a running engine, each test in an event loop of its own."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import bundled
from mini_vllm.core.scheduler_output import SchedulerStats
from mini_vllm.engine.async_llm import AsyncEngineArgs, AsyncLLM
from mini_vllm.lora.request import LoRARequest
from mini_vllm.observability.metrics import PrometheusRecorder
from mini_vllm.observability.several import together
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.pace import PACED, PATIENCE, Brake

SMALL: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_gpu_blocks": 64}
NAME = next(iter(bundled.ADAPTERS))
ADAPTER = LoRARequest(NAME, 7, str(bundled.adapter_path(NAME)))
NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def brake() -> Brake:
    return Brake()


@pytest.fixture(scope="module")
def engine(traces: Path, brake: Brake) -> Iterator[AsyncLLM]:
    args = AsyncEngineArgs(
        "storyteller",
        scheduler=PACED,
        enable_lora=True,
        speculative_config=NGRAM,
        profiler_config={"torch_profiler_dir": str(traces)},
        **SMALL,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*brake.variable)
        made = AsyncLLM.from_engine_args(args)
    made.stats.recorders.append(PrometheusRecorder("m", 256, None, 2, 1))
    yield made
    made.shutdown()


async def ask(engine: AsyncLLM, max_tokens: int = 4, **more: Any) -> RequestOutput:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    async for output in engine.generate("Once upon a time", params, "r", **more):
        last = output
    return last


def told(engine: AsyncLLM, start: str) -> dict[str, float]:
    recorder = engine.stats.recorders[-1]
    assert isinstance(recorder, PrometheusRecorder)
    lines = recorder.render()[0].decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if line.startswith("vllm:" + start)]
    return {name: float(value) for name, _, value in pairs}


async def until_running(engine: AsyncLLM, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while sum(told(engine, "num_requests_running").values()) != count:
            await asyncio.sleep(0.005)


def test_a_second_loop_is_served_as_the_first(engine: AsyncLLM) -> None:
    first = asyncio.run(ask(engine))
    second = asyncio.run(asyncio.wait_for(ask(engine), PATIENCE))
    assert first.outputs[0].token_ids == second.outputs[0].token_ids

    async def leave() -> None:
        async for _ in engine.generate("a", SamplingParams(max_tokens=200, ignore_eos=True), "r"):
            return

    asyncio.run(leave())
    assert asyncio.run(ask(engine)).finished


def test_what_add_request_returns_can_be_read(engine: AsyncLLM) -> None:
    async def read() -> list[Any]:
        params = SamplingParams(
            max_tokens=2, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
        )
        stream = await engine.add_request("r9", "Once", params)
        assert stream.get_nowait() is None
        return [stream.request_id, await asyncio.wait_for(stream.get(), PATIENCE)]

    request_id, output = asyncio.run(read())
    assert (request_id, output.request_id, output.finished) == ("r9", "r9", True)


def test_a_prompt_is_tokenized_as_its_caller_says(engine: AsyncLLM) -> None:
    output = asyncio.run(ask(engine, tokenization_kwargs={"truncate_prompt_tokens": 2}))
    assert output.prompt_token_ids == engine.get_tokenizer().encode("Once upon a time")[-2:]


def test_an_engine_describes_itself(engine: AsyncLLM) -> None:
    async def look() -> None:
        assert engine.get_tokenizer() is engine.tokenizer is not None
        assert engine.is_running and not engine.is_stopped and not engine.errored
        assert await engine.get_supported_tasks() == ("generate",)
        assert not await engine.is_tracing_enabled()
        assert await engine.collective_rpc("model_dtype") == ["float32"]
        with pytest.raises(ValueError, match="name a method of the workers"):
            await engine.collective_rpc(len)  # type: ignore[arg-type]

    asyncio.run(look())


def test_adapters_come_and_go(engine: AsyncLLM, brake: Brake) -> None:
    async def work() -> None:
        assert await engine.add_lora(ADAPTER) and await engine.list_loras() == {7}
        assert await engine.pin_lora(7)
        asking = asyncio.create_task(ask(engine, 100, lora_request=ADAPTER))
        with brake.on():
            await until_running(engine, 1)
            lines = told(engine, "lora_requests_info")
        assert len(lines) == 1 and f'running_lora_adapters="{NAME}"' in next(iter(lines))
        output = await asking
        assert output.lora_request == ADAPTER
        assert await engine.remove_lora(7) and not await engine.remove_lora(7)
        assert await engine.list_loras() == set()
        with pytest.raises(RuntimeError, match="there is no adapter 7"):
            await engine.pin_lora(7)
        with pytest.raises(RuntimeError, match="there is no adapter folder"):
            await engine.add_lora(LoRARequest("none", 8, "/no/such/folder"))

    asyncio.run(work())


def test_drafts_are_counted_where_the_service_looks(engine: AsyncLLM) -> None:
    async def work() -> None:
        assert (await ask(engine, 64)).finished

    before = told(engine, "spec_decode")
    asyncio.run(work())
    found = {name: value - before[name] for name, value in told(engine, "spec_decode").items()}

    def total(name: str) -> float:
        return sum(value for key, value in found.items() if f"{name}_total" in key)

    assert 0 < total("num_drafts") <= total("num_draft_tokens") <= 2 * total("num_drafts")
    assert total("num_accepted_tokens_per_pos") == total("num_accepted_tokens") > 0


async def crowd(engine: AsyncLLM, count: int = 4) -> list[asyncio.Task[RequestOutput]]:
    """Requests that run while the brake is on; all fit the cache at once."""
    asking = [asyncio.create_task(ask(engine, 200)) for _ in range(count)]
    await until_running(engine, count)
    return asking


def test_a_pause_that_is_ended_before_it_is_complete_says_so_at_once(
    engine: AsyncLLM, brake: Brake
) -> None:
    """The caller would change weights under requests that run."""

    async def work() -> None:
        with brake.on():
            asking = await crowd(engine)
            pauses = [asyncio.create_task(engine.pause_generation(mode="wait")) for _ in range(2)]
            await asyncio.sleep(0)
            await engine.resume_generation()
            for pause in pauses:
                with pytest.raises(RuntimeError, match="resumed before all running requests had"):
                    await pause
            assert engine.num_unfinished_requests == len(asking)
            assert not await engine.is_paused()
        assert all([(await one).outputs[0].finish_reason == "length" for one in asking])

    asyncio.run(work())


@pytest.mark.parametrize("clear_cache", [False, True])
def test_a_pause_is_not_complete_while_another_holds_requests(
    engine: AsyncLLM, clear_cache: bool, brake: Brake
) -> None:
    async def work() -> None:
        with brake.on():
            asking = await crowd(engine)
            first = asyncio.create_task(engine.pause_generation(mode="wait"))
            await asyncio.sleep(0)
            await engine.pause_generation(mode="keep", clear_cache=clear_cache)
        await asyncio.sleep(0.1)
        assert not first.done() and engine.num_unfinished_requests == len(asking)
        late = asyncio.create_task(ask(engine))
        if clear_cache:  # they have lost their blocks, and wait like the new one
            await engine.pause_generation(mode="abort")
        else:
            await engine.pause_generation(mode="wait")
        await first
        ends = {(await one).outputs[0].finish_reason for one in asking}
        assert ends == ({"abort"} if clear_cache else {"length"})
        if not late.done():
            await engine.resume_generation()
        assert (await late).outputs[0].finish_reason in ("length", "abort")
        await engine.resume_generation()

    asyncio.run(work())


def test_a_request_aborted_while_paused_is_freed_at_once(engine: AsyncLLM, brake: Brake) -> None:
    """The gauges fall though nothing is computed, and a pause that waited for them is complete."""

    async def work() -> None:
        with brake.on():
            asking = await crowd(engine)
            first = asyncio.create_task(engine.pause_generation(mode="wait"))
            await asyncio.sleep(0)
            await engine.pause_generation(mode="keep", clear_cache=False)
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.wait_for(first, PATIENCE)
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert set(told(engine, gauge).values()) == {0.0}
        await engine.resume_generation()
        assert (await ask(engine)).finished

    asyncio.run(work())


def test_at_level_0_requests_wait_and_keep_their_cache(engine: AsyncLLM) -> None:
    async def work() -> None:
        await engine.sleep(level=0)
        late = asyncio.create_task(ask(engine))
        await asyncio.sleep(0.1)
        assert await engine.is_sleeping() and not late.done()
        await engine.wake_up(["scheduling"])
        assert (await late).finished and not await engine.is_sleeping()

    asyncio.run(work())


def test_requests_wait_while_the_engine_sleeps(engine: AsyncLLM, brake: Brake) -> None:
    async def work() -> None:
        with brake.on():
            long = asyncio.create_task(ask(engine, 200))
            await until_running(engine, 1)  # a waiting request waits on while the engine sleeps
            falls_asleep = asyncio.create_task(engine.sleep(mode="wait"))
            await asyncio.sleep(0)
            assert await engine.is_paused() and not long.done()
        await falls_asleep
        assert (await long).outputs[0].finish_reason == "length"
        assert await engine.is_sleeping()
        assert told(engine, "engine_sleep_state{")[state_line("awake")] == 0
        with pytest.raises(ValueError, match="call wake_up"):
            await engine.resume_generation()
        late = asyncio.create_task(ask(engine))
        await asyncio.sleep(0.2)
        assert not late.done()
        with pytest.raises(TimeoutError, match="1 requests are unfinished"):
            await engine.wait_for_requests_to_drain(0)
        with pytest.raises(ValueError, match=r"tags is \['all'\]"):
            await engine.wake_up(["all"])
        await engine.wake_up(["kv_cache"])
        assert await engine.is_sleeping() and not late.done()
        assert told(engine, "engine_sleep_state{")[state_line("awake")] == 0
        await engine.wake_up(["weights"])
        await engine.wait_for_requests_to_drain()
        assert (await late).finished and not await engine.is_sleeping()
        assert told(engine, "engine_sleep_state{")[state_line("awake")] == 1
        for level, mode in ((2, "abort"), (1, "keep")):
            with pytest.raises(ValueError, match=r"level is 2|mode is 'keep'"):
                await engine.sleep(level, mode)

    asyncio.run(work())


def state_line(state: str) -> str:
    return f'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="{state}"}}'


def test_a_recording_of_the_engines_process(engine: AsyncLLM, traces: Path) -> None:
    async def work() -> None:
        await engine.start_profile("mine")
        await ask(engine)
        await engine.stop_profile()

    asyncio.run(work())
    (file,) = traces.glob("mine-*.json")
    names = {event.get("name", "") for event in json.loads(file.read_text())["traceEvents"]}
    assert any(name.startswith("aten::") for name in names)


def test_a_line_of_the_log(engine: AsyncLLM, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        await ask(engine)
        await engine.do_log_stats()
        await engine.do_log_stats()

    with caplog.at_level(logging.INFO, "mini_vllm.observability.log_line"):
        asyncio.run(work())
    first, second = caplog.messages
    assert "generation throughput 0.0 tokens/s" not in first and "running 0" in first
    assert "generation throughput 0.0 tokens/s" in second


def test_several_engines_are_told_of_as_one() -> None:
    one = SchedulerStats(1, 2, 0.5, 10, 5, {}, 3, 6, [2, 1], {"a": 1}, {"b": 2})
    two = SchedulerStats(2, 0, 0.1, 1, 1, {}, 1, 2, [1, 0], {"a": 1, "c": 1}, {})
    both = together([one, two])
    assert (both.num_drafts, both.num_draft_tokens) == (4, 8)
    assert both.num_accepted_tokens_per_pos == [3, 1]
    assert both.running_lora_adapters == {"a": 2, "c": 1}
    assert both.waiting_lora_adapters == {"b": 2}


def test_several_engines_serve_a_second_loop() -> None:
    args = AsyncEngineArgs("storyteller", data_parallel_size=2, **SMALL)
    engine = AsyncLLM.from_engine_args(args)
    try:
        for _ in range(2):
            assert asyncio.run(asyncio.wait_for(ask(engine), PATIENCE)).finished
        both = asyncio.run(asyncio.wait_for(engine.collective_rpc("model_dtype"), PATIENCE))
        assert both == ["float32", "float32"]
    finally:
        engine.shutdown()


@pytest.mark.parametrize("name", ["init_weight_transfer_engine", "update_weights"])
def test_methods_that_are_not_here_say_what_to_do(name: str) -> None:
    engine = object.__new__(AsyncLLM)
    with pytest.raises(AttributeError, match=f"AsyncLLM has no '{name}': .*a new engine of"):
        getattr(engine, name)
    assert not hasattr(engine, "nothing_of_vllms")


def test_an_error_in_a_property_of_ours_is_not_called_a_missing_name() -> None:
    with pytest.raises(AttributeError, match="no 'client'"):
        _ = object.__new__(AsyncLLM).errored
