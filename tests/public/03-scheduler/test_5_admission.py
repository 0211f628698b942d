"""Task 03.5: admit one waiting request, or refuse and change nothing."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.request import RequestStatus

GREETING = list(range(100, 108))
"""Two full blocks that several prompts share."""


def waiting(scheduler: Any, request: Any) -> Any:
    """Make a request known to the scheduler, as add_request does, without a queue."""
    scheduler.requests[request.request_id] = request
    if scheduler.cache_config.enable_prefix_caching:
        request.set_block_hasher(scheduler.kv_cache_manager.block_hasher)
    return request


def test_03_5_an_admitted_request_runs_with_its_whole_table(chat: Any) -> None:
    """Status, `running` and the plan agree, and the plan shows every block."""
    scheduler = chat.scheduler()
    ana, step = waiting(scheduler, chat.request("ana", 6)), chat.step(scheduler)
    expect(scheduler._try_admit(step, ana), True, at="ana, 6 tokens; budget 16, 16 free blocks")
    expect(ana.status, RequestStatus.RUNNING, at="ana is admitted: her status")
    expect(chat.names(scheduler.running), ["ana"], at="ana is admitted: scheduler.running")
    expect(step.num_scheduled_tokens, {"ana": 6}, at="the plan")
    expect(step.new_block_ids, {"ana": [1, 2]}, at="6 tokens in blocks of 4")
    expect(chat.names(step.new), ["ana"], at="requests that the worker has never seen")
    expect(ana.num_computed_tokens, 0, at="_try_admit leaves the advancing to schedule()")
    scheduler = chat.scheduler(max_model_len=8)
    step = chat.step(scheduler)
    scheduler._try_admit(step, waiting(scheduler, chat.request("ben", 8)))
    expect(step.num_scheduled_tokens, {"ben": 8}, at="ben's 8 tokens, max_model_len 8: all of them")


def test_03_5_a_prompt_is_cut_to_threshold_and_budget(chat: Any) -> None:
    """The first chunk obeys the threshold, then what is left of the budget."""
    scheduler = chat.scheduler(budget=10, threshold=6)
    step = chat.step(scheduler)
    for name in ("ana", "ben"):
        scheduler._try_admit(step, waiting(scheduler, chat.request(name, 20)))
    at = "two prompts of 20 tokens; threshold 6, budget 10"
    expect(step.num_scheduled_tokens, {"ana": 6, "ben": 4}, at=at)
    expect(step.token_budget, 0, at=at)


def test_03_5_cached_tokens_cost_no_budget(chat: Any) -> None:
    """What the prefix cache has counts as computed; only the rest is scheduled."""
    scheduler = chat.scheduler(budget=16)
    step = chat.step(scheduler)
    scheduler._try_admit(step, waiting(scheduler, chat.request("ana", [*GREETING, 1, 2])))
    ben = waiting(scheduler, chat.request("ben", [*GREETING, 3]))
    scheduler._try_admit(step, ben)
    at = "ben's prompt shares 8 tokens, two whole blocks, with ana's of the same step"
    expect(step.num_scheduled_tokens, {"ana": 10, "ben": 1}, at=at)
    expect(step.new_block_ids, {"ana": [1, 2, 3], "ben": [1, 2, 4]}, at=f"{at}: block tables")
    expect(ben.num_computed_tokens, 8, at="tokens of ben that are computed")
    expect(ben.num_cached_tokens, 8, at="tokens of ben that the cache supplied")
    stats = scheduler.kv_cache_manager.prefix_cache_stats
    expect((stats.queries, stats.hits), (19, 8), at="statistics: 10 + 9 tokens looked up, 8 found")


def test_03_5_a_full_hit_computes_the_last_block_again(chat: Any) -> None:
    """The logits of the last token are needed, so its block is never taken from the cache."""
    scheduler = chat.scheduler()
    step = chat.step(scheduler)
    for name in ("ana", "ben"):
        scheduler._try_admit(step, waiting(scheduler, chat.request(name, GREETING)))
    at = "ben sends ana's 8 tokens again: two full blocks, both cached"
    expect(step.num_scheduled_tokens, {"ana": 8, "ben": 4}, at=at)


def test_03_5_a_resumed_request_computes_its_output_again(chat: Any) -> None:
    """After preemption everything known has to be computed: prompt and output."""
    scheduler = chat.scheduler(caching=False)
    ana = waiting(scheduler, chat.request("ana", 6))
    ana.append_output_token_ids([7, 8, 9])
    ana.status, ana.num_preemptions, ana.num_cached_tokens = RequestStatus.PREEMPTED, 1, 4
    step = chat.step(scheduler)
    scheduler._try_admit(step, ana)
    at = "ana comes back with 6 prompt and 3 output tokens"
    expect(step.num_scheduled_tokens, {"ana": 9}, at=at)
    expect(chat.names(step.resumed), ["ana"], at=f"{at}: the worker knows her: new, or resumed?")
    expect(ana.num_cached_tokens, 4, at="num_cached_tokens tells of the first admission only")


def test_03_5_without_chunking_a_prompt_runs_whole_or_waits(chat: Any) -> None:
    """enable_chunked_prefill=False: refused if it exceeds what is left of the budget."""
    scheduler = chat.scheduler(chunked=False, budget=8)
    step = chat.step(scheduler)
    step.token_budget = 5
    ana, ben = (waiting(scheduler, chat.request(n, k)) for n, k in (("ana", 6), ("ben", 5)))
    expect(scheduler._try_admit(step, ana), False, at="ana has 6 tokens, 5 are left of the budget")
    expect(scheduler._try_admit(step, ben), True, at="ben has 5 tokens, 5 are left of the budget")


def test_03_5_the_whole_sequence_must_fit(chat: Any) -> None:
    """With scheduler_reserve_full_isl a first chunk is not enough: all blocks must be free now."""
    for reserve, admitted in ((True, False), (False, True)):
        scheduler = chat.scheduler(blocks=6, budget=8, reserve=reserve)
        chat.start(scheduler, chat.request("ben", 8), computed=8)
        ana = waiting(scheduler, chat.request("ana", 20))
        at = f"ana needs 5 blocks, 2 for her first chunk; 4 are free; reserve is {reserve}"
        expect(scheduler._try_admit(chat.step(scheduler), ana), admitted, at=at)


def test_03_5_no_slots_for_drafts_before_the_first_token(chat: Any) -> None:
    """num_lookahead_tokens is for running requests: nothing is guessed before the first token."""
    scheduler = chat.scheduler(lookahead=5)
    step = chat.step(scheduler)
    scheduler._try_admit(step, waiting(scheduler, chat.request("ana", 3)))
    expect(step.new_block_ids, {"ana": [1]}, at="3 tokens in blocks of 4, 5 lookahead tokens")


def test_03_5_a_refusal_changes_nothing(chat: Any) -> None:
    """Refused for want of blocks: no status, no count, no block, no statistics."""
    scheduler = chat.scheduler(blocks=6)
    chat.start(scheduler, chat.request("ben", [*GREETING, 1]), computed=9)
    ana = waiting(scheduler, chat.request("ana", [*GREETING, *range(12)]))
    step, free = chat.step(scheduler), scheduler.kv_cache_manager.num_free_blocks
    at = "ana needs 5 blocks; 2 are cached and in use, 3 are new, 3 are free"
    expect(scheduler._try_admit(step, ana), True, at=at)
    cleo = waiting(scheduler, chat.request("cleo", [*GREETING, 5]))
    queries = scheduler.kv_cache_manager.prefix_cache_stats.queries
    expect(scheduler._try_admit(step, cleo), False, at="cleo needs 1 new block, 0 are free")
    expect(cleo.status, RequestStatus.WAITING, at="cleo is refused")
    expect(cleo.num_computed_tokens, 0, at="cleo is refused, although 8 of her tokens are cached")
    expect(chat.names(scheduler.running), ["ben", "ana"], at="cleo is refused")
    expect(sorted(step.num_scheduled_tokens), ["ana"], at="cleo is refused: the plan")
    expect(chat.table(scheduler, "cleo"), [], at=f"cleo is refused; {free} blocks were free before")
    again = scheduler.kv_cache_manager.prefix_cache_stats.queries
    expect(again, queries, at="the statistics count admitted requests only")
