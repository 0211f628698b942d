"""Change request 3, over random batches, with sampled tokens that the host may not look at."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from mini_vllm.core.scheduler_output import CachedRequestData, SchedulerOutput
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.input_batch import CachedRequestState
from mini_vllm.worker.model_runner import ModelRunner

WAITS = {
    "tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__index__", "__float__", "__iter__",
    "__array__", "nonzero", "unique", "equal", "__contains__", "unbind",
}  # fmt: skip


class OnTheDevice(Tensor):
    """Sampled tokens, and all that is made of them: a look at one would wait for it."""

    is_watched = True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in WAITS or not cls.is_watched, f"{name} waits for the sampled tokens"
        return super().__torch_function__(func, types, args, kwargs or {})


def new_runner() -> ModelRunner:
    return ModelRunner(None, None, 8, 16, 4, torch.device("cpu"))  # type: ignore[arg-type]


def seat(runner: ModelRunner, name: str, tokens: list[int], computed: int) -> None:
    state = CachedRequestState(name, tokens, SamplingParams(), None)
    runner.batch.add_request(state, [1, 2, 3], computed)


def plan_of(scheduled: dict[str, int]) -> SchedulerOutput:
    return SchedulerOutput(
        [], CachedRequestData([], [], set(), {}), scheduled, sum(scheduled.values()), {}, {}, [],
        set(),
    )  # fmt: skip


def values(tensor: Tensor) -> list[int]:
    OnTheDevice.is_watched = False
    try:
        return tensor.tolist()
    finally:
        OnTheDevice.is_watched = True


@pytest.mark.parametrize("seed", range(40))
def test_change_3_every_unknown_token_is_found(seed: int) -> None:
    rng = Random(seed)
    names = [f"r{row}" for row in range(rng.randint(1, 8))]
    runner = new_runner()
    unknown = [name for name in names if rng.random() < 0.6]
    sampled = [*unknown, "gone"]  # and one that has ended since
    rng.shuffle(sampled)
    tokens = [rng.randint(0, 999) for _ in sampled]
    plan, expected = {}, {}
    for row, name in enumerate(names):
        known = [100 * row + i for i in range(rng.randint(2, 9))]
        if name in unknown:
            seat(runner, name, [*known, -1], len(known))
            wanted = [tokens[sampled.index(name)]]
        else:
            computed = rng.randint(0, len(known) - 1)
            seat(runner, name, known, computed)
            wanted = known[computed : computed + rng.randint(1, len(known) - computed)]
        if rng.random() < 0.8 or len(names) == 1:
            plan[name], expected[name] = len(wanted), wanted
    order = rng.sample(list(plan), len(plan))
    runner.prev_sampled_token_ids = torch.tensor(tokens).as_subclass(OnTheDevice)
    runner.prev_req_id_to_index = {name: index for index, name in enumerate(sampled)}
    if not plan:
        return
    inputs = runner._prepare_inputs(plan_of({name: plan[name] for name in order}))
    flat = [token for name in inputs.req_ids for token in expected[name]]
    assert values(inputs.input_ids) == flat
    assert inputs.input_ids.dtype == torch.int64
    found = [runner.batch.rows[row].req_id for row in inputs.sample_rows]
    assert set(found) >= {name for name in plan if name in unknown}


def test_change_3_nothing_was_sampled() -> None:
    """A step that computed only chunks leaves a tensor without a token."""
    runner = new_runner()
    seat(runner, "cleo", [30, 31, 32, 33], 2)
    runner.prev_sampled_token_ids = torch.zeros(0, dtype=torch.int64)
    runner.prev_req_id_to_index = {}
    assert runner._prepare_inputs(plan_of({"cleo": 2})).input_ids.tolist() == [32, 33]
    assert runner.batch.token_ids[0, :4].tolist() == [30, 31, 32, 33]
