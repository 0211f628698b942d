"""Task 05.5: bring the rows in line with the plan."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.sampling_params import SamplingParams

ANA, BEN = [5, 8, 2, 7, 4, 1], [3, 3, 9]


def started(step: Any, rows: int = 4) -> Any:
    """A runner in which ana and ben have had their first step, and sampled 70 and 80."""
    runner = step.runner(rows)
    new = [step.new("ana", ANA, [1, 2]), step.new("ben", BEN, [3])]
    runner._update_states(step.plan({"ana": 6, "ben": 3}, new))
    for name, token in (("ana", 70), ("ben", 80)):
        row = runner.batch.req_id_to_row[name]
        runner.batch.token_ids[row, runner.batch.num_tokens[row]] = token
        runner.batch.num_tokens[row] += 1
        runner.requests[name].output_token_ids.append(token)
    return runner


def test_05_5_a_new_request_is_remembered_and_gets_a_row(step: Any) -> None:
    """The plan describes it once, in full; no later plan repeats its prompt or its parameters."""
    runner = step.runner()
    params = SamplingParams(temperature=0.7, seed=3)
    ana = step.new("ana", ANA, [4, 9], 4, sampling_params=params, eos_token_id=2, lora_name="acme")
    runner._update_states(step.plan({"ana": 2}, [ana]))
    at = "ana is new: 6 tokens, 4 of them cached, blocks 4 and 9"
    right = {"tokens": ANA, "computed": 4, "blocks": [4, 9]}
    expect(step.show(runner.batch, "ana"), right, at=at)
    state = runner.requests["ana"]
    known = (state.req_id, state.prompt_token_ids, state.sampling_params, state.eos_token_id)
    expect(known, ("ana", ANA, params, 2), at=f"{at}: what is remembered")
    expect(state.lora_name, "acme", at=f"{at}: the adapter that is remembered")
    expect(state.output_token_ids, [], at=f"{at}: her output so far")


def test_05_5_equal_prompts_do_not_share_an_output(step: Any) -> None:
    """Each request has an output list of its own."""
    runner = step.runner()
    new = [step.new("ana", ANA, [1, 2]), step.new("ben", ANA, [1, 2])]
    runner._update_states(step.plan({"ana": 6, "ben": 6}, new))
    runner.requests["ana"].output_token_ids.append(70)
    expect(runner.requests["ben"].output_token_ids, [], at="only ana has sampled: ben's output")


def test_05_5_a_running_request_gets_its_changes(step: Any) -> None:
    """The plan's count, and the new blocks behind the old ones; the tokens are there already."""
    runner = started(step)
    plan = step.plan({"ana": 1, "ben": 1}, computed={"ana": 6, "ben": 3}, blocks={"ben": [8]})
    runner._update_states(plan)
    at = "both decode; ben gets block 8, ana none"
    right = {"tokens": [*ANA, 70], "computed": 6, "blocks": [1, 2]}
    expect(step.show(runner.batch, "ana"), right, at=f"{at}: ana's row")
    right = {"tokens": [*BEN, 80], "computed": 3, "blocks": [3, 8]}
    expect(step.show(runner.batch, "ben"), right, at=f"{at}: ben's row")


def test_05_5_the_count_is_the_plans(step: Any) -> None:
    """It may be less than you would count yourself, so it is taken over and never added up."""
    runner = started(step)
    runner._update_states(step.plan({"ana": 1}, computed={"ana": 6}))
    runner._update_states(step.plan({"ana": 2}, computed={"ana": 5}))
    got = step.show(runner.batch, "ana")["computed"]
    expect(got, 5, at="the plan says 6, then 5: ana's computed tokens")


