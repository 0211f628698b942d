"""Outputs, slots, streams and races: random scenes, played by the submission and the reference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=20)
few = settings(max_examples=8)


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


def part(index: int, letter: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "text": letter, "ids": [ord(letter[0])] if letter else [], **more}


ends = st.sampled_from([{}, {}, {"end": "stop", "stop": "##"}, {"end": "length"}])
parts = st.builds(
    lambda index, text, more, scored, total: part(
        index, text,
        {"logprob": total, **more} | ({"logprobs": [-0.5] * bool(text)} if scored else {}),
    ),
    st.integers(0, 2), st.sampled_from(["", "a", "b", "c"]), ends, st.booleans(),
    st.sampled_from([-1.5, -4.0]),
)  # fmt: skip
outputs = st.builds(
    lambda found, finished, cached, error, kv, prompt: {
        "parts": list({p["index"]: p for p in found}.values()), "finished": finished,
        "cached": cached, "error": error, "kv": kv, "prompt": prompt,
    },
    st.lists(parts, max_size=3), st.booleans(), st.integers(0, 3), st.sampled_from([None, "why"]),
    st.sampled_from([None, {"from": 1}, {"from": 2}]), st.sampled_from([None, [None], [None, 5]]),
)  # fmt: skip


def until_their_ends(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nothing more comes of a completion that has ended."""
    ended: set[int] = set()
    for output in said:
        output["parts"] = [p for p in output["parts"] if p["index"] not in ended]
        ended |= {p["index"] for p in output["parts"] if "end" in p}
    return said


@many
@given(
    said=st.lists(outputs, min_size=2, max_size=5).map(until_their_ends), aggregate=st.booleans()
)
def test_14_1_random_outputs(subject: Any, reference: Any, said: Any, aggregate: bool) -> None:
    """Whatever comes in whatever order, merged it says the same."""
    assert play(subject, "merge", aggregate, said) == play(reference, "merge", aggregate, said)


@many
@given(said=st.lists(outputs, min_size=2, max_size=6).map(until_their_ends))
def test_14_1_nothing_is_lost(subject: Any, said: Any) -> None:
    """Of each completion the merged text is all its texts in a row."""
    merged = play(subject, "merge", True, said)
    for one in merged["parts"]:
        pieces = [p for output in said for p in output["parts"] if p["index"] == one["index"]]
        assert one["text"] == "".join(piece["text"] for piece in pieces)
        assert one["ids"] == [i for piece in pieces for i in piece["ids"]]
        assert one["end"] == pieces[-1].get("end")
    assert {p["index"] for p in merged["parts"]} == {p["index"] for o in said for p in o["parts"]}


def test_14_1_what_is_said_of_the_whole(subject: Any) -> None:
    """What was said first stays, and what was not said is taken over."""
    one = {"parts": [part(1, "a", {})], "error": "why", "kv": {"from": 1}, "prompt": [None, 5],
           "cached": 3, "finished": True, "failure": "why"}  # fmt: skip
    other = {"parts": [part(0, "b", {})], "error": "no", "kv": {"from": 2}, "prompt": [None],
             "failure": "no"}  # fmt: skip
    for said, kept in (([one, other], one), ([{}, one], one), ([one, {}], one)):
        for aggregate in (True, False):
            merged = play(subject, "merge", aggregate, said)
            for key in ("error", "failure", "kv", "prompt", "finished", "cached"):
                assert merged[key] == kept[key], (key, aggregate)
    merged = play(subject, "merge", True, [one, other])
    assert [p["index"] for p in merged["parts"]] == [1, 0]


def test_14_1_logprobs_by_hand(subject: Any) -> None:
    """One entry a token, joined like the tokens; None beside a list is the list."""
    scored, plain = part(0, "a", {"logprobs": [-1.0]}), part(0, "b", {})
    later = part(0, "c", {"logprobs": [-2.0], "logprob": -3.0, "end": "stop", "stop": "##"})
    for said, logprobs in (
        ([scored, later], [-1.0, -2.0]), ([plain, later], [-2.0]), ([scored, plain], [-1.0]),
        ([plain, plain], None),
    ):  # fmt: skip
        (merged,) = play(subject, "merge", True, [{"parts": [one]} for one in said])["parts"]
        assert merged["logprobs"] == logprobs and merged["ids"] == [ord(p["text"]) for p in said]
    (merged,) = play(subject, "merge", True, [{"parts": [scored]}, {"parts": [later]}])["parts"]
    assert (merged["end"], merged["stop"], merged["logprob"]) == ("stop", "##", -3.0)


