"""Single rules, as calls that both sides make and whose results must be equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=40)


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
    """A request; a prompt given as a number is that many tokens that no other has."""
    if isinstance(prompt, int):
        prompt = [sum(name.encode()) * 1000 + i for i in range(prompt)]
    eos = params.pop("eos", None)
    arrival = params.pop("arrival", 0.0)
    sampling = p.new("mini_vllm.sampling_params:SamplingParams", temperature=0.0, **params)
    return p.new("mini_vllm.request:Request", name, prompt, sampling, priority, arrival, eos)


def extension(p: Program, limits: Sequence[int] | None = None) -> Any:
    """A feature that is always ready, admits all requests, and answers `limits` one after the other
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


@pytest.mark.parametrize("kind", ["FCFSRequestQueue", "PriorityRequestQueue"])
def test_03_1_an_empty_queue_has_no_first_request(subject: Any, kind: str) -> None:
    """Before a request has come, and when all have gone."""
    p = Program()
    queue = p.new(f"mini_vllm.core.request_queue:{kind}")
    p.refuse("IndexError", queue.pop_request)
    queue.add_request(request(p, "a", 2))
    queue.pop_request()
    p.refuse("IndexError", queue.pop_request)
    p.see("refused")
    assert subject.run(p) == ["refused"]


@pytest.mark.parametrize("kind", ["FCFSRequestQueue", "PriorityRequestQueue"])
@many
@given(
    names=st.lists(st.text("ab1", max_size=3), min_size=1, max_size=7, unique=True),
    again=st.sampled_from(["list", "iter", "deque"]),
    data=st.data(),
)
def test_03_1_lines_of_any_names_and_iterables(
    subject: Any, kind: str, names: list[str], again: str, data: Any
) -> None:
    """Of equal priority and arrival the smaller name is first, whatever came first. What is handed
    over may be an iterator, and a list is what it was."""
    p = Program()
    queue = p.new(f"mini_vllm.core.request_queue:{kind}")
    small = st.integers(0, 1)
    keys = {name: (data.draw(small), float(data.draw(small)), name) for name in names}
    made = {n: request(p, n, 2, key[0], arrival=key[1]) for n, key in keys.items()}
    first, behind = data.draw(st.permutations(names)), data.draw(st.integers(0, len(names)))
    removing = data.draw(st.booleans())  # which puts a heap in order again
    gone = [name for name in names if removing and data.draw(st.booleans())]

    def several(chosen: Sequence[str]) -> Any:
        module = "collections" if again == "deque" else "builtins"
        return p.call(f"{module}:{again}", [made[name] for name in chosen])

    for name in first[:behind]:
        queue.add_request(made[name])
    handed = [several(first[behind:]), several(gone)]
    queue.prepend_requests(handed[0])
    p.see_each(queue, "request_id")
    if removing:
        queue.remove_requests(handed[1])
    p.see_each(queue, "request_id")
    line = [*reversed(first[behind:]), *first[:behind]]
    if kind == "PriorityRequestQueue":
        line = sorted(line, key=lambda name: keys[name])
    expected = [line, [name for name in line if name not in gone]]
    if again != "iter":
        for one in handed:
            p.see_each(one, "request_id")
        expected += [first[behind:], gone]
    for _ in expected[1]:
        p.see(queue.pop_request().request_id)
    assert subject.run(p) == [*expected, *expected[1]]


@many
@given(
    wanted=st.integers(0, 80),
    room=st.integers(-3, 80),
    budget=st.integers(0, 40),
    threshold=st.integers(0, 12),
    length=st.sampled_from([4, 65, 1000, 40960]),
)
@example(3, 80, 40, 8, 1000)  # less than the threshold is left
@example(30, 80, 40, 8, 1000)
@example(30, 80, 5, 8, 1000)
@example(30, 2, 40, 8, 1000)
def test_03_2_any_numbers(
    subject: Any, reference: Any, wanted: int, room: int, budget: int, threshold: int, length: int
) -> None:
    """The clamp over a grid of wants, counts, budgets, thresholds and models. A budget of 0 is
    spent; a threshold of 0 is none."""
    p = Program()
    threshold = min(threshold, length)
    s = scheduler(p, long_prefill_token_threshold=threshold, max_model_len=length)
    p.see(s._clamp_new_tokens(wanted, max(length - 1 - room, 0), budget))
    same(subject, reference, p)


@pytest.mark.parametrize("threshold", [0, 4])
@pytest.mark.parametrize(("cap", "wanted"), [(9, 30), (9, 9), (9, 5), (2, 30), (2, 1), (0, 30)])
def test_03_2_the_cap_of_the_step_counts(
    subject: Any, threshold: int, cap: int, wanted: int
) -> None:
    """`long_prefill_cap` is not always the configured threshold: `schedule` raises it to a fair
    share of the budget where the config asks for that, and a profile may lift it."""
    p = Program()
    s = scheduler(p, max_num_batched_tokens=20, long_prefill_token_threshold=threshold)
    p.set(s, "long_prefill_cap", cap)
    p.see(s._clamp_new_tokens(wanted, 7, 20))
    assert subject.run(p) == [min(wanted, cap or wanted, 20)]


