"""Comparisons and searches that stay honest, and the choice of backends and platforms."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

EXPERIMENTS = "mini_vllm.observability.experiments:"
PLUGGING = "labkit.inside.plugging:"
many = settings(max_examples=5)
seeds = given(seed=st.integers(0, 2**31))

# ------------------------------------------------------------------ 19.5


def pairs(
    draw: Random, count: int, spread: float, factor: float
) -> tuple[list[float], list[float]]:
    """A machine that gets three times slower meanwhile."""
    drift = [1 + 2 * i / count for i in range(count)]
    old = [slow * draw.lognormvariate(0, spread) for slow in drift]
    return old, [slow * factor * draw.lognormvariate(0, spread) for slow in drift]


def compare(p: Program, old: list[float], new: list[float], **keys: int) -> None:
    found = p.call(f"{EXPERIMENTS}compare_pairs", old, new, **keys)
    p.see([found.ratio, found.low, found.high, found.pairs])


@many
@seeds
def test_19_5_any_times(subject: Any, reference: Any, seed: int) -> None:
    """The ratio to the last digits; the interval as wide as the reference's, whatever it draws."""
    draw, p = Random(seed), Program()
    for count in (3, 12, 40):
        for factor in (0.5, 1.0, 1.03):
            compare(p, *pairs(draw, count, 0.1, factor), seed=draw.randint(0, 99))
    for yours, right in zip(subject.run(p), reference.run(p), strict=True):
        assert math.isclose(yours[0], right[0], rel_tol=1e-9), f"ratio {yours[0]}"
        assert yours[3] == right[3] and yours[1] <= yours[0] <= yours[2]
        if right[3] == 3:
            continue  # three pairs have ten different means: the ends jump from one to the next
        width, usual = math.log(yours[2] / yours[1]), math.log(right[2] / right[1])
        assert 0.88 * usual < width < 1.14 * usual, f"{right[3]} pairs: an interval of {width:.4f}"
        for end in (1, 2):
            assert abs(math.log(yours[end] / right[end])) < 0.15 * usual, f"end {yours[end]}"


def test_19_5_the_interval_holds_the_truth(subject: Any) -> None:
    """100 experiments with no difference, 20 pairs each: about 95 intervals hold 1."""
    draw, p = Random(5), Program()
    for _ in range(100):
        compare(p, *pairs(draw, 20, 0.05, 1.0), draws=200)
    held = sum(low <= 1 <= high for _, low, high, _ in subject.run(p))
    assert 84 <= held <= 99, f"{held} of 100 intervals hold the truth"


def test_19_5_repeats(subject: Any) -> None:
    """The same seed, the same interval; another one, others."""
    draw, p = Random(6), Program()
    old, new = pairs(draw, 12, 0.2, 1.0)
    for seed in (3, 3, 4, 5):
        compare(p, old, new, seed=seed, draws=60)
    first, again, *others = subject.run(p)
    assert first == again and any(other != first for other in others)


def test_19_5_the_global_generator_is_not_used(subject: Any) -> None:
    """What other code draws afterwards is what it draws without the comparison."""
    draw, p = Random(7), Program()
    old, new = pairs(draw, 12, 0.2, 1.0)
    for compares in (False, True):
        p.call("random:seed", 11)
        if compares:
            compare(p, old, new, draws=60)
        p.see(p.call("random:random"))
    before, _, behind = subject.run(p)
    assert before == behind, "random.random() gives another number after compare_pairs"


def test_19_5_what_cannot_be_compared(subject: Any) -> None:
    """Too few, without a partner, and times of nothing."""
    p = Program()
    for old, new in (
        ([1.0, 1.0], [1.0, 1.0]), ([], []), ([1.0] * 4, [1.0] * 3), ([1.0] * 3, [1.0] * 4),
        ([1.0, 1.0, 0.0], [1.0] * 3), ([1.0] * 3, [1.0, -1.0, 1.0]), ([1.0] * 3, [0.0, 1.0, 1.0]),
    ):  # fmt: skip
        p.refuse("ValueError", p.name(f"{EXPERIMENTS}compare_pairs"), old, new)
    assert subject.run(p) == []


# ------------------------------------------------------------------ 19.6


def search(p: Program, figures: dict[Any, Any], configs: list[Any], least: int, most: int) -> None:
    """See what a search has found, told and asked."""
    table = p.new(f"{PLUGGING}Table", figures)
    promise = p.new(f"{EXPERIMENTS}Promise", 1.0, 0.125)
    found = p.call(f"{EXPERIMENTS}successive_halving", configs, table, promise, least, most)
    p.see([found.best, found.nearest])
    for attribute in ("config", "requests", "ttft_p99", "tpot_p50", "strain"):
        p.see_each(found.measured, attribute)
    p.see(table.asked)


