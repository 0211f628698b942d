"""The engine's loop and its end, admission, figures, calls and loads: random problems."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=25)


METRICS = "mini_vllm.observability.metrics:"


def play(worker: Any, scene: str, *args: Any, **more: Any) -> Any:
    """What a scene of labkit.inside.serving shows."""
    p = Program()
    p.see(p.call(f"labkit.inside.serving:{scene}", *args, **more))
    (seen,) = worker.run(p)
    return seen


def left_by(worker: Any, text: str, *wanted: str) -> list[Any]:
    """What a piece of Python leaves behind under these names."""
    p = Program()
    names = p.execute(text)
    p.see([names[name] for name in wanted])
    (seen,) = worker.run(p)
    return list(seen)


def call(worker: Any, target: str, *args: Any) -> Any:
    p = Program()
    p.see(p.call(target, *args))
    (seen,) = worker.run(p)
    return seen


names = st.sampled_from("abcd")
adds = st.builds(
    lambda name, bad: ["ADD", name, "bad" if bad else f"request {name}"], names, st.booleans()
)
aborts = st.builds(lambda found: ["ABORT", sorted(found)], st.sets(names, max_size=2))
ends = st.builds(lambda seconds: ["SHUTDOWN", seconds], st.sampled_from([0.0, 2.0, 5.0]))
messages = st.one_of(adds, adds, aborts, ends, st.just(["RESUME"]))
running = st.dictionaries(names, st.integers(1, 6), max_size=3)


@many
@given(running=running, there=st.lists(messages, max_size=4), later=st.lists(messages, max_size=3),
       state=st.sampled_from(["RUNNING", "RUNNING", "REQUESTED"]),
       paused=st.sampled_from(["UNPAUSED", "UNPAUSED", "PAUSED_NEW", "PAUSED_ALL"]))  # fmt: skip
def test_14_3_random_mail(
    subject: Any, reference: Any, running: Any, there: Any, later: Any, state: str, paused: str
) -> None:
    """When it sleeps, when it says that it is idle, and what it takes before the next step."""
    words = running, there, [*later, ["ADD", "z", "request z"]], state, paused
    assert play(subject, "take_messages", *words) == play(reference, "take_messages", *words)


def test_14_3_asleep_and_awake(subject: Any) -> None:
    """It sleeps with nothing to do, and with nothing else."""
    idle = play(subject, "take_messages", {}, [], [["ABORT", ["x"]], ["ADD", "b", "r"]])["diary"]
    assert (
        idle.count(["slept"]) == 2 and idle.count(["idle"]) == 2 and idle[-1] == ["handled", "ADD"]
    )
    assert ["slept with a timeout"] not in idle, "an idle engine does not ask again and again"
    assert play(subject, "take_messages", {"a": 2}, [])["diary"] == []
    burst = [["ADD", f"r{i}", "r"] for i in range(1_000)]
    assert play(subject, "take_messages", {"a": 2}, burst)["left"] == 0


@many
@given(running=running, there=st.lists(messages, min_size=1, max_size=5))
def test_14_3_random_messages(subject: Any, reference: Any, running: Any, there: Any) -> None:
    """What each message does, and what each request is told."""
    yours, theirs = (play(p, "handle_messages", running, there) for p in (subject, reference))
    for seen in (yours, theirs):  # ids may be ended together or one by one
        seen["diary"] = [
            each
            for line in seen["diary"]
            for each in ([["aborted", i] for i in line[1]] if line[0] == "aborted" else [line])
        ]
    assert yours == theirs


def test_14_3_one_bad_request(subject: Any) -> None:
    """It is told why, and the next one gets in; after a shutdown was asked for, none does."""
    there = [["ADD", "x", "bad"], ["ADD", "w", "broken"], ["ADD", "y", "good"]]
    there += [["SHUTDOWN", 1.0], ["ADD", "z", "late"]]
    seen = play(subject, "handle_messages", {}, there)
    assert seen["diary"] == [["added", ["prepared", "good"]]]
    assert [line[:2] for line in seen["sent"]] == [["x", "error"], ["w", "error"], ["z", "abort"]]


def test_14_3_an_engine_that_shuts_down_stays_awake(subject: Any) -> None:
    """Once an end was asked for there is nothing to wait for, with work or without; what is there
    is taken all the same."""
    for state in ("REQUESTED", "SHUTTING_DOWN"):
        seen = play(subject, "take_messages", {}, [], [["ADD", "b", "r"]], state)
        assert seen["diary"] == []
        seen = play(subject, "take_messages", {}, [["ABORT", ["x"]], ["RESUME"]], [], state)
        assert seen["diary"] == [["handled", "ABORT"], ["handled", "UTILITY"]]
        assert seen["left"] == 0


def test_14_3_each_kind_does_its_own(subject: Any) -> None:
    """A call is answered, ids are aborted, of several ends the earliest counts."""
    seen = play(subject, "handle_messages", {"a": 3}, [["RESUME"], ["ABORT", ["a"]]])
    assert seen["sent"] == [["ANSWER", 5, None]] and seen["diary"] == [["aborted", ["a"]]]
    assert seen["state"] == "RUNNING" and math.isinf(seen["deadline"])
    for first, second in ((4.0, 7.0), (7.0, 4.0)):
        words = [["SHUTDOWN", first], ["SHUTDOWN", second], ["ADD", "z", "late"]]
        seen = play(subject, "handle_messages", {"a": 3}, words)
        assert (seen["state"], seen["deadline"]) == ("REQUESTED", 4.0)
        assert seen["sent"] == [["z", "abort", None]] and seen["diary"] == []


def test_14_3_bytes_that_are_no_request(subject: Any) -> None:
    """What cannot be decoded is told so like what cannot be served, and the next one gets in."""
    there = [["ADD", "x", "no request"], ["ADD", "y", "good"]]
    seen = play(subject, "handle_messages", {}, there)
    assert [line[:2] for line in seen["sent"]] == [["x", "error"]] and seen["sent"][0][2]
    assert seen["diary"] == [["added", ["prepared", "good"]]]


def test_14_3_no_request_is_admitted_while_the_loop_ends(subject: Any) -> None:
    """While the loop is being left, a new request is told so, as since the end was asked for."""
    for state in ("REQUESTED", "SHUTTING_DOWN"):
        seen = play(subject, "handle_messages", {"a": 1}, [["ADD", "z", "late"]], state)
        assert seen["sent"] == [["z", "abort", None]] and seen["diary"] == [], state


def test_14_3_an_end_counts_from_now_and_never_goes_back(subject: Any) -> None:
    """The clock has run for a while; a loop that is nearly left is asked to end once more."""
    seen = play(subject, "handle_messages", {"a": 3}, [["SHUTDOWN", 4.0]], now=100.0)
    assert (seen["state"], seen["deadline"]) == ("REQUESTED", 104.0)
    for state in ("REQUESTED", "SHUTTING_DOWN"):
        seen = play(subject, "handle_messages", {}, [["SHUTDOWN", 4.0]], state)
        assert seen["state"] == state


@many
@given(running=running, seconds=st.sampled_from([0.0, 1.0, 2.0, 3.0, 50.0]), asleep=st.booleans())
def test_14_4_random_ends(
    subject: Any, reference: Any, running: Any, seconds: float, asleep: bool
) -> None:
    """Every request is told one end, and the loop is left."""
    word = ["SHUTDOWN", seconds]
    words = (running, [], [word]) if asleep and not running else (running, [word], [])
    yours = play(subject, "run_loop", *words)
    assert yours == play(reference, "run_loop", *words)
    told = [line[0] for line in yours["sent"] if line[1] is not None]
    assert sorted(told) == sorted(running) and yours["left"] == {}


def test_14_4_an_idle_engine_waits(subject: Any) -> None:
    """Without a shutdown it sleeps until the next message, however little there is to do."""
    seen = play(subject, "run_loop", {"a": 2}, [], [["ADD", "b", "b"], ["SHUTDOWN", 60.0]])
    assert [line[:2] for line in seen["sent"] if line[1]] == [["a", "length"], ["b", "length"]]


def test_14_4_ends_by_hand(subject: Any) -> None:
    """All run to their end with time enough; what is left when it is over is told so."""
    for seconds, told in ((50.0, ["length", "length"]), (3.0, ["length", "abort"]),
                          (0.0, ["abort", "abort"])):  # fmt: skip
        seen = play(subject, "run_loop", {"a": 2, "b": 8}, [["SHUTDOWN", seconds]])
        last = [line[:2] for line in seen["sent"] if line[1]]
        assert last == [["a", told[0]], ["b", told[1]]], seconds
        assert seen["left"] == {} and seen["state"] == "SHUTTING_DOWN"


def test_14_4_paused_requests_are_not_waited_for(subject: Any) -> None:
    """A paused engine has requests and no work: they are told at once, whatever time is left."""
    seen = play(subject, "run_loop", {"a": 2, "b": 8}, [["SHUTDOWN", 50.0]], paused="PAUSED_ALL")
    assert sorted(line[:2] for line in seen["sent"] if line[1]) == [["a", "abort"], ["b", "abort"]]
    assert seen["left"] == {} and ["aborted", ["a", "b"]] in seen["diary"]
    assert not [line for line in seen["diary"] if line[0] == "stuck"]


def test_14_4_no_wait_without_unfinished_requests(subject: Any) -> None:
    """No request is unfinished, and blocks are held for other engines: they are let go of at once,
    and not when the time is over."""
    p = Program()
    names = p.execute("""
