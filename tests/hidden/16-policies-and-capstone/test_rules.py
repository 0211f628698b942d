"""Single rules, as calls whose effects are worked out here or compared with the reference's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=25)


def manager(p: Program, blocks: int = 30, host: int = 30) -> Any:
    """V0's block manager with blocks of 4 tokens."""
    cache = p.new("mini_vllm.config:CacheConfig", 4, blocks + 1, num_cpu_blocks=host)
    return p.new("mini_vllm.policies.block_manager:BlockManager", cache, 64, b"root", 0.0)


def request(p: Program, name: str, prompt: Any, priority: int = 0, arrival: float = 0.0) -> Any:
    sampling = p.new("mini_vllm.sampling_params:SamplingParams", temperature=0.0, max_tokens=8)
    return p.new("mini_vllm.request:Request", name, prompt, sampling, priority, arrival)


def hold(p: Program, m: Any, name: str, length: int, reserved: int = 0) -> Any:
    """A request whose tokens are computed, in blocks of its own."""
    r = request(p, name, list(range(length)))
    r.set_block_hasher(m.block_hasher)
    m.allocate_slots(r, length, num_lookahead_tokens=reserved)
    p.set(r, "num_computed_tokens", length)
    m.publish(r)
    return r


def share(p: Program, m: Any, source: str, name: str, computed: int) -> Any:
    """A request in the blocks of another one's first tokens: a fork by hand."""
    r = request(p, name, list(range(computed + 1)))
    r.set_block_hasher(m.block_hasher)
    first = p.call("builtins:slice", 0, -(-computed // 4))
    m.block_pool.touch(m.req_to_blocks[source][first])
    m.req_to_blocks.update({name: m.req_to_blocks[source][first]})
    m.num_cached_blocks.update({name: 0})
    p.set(r, "num_computed_tokens", computed)
    return r


def serve(p: Program, s: Any, r: Any, answers: int = 1) -> Any:
    """Let V0's scheduler know a request whose 6 tokens are computed, and ``answers`` more known."""
    s.add_request(r)
    s.waiting.remove_requests([r])
    s.kv_cache_manager.allocate_slots(r, 6)
    p.set(r, "num_computed_tokens", 6)
    r.append_output_token_ids([7] * answers)
    return r


def run_on(p: Program, s: Any, r: Any) -> None:
    """As :func:`serve`, and it runs."""
    serve(p, s, r).transition_to(p.name("mini_vllm.request:RequestStatus.RUNNING"))
    s.running.append(r)


def labelled(tables: list[list[int]]) -> list[list[int]]:
    """Tables with blocks numbered in the order in which they appear: which tables share what."""
    labels: dict[int, int] = {}
    return [[labels.setdefault(block, len(labels)) for block in table] for table in tables]


# ------------------------------------------------------------------ 16.1


def test_16_1_requests_that_can_never_fit(subject: Any, reference: Any) -> None:
    """Prompts beyond the budget, and beyond the pool, among others that fit."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 24, 4, 64)
    cache = p.new("mini_vllm.config:CacheConfig", 4, 6)
    s = p.new("mini_vllm.policies.prefill_first:MinivLLM", config, cache, [], b"root")
    people = [request(p, f"r{i}", [i] * n) for i, n in enumerate((25, 24, 5, 21, 12, 3))]
    for r in people:
        s.add_request(r)
    for _ in range(3):
        p.see(s.schedule().num_scheduled_tokens)
        p.see_each(s.waiting, "request_id")
        for r in people:
            p.see(r.status.name)
    assert subject.run(p) == reference.run(p)


def test_16_1_a_prompt_may_take_the_whole_budget(subject: Any) -> None:
    """24 tokens are within a budget of 24, and nothing is left for the next."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 24, 4, 64)
    cache = p.new("mini_vllm.config:CacheConfig", 4, 21)
    s = p.new("mini_vllm.policies.prefill_first:MinivLLM", config, cache, [], b"root")
    for name, length in (("a", 24), ("b", 1)):
        s.add_request(request(p, name, [5] * length))
    p.see(s.schedule().num_scheduled_tokens)
    assert subject.run(p) == [{"a": 24}]


def test_16_1_admission_can_be_paused(subject: Any, reference: Any) -> None:
    """Paused, a step makes tokens though a request waits."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 24, 4, 64)
    cache = p.new("mini_vllm.config:CacheConfig", 4, 21)
    s = p.new("mini_vllm.policies.prefill_first:MinivLLM", config, cache, [], b"root")
    s.add_request(request(p, "a", [1, 2, 3]))
    s.update_from_output(s.schedule(), {"a": [7]})
    s.add_request(request(p, "b", [1, 2, 3]))
    for state in ("PAUSED_NEW", "UNPAUSED"):
        p.set(s, "pause_state", p.name(f"mini_vllm.core.interface:PauseState.{state}"))
        plan = s.schedule()
        p.see(plan.num_scheduled_tokens)
        s.update_from_output(plan, {"a": [7]})
    assert subject.run(p) == reference.run(p)


def prompts_first(p: Program, blocks: int, budget: int = 24, length: int = 64) -> Any:
    """MinivLLM with so many usable blocks of 4 tokens."""
    config = p.new("mini_vllm.config:SchedulerConfig", budget, 4, length)
    cache = p.new("mini_vllm.config:CacheConfig", 4, blocks + 1)
    return p.new("mini_vllm.policies.prefill_first:MinivLLM", config, cache, [], b"root")


def test_16_1_a_prompt_of_the_models_whole_length(subject: Any) -> None:
    """It fits: the answer is one token."""
    p = Program()
    s = prompts_first(p, 20, length=16)
    for name, length in (("a", 16), ("b", 8)):
        s.add_request(request(p, name, [ord(name)] * length))
    p.see(s.schedule().num_scheduled_tokens)
    assert subject.run(p) == [{"a": 16, "b": 8}]


def test_16_1_a_refused_request_stops_no_other(subject: Any) -> None:
    """ "b" can never fit and ends. No other waits, so the same step gives "a" its token."""
    p = Program()
    s = prompts_first(p, 5)
    s.add_request(request(p, "a", [1, 2, 3]))
    s.update_from_output(s.schedule(), {"a": [7]})
    s.add_request(request(p, "b", [5] * 22))
    p.see(s.schedule().num_scheduled_tokens)
    p.see_each(s.capped, "request_id")
    assert subject.run(p) == [{"a": 1}, ["b"]]


def test_16_1_a_request_that_has_to_wait_is_unchanged(subject: Any) -> None:
    """ "b" would find 4 tokens of "a", and 8 of its own if it had run before, and lacks blocks: no
    lookup is recorded, and nothing is noted."""
    for preemptions in (0, 1):
        p = Program()
        s = prompts_first(p, 6)
        s.add_request(request(p, "a", list(range(13))))
        s.update_from_output(s.schedule(), {"a": [7]})
        b = request(p, "b", list(range(4)) + [9] * 8)
        s.add_request(b)
        p.set(b, "num_preemptions", preemptions)
        p.set(b, "num_cached_tokens", 3)
        stats = s.kv_cache_manager.prefix_cache_stats
        for _ in range(2):
            p.see([b.num_cached_tokens, b.num_computed_tokens, b.num_preemptions, b.stop_reason])
            p.see([stats.requests, stats.queries, stats.hits, b.status.name])
            s.schedule()
        seen = subject.run(p)
        assert seen[:2] == seen[2:] == [[3, 0, preemptions, None], [1, 13, 0, "WAITING"]]


def test_16_1_as_many_as_there_are_rows(subject: Any) -> None:
    """Hundreds of prompts in one step, and a budget of thousands; and however many run, a prompt
    goes before all of their tokens."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 4096, 400, 64)
    cache = p.new("mini_vllm.config:CacheConfig", 4, 701)
    s = p.new("mini_vllm.policies.prefill_first:MinivLLM", config, cache, [], b"root")
    names = [f"r{number}" for number in range(300)]
    for number, name in enumerate(names):
        s.add_request(request(p, name, [number] * 3))
    plan = s.schedule()
    p.see(plan.num_scheduled_tokens)
    s.update_from_output(plan, {name: [7] for name in names})
    s.add_request(request(p, "late", [9] * 3))
    p.see(s.schedule().num_scheduled_tokens)
    p.see(s.schedule().num_scheduled_tokens)
    assert subject.run(p) == [dict.fromkeys(names, 3), {"late": 3}, dict.fromkeys(names, 1)]


def test_16_1_hits_count_against_the_budget(subject: Any) -> None:
    """ "b" leaves 8 of 24 tokens; "c" has 16, of which 12 are in the cache: it has to wait."""
    p = Program()
    s = prompts_first(p, 20)
    s.add_request(request(p, "a", list(range(13))))
    s.update_from_output(s.schedule(), {"a": [7]})
    s.add_request(request(p, "b", [50] * 16))
    s.add_request(request(p, "c", list(range(12)) + [9] * 4))
    p.see(s.schedule().num_scheduled_tokens)
    assert subject.run(p) == [{"b": 16}], "tokens of the cache count too"


# ------------------------------------------------------------------ 16.2


@many
@given(length=st.integers(1, 20), data=st.data())
def test_16_2_any_fork(subject: Any, reference: Any, length: int, data: Any) -> None:
    """Children take over any number of tokens, from a parent or from each other."""
    p = Program()
    m = manager(p)
    held = {"a": (hold(p, m, "a", length), length)}
    for name in "bcd":
        parent, most = held[data.draw(st.sampled_from(sorted(held)))]
        count = data.draw(st.integers(1, most))
        child = request(p, name, list(range(count + 1)))
        child.set_block_hasher(m.block_hasher)
        m.fork(parent, child, count)
        held[name] = (child, count)
        p.see(child.num_computed_tokens)
        p.see(m.get_block_ids(name))
        p.see(m.num_cached_blocks[name])
    p.see_each(m.block_pool.blocks, "ref_cnt")
    p.see(m.num_free_blocks)
    m.check_integrity([r for r, _ in held.values()])
    assert subject.run(p) == reference.run(p)


@many
@given(length=st.integers(1, 15), data=st.data())
def test_16_2_any_order_of_writers(subject: Any, reference: Any, length: int, data: Any) -> None:
    """Four holders of one text write in any order, and ask for any number of slots."""
    counts = [length, *(data.draw(st.integers(1, length)) for _ in range(3))]
    writes = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=6))

    def run(worker: Any) -> list[Any]:
        p = Program()
        m = manager(p)
        held = [hold(p, m, "r0", length)]
        held += [share(p, m, "r0", f"r{i}", length) for i in (1, 2, 3)]
        for r, count in zip(held, counts, strict=True):
            p.set(r, "num_computed_tokens", count)  # further blocks follow the next token's
        for index, more in writes:
            p.see([m.get_block_ids(f"r{i}") for i in range(4)])
            answer = m.append(held[index], counts[index] + more)
            p.see(answer[1])
            p.see(answer[0].get_block_ids())
        p.see([m.get_block_ids(f"r{i}") for i in range(4)])
        p.see(m.num_free_blocks)
        m.check_integrity()
        return list(worker.run(p))

    yours, theirs = run(subject), run(reference)
    assert len(yours) == len(theirs), yours[-1:]
    assert yours[-1] == theirs[-1], "free blocks"
    for index, (member, _) in enumerate(writes):
        tables, copies, new = yours[3 * index : 3 * index + 3]
        after = yours[3 * index + 3]
        assert labelled(after) == labelled(theirs[3 * index + 3])
        assert len(copies) == len(theirs[3 * index + 1])
        assert [list(pair) for pair in copies] == [
            [old, now]
            for old, now in zip(tables[member], after[member], strict=False)
            if old != now
        ]
        assert new == after[member][len(tables[member]) :]