def test_14_1_a_total_is_no_part(subject: Any) -> None:
    """The later log probability is that of all tokens so far, so nothing is added to it."""
    totals = [-1.5, -4.0, -4.25]
    said = [{"parts": [part(0, "a", {"logprob": total})]} for total in totals]
    for aggregate in (True, False):
        (merged,) = play(subject, "merge", aggregate, said)["parts"]
        assert merged["logprob"] == -4.25, aggregate
        certain = [{"parts": [part(0, "", {})]}, {"parts": [part(0, "a", {"logprob": 0.0})]}]
        (merged,) = play(subject, "merge", aggregate, certain)["parts"]
        assert merged["logprob"] == 0.0, aggregate


def test_14_1_the_first_may_say_nothing(subject: Any) -> None:
    """Completions come in after an output without any, each once, and grow from there."""
    said = [{"parts": [part(i, letter, {}) for i in range(2)]} for letter in "abc"]
    for aggregate, text in ((True, "abc"), (False, "c")):
        parts = play(subject, "merge", aggregate, [{}, {}, *said])["parts"]
        assert [(p["index"], p["text"]) for p in parts] == [(0, text), (1, text)], aggregate
        assert [p["ids"] for p in parts] == [[ord(letter) for letter in text]] * 2


def test_14_1_what_is_read_in_stays_as_it_was(subject: Any) -> None:
    """The later outputs belong to the caller: no list of theirs grows with the first, which has
    none of its own yet."""
    p = Program()
    numbers = [[p.call("builtins:object")] for _ in range(3)]
    first, *later = (
        p.new("mini_vllm.outputs:CompletionOutput", 0, letter, [i] * (i > 0), 0.0, logprobs)
        for i, (letter, logprobs) in enumerate(zip("abc", [None, *numbers[1:]], strict=True))
    )
    for output in later:
        first.extend(output)
    for output in (first, *later):
        p.see([output.text, output.token_ids, p.call("builtins:len", output.logprobs)])
    assert subject.run(p) == [["abc", [1, 2], 2], ["b", [1], 1], ["c", [2], 1]]


def test_14_1_nothing_is_nothing_to_test(subject: Any) -> None:
    """Token 0, stop token 0, white space at the beginning of a text, and twelve completions."""
    said = [
        {"parts": [{"index": i, "text": "", "ids": [0, 5]} for i in range(12)]},
        {"parts": [{"index": i, "text": "\n a", "ids": [0], "end": "stop", "stop": 0}
                   for i in range(11, -1, -1)]},
        {"parts": [{"index": 3, "text": "", "ids": [0, 0], "end": "stop", "stop": 0}]},
    ]  # fmt: skip
    parts = play(subject, "merge", True, said)["parts"]
    assert [part["index"] for part in parts] == list(range(12))
    for part in parts:
        assert part["text"] == "\n a" and part["ids"] == [0, 5, 0, *[0, 0] * (part["index"] == 3)]
        assert (part["end"], part["stop"]) == ("stop", 0)


puts = st.builds(lambda output: ["put", output], outputs)
others = st.sampled_from([["look"], ["read"], ["fail", "one"], ["fail", "two"]])


@st.composite
def scripts(draw: Any) -> list[Any]:
    """Puts, errors and reads; sometimes a reader begins to wait before something is put."""
    script: list[Any] = []
    for _ in range(draw(st.integers(1, 7))):
        if draw(st.integers(0, 3)) == 0:
            script += [["begin"], draw(puts), ["end"]]
        else:
            script.append(draw(st.one_of(puts, puts, others)))
    return [*script, ["look"]]


@many
@given(kind=st.sampled_from(["DELTA", "CUMULATIVE"]), script=scripts())
def test_14_2_random_readers(subject: Any, reference: Any, kind: str, script: Any) -> None:
    """Puts, errors, looks and waits in any order."""
    assert play(subject, "collect", kind, script) == play(reference, "collect", kind, script)


def test_14_2_a_reader_does_not_spin(subject: Any) -> None:
    """Between two outputs the reader sleeps."""
    put = ["put", {"parts": [part(0, "a", {})]}]
    seen = play(subject, "collect", "DELTA", [put, ["look"], ["read"], ["begin"], put, ["end"]])
    assert seen[1] == "waits" and seen[2]["parts"][0]["text"] == "a"