from labkit.inside.serving.engine_loop import make_loop, with_clock
from mini_vllm.engine.clients.core_proc import ShutdownState

loop, _, _ = make_loop({}, [], [])
held, seen = ["block"], []
loop.core.has_requests = lambda: bool(held)
loop.core.release_held = held.clear
loop.shutdown_state, loop.deadline = ShutdownState.REQUESTED, 50.0
with_clock(loop.core)
try:
    for _ in range(2):
        seen.append([loop._handle_shutdown(), loop.shutdown_state.name, len(held)])
finally:
    with_clock(None)
""")
    p.see(names["seen"])
    ((first, last),) = subject.run(p)
    assert first[1:] == ["SHUTTING_DOWN", 0], "the loop may be left now, or after one more turn"
    assert last == [False, "SHUTTING_DOWN", 0]


sizes = st.lists(st.integers(1, 9), max_size=5)
asks = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), min_size=1, max_size=5)


@many
@given(
    there=sizes,
    reqs=st.sampled_from([None, 1, 3, 6]),
    tokens=st.sampled_from([None, 5, 20, 40]),
    asked=asks,
)
def test_14_9_random_limits(
    subject: Any, there: list[int], reqs: int | None, tokens: int | None, asked: Any
) -> None:
    """Let in exactly if neither limit would be exceeded."""
    answers = play(subject, "admit", there, reqs, tokens, [list(pair) for pair in asked])
    for (count, size), answer in zip(asked, answers, strict=True):
        fits = (reqs is None or len(there) + count <= reqs) and (
            tokens is None or sum(there) + size <= tokens
        )
        assert (answer == "in") == fits, (count, size, answer)
        assert fits or answer.startswith("QueueFullError")


def test_14_9_both_by_hand(subject: Any) -> None:
    """A limit may be reached and not exceeded; the other one, or none, changes nothing of that."""
    for reqs, tokens, asked, expected in [
        (4, None, [[2, 99], [3, 1]], [True, False]),
        (None, 20, [[9, 8], [1, 9]], [True, False]),
        (4, 20, [[2, 8], [3, 8], [2, 9], [3, 9]], [True, False, False, False]),
        (None, None, [[99, 99]], [True]),
        (1, 99, [[1, 1]], [False]),
    ]:
        answers = play(subject, "admit", [5, 7], reqs, tokens, asked)
        assert [answer == "in" for answer in answers] == expected, (reqs, tokens)


def test_14_9_nothing_is_a_limit_too(subject: Any) -> None:
    """A limit of 0 lets none in; None is no limit."""
    for reqs, tokens in ((0, None), (None, 0), (0, 0)):
        for there in ([], [5]):
            (answer,) = play(subject, "admit", there, reqs, tokens, [[1, 1]])
            assert answer.startswith("QueueFullError"), (reqs, tokens, there)
    for reqs, tokens, asked in ((1, None, [2, 1]), (None, 4, [1, 5])):
        (answer,) = play(subject, "admit", [], reqs, tokens, [asked])
        assert answer.startswith("QueueFullError"), "though none is there"


def test_14_9_requests_that_come_and_go_are_counted(subject: Any) -> None:
    """Others come and go between two requests; a refusal says what is there."""
    asked = [[1, 1, [3, 4, 5]], [1, 1, []], [1, 1, [9, 9]], [1, 3]]
    first, second, third, last = play(subject, "admit", [5, 7], 3, 20, asked)
    assert [first, third] == ["in", "in"]
    assert second.startswith("QueueFullError") and last.startswith("QueueFullError")
    (full,) = play(subject, "admit", [5, 7], None, 20, [[1, 9]])
    assert all(word in full for word in ("12", "9", "max_num_queued_tokens=20")), full
    assert "again" in full or "later" in full, full
    (full,) = play(subject, "admit", [5] * 31, 33, None, [[4, 1]])
    assert all(word in full for word in ("31", "4", "max_num_queued_reqs=33")), full
    assert "again" in full or "later" in full, full


@st.composite
def lives(draw: Any) -> list[dict[str, Any]]:
    """Outputs of one request: chunks of its prompt, tokens, preemptions whose count may go back."""
    outputs, stamp, now = [], draw(st.integers(0, 5)), 100 + draw(st.integers(1, 5))
    for number in range(draw(st.integers(0, 5))):
        stamp, now = stamp + draw(st.integers(1, 4)), now + draw(st.integers(1, 4))
        output: dict[str, Any] = {
            "tokens": draw(st.sampled_from([0, 1, 1, 3])),
            "stamp": float(stamp),
        }
        output |= {"now": float(now), "preempted": draw(st.integers(0, 3))}
        if number == 0 or draw(st.integers(0, 4)) == 0:
            output["times"] = [1.0, draw(st.sampled_from([2.5, None]))]
        outputs.append(output)
    return outputs


@many
@given(outputs=lives(), reason=st.sampled_from(["length", "abort"]))
def test_14_10_random_lives(subject: Any, reference: Any, outputs: Any, reason: str) -> None:
    """Every figure of a request, on the right clock."""
    yours = play(subject, "life", outputs, reason, 200.0)
    assert yours == play(reference, "life", outputs, reason, 200.0)
    with_tokens = [output for output in outputs if output["tokens"]]
    assert sum(len(step["ttfts"]) for step in yours["steps"]) == bool(with_tokens)
    assert sum(len(step["itls"]) for step in yours["steps"]) == max(len(with_tokens) - 1, 0)
    assert all(step["preempted"] >= 0 for step in yours["steps"])


def test_14_10_a_count_that_goes_back(subject: Any) -> None:
    """Counters only grow, whatever the engine says."""
    outputs = [{"tokens": 1, "stamp": 1.0, "now": 101.0, "preempted": n} for n in (2, 0, 1, 3)]
    steps = play(subject, "life", outputs, None, 0.0)["steps"]
    assert [step["preempted"] for step in steps] == [2, 0, 0, 1]


def test_14_10_a_life_by_hand(subject: Any) -> None:
    """Queued at 10 and scheduled at 13 of the engine's clock, first token at 17, last at 29."""
    outputs = [
        {"tokens": 0, "stamp": 14.0, "now": 101.0, "times": [10.0, 13.0], "preempted": 1},
        {"tokens": 1, "stamp": 17.0, "now": 106.0, "preempted": 1},
        {"tokens": 3, "stamp": 22.0, "now": 111.0, "preempted": 3},
        {"tokens": 1, "stamp": 29.0, "now": 119.0, "preempted": 2},
    ]
    seen = play(subject, "life", outputs, "length", 120.0)
    steps = seen["steps"]
    assert [step["ttfts"] for step in steps] == [[], [6.0], [], []]
    assert [step["itls"] for step in steps] == [[], [], [5.0], [7.0]]
    assert [step["tokens"] for step in steps] == [0, 1, 3, 1]
    assert [step["prompt"] for step in steps] == [0, 7, 0, 0]
    assert [step["preempted"] for step in steps] == [1, 0, 2, 0]
    names = ("e2e_latency", "queued_time", "prefill_time", "decode_time", "inference_time", "tpot")
    assert [seen[name] for name in names] == [20.0, 3.0, 4.0, 12.0, 16.0, 3.0]
    for times in ([10.0, 13.0], [10.0, None]):  # aborted before its first token
        output = {"tokens": 0, "stamp": 14.0, "now": 101.0, "times": times}
        seen = play(subject, "life", [output], "abort", 120.0)
        assert [seen[name] for name in names] == [20.0, *[None] * 5] and seen["reason"] == "abort"