OWN = ("num_computed_tokens", "num_cached_tokens", "num_preemptions", "spec_token_ids")


def owned(p: Program, r: Any) -> None:
    """What a request says of itself, written over so that a change shows."""
    for name, value in zip(OWN[1:], (5, 3, [8, 8]), strict=True):
        p.set(r, name, value)


def see_owned(p: Program, *requests: Any) -> None:
    p.see([[getattr(r, name) for name in OWN] for r in requests])


def test_16_2_a_copy_takes_nothing_from_the_others(subject: Any) -> None:
    """The original keeps its name and its other holders; the writer's requests say what they said;
    and copies that were told once are told for good."""
    p = Program()
    m = manager(p)
    a = hold(p, m, "a", 8)
    b, c = (request(p, name, list(range(8))) for name in "bc")
    for child, count in ((b, 6), (c, 7)):
        child.set_block_hasher(m.block_hasher)
        m.fork(a, child, count)
        owned(p, child)
    see_owned(p, b, c)
    counts = [m.num_cached_blocks[name] for name in "abc"]
    p.see(counts)
    copies = [m.append(child, 9)[1] for child in (b, c)]
    see_owned(p, b, c)
    p.see(counts)
    p.see([p.call("builtins:bool", block.block_hash) for block in (
        m.block_pool.blocks[1], m.block_pool.blocks[2], m.block_pool.blocks[3])])  # fmt: skip
    p.see_each(m.block_pool.blocks, "ref_cnt")
    p.see(copies)
    before, named, after, same, names, holders, told = subject.run(p)
    assert before == after == [[6, 5, 3, [8, 8]], [7, 5, 3, [8, 8]]]
    assert named == same == [2, 1, 1]
    assert names == [True, True, False] and holders[:7] == [0, 3, 1, 1, 1, 1, 1]
    assert [len(pairs) for pairs in told] == [1, 1] and told[0] != told[1]