def test_03_3_drafts_that_a_plan_holds_stay(subject: Any) -> None:
    """The victim loses its drafts. Their list may stand in a plan, which goes on to use it."""
    p = Program()
    s = scheduler(p)
    a = request(p, "a", 3)
    s.add_request(a)
    s.schedule()
    drafts = p.call("builtins:list", [4, 5])
    p.set(a, "spec_token_ids", drafts)
    s._preempt(a)
    p.see(drafts)
    p.see(p.call("builtins:len", a.spec_token_ids))
    assert subject.run(p) == [[4, 5], 0]


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
    """Requests of any priority run; some are preempted by hand, some as the policy says. Which
    is next, which wait in which order, and which blocks are free?"""
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


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_03_3_a_victim_waits_in_the_line(subject: Any, policy: str) -> None:
    """And not with "b", which is not ready and was skipped."""
    p = Program()
    feature = extension(p, [2])
    p.set(feature, "is_ready", p.new("unittest.mock:Mock", return_value=False))
    s = scheduler(p, policy=policy, extensions=[feature])
    a, b = request(p, "a", 2), request(p, "b", 2)
    b.transition_to(p.name("mini_vllm.request:RequestStatus.WAITING_FOR_REMOTE_KVS"))
    for r in (a, b):
        s.add_request(r)
    s.schedule()
    s._preempt(a)
    for queue in (s.running, s.waiting, s.skipped_waiting):
        p.see_each(queue, "request_id")
    assert subject.run(p) == [[], ["a"], ["b"]]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_03_3_what_the_client_has_sent_and_seen_stays(subject: Any, policy: str) -> None:
    """A victim's prompt, output, arrival and names of blocks are what they were, nothing has ended
    it, and the worker is not told that it has finished."""
    p = Program()
    s = scheduler(p, policy=policy)
    a = request(p, "a", list(range(6)), arrival=3.5)
    s.add_request(a)
    for _ in range(4):
        s.update_from_output(s.schedule(), {"a": [7]})

    def see() -> None:
        for name in ("prompt_token_ids", "output_token_ids", "all_token_ids", "block_hashes"):
            p.see(getattr(a, name))
        for name in ("priority", "arrival_time", "stop_reason", "num_cached_tokens"):
            p.see(getattr(a, name))
        p.see(s.finished_req_ids)
        p.see(p.call("builtins:list", s.requests))

    see()
    s._preempt(a)
    see()
    seen = subject.run(p)
    assert seen[:10] == seen[10:]
    assert seen[1] == [7] * 4 and len(seen[3]) == 2 and seen[8] == set()


def test_03_3_a_resumed_request_was_admitted_last(subject: Any) -> None:
    """Under "fcfs": "a" came first, was preempted and is admitted again behind "b" and "c"."""
    p = Program()
    s = scheduler(p)
    a = request(p, "a", 3)
    s.add_request(a)
    s.schedule()
    for name in "bc":
        s.add_request(request(p, name, 3))
    s.schedule()
    s._preempt(a)
    s.schedule()
    for _ in range(3):
        victim = s._pick_victim()
        p.see(victim.request_id)
        s._preempt(victim)
    assert subject.run(p) == ["a", "c", "b"]


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


def limiting(p: Program, most: int) -> Any:
    """An extension that allows no request more than so many tokens a step, and remembers what it
    was asked."""
    made = extension(p)
    limit = p.call("builtins:eval", f"lambda request, computed, new: min(new, {most})")
    p.set(made, "limit_tokens", p.new("unittest.mock:Mock", side_effect=limit))
    return made


def see_asked(p: Program, *extensions: Any) -> None:
    """How many tokens are computed, as each extension was told at each question."""
    for one in extensions:
        computed = p.call("operator:itemgetter", 1)
        asked = p.call("operator:attrgetter", "args")
        calls = p.call("builtins:map", asked, one.limit_tokens.call_args_list)
        p.see(p.call("builtins:list", p.call("builtins:map", computed, calls)))


@pytest.mark.parametrize("limits", [(3, 5), (5, 3), (2, 9), (9, 2)])
def test_03_4_every_extension_limits(subject: Any, limits: tuple[int, int]) -> None:
    """Two allow a running request so many tokens: the smaller number counts, whichever is asked
    first. Both are told how many tokens are computed."""
    p = Program()
    extensions = [limiting(p, most) for most in limits]
    s = scheduler(p, max_num_batched_tokens=10, extensions=extensions)
    s.add_request(request(p, "a", 30))
    for _ in range(3):
        p.see(s.schedule().num_scheduled_tokens)
    see_asked(p, *extensions)
    least = min(limits)
    seen = subject.run(p)
    assert seen[:3] == [{"a": least}] * 3
    assert seen[3:] == [[0, least, 2 * least]] * 2


@pytest.mark.parametrize(("lookahead", "length"), [(0, 20), (2, 20), (1, 13)])
def test_03_4_a_request_that_outgrows_the_pool_costs_no_other_its_turn(
    subject: Any, reference: Any, lookahead: int, length: int
) -> None:
    """ "a" is computed in chunks of 4, beside "b" and "c", until 4 blocks of 4 hold no more of it.
    It ends, and the others have their tokens in the same step."""
    p = Program()
    s = scheduler(
        p,
        blocks=4,
        long_prefill_token_threshold=4,
        num_lookahead_tokens=lookahead,
        scheduler_reserve_full_isl=False,
    )
    requests = [request(p, name, n, max_tokens=30) for name, n in (("a", length), ("b", 2))]
    for r in requests:
        s.add_request(r)
    for _ in range(5):
        out = see_plan(p, s)
        see_outputs(p, s.update_from_output(out, {"b": [7]}))
    for r in requests:
        p.see(r.status.name)
        p.see(r.num_preemptions)
    same(subject, reference, p)