def test_14_2_a_waiting_reader_is_woken_without_polling(subject: Any) -> None:
    """In a tenth of a second in which nothing happens, the reader hardly looks at the slot."""
    looks, name = left_by(
        subject,
        """
import asyncio
from mini_vllm.engine.collector import RequestOutputCollector
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind

class Watched(RequestOutputCollector):
    looks = 0

    @property
    def output(self):
        self.looks += 1
        return self.inside

    @output.setter
    def output(self, value):
        self.inside = value

async def read():
    slot = Watched(RequestOutputKind.DELTA)
    reader = asyncio.ensure_future(slot.get())
    await asyncio.sleep(0.1)
    looks = slot.looks
    slot.put(RequestOutput("r", None, [1], outputs=[]))
    return looks, (await asyncio.wait_for(reader, 5)).request_id

looks, name = asyncio.run(read())
""",
        "looks",
        "name",
    )
    assert looks <= 5 and name == "r", f"{looks} looks at an empty slot"


def test_14_2_a_slot_by_hand(subject: Any) -> None:
    """Unread outputs become one, the first error takes the slot, and looking empties it."""

    def put(letter: str) -> list[Any]:
        return ["put", {"parts": [part(0, letter, {})]}]

    def read(script: list[Any], kind: str = "DELTA") -> list[Any]:
        seen = play(subject, "collect", kind, script)
        return [one if not isinstance(one, dict) else one["parts"][0]["text"] for one in seen]

    look, wait = ["look"], ["read"]
    assert read([put("a"), put("b"), look, look]) == ["ab", None]
    assert read([put("a"), put("b"), wait, put("c"), wait, wait]) == ["ab", "c", "waits"]
    assert read([put("a"), put("b"), look], "CUMULATIVE") == ["b"]
    assert read([["begin"], put("a"), ["end"], wait]) == ["a", "waits"]
    assert read([["begin"], put("a"), look, put("b"), ["end"]]) == ["a", "b"]
    assert read([["begin"], put("a"), look, ["end"]]) == ["a", "waits"]
    one = "ValueError: one"
    assert read([put("a"), ["fail", "one"], ["fail", "two"], put("b"), wait, look]) == [one, None]
    assert read([["begin"], ["fail", "one"], ["end"], put("b"), look]) == [one, "b"]
    assert read([["fail", "one"], wait, wait, put("b"), wait]) == [one, "waits", "b"]
    assert read([["fail", "one"], look, wait]) == [one, "waits"]


@pytest.mark.parametrize(
    "error",
    ["builtins:KeyError", "mini_vllm.engine.exceptions:EngineDeadError", "builtins:RuntimeError"],
)
@pytest.mark.parametrize("is_full", [False, True])
def test_14_2_any_error_ends_it(subject: Any, error: str, is_full: bool) -> None:
    """Errors of every kind take the slot, whatever is in it, and nothing later changes that."""
    p = Program()
    kind = p.name("mini_vllm.sampling_params:RequestOutputKind.DELTA")
    slot = p.new("mini_vllm.engine.collector:RequestOutputCollector", kind)
    outputs = [p.new("mini_vllm.outputs:RequestOutput", "r", None, [1], []) for _ in range(2)]
    if is_full:
        slot.put(outputs[0])
    slot.put(p.new(error, "it fell"))
    slot.put(outputs[1])
    p.see(slot.ready.is_set())
    p.refuse(error, slot.get_nowait)
    p.see([slot.get_nowait(), slot.ready.is_set()])
    assert subject.run(p) == [True, [None, False]]


requests = st.builds(
    lambda name, n, prompt: {"name": name, "n": n, "prompt": prompt},
    st.sampled_from(["x", "y"]), st.integers(1, 3), st.sampled_from([1, 2, 9, 31, 32, 40]),
)  # fmt: skip


@few
@given(asked=st.lists(requests, min_size=1, max_size=5), at_once=st.booleans(),
       most=st.sampled_from([None, 1, 3, 5]), tokens=st.sampled_from([None, 10, 40]))  # fmt: skip
def test_14_5_random_crowds(
    subject: Any, reference: Any, asked: Any, at_once: bool, most: int | None, tokens: int | None
) -> None:
    """Which requests are admitted, what is sent, and what is left of those that are not."""
    limits = {"max_num_queued_reqs": most, "max_num_queued_tokens": tokens}
    yours = play(subject, "add_requests", asked, at_once, **limits)
    assert yours == play(reference, "add_requests", asked, at_once, **limits)
    assert all(line[2] for line in yours["diary"]), "sent before it was watched"
    assert most is None or yours["watched"] <= most


