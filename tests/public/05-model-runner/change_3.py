"""Change request 3: input ids that only the device knows."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect


def morning(step: Any) -> Any:
    """Three rows: cleo is in the middle of a prompt, ana's and ben's newest tokens are unknown."""
    runner = step.runner()
    step.seat(runner.batch, 0, "cleo", [30, 31, 32, 33], computed=2, blocks=[5])
    step.seat(runner.batch, 1, "ana", [50, 51, -1], computed=2, blocks=[7])
    step.seat(runner.batch, 2, "ben", [40, -1], computed=1, blocks=[6])
    runner.prev_sampled_token_ids = torch.tensor([17, 4])
    runner.prev_req_id_to_index = {"ben": 0, "ana": 1}
    return runner


def test_change_3_unknown_tokens_are_looked_up_by_name(step: Any) -> None:
    """ana and ben get what was sampled for them; cleo's prompt stays."""
    plan = step.plan({"ana": 1, "ben": 1, "cleo": 2})
    yours = morning(step)._prepare_inputs(plan).input_ids.tolist()
    expect(yours, [4, 17, 32, 33], at="sampled: ben 17, ana 4; the plan: ana 1, ben 1, cleo 2")


def test_change_3_a_request_may_pause(step: Any) -> None:
    """ben is not in this step."""
    yours = morning(step)._prepare_inputs(step.plan({"cleo": 2, "ana": 1})).input_ids.tolist()
    expect(yours, [4, 32, 33], at="sampled: ben 17, ana 4; the plan: cleo 2, ana 1")


def test_change_3_the_first_step_has_no_step_before(step: Any) -> None:
    """All tokens are known, and nothing was sampled."""
    runner = morning(step)
    runner.prev_sampled_token_ids, runner.prev_req_id_to_index = None, {}
    yours = runner._prepare_inputs(step.plan({"cleo": 2})).input_ids.tolist()
    expect(yours, [32, 33], at="the plan: cleo 2; no step before")
