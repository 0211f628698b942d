"""Several groups over one pool, and whole replays with the learner's modules in the engine."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program
from labkit.trace import golden
from labkit.trace.diff import first_parting
from labkit.trace.generate import generate

many = settings(max_examples=8)
seeds = given(seed=st.integers(0, 2**31))
FULL = {"kind": "full", "block_size": 4}
STATE = {"kind": "mamba", "block_size": 4, "mode": "align"}


def window(size: int, block_size: int = 4) -> dict[str, Any]:
    return {"kind": "sliding_window", "block_size": block_size, "window": size}


def local(chunk: int) -> dict[str, Any]:
    return {"kind": "chunked_local", "block_size": 4, "chunk": chunk}


MODELS = [
    [FULL, window(9)],
    [window(9), FULL],
    [FULL, STATE],
    [window(13), STATE],
    [FULL, window(9), STATE],
    [FULL, window(13), local(16)],
    [local(8), window(17), FULL],
    [window(9), window(17), FULL],
    [FULL, window(9), FULL, window(9)],
    [STATE, STATE, STATE, FULL],
    [FULL, window(9, 8)],
    [window(9, 8), FULL, window(21)],
    [{"kind": "full", "block_size": 8}, window(9), window(21)],
    [FULL, FULL],
    [FULL, {"kind": "mamba", "block_size": 8, "mode": "all"}],
    [FULL, window(13, 6)],
    [{"kind": "full", "block_size": 6}, window(9), window(21)],
]


def same(subject: Any, reference: Any, p: Program, names: list[str]) -> None:
    yours, right = subject.run(p), reference.run(p)
    for name, mine, other in zip(names, yours, right, strict=False):
        assert mine == other, f"{name}: {mine}"
    assert len(yours) == len(right)


# ------------------------------------------------------------------ 18.5


def filed(p: Program, hy: Any, draw: Random, groups: list[Any], number: int = 24) -> Any:
    """A manager, and a request of which some blocks are findable in each group."""
    owner = hy.hybrid(p, groups, blocks=150)
    made = hy.request(p, "a", number * 4, owner.block_hasher)
    for index, fields in enumerate(groups):
        blocks = number * 4 // fields["block_size"]
        sparse = draw.choice((0.6, 0.85, 1.0)) if fields["kind"] != "full" else 1.0
        end = draw.randint(0, blocks) if fields["kind"] == "full" else blocks
        places = [i for i in range(end) if draw.random() < sparse]
        hy.file(owner.managers[index], made, {index: places})
    return owner, made


@pytest.mark.parametrize("groups", MODELS, ids=lambda g: "-".join(one["kind"][:4] for one in g))
@settings(many, max_examples=4)
@seeds
def test_18_5_any_prefix(
    subject: Any, reference: Any, hy: Any, groups: list[Any], seed: int
) -> None:
    """Any blocks findable: the tables of all groups, and the tokens."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(6):
        owner, made = filed(p, hy, draw, groups)
        limit = draw.choice((95, draw.randint(0, 95)))
        answer = owner._common_hit(made, limit)
        p.see(answer[1])
        names.append(f"{groups}, limit {limit}: tokens")
        for index in range(len(groups)):
            p.see_each(answer[0][index], "block_id")
            names.append(f"{groups}, limit {limit}: group {index}")
        hy.see_pool(p, owner.block_pool)
        names += ["the pool after a lookup"] * 2
    same(subject, reference, p, names)


def test_18_5_as_many_rounds_as_it_takes(subject: Any, hy: Any) -> None:
    """A window and a state accept other lengths eight times in turn, until both accept 12."""
    p = Program()
    owner = hy.hybrid(p, [FULL, window(9), STATE], blocks=150)
    made = hy.request(p, "a", 96, owner.block_hasher)
    hy.file(owner.managers[0], made, {0: range(24)})
    hy.file(owner.managers[1], made, {1: [1, 2, 5, 6, 10, 11, 15, 16, 20, 21]})
    hy.file(owner.managers[2], made, {2: [2, 8, 13, 18]})
    answer = owner._common_hit(made, 95)
    p.see(answer[1])
    p.see(p.call("builtins:len", answer[0][0]))
    assert subject.run(p) == [12, 3]