@pytest.mark.parametrize("lookahead", [1, 2, 3, 4])
def test_03_4_the_lookahead_may_be_what_does_not_fit(
    subject: Any, reference: Any, lookahead: int
) -> None:
    """ "a" has the pool for itself: 12 slots. It ends where its drafts would have none."""
    p = Program()
    s = scheduler(p, blocks=3, num_lookahead_tokens=lookahead)
    a = request(p, "a", 9, max_tokens=30)
    s.add_request(a)
    for _ in range(6):
        see_outputs(p, s.update_from_output(see_plan(p, s), {"a": [7]}))
    for value in (a.status.name, a.stop_reason, a.num_preemptions, a.output_token_ids):
        p.see(value)
    same(subject, reference, p)


def test_03_4_unwritten_blocks_leave_the_prefix_cache(subject: Any, reference: Any) -> None:
    """ "a" is planned, then preempted for "b" in the same step; a later "c" must not find blocks
    that no request has filled."""
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


def test_03_4_a_finished_request_is_reported_once(subject: Any) -> None:
    """Also by a plan without tokens; then nothing is left to do."""
    p = Program()
    s = scheduler(p)
    s.add_request(request(p, "a", 3))
    s.schedule()
    s.finish_requests("a", p.name("mini_vllm.request:RequestStatus").FINISHED_ABORTED)
    for _ in range(2):
        p.see(s.has_requests())
        p.see(s.schedule().finished_req_ids)
    assert subject.run(p) == [True, {"a"}, False, set()]


@pytest.mark.parametrize("length", [17, 30, 40])
def test_03_4_a_running_request_has_the_cap_of_the_step(subject: Any, length: int) -> None:
    """A fair share of the budget is 8 tokens here, for "a" is alone; the threshold is 3."""
    p = Program()
    s = scheduler(
        p,
        max_num_batched_tokens=8,
        long_prefill_token_threshold=3,
        long_prefill_token_threshold_adaptive=True,
    )
    s.add_request(request(p, "a", length))
    s.schedule()
    p.see(s.schedule().num_scheduled_tokens)
    assert subject.run(p) == [{"a": 8}]


@pytest.mark.parametrize("watermark", [0.3, 0.6, 0.9])
def test_03_4_a_running_request_may_have_every_block(subject: Any, watermark: float) -> None:
    """The share of blocks that an admission leaves free is for those that run: "a" grows into all
    of them, and is not preempted."""
    p = Program()
    s = scheduler(p, blocks=6, max_num_batched_tokens=8, watermark=watermark)
    s.add_request(request(p, "a", 22, max_tokens=30))
    for _ in range(3):
        out = s.schedule()
        s.update_from_output(out, {})
        p.see(out.preempted_req_ids)
    p.see(s.kv_cache_manager.num_free_blocks)
    assert subject.run(p) == [[], [], [], 0]


@pytest.mark.parametrize(("max_tokens", "late"), [(1, 0), (2, 1), (3, 2), (9, 2)])
def test_03_4_a_token_that_is_still_sampled_is_computed(
    subject: Any, max_tokens: int, late: int
) -> None:
    """With `async_scheduling`: two steps are planned before the first answer, and a third behind
    it. The last token that `max_tokens` permits is never computed."""
    p = Program()
    s = scheduler(p, async_scheduling=True)
    a = request(p, "a", 5, max_tokens=max_tokens)
    s.add_request(a)
    plans = [s.schedule(), s.schedule()]
    for plan in plans:
        p.see(plan.num_scheduled_tokens)
    s.update_from_output(plans[0], {"a": [7]})
    p.see(s.schedule().num_scheduled_tokens)
    planned = [{"a": 1}] * late + [{}] * (2 - late)
    assert subject.run(p) == [{"a": 5}, *planned]


@many
@given(data=st.data())
def test_03_4_any_pressure(subject: Any, reference: Any, data: Any) -> None:
    """Requests with drafts outgrow a small pool: which get tokens and blocks, and which must go?"""
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
    """A request that no pool could hold any more ends; no other pays for it."""
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


@pytest.mark.parametrize("limits", [(3, 5), (5, 3), (2, 9), (9, 2)])
def test_03_5_every_extension_limits(subject: Any, limits: tuple[int, int]) -> None:
    """Two allow a prompt so many tokens: the smaller number counts. Both are told how many tokens
    the cache has supplied."""
    p = Program()
    extensions = [limiting(p, most) for most in limits]
    s = scheduler(p, max_num_batched_tokens=20, extensions=extensions)
    first, second = (request(p, name, list(range(12))) for name in "ab")
    s.add_request(first)
    for _ in range(6):
        s.schedule()
    s.add_request(second)
    p.see(s.schedule().num_scheduled_tokens["b"])
    see_asked(p, *extensions)
    scheduled, *asked = subject.run(p)
    assert scheduled == min(limits)
    assert [row[-1] for row in asked] == [8, 8]