def by_round(seen: list[Any]) -> list[Any]:
    """What was found; and of each measurement all that was told, in an order of its own."""
    answers = []
    for i in range(0, len(seen), 7):
        found, *columns, asked = seen[i : i + 7]
        told = sorted(zip(*columns, strict=True), key=lambda row: (row[1], str(row[0])))
        questions = sorted(((n, str(config)) for config, n in asked))
        assert [(config, n) for config, n, *_ in zip(*columns, strict=True)] == [
            tuple(pair) for pair in asked
        ], "measured is not what was asked, in order"
        answers.append((found, told, questions))
    return answers


@many
@seeds
def test_19_6_any_search(subject: Any, reference: Any, seed: int) -> None:
    """Up to 17 configurations, many equally good, whose long measurements differ from the short."""
    draw, p = Random(seed), Program()
    for _ in range(16):
        least = draw.choice((1, 5, 8, 10))
        most = least * draw.choice((1, 2, 3, 4, 7, 8)) + draw.choice(
            (0, 0, 1)
        )  # at most 4 doublings
        configs = [f"c{i}" for i in range(draw.randint(1, 17))]
        draw.shuffle(configs)
        scale = draw.choice((0.25, 1.0))
        figures = {
            (config, n): (scale * draw.randint(1, 9) / 4, scale * draw.randint(1, 9) / 32)
            for config in configs
            for n in {min(least * 2**k, most) for k in range(5)}
        }
        search(p, figures, configs, least, most)
    yours, right = by_round(subject.run(p)), by_round(reference.run(p))
    for mine, other in zip(yours, right, strict=True):
        assert mine[2] == other[2], f"{len(other[2])} measurements were due: {mine[2]}"
        assert mine == other


def test_19_6_configurations_of_any_kind(subject: Any) -> None:
    """They are handed on as they are, and need not be ordered or hashed."""
    p = Program()
    configs = [{"seats": 4}, {"seats": 16}, {"seats": 2}]
    first = p.call("builtins:list", [p.call("builtins:dict", config) for config in configs])
    measure = p.call("functools:partial", p.name("labkit.inside.plugging:by_seats"), 1.0)
    promise = p.new(f"{EXPERIMENTS}Promise", 1.0, 1.0)
    found = p.call(f"{EXPERIMENTS}successive_halving", first, measure, promise, 2, 8)
    p.see([found.best, found.nearest])
    p.see_each(found.measured, "requests")
    assert subject.run(p) == [[{"seats": 16}, {"seats": 16}], [2, 2, 2, 4, 4, 8]]


def test_19_6_none_is_none(subject: Any) -> None:
    """A promise that holds while it is measured for a short time only, and one that just holds."""
    p = Program()
    short = {("a", 4): (0.5, 0.1), ("b", 4): (0.75, 0.1), ("a", 8): (1.001, 0.1)}
    search(p, short, ["a", "b"], 4, 8)
    just = {("a", 4): (2.0, 0.1), ("b", 4): (1.5, 0.1), ("b", 8): (1.0, 0.125)}
    search(p, just, ["a", "b"], 4, 8)
    seen = subject.run(p)
    assert [seen[0], seen[7]] == [[None, "a"], ["b", "b"]]


def test_19_6_the_better_half_may_be_far_from_the_promise(subject: Any) -> None:
    """Three of four strain a promise a thousand times too much; the best of them goes on."""
    p = Program()
    short = {"a": 0.5, "b": 3000.0, "c": 2000.0, "d": math.inf}
    figures = {(config, 4): (time, 0.0) for config, time in short.items()}
    search(p, figures | {("a", 8): (4000.0, 0.0), ("c", 8): (2500.0, 0.0)}, list(short), 4, 8)
    seen = subject.run(p)
    assert seen[0] == [None, "c"] and seen[6][4:] == [("a", 8), ("c", 8)]


def test_19_6_what_cannot_be_searched(subject: Any) -> None:
    """No configuration, and sizes that cannot be: nothing is measured."""
    p = Program()
    table = p.new(f"{PLUGGING}Table", {})
    promise = p.new(f"{EXPERIMENTS}Promise", 1.0, 1.0)
    halving = p.name(f"{EXPERIMENTS}successive_halving")
    for configs, least, most in (([], 1, 2), (["a"], 0, 2), (["a"], 3, 2), (["a"], -1, -1)):
        p.refuse("ValueError", halving, configs, table, promise, least, most)
    p.see(table.asked)
    assert subject.run(p) == [[]]