def test_16_2_a_child_has_not_found_what_it_was_given(subject: Any) -> None:
    """What is forked is computed. It comes from no cache, and the parent is what it was."""
    p = Program()
    m = manager(p)
    a = hold(p, m, "a", 9)
    child = request(p, "b", list(range(10)))
    for r in (a, child):
        owned(p, r)
    m.fork(a, child, 7)
    see_owned(p, a, child)
    assert subject.run(p) == [[[9, 5, 3, [8, 8]], [7, 5, 3, [8, 8]]]]


@many
@given(length=st.integers(1, 60), slots=st.integers(1, 90), shared=st.booleans())
def test_16_2_as_many_blocks_as_were_announced(
    subject: Any, length: int, slots: int, shared: bool
) -> None:
    """The count that is asked for first is right, beyond the model's 64 tokens as well."""
    p = Program()
    m = manager(p, 40)
    a = hold(p, m, "a", length)
    if shared:
        share(p, m, "a", "b", length)
    p.see([m.num_blocks_to_append(a, slots), m.num_free_blocks])
    m.append(a, slots)
    p.see(m.num_free_blocks)
    (wanted, before), after = subject.run(p)
    assert before - after == wanted


@pytest.mark.parametrize("blocks", [2, 3])
def test_16_2_a_refusal_changes_nothing(subject: Any, blocks: int) -> None:
    """ "b" needs a copy and a third block, and none is free, or one."""
    p = Program()
    m = manager(p, blocks)
    hold(p, m, "a", 6)
    b = share(p, m, "a", "b", 6)
    for _ in range(2):
        p.see([m.get_block_ids("a"), m.get_block_ids("b"), m.num_free_blocks])
        p.see_each(m.block_pool.blocks, "ref_cnt")
        p.refuse("ValueError", m.append, b, 9)
    held = [0, 2, 2, 0][: blocks + 1]
    assert subject.run(p) == [[[1, 2], [1, 2], blocks - 2], held] * 2