def test_14_10_a_clock_that_begins_at_zero(subject: Any) -> None:
    """Queued, scheduled and given its first token at 0: 0 is a time, and not the lack of one."""
    outputs = [
        {"tokens": 1, "stamp": 0.0, "now": 106.0, "times": [0.0, 0.0]},
        {"tokens": 1, "stamp": 5.0, "now": 111.0},
    ]
    seen = play(subject, "life", outputs, "length", 120.0)
    assert [step["ttfts"] for step in seen["steps"]] == [[6.0], []]
    assert [step["itls"] for step in seen["steps"]] == [[], [5.0]]
    names = ("e2e_latency", "queued_time", "prefill_time", "decode_time", "inference_time")
    assert [seen[name] for name in names] == [20.0, 0.0, 0.0, 5.0, 5.0]


def test_14_10_a_step_of_several_requests(subject: Any) -> None:
    """The figures of a step add up over its outputs, and over a request that has two of them."""
    p = Program()
    step = p.new(f"{METRICS}IterationStats")
    requests = [
        p.new(f"{METRICS}RequestStats", float(arrival), size, 1, 8)
        for arrival, size in ((100, 7), (102, 5))
    ]
    p.set(requests[1], "num_cached_tokens", 4)  # of the prompt, which counts all the same
    for index, tokens, preempted, stamp, now in (
        (0, [4, 5], 1, 3.0, 110.0), (1, [6], 2, 3.0, 111.0), (0, [7], 2, 8.0, 116.0),
        (1, [], 2, 9.0, 117.0),
    ):  # fmt: skip
        output = p.new(
            "mini_vllm.core.scheduler_output:EngineCoreOutput", "r", tokens,
            num_preemptions=preempted,
        )  # fmt: skip
        step.update_from_output(output, requests[index], stamp, now)
    for request, reason in zip(requests, ("stop", "length"), strict=True):
        step.update_from_finished(request, reason, 120.0)
    p.see([step.num_prompt_tokens, step.num_generation_tokens, step.num_preempted])
    p.see([step.ttfts, step.itls])
    p.see_each(step.finished, "finish_reason")
    p.see_each(step.finished, "e2e_latency")
    assert subject.run(p) == [[12, 4, 4], [[10.0, 9.0], [5.0]], ["stop", "length"], [20.0, 18.0]]


