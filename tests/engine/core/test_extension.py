"""Every hook of a scheduler extension: when the scheduler calls it, and what its answer does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension, overriding
from mini_vllm.core.finish_step import end_hopeless
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.engine.parts.features import make_scheduler as make_with_features
from mini_vllm.policies import POLICIES
from mini_vllm.request import Request
from mini_vllm.request import RequestStatus as S
from tests.engine.core.build import add, ids, make_request, make_scheduler, step


class Diary(SchedulerExtension):
    """Writes down every call, and answers as if it were not there."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def note(self, *entry: Any) -> None:
        self.entries.append(entry)

    def take(self) -> list[tuple[Any, ...]]:
        entries, self.entries = self.entries, []
        return entries

    def request_added(self, request: Request) -> None:
        self.note("added", request.request_id)

    def limit_tokens(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        self.note("limit", request.request_id, num_computed_tokens, num_new_tokens)
        return num_new_tokens

    def may_admit(self, request: Request, running: Sequence[Request]) -> bool:
        self.note("may_admit", request.request_id)
        return True

    def scheduled(self, request: Request, num_new_tokens: int) -> None:
        self.note("scheduled", request.request_id, request.num_computed_tokens, num_new_tokens)

    def preempted(self, request: Request, was_in_plan: bool) -> None:
        self.note("preempted", request.request_id, was_in_plan)

    def batch_inputs(self, output: SchedulerOutput) -> dict[str, Any]:
        self.note("plan", dict(output.num_scheduled_tokens))
        return {}

    def limit_drafts(self, request: Request, token_ids: list[int]) -> list[int]:
        self.note("drafts", request.request_id, list(token_ids))
        return token_ids

    def request_freed(self, request: Request) -> None:
        self.note("freed", request.request_id)


def test_a_request_from_its_arrival_to_its_end() -> None:
    diary = Diary()
    scheduler = make_scheduler(budget=4, extensions=[diary])
    add(scheduler, make_request("a", 6, max_tokens=1))
    step(scheduler)
    assert diary.take() == [
        ("added", "a"), ("may_admit", "a"), ("limit", "a", 0, 4), ("scheduled", "a", 0, 4),
        ("plan", {"a": 4}),
    ]  # fmt: skip
    step(scheduler)
    assert diary.take() == [
        ("limit", "a", 4, 2), ("scheduled", "a", 4, 2), ("plan", {"a": 2}), ("freed", "a"),
    ]  # fmt: skip


def test_request_added_may_block_before_a_queue_is_chosen() -> None:
    class Blocks(SchedulerExtension):
        def request_added(self, request: Request) -> None:
            request.transition_to(S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)

    scheduler = make_scheduler(extensions=[Blocks()])
    add(scheduler, make_request("a", 3))
    assert ids(scheduler.skipped_waiting) == ["a"] and not scheduler.waiting
    assert step(scheduler).num_scheduled_tokens == {}


def test_a_request_without_blocks_is_asked_about_and_not_scheduled() -> None:
    """What is spent in `limit_tokens` would be lost here: commit in `scheduled`."""
    diary = Diary()
    scheduler = make_scheduler(blocks=3, extensions=[diary])
    add(scheduler, make_request("a", 6), make_request("b", 6))
    scheduler.schedule()
    asked = [entry[1] for entry in diary.entries if entry[0] == "limit"]
    given = [entry[1] for entry in diary.entries if entry[0] == "scheduled"]
    assert (asked, given) == (["a", "b"], ["a"])


def test_victims_are_reported_once_and_whether_they_leave_the_plan() -> None:
    """Priority: "a" is in the plan when "b", more urgent, needs its block. "c" is not yet."""
    diary = Diary()
    scheduler = make_scheduler(blocks=7, block_size=1, policy="priority", extensions=[diary])
    a, b, c = (make_request(name, 2, priority=p) for name, p in (("a", 5), ("b", 0), ("c", 9)))
    add(scheduler, b, a, c)
    step(scheduler)
    scheduler.running = [a, b, c]
    diary.take()
    output = scheduler.schedule()
    told = [entry for entry in diary.entries if entry[0] == "preempted"]
    assert [name for _, name, _ in told] == output.preempted_req_ids
    assert ("preempted", "c", False) in told
    first = diary.entries.index(told[0])
    assert all(entry[0] != "plan" for entry in diary.entries[:first])


def test_a_victim_that_was_in_the_plan() -> None:
    diary = Diary()
    scheduler = make_scheduler(blocks=4, block_size=1, policy="priority", extensions=[diary])
    late, urgent = make_request("late", 2, priority=1), make_request("urgent", 1, priority=0)
    add(scheduler, late, urgent)
    step(scheduler)
    scheduler.running = [late, urgent]
    diary.take()
    output = scheduler.schedule()
    assert output.preempted_req_ids == ["late"]
    assert ("scheduled", "late", 2, 1) in diary.entries
    assert [e for e in diary.entries if e[0] == "preempted"] == [("preempted", "late", True)]


def test_a_solution_that_refunds_only_those_in_the_plan_is_helped_out() -> None:
    """Hole 03.4 may ask `_refund` about some victims only: the others are reported after it."""

    class Careful(Scheduler):
        def _schedule_running(self, step: Any) -> None:
            for victim in reversed(list(self.running)):
                self._preempt(victim)
                step.preempted.append(victim)

    diary = Diary()
    config = SchedulerConfig(max_model_len=64)
    scheduler = Careful(config, CacheConfig(block_size=4, num_gpu_blocks=9), [diary])
    add(scheduler, make_request("a", 3))
    step(scheduler)
    diary.take()
    scheduler.schedule()
    assert ("preempted", "a", False) in diary.entries


def test_drafts_are_shortened_by_one_extension_after_the_other() -> None:
    class Most(SchedulerExtension):
        def __init__(self, count: int) -> None:
            self.count = count

        def limit_drafts(self, request: Request, token_ids: list[int]) -> list[int]:
            return token_ids[: self.count]

    diary = Diary()
    scheduler = make_scheduler(extensions=[Most(2), diary, Most(1)])
    add(scheduler, make_request("a", 3))
    step(scheduler)
    scheduler.update_draft_token_ids({"a": [1, 2, 3]})
    assert diary.entries[-1] == ("drafts", "a", [1, 2])
    assert scheduler.requests["a"].spec_token_ids == [1]


def test_a_waiting_request_that_can_never_be_ready_fails_alone() -> None:
    class Broken(SchedulerExtension):
        def request_added(self, request: Request) -> None:
            if request.request_id == "a":
                request.transition_to(S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)

        def failures(self) -> dict[str, str]:
            return {"a": "the grammar does not compile", "gone": "and so on"}

    scheduler = make_scheduler(extensions=[Broken()])
    add(scheduler, make_request("a", 3), make_request("b", 3))
    (output,) = end_hopeless(scheduler)
    assert (output.request_id, output.finish_reason) == ("a", "error")
    assert str(output.failure) == "the grammar does not compile"
    assert step(scheduler).num_scheduled_tokens == {"b": 3}
    scheduler.check_integrity()


def test_the_answers_of_an_extension_that_overrides_nothing() -> None:
    nothing, request = SchedulerExtension(), make_request("a", 3)
    output = make_scheduler().schedule()
    assert nothing.failures() == {} and nothing.step_done(output, ModelRunnerOutput()) == set()
    assert nothing.tokens_accepted("a", [1]) is None and nothing.limit_drafts(request, [1]) == [1]
    assert output.new_token_ids == output.rewound == output.scheduled_encoder_inputs == {}
    assert output.free_encoder_mm_hashes == [] and output.kv_connector_metadata is None


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_scheduler_reports_to_its_extensions(name: str) -> None:
    diary = Diary()
    scheduler = make_with_features(
        SchedulerConfig(max_model_len=64, max_num_batched_tokens=64),
        CacheConfig(block_size=4, num_gpu_blocks=9),
        hash_root=b"root",
        scheduler_cls=POLICIES[name],
        extensions=[diary],
    )
    add(scheduler, make_request("a", 3, max_tokens=2))
    while scheduler.has_unfinished_requests():
        step(scheduler)
    kinds = [entry[0] for entry in diary.entries]
    assert kinds[0] == "added" and kinds[-1] == "freed" and kinds.count("scheduled") == 2


def test_only_extensions_with_something_to_say_are_called() -> None:
    """A hook of each request is not called where nothing was overridden."""

    class Limits(SchedulerExtension):
        def limit_tokens(self, request: Request, num_computed_tokens: int, num_new: int) -> int:
            return num_new

    silent, speaking, patched = SchedulerExtension(), Limits(), SchedulerExtension()
    patched.limit_tokens = lambda *_: 1  # type: ignore[method-assign]
    all_three = [silent, speaking, patched]
    assert overriding(all_three, "limit_tokens") == [speaking, patched]
    assert overriding(all_three, "scheduled") == []