@few
@given(leave=st.sampled_from(["end", "break", "cancel", "raise", "engine"]),
       after=st.integers(1, 3),
       sizes=st.lists(st.integers(1, 3), min_size=3, max_size=4))  # fmt: skip
def test_14_5_random_departures(
    subject: Any, reference: Any, leave: str, after: int, sizes: list[int]
) -> None:
    """Readers that stay, break off, fail or are cancelled: nothing is left of any."""
    steps = [[list(range(size)), None] for size in sizes]
    steps[-1][1] = "length"
    yours = play(subject, "read_stream", steps, leave, after)
    assert yours == play(reference, "read_stream", steps, leave, after)
    assert yours["left"] == yours["watched"] == 0 and yours["closed"] == [True]


def test_14_5_each_way_to_leave_a_stream(subject: Any) -> None:
    """Each way to leave before the end is told to the engine, once, and is not swallowed."""
    steps = [[[1], None], [[2], None], [[3], "length"]]
    ways = {"break": "left", "cancel": "cancelled", "engine": "ValueError: no"}
    for leave, how in ways.items():
        seen = play(subject, "read_stream", steps, leave, 1)
        assert (seen["how"], seen["closed"], seen["left"]) == (how, [True], 0), leave
        assert seen["diary"].count(["abort", 1]) == 1


def test_14_5_limits_by_hand(subject: Any) -> None:
    """Each completion counts, and its prompt with it; exactly the limit gets in."""
    for tokens, answers in ((24, ["Stream"]), (23, ["QueueFullError"])):
        asked = [{"name": "x", "n": 3, "prompt": 8}]
        seen = play(subject, "add_requests", asked, max_num_queued_tokens=tokens)
        assert seen["answers"] == answers and seen["watched"] == seen["counted"]
        assert all(watched for _, _, watched in seen["diary"]), "sent before it was watched"
    asked = [{"name": "x", "n": 1, "prompt": 8}, {"name": "x", "n": 2, "prompt": 2}]
    for most, last in ((3, "Stream"), (2, "QueueFullError")):
        for at_once in (False, True):
            seen = play(subject, "add_requests", asked, at_once, max_num_queued_reqs=most)
            assert sorted(seen["answers"]) == sorted(["Stream", last])


def test_14_5_it_arrives_before_its_prompt_is_read(subject: Any) -> None:
    """Reading a prompt takes time, for which its sender waits; all of it counts, on one clock."""
    asked = [{"name": name, "n": n} for name, n in (("x", 1), ("y", 3), ("x", 2))]
    for at_once in (False, True):
        seen = play(subject, "add_requests", asked, at_once)
        assert seen["answers"] == ["Stream"] * 3 and seen["counted"] == 6
        assert seen["arrived before its prompt was read"], at_once


ENGINE = """
import inspect
from labkit.inside.serving.front_end import end, make_engine, sampling, say
from labkit.inside.serving.turns import run, turns
from mini_vllm.core.scheduler_output import EngineCoreOutput
from mini_vllm.engine.clients.messages import EngineCoreOutputs

"""


def test_14_5_all_that_is_asked_for_goes_on(subject: Any) -> None:
    """Images, urgency, adapter, engine and kind of output reach the parts that need them."""
    made, kinds = left_by(
        subject,
        ENGINE
        + """
from mini_vllm.sampling_params import RequestOutputKind
made, kinds = [], []

async def go():
    engine = make_engine([])
    plain_requests, plain_watch = engine._make_requests, engine._watch

    async def preprocess(prompt):
        return [5, 6, 7], ["an image"]

    def make_requests(*args, **more):
        told = inspect.signature(plain_requests).bind(*args, **more).arguments
        names = ("prompt", "images", "priority", "lora_request", "data_parallel_rank")
        made.append([told["stream"].live.prompt_token_ids, *map(told.get, names)])
        told.update(images=[], lora_request=None, data_parallel_rank=None)
        return plain_requests(**told)

    def watch(*args, **more):
        kinds.append(inspect.signature(plain_watch).bind(*args, **more).arguments["kind"].name)
        return plain_watch(*args, **more)

    engine.preprocess, engine._make_requests, engine._watch = preprocess, make_requests, watch
    for kind in ("DELTA", "CUMULATIVE", "FINAL_ONLY"):
        await engine.add_request(
            "r", [5], sampling(kind), lora_request="adapter", priority=3, data_parallel_rank=1
        )
    await end(engine)

run(go())
""",
        "made",
        "kinds",
    )
    assert made == [[[5, 6, 7], [5], ["an image"], 3, "adapter", 1]] * 3
    assert kinds == ["DELTA", "CUMULATIVE", "FINAL_ONLY"]