@many
@given(limit=st.integers(1, 10**6))
def test_14_11_random_limits(subject: Any, limit: int) -> None:
    """All of 1, 2, 5 times a power of ten up to the limit, and no others."""
    every = [digit * 10**power for power in range(8) for digit in (1, 2, 5)]
    found = call(subject, f"{METRICS}build_1_2_5_buckets", limit)
    assert found == [bound for bound in every if bound <= limit]
    assert {type(bound) for bound in found} == {int}


@many
@given(
    values=st.lists(st.floats(0.01, 12), min_size=0, max_size=30),
    quantile=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
)
def test_14_11_random_histograms(subject: Any, values: list[float], quantile: float) -> None:
    """The estimate lies in the bucket where the true percentile lies."""
    bounds = [0.5, 1.0, 2.0, 5.0, 10.0, math.inf]
    counts = [float(sum(value <= bound for value in values)) for bound in bounds]
    found = call(subject, f"{METRICS}percentile_from_buckets", bounds, counts, quantile)
    if not values:
        assert found is None
        return
    rank = quantile * len(values)
    place = next(i for i, count in enumerate(counts) if count >= rank)
    lower, below = (bounds[place - 1], counts[place - 1]) if place else (0.0, 0.0)
    if math.isinf(bounds[place]) or counts[place] == below:
        assert found == lower
    else:
        line = lower + (bounds[place] - lower) * (rank - below) / (counts[place] - below)
        assert abs(found - line) < 1e-9


