"""Task 03.8: what the forward pass has sampled comes in. Then the whole scheduler against vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from labkit.trace import golden
from labkit.trace.runner import ReferenceSubject, replay
from mini_vllm.request import RequestStatus

EOS = 2


def planned(chat: Any, *requests: Any, **config: Any) -> Any:
    """A scheduler and the plan of the step that admits these requests."""
    scheduler = chat.scheduler(**config)
    for request in requests:
        scheduler.add_request(request)
    return scheduler, scheduler.schedule()


def test_03_8_every_request_gets_its_token(chat: Any) -> None:
    """One output per request, in the order of the plan; the count does not advance again."""
    ana, ben = chat.request("ana", 5), chat.request("ben", 3)
    scheduler, plan = planned(chat, ana, ben)
    outputs = scheduler.update_from_output(plan, {"ben": [21], "ana": [11]})
    at = "ana (5 tokens) and ben (3) were scheduled whole; 11 and 21 were sampled"
    yours = [(output.request_id, output.new_token_ids) for output in outputs]
    expect(yours, [("ana", [11]), ("ben", [21])], at=at)
    expect((ana.output_token_ids, ben.output_token_ids), ([11], [21]), at=at)
    expect(ana.num_computed_tokens, 5, at="ana: schedule() counted her 5 tokens already")
    expect([o.finish_reason for o in outputs], [None, None], at="no request has finished")


def test_03_8_half_a_prompt_has_no_token(chat: Any) -> None:
    """Nothing was sampled for a chunk: no token, no output, no mistake."""
    ana, ben = chat.request("ana", 12), chat.request("ben", 9)
    scheduler, plan = planned(chat, ana, ben, budget=16)
    outputs = scheduler.update_from_output(plan, {"ana": [11], "ben": []})
    at = "budget 16: ana's 12 tokens are computed, 4 of ben's 9; nothing was sampled for ben"
    expect([o.request_id for o in outputs], ["ana"], at=at)
    expect(ben.output_token_ids, [], at=at)
    outputs = scheduler.update_from_output(plan, {"ana": [12]})
    expect([o.request_id for o in outputs], ["ana"], at="ben may be missing from the results, too")


def test_03_8_a_finished_request_leaves_nothing_behind(chat: Any) -> None:
    """Its blocks are free, it is in no queue, and the next plan tells the worker."""
    ana, ben = chat.request("ana", 5, eos=EOS), chat.request("ben", 3)
    scheduler, plan = planned(chat, ana, ben)
    outputs = scheduler.update_from_output(plan, {"ana": [EOS], "ben": [21]})
    at = "ana samples EOS, ben goes on"
    expect([o.finish_reason for o in outputs], ["stop", None], at=f"{at}: why did they finish?")
    expect(ana.status, RequestStatus.FINISHED_STOPPED, at=at)
    expect(chat.names(scheduler.running), ["ben"], at=at)
    expect(scheduler.kv_cache_manager.num_free_blocks, 15, at=f"{at}: ben holds 1 of 16 blocks")
    expect(sorted(scheduler.requests), ["ben"], at=f"{at}: unfinished requests")
    expect(scheduler.schedule().finished_req_ids, {"ana"}, at="the next plan tells the worker")


def test_03_8_the_client_is_told_which_stop_token(chat: Any) -> None:
    """finish_reason and stop_reason travel with the last token; later tokens are cut."""
    ana = chat.request("ana", 5, stop_token_ids=[50])
    scheduler, plan = planned(chat, ana)
    output = scheduler.update_from_output(plan, {"ana": [50]})[0]
    yours = (output.new_token_ids, output.finish_reason, output.stop_reason)
    expect(yours, ([50], "stop", 50), at="ana samples her stop token 50")


def test_03_8_a_request_aborted_during_the_step_is_skipped(chat: Any) -> None:
    """A client hangs up while the step runs: its tokens fall on the floor."""
    ana, ben = chat.request("ana", 5), chat.request("ben", 3)
    scheduler, plan = planned(chat, ana, ben)
    scheduler.finish_requests("ana", RequestStatus.FINISHED_ABORTED)
    outputs = scheduler.update_from_output(plan, {"ana": [11], "ben": [21]})
    at = "ana was aborted between schedule() and the update"
    expect([o.request_id for o in outputs], ["ben"], at=at)
    expect(ana.output_token_ids, [], at=at)


def test_03_8_rejected_drafts_are_taken_back(chat: Any) -> None:
    """With k drafts and s sampled tokens, k + 1 - s of the counted tokens are void."""
    for sampled, computed in (([11], 5), ([11, 12], 6), ([11, 12, 13, 14], 8)):
        scheduler = chat.scheduler()
        ana = chat.start(scheduler, chat.request("ana", 4), computed=4, output=1)
        ana.spec_token_ids = [11, 12, 13]
        plan = scheduler.schedule()
        expect(ana.num_computed_tokens, 8, at="1 token and 3 drafts are scheduled after 4 tokens")
        scheduler.update_from_output(plan, {"ana": list(sampled)})
        at = f"3 drafts were verified, the model answers {sampled}: computed tokens of ana"
        expect(ana.num_computed_tokens, computed, at=at)


def test_03_8_a_request_that_outgrew_the_pool_is_reported(chat: Any) -> None:
    """A request that ended inside schedule() still owes its client a last word."""
    scheduler, plan = planned(chat, chat.request("ana", 20), chat.request("ben", 3), blocks=4)
    outputs = scheduler.update_from_output(plan, {"ben": [21]})
    yours = [(o.request_id, o.new_token_ids, o.finish_reason, o.stop_reason) for o in outputs]
    expected = [("ben", [21], None, None), ("ana", [], "length", "kv_capacity")]
    expect(yours, expected, at="16 slots in all; ana's 20 tokens never fit, ben's 3 do")
    again = scheduler.update_from_output(scheduler.schedule(), {"ben": [22]})
    expect([o.request_id for o in again], ["ben"], at="the step after: ana is told only once")


GOLDENS = ("mixed-8", "pressure-0", "priority-2", "stop-13", "abort-3", "threshold-7")


@pytest.mark.parametrize("name", GOLDENS)
def test_03_8_real_vllm_decides_the_same(name: str) -> None:
    """A recording of vLLM's own scheduler, replayed on yours: the same decisions, step by step."""
    profile, seed = name.rsplit("-", 1)
    recorded = next(g for g in golden.load(profile) if g.seed == int(seed))
    before: dict[str, Any] = {"running": [], "waiting": [], "computed": {}, "free_blocks": "all"}
    mine = replay(recorded.trace, ReferenceSubject(recorded.trace.config))
    for step, vllm in enumerate(recorded.lines):
        yours = next(mine, None)
        assert yours is not None, f"recording {name}: vLLM makes a step {step}, yours has ended"
        for field, expected in vllm.items():
            at = f"recording {name}, step {step}: {field}"
            state = {f"{key} before": value for key, value in before.items()}
            expect(yours[field], expected, at=at, **state)
        before = {key: vllm[key] for key in before}
    assert next(mine, None) is None, f"recording {name}: vLLM is done, yours makes more steps"