@pytest.mark.parametrize("kind", ["DELTA", "CUMULATIVE"])
def test_14_5_a_slow_reader_hears_the_end(subject: Any, kind: str) -> None:
    """While the reader is busy with the first output, two more steps come, and the request ends."""
    ((first, rest),) = left_by(
        subject,
        ENGINE
        + f"""
async def go():
    engine = make_engine([])
    stream = await engine.add_request("r", [3, 4], sampling({kind!r}))
    outputs = engine.outputs(stream)
    say(engine, [stream, [1], None])
    first = (await anext(outputs)).outputs[0].token_ids
    say(engine, [stream, [2], None])
    say(engine, [stream, [3], "length"])
    await turns(12)
    rest = [[output.outputs[0].token_ids, output.finished] async for output in outputs]
    await end(engine)
    return [first, rest]

seen = run(go())
""",
        "seen",
    )
    assert first == [1] and rest == [[[2, 3] if kind == "DELTA" else [1, 2, 3], True]]


def test_14_5_a_dead_engine_says_so_first(subject: Any) -> None:
    """Whatever else is wrong: it is asked before the prompt, and nothing is begun."""
    asked = [{"prompt": 2}, {"prompt": 40}, {"prompt": 8, "n": 3}]
    seen = play(subject, "add_requests", asked, dead=True, max_num_queued_reqs=1)
    assert seen["answers"] == ["EngineDeadError"] * 3
    assert seen["diary"] == [] and not seen["handler"] and not seen["watched"]


def test_14_5_a_completion_that_has_ended_is_not_aborted(subject: Any) -> None:
    """All, some or none of three completions have ended when the stream is closed."""
    for ended in ([0, 1, 2], [0, 2], []):
        seen = play(subject, "abort_stream", 3, ended, 1)
        left = 3 - len(ended)
        assert seen["diary"] == ([["abort", left]] if left else [])
        assert (seen["own"], seen["aborted"], seen["watched"]) == (left, left, 3)
        assert seen["reasons"] == sorted(["length"] * len(ended) + ["abort"] * left)


@few
@given(n=st.integers(1, 3), data=st.data(), twins=st.integers(0, 2))
def test_14_5_random_aborts(
    subject: Any, reference: Any, n: int, data: st.DataObject, twins: int
) -> None:
    """Some completions have ended, some other requests have the same name."""
    ended = sorted(data.draw(st.sets(st.integers(0, n - 1))))
    yours = play(subject, "abort_stream", n, ended, twins)
    assert yours == play(reference, "abort_stream", n, ended, twins)
    assert yours["watched"] == n * twins


def test_14_5_twins_run_on(subject: Any) -> None:
    """An abort ends one request, on both sides, and none of the same name."""
    seen = play(subject, "abort_stream", 2, [], 2)
    assert (seen["own"], seen["watched"], seen["counted"]) == (2, 4, 4) and seen["others wait"]


@few
@given(sizes=st.lists(st.sampled_from([0, 1, 127, 128, 129, 256, 300]), min_size=1, max_size=3),
       error=st.sampled_from(["", "dead", "bug", "cancel"]),
       late=st.sets(st.integers(0, 2)))  # fmt: skip
def test_14_6_random_steps(
    subject: Any, reference: Any, sizes: list[int], error: str, late: set[int]
) -> None:
    """Steps of every size, in time or late, and every way to end."""
    yours = play(subject, "handler", sizes, error, sorted(late))
    expected = play(reference, "handler", sizes, error, sorted(late))
    for seen in (yours, expected):  # whatever else the error says of the mistake
        seen["diary"] = [[in_few_words(word) for word in line] for line in seen["diary"]]
        seen["readers"] = [in_few_words(reader) for reader in seen["readers"]]
    assert yours["diary"] == expected["diary"] and yours["readers"] == expected["readers"]
    assert yours["task"] == expected["task"] and yours["shared"] == expected["shared"]
    assert not any(yours["late"]), "behind the last slice no other task has a turn"


def in_few_words(said: Any) -> Any:
    """Of an EngineGenerateError: that it is one, and whether it names the mistake and its text."""
    if not str(said).startswith("EngineGenerateError: "):
        return said
    return [word in said for word in ("KeyError", "a mistake of ours")]