def test_14_11_by_hand(subject: Any) -> None:
    """Points on a line inside a bucket, its ends, empty buckets, and infinity."""
    bounds, counts = [1.0, 2.0, 4.0, math.inf], [2.0, 2.0, 6.0, 8.0]
    for quantile, expected in [
        (0.0, 0.0), (0.125, 0.5), (0.25, 1.0), (0.375, 2.5), (0.5, 3.0), (0.75, 4.0), (1.0, 4.0),
    ]:  # fmt: skip
        found = call(subject, f"{METRICS}percentile_from_buckets", bounds, counts, quantile)
        assert found == expected, quantile
    for empty in ([], [0.0, 0.0, 0.0, 0.0]):
        given_bounds = bounds[: len(empty)]
        found = call(subject, f"{METRICS}percentile_from_buckets", given_bounds, empty, 0.5)
        assert found is None
    found = call(subject, f"{METRICS}percentile_from_buckets", [1.0, 2.0], [0.0, 3.0], 0.0)
    assert found == 0.0
    found = call(subject, f"{METRICS}percentile_from_buckets", [1.0, 2.0], [0.0, 4.0], 0.75)
    assert found == 1.75, "the last bucket may have an end"
    found = call(subject, f"{METRICS}build_1_2_5_buckets", 5 * 10**12)
    assert len(found) == 39 and found[-3:] == [10**12, 2 * 10**12, 5 * 10**12]
    for limit, expected in ((1, [1]), (4, [1, 2]), (50, [1, 2, 5, 10, 20, 50]), (0, [])):
        assert call(subject, f"{METRICS}build_1_2_5_buckets", limit) == expected


Calls = tuple[tuple[str, str], ...]


def calls_of(*calls: tuple[str, str]) -> str:
    bodies = [
        f'{{"name": "{name}"' + (f', "arguments": {arguments}}}' if arguments else "}")
        for name, arguments in calls
    ]
    return "".join(f"<tool_call>{body}</tool_call>" for body in bodies)


TEXTS: list[tuple[str, Calls, str]] = [
    ("plain text", (), ""), ("a < b <tool and <tool_ no", (), ""),
    ("Look. ", (("f", '{"a": "}"}'),), ""), ("", (("f", ""),), ""),
    ("<<", (("f", "{}"), ("g", '{"x": {"y": [1, "</tool"]}}')), ""),
    ("a ", (("f", '{"a": "<tool_call> and </tool_call>"}'), ("g", "")), "b <tool_call> c"),
]  # fmt: skip