@pytest.mark.parametrize("slots", [6, 9, 13, 25])
def test_16_2_new_blocks_follow_the_copy(subject: Any, slots: int) -> None:
    """Of the blocks that are given out the first becomes the copy, and the others stand behind."""
    p = Program()
    m = manager(p)
    hold(p, m, "a", 6)
    b = share(p, m, "a", "b", 6)
    made = m.append(b, slots)
    p.see([made[1], made[0].get_block_ids(), m.get_block_ids("b")])
    added = list(range(4, 2 + -(-slots // 4)))
    assert subject.run(p) == [[[(2, 3)], added, [1, 3, *added]]]


def test_16_2_a_long_fork_holds_all_of_its_blocks(subject: Any) -> None:
    """Thirteen blocks have two holders each; when the parent goes, all are still held. The child
    has no token but the parent's, and all of them are computed."""
    p = Program()
    m = manager(p)
    parent, child = hold(p, m, "a", 50), request(p, "b", list(range(50)))
    m.fork(parent, child, 50)
    p.see_each(m.req_to_blocks["b"], "ref_cnt")
    m.free(parent)
    p.see([m.num_free_blocks, child.num_computed_tokens])
    assert subject.run(p) == [[2] * 13, [30 - 13, 50]]


def test_16_2_a_parent_of_which_a_part_is_found(subject: Any) -> None:
    """One of its three full blocks has its hash yet: so has one of the child's."""
    p = Program()
    m = manager(p)
    parent, child = hold(p, m, "a", 5, reserved=7), request(p, "b", list(range(13)))
    p.set(parent, "num_computed_tokens", 12)  # in blocks that are not published yet
    m.fork(parent, child, 12)
    p.see(m.num_cached_blocks["b"])
    assert subject.run(p) == [1]


# ------------------------------------------------------------------ 16.3


@many
@given(data=st.data())
def test_16_3_there_and_back(subject: Any, data: Any) -> None:
    """A group of any shape leaves for the host beside others, and comes back in any order."""
    size = st.integers(1, 15)
    lengths = [data.draw(size) for _ in range(2)]
    shares = [(data.draw(st.integers(0, 1)), data.draw(st.integers(1, 15))) for _ in range(3)]
    p = Program()
    m = manager(p, host=24)
    counts = dict(zip(["r0", "r1"], lengths, strict=True))
    held = {n: hold(p, m, n, k, data.draw(st.integers(0, 9))) for n, k in counts.items()}
    for index, (source, wanted) in enumerate(shares):
        name, counts_of = f"s{index}", min(wanted, lengths[source])
        held[name] = share(p, m, f"r{source}", name, counts_of)
        counts[name] = counts_of
    order = data.draw(st.permutations(sorted(held)))
    group, staying = order[:4], order[4]
    for name in order:
        p.see(m.get_block_ids(name))
    p.see(m.swap_out([held[name] for name in group]))
    p.see(p.call("builtins:dict", m.host_tables))
    p.see(p.call("builtins:list", m.free_host_blocks))
    p.see(m.num_free_blocks)
    back = data.draw(st.permutations(group))
    p.see(m.swap_in([held[name] for name in back]))
    for name in order:
        p.see(m.get_block_ids(name))
    p.see(m.free_host_blocks)
    p.see([m.num_cached_blocks[name] for name in back])
    m.check_integrity()
    seen = subject.run(p)
    assert len(seen) == 17, seen[-1:]
    before, (out, hosts, free, left) = dict(zip(order, seen[:5], strict=True)), seen[5:9]
    pairs, after, freed, cached = seen[9], dict(zip(order, seen[10:15], strict=True)), *seen[15:]
    tables = {name: before[name][: -(-counts[name] // 4)] for name in group}
    moved = _renaming(out, {block for table in tables.values() for block in table})
    assert hosts == {name: [moved[block] for block in tables[name]] for name in group}
    assert sorted([*free, *moved.values()]) == list(range(24))
    assert left == 30 - len(set(before[staying]))
    returned = _renaming(pairs, set(moved.values()))
    wanted = {name: [returned[block] for block in hosts[name]] for name in group}
    assert {name: after[name] for name in group} == wanted
    assert not set(returned.values()) & set(after[staying]) and after[staying] == before[staying]
    assert sorted(freed) == list(range(24)) and cached == [0] * 4


def _renaming(pairs: Any, sources: set[int]) -> dict[int, int]:
    """The pairs as a dictionary: each source once, to different targets."""
    assert sorted(source for source, _ in pairs) == sorted(sources)
    found = dict(tuple(pair) for pair in pairs)
    assert len(set(found.values())) == len(found)
    return found


def test_16_3_on_the_way_they_keep_counting(subject: Any) -> None:
    """A request's tokens are computed, on the host as on the device, to the last of a block that is
    not full; how often it was preempted and what it once found are the scheduler's."""
    p = Program()
    m = manager(p)
    lengths = [9, 4, 1, 7, 2, 3]
    people = [hold(p, m, f"r{i}", length) for i, length in enumerate(lengths)]
    for r in people:
        owned(p, r)
    see_owned(p, *people)
    m.swap_out(people)
    see_owned(p, *people)
    m.swap_in(people)
    see_owned(p, *people)
    before, out, back = subject.run(p)
    assert before == out == back == [[n, 5, 3, [8, 8]] for n in lengths]


def test_16_3_a_long_request_leaves_nothing_behind(subject: Any) -> None:
    """Thirteen blocks go to the host and come back, twice, and the host is empty again."""
    p = Program()
    m = manager(p)
    r = hold(p, m, "a", 50)
    for _ in range(2):
        p.see(p.call("builtins:len", m.swap_out([r])))
        p.see(p.call("builtins:len", m.swap_in([r])))
        p.see(p.call("builtins:sorted", m.free_host_blocks))
    assert subject.run(p) == [13, 13, list(range(30))] * 2


def test_16_3_a_request_without_computed_tokens_moves_nothing(subject: Any) -> None:
    """Its blocks are free again all the same, and it comes back with none."""
    p = Program()
    m = manager(p)
    people = [hold(p, m, name, 9) for name in "ab"]
    p.set(people[0], "num_computed_tokens", 0)
    p.see(p.call("builtins:len", m.swap_out(people)))
    p.see([m.num_free_blocks, p.call("builtins:dict", m.host_tables)])
    p.see(p.call("builtins:len", m.swap_in(people)))
    p.see([p.call("builtins:len", m.get_block_ids(name)) for name in "ab"])
    for move in (m.swap_out, m.swap_in):
        p.see([p.call("builtins:len", move([one])) for one in people])
    moved, (free, hosts), back, tables, *apart = subject.run(p)
    assert [moved, free, back, tables] == [3, 30, 3, [0, 3]]
    assert hosts["a"] == [] and len(hosts["b"]) == 3
    assert apart == [[0, 3]] * 2


# ------------------------------------------------------------------ 16.4


def test_16_4_two_leave_and_come_back(subject: Any) -> None:
    """Two groups in one step out; back with a shared block that both write to."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 64, 8, 64)
    cache = p.new("mini_vllm.config:CacheConfig", 4, 13, False, num_cpu_blocks=12)
    s = p.new("mini_vllm.policies.vllm_v0:VllmV0", config, cache, [], b"root")
    m, people = s.kv_cache_manager, [request(p, name, [ord(name)] * 6) for name in "ab"]
    for r in people:
        serve(p, s, r)
        p.set(r, "num_preemptions", 1)
    out, back = s.new_plan(64), s.new_plan(64)
    s._swap_out(out, [people[0]])
    s._swap_out(out, [people[1]])
    p.see(out.blocks_to_swap_out)
    m.swap_in(people)
    m.free(people[1])
    m.req_to_blocks.update({"b": m.req_to_blocks["a"][p.call("builtins:slice", 0, 2)]})
    m.num_cached_blocks.update({"b": 0})
    m.block_pool.touch(m.req_to_blocks["b"])
    m.swap_out(people)
    tokens = p.call("builtins:dict", [(r, 1) for r in people])
    back.blocks_to_copy.append(p.call("builtins:tuple", [90, 91]))  # another request's
    s._swap_in(back, people, tokens)
    p.see(back.blocks_to_swap_in)
    p.see(back.blocks_to_copy)
    p.see([back.budget.remaining_token_budget(), back.budget.num_curr_seqs])
    p.see([m.get_block_ids(name) for name in "ab"])
    seen = subject.run(p)
    assert len(seen) == 5, seen[-1:]
    gone, came, copies, room, (ana, ben) = seen
    assert sorted(source for source, _ in gone) == [1, 2, 3, 4]
    assert ana[0] == ben[0] and ana[1] != ben[1] and len(copies) == 2
    assert list(copies[0]) == [90, 91]
    original, copy = copies[1]  # either of them may be the one that copies
    assert {original, copy} == {ana[1], ben[1]}
    assert sorted(target for _, target in came) == sorted([ana[0], original])
    assert room == [62, 2], "tokens left, and rows taken"


def swapped(p: Program, s: Any, name: str, answers: int = 1) -> Any:
    """A request on the host."""
    r = serve(p, s, request(p, name, [ord(name)] * 6), answers)
    p.set(r, "num_preemptions", 1)
    s.kv_cache_manager.swap_out([r])
    return r


def test_16_4_two_groups_come_back_in_one_step(subject: Any) -> None:
    """The plan holds the blocks of both, though your method is called twice."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 64, 8, 64)
    cache = p.new("mini_vllm.config:CacheConfig", 4, 13, False, num_cpu_blocks=12)
    s = p.new("mini_vllm.policies.vllm_v0:VllmV0", config, cache, [], b"root")
    people = [swapped(p, s, name) for name in "ab"]
    hosts = [s.kv_cache_manager.host_tables[name] for name in "ab"]
    p.see(hosts)
    plan = s.new_plan(64)
    for r in people:
        s._swap_in(plan, [r], p.call("builtins:dict", [(r, 1)]))
    p.see(plan.blocks_to_swap_in)
    p.see([s.kv_cache_manager.get_block_ids(name) for name in "ab"])
    seen = subject.run(p)
    assert len(seen) == 3, seen[-1:]
    (ana, ben), pairs, (mine, yours) = seen
    wanted = zip([*ana, *ben], [*mine, *yours], strict=True)
    assert sorted(map(tuple, pairs)) == sorted(wanted)


def test_16_4_as_many_tokens_and_slots_as_they_need(subject: Any) -> None:
    """One misses three tokens, and the worker makes three steps per plan."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 64, 8, 64)
    cache = p.new("mini_vllm.config:CacheConfig", 4, 13, False, num_cpu_blocks=12)
    options = p.new("mini_vllm.policies.v0_plan:V0Options", num_scheduler_steps=3)
    s = p.new("mini_vllm.policies.vllm_v0:VllmV0", config, cache, [], b"root", options)
    ana, ben = swapped(p, s, "a"), swapped(p, s, "b", answers=3)
    plan = s.new_plan(64)
    s._swap_in(plan, [ana, ben], p.call("builtins:dict", [(ana, 1), (ben, 3)]))
    p.see(plan.num_scheduled_tokens)
    p.see(plan.budget.remaining_token_budget())
    p.see(plan.budget.num_cached_tokens)  # what comes back was found in no cache
    p.see([p.call("builtins:len", s.kv_cache_manager.get_block_ids(name)) for name in "ab"])
    assert subject.run(p) == [{"a": 1, "b": 3}, 60, 0, [3, 3]]


def test_16_4_half_a_prompt_is_half_a_prompt(subject: Any) -> None:
    """It goes on where it was: a request in the prompt stage is so on the host, and when it is
    back."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 64, 8, 64)
    cache = p.new("mini_vllm.config:CacheConfig", 4, 13, False, num_cpu_blocks=12)
    s = p.new("mini_vllm.policies.vllm_v0:VllmV0", config, cache, [], b"root")
    ana, ben = (serve(p, s, request(p, name, [ord(name)] * 9), 0) for name in "ab")
    for r in (ana, ben):
        p.set(r, "num_preemptions", 1)
    s._prefilling.update(["a"])
    p.see([s._is_prefill(ana), s._is_prefill(ben)])
    s._swap_out(s.new_plan(64), [ana, ben])
    p.see([s._is_prefill(ana), s._is_prefill(ben)])
    s._swap_in(s.new_plan(64), [ana, ben], p.call("builtins:dict", [(ana, 3), (ben, 3)]))
    p.see([s._is_prefill(ana), s._is_prefill(ben)])
    assert subject.run(p) == [[True, False]] * 3


def test_16_4_lists_that_are_handed_over_stay(subject: Any) -> None:
    """The members of a group are fixed when it leaves, and how many tokens they need is read."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 64, 8, 64)
    cache = p.new("mini_vllm.config:CacheConfig", 4, 13, False, num_cpu_blocks=12)
    s = p.new("mini_vllm.policies.vllm_v0:VllmV0", config, cache, [], b"root")
    people = [serve(p, s, request(p, name, [ord(name)] * 6)) for name in "ab"]
    for r in people:
        p.set(r, "num_preemptions", 1)
    group = p.call("builtins:list", people)
    s._swap_out(s.new_plan(64), group)
    group.clear()
    p.see_each(s.swapped[0], "request_id")
    tokens = p.call("builtins:dict", [(r, 1) for r in people])
    s._swap_in(s.new_plan(64), people, tokens)
    p.see([p.call("builtins:len", tokens), p.call("builtins:list", tokens.values())])
    assert subject.run(p) == [["a", "b"], [2, [1, 1]]]


# ------------------------------------------------------------------ 16.5


def test_16_5_tokens_count_as_room(subject: Any) -> None:
    """Blocks and a row are free, but a prompt of nine does not fit a step of eight tokens."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 64, 8, 64, "priority")
    cache = p.new("mini_vllm.config:CacheConfig", 4, 21, False)
    s = p.new("mini_vllm.policies.vllm_v0:VllmV0", config, cache, [], b"root")
    for name, arrival in (("a", 0.0), ("b", 1.0)):
        run_on(p, s, request(p, name, [ord(name)] * 6, 2, arrival))
    s.add_request(request(p, "w", [9] * 9, 1))
    for budget in (16, 8):
        plan = s.new_plan(budget)
        p.see(s._schedule_priority_preemption(plan))
        p.see_each(plan.preempted, "request_id")
    assert subject.run(p) == [0, [], 2, ["b", "a"]]


def test_16_5_as_many_go_as_it_takes(subject: Any) -> None:
    """Five came after the one that waits, and all five go; one that came a tenth of a second
    before it stays, though it does not fit even so."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 64, 8, 64, "priority")
    cache = p.new("mini_vllm.config:CacheConfig", 4, 14, False)
    s = p.new("mini_vllm.policies.vllm_v0:VllmV0", config, cache, [], b"root")
    for name, arrival in zip("abcdef", (0.1, 0.3, 0.4, 0.5, 0.6, 0.7), strict=True):
        run_on(p, s, request(p, name, [ord(name)] * 6, 1, arrival))
    s.add_request(request(p, "w", [9] * 48, 1, 0.2))
    plan = s.new_plan(64)
    p.see(s._schedule_priority_preemption(plan))
    p.see_each(plan.preempted, "request_id")
    p.see_each(s.running, "request_id")
    assert subject.run(p) == [5, ["f", "e", "d", "c", "b"], ["a"]]


@pytest.mark.parametrize("status", ["WAITING", "PREEMPTED"])
@pytest.mark.parametrize("later", [2.0**-30, 1e-5, 1.0])
def test_16_5_by_however_little(subject: Any, status: str, later: float) -> None:
    """One that came a moment after the one that waits must go, and one that came with it or before
    may stay. The one that waits may have run before."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", 64, 8, 64, "priority")
    cache = p.new("mini_vllm.config:CacheConfig", 4, 7, False)
    s = p.new("mini_vllm.policies.vllm_v0:VllmV0", config, cache, [], b"root")
    for name, arrival in (("a", 1.0 - later), ("b", 1.0), ("c", 1.0 + later)):
        run_on(p, s, request(p, name, [ord(name)] * 6, 1, arrival))
    waiting = request(p, "w", [9] * 12, 1, 1.0)
    s.add_request(waiting)
    p.set(waiting, "status", p.name(f"mini_vllm.request:RequestStatus.{status}"))
    plan = s.new_plan(64)
    p.see(s._schedule_priority_preemption(plan))
    p.see_each(plan.preempted, "request_id")
    assert subject.run(p) == [1, ["c"]]


@many
@given(data=st.data())
def test_16_5_any_office(subject: Any, reference: Any, data: Any) -> None:
    """Any urgencies, one group among them, and one that waits."""
    p = Program()
    blocks, rows = data.draw(st.integers(10, 20)), data.draw(st.integers(5, 7))
    config = p.new("mini_vllm.config:SchedulerConfig", 64, rows, 64, "priority")
    cache = p.new("mini_vllm.config:CacheConfig", 4, blocks + 1, False)
    options = p.new("mini_vllm.policies.v0_plan:V0Options", watermark=0.0)
    s = p.new("mini_vllm.policies.vllm_v0:VllmV0", config, cache, [], b"root", options)
    names = data.draw(st.permutations(["a", "b", "c", "0_g", "1_g"]))
    small = st.integers(0, 3)
    pairs = st.tuples(small, small.map(float))  # the order among equals is not defined
    lone = data.draw(st.lists(pairs, min_size=3, max_size=3, unique=True))
    for name in names:
        urgency = (2, 1.5) if "_" in name else lone.pop()
        run_on(p, s, request(p, name, [5] * 6 if "_" in name else [ord(name)] * 6, *urgency))
    if data.draw(st.integers(0, 5)):
        length = data.draw(st.sampled_from([1, 6, 9, 15, 28, 60]))
        s.add_request(request(p, "w", [9] * length, data.draw(small), float(data.draw(small))))
    plan = s.new_plan(data.draw(st.sampled_from([8, 64])))
    p.see(s._schedule_priority_preemption(plan))
    p.see_each(plan.preempted, "request_id")
    p.see_each(s.running, "request_id")
    p.see(s.kv_cache_manager.num_free_blocks)
    yours, theirs = subject.run(p), reference.run(p)
    assert len(yours) == len(theirs), yours[-1:]
    for seen in (yours, theirs):
        seen[1] = [name[-1] for name in seen[1]]  # members of a group leave in any order
    assert yours == theirs
