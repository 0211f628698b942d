"""Measuring the real engine: the loads are those of its plans, and measuring changes no result."""

from __future__ import annotations

import pytest

from labkit.arena.cost import StepLoad
from labkit.arena.measure import (
    LONGEST_PROMPT,
    MAX_SEQS,
    MOST_TOKENS,
    MovingScheduler,
    Scene,
    Timed,
    draw_scene,
    fit_and_judge,
    make_engine,
    run_scene,
)
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def test_a_scene_is_timed_step_by_step() -> None:
    """A prompt of 20, then one of 30 beside the first one's second token."""
    engine = make_engine(Scheduler)
    steps = run_scene(engine, Scene((20, 30), (3, 2), at_once=1, steps_between=1, seed=0))
    assert [step.load for step in steps] == [
        StepLoad(prefills=1, prefill_tokens=20, prefill_pairs=400),
        StepLoad(prefills=1, prefill_tokens=30, prefill_pairs=900, decodes=1, decode_context=21),
        StepLoad(decodes=2, decode_context=22 + 31),
    ]
    assert all(0 < step.seconds < 5 for step in steps)


def test_blocks_move_and_no_request_notices() -> None:
    tokens = []
    for scheduler_cls in (Scheduler, MovingScheduler):
        engine = make_engine(scheduler_cls)
        moved = 0

        def count(plan: object, *_: object) -> None:
            nonlocal moved
            moved += len(plan.blocks_to_swap_in + plan.blocks_to_copy)  # type: ignore[attr-defined]

        engine.observers.append(count)
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        requests = [Request(f"r{i}", range(10 + i, 60 + 5 * i), params) for i in range(4)]
        for request in requests:
            engine.add_request(request)
        while engine.has_requests():
            engine.step()
        tokens.append([request.output_token_ids for request in requests])
        assert (moved > 0) == (scheduler_cls is MovingScheduler)
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("seed", range(40))
def test_a_scene_fits_the_engine(seed: int) -> None:
    scene = draw_scene(seed)
    assert scene == draw_scene(seed)
    assert 1 <= len(scene.prompts) == len(scene.outputs) <= MAX_SEQS
    assert sum(scene.prompts) <= MOST_TOKENS
    assert min(scene.prompts) >= 4 and max(scene.prompts) <= LONGEST_PROMPT
    assert 1 <= scene.at_once <= len(scene.prompts)


def test_the_error_is_measured_on_scenes_that_were_not_fitted() -> None:
    """The second scene takes twice as long as the first says: an error of one half."""
    loads = [StepLoad(decodes=n, decode_context=100 * n * n) for n in range(1, 30)]
    known = [Timed(load, 0.001 + 0.0004 * load.decodes) for load in loads]
    other = [Timed(step.load, 2 * step.seconds) for step in known]
    facts = fit_and_judge([known, other], repeats=3, seed=0).facts
    assert facts["error_on_held_out_steps"]["median"] == pytest.approx(0.5, abs=0.01)
    assert facts["error_on_held_out_steps"]["steps_fitted"] == 29