@many
@given(number=st.integers(0, len(TEXTS) - 1), data=st.data())
def test_14_12_random_cuts(subject: Any, number: int, data: st.DataObject) -> None:
    """However an answer is cut into pieces, what was sent adds up to the same, and what stands
    outside of calls is not kept until the end."""
    before, calls, behind = TEXTS[number]
    text = before + calls_of(*calls) + behind
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=8)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    seen = play(subject, "parse_pieces", pieces)
    assert (seen["content"], seen["late"]) == (before + behind, "")
    assert len(seen["calls"]) == len(calls)
    for index, (name, arguments) in enumerate(calls):
        found = seen["calls"][index]
        assert (found["names"], found["ids"]) == ([name], 1)
        assert found["arguments"] == (arguments or "{}")


def test_14_12_every_single_cut(subject: Any) -> None:
    """Two pieces, cut at every place."""
    text = "So <x " + calls_of(("f", '{"a": "}"}'))
    for place in range(1, len(text)):
        seen = play(subject, "parse_pieces", [text[:place], text[place:]])
        assert (seen["content"], seen["calls"][0]["arguments"]) == ("So <x ", '{"a": "}"}'), place


def test_14_12_without_arguments(subject: Any) -> None:
    """A call without arguments has the empty object, once, wherever the text is cut."""
    text = calls_of(("f", ""), ("g", "{}"))
    for place in range(1, len(text)):
        calls = play(subject, "parse_pieces", [text[:place], text[place:]])["calls"]
        assert [calls[i]["arguments"] for i in (0, 1)] == ["{}", "{}"], place


PARSER = "mini_vllm.entrypoints.openai.tool_parser:"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('{"name": "f", "arguments": {"a": {"b": 1}', '{"a": {"b": 1}'),
        ('{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1, \n', '{"a": 1, \n'),
        ('{"name": "f", "arguments": [1, ', "[1, "),
        ('{"name": "f", "arguments":', ""),
        ('{"name": "f", "arguments": {"a": 1 } }\n', '{"a": 1 }'),
        ('{"name": "f", "arguments": {"a": oops}}', '{"a": '),
        ('{"name": "f", "arguments": {"a": [1}}}', '{"a": [1'),
        ('{"name": "f", "arguments": nul', ""),
        ('{"name": "f", "arguments": null,', "null"),
        ('{"name": "f", "arguments": ""', "{}"),
        ('{"name": "f", "arguments": "Oslo"', '"Oslo"'),
        ('{"name": "f", "arguments": "{}', ""),
        (r'{"name": "f", "arguments": "{\"a\": 1 }"', '{"a": 1 }'),
        ('{"parameters": {"b": 2}, "arguments": {"a": 1', '{"b": 2}'),
        ('{"x": {"arguments": {"a": 1}}, "name": "f"', ""),
        ('{"x": {"arguments": {"a": 1}}, "name": "f"}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name": "f"', ""),
    ],
)
def test_14_12_how_far_arguments_are_certain(subject: Any, call: str, expected: str) -> None:
    """All that is written of them, of the braces at the end those that are theirs, and of what
    means something else once it is whole nothing before."""
    p = Program()
    reader = p.new("mini_vllm.entrypoints.openai.json_object:ObjectReader", call)
    p.see(p.call(f"{PARSER}find_arguments", reader))
    assert subject.run(p) == [expected]


def test_14_12_no_news_is_an_empty_delta(subject: Any) -> None:
    """What is held back, and what was sent already, is not sent as nothing."""
    p = Program()
    parser = p.new(f"{PARSER}HermesToolParser")
    for piece in ("", "a", "<tool", "_call>", '{"name": "f"', ', "arguments": {', "}}", "</tool"):
        news = parser.extract_streaming(piece)
        p.see(p.call("builtins:sorted", news))
    seen = subject.run(p)
    assert seen == [[], ["content"], [], [], [], ["tool_calls"], ["tool_calls"], []]