@pytest.mark.parametrize(
    ("values", "allowed", "length", "budget"),
    [
        ({"enable_chunked_prefill": False}, 99, 20, 16),
        ({}, 0, 3, 16),
        ({}, 99, 3, 0),
        ({}, 99, 40, 64),
    ],
    ids=["no chunks", "nothing allowed", "no budget", "no blocks"],
)
def test_03_5_a_refusal_changes_nothing(
    subject: Any, values: dict[str, Any], allowed: int, length: int, budget: int
) -> None:
    """Whether it is new or was preempted, a refused request is what it was: no count, no status,
    no reason and no drafts have changed, no lookup is recorded, and nothing is planned."""
    p = Program()
    s = scheduler(p, blocks=8, extensions=[limiting(p, allowed)], **values)
    step = p.new("mini_vllm.core.step_plan:StepPlan", budget)
    both = [request(p, name, list(range(length))) for name in "ab"]
    for one in both:
        s.add_request(one)
    p.set(both[1], "num_preemptions", 1)
    p.set(both[1], "num_cached_tokens", 1)

    def see() -> None:
        for one in both:
            for name in ("num_computed_tokens", "num_cached_tokens", "num_preemptions"):
                p.see(getattr(one, name))
            for name in ("stop_reason", "spec_token_ids", "block_hashes"):
                p.see(getattr(one, name))
            p.see(one.status.name)
        p.see_each(s.running, "request_id")
        p.see_each(s.waiting, "request_id")
        p.see(s.kv_cache_manager.num_free_blocks)
        p.see(p.call("builtins:list", s.kv_cache_manager.req_to_blocks))
        for count in ("requests", "queries", "hits"):
            p.see(getattr(s.kv_cache_manager.prefix_cache_stats, count))
        p.see(step.num_scheduled_tokens)
        p.see(step.token_budget)

    see()
    for one in both:
        p.see(s._try_admit(step, one))
    see()
    seen = subject.run(p)
    middle = len(seen) // 2 - 1
    assert seen[middle : middle + 2] == [False, False]
    assert seen[:middle] == seen[middle + 2 :]


@pytest.mark.parametrize(("held", "limits"), [(3, [9, 7, 7]), (0, [9, 0, 7])])
def test_03_5_a_refusal_notes_nothing_of_what_was_found(
    subject: Any, held: int, limits: list[int]
) -> None:
    """The cache knows 8 tokens of "b", and the pool has no blocks for the rest, or an extension
    allows none of them: nothing of the lookup stays with it."""
    p = Program()
    s = scheduler(p, blocks=6, extensions=[extension(p, limits)])
    a, b = (
        request(p, name, [*range(8), *own]) for name, own in (("a", [91]), ("b", range(92, 99)))
    )
    s.add_request(a)
    s.update_from_output(s.schedule(), {"a": [7]})
    taken = s.kv_cache_manager.block_pool.get_new_blocks(held)
    s.add_request(b)
    step = p.new("mini_vllm.core.step_plan:StepPlan", 16)
    attributes = ("num_cached_tokens", "num_computed_tokens", "num_preemptions")
    for attribute in attributes:
        p.see(getattr(b, attribute))
    p.see(s._try_admit(step, b))
    for attribute in attributes:
        p.see(getattr(b, attribute))
    s.kv_cache_manager.block_pool.free_blocks(taken)
    p.see(s._try_admit(step, b))
    p.see(b.num_cached_tokens)
    seen = subject.run(p)
    assert seen[3] is False and seen[:3] == seen[4:7] and seen[7:] == [True, 8]


def test_03_5_a_resumed_request_must_fit_whole_too(subject: Any, reference: Any) -> None:
    """Preempted with 21 tokens, "a" comes back when 6 blocks of 4 are free, and not before."""
    p = Program()
    s = scheduler(p, blocks=6, max_num_batched_tokens=8)
    p.set(s.kv_cache_manager, "enable_caching", False)
    a = request(p, "a", 17, max_tokens=30)
    s.add_request(a)
    for step in range(6):
        s.update_from_output(s.schedule(), {"a": [7]} if step > 1 else {})
    s._preempt(a)
    held = s.kv_cache_manager.block_pool.get_new_blocks(2)
    step = p.new("mini_vllm.core.step_plan:StepPlan", 8)
    p.see(a.num_tokens)
    p.see(s._try_admit(step, a))
    s.kv_cache_manager.block_pool.free_blocks(held)
    p.see(s._try_admit(step, a))
    right = reference.run(p)
    assert right == [21, False, True]
    assert subject.run(p) == right


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
        long_prefill_token_threshold_adaptive=data.draw(st.booleans()),
        enable_chunked_prefill=data.draw(st.booleans()),
        scheduler_reserve_full_isl=data.draw(st.booleans()),
        watermark=data.draw(st.sampled_from([0.0, 0.0, 0.2])),
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


@pytest.mark.parametrize(("number", "share"), [(1, 16), (2, 8), (3, 5), (5, 3), (8, 3)])
def test_03_5_a_first_chunk_has_the_cap_of_the_step(subject: Any, number: int, share: int) -> None:
    """A budget of 16, shared by so many prompts of 20 tokens; the threshold, 3, is the least."""
    p = Program()
    s = scheduler(
        p,
        blocks=60,
        max_num_seqs=8,
        long_prefill_token_threshold=3,
        long_prefill_token_threshold_adaptive=True,
    )
    for i in range(number):
        s.add_request(request(p, f"r{i}", 20))
    p.see(s.schedule().num_scheduled_tokens)
    counts = [min(share, 16 - share * i) for i in range(number)]
    assert subject.run(p) == [{f"r{i}": n for i, n in enumerate(counts) if n > 0}]