# ------------------------------------------------------------------ 19.9


def a_table(draw: Random) -> dict[str, str]:
    """Backends with up to three reasons, one without a validation, and one that is missing."""
    table = {
        f"b{i}": "labkit.inside.plugging.Says" + "".join(draw.choices(("_x", "_y", "_z"), k=k))
        for i, k in enumerate(draw.choices(range(4), (3, 2, 2, 1), k=draw.randint(1, 5)))
    }
    table["plain"], table["gone"] = "labkit.inside.plugging.Plain", "no_such_package.Gone"
    names = list(table)
    draw.shuffle(names)
    return {name: table[name] for name in names}


@many
@seeds
def test_19_9_any_backends(subject: Any, reference: Any, seed: int) -> None:
    """Any table, any platform: how many reasons, in which order, and which backend is asked."""
    draw, p, texts = Random(seed), Program(), []
    for _ in range(20):
        table = a_table(draw)
        offered = draw.sample([*table, "unknown"], draw.randint(1, len(table)))
        for name in draw.sample([*table, "unknown"], 3):
            p.see(p.call(f"{PLUGGING}backends", table, offered, "refusals", name))
            texts.append(f"refusals of {name}, {table}, offered {offered}")
        p.see(p.call(f"{PLUGGING}backends", table, offered, "valid"))
        texts.append(f"valid of {table}, offered {offered}")
    for text, mine, other in zip(texts, subject.run(p), reference.run(p), strict=True):
        assert sorted(mine["asked"]) == sorted(other["asked"]), f"{text}: asked {mine['asked']}"
        yours, right = mine["answer"], other["answer"]
        if text.startswith("valid"):
            assert yours[0] == right[0], f"{text}: {yours[0]}"
            assert list(yours[1]) == list(right[1]), f"{text}: refused {list(yours[1])}"
            lists = [(yours[1][name], right[1][name]) for name in right[1]]
        else:
            lists = [(yours, right)]
        for one, two in lists:
            assert len(one) == len(two), f"{text}: {one}"
            own = [reason for reason in two if reason.endswith(" on toy")]
            assert [reason for reason in one if reason.endswith(" on toy")] == own, f"{text}: {one}"
            assert one[len(one) - len(own) :] == own, f"{text}: its own come last: {one}"


@many
@seeds
def test_19_9_any_choice(subject: Any, reference: Any, seed: int) -> None:
    """The best, or the one that is asked for; an error that lacks no reason."""
    draw, p, cases = Random(seed), Program(), []
    for _ in range(20):
        table = a_table(draw)
        offered = draw.sample(list(table), draw.randint(1, len(table)))
        selected = draw.choice((None, *table, "slip"))
        p.see(p.call(f"{PLUGGING}backends", table, offered, "class", selected))
        p.see(p.call(f"{PLUGGING}backends", table, offered, "valid"))
        cases.append((table, offered, selected))
    yours, right = subject.run(p), reference.run(p)
    for i, (table, offered, selected) in enumerate(cases):
        mine, other, (_, refused) = yours[2 * i], right[2 * i], right[2 * i + 1]["answer"]
        assert mine.get("answer") == other.get("answer"), f"{table}, {offered}, {selected}: {mine}"
        if "error" not in other:
            continue
        wanted = [selected or "toy"]
        if selected is None:
            wanted += [reason for name in refused for reason in (name, *refused[name])]
        elif selected == "slip":
            wanted += list(table)
        else:
            wanted += refused.get(selected, offered)
        for piece in wanted:
            said = "no_such_package" if "no_such_package" in piece else piece  # in any words
            assert said in mine["error"], f"{table}, {offered}, {selected}: {mine['error']}"


def test_19_9_names_that_are_nearly_right(subject: Any) -> None:
    """An empty name and capitals are unknown names; a module without the class is a reason; and of
    two backends that cannot run each is named, with all that speaks against it."""
    p, ask = Program(), f"{PLUGGING}backends"
    table = {"b": f"{PLUGGING[:-1]}.Says_x_y", "plain": f"{PLUGGING[:-1]}.Plain"}
    table["half"] = f"{PLUGGING[:-1]}.Gone"
    for name in ("", "PLAIN", "plain"):
        p.see(p.call(ask, table, ["b", "plain"], "class", name))
    p.see(p.call(ask, table, ["half"], "refusals", "half"))
    p.see(p.call(ask, table, ["b", "half"], "class", None))
    empty, capitals, plain, half, none = subject.run(p)
    assert "error" in empty and "error" in capitals and plain["answer"] == "Plain"
    assert len(half["answer"]) == 1
    assert all(piece in none["error"] for piece in ("x on toy", "y on toy", "half", "Gone"))


