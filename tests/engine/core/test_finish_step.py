"""What follows a forward pass: the order of its five stages, and what an output carries."""

from __future__ import annotations

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.finish_step import end_hopeless, finish_step
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import LogprobsEntry, ModelRunnerOutput, SchedulerOutput
from mini_vllm.errors import RequestFailure
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


class Spy(SchedulerExtension):
    """Throws away, refuses or ends whom it is told to, and writes down what it saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.drop: set[str] = set()
        self.refuse: dict[str, str] = {}
        self.hopeless: dict[str, str] = {}

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:
        self.seen.append("step_done")
        return self.drop

    def tokens_accepted(self, request_id: str, token_ids: list[int]) -> str | None:
        self.seen.append(f"{request_id} {token_ids}")
        return self.refuse.get(request_id)

    def failures(self) -> dict[str, str]:
        return self.hopeless


def scheduler_of(*prompts: int, max_tokens: int = 4) -> tuple[Scheduler, Spy]:
    spy = Spy()
    scheduler = Scheduler(SchedulerConfig(), CacheConfig(block_size=4, num_gpu_blocks=32), [spy])
    for index, length in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        scheduler.add_request(Request(f"r{index}", [10 * index + i for i in range(length)], params))
    return scheduler, spy


def test_an_output_carries_what_a_front_end_needs() -> None:
    scheduler, spy = scheduler_of(3, 5)
    plan = scheduler.schedule()
    entry = LogprobsEntry([7], [-0.5], 1)
    result = ModelRunnerOutput({"r0": [7], "r1": [8]}, logprobs={"r0": [entry]})
    outputs = finish_step(scheduler, plan, result)
    assert [(o.request_id, o.new_token_ids, o.logprobs) for o in outputs] == [
        ("r0", [7], [entry]),
        ("r1", [8], None),
    ]
    assert spy.seen == ["step_done", "r0 [7]", "r1 [8]"]


def test_thrown_away_tokens_are_never_appended() -> None:
    scheduler, spy = scheduler_of(3, 3)
    spy.drop = {"r0"}
    outputs = finish_step(
        scheduler, scheduler.schedule(), ModelRunnerOutput({"r0": [7], "r1": [8]})
    )
    assert [o.request_id for o in outputs] == ["r1"]
    assert scheduler.requests["r0"].num_output_tokens == 0


def test_a_reason_against_tokens_ends_only_their_request() -> None:
    scheduler, spy = scheduler_of(3, 3)
    spy.refuse = {"r0": "the grammar refuses token 7"}
    outputs = finish_step(
        scheduler, scheduler.schedule(), ModelRunnerOutput({"r0": [7], "r1": [8]})
    )
    ended, other = outputs
    assert (ended.finish_reason, ended.stop_reason) == ("error", None)
    assert ended.failure == RequestFailure("the grammar refuses token 7")
    assert other.finish_reason is None and list(scheduler.requests) == ["r1"]
    scheduler.check_integrity()


def test_what_a_stop_rule_has_ended_stays_ended() -> None:
    scheduler, spy = scheduler_of(3, max_tokens=1)
    spy.refuse = {"r0": "too late"}
    (output,) = finish_step(scheduler, scheduler.schedule(), ModelRunnerOutput({"r0": [7]}))
    assert output.finish_reason == "length"


def test_a_stop_cuts_logprobs_with_the_tokens() -> None:
    scheduler, _ = scheduler_of(3, max_tokens=1)
    entries = [LogprobsEntry([7], [-0.5], 1), LogprobsEntry([8], [-0.5], 1)]
    result = ModelRunnerOutput({"r0": [7, 8]}, logprobs={"r0": entries})
    (output,) = finish_step(scheduler, scheduler.schedule(), result)
    assert output.new_token_ids == [7] and output.logprobs == entries[:1]


def test_failed_requests_end_and_others_go_on() -> None:
    scheduler, _ = scheduler_of(3, 3)
    result = ModelRunnerOutput({"r1": [8]}, failed={"r0": "NaN"})
    failed, other = finish_step(scheduler, scheduler.schedule(), result)
    assert (failed.request_id, failed.finish_reason, str(failed.failure)) == ("r0", "error", "NaN")
    assert other.new_token_ids == [8]


def test_counts_come_with_every_output_also_before_the_end() -> None:
    scheduler, _ = scheduler_of(9)
    finish_step(scheduler, scheduler.schedule(), ModelRunnerOutput({"r0": [7]}))
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    scheduler.add_request(Request("again", list(range(9)), params))
    plan = scheduler.schedule()
    outputs = finish_step(scheduler, plan, ModelRunnerOutput({"r0": [7], "again": [7]}))
    assert {o.request_id: o.num_cached_tokens for o in outputs} == {"r0": 0, "again": 8}


def test_hopeless_requests_end_before_the_step() -> None:
    scheduler, spy = scheduler_of(3, 3)
    spy.hopeless = {"r1": "the grammar does not compile", "gone": "?"}
    (output,) = end_hopeless(scheduler)
    assert (output.request_id, str(output.failure)) == ("r1", "the grammar does not compile")
    assert list(scheduler.requests) == ["r0"]