def test_14_6_how_it_may_end(subject: Any) -> None:
    """A death, a mistake and a shutdown are three things, and readers hear of two."""
    dead, bug, cancel = (play(subject, "handler", [1], e) for e in ("dead", "bug", "cancel"))
    assert set(dead["readers"]) == {"EngineDeadError: it fell"}
    assert [in_few_words(reader) for reader in bug["readers"]] == [[True, True]] * 2
    assert cancel["readers"] == [None, None] and cancel["task"] == "cancelled"
    assert play(subject, "handler", [300])["shared"] == [True] * 3


def test_14_6_sizes_by_hand(subject: Any) -> None:
    """Slices of 128 in order, each step counted; no other task has a turn behind the last."""
    for size, slices in ((0, []), (128, [128]), (129, [128, 1]), (256, [128, 128])):
        seen = play(subject, "handler", [size, 1])
        sliced = [["slice", count] for count in slices]
        assert seen["diary"] == [*sliced, ["step done", 0], ["slice", 1], ["step done", 1]]
        assert all(seen["shared"]) and not any(seen["late"]), size


def test_14_6_no_other_task_has_a_turn_while_the_next_step_waits(subject: Any) -> None:
    """Of three steps of three slices the first and the last are late."""
    seen = play(subject, "handler", [300, 300, 300], "", [0, 2])
    first, *shared = seen["shared"]  # before the first slice every task has had a turn
    assert (first, shared) == (True, [False] * 2 + [True] * 4 + [False] * 2)


def test_14_6_a_slice_is_all_that_is_taken_in(subject: Any) -> None:
    """The message holds outputs of two streams; one is taken in, and then the other."""
    (seen,) = left_by(
        subject,
        ENGINE
        + """
async def go():
    engine, seen = make_engine([]), []
    streams = [await engine.add_request(name, [3], sampling()) for name in "ab"]
    outputs = [EngineCoreOutput(s.child_ids[0], [7 + i]) for i, s in enumerate(streams)]
    message = EngineCoreOutputs(outputs, None, 2.5)
    for output in outputs:
        engine._process([output], message)
        seen.append([[i for part in s.live.outputs for i in part.token_ids] for s in streams])
    await end(engine)
    return seen

seen = run(go())
""",
        "seen",
    )
    assert seen == [[[7], []], [[7], [8]]]


def test_14_6_a_stream_stays_until_it_is_closed(subject: Any) -> None:
    """Three steps of one request, each read before the next: all three are delivered."""
    (seen,) = left_by(
        subject,
        ENGINE
        + """
async def go():
    engine, seen = make_engine([]), []
    stream = await engine.add_request("r", [3], sampling())
    for token, reason in ((7, None), (8, None), (9, "length")):
        outputs = [EngineCoreOutput(stream.child_ids[0], [token], reason)]
        engine._process(outputs, EngineCoreOutputs(outputs, None, 2.5))
        output = stream.collector.get_nowait()
        seen.append(None if output is None else [output.outputs[0].token_ids, output.finished])
    await end(engine)
    return seen

seen = run(go())
""",
        "seen",
    )
    assert seen == [[[7], False], [[8], False], [[9], True]]


def test_14_6_a_stop_string(subject: Any) -> None:
    """Figures and engine are told of those that met one, and of no others; all are delivered."""
    seen = play(subject, "slice_of_outputs", [["a", [1]], ["c", [2]], ["b", [3]]], ["a"])["diary"]
    assert sorted(line for line in seen if line[0] in ("stopped", "abort")) == [
        ["abort", ["a"]], ["stopped", ["a"]],
    ]  # fmt: skip
    assert [line[1] for line in seen if line[0] == "delivered"] == ["a", "b"]
    assert [line[1:] for line in seen if line[0] == "counted"] == [
        ["a", 2.5],
        ["c", 2.5],
        ["b", 2.5],
    ]
    seen = play(subject, "slice_of_outputs", [["b", []], ["a", [2]]], ["a", "b"])["diary"]
    assert sorted(line for line in seen if line[0] in ("stopped", "abort")) == [
        ["abort", ["a", "b"]], ["stopped", ["a", "b"]],
    ]  # fmt: skip
    assert [line[1] for line in seen if line[0] == "counted"] == ["b", "a"], "without a token, too"
    seen = play(subject, "slice_of_outputs", [["a", [1]]])["diary"]
    assert not [line for line in seen if line[0] in ("stopped", "abort")]


