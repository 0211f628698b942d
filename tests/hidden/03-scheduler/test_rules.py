"""Single rules, as calls that both sides make and whose results must be equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(
    max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def config(p: Program, **values: Any) -> Any:
    defaults = {"max_num_batched_tokens": 16, "max_num_seqs": 4, "max_model_len": 64}
    return p.new("mini_vllm.config:SchedulerConfig", **(defaults | values))


def scheduler(
    p: Program, blocks: int = 16, block_size: int = 4, extensions: Sequence[Any] = (), **values: Any
) -> Any:
    """A scheduler with so many usable blocks."""
    cache = p.new("mini_vllm.config:CacheConfig", block_size, blocks + 1)
    return p.new(
        "mini_vllm.core.scheduler:Scheduler",
        config(p, **values),
        cache,
        list(extensions),
        hash_root=b"root",
    )


def request(p: Program, name: str, prompt: Any, priority: int = 0, **params: Any) -> Any:
    """A request; a prompt given as a number is that many tokens that nobody else has."""
    if isinstance(prompt, int):
        prompt = [sum(name.encode()) * 1000 + i for i in range(prompt)]
    eos = params.pop("eos", None)
    arrival = params.pop("arrival", 0.0)
    sampling = p.new("mini_vllm.sampling_params:SamplingParams", temperature=0.0, **params)
    return p.new("mini_vllm.request:Request", name, prompt, sampling, priority, arrival, eos)


def extension(p: Program, limits: Sequence[int] | None = None) -> Any:
    """A feature that is always ready, admits everybody, and answers `limits` one after the other
    when it is asked how many tokens it allows."""

    behaviour: dict[str, dict[str, Any]] = {
        "is_ready": {"return_value": True},
        "may_admit": {"return_value": True},
        "limit_tokens": {"side_effect": list(limits or ())},
    }
    made = p.new("mini_vllm.core.extension:SchedulerExtension")
    for name, answers in behaviour.items():
        p.call("builtins:setattr", made, name, p.new("unittest.mock:Mock", **answers))
    return made


def see_plan(p: Program, s: Any) -> Any:
    """One schedule() and all that can be seen of it."""
    out = s.schedule()
    p.see(out.num_scheduled_tokens)
    p.see(out.new_block_ids)
    p.see(out.preempted_req_ids)
    p.see(out.scheduled_spec_decode_tokens)
    p.see_each(s.running, "request_id")
    p.see_each(s.running, "num_computed_tokens")
    p.see_each(s.waiting, "request_id")
    p.see(s.kv_cache_manager.num_free_blocks)
    return out


def see_outputs(p: Program, outputs: Any) -> None:
    """What an update hands to the clients."""
    for attribute in ("request_id", "new_token_ids", "finish_reason", "stop_reason"):
        p.see_each(outputs, attribute)


def same(subject: Any, reference: Any, p: Program) -> None:
    yours, theirs = subject.run(p), reference.run(p)
    assert not any(isinstance(value, dict) and "!raises" in value for value in theirs), theirs
    assert yours == theirs


# ------------------------------------------------------------------ 03.1 to 03.3


@pytest.mark.parametrize("kind", ["FCFSRequestQueue", "PriorityRequestQueue"])
@many
@given(data=st.data())
def test_03_1_any_sequence_of_calls(subject: Any, reference: Any, kind: str, data: Any) -> None:
    """Random arrivals, prepends, removals and pops; iterating is looked at after each."""
    p = Program()
    queue = p.new(f"mini_vllm.core.request_queue:{kind}")
    small = st.integers(0, 3)
    requests = [
        request(p, f"r{i}", 2, data.draw(small), arrival=float(data.draw(small))) for i in range(12)
    ]
    todo, size = list(range(12)), 0
    for _ in range(data.draw(st.integers(1, 15))):
        action = data.draw(st.sampled_from(["add", "prepend", "several", "remove", "pop"]))
        if action in ("add", "prepend") and todo:
            (queue.add_request if action == "add" else queue.prepend_request)(requests[todo.pop(0)])
            size += 1
        elif action == "several" and len(todo) > 2:
            queue.prepend_requests([requests[todo.pop(0)] for _ in range(3)])
            size += 3
        elif action == "remove":
            gone = [requests[i] for i in data.draw(st.sets(st.integers(0, 11)))]
            queue.remove_requests(p.call("builtins:iter", gone))
            size = -99  # unknown: no further pop
        elif action == "pop" and size > 0:
            p.see(queue.pop_request().request_id)
            size -= 1
        p.see_each(queue, "request_id")
    same(subject, reference, p)


@many
@given(
    wanted=st.integers(0, 80),
    computed=st.one_of(st.integers(0, 70), st.integers(61, 66)),
    budget=st.integers(1, 40),
    threshold=st.integers(0, 12),
)
def test_03_2_any_numbers(
    subject: Any, reference: Any, wanted: int, computed: int, budget: int, threshold: int
) -> None:
    """The clamp over a grid of wants, counts, budgets and thresholds."""
    p = Program()
    s = scheduler(p, long_prefill_token_threshold=threshold)
    p.see(s._clamp_new_tokens(wanted, computed, budget))
    same(subject, reference, p)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_03_3_victims_of_every_kind(subject: Any, reference: Any, policy: str) -> None:
    """Four are admitted in four steps, then they are preempted one by one, in the order that the
    policy says. Priorities may be negative."""
    for most_urgent in (1, -5):
        p = Program()
        s = scheduler(p, policy=policy)
        for name, behind, arrival in (("a", 0, 0.0), ("b", 2, 1.0), ("c", 2, 2.0), ("d", 1, 3.0)):
            s.add_request(request(p, name, 3, most_urgent + behind, arrival=arrival))
            s.schedule()
        for _ in range(4):
            victim = s._pick_victim()
            p.see(victim.request_id)
            s._preempt(victim)
            p.see(victim.num_computed_tokens)
            p.see(victim.num_preemptions)
            p.see(s.kv_cache_manager.num_free_blocks)
            p.see_each(s.waiting, "request_id")
        same(subject, reference, p)


@many
@given(data=st.data())
def test_03_3_any_victims(subject: Any, reference: Any, data: Any) -> None:
    """Requests of any priority run; some are preempted by hand, some as the policy says. Who is
    next, who waits in which order, and which blocks are free?"""
    p = Program()
    s = scheduler(p, blocks=40, policy=data.draw(st.sampled_from(["fcfs", "priority"])))
    names = data.draw(st.lists(st.text("abc", min_size=1), min_size=1, max_size=4, unique=True))
    for name in names:
        priority, arrival = data.draw(st.integers(-3, 3)), data.draw(st.integers(0, 3))
        length = data.draw(st.integers(1, 9))
        s.add_request(request(p, name, length, priority, arrival=float(arrival)))
        s.schedule()
    for left in range(len(names), data.draw(st.integers(0, len(names) - 1)), -1):
        if data.draw(st.booleans()):
            victim = s._pick_victim()
        else:
            row = data.draw(st.integers(0, left - 1))
            victim = p.call("operator:getitem", s.running, row)
        p.see(victim.request_id)
        s._preempt(victim)
        for attribute in ("num_computed_tokens", "num_preemptions", "spec_token_ids"):
            p.see(getattr(victim, attribute))
        p.see(victim.status.name)
        p.see(s.kv_cache_manager.num_free_blocks)
        p.see_each(s.running, "request_id")
        p.see_each(s.waiting, "request_id")
    same(subject, reference, p)


def test_03_3_of_equals_the_first_goes(subject: Any) -> None:
    """The names of three equals are in another order than the three."""
    p = Program()
    s = scheduler(p, policy="priority")
    for name, priority in (("a", 0), ("m", 2), ("z", 2), ("k", 2)):
        s.add_request(request(p, name, 3, priority, arrival=5.0))
        s.schedule()
    for _ in range(4):
        victim = s._pick_victim()
        p.see(victim.request_id)
        s._preempt(victim)
    assert subject.run(p) == ["m", "z", "k", "a"]


def test_03_3_what_the_cache_supplied_stays_noted(subject: Any) -> None:
    """ "b" found 8 tokens of "a". That it is preempted later does not change what it was spared."""
    p = Program()
    s = scheduler(p, max_num_batched_tokens=32)
    a, b = (request(p, name, [*range(8), own]) for name, own in (("a", 91), ("b", 92)))
    s.add_request(a)
    s.update_from_output(s.schedule(), {"a": [7]})
    s.add_request(b)
    s.update_from_output(s.schedule(), {"a": [7], "b": [7]})
    s._preempt(b)
    for attribute in ("num_cached_tokens", "num_computed_tokens", "num_preemptions"):
        p.see(getattr(b, attribute))
    assert subject.run(p) == [8, 0, 1]


def test_03_3_bug_vllm_31876_drafts_do_not_survive(subject: Any, reference: Any) -> None:
    """A victim that kept its drafts had them verified at the wrong place on its return."""
    p = Program()
    s = scheduler(p)
    a = request(p, "a", 6)
    s.add_request(a)
    s.update_from_output(s.schedule(), {"a": [7]})
    s.update_draft_token_ids({"a": [1, 2]})
    s._preempt(a)
    p.see(a.spec_token_ids)
    p.see(a.status.name)
    see_plan(p, s)
    p.see(a.num_cached_tokens)
    same(subject, reference, p)


# ------------------------------------------------------------------ 03.4 the running pass


def test_03_4_drafts_are_computed_too(subject: Any, reference: Any) -> None:
    """A running request with drafts wants them scheduled, as far as the budget goes."""
    for budget in (16, 3):
        p = Program()
        s = scheduler(p, max_num_batched_tokens=budget)
        s.add_request(request(p, "a", 3))
        s.update_from_output(see_plan(p, s), {"a": [7]})
        s.update_draft_token_ids({"a": [1, 2, 3]})
        see_plan(p, s)
        same(subject, reference, p)


def test_03_4_lookahead_slots(subject: Any, reference: Any) -> None:
    """num_lookahead_tokens asks for blocks beyond the scheduled tokens."""
    p = Program()
    s = scheduler(p, num_lookahead_tokens=5)
    s.add_request(request(p, "a", 3))
    s.update_from_output(see_plan(p, s), {"a": [7]})
    see_plan(p, s)
    same(subject, reference, p)


def test_03_4_extensions_limit_running_requests(subject: Any, reference: Any) -> None:
    """An extension allows 4 tokens of a chunk, then none, then 2."""
    p = Program()
    s = scheduler(p, extensions=[extension(p, [4, 4, 0, 1, 2, 1])])
    s.add_request(request(p, "a", 12))
    s.add_request(request(p, "b", 6))
    for _ in range(3):
        see_plan(p, s)
    same(subject, reference, p)


def test_03_4_unwritten_blocks_leave_the_prefix_cache(subject: Any, reference: Any) -> None:
    """ "a" is planned, then preempted for "b" in the same step; a later "c" must not find blocks
    that nobody has filled."""
    p = Program()
    limited = extension(p, [2, 1, 2, 3, 6])
    s = scheduler(p, blocks=7, block_size=1, policy="priority", extensions=[limited])
    prompt = list(range(100, 106))
    a = request(p, "a", prompt)
    s.add_request(a)
    s.add_request(request(p, "b", 1, arrival=1.0))
    s.update_from_output(see_plan(p, s), {"b": [7]})
    p.set(a, "priority", 9)
    s.update_draft_token_ids({"b": [1, 2]})
    out = see_plan(p, s)
    p.see(out.preempted_req_ids)
    s.update_from_output(out, {"b": [8]})
    c = request(p, "c", prompt)
    c.set_block_hasher(s.kv_cache_manager.block_hasher)
    p.see(s.kv_cache_manager.get_computed_blocks(c)[1])
    same(subject, reference, p)


@many
@given(data=st.data())
def test_03_4_any_pressure(subject: Any, reference: Any, data: Any) -> None:
    """Requests with drafts outgrow a small pool: whose tokens, whose blocks, and who must go?"""
    p = Program()
    s = scheduler(
        p,
        blocks=data.draw(st.integers(4, 12)),
        max_num_batched_tokens=data.draw(st.integers(4, 16)),
        policy=data.draw(st.sampled_from(["fcfs", "priority"])),
        long_prefill_token_threshold=data.draw(st.sampled_from([0, 0, 3])),
        num_lookahead_tokens=data.draw(st.sampled_from([0, 0, 2])),
        uncache_refunded_blocks=data.draw(st.booleans()),
    )
    names = [f"r{data.draw(st.integers(0, 999))}-{i}" for i in range(data.draw(st.integers(2, 4)))]
    for number, name in enumerate(names):
        length, priority = data.draw(st.integers(1, 10)), data.draw(st.integers(0, 2))
        s.add_request(request(p, name, length, priority, arrival=float(number), max_tokens=12))
    for _ in range(data.draw(st.integers(2, 7))):
        out = see_plan(p, s)
        p.see(out.scheduled_cached_reqs.req_ids)
        p.see(out.scheduled_cached_reqs.num_computed_tokens)
        s.update_from_output(out, {name: [7] for name in names})
        drafts = st.lists(st.integers(0, 9), max_size=3)
        s.update_draft_token_ids({name: data.draw(drafts) for name in names})
    same(subject, reference, p)


def test_03_4_bug_vllm_14915_steps_planned_ahead(subject: Any, reference: Any) -> None:
    """Counting in the update broke the chunks of a prompt whose steps are planned ahead."""
    p = Program()
    s = scheduler(p, max_num_batched_tokens=5)
    s.add_request(request(p, "a", 13))
    plans = [see_plan(p, s) for _ in range(3)]
    for plan in plans[:2]:
        s.update_from_output(plan, {})
    s.update_from_output(plans[2], {"a": [7]})
    see_plan(p, s)
    same(subject, reference, p)


def test_03_4_bug_vllm_35541_outgrowing_the_pool(subject: Any, reference: Any) -> None:
    """A request that no pool could hold any more ends; nobody else pays for it."""
    p = Program()
    s = scheduler(p, blocks=3)
    requests = [request(p, name, n, max_tokens=40) for name, n in (("a", 6), ("b", 3))]
    for r in requests:
        s.add_request(r)
    for _ in range(12):
        out = see_plan(p, s)
        see_outputs(p, s.update_from_output(out, {"a": [7], "b": [8]}))
        p.see(out.finished_req_ids)
    for r in requests:
        p.see(r.status.name)
        p.see(r.num_output_tokens)
    same(subject, reference, p)


# ------------------------------------------------------------------ 03.5 and 03.6


def test_03_5_extensions_limit_admission(subject: Any, reference: Any) -> None:
    """An extension allows 3 tokens of a prompt; nothing of the next, which then waits."""
    p = Program()
    s = scheduler(p, extensions=[extension(p, [3, 0])])
    s.add_request(request(p, "a", 8))
    s.add_request(request(p, "b", 2))
    see_plan(p, s)
    same(subject, reference, p)


def test_03_5_a_prompt_of_the_models_whole_length(subject: Any, reference: Any) -> None:
    """Handed straight to the scheduler it is computed whole and yields one token."""
    p = Program()
    s = scheduler(p, max_model_len=8)
    a = request(p, "a", 8)
    s.add_request(a)
    s.update_from_output(see_plan(p, s), {"a": [7]})
    p.see(a.num_tokens)
    p.see(a.status.name)
    same(subject, reference, p)


@many
@given(data=st.data())
def test_03_5_any_prompts_at_once(subject: Any, reference: Any, data: Any) -> None:
    """Prompts with common heads, a small pool, every switch: two steps of admissions."""
    p = Program()
    s = scheduler(
        p,
        blocks=data.draw(st.integers(4, 20)),
        max_num_batched_tokens=data.draw(st.integers(4, 30)),
        long_prefill_token_threshold=data.draw(st.sampled_from([0, 0, 3, 6])),
        enable_chunked_prefill=data.draw(st.booleans()),
        scheduler_reserve_full_isl=data.draw(st.booleans()),
    )
    for name in "abcd":
        shared, own = data.draw(st.integers(0, 12)), data.draw(st.integers(1, 4))
        prompt = [*range(100, 100 + shared), *(ord(name) * 1000 + i for i in range(own))]
        s.add_request(request(p, name, prompt))
    see_plan(p, s)
    p.see(s.kv_cache_manager.prefix_cache_stats.queries)
    p.see(s.kv_cache_manager.prefix_cache_stats.hits)
    yours, theirs = subject.run(p), reference.run(p)
    assert yours == theirs


def test_03_5_the_answer_is_yes_or_no(subject: Any) -> None:
    """False for a prompt that is too long for the budget, one that an extension gives nothing, and
    one without blocks; True for one that is admitted."""
    for values, limits, length in (
        ({"enable_chunked_prefill": False}, [], 20),
        ({}, [0], 3),
        ({"max_num_batched_tokens": 64}, [40], 40),
        ({}, [3], 3),
    ):
        p = Program()
        s = scheduler(p, blocks=4, extensions=[extension(p, limits)], **values)
        r = request(p, "a", length)
        s.add_request(r)
        step = p.new("mini_vllm.core.step_plan:StepPlan", s.scheduler_config.max_num_batched_tokens)
        p.see(s._try_admit(step, r))
        p.see(r.status.name)
        right = [True, "RUNNING"] if limits == [3] else [False, "WAITING"]
        assert subject.run(p) == right, f"{length} tokens, {values}, the extension allows {limits}"


def test_03_5_what_the_cache_supplied_is_noted_once(subject: Any) -> None:
    """ "b" finds 8 tokens of "a". When it comes back after a preemption it finds 12 of its own, and
    they do not count."""
    p = Program()
    s = scheduler(p, max_num_batched_tokens=32)
    a, b = (request(p, name, [*range(8), own]) for name, own in (("a", 91), ("b", 92)))
    s.add_request(a)
    s.update_from_output(s.schedule(), {"a": [7]})
    s.add_request(b)
    for _ in range(5):
        s.update_from_output(s.schedule(), {"a": [7], "b": [7]})
    s._preempt(b)
    p.see(s.schedule().num_scheduled_tokens["b"])
    p.see(b.num_tokens)
    for r in (a, b):
        p.see(r.num_cached_tokens)
    assert subject.run(p) == [2, 14, 0, 8]


def test_03_5_a_return_is_no_first_admission(subject: Any) -> None:
    """ "a" found nothing when it came. Preempted and back, it finds 12 tokens of its own: they are
    hits of the cache, looked up for all of its tokens, but not what it was spared."""
    p = Program()
    s = scheduler(p, max_num_batched_tokens=32)
    a = request(p, "a", 9)
    s.add_request(a)
    for _ in range(5):
        s.update_from_output(s.schedule(), {"a": [7]})
    s._preempt(a)
    p.see(s.schedule().num_scheduled_tokens)
    p.see(a.num_cached_tokens)
    stats = s.kv_cache_manager.prefix_cache_stats
    for count in ("requests", "queries", "hits"):
        p.see(getattr(stats, count))
    assert subject.run(p) == [{"a": 2}, 0, 2, 9 + 14, 12]


@many
@given(data=st.data())
def test_03_6_any_line(subject: Any, reference: Any, data: Any) -> None:
    """A line of any length, order and size, some of it blocked until a step of its own: who is
    admitted, who waits where, and who ends because no pool could hold it?"""
    p = Program()
    feature = p.new("mini_vllm.core.extension:SchedulerExtension")
    s = scheduler(
        p,
        blocks=data.draw(st.integers(3, 8)),
        max_num_batched_tokens=data.draw(st.integers(4, 20)),
        max_num_seqs=data.draw(st.integers(1, 4)),
        policy=data.draw(st.sampled_from(["fcfs", "priority"])),
        extensions=[feature],
    )
    blocked = p.name("mini_vllm.request:RequestStatus.WAITING_FOR_REMOTE_KVS")
    names = [f"r{data.draw(st.integers(0, 999))}-{i}" for i in range(data.draw(st.integers(1, 6)))]
    for number, name in enumerate(names):
        length, priority = data.draw(st.integers(1, 14)), data.draw(st.integers(0, 2))
        r = request(p, name, length, priority, arrival=float(number), max_tokens=2)
        if data.draw(st.integers(0, 2)) == 0:
            r.transition_to(blocked)
        s.add_request(r)
    for _ in range(data.draw(st.integers(1, 5))):
        ready = data.draw(st.booleans())
        p.set(feature, "is_ready", p.new("unittest.mock:Mock", return_value=ready))
        out = see_plan(p, s)
        p.see_each(s.skipped_waiting, "request_id")
        see_outputs(p, s.update_from_output(out, {name: [7] for name in names}))
    same(subject, reference, p)


def test_03_6_nobody_has_a_turn_when_the_budget_is_spent(subject: Any, reference: Any) -> None:
    """ "a" takes all tokens of the step. "b", which no pool could hold, ends when it is asked, and
    that is not now."""
    p = Program()
    s = scheduler(p, blocks=3, max_num_batched_tokens=5)
    s.add_request(request(p, "a", 9))
    s.add_request(request(p, "b", 20))
    for _ in range(2):
        out = see_plan(p, s)
        see_outputs(p, s.update_from_output(out, {"a": []}))
    right = reference.run(p)
    assert "b" in right[6] and "b" not in right[-6]
    assert subject.run(p) == right


@pytest.mark.parametrize(("skipped", "first"), [(0, "a"), (1, "b"), (2, "b")])
def test_03_6_the_smaller_head_has_its_turn(subject: Any, skipped: int, first: str) -> None:
    """Under "priority" having been skipped helps nobody: "a" was blocked, "b" has priority 1."""
    p = Program()
    s = scheduler(p, max_num_seqs=1, policy="priority", extensions=[extension(p, [2])])
    a = request(p, "a", 2, skipped, arrival=1.0)
    a.transition_to(p.name("mini_vllm.request:RequestStatus.WAITING_FOR_REMOTE_KVS"))
    s.add_request(a)
    s.add_request(request(p, "b", 2, 1, arrival=0.0))
    p.see(s.schedule().num_scheduled_tokens)
    assert subject.run(p) == [{first: 2}]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_03_6_skipped_requests_have_their_turn(subject: Any, reference: Any, policy: str) -> None:
    """ "a" and "c" were blocked and are ready now; one row; who is admitted, step by step?"""
    p = Program()
    s = scheduler(p, max_num_seqs=1, policy=policy, extensions=[extension(p, [2, 2, 2, 2])])
    blocked = p.name("mini_vllm.request:RequestStatus.WAITING_FOR_REMOTE_KVS")
    for name, priority in (("a", 3), ("b", 1), ("c", 2), ("d", 0)):
        r = request(p, name, 2, priority, max_tokens=1)
        if name in "ac":
            r.transition_to(blocked)
        s.add_request(r)
    for _ in range(4):
        out = see_plan(p, s)
        s.update_from_output(out, {name: [7] for name in "abcd"})
        p.see_each(s.skipped_waiting, "request_id")
    same(subject, reference, p)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("ready", [[False, True] * 6, [False, False, True] * 4])
def test_03_6_blocked_requests_wait_beside_the_line(
    subject: Any, reference: Any, rows: int, ready: list[bool]
) -> None:
    """ "a", "b" and "c" are not ready at once; "d" is never blocked; nobody is lost."""
    p = Program()
    feature = extension(p, [2] * 12)
    p.set(feature, "is_ready", p.new("unittest.mock:Mock", side_effect=ready))
    s = scheduler(p, max_num_seqs=rows, extensions=[feature])
    blocked = p.name("mini_vllm.request:RequestStatus.WAITING_FOR_REMOTE_KVS")
    for name in "abcd":
        r = request(p, name, 2, max_tokens=1)
        if name in "abc":
            r.transition_to(blocked)
        s.add_request(r)
    for _ in range(3):
        out = see_plan(p, s)
        s.update_from_output(out, {name: [7] for name in "abcd"})
        p.see_each(s.skipped_waiting, "request_id")
    same(subject, reference, p)


def test_03_6_bug_nano_vllm_the_rows_bound_all_who_run(subject: Any, reference: Any) -> None:
    """The limit was asked of the newcomers of a step only, so that ten ran in two rows. "a" and "b"
    run, "c" waits; it comes when "a" has ended."""
    p = Program()
    s = scheduler(p, max_num_seqs=2)
    for name, limit in (("a", 3), ("b", 9), ("c", 9)):
        s.add_request(request(p, name, 2, max_tokens=limit))
    for _ in range(4):
        out = see_plan(p, s)
        s.update_from_output(out, {name: [7] for name in "abc"})
    right = reference.run(p)
    assert [set(plan) for plan in right[::8]] == [{"a", "b"}] * 3 + [{"b", "c"}]
    assert subject.run(p) == right


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_03_6_bug_vllm_37051_nobody_is_preempted_for_a_newcomer(
    subject: Any, reference: Any, policy: str
) -> None:
    """A test expected a preemption at admission. "b" is more urgent and lacks a block: it waits,
    and so does "c" behind it, until "a" has ended."""
    p = Program()
    s = scheduler(p, blocks=4, policy=policy)
    s.add_request(request(p, "a", 6, 5, max_tokens=2))
    s.update_from_output(see_plan(p, s), {"a": [7]})
    s.add_request(request(p, "b", 11, 0, arrival=1.0))
    s.add_request(request(p, "c", 2, 9, arrival=2.0))
    for _ in range(2):
        out = see_plan(p, s)
        s.update_from_output(out, {name: [7] for name in "abc"})
    right = reference.run(p)
    assert [set(plan) for plan in right[::8]] == [{"a"}, {"a"}, {"b", "c"}]
    assert subject.run(p) == right


def test_03_6_bug_vllm_39734_larger_than_the_pool(subject: Any, reference: Any) -> None:
    """A prompt that can never fit ends with a word to its client; the line goes on behind it."""
    p = Program()
    s = scheduler(p, blocks=3)
    for name, n in (("a", 20), ("b", 3), ("c", 13), ("d", 2)):
        s.add_request(request(p, name, n))
    for _ in range(2):
        out = see_plan(p, s)
        see_outputs(p, s.update_from_output(out, {"b": [7], "d": [8]}))
    same(subject, reference, p)


# ------------------------------------------------------------------ 03.7 and 03.8


@many
@given(data=st.data())
def test_03_7_any_ending(subject: Any, reference: Any, data: Any) -> None:
    """Small vocabulary, all limits at once, several tokens a step."""
    p = Program()
    s = scheduler(p, max_model_len=data.draw(st.integers(5, 12)))
    max_tokens = data.draw(st.one_of(st.none(), st.integers(1, 8)))
    min_tokens = data.draw(st.integers(0, 8))
    if max_tokens is not None:
        min_tokens = min(min_tokens, max_tokens)
    r = request(
        p, "a", 3, max_tokens=max_tokens, min_tokens=min_tokens, eos=0,
        ignore_eos=data.draw(st.booleans()),
        stop_token_ids=data.draw(st.lists(st.integers(0, 3), max_size=2)),
    )  # fmt: skip
    for _ in range(3):
        tokens = p.call("builtins:list", data.draw(st.lists(st.integers(0, 3), max_size=3)))
        p.see(p.call("builtins:str", s._append_until_stop(r, tokens)))
        p.see(tokens)
        p.see(r.output_token_ids)
        p.see(r.stop_reason)
    same(subject, reference, p)


@pytest.mark.parametrize(("eos", "reason"), [(5, None), (None, 5), (6, 5)])
def test_03_7_the_end_of_text_has_no_name(subject: Any, eos: int | None, reason: Any) -> None:
    """Token 5 is a stop token. If it is the end of the text as well, that is asked first."""
    p = Program()
    a = request(p, "a", 3, eos=eos, stop_token_ids=[5])
    tokens = p.call("builtins:list", [4, 5, 6])
    p.see(p.call("builtins:str", scheduler(p)._append_until_stop(a, tokens)))
    p.see(tokens)
    p.see(a.stop_reason)
    assert subject.run(p) == ["FINISHED_STOPPED", [4, 5], reason]


@pytest.mark.parametrize("max_tokens", [None, 30])
def test_03_7_bug_vllm_26317_min_tokens_lifts_no_length_limit(
    subject: Any, max_tokens: int | None
) -> None:
    """`min_tokens` was asked before anything else, so the model's length was never seen and the
    request ran for ever. Three tokens of prompt leave room for three in a model of six."""
    p = Program()
    s = scheduler(p, max_model_len=6)
    a = request(p, "a", 3, max_tokens=max_tokens, min_tokens=20, eos=0, stop_token_ids=[1])
    for answer in ([0, 1], [2, 2, 2]):
        tokens = p.call("builtins:list", answer)
        p.see(p.call("builtins:str", s._append_until_stop(a, tokens)))
        p.see(tokens)
    p.see(a.output_token_ids)
    p.see(a.stop_reason)
    right = ["None", [0, 1], "FINISHED_LENGTH_CAPPED", [2], [0, 1, 2], None]
    assert subject.run(p) == right


@many
@given(data=st.data())
def test_03_8_any_answers(subject: Any, reference: Any, data: Any) -> None:
    """Drafts, rejections, stops and chunks: all outputs, and all that is left behind."""
    p = Program()
    s = scheduler(p, max_num_batched_tokens=data.draw(st.integers(6, 20)), max_model_len=16)
    small = st.integers(0, 3)
    for name in "abc":
        prompt, limit = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
        r = request(p, name, prompt, max_tokens=limit, eos=0, stop_token_ids=[1])
        s.add_request(r)
    for _ in range(3):
        out = see_plan(p, s)
        answers: dict[str, Any] = {}
        for name in data.draw(st.permutations("abc")):
            answers[name] = p.call("builtins:list", data.draw(st.lists(small, max_size=1)))
        see_outputs(p, s.update_from_output(out, answers))
        p.see(out.finished_req_ids)
    yours, theirs = subject.run(p), reference.run(p)
    assert yours == theirs


@pytest.mark.parametrize("sampled", [[11], [11, 12], [11, 12, 13, 14], [11, 0, 13]])
def test_03_8_verified_drafts(subject: Any, reference: Any, sampled: list[int]) -> None:
    """Three drafts, answered in four ways; 0 is EOS."""
    p = Program()
    s = scheduler(p)
    a = request(p, "a", 3, eos=0, max_tokens=20)
    s.add_request(a)
    s.update_from_output(s.schedule(), {"a": [7]})
    s.update_draft_token_ids({"a": [11, 12, 13]})
    out = see_plan(p, s)
    see_outputs(p, s.update_from_output(out, {"a": sampled}))
    p.see(a.num_computed_tokens)
    p.see(a.output_token_ids)
    see_plan(p, s)
    same(subject, reference, p)


def test_03_8_rejections_after_a_preemption(subject: Any, reference: Any) -> None:
    """The step with its drafts comes back when the request was preempted and has computed
    nothing: there is nothing to take back."""
    p = Program()
    s = scheduler(p)
    a = request(p, "a", 3)
    s.add_request(a)
    s.update_from_output(s.schedule(), {"a": [7]})
    s.update_draft_token_ids({"a": [1, 2]})
    out = see_plan(p, s)
    s._preempt(a)
    s.update_from_output(out, {"a": [9]})
    p.see(a.num_computed_tokens)
    p.see(a.output_token_ids)
    see_plan(p, s)
    same(subject, reference, p)


def test_03_8_bug_mini_sglang_the_last_word_of_who_is_too_long(subject: Any) -> None:
    """A prompt that was too long was dropped without an answer. "b" never fits; "a" outgrows the
    pool while it runs, and "c" has its room then. Each is told once why it has ended."""
    p = Program()
    s = scheduler(p, blocks=2)
    s.add_request(request(p, "a", 7, max_tokens=40))
    s.add_request(request(p, "b", 20))
    s.add_request(request(p, "c", 2, max_tokens=1))
    for _ in range(4):
        see_outputs(p, s.update_from_output(s.schedule(), {"a": [7], "c": [8]}))
    assert subject.run(p) == [
        *(["a", "b"], [[7], []], [None, "length"], [None, "kv_capacity"]),
        *(["a"], [[7]], [None], [None]),
        *(["c", "a"], [[8], []], ["length", "length"], [None, "kv_capacity"]),
        *([], [], [], []),
    ]


def test_03_8_bug_vllm_18485_aborts_in_every_state(subject: Any, reference: Any) -> None:
    """Waiting, half computed, decoding and preempted requests go away between plan and update."""
    p = Program()
    s = scheduler(p, blocks=5, max_num_batched_tokens=6)
    aborted = p.name("mini_vllm.request:RequestStatus.FINISHED_ABORTED")
    requests = [request(p, name, n) for name, n in (("a", 4), ("b", 6), ("c", 3), ("d", 2))]
    for r in requests:
        s.add_request(r)
    for leaving in ("b", "c", "d", "a"):
        out = see_plan(p, s)
        s.finish_requests(leaving, aborted)
        s.update_from_output(out, {name: [7] for name in "abcd"})
        p.see_each(s.running, "request_id")
        p.see(s.kv_cache_manager.num_free_blocks)
    same(subject, reference, p)


# ------------------------------------------------------------------ 03.5 what is written down
@many
@given(
    prompts=st.lists(st.integers(1, 14), min_size=1, max_size=5),
    blocks=st.integers(4, 14),
    budget=st.integers(4, 24),
    caching=st.booleans(),
)
def test_03_5_every_lookup_is_counted(
    subject: Any, reference: Any, prompts: list[int], blocks: int, budget: int, caching: bool
) -> None:
    """Requests, tokens and hits of the prefix cache, and each request's own, after every step.
    Prompts begin alike, so that later ones find what earlier ones computed."""
    p = Program()
    s = scheduler(p, blocks=blocks, max_num_batched_tokens=budget)
    p.set(s.kv_cache_manager, "enable_caching", caching)
    made = []
    for number, length in enumerate(prompts):
        one = request(p, f"r{number}", list(range(length)), max_tokens=2)
        s.add_request(one)
        made.append(one)
    stats = s.kv_cache_manager.prefix_cache_stats
    for _ in range(4):
        see_plan(p, s)
        for count in ("requests", "queries", "hits"):
            p.see(getattr(stats, count))
        for one in made:
            p.see(one.num_cached_tokens)
    assert subject.run(p) == reference.run(p)
