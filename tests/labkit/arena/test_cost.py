"""The cost model: what is counted, how prices are fitted, and what a broken file says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.arena.cost import (
    DEFAULT,
    CostModel,
    StepLoad,
    fit,
    load_model,
    nonnegative_least_squares,
    relative_errors,
    step_load,
)
from mini_vllm.core.scheduler_output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.sampling_params import SamplingParams

PRICES = (2e-3, 5e-4, 8e-5, 2e-8, 4e-4, 5e-7, 5e-5, 3e-5)


def a_plan() -> SchedulerOutput:
    """A new prompt of which 32 tokens are cached and 10 computed, a chunk of 6 after 20, and two
    decodes after 7 and 99."""
    new = NewRequestData("new", [1] * 42, SamplingParams(), None, [1, 2, 3], 32)
    cached = CachedRequestData(["chunk", "a", "b"], [20, 7, 99], set(), {})
    tokens = {"a": 1, "b": 1, "chunk": 6, "new": 10}
    return SchedulerOutput(
        [new], cached, tokens, 18, {}, {"new": [1, 2, 3]}, [], set(),
        blocks_to_swap_out=[(1, 2)], blocks_to_swap_in=[(3, 4), (5, 6)], blocks_to_copy=[(7, 8)],
    )  # fmt: skip


def test_a_plan_is_counted_by_what_the_worker_is_told() -> None:
    assert step_load(a_plan()) == StepLoad(
        step=1,
        prefills=2,
        prefill_tokens=16,
        prefill_pairs=10 * 42 + 6 * 26,
        decodes=2,
        decode_context=8 + 100,
        swapped_blocks=3,
        copied_blocks=1,
    )


def random_loads(count: int, seed: int = 0) -> list[StepLoad]:
    rng = np.random.default_rng(seed)
    columns = [np.ones(count, int), *(rng.integers(0, high, count) for high in
               (4, 900, 400_000, 60, 20_000, 30, 30))]  # fmt: skip
    return [StepLoad(*map(int, row)) for row in zip(*columns, strict=True)]


def test_fitting_finds_the_prices_that_made_the_times() -> None:
    loads = random_loads(300)
    true = CostModel(PRICES)
    model = fit(loads, [true.seconds(load) for load in loads])
    assert model.prices == pytest.approx(PRICES, rel=2e-3)
    assert relative_errors(model, loads, [true.seconds(load) for load in loads]).max() < 1e-3


def test_no_price_is_negative_even_where_that_would_fit_better() -> None:
    loads = random_loads(300)
    true = CostModel(PRICES)
    discount = [max(true.seconds(load) - 1e-5 * load.swapped_blocks, 1e-4) for load in loads]
    model = fit(
        loads, [t - 6e-5 * load.swapped_blocks for t, load in zip(discount, loads, strict=True)]
    )
    assert min(model.prices) >= 0
    assert model.prices[StepLoad._fields.index("swapped_blocks")] == 0


@given(st.integers(0, 10_000))
def test_nonnegative_least_squares_ends_at_the_optimum(seed: int) -> None:
    """The conditions of Karush, Kuhn and Tucker: no gradient points to something better."""
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(30, 5)), rng.normal(size=30)
    x = nonnegative_least_squares(matrix, target)
    gradient = matrix.T @ (matrix @ x - target)
    assert (x >= 0).all()
    assert (gradient > -1e-5).all()
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-5


def test_a_request_alone_costs_its_prompt_and_a_step_for_each_further_token() -> None:
    model = CostModel((1.0, 10.0, 0.1, 0.001, 0.5, 0.01, 0.0, 0.0))
    steps = [StepLoad(1, 1, 20, 400), *(StepLoad(decodes=1, decode_context=20 + i) for i in (1, 2))]
    assert model.alone(20, 3) == pytest.approx(sum(map(model.seconds, steps)))


def test_a_model_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    model = CostModel(PRICES, {"name": "made up"})
    model.save(path)
    assert load_model(path) == model
    assert load_model(path).name.startswith("made up@")
    assert CostModel((1.0, *PRICES[1:]), model.facts).name != model.name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no cost model"),
        ("[]", "no cost model"),
        ('{"seconds_per": {"step": 1}}', "its prices are step"),
        (json.dumps({"seconds_per": dict.fromkeys(StepLoad._fields, -1)}), "negative"),
        (json.dumps({"seconds_per": dict.fromkeys(StepLoad._fields, 0)}), "costs nothing"),
        (json.dumps({"seconds_per": dict.fromkeys(StepLoad._fields, "x")}), "no cost model"),
    ],
)
def test_a_file_that_is_no_model_is_named_with_what_is_wrong(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="labkit arena fit"):
        load_model(tmp_path / "none.json")


def test_the_committed_model_is_good_enough() -> None:
    """The aim: half of the held-out steps are predicted to within 15 %."""
    facts = load_model(DEFAULT).facts
    assert facts["error_on_held_out_steps"]["median"] <= 0.15
    assert facts["error_on_held_out_steps"]["steps_held_out"] > 200
