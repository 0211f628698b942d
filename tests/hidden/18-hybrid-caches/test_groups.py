"""Groups of layers, and the blocks of each kind: the learner's answers beside the reference's."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=8)
seeds = given(seed=st.integers(0, 2**31))
STEPS = "labkit.inside.cost:steps"


def any_spec(draw: Random, *kinds: str, block_size: int = 0) -> dict[str, Any]:
    """A group of one of the kinds; a chunk ends with a block."""
    kind = draw.choice(kinds or ("full", "sliding_window", "chunked_local", "mamba"))
    size = block_size or draw.choice((1, 2, 4, 8))
    fields: dict[str, Any] = {"kind": kind, "block_size": size}
    if kind == "sliding_window":
        fields["window"] = draw.randint(1, 5 * size + 2)
    if kind == "chunked_local":
        fields["chunk"] = size * draw.randint(1, 5)
    if kind == "mamba":
        fields["mode"] = draw.choice(("none", "align", "all"))
    return fields


def same(subject: Any, reference: Any, p: Program, names: list[str]) -> None:
    """Both answer alike; the first that differs is named."""
    yours, right = subject.run(p), reference.run(p)
    for name, mine, other in zip(names, yours, right, strict=False):
        assert mine == other, f"{name}: {mine}"
    assert len(yours) == len(right)


# ------------------------------------------------------------------ 18.1, 18.2


@many
@seeds
def test_18_1_any_layers(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    """Up to 60 layers of up to 4 kinds, in any order."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(30):
        weights = [draw.choice((1, 2, 3, 6)) for _ in range(draw.randint(1, 4))]
        kinds = draw.choices(range(len(weights)), weights, k=draw.randint(1, 60))
        p.see(p.call(f"{hy.GROUPS}group_layers", kinds))
        names.append(f"layers {kinds}")
    same(subject, reference, p, names)


def test_18_1_kinds_are_equal_not_alike(subject: Any, hy: Any) -> None:
    """1 and 1.0 are one kind though they are written otherwise; 1 and "1" are two, and so are -1
    and -2, whose hashes are the same. The list of kinds is only read."""
    p = Program()
    kinds = p.call("builtins:list", [1, "1", 1.0, "1", 1, "1"])
    p.see(p.call(f"{hy.GROUPS}group_layers", kinds))
    p.see(kinds)
    p.see(p.call(f"{hy.GROUPS}group_layers", [-1, -2, -2, -1]))
    assert subject.run(p) == [[[0, 2, 4], [1, 3, 5]], [1, "1", 1.0, "1", 1, "1"], [[0, 3], [1, 2]]]


def test_18_1_thousands_of_layers(subject: Any, hy: Any) -> None:
    """Four times the layers cost about four times as much."""
    p = Program()
    for number in (1000, 4000):
        kinds = ["w" if i % 6 else "F" for i in range(number)]
        p.see(p.call(STEPS, p.name(f"{hy.GROUPS}group_layers"), kinds))
    few, lots = subject.run(p)
    assert lots < 8 * few