@pytest.mark.parametrize("preempted", [0, 1])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("watermark", "length", "admitted"),
    [(0.3, 16, True), (0.3, 17, False), (0.5, 8, True), (0.5, 9, False), (0.0, 28, True)],
)
def test_03_5_an_admission_leaves_blocks_for_running_requests(
    subject: Any, watermark: float, length: int, admitted: bool, whole: bool, preempted: int
) -> None:
    """ "a" runs in 2 of 9 blocks of 4. "b", new or preempted before, is admitted if `watermark` of
    the pool, whose 10 blocks include the null block, stays free behind it. "a" came when none ran,
    and left nothing free."""
    p = Program()
    s = scheduler(
        p,
        blocks=9,
        max_num_batched_tokens=32,
        watermark=watermark,
        scheduler_reserve_full_isl=whole,
    )
    s.add_request(request(p, "a", 7))
    p.see(s.schedule().num_scheduled_tokens)
    b = request(p, "b", length)
    p.set(b, "num_preemptions", preempted)
    s.add_request(b)
    step = p.new("mini_vllm.core.step_plan:StepPlan", 32)
    p.see(s._try_admit(step, b))
    p.see(b.status.name)
    p.see(step.num_scheduled_tokens)
    plan = {"b": length} if admitted else {}
    status = "RUNNING" if admitted else "WAITING"
    assert subject.run(p) == [{"a": 7}, admitted, status, plan]


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
    """A line of any length, order and size, some of it blocked until a step of its own: which
    are admitted, which wait where, and which end because no pool could hold them?"""
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


def test_03_6_no_request_has_a_turn_when_the_budget_is_spent(subject: Any, reference: Any) -> None:
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


@pytest.mark.parametrize(("waiting", "first"), [("a", "a"), ("c", "b")])
def test_03_6_of_equals_the_smaller_name_has_its_turn(
    subject: Any, waiting: str, first: str
) -> None:
    """Under "priority": "b" was blocked, and came at the same time with the same priority."""
    p = Program()
    s = scheduler(p, max_num_seqs=1, policy="priority", extensions=[extension(p, [2])])
    b = request(p, "b", 2)
    b.transition_to(p.name("mini_vllm.request:RequestStatus.WAITING_FOR_REMOTE_KVS"))
    s.add_request(b)
    s.add_request(request(p, waiting, 2))
    p.see(s.schedule().num_scheduled_tokens)
    assert subject.run(p) == [{first: 2}]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_03_6_no_skipped_request_is_lost(subject: Any, policy: str) -> None:
    """ "a" and "b" are blocked, and "c" lacks blocks, which ends the pass: all three still wait."""
    p = Program()
    feature = p.new("mini_vllm.core.extension:SchedulerExtension")
    s = scheduler(p, blocks=4, policy=policy, max_num_batched_tokens=64, extensions=[feature])
    s.add_request(request(p, "d", 9))
    s.schedule()
    for name, length in (("a", 2), ("b", 2), ("c", 15)):
        r = request(p, name, length)
        if name != "c":
            r.transition_to(p.name("mini_vllm.request:RequestStatus.WAITING_FOR_REMOTE_KVS"))
        s.add_request(r)
    for _ in range(3):
        s.update_from_output(s.schedule(), {"d": [7]})
        p.see_each(s.skipped_waiting, "request_id")
        p.see_each(s.waiting, "request_id")
    s.check_integrity()
    assert subject.run(p) == [["a", "b"], ["c"]] * 3


@pytest.mark.parametrize(("skipped", "first"), [(0, "a"), (1, "b"), (2, "b")])
def test_03_6_the_smaller_head_has_its_turn(subject: Any, skipped: int, first: str) -> None:
    """Under "priority" having been skipped helps none: "a" was blocked, "b" has priority 1."""
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
    """ "a" and "c" were blocked and are ready now; one row; which is admitted, step by step?"""
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
    """ "a", "b" and "c" are not ready at once; "d" is never blocked; none is lost."""
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


def test_03_6_bug_nano_vllm_the_rows_bound_all_running_requests(
    subject: Any, reference: Any
) -> None:
    """The limit was asked of the newcomers of a step only, so that ten ran in two rows. "a" and "b"
    run, "c" waits; it comes when "a" has ended, and not because "b" has no token in a step."""
    p = Program()
    s = scheduler(p, max_num_seqs=2, extensions=[extension(p, [2, 2, 1, 1, 1, 0, 1, 1, 1, 2])])
    for name, limit in (("a", 4), ("b", 9), ("c", 9)):
        s.add_request(request(p, name, 2, max_tokens=limit))
    for _ in range(5):
        out = see_plan(p, s)
        s.update_from_output(out, {name: [7] for name in "abc"})
    right = reference.run(p)
    assert [set(plan) for plan in right[::8]] == [{"a", "b"}] * 2 + [{"a"}, {"a", "b"}, {"b", "c"}]
    assert subject.run(p) == right


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_03_6_bug_vllm_37051_an_admission_preempts_no_request(
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
    """Small vocabulary, all limits at once, several tokens a step, until it has ended."""
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
    yours, theirs = subject.run(p), reference.run(p)
    end = next((call for call in (0, 4, 8) if theirs[call] != "None"), 8) + 4
    assert yours[:end] == theirs[:end]


@many
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    drafts=st.lists(st.integers(4, 9), max_size=8),
    computed=st.integers(0, 20),
    length=st.integers(4, 9),
)
def test_03_7_the_end_is_asked_of_tokens_and_only_told(
    subject: Any, tokens: list[int], drafts: list[int], computed: int, length: int
) -> None:
    """Drafts and computed tokens are no output, so they end nothing; and while the status is told,
    the request's own, its drafts and its counts stay for the caller to change."""
    p = Program()
    s = scheduler(p, max_model_len=length)
    a = request(p, "a", 3, eos=0, stop_token_ids=[1])
    p.set(a, "spec_token_ids", drafts)
    p.set(a, "num_computed_tokens", computed)
    given_tokens = p.call("builtins:list", tokens)
    p.see(p.call("builtins:str", s._append_until_stop(a, given_tokens)))
    p.see(given_tokens)
    for attribute in ("spec_token_ids", "num_computed_tokens", "stop_reason"):
        p.see(getattr(a, attribute))
    p.see(a.status.name)
    end, status, reason = len(tokens), "None", None
    for number, token in enumerate(tokens, 1):
        if token < 2:
            end, status, reason = number, "FINISHED_STOPPED", token or None
            break
        if 3 + number >= length:
            end, status = number, "FINISHED_LENGTH_CAPPED"
            break
    assert subject.run(p) == [status, tokens[:end], drafts, computed, reason, "WAITING"]


