"""What a GPU's memory is counted and given back by, as far as a CPU can show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from mini_vllm import LLM
from mini_vllm.config import SchedulerConfig
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.executor import worker as worker_module
from mini_vllm.executor.worker import Worker
from mini_vllm.platforms.cpu import CpuPlatform
from mini_vllm.platforms.interface import Platform
from mini_vllm.worker import cuda_graphs, kv_cache
from mini_vllm.worker.profile import largest_step

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_memory_that_torch_only_keeps_is_given_back_before_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a second engine in the process finds less than nothing."""
    kept = {"bytes": 70 << 30}
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: kept.update(bytes=0))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda _: ((79 << 30) - kept["bytes"], 80 << 30)
    )
    assert kv_cache.available_memory(GPU, 0.9) == pytest.approx((79 - 8) << 30, abs=1)
    kept["bytes"] = 70 << 30
    assert kv_cache.reclaimable_memory(GPU) == 79 << 30


@pytest.fixture()
def worker() -> Iterator[Worker]:
    llm = LLM("storyteller-draft", num_gpu_blocks=20, max_model_len=32)
    yield llm.engine.core.executor.worker  # type: ignore[attr-defined]
    llm.shutdown()


def test_a_worker_frees_its_memory_though_it_is_still_referenced(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Platform] = []
    monkeypatch.setattr(CpuPlatform, "empty_cache", lambda platform: asked.append(platform))
    worker._let_go()
    worker._let_go()
    assert all(weight.numel() == 0 for weight in worker.model.parameters())
    assert worker.model_runner.graphs is None and len(asked) == 2


def test_a_connector_by_layers_goes_on_without_graphs_after_a_sleep(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wake_up` warms up again, and a replayed graph would call no layer to save it."""
    recorders: list[object] = []
    monkeypatch.setattr(cuda_graphs, "CudaRecorder", object)
    monkeypatch.setattr(worker.model_runner, "warm_up", lambda _, record: recorders.append(record))
    monkeypatch.setattr(worker, "device", GPU)
    worker.warm_up()
    worker.may_record = False
    worker.warm_up()
    monkeypatch.undo()
    assert [record is not None for record in recorders] == [True, False]


def test_the_largest_step_uses_the_budget_up() -> None:
    limits = SchedulerConfig(max_num_batched_tokens=100, max_num_seqs=8, max_model_len=40)
    assert largest_step(limits) == [40, 40, 20]
    assert largest_step(replace(limits, max_num_seqs=2)) == [40, 40]


def test_what_a_step_takes_is_not_given_to_the_cache(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest step and the largest recorded one really run, here on a CPU; what they take is
    said by the stand-in. Hidden states of all recorded steps count, too."""
    ran: list[object] = []

    def peak(run: Callable[[], object], _: torch.device) -> int:
        monkeypatch.setattr(worker, "device", CPU)
        ran.append(run())
        monkeypatch.setattr(worker, "device", GPU)
        return (5 << 30) if len(ran) % 2 else (1 << 30)

    monkeypatch.setattr(worker, "config", make_engine_config("storyteller-draft"))
    monkeypatch.setattr(worker_module, "peak_bytes", peak)
    monkeypatch.setattr(worker_module, "available_memory", lambda *_: 10 << 30)
    monkeypatch.setattr(worker, "device", GPU)
    rows = sum(cuda_graphs.make_buckets(worker.config.scheduler.max_num_seqs))
    number = next(worker.model.parameters()).element_size()
    hidden = rows * worker.model.config.hidden_size * number
    assert worker._memory_for_cache() == (4 << 30) - hidden
    monkeypatch.setattr(worker_module, "available_memory", lambda *_: 5 << 30)
    assert worker._memory_for_cache() == 0
    monkeypatch.undo()
    assert len(ran) == 4
    assert worker._memory_for_cache() is None, "the configuration says how many blocks"