@pytest.mark.parametrize("others", [[window(9)], [window(9), STATE]], ids=["one", "two"])
def test_18_5_full_layers_are_looked_up_once(subject: Any, hy: Any, others: list[Any]) -> None:
    """Whatever the rest says; beside full alone the other kind is asked once, too."""
    p = Program()
    owner = hy.hybrid(p, [FULL, *others], blocks=150)
    made = hy.request(p, "a", 96, owner.block_hasher)
    hy.file(owner.managers[0], made, {0: range(24)})
    hy.file(owner.managers[1], made, {1: [3, 4, 10, 11]})
    if len(others) > 1:
        hy.file(owner.managers[2], made, {2: [4, 7]})
    for index in (0, 1):
        counted = p.call("functools:lru_cache", 0)(owner.managers[index].find_hit)
        p.set(owner.managers[index], "find_hit", counted)
    answer = owner._common_hit(made, 95)
    p.see(answer[1])
    p.see(owner.managers[0].find_hit.cache_info().misses)
    p.see(owner.managers[1].find_hit.cache_info().misses)
    tokens, full, other = subject.run(p)
    assert (tokens, full) == (48 if len(others) == 1 else 20, 1)
    assert other == 1 if len(others) == 1 else other > 1


def test_18_5_full_has_whole_blocks_only(subject: Any, hy: Any) -> None:
    """Full's blocks hold 8 tokens. It finds 24, and a state says 20, as one may that ends anywhere:
    full cuts it to 16, and the window is asked for no more."""
    p = Program()
    owner = hy.hybrid(p, [{"kind": "full", "block_size": 8}, window(9), STATE], blocks=150)
    made = hy.request(p, "a", 96, owner.block_hasher)
    hy.file(owner.managers[0], made, {0: range(3)})
    for index, first in {1: 24, 2: 20}.items():
        tables = [[list(range(length // 4))] for length in (first, *[16] * 9)]
        asked = p.new("unittest.mock:Mock", side_effect=tables)
        p.set(owner.managers[index], "find_hit", asked)
    answer = owner._common_hit(made, 95)
    p.see(answer[1])
    p.see(p.call("builtins:len", answer[0][0]))
    p.see(owner.managers[1].find_hit.call_args_list[1].args[1])
    assert subject.run(p) == [16, 2, 16]


# ------------------------------------------------------------------ 18.6


@pytest.mark.parametrize("groups", MODELS, ids=lambda g: "-".join(one["kind"][:4] for one in g))
@settings(many, max_examples=4)
@seeds
def test_18_6_any_growth(
    subject: Any, reference: Any, hy: Any, groups: list[Any], seed: int
) -> None:
    """Requests that grow, the first from hits; at last one that does not fit."""
    draw, p, names = Random(seed), Program(), []
    owner = hy.hybrid(p, groups, blocks=150)
    made = hy.request(p, "a", 96, owner.block_hasher)
    for index, fields in enumerate(groups):
        hy.file(owner.managers[index], made, {index: range(32 // fields["block_size"])})
    hits = owner.get_computed_blocks(made)[0].groups
    computed = draw.randint(0, 1) * 32
    tables = [hits[i] for i in range(len(groups))] if computed else [[] for _ in groups]
    for _ in range(6):
        new = draw.choice((1, 4, draw.randint(1, 20)))
        given = owner._give_blocks("a", computed + new, tables, computed, draw.randint(0, 3))
        for index in range(len(groups)):
            p.see_each(given[index], "block_id")
            p.see_each(owner.managers[index].req_to_blocks["a"], "block_id")
        hy.see_pool(p, owner.block_pool)
        names += [f"{groups}, {new} tokens after {computed}"] * (2 * len(groups) + 2)
        computed, tables = computed + new, [[] for _ in groups]
    p.see(owner._give_blocks("a", computed + 1, tables, computed, 10_000))
    hy.see_pool(p, owner.block_pool)
    names += ["more reserved than there is: the answer, and what went back"] * 3
    same(subject, reference, p, names)


@pytest.mark.parametrize("groups", MODELS, ids=lambda g: "-".join(one["kind"][:4] for one in g))
def test_18_6_what_becomes_findable(
    subject: Any, reference: Any, hy: Any, groups: list[Any]
) -> None:
    """After each call: the names that the pool knows, of all groups; nothing with caching off."""
    p, names = Program(), []
    for caching in (True, False):
        owner = hy.hybrid(p, groups, 150, caching)
        made = hy.request(p, "a", 96, owner.block_hasher)
        owner._give_blocks("a", 96, [[] for _ in groups], 0, 0)
        for tokens in (3, 7, 13, 18, 24, 95):
            owner.cache_tokens(made, tokens)
            p.see(p.call("builtins:sorted", owner.block_pool.cached_blocks))
            names.append(f"{groups}, caching {caching}, {tokens} tokens")
    same(subject, reference, p, names)


def test_18_6_no_group_takes_the_hit_of_another(subject: Any, hy: Any) -> None:
    """The window's hits are the next blocks that the pool gives out: full's new block must come
    behind them, and they stay findable."""
    p = Program()
    owner = hy.hybrid(p, [FULL, window(9)], blocks=6)
    made = hy.request(p, "a", 12, owner.block_hasher)
    hy.file(owner.managers[1], made, {1: [0, 1]})
    hy.file(owner.managers[0], made, {0: [0, 1]})
    owner.block_pool.free_blocks(owner.block_pool.get_new_blocks(2))
    hits = owner.get_computed_blocks(made)[0].groups
    owner._give_blocks("a", 12, [hits[0], hits[1]], 8, 0)
    for index in range(2):
        p.see_each(owner.managers[index].req_to_blocks["a"], "block_id")
    p.see(p.call("builtins:len", owner.block_pool.cached_blocks))
    full, windows, findable = subject.run(p)
    assert (full, windows) == ([3, 4, 5], [1, 2, 6]), (
        f"full's table is {full} and the window's {windows}; both begin with their own hits, [3, 4]"
        " and [1, 2], before a group takes a new block"
    )
    assert findable == 4, f"{findable} of 4 hits are findable; a block that is hit is not given out"


def test_18_6_without_hits_none_are_added(subject: Any, hy: Any) -> None:
    """A request that runs has its table already: `add_hits` is for those that come with hits."""
    p = Program()
    owner = hy.hybrid(p, [FULL, window(9)])
    for index in range(2):
        p.set(owner.managers[index], "add_hits", None)
    owner._give_blocks("a", 12, [[], []], 8, 0)
    p.see_each(owner.managers[0].req_to_blocks["a"], "block_id")
    assert subject.run(p) == [[1, 2, 3]]


# ------------------------------------------------------------------ 18.8


@many
@seeds
def test_18_8_any_chunk(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    """Prompts and resumed requests, any budget; states that are kept, that are not, and none."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(60):
        size = draw.choice((2, 4, 7))
        kept = {"kind": "mamba", "block_size": size, "mode": draw.choice(("align", "align", "all"))}
        groups = draw.choice(
            ([kept], [{"kind": "full", "block_size": size}, kept], [window(5, size)])
        )
        steps = p.new(f"{hy.HYBRID}GroupSteps", [hy.spec(p, fields) for fields in groups])
        prompt, output = draw.randint(1, 40), draw.choice((0, draw.randint(1, 12)))
        if output and draw.random() < 0.5:
            output += -(prompt + output) % size  # its newest token fills a block
        made = hy.request(p, "a", prompt)
        made.append_output_token_ids(list(range(output)))
        computed = draw.randint(0, prompt + output - 1)
        if draw.random() < 0.5:
            computed = computed // size * size
        new = draw.randint(1, prompt + output - computed)
        p.see(steps.limit_tokens(made, computed, new))
        names.append(f"{groups}, prompt {prompt}, output {output}, {new} after {computed}")
    same(subject, reference, p, names)


@many
@seeds
def test_18_8_any_states_move(subject: Any, reference: Any, hy: Any, seed: int) -> None:
    """Several requests in one plan."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(12):
        owner = hy.manager(p, {**STATE, "block_size": draw.choice((1, 2, 4))}, blocks=400)
        computed = {f"r{i}": draw.choice((0, draw.randint(0, 20))) for i in range(4)}
        new = {name: draw.randint(1, 12) for name in draw.sample(sorted(computed), 3)}
        for name in computed:
            hy.seat(p, owner, name, 40)
        output = p.call(
            "types:SimpleNamespace",
            num_scheduled_tokens=new,
            num_computed_tokens=p.call("builtins:dict", computed).get,
        )
        steps = p.new(f"{hy.HYBRID}GroupSteps", [owner.spec])
        p.see(steps._copies(owner, output))
        names.append(f"computed {computed}, new {new}")
    same(subject, reference, p, names)


RECORDINGS = golden.select("hybrid", limit=20)


@pytest.mark.parametrize("recorded", RECORDINGS, ids=lambda r: r.name)
def test_18_8_recordings_of_vllm(subject: Any, recorded: golden.Golden) -> None:
    """Every table, hit, copy, freed and forgotten block of vLLM's own scheduler."""
    parting = first_parting(subject.trace(recorded.trace.to_dict()), recorded.lines)
    assert not parting, f"recording {recorded.name}: {parting}"


@settings(many, max_examples=6, phases=[Phase.generate])
@seeds
def test_18_8_fresh_traces(subject: Any, reference: Any, seed: int) -> None:
    """Hybrid models with fresh traces."""
    trace = generate("hybrid", seed, 40).to_dict()
    parting = first_parting(subject.trace(trace), reference.trace(trace))
    assert not parting, f"seed {seed}: {parting}"