@pytest.mark.parametrize(("eos", "reason"), [(5, None), (None, 5), (6, 5)])
def test_03_7_the_end_of_text_has_no_name(subject: Any, eos: int | None, reason: Any) -> None:
    """Token 5 is a stop token. If it is the end of the text as well, that is asked first. The one
    before `min_tokens` ends nothing, neither then nor when the next token comes."""
    p = Program()
    a = request(p, "a", 3, eos=eos, stop_token_ids=[5], min_tokens=2)
    tokens = p.call("builtins:list", [5, 4, 5, 6])
    p.see(p.call("builtins:str", scheduler(p)._append_until_stop(a, tokens)))
    p.see(tokens)
    p.see(a.stop_reason)
    assert subject.run(p) == ["FINISHED_STOPPED", [5, 4, 5], reason]


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


def test_03_8_the_plan_and_the_answers_are_read(subject: Any) -> None:
    """Others read them after the update: the answers may be a mapping that cannot be written to,
    and the plan is what it was. What an update has returned, the next one does not touch."""
    p = Program()
    s = scheduler(p)
    for name, limit in (("a", 9), ("b", 2)):
        s.add_request(request(p, name, 3, max_tokens=limit))
    outputs = []
    for step in range(3):
        plan = s.schedule()
        answers = {name: p.call("builtins:list", [70 + step]) for name in "ab"}
        outputs.append(s.update_from_output(plan, p.new("types:MappingProxyType", answers)))
        p.see([plan.num_scheduled_tokens, plan.scheduled_spec_decode_tokens])
        s.update_draft_token_ids({"a": [5, 6]})
    for one in outputs:
        p.see_each(one, "request_id")
        p.see_each(one, "new_token_ids")
    assert subject.run(p) == [
        [{"a": 3, "b": 3}, {}],
        [{"a": 3, "b": 1}, {"a": [5, 6]}],
        [{"a": 3}, {"a": [5, 6]}],
        *(["a", "b"], [[70], [70]]),
        *(["a", "b"], [[71], [71]]),
        *(["a"], [[72]]),
    ]


@pytest.mark.parametrize("ending", ["max_tokens", "pool"])
def test_03_8_the_last_word_says_what_the_cache_has_spared(subject: Any, ending: str) -> None:
    """ "b" found 8 tokens of "a", was preempted once, and ends: by its limit, or because the pool
    holds no more of it."""
    p = Program()
    s = scheduler(p, blocks=5, max_num_batched_tokens=32)
    s.add_request(request(p, "a", list(range(9)), max_tokens=1))
    s.update_from_output(s.schedule(), {"a": [7]})
    b = request(p, "b", list(range(10)), max_tokens=3 if ending == "max_tokens" else 40)
    s.add_request(b)
    s.update_from_output(s.schedule(), {"b": [7]})
    s._preempt(b)
    for _ in range(2 if ending == "max_tokens" else 11):
        outputs = s.update_from_output(s.schedule(), {"b": [7]})
    for name in ("request_id", "finish_reason", "stop_reason"):
        p.see_each(outputs, name)
    for name in ("num_cached_tokens", "num_preemptions"):
        p.see_each(outputs, name)
    reason = None if ending == "max_tokens" else "kv_capacity"
    assert subject.run(p) == [["b"], ["length"], [reason], [8], [1]]


@pytest.mark.parametrize("preempted", [False, True])
def test_03_8_a_late_token_makes_its_block_findable(subject: Any, preempted: bool) -> None:
    """With `async_scheduling`: the fourth token of "a" was unknown when its step was planned, so
    its block gets a name in the update. A request that was preempted meanwhile has no blocks."""
    p = Program()
    s = scheduler(p, async_scheduling=True)
    a = request(p, "a", [1, 2, 3], max_tokens=9)
    s.add_request(a)
    plans = [s.schedule(), s.schedule()]
    if preempted:
        s._preempt(a)
    for plan in plans:
        s.update_from_output(plan, {"a": p.call("builtins:list", [7])})
    p.see(a.output_token_ids)
    b = request(p, "b", [1, 2, 3, 7, 5])
    b.set_block_hasher(s.kv_cache_manager.block_hasher)
    p.see(s.kv_cache_manager.get_computed_blocks(b)[1])
    assert subject.run(p) == [[7, 7], 0 if preempted else 4]


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


def test_03_8_bug_mini_sglang_a_request_that_is_too_long_is_answered(subject: Any) -> None:
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


@pytest.mark.parametrize("lookahead", [1, 4, 9])
def test_03_5_no_slots_for_drafts_yet(subject: Any, lookahead: int) -> None:
    """Nothing is guessed in the step that admits a request, new or resumed: slots for its 4 tokens
    are enough."""
    p = Program()
    s = scheduler(p, num_lookahead_tokens=lookahead)
    a = request(p, "a", 4)
    s.add_request(a)
    p.see(s.schedule().new_block_ids)
    s._preempt(a)
    p.see(s.schedule().new_block_ids)
    assert subject.run(p) == [{"a": [1]}, {"a": [2]}]


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


