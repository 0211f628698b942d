"""Real processes: the tokens of one worker, deaths that are noticed, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.engine.async_llm import AsyncEngineArgs, AsyncLLM
from mini_vllm.engine.clients.dp_process_client import DataParallelProcessClient
from mini_vllm.engine.exceptions import EngineDeadError
from mini_vllm.executor.multiproc import WorkerHandle
from mini_vllm.lora.request import LoRARequest
from tests.engine.pace import PATIENCE, eventually

SMALL: dict[str, Any] = dict(num_gpu_blocks=64, max_model_len=256, dtype="float32", block_size=8)
PROMPTS = [[200, 201, 202], list(range(300, 322)), list(range(300, 316)) + [500], [700] * 9]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
pytestmark = pytest.mark.serial


def tokens(llm: LLM, **options: Any) -> list[list[int]]:
    result = []
    for params in (GREEDY, SEEDED):
        outputs = llm.generate(PROMPTS, params, use_tqdm=False, **options)
        assert [output.error for output in outputs] == [None] * len(PROMPTS)
        result += [output.outputs[0].token_ids for output in outputs]
    return result


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return tokens(LLM("storyteller", **SMALL))


@pytest.fixture(scope="module")
def square() -> Iterator[LLM]:
    """Two stages of two shards; few tokens a step, so that prompts come in chunks."""
    llm = LLM(
        "storyteller",
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        max_num_batched_tokens=7,
        enable_lora=True,
        **SMALL,
    )
    yield llm
    llm.shutdown()


def test_two_stages_of_two_shards_say_the_same(square: LLM, plain: list[list[int]]) -> None:
    assert tokens(square) == plain
    core = square.engine.core
    assert core.batch_queue_size == 2
    while core.has_requests():
        core.step()
    assert not core.batch_queue
    core.scheduler.check_integrity()


def test_every_worker_is_a_process_and_answers_an_rpc(square: LLM) -> None:
    assert square.collective_rpc("list_loras") == [[]] * 4
    assert len(set(square.collective_rpc("pid")) | {os.getpid()}) == 5
    with pytest.raises(AttributeError, match="workers are in other processes"):
        _ = square.engine.core.model_runner


def test_an_adapter_is_cut_as_the_model_is(square: LLM) -> None:
    request = LoRARequest("pirate", 1, str(bundled.adapter_path("pirate")))
    alone = LLM("storyteller", enable_lora=True, **SMALL)
    assert tokens(square, lora_request=request) == tokens(alone, lora_request=request)


def shares_memory(worker: Any) -> bool:
    return worker.tp_group.shared_memory is not None


def test_shards_add_up_in_shared_memory_unless_told_otherwise(
    square: LLM, plain: list[list[int]]
) -> None:
    assert square.collective_rpc(shares_memory) == [True] * 4
    llm = LLM("storyteller", tensor_parallel_size=2, disable_custom_all_reduce=True, **SMALL)
    assert llm.collective_rpc(shares_memory) == [False] * 2
    assert tokens(llm) == plain
    llm.shutdown()


def test_what_a_worker_raises_comes_back_and_the_engine_lives(
    square: LLM, plain: list[list[int]], tmp_path: Path
) -> None:
    with pytest.raises(AttributeError, match="no_such_method"):
        square.collective_rpc("no_such_method")
    bell = tmp_path / "bell"
    with pytest.raises(TimeoutError, match=r"worker 0 \(pid \d+\).* did not answer nap within"):
        square.collective_rpc(nap, timeout=0.05, args=(str(bell),))
    bell.touch()
    assert square.collective_rpc("check_health") == [None] * 4, "no late answer of another call"
    assert tokens(square) == plain


class Unreadable:
    """What pickle writes, and cannot read."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return int, ("no number",)


def test_an_answer_that_cannot_be_read_is_said_to_be_one(square: LLM) -> None:
    with pytest.raises(TypeError, match="the answer, a Unreadable, "):
        square.collective_rpc(say_something)
    assert square.collective_rpc("check_health") == [None] * 4


def say_something(worker: Any) -> Unreadable:
    return Unreadable()


def nap(worker: Any, bell: str) -> str:
    eventually(Path(bell).exists, "the bell does not ring")
    return "late"


def test_ctrl_c_in_the_middle(square: LLM, plain: list[list[int]]) -> None:
    """Plans on their way are forgotten, on both sides."""
    stream = square.stream(PROMPTS, GREEDY)
    for _ in range(5):
        next(stream)
    stream.close()
    core = square.engine.core
    core.step()
    core.undo()
    assert not core.batch_queue
    assert tokens(square) == plain


