"""Task 10.10: fill the pipeline before waiting for a result."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.core.scheduler_output import CachedRequestData
from mini_vllm.engine.batch_queue import new_token_ids
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def test_10_10_one_at_a_time(lab: Any) -> None:
    """With room for one, every plan is finished in its own step."""
    engine = lab.Engine([1, 1], depth=1)
    steps = [engine.step() for _ in range(3)]
    expect(steps, ["finish 0", "finish 1", None], at="two plans, room for one")


def test_10_10_filling_comes_first(lab: Any) -> None:
    """Room for three: two steps return at once, the third waits for the oldest."""
    engine = lab.Engine([1] * 4, depth=3)
    expect([engine.step(), engine.step()], [None, None], at="steps 0 and 1")
    expect(engine.step(), "finish 0", at="step 2: the queue is full")
    expect(engine.log, ["submit 0", "submit 1", "submit 2", "finish 0"], at="what was done")


def test_10_10_never_more_than_there_is_room_for(lab: Any) -> None:
    """Each step adds at most one plan, and the queue holds at most as many as there are stages."""
    engine = lab.Engine([1] * 8, depth=3)
    longest = 0
    for _ in range(12):
        engine.step()
        longest = max(longest, len(engine.queue))
    expect(longest <= 3, True, at="the longest queue, room for three", longest=longest)


def test_10_10_a_full_queue_plans_nothing(lab: Any) -> None:
    """The queue is full already: take the oldest out first."""
    engine = lab.Engine([1] * 5, depth=2)
    engine.queue.extendleft([engine.submit(), engine.submit()])
    expect(engine.step(), "finish 0", at="two plans under way, room for two")
    expect(engine.log, ["submit 0", "submit 1", "finish 0"], at="what was done")


def test_10_10_to_the_end(lab: Any) -> None:
    """No requests any more, but two plans are under way."""
    engine = lab.Engine([1, 1], depth=3)
    steps = [engine.step() for _ in range(5)]
    right = [None, None, "finish 0", "finish 1", None]
    expect(steps, right, at="two plans, room for three, then nobody")


def test_10_10_an_answer_that_is_there(lab: Any) -> None:
    """The oldest answer has come: take it, although there is room."""
    engine = lab.Engine([1] * 4, depth=4)
    engine.step()
    engine.answer(0)
    expect(engine.step(), "finish 0", at="step 1: answer 0 is there")
    expect(engine.log, ["submit 0", "submit 1", "finish 0"], at="what was done")


def test_10_10_only_the_oldest_counts(lab: Any) -> None:
    """A newer answer that is there first does not help: order is order."""
    engine = lab.Engine([1] * 4, depth=4)
    engine.step()
    engine.step()
    engine.answer(1)
    expect(engine.step(), None, at="step 2: answer 1 is there, answer 0 is not")


def test_10_10_a_plan_without_tokens(lab: Any) -> None:
    """It goes on its way, for it says which requests ended; and there is nothing to fill with."""
    engine = lab.Engine([1, 0], depth=3)
    steps = [engine.step() for _ in range(3)]
    expect(steps, [None, "finish 0", "finish 1"], at="a plan of 1 token, then one of none")
    expect(engine.log[:3], ["submit 0", "submit 1", "finish 0"], at="what was done")


def with_output(name: str) -> Request:
    """A prompt 1 2 3, and 7 8 sampled."""
    request = Request(name, [1, 2, 3], SamplingParams(max_tokens=9))
    for token in (7, 8):
        request.append_output_token_ids(token)
    return request


def test_10_10_the_tokens_of_a_plan(lab: Any) -> None:
    """As many as are computed, from the first that is not."""
    requests = {name: with_output(name) for name in ("ada", "ben")}
    cached = CachedRequestData(["ada", "ben"], [1, 4], set(), {})
    yours = new_token_ids(lab.plan({"ada": 2, "ben": 1}, cached), requests)
    expect(yours, {"ada": [2, 3], "ben": [8]}, at="1 2 3 7 8: two from the second, one from 8 on")


def test_10_10_a_resumed_request_has_them(lab: Any) -> None:
    """Of a resumed request the plan has all tokens already."""
    requests = {name: with_output(name) for name in ("ada", "ben")}
    cached = CachedRequestData(["ada", "ben"], [0, 4], {"ada"}, {"ada": [1, 2, 3, 7, 8]})
    yours = new_token_ids(lab.plan({"ada": 5, "ben": 1}, cached), requests)
    expect(yours, {"ben": [8]}, at="ada is resumed")