@many
@given(lines=st.lists(st.tuples(st.sampled_from("abcz"), st.just([1])), max_size=6),
       stopped=st.sets(st.sampled_from("ab")))  # fmt: skip
def test_14_6_random_slices(
    subject: Any, reference: Any, lines: list[Any], stopped: set[str]
) -> None:
    """Known and unknown requests, stop strings, one of them twice."""
    words = [list(line) for line in lines], sorted(stopped)
    yours, expected = (
        play(worker, "slice_of_outputs", *words)["diary"] for worker in (subject, reference)
    )
    assert ends_last(yours) == ends_last(expected)


def ends_last(diary: list[Any]) -> list[Any]:
    """Which is told first of a stop string, the figures or the engine, is free."""
    ends = [line for line in diary if line[0] in ("stopped", "abort")]
    return [line for line in diary if line not in ends] + sorted(ends)


texts = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@many
@given(body=texts)
def test_14_7_any_body(subject: Any, body: Any) -> None:
    """An event is one line, and says what it was given."""
    p = Program()
    p.see(p.call("mini_vllm.entrypoints.openai.sse:sse_event", body))
    (event,) = subject.run(p)
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: ")) == body


def test_14_7_what_json_has_no_number_for(subject: Any) -> None:
    """The log probability of a token that was forbidden is -inf: in JSON it is null."""
    p = Program()
    number = p.name("builtins:float")
    values = [number(text) for text in ("nan", "inf", "-inf", "-0.5", "1e300")]
    p.see(p.call("mini_vllm.entrypoints.openai.sse:sse_event", {"logprobs": values, "n": 2**53}))
    (event,) = subject.run(p)
    body = json.loads(event.removeprefix(b"data: "), parse_constant=lambda text: f"no JSON: {text}")
    assert body == {"logprobs": [None, None, None, -0.5, 1e300], "n": 2**53}


@many
@given(events=st.integers(0, 4), place=st.integers(0, 4),
       error=st.sampled_from(["", "value", "busy", "bug", "gone", "cancel", "send"]),
       done=st.sampled_from(["data: [DONE]\n\n", ""]))  # fmt: skip
def test_14_7_random_breaks(
    subject: Any, reference: Any, events: int, place: int, error: str, done: str
) -> None:
    """A stream may break anywhere: while an event is made, or while one is sent."""
    words = events, error, min(place, events), done
    yours, expected = (play(worker, "send_stream", *words) for worker in (subject, reference))
    assert read(yours["diary"]) == read(expected["diary"]) and yours["how"] == expected["how"]


def read(diary: list[Any]) -> list[Any]:
    """Error events as a client reads them: JSON may be written with spaces or without."""
    start = "data: {"
    return [
        [line[0], json.loads(line[1].removeprefix("data: ")), *line[2:]]
        if line[0] == "sent" and line[1].startswith(start) and line[1].endswith("\n\n")
        else line
        for line in diary
    ]


def test_14_7_errors_and_ends(subject: Any) -> None:
    """An error is an event, [DONE] follows it, and nothing is sent to a client that is gone."""
    sent = [
        line for line in play(subject, "send_stream", 2, "bug", 1)["diary"] if line[0] == "sent"
    ]
    assert [line[2] for line in sent] == [True, True, False] and "500" in sent[1][1]
    for error in ("gone", "lost", "cancel"):
        seen = play(subject, "send_stream", 2, error, 1)
        assert len([line for line in seen["diary"] if line[0] == "sent"]) == 1
        assert seen["diary"].count(["closed"]) == 1 and "Error" in seen["how"]
    assert play(subject, "send_stream", 3, "send", 2)["diary"].count(["closed"]) == 1
    order = [line[0] for line in play(subject, "send_stream", 2)["diary"]]
    assert order == ["start", "made", "sent", "made", "sent", "closed", "sent"]


@many
@given(work=st.integers(0, 12), gone=st.integers(-1, 12), fails=st.booleans(),
       cleanup=st.integers(0, 5), cancelled=st.sampled_from([-1, -1, 1, 4]))  # fmt: skip
def test_14_8_random_races(
    subject: Any, reference: Any, work: int, gone: int, fails: bool, cleanup: int, cancelled: int
) -> None:
    """Whichever wins, nothing is left running. Which wins by a turn or two is not asked, nor what
    is left of cleaning up when the race is cancelled meanwhile."""
    more = {"fails": fails, "cleanup": cleanup, "cancelled": cancelled}
    yours = play(subject, "race", work, gone, **more)
    assert "0 tasks left" in yours["diary"]
    first = work if gone < 0 else min(work, gone)
    if (gone < 0 or abs(work - gone) > 3) and (cancelled < 0 or cancelled + 3 < first):
        expected = play(reference, "race", work, gone, **more)
        if expected["how"] == "ClientGoneError":  # whatever else it says
            yours["how"] = yours["how"].partition(":")[0]
        assert yours == expected