def test_a_killed_worker_ends_the_engine_and_is_named(square: LLM) -> None:
    """The last test of this engine: it cannot be used afterwards."""
    pids = square.collective_rpc("pid")
    threading.Timer(0.3, os.kill, (pids[1], signal.SIGKILL)).start()
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    start = time.monotonic()
    with pytest.raises(
        EngineDeadError, match=rf"worker 1 \(pid {pids[1]}\) was killed by signal 9"
    ):
        for _ in range(50):
            square.generate(PROMPTS, params, use_tqdm=False)
    assert time.monotonic() - start < PATIENCE
    with pytest.raises(EngineDeadError, match="start a new engine"):
        square.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert not any(is_alive(pid) for pid in pids)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_engines_side_by_side(plain: list[list[int]]) -> None:
    llm = LLM("storyteller", data_parallel_size=2, **SMALL)
    try:
        assert tokens(llm) == plain
        busy = [core.scheduler.kv_cache_manager.prefix_cache_stats for core in llm.engine.cores]
        assert all(stats.queries > 0 for stats in busy), "both had requests"
        assert len(set(llm.collective_rpc("pid"))) == 2
    finally:
        llm.shutdown()


def test_a_prompt_is_routed_to_the_engine_that_has_its_prefix(plain: list[list[int]]) -> None:
    """With routing by prefix, a prompt that comes again goes to the engine with its blocks."""
    llm = LLM("storyteller", data_parallel_size=2, data_parallel_routing="prefix", **SMALL)
    story = [[5 + n % 900 for n in range(first, first + 40)] for first in (0, 300, 600)]
    try:
        assert tokens(llm) == plain
        assert llm.reset_prefix_cache()
        caches = [core.scheduler.kv_cache_manager.prefix_cache_stats for core in llm.engine.cores]
        before = [stats.hits for stats in caches]
        for prompt in (*story, *story, *story):
            llm.generate([prompt], GREEDY, use_tqdm=False)
        hits = [stats.hits - old for stats, old in zip(caches, before, strict=True)]
        each = (40 - 1) // SMALL["block_size"] * SMALL["block_size"]  # the last block is computed
        assert sum(hits) == 2 * len(story) * each and min(hits) > 0
    finally:
        llm.shutdown()


ORPHANS = """
import os, sys, time
from mini_vllm import LLM, SamplingParams
if __name__ == "__main__":
    llm = LLM("storyteller", tensor_parallel_size=2, num_gpu_blocks=64, max_model_len=64)
    print(*llm.collective_rpc("pid"), flush=True)
    if sys.argv[1] == "wait":
        time.sleep(600)
"""


@pytest.mark.parametrize("how", ["killed", "end"])
def test_no_worker_outlives_its_parent(how: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ORPHANS)
    parent = subprocess.Popen(
        [sys.executable, str(script), "wait" if how == "killed" else "end"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    if how == "killed":
        parent.kill()
    _, errors = parent.communicate(timeout=PATIENCE)
    if how == "end":
        assert (parent.returncode, errors) == (0, "")
    eventually(lambda: not any(is_alive(pid) for pid in pids), "a worker lives on")


def test_a_failed_start_of_the_workers_raises_the_cause(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_gpu_blocks is 1000000000, which takes \d+ MiB"):
        LLM("storyteller", distributed_executor_backend="mp", num_gpu_blocks=10**9)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "was killed by signal 9 (SIGKILL)"),
        (-40, "was killed by signal 40 (real-time)"),
        (3, "ended with exit code 3"),
    ],
)
def test_how_a_worker_ended(code: int, words: str) -> None:
    """Signals that have no name are signals, too."""
    process: Any = SimpleNamespace(pid=42, exitcode=code, join=lambda seconds: None)
    worker = WorkerHandle(1, process, answers=None)  # type: ignore[arg-type]
    assert worker.last_words() == f"worker 1 (pid 42) {words}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tensor_parallel_size": 3},
            "tensor_parallel_size is 3; it must divide the model's num_att",
        ),
        ({"tensor_parallel_size": 8}, r"num_attention_heads=4; use 1, 2 or 4"),
        ({"pipeline_parallel_size": 5}, "pipeline_parallel_size is 5; the model has 4 layers"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0; .*at least 1"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size is True"),
        ({"distributed_executor_backend": "uni", "tensor_parallel_size": 2}, "this process is one"),
        ({"distributed_executor_backend": "k8s"}, "it must be one of uni, mp, ray"),
        ({"tensor_parallel_size": 2, "compile_model": True}, "does not go with"),
    ],
)
def test_sizes_are_refused_before_anything_starts(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "multiprocessing.process.BaseProcess.start", lambda *_: pytest.fail("started")
    )
    with pytest.raises(ValueError, match=message):
        LLM("storyteller", **options)


def test_a_server_over_two_engines(plain: list[list[int]]) -> None:
    """Both get requests; when one is killed, callers hear of it."""
    asyncio.run(_serve_over_two(plain))


async def _serve_over_two(plain: list[list[int]]) -> None:
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs("storyteller", data_parallel_size=2, **SMALL)
    )

    async def complete(prompt: list[int]) -> list[int]:
        async for output in engine.generate(prompt, GREEDY, "r"):
            last = output
        return last.outputs[0].token_ids

    try:
        assert await asyncio.gather(*map(complete, PROMPTS)) == plain[: len(PROMPTS)]
        client = engine.client
        assert isinstance(client, DataParallelProcessClient)
        assert not client.router.engines, "finished requests are forgotten"
        assert await engine.reset_prefix_cache() is True
        os.kill(client.clients[1].process.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            for _ in range(100):
                await asyncio.gather(*map(complete, PROMPTS))
    finally:
        engine.shutdown()