# ------------------------------------------------------------------ many, long and at any time

TIMES = (0.25, 0.5, 0.75, 3.0, 5000.5, 1.7e9, 1.7e9 + 0.25)
"""Some lie within one second, and some further apart than any factor keeps from priorities."""


@pytest.mark.parametrize("kind", ["FCFSRequestQueue", "PriorityRequestQueue"])
def test_03_1_long_lines(subject: Any, kind: str) -> None:
    """Four hundred wait, of three priorities, many of them equals; 170 go and are put back; then
    all have their turn one after the other."""
    p = Program()
    queue = p.new(f"mini_vllm.core.request_queue:{kind}")
    keys = [(i * 3 % 5 % 3 - 1, TIMES[i * 4 % 7], f"r{i * 29 % 400:03}") for i in range(400)]
    made = [request(p, name, 1, priority, arrival=time) for priority, time, name in keys]
    for r in made:
        queue.add_request(r)
    p.see_each(queue, "request_id")
    queue.remove_requests(made[3:343:2])
    p.see_each(queue, "request_id")
    queue.prepend_requests(made[3:343:2])
    for _ in keys:
        p.see(queue.pop_request().request_id)
    gone, by_key = keys[3:343:2], kind == "PriorityRequestQueue"
    line = sorted(keys) if by_key else keys
    left = [key for key in line if key not in gone]
    again = line if by_key else [*reversed(gone), *left]
    first, second, *turns = subject.run(p)
    assert [first, second] == [[name for *_, name in keys] for keys in (line, left)]
    assert turns == [name for *_, name in again]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_03_3_many_victims_of_any_time(subject: Any, policy: str) -> None:
    """Fourteen run; one that came 50 years later is still more urgent than the next priority, and
    a quarter of a second counts among equals. How often one was preempted does not."""
    p = Program()
    s = scheduler(p, policy=policy, max_num_seqs=14)
    keys = [(i % 2 - 1, TIMES[i * 3 % 7], f"r{i * 5 % 14:02}") for i in range(14)]
    for index, (priority, time, name) in enumerate(keys):
        r = request(p, name, 1, priority, arrival=time)
        p.set(r, "num_preemptions", 9 * index % 14)
        s.add_request(r)
        s.schedule()
    for _ in keys:
        victim = s._pick_victim()
        p.see(victim.request_id)
        s._preempt(victim)
    order = sorted(keys) if policy == "priority" else keys
    assert subject.run(p) == [name for *_, name in reversed(order)]


def test_03_3_however_often(subject: Any) -> None:
    """Every preemption counts, also the twelfth."""
    p = Program()
    s = scheduler(p)
    a = request(p, "a", 3)
    s.add_request(a)
    for _ in range(12):
        s.schedule()
        s._preempt(a)
        p.see(a.num_preemptions)
    assert subject.run(p) == [*range(1, 13)]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("place", [0, 7, 19])
def test_03_4_one_in_twenty_needs_much(
    subject: Any, reference: Any, policy: str, place: int
) -> None:
    """Twenty run in twenty blocks, one of them with thirty drafts: as many go as it needs blocks,
    planned or not, and all others that are left have their token in the same step."""
    p = Program()
    s = scheduler(p, blocks=20, max_num_seqs=20, max_num_batched_tokens=99, policy=policy)
    names = [f"r{i * 7 % 20:02}" for i in range(20)]
    for number, name in enumerate(names):
        priority = 0 if number == place else 1 + number % 5
        s.add_request(request(p, name, 2, priority, arrival=float(number)))
    s.update_from_output(see_plan(p, s), {name: [7] for name in names})
    s.update_draft_token_ids({names[place]: list(range(30))})
    see_plan(p, s)
    same(subject, reference, p)


@pytest.mark.parametrize("budget", [512, 2048, 5000])
def test_03_4_long_chunks_are_counted_whole(subject: Any, budget: int) -> None:
    """A prompt of 9,000 tokens, as many a step as the budget allows, however often it was
    preempted."""
    p = Program()
    s = scheduler(p, 600, 16, max_num_batched_tokens=budget, max_model_len=10_000)
    a = request(p, "a", 9000)
    p.set(a, "num_preemptions", 40)
    s.add_request(a)
    for _ in range(3):
        s.schedule()
        p.see(a.num_computed_tokens)
    assert subject.run(p) == [min(step * budget, 9000) for step in (1, 2, 3)]


@pytest.mark.parametrize("budget", [512, 2048, 5000])
def test_03_5_a_long_prompt_takes_what_there_is(subject: Any, budget: int) -> None:
    """The first of a prompt of 9,000 tokens, also of one that was preempted twelve times; it runs
    behind the one that was admitted before it."""
    p = Program()
    s = scheduler(p, 600, 16, max_num_batched_tokens=budget, max_model_len=10_000)
    a, b = request(p, "a", 5), request(p, "b", 9000)
    p.set(b, "num_preemptions", 12)
    s.add_request(a)
    s.add_request(b)
    p.see(s.schedule().num_scheduled_tokens)
    p.see_each(s.running, "request_id")
    assert subject.run(p) == [{"a": 5, "b": budget - 5}, ["a", "b"]]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_03_6_as_many_come_as_there_are_rows(subject: Any, policy: str) -> None:
    """Of three hundred that wait, 290 have a row, all in one step."""
    p = Program()
    s = scheduler(p, blocks=300, max_num_seqs=290, max_num_batched_tokens=300, policy=policy)
    names = [f"r{i:03}" for i in range(300)]
    for name in names:
        s.add_request(request(p, name, 1))
    s.schedule()
    p.see_each(s.running, "request_id")
    assert subject.run(p) == [names[:290]]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("kind", ["blocked", "too large"])