def test_14_8_by_hand(subject: Any) -> None:
    """The work wins, fails, is too late, or its caller is cancelled: nothing is left running."""
    ended, none = "listening ended", "0 tasks left"
    cleaned = "work cancelled and cleaned up"
    for work, gone, more, how, diary in [
        (3, -1, {}, "answer", [none, ended]),
        (3, -1, {"fails": True}, "KeyError", [none, ended]),
        (30, 3, {"cleanup": 4}, "ClientGoneError", [none, cleaned]),
        (30, -1, {"cancelled": 2, "cleanup": 4}, "cancelled", [none, ended, cleaned]),
    ]:
        seen = play(subject, "race", work, gone, **more)
        assert seen["how"].startswith(how) and seen["diary"] == diary, (work, gone, more)


def test_14_8_the_end_of_a_body_is_no_departure(subject: Any) -> None:
    """Messages as servers send them: what comes before "http.disconnect" says nothing of that."""
    (seen,) = left_by(
        subject,
        """
import asyncio
from mini_vllm.entrypoints.openai.sse import listen_for_disconnect

messages = [
    {"type": "http.request", "body": b"{}", "more_body": True},
    {"type": "http.request", "body": b"", "more_body": False},
    {"type": "http.request"},
    {"type": "http.disconnect"},
    {"type": "http.request"},
]

async def receive():
    return messages.pop(0)

asyncio.run(listen_for_disconnect(receive))
seen = len(messages)
""",
        "seen",
    )
    assert seen == 1, "it reads until the client leaves, and no further"


HOURS = """
import asyncio
from mini_vllm.entrypoints.openai.sse import ClientGoneError, with_cancellation

class Clock(asyncio.SelectorEventLoop):  # an hour passes whenever it is looked at
    now = 0.0

    def time(self):
        self.now += 3600.0
        return self.now

ended = []

async def work():
    try:
        for _ in range(40):
            await asyncio.sleep(0)
        return "answer"
    finally:
        for _ in range(20):
            await asyncio.sleep(0)
        ended.append(True)

async def receive():
    for _ in range(leaves):
        await asyncio.sleep(0)
    return {"type": "http.disconnect"}

loop = Clock()
try:
    seen = loop.run_until_complete(with_cancellation(receive, work()))
except ClientGoneError:
    seen = "gone"
finally:
    loop.close()
"""


@pytest.mark.parametrize(("leaves", "how"), [(10_000, "answer"), (5, "gone")])
def test_14_8_however_long_it_takes(subject: Any, leaves: int, how: str) -> None:
    """Hours pass: no limit of time ends the race, nor the wait for its loser."""
    seen, ended = left_by(subject, f"leaves = {leaves}\n" + HOURS, "seen", "ended")
    assert (seen, ended) == (how, [True])


@pytest.mark.parametrize("last", ["return 5", "raise KeyError(5)", "raise"])
def test_14_8_an_answer_after_the_client_has_left(subject: Any, last: str) -> None:
    """However the work ends once it is cancelled, the client had left before, and it is waited
    for."""
    (seen,) = left_by(
        subject,
        f"""
import asyncio
from mini_vllm.entrypoints.openai.sse import ClientGoneError, with_cancellation

async def receive():
    await asyncio.sleep(0)
    return {{"type": "http.disconnect"}}

ended = []

async def work():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0)
        ended.append(True)
        {last}

try:
    seen = [asyncio.run(with_cancellation(receive, work())), ended]
except ClientGoneError:
    seen = ["gone", ended]
""",
        "seen",
    )
    assert seen == ["gone", [True]]


def test_14_8_ties(subject: Any) -> None:
    """An answer that is ready counts, however the client left in the same turn."""
    for turns in range(6):
        assert play(subject, "race", turns, turns)["how"] == "answer"
    assert play(subject, "race", 30, 2, cleanup=5)["diary"] == [
        "0 tasks left", "work cancelled and cleaned up",
    ]  # fmt: skip
    for kinds in (["http.request"] * 30, ["http.request", "http.response.debug", "lifespan"]):
        assert play(subject, "listen", kinds) == {"done": False, "read": len(kinds)}