@many
@seeds
def test_18_2_any_kind(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    """What sequences of any length hold at once, under any budget."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(40):
        fields = any_spec(draw)
        args = draw.randint(0, 90), draw.randint(1, 40), draw.randint(1, 90)
        p.see(hy.spec(p, fields).peak_blocks(*args))
        names.append(f"{fields}.peak_blocks{args}")
    same(subject, reference, p, names)


@many
@seeds
def test_18_2_any_pool(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    """The longest sequence of any groups in any pool."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(30):
        groups = [any_spec(draw) for _ in range(draw.randint(1, 4))]
        args = draw.randint(0, 40), draw.randint(1, 40), draw.randint(1, 90)
        made = [hy.spec(p, fields) for fields in groups]
        p.see(p.call(f"{hy.GROUPS}longest_sequence", made, *args))
        names.append(f"{groups}, {args}")
    same(subject, reference, p, names)


def test_18_2_long_models_cost_little_more(subject: Any, hy: Any) -> None:
    """max_model_len of a thousand and of a million: twice the questions, not a thousand times."""
    p = Program()
    for most in (1000, 1_000_000):
        group = hy.spec(p, {"kind": "full", "block_size": 4})
        p.see(p.call(STEPS, p.name(f"{hy.GROUPS}longest_sequence"), [group], most // 5, 8, most))
    short, long = subject.run(p)
    assert long < 8 * short


# ------------------------------------------------------------------ 18.3


@many
@seeds
def test_18_3_any_table_shrinks_alike(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    """Steps of any length over tables that begin with nulls, or end early."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(12):
        fields = any_spec(draw, "full", "sliding_window", "chunked_local")
        owner = hy.manager(p, fields)
        nulls = draw.choice((0, 0, draw.randint(0, 4)))
        hy.seat(p, owner, "a", draw.randint(0, 20), nulls)
        computed = 0
        for _ in range(5):
            computed += draw.choice((1, 1, draw.randint(0, 30)))
            owner.release_skipped("a", computed)
            p.see(owner.num_skipped_tokens(computed))
            p.see_each(owner.req_to_blocks["a"], "block_id")
            hy.see_pool(p, owner.pool)
            names += [f"{fields}, {nulls} nulls, {computed} computed tokens"] * 4
    same(subject, reference, p, names)


@many
@seeds
def test_18_3_any_hits_begin_a_table(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    """Hits that are free or held, with nulls in front; a second call changes nothing."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(12):
        fields = any_spec(draw, "full", "sliding_window", "chunked_local")
        owner = hy.manager(p, fields)
        number, size = draw.randint(1, 12), fields["block_size"]
        nulls = draw.randint(0, number) if draw.random() < 0.4 else 0
        hits = [owner.null_block if i < nulls else owner.pool.blocks[i + 1] for i in range(number)]
        if nulls < number and draw.random() < 0.5:
            owner.pool.touch([hits[-1]])
        computed = number * size + draw.choice((0, 0, size))
        for _ in range(2):
            owner.add_hits("a", hits, computed)
            p.see_each(owner.req_to_blocks["a"], "block_id")
            p.see(owner.num_cached_blocks["a"])
            hy.see_pool(p, owner.pool)
            names += [f"{fields}, {number} hits, {nulls} of them null"] * 4
    same(subject, reference, p, names)


def test_18_3_hits_are_only_lent(subject: Any, hy: Any) -> None:
    """The list of hits stays what it was, also when the table that began with them grows; and two
    requests that begin with the same hits have a table each."""
    p = Program()
    owner = hy.manager(p, {"kind": "sliding_window", "block_size": 4, "window": 9})
    hits = p.call("builtins:list", [owner.pool.blocks[i] for i in (1, 2, 3, 4)])
    for name, computed in (("a", 4), ("b", 4), ("c", 16)):
        owner.add_hits(name, hits, computed)
        owner.add_blocks(name, 20)
        p.see_each(hits, "block_id")
        p.call("builtins:len", owner.req_to_blocks[name])
    for name in "abc":
        p.see(p.call("builtins:len", owner.req_to_blocks[name]))
    assert subject.run(p) == [[1, 2, 3, 4]] * 3 + [5, 5, 5]


def test_18_3_a_request_may_begin_with_nothing(subject: Any, hy: Any) -> None:
    """No hits, nothing skipped: its table is empty, and it has begun all the same."""
    p = Program()
    owner = hy.manager(p, {"kind": "full", "block_size": 4})
    owner.add_hits("a", [], 0)
    p.see(owner.num_cached_blocks["a"])
    owner.add_hits("a", [owner.pool.blocks[1]], 4)
    p.see_each(owner.req_to_blocks["a"], "block_id")
    p.see(owner.num_cached_blocks["a"])
    p.see(owner.pool.blocks[1].ref_cnt)
    assert subject.run(p) == [0, [], 0, 0]


def test_18_3_names_stay(subject: Any, reference: Any, hy: Any) -> None:
    """What left the window is findable until its block is given away, the oldest the longest."""
    p = Program()
    owner = hy.manager(p, {"kind": "sliding_window", "block_size": 4, "window": 5}, blocks=6)
    hy.seat(p, owner, "a", 6)
    made = hy.request(p, "a", 24)
    owner.pool.cache_full_blocks(
        owner.req_to_blocks["a"], [owner.key(made, index, 0) for index in range(6)]
    )
    owner.release_skipped("a", 24)
    for _ in range(4):
        for index in range(6):
            found = owner.pool.get_cached_block(owner.key(made, index, 0))
            p.see(p.call("operator:is_", found, None))
        owner.pool.get_new_blocks(1)
    same(subject, reference, p, ["what is still found, block by block"] * 24)


def test_18_3_a_block_of_two_requests(subject: Any, hy: Any) -> None:
    """One of them gives it back, and the other still holds it."""
    p = Program()
    owner = hy.manager(p, {"kind": "sliding_window", "block_size": 4, "window": 5})
    hy.seat(p, owner, "a", 4)
    owner.pool.touch([owner.pool.blocks[1]])
    owner.release_skipped("a", 12)
    p.see(owner.pool.blocks[1].ref_cnt)
    p.see_each(owner.req_to_blocks["a"], "block_id")
    assert subject.run(p) == [1, [0, 0, 3, 4]]


def test_18_3_a_step_costs_what_goes(subject: Any, hy: Any) -> None:
    """As much work behind 2000 null blocks as behind 10: what went earlier is not looked at."""
    p = Program()
    for nulls in (10, 2000):
        owner = hy.manager(p, {"kind": "sliding_window", "block_size": 4, "window": 5})
        hy.seat(p, owner, "a", 3, nulls)
        p.see(p.call(STEPS, owner.release_skipped, "a", 4 * nulls + 8))
    short, long = subject.run(p)
    assert long < 1.5 * short


# ------------------------------------------------------------------ 18.4


@pytest.mark.parametrize("hashes", [1, 2, 3])
def test_18_4_a_name_is_hashes_and_group(subject: Any, hy: Any, hashes: int) -> None:
    """In order, nothing between them, four bytes behind."""
    p = Program()
    fields = {"kind": "full", "block_size": 4 * hashes}
    owner = hy.manager(p, fields, hashed=4)
    made = hy.request(p, "a", 40)
    p.see(made.block_hashes)
    asked = [(0, 0), (1, 3), (2, 70000)]
    for index, group in asked:
        p.see(owner.key(made, index, group))
    own, *keys = subject.run(p)
    for key, (index, group) in zip(keys, asked, strict=True):
        joined = b"".join(own[index * hashes : (index + 1) * hashes])
        assert key == joined + group.to_bytes(4, "big")


@pytest.mark.parametrize("kind", ["sliding_window", "chunked_local"])
@many
@seeds
def test_18_4_any_blocks_are_found(
    subject: Any, reference: Any, hy: Any, kind: str, seed: int
) -> None:
    """One group or two, any blocks findable, any limit; of windows any alignment."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(20):
        fields = any_spec(draw, kind)
        size, number = fields["block_size"], draw.randint(1, 12)
        owner = hy.manager(p, fields)
        made = hy.request(p, "a", size * number, size=size)
        share = draw.choice((0.3, 0.7, 0.95))
        places = {g: [i for i in range(number) if draw.random() < share] for g in (0, 3)}
        hy.file(owner, made, places)
        groups = draw.choice(([0], [3], [0, 3]))
        limit = draw.randint(0, size * number)
        alignment = size * draw.choice((1, 1, 2, 3) if kind == "sliding_window" else (1,))
        tables = owner.find_hit(made, limit, groups, alignment)
        for index in range(len(groups)):
            p.see_each(tables[index], "block_id")
            names.append(f"{fields}, {places}, groups {groups}, limit {limit} to {alignment}")
        hy.see_pool(p, owner.pool)
        names += ["the pool after a lookup"] * 2
    same(subject, reference, p, names)


@many
@seeds
def test_18_4_windows_of_any_size(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    draw, p, names = Random(seed), Program(), []
    for _ in range(20):
        fields = any_spec(draw, "sliding_window")
        p.see(hy.manager(p, fields).num_neighbours())
        names.append(f"{fields}")
    same(subject, reference, p, names)


def test_18_4_the_right_end_answers_at_once(subject: Any, hy: Any) -> None:
    """The last blocks are there: a prompt of 40 blocks costs no more look-ups than one of 10."""
    p = Program()
    for number in (10, 40):
        owner = hy.manager(p, {"kind": "sliding_window", "block_size": 4, "window": 9})
        made = hy.request(p, "a", 4 * number)
        hy.file(owner, made, {0: range(number)})
        counted = p.call("functools:lru_cache", 0)(owner.pool.get_cached_block)
        p.set(owner.pool, "get_cached_block", counted)
        owner.find_hit(made, 4 * number, [0], 4)
        p.see(counted.cache_info().misses)
    assert subject.run(p) == [2, 2]


# ------------------------------------------------------------------ 18.7


@many
@seeds
def test_18_7_any_story_of_a_state(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    """Steps of any length: what is wanted, appended and let go of."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(8):
        fields = any_spec(draw, "mamba")
        owner, computed = hy.manager(p, fields), 0
        for _ in range(8):
            new = draw.choice((1, 1, 1, draw.randint(1, 4 * fields["block_size"])))
            owner.release_skipped("a", computed)
            p.see(owner.num_wanted_blocks("a", computed + new, [], computed))
            p.see_each(owner.add_blocks("a", computed + new), "block_id")
            p.see_each(owner.req_to_blocks["a"], "block_id")
            hy.see_pool(p, owner.pool)
            names += [f"{fields}, {new} tokens after {computed}"] * 5
            computed += new
        owner.release_skipped("a", computed)
        hy.see_pool(p, owner.pool)
        owner.free("a")
        hy.see_pool(p, owner.pool)
        names += [f"{fields}, {computed} tokens, then freed"] * 4
    same(subject, reference, p, names)


def test_18_7_a_state_stays_until_the_next_one_is_computed(
    subject: Any, reference: Any, hy: Any
) -> None:
    """With a plan on its way blocks are ahead of computed tokens: the state before goes when the
    tokens of its successor are computed, and not sooner."""
    p, names = Program(), []
    owner = hy.manager(p, {"kind": "mamba", "block_size": 4, "mode": "align"})
    for planned in (4, 8, 9):
        owner.add_blocks("a", planned)
    for computed in (4, 5, 8, 9):
        owner.release_skipped("a", computed)
        p.see_each(owner.req_to_blocks["a"], "block_id")
        hy.see_pool(p, owner.pool)
        names += [f"{computed} of 9 tokens are computed"] * 3
    same(subject, reference, p, names)


def test_18_7_a_table_that_is_long_enough(subject: Any, hy: Any) -> None:
    """Slots were asked for beyond the tokens that came: nothing is wanted, appended or noted until
    the table has to grow."""
    p = Program()
    owner = hy.manager(p, {"kind": "mamba", "block_size": 4, "mode": "align"})
    for num_tokens in (8, 12, 5, 4, 12, 13):
        p.see(owner.num_wanted_blocks("a", num_tokens, [], 4))
        p.see(p.call("builtins:len", owner.add_blocks("a", num_tokens)))
        p.see(owner.last_state.get("a"))
    p.see_each(owner.req_to_blocks["a"], "block_id")
    *seen, table = subject.run(p)
    assert seen == [1, 2, None, 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 2]
    assert table == [0, 1, 2, 3]


@many
@seeds
def test_18_7_any_hit_of_a_state(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    """Any states findable; and what a request wants that goes on from one."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(16):
        fields = {**any_spec(draw, "mamba"), "mode": draw.choice(("align", "all"))}
        size, number = fields["block_size"], draw.randint(1, 10)
        owner = hy.manager(p, fields)
        made = hy.request(p, "a", size * number, size=size)
        places = {g: [i for i in range(number) if draw.random() < 0.6] for g in (0, 3)}
        hy.file(owner, made, places)
        groups, limit = draw.choice(([0], [0, 3])), draw.randint(0, size * number)
        alignment = size * draw.choice((1, 1, 2))
        tables = owner.find_hit(made, limit, groups, alignment)
        for index in range(len(groups)):
            p.see_each(tables[index], "block_id")
            names.append(f"{fields}, {places}, groups {groups}, limit {limit} to {alignment}")
        if draw.random() < 0.5:
            owner.pool.touch([owner.pool.blocks[1]])
        p.see(owner.num_wanted_blocks("a", limit + draw.randint(1, 9), tables[0], limit))
        names.append(f"{fields}, {places}, limit {limit}: blocks wanted")
    same(subject, reference, p, names)


@pytest.mark.parametrize("mode", ["align", "all"])
def test_18_7_a_state_of_this_step_is_waited_for(
    subject: Any, reference: Any, hy: Any, mode: str
) -> None:
    """Ana's state is named in this step; a request that hits it waits for the next step."""
    p = Program()
    owner = hy.manager(p, {"kind": "mamba", "block_size": 4, "mode": mode}, blocks=9)
    ana, ben = hy.request(p, "ana", 8), hy.request(p, "ben", 12)
    owner.add_blocks("ana", 8)
    owner.publish(ana, 8, 4)
    tables = owner.find_hit(ben, 8, [0], 4)
    wanted = owner.num_wanted_blocks("ben", 12, tables[0], 8)
    p.see(p.call("builtins:min", wanted, 10))
    owner.step_planned()
    p.see(owner.num_wanted_blocks("ben", 12, tables[0], 8))
    same(subject, reference, p, ["in the same step", "one step later"])


def test_18_7_a_state_that_went_back_is_findable(subject: Any, hy: Any) -> None:
    """It keeps its name. And a long request wants one block, also for its whole sequence."""
    p = Program()
    owner = hy.manager(p, {"kind": "mamba", "block_size": 4, "mode": "align"})
    made = hy.request(p, "a", 16)
    owner.add_blocks("a", 4)
    owner.publish(made, 4, 4)
    owner.add_blocks("a", 16)
    owner.release_skipped("a", 16)
    p.see_each(owner.req_to_blocks["a"], "block_id")
    p.see(p.call("operator:is_", owner.pool.get_cached_block(owner.key(made, 0, 0)), None))
    p.see(owner.num_wanted_blocks("b", 40, [], 0, True))
    assert subject.run(p) == [[0, 0, 0, 2], False, 1]


def test_18_7_a_long_request_costs_no_more(subject: Any, hy: Any) -> None:
    """One more block is as much work behind 2000 of them as behind 10."""
    p = Program()
    for nulls in (10, 2000):
        owner = hy.manager(p, {"kind": "mamba", "block_size": 4, "mode": "align"})
        hy.seat(p, owner, "a", 1, nulls)
        p.see(p.call(STEPS, owner.release_skipped, "a", 4 * nulls + 4))
        p.see(p.call(STEPS, owner.add_blocks, "a", 4 * nulls + 8))
    one, two, three, four = subject.run(p)
    assert three < 1.5 * one and four < 1.5 * two