def test_03_6_twenty_stand_before_one(subject: Any, reference: Any, policy: str, kind: str) -> None:
    """Twenty in front are not ready, or larger than the pool: "z" has its turn in the same step."""
    p = Program()
    feature = extension(p, [2] * 30)
    p.set(feature, "is_ready", p.new("unittest.mock:Mock", return_value=False))
    s = scheduler(p, blocks=4, policy=policy, extensions=[feature])
    blocked = p.name("mini_vllm.request:RequestStatus.WAITING_FOR_REMOTE_KVS")
    for number in range(20):
        r = request(p, f"r{number:02}", 2 if kind == "blocked" else 20)
        if kind == "blocked":
            r.transition_to(blocked)
        s.add_request(r)
    s.add_request(request(p, "z", 2))
    for _ in range(2):
        out = see_plan(p, s)
        see_outputs(p, s.update_from_output(out, {"z": [7]}))
        p.see_each(s.skipped_waiting, "request_id")
    assert [*reference.run(p)[0]] == ["z"]
    same(subject, reference, p)


@pytest.mark.parametrize("earlier", ["waiting", "skipped"])
def test_03_6_a_quarter_of_a_second_counts(subject: Any, earlier: str) -> None:
    """Of equal priority the earlier has the one row; its name is the larger."""
    p = Program()
    s = scheduler(p, max_num_seqs=1, policy="priority", extensions=[extension(p, [2])])
    blocked = p.name("mini_vllm.request:RequestStatus.WAITING_FOR_REMOTE_KVS")
    for kind in ("waiting", "skipped"):
        name, time = ("z", 8.25) if kind == earlier else ("a", 8.5)
        r = request(p, name, 2, arrival=time)
        if kind == "skipped":
            r.transition_to(blocked)
        s.add_request(r)
    s.schedule()
    p.see_each(s.running, "request_id")
    assert subject.run(p) == [["z"]]


@pytest.mark.parametrize("place", [0, 2, 4, 8, 29])
@pytest.mark.parametrize("kind", ["stop", "eos"])
def test_03_7_any_of_thirty_ends_it(subject: Any, place: int, kind: str) -> None:
    """Thirty tokens stop, which are no small numbers; or one ends the text. It comes as the token
    after `place` others, and six behind it are cut off."""
    stops = [151_000 + 7 * i % 30 for i in range(30)]
    end = stops[place] if kind == "stop" else 160_000
    p = Program()
    a = request(p, "a", 3, max_tokens=60, eos=160_000, stop_token_ids=stops)
    tokens = p.call("builtins:list", [*[9] * place, end, *range(6)])
    p.see(p.call("builtins:str", scheduler(p)._append_until_stop(a, tokens)))
    p.see(tokens)
    p.see(a.output_token_ids)
    p.see(a.stop_reason)
    kept = [*[9] * place, end]
    assert subject.run(p) == ["FINISHED_STOPPED", kept, kept, end if kind == "stop" else None]


@pytest.mark.parametrize("right", [0, 1, 7, 8, 20])
def test_03_8_twenty_drafts(subject: Any, right: int) -> None:
    """All that were rejected are taken back, however many they are, and no others."""
    p = Program()
    s = scheduler(p, max_num_batched_tokens=64)
    a = request(p, "a", 3, max_tokens=60)
    s.add_request(a)
    s.update_from_output(s.schedule(), {"a": [7]})
    s.update_draft_token_ids({"a": list(range(20))})
    s.update_from_output(s.schedule(), {"a": [*range(right), 99]})
    p.see(a.num_computed_tokens)
    p.see(a.num_tokens)
    assert subject.run(p) == [4 + right, 5 + right]


def test_03_8_a_dozen_end_together(subject: Any) -> None:
    """Twelve have their last token, and six were larger than the pool: each hears of it."""
    p = Program()
    s = scheduler(p, blocks=12, max_num_seqs=12)
    short, large = [f"s{i:02}" for i in range(12)], [f"l{i:02}" for i in range(6)]
    for name in large:
        s.add_request(request(p, name, 60))
    for name in short:
        s.add_request(request(p, name, 1, max_tokens=1))
    see_outputs(p, s.update_from_output(s.schedule(), {name: [7] for name in short}))
    p.see(p.call("builtins:list", s.requests))
    p.see_each(s.running, "request_id")
    p.see(s.kv_cache_manager.num_free_blocks)
    assert subject.run(p) == [
        *(short + large, [[7]] * 12 + [[]] * 6, ["length"] * 18),
        *([None] * 12 + ["kv_capacity"] * 6, [], [], 12),
    ]


def test_03_8_all_that_end_leave_together(subject: Any) -> None:
    """Of 20, 80 and 140 requests all end in one step: each further one costs the same."""
    p = Program()
    for number in (20, 80, 140):
        s = scheduler(p, blocks=160, max_num_seqs=200, max_num_batched_tokens=400)
        for index in range(number):
            s.add_request(request(p, f"r{index}", 2, max_tokens=1))
        answers = {f"r{index}": p.call("builtins:list", [7]) for index in range(number)}
        p.see(p.call("labkit.inside.cost:steps", s.update_from_output, s.schedule(), answers))
    one, two, three = subject.run(p)
    assert three - two < 1.3 * (two - one)
