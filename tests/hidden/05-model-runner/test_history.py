"""Historic bugs of model runners that the other tests of this suite would let pass."""

from __future__ import annotations

from typing import Any

from labkit.process.worker import Program

PLAN = "mini_vllm.core.scheduler_output:"


def plan(p: Program, new: list[Any], finished: set[str]) -> Any:
    """A step with these new requests, one token for each."""
    known = p.new(f"{PLAN}CachedRequestData", [], [], set(), {})
    counts = {f"r{number}": 1 for number in range(len(new))}
    return p.new(
        f"{PLAN}SchedulerOutput", new, known, counts, len(new), {}, {}, [], finished
    )  # fmt: skip


def test_05_5_bug_minivllm_72dd681_a_step_without_tokens(subject: Any) -> None:
    """An empty batch did not come back as others do. Such a step names finished requests."""
    p = Program()
    runner = p.new(
        "mini_vllm.worker.model_runner:ModelRunner",
        None, p.new("unittest.mock:Mock"), 2, 32, 4, p.call("torch:device", "cpu"),
    )  # fmt: skip
    params = p.new("mini_vllm.sampling_params:SamplingParams")
    new = p.new(f"{PLAN}NewRequestData", "r0", [5], params, None, [1], 0)
    runner._update_states(plan(p, [new], set()))
    p.see(p.call("builtins:list", runner.requests))
    result = runner.execute(plan(p, [], {"r0"}))
    p.see(result.sampled_token_ids)
    p.see(runner.requests)
    p.see(runner.batch.req_id_to_row)
    assert subject.run(p) == [["r0"], {}, {}, {}]