def test_05_5_a_request_that_is_not_scheduled_keeps_its_row(step: Any) -> None:
    """A running request may miss a step; nothing of it changes."""
    runner = started(step)
    runner._update_states(step.plan({"ana": 1}, computed={"ana": 6}))
    right = {"tokens": [*BEN, 80], "computed": 0, "blocks": [3]}
    expect(step.show(runner.batch, "ben"), right, at="only ana is scheduled: ben's row")


def test_05_5_the_finished_are_forgotten(step: Any) -> None:
    """Row and memory are free; a request that never ran may finish as well."""
    runner = started(step)
    runner._update_states(step.plan({"ben": 1}, computed={"ben": 3}, finished=["ana", "nobody"]))
    expect(step.names(runner.batch), ["ben"], at="ana has finished, and one who never ran: rows")
    expect(sorted(runner.requests), ["ben"], at="who is remembered")


def test_05_5_the_preempted_leave_their_row_and_are_remembered(step: Any) -> None:
    """They come back, and the plan will not say again what they are."""
    runner = started(step)
    runner._update_states(step.plan({"ana": 1}, computed={"ana": 6}, preempted=["ben"]))
    expect(step.names(runner.batch), ["ana"], at="ben is preempted: rows")
    expect(sorted(runner.requests), ["ana", "ben"], at="ben is preempted: who is remembered")
    expect(runner.requests["ben"].output_token_ids, [80], at="ben's output while he waits")


def test_05_5_the_resumed_come_back_with_their_output(step: Any) -> None:
    """A row with prompt and output, the plan's count, and a table that is new as a whole."""
    runner = started(step)
    runner._update_states(step.plan({"ana": 1}, computed={"ana": 6}, preempted=["ben"]))
    plan = step.plan(
        {"ana": 1, "ben": 4},
        computed={"ana": 7, "ben": 0},
        blocks={"ben": [6]},
        resumed=["ben"],
    )
    runner._update_states(plan)
    right = {"tokens": [*BEN, 80], "computed": 0, "blocks": [6]}
    expect(step.show(runner.batch, "ben"), right, at="ben comes back with block 6 instead of 3")


def test_05_5_an_id_can_come_back_as_another_request(step: Any) -> None:
    """ana's request was aborted, and a new one bears the same id, in one plan."""
    runner = started(step)
    plan = step.plan(
        {"ben": 1, "ana": 2}, [step.new("ana", [6, 6], [9])], computed={"ben": 3}, finished=["ana"]
    )
    runner._update_states(plan)
    at = "ana finished, and a new request is called ana"
    right = {"tokens": [6, 6], "computed": 0, "blocks": [9]}
    expect(step.show(runner.batch, "ana"), right, at=at)
    expect(runner.requests["ana"].prompt_token_ids, [6, 6], at=f"{at}: what is remembered")
    expect(sorted(step.names(runner.batch)), ["ana", "ben"], at=f"{at}: rows")


def test_05_5_leaving_requests_make_room_for_new_ones(step: Any) -> None:
    """Two rows, both taken; one request ends, one is preempted, two arrive."""
    runner = started(step, rows=2)
    new = [step.new("cleo", [1], [4]), step.new("dan", [2], [5])]
    plan = step.plan({"cleo": 1, "dan": 1}, new, finished=["ana"], preempted=["ben"])
    runner._update_states(plan)
    at = "2 rows: ana and ben go, cleo and dan come"
    expect(sorted(step.names(runner.batch)), ["cleo", "dan"], at=at)


def test_05_5_rows_are_dense_when_the_step_begins(step: Any) -> None:
    """More go than come: the holes that are left are closed."""
    runner = step.runner()
    new = [step.new(name, [1], [block]) for block, name in enumerate(("ana", "ben", "cleo"), 1)]
    runner._update_states(step.plan({"ana": 1, "ben": 1, "cleo": 1}, new))
    runner._update_states(step.plan({"cleo": 1}, computed={"cleo": 1}, finished=["ana"]))
    expect(step.names(runner.batch), ["cleo", "ben"], at="ana ben cleo; ana goes, none comes")