ARGUMENTS = [
    '{"arguments": {"arguments": 1}}',
    '{"a":1,  "b" :"\\u00e9é日😀"}',
    '{ "text": "}</tool_call> \\"arguments\\": {" }',
    '[1, {"a": []}]',
    "null",
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=["nested", "bmp", "tag", "list", "null"])
@pytest.mark.parametrize("name", ["f", "arguments", "日本"], ids=["f", "arguments", "other"])
def test_14_12_arguments_as_they_are_written(subject: Any, name: str, arguments: str) -> None:
    """Letter by letter, and with white space around: what is sent is the model's own text."""
    spaced = f'<tool_call>\n{{"name": "{name}", "arguments" : {arguments} }}\n</tool_call>'
    wide = spaced.replace('"arguments" : ', '"arguments"\n\t :\n    ')
    for text in (calls_of((name, arguments)), spaced, wide):
        for pieces in ([text], list(text), [text[:-20], text[-20:]]):
            seen = play(subject, "parse_pieces", ["\n é ", *pieces])
            assert (seen["content"], seen["late"]) == ("\n é ", "")
            assert seen["calls"][0]["names"] == [name]
            assert seen["calls"][0]["arguments"] == arguments


@many
@given(
    text=st.text("<tol_cai>/", max_size=14),
    tag=st.sampled_from(["<tool_call>", "</tool_call>", "<<t<<to", "<tool_call><tool_call>", "<"]),
)
def test_14_12_random_overlaps(subject: Any, text: str, tag: str) -> None:
    """The longest end of the text that begins the tag and is not all of it."""
    text += tag[: len(text) % len(tag)]
    expected = max(n for n in range(len(tag)) if n <= len(text) and text.endswith(tag[:n]))
    found = call(subject, "mini_vllm.entrypoints.openai.tool_parser:partial_tag_overlap", text, tag)
    assert found == expected


def test_14_12_a_whole_tag_is_no_beginning(subject: Any) -> None:
    """Behind it comes what is in the call; of a tag in a tag the rest may still come, and of a
    beginning that repeats itself the longest is held back."""
    target = "mini_vllm.entrypoints.openai.tool_parser:partial_tag_overlap"
    for text, tag, expected in (
        ("<a>", "<a>", 0),
        ("x<a><a", "<a>", 2),
        ("<<", "<<", 1),
        ("x<<", "<<a>", 2),
        ("", "<a>", 0),
    ):
        assert call(subject, target, text, tag) == expected, (text, tag)


LETTERS = """
from mini_vllm.entrypoints.openai.tool_parser import HermesToolParser, partial_tag_overlap

class Watched(str):
    read = 0

    def __getitem__(self, place):
        piece = str.__getitem__(self, place)
        Watched.read += 1 + len(piece)
        return Watched(piece)

letters = "x < y " * 2_000
found = [partial_tag_overlap(Watched(letters + end), "<tool_call>") for end in ("<tool", "", "<")]
parser, content, kept = HermesToolParser(), "", 0
for start in range(0, len(letters), 4):
    content += parser.extract_streaming(letters[start : start + 4]).get("content", "")
    kept = max(kept, len(parser.text))
told = [found, Watched.read, content + parser.text == letters, kept]
"""


def test_14_12_a_long_answer_is_read_once(subject: Any) -> None:
    """12,000 letters: of the text only its end may be a tag, and what was sent is not kept."""
    (told,) = left_by(subject, LETTERS, "told")
    found, read, is_whole, kept = told
    assert found == [5, 0, 1] and is_whole
    assert read <= 12_000, f"{read:,} letters were looked at for 3 answers"
    assert kept < len("<tool_call>"), f"{kept} letters are kept"


@many
@given(count=st.integers(1, 40), rate=st.sampled_from([0.5, 3.0, 100.0, math.inf]),
       burstiness=st.sampled_from([0.25, 1.0, 4.0, math.inf]), seed=st.integers(0, 99))  # fmt: skip
def test_14_13_random_loads(
    subject: Any, count: int, rate: float, burstiness: float, seed: int
) -> None:
    """Times ascend and end where the rate says."""
    times = play(subject, "load_times", count, rate, burstiness, seed)
    assert len(times) == count and times == sorted(times)
    last = 0.0 if math.isinf(rate) else count / rate
    assert math.isclose(times[-1], last, rel_tol=1e-9)
    if math.isinf(burstiness) and not math.isinf(rate):
        assert all(math.isclose(t, (i + 1) / rate, rel_tol=1e-9) for i, t in enumerate(times))


def test_14_13_spreads(subject: Any) -> None:
    """A coefficient of variation of one over the root of the burstiness, and as many requests in
    the first half of the time as in the second."""
    for burstiness in (0.25, 1.0, 4.0):
        times = play(subject, "load_times", 8_000, 2.0, burstiness, 7)
        gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
        cv = statistics.pstdev(gaps) / statistics.mean(gaps)
        assert abs(cv * math.sqrt(burstiness) - 1) < 0.1, burstiness
        assert abs(times[3_999] / times[-1] - 0.5) < 0.05, burstiness


