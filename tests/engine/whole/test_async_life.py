"""The life of an `AsyncLLM` in a loop that goes on: others come after it."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import AsyncEngineArgs, AsyncLLM, EngineDeadError, SamplingParams
from mini_vllm.engine.clients import process_client
from mini_vllm.sampling_params import RequestOutputKind
from tests.engine.entrypoints.server import ROOT
from tests.engine.pace import PACED, PATIENCE, Brake


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> Brake:
    made = Brake()
    monkeypatch.setenv(*made.variable)
    return made


def start(**options: Any) -> AsyncLLM:
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs("storyteller", max_model_len=1024, num_gpu_blocks=200, **options)
    )


async def stream(engine: AsyncLLM, max_tokens: int = 4) -> tuple[int, str | None]:
    """How many tokens a stream brings, and how it ends."""
    params = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    seen, reason = 0, None
    async for output in engine.generate("Once", params, "r"):
        seen += len(output.outputs[0].token_ids)
        reason = output.outputs[0].finish_reason
    return seen, reason


async def until_answered(engine: AsyncLLM, num_readers: int) -> None:
    """Until each stream has had its first token, while the brake is on."""
    completions = engine.output_processor.completions
    async with asyncio.timeout(PATIENCE):
        while sum(bool(one.output.token_ids) for one in completions.values()) < num_readers:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("engines", "times"), [(1, 3), (2, 2)])
def test_engine_after_engine_in_one_loop(
    engines: int, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one's socket gets the descriptor of the last one's; the loop must tell them apart.

    And nothing stays behind: no process, no folder, no descriptor.
    """

    async def main() -> None:
        open_files = []
        for _ in range(times):
            engine = start(data_parallel_size=engines)
            async with asyncio.timeout(PATIENCE):
                ends = await asyncio.gather(*(stream(engine) for _ in range(3)))
            assert ends == [(4, "length")] * 3
            engine.shutdown()
            with pytest.raises(EngineDeadError, match="the engine was shut down"):
                await stream(engine)
            clients = getattr(engine.client, "clients", [engine.client])
            assert not any(Path(client._folder.name).exists() for client in clients)
            del engine, clients
            gc.collect()
            open_files.append(len(list(Path("/proc/self/fd").iterdir())))
        assert open_files[-1] == open_files[-2]
        assert not multiprocessing.active_children()

    asyncio.run(main())
    assert not caplog.records


@pytest.mark.parametrize("engines", [1, 2])
def test_a_shutdown_in_a_thread_serves_running_requests_to_their_end(
    engines: int, brake: Brake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_client, "LAST_OUTPUTS_SECONDS", PATIENCE)

    async def main() -> None:
        engine = start(scheduler=PACED, data_parallel_size=engines)
        with brake.on():
            readers = [asyncio.create_task(stream(engine, 120)) for _ in range(8)]
            await until_answered(engine, 8)
            ending = asyncio.create_task(asyncio.to_thread(engine.shutdown, PATIENCE))
            await asyncio.sleep(0.1)  # they have not ended before it began
        await ending
        assert await asyncio.gather(*readers) == [(120, "length")] * 8

    asyncio.run(main())


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_shutdown_answers_running_requests_and_pending_calls(
    in_thread: bool, brake: Brake
) -> None:
    """The engine tells what it can still reach that it was aborted; the rest get an error."""

    async def main() -> None:
        engine = start(scheduler=PACED)
        with brake.on():
            readers = [asyncio.create_task(stream(engine, 700)) for _ in range(4)]
            await until_answered(engine, 4)
            call = asyncio.create_task(engine.pause_generation(mode="wait"))
            await asyncio.sleep(0)
            if in_thread:
                await asyncio.to_thread(engine.shutdown)
            else:
                engine.shutdown()
        async with asyncio.timeout(PATIENCE):
            *ends, called = await asyncio.gather(*readers, call, return_exceptions=True)
        assert isinstance(called, EngineDeadError)
        for end in ends:
            assert isinstance(end, EngineDeadError) or end[1] == "abort"  # type: ignore[index]

    asyncio.run(main())


def test_a_loop_may_be_closed_before_the_engine() -> None:
    """No reader is left to be told; and another loop may have read before."""
    engine = start()
    assert asyncio.run(stream(engine)) == (4, "length")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # it misses the task that reads
    assert loop.run_until_complete(stream(engine)) == (4, "length")
    loop.close()
    engine.shutdown()
    engine.shutdown()
    assert engine.errored


def test_a_shutdown_answers_held_requests_without_waiting(brake: Brake) -> None:
    """Held requests would not finish in the time of the shutdown either."""

    async def main() -> None:
        engine = start(scheduler=PACED)
        with brake.on():
            readers = [asyncio.create_task(stream(engine, 700)) for _ in range(4)]
            await until_answered(engine, 4)
            await engine.pause_generation(mode="keep")
        readers.append(asyncio.create_task(stream(engine)))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(PATIENCE):
            await asyncio.to_thread(engine.shutdown, 10 * PATIENCE)
            ends = await asyncio.gather(*readers)
        assert [reason for _, reason in ends] == ["abort"] * 5

    asyncio.run(main())


def test_a_script_that_its_own_engine_would_run_again_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from mini_vllm import AsyncEngineArgs, AsyncLLM\n"
        "AsyncLLM.from_engine_args(AsyncEngineArgs('storyteller', max_model_len=64)).shutdown()\n"
    )
    run = subprocess.run(
        [sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=3 * PATIENCE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert "EngineDeadError: the engine process ended with code 1" in last
    assert "behind `if __name__ == '__main__':`" in last