# ------------------------------------------------------------------ 19.10

WORDS = ("toy", "other", "absent", "lost", "odd", "fails", "number", "no_such_package:f")
BROKEN = ("number", "no_such_package:f")


@many
@seeds
def test_19_10_any_plugins(subject: Any, reference: Any, seed: int) -> None:
    """Plugins of both groups, any choice: what is loaded, what is imported, and each warning."""
    draw, p, cases = Random(seed), Program(), []
    for _ in range(25):
        installed = [
            (draw.choice("abcdefgh"), draw.choice(WORDS), draw.choice(("general", "platform")))
            for _ in range(draw.randint(0, 6))
        ]
        chosen = draw.choice((None, None, "", " ", "a,b", " c , d,", "z"))
        group = draw.choice(("general", "platform"))
        p.see(p.call(f"{PLUGGING}plugins", installed, chosen, group))
        cases.append((installed, chosen, group))
    for case, mine, other in zip(cases, subject.run(p), reference.run(p), strict=True):
        assert ("error" in mine) == ("error" in other), f"{case}: {mine}"
        assert mine.get("answer") == other.get("answer"), f"{case}: {mine}"
        assert mine["loaded"] == other["loaded"], f"{case}: imported {mine['loaded']}"
        assert len(mine["said"]) == len(other["said"]), f"{case}: warned {mine['said']}"
        for warning, right in zip(mine["said"], other["said"], strict=True):
            assert right.split("'")[1] in warning, f"{case}: {warning}"
        if "error" in other:
            assert mine["error"].startswith("ValueError"), f"{case}: {mine['error']}"


@many
@seeds
def test_19_10_any_platforms(subject: Any, reference: Any, seed: int) -> None:
    """One platform, none, or a refusal that names all of them; what fails is named."""
    draw, p, cases = Random(seed), Program(), []
    for _ in range(25):
        names = draw.sample("abcdefgh", draw.randint(0, 5))
        weights = (3, 2, 2, 1, 1, 1, 1, 1)
        words = draw.choices(WORDS, weights, k=len(names))
        installed = [(name, word, "platform") for name, word in zip(names, words, strict=True)]
        chosen = draw.choice((None, None, None, "", "a,b,c", "z"))
        p.see(p.call(f"{PLUGGING}plugins", installed, chosen))
        cases.append((installed, chosen))
    for (installed, chosen), mine, other in zip(
        cases, subject.run(p), reference.run(p), strict=True
    ):
        case = f"{installed}, chosen {chosen!r}"
        assert mine.get("answer") == other.get("answer"), f"{case}: {mine}"
        assert len(mine["said"]) == len(other["said"]), f"{case}: warned {mine['said']}"
        named = [name for name, word, _ in installed if word in ("toy", "other")]
        if "error" in other:
            chosen_names = [name for name in named if chosen is None or name in chosen]
            assert "error" in mine and mine["error"].startswith("ValueError"), f"{case}: {mine}"
            for piece in (*chosen_names, "MINI_VLLM_PLUGINS"):
                assert piece in mine["error"], f"{case}: {mine['error']}"


def test_19_10_duplicates_are_told_apart(subject: Any) -> None:
    """Both functions are named; equal names in other groups, or left out, are none."""
    p = Program()
    twice = [("same", "toy", "platform"), ("b", "lost", "platform"), ("same", "other", "platform")]
    p.see(p.call(f"{PLUGGING}plugins", twice, None, "platform"))
    p.see(p.call(f"{PLUGGING}plugins", twice, "b", "platform"))
    apart = [("same", "toy", "platform"), ("same", "other", "general")]
    p.see(p.call(f"{PLUGGING}plugins", apart, None, "platform"))
    p.see(p.call(f"{PLUGGING}plugins", [twice[0], twice[0]], None, "platform"))
    both, left_out, groups, equal = subject.run(p)
    assert all(piece in both["error"] for piece in ("same", ":toy", ":other")), both
    assert both["loaded"] == [], "nothing is imported before the refusal"
    assert left_out["answer"] == [("b", "lost")] or left_out["answer"] == [["b", "lost"]]
    assert [tuple(pair) for pair in groups["answer"]] == [("same", "toy")]
    assert "error" in equal, "a package that is installed twice is a duplicate, too"