@pytest.mark.parametrize("rate", [2.0, math.inf])
def test_14_13_times_are_a_list(subject: Any, rate: float) -> None:
    """Of Python's own numbers: a client sleeps by them, and writes them into a report."""
    p = Program()
    rng = p.call("numpy.random:default_rng", 3)
    times = p.call("mini_vllm.entrypoints.load:arrival_times", 3, rate, 1.0, rng)
    p.see([p.call("builtins:str", p.call("builtins:type", one)) for one in (times, times[0])])
    assert subject.run(p) == [["<class 'list'>", "<class 'float'>"]]


def test_14_13_the_first_has_a_gap_too(subject: Any) -> None:
    """Of 200 loads at 4 a second none begins at 0, and by and large they wait as long for the first
    as between two others; a load of one request is at its time."""
    firsts = [play(subject, "load_times", 20, 4.0, 1.0, seed)[0] for seed in range(200)]
    assert min(firsts) > 0 and 0.19 < statistics.mean(firsts) < 0.35
    assert play(subject, "load_times", 1, 4.0, 1.0, 5) == [0.25]


def test_14_13_drawn_by_the_callers_generator(subject: Any) -> None:
    """The caller's generator draws: the same seed gives the same times, another one others."""
    loads = [play(subject, "load_times", 50, 2.0, 1.0, seed) for seed in (1, 2, 1)]
    assert loads[0] == loads[2] != loads[1]
    assert len({round(time, 6) for time in loads[0] + loads[1]}) > 90


def test_14_13_objectives_by_hand(subject: Any) -> None:
    """Times to the first token 100 and 300 ms, 100 and 50 ms a token, ends at 600 and 400 ms."""
    seen = [[0.1, 0.6, 6], [0.3, 0.4, 3], [0.2, 0.2, 1]]
    for limits, good in [
        ({"ttft": 250.0}, 2), ({"tpot": 75.0}, 2), ({"e2el": 500.0}, 2),
        ({"ttft": 250.0, "tpot": 75.0}, 1), ({"ttft": 350.0, "tpot": 110.0, "e2el": 700.0}, 3),
        ({"ttft": 50.0}, 0), ({"ttft": 0.0}, 0), ({"ttft": 99.8}, 0), ({"tpot": 49.9}, 1),
    ]:  # fmt: skip
        assert play(subject, "good", seen, limits, 0.5) == good / 0.5, limits
    assert play(subject, "good", [[0.1004, 0.6, 6]], {"ttft": 100.0}, 1.0) == 0.0


def test_14_13_a_limit_may_be_reached(subject: Any) -> None:
    """250 ms to the first token, 125 ms a token, 500 ms in all: exactly what was promised."""
    exact = [[0.25, 0.5, 3]]
    for limits in ({"ttft": 250.0}, {"tpot": 125.0}, {"e2el": 500.0}):
        assert play(subject, "good", exact, limits, 2.0) == 0.5, limits
        ((name, limit),) = limits.items()
        assert play(subject, "good", exact, {name: limit - 0.25}, 2.0) == 0.0, limits
    assert play(subject, "good", exact * 3, {"ttft": 250.0}, 0.5) == 6.0


def test_14_13_tokens_may_come_several_at_a_time(subject: Any) -> None:
    """Six tokens in two chunks, half a second apart: 100 ms a token, by the server's count."""
    p = Program()
    load = "mini_vllm.entrypoints.load:"
    result = p.new(f"{load}RequestResult", 5, 0.0, 0.125, [0.5], 0.625, 6)
    for limit in (100.0, 99.0):
        p.see(p.call(f"{load}goodput", [result], {"tpot": limit}, 0.5))
    assert subject.run(p) == [2.0, 0.0]


@many
@given(
    results=st.lists(st.tuples(*[st.integers(1, 9)] * 2, st.integers(1, 5)), max_size=6),
    limits=st.dictionaries(
        st.sampled_from(["ttft", "tpot", "e2el"]), st.integers(1, 9), min_size=1
    ),
)
def test_14_13_random_objectives(subject: Any, results: Any, limits: dict[str, int]) -> None:
    """A request that meets all objectives is good, and goodput is a rate."""
    seen = [[t / 10, (t + e) / 10, n] for t, e, n in results]
    slos = {name: 100.0 * limit + 0.5 for name, limit in limits.items()}
    good = 0
    for ttft, latency, tokens in seen:
        tpot = (latency - ttft) / (tokens - 1) if tokens > 1 else 0.0
        values = {"ttft": ttft, "tpot": tpot, "e2el": latency}
        good += all(values[name] * 1000 <= limit for name, limit in slos.items())
    assert play(subject, "good", seen, slos, 4.0) == round(good / 4.0, 9)
