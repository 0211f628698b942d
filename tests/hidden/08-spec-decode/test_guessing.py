"""Drafting: the n-gram search beside a search of every place, and a drafter's passes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=30)
SEARCH = "mini_vllm.spec_decode.ngram_proposer:find_longest_matched_ngram_and_propose_tokens"
DRAFTING = "labkit.inside.drafting:"
VOCAB = 50


def brute_force(tokens: list[int], min_n: int, max_n: int, max_len: int, k: int) -> list[int]:
    k = min(k, max_len - len(tokens))
    for n in range(min(max_n, len(tokens)), min_n - 1, -1):
        for start in range(len(tokens) - n):
            if k > 0 and tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + k]
    return []


@many
@given(data=st.data())
def test_08_1_the_search_is_a_search_of_every_place(subject: Any, data: st.DataObject) -> None:
    """Twenty random texts at once: the longest match, among equals the first, cut to the limits."""
    p = Program()
    expected = []
    for _ in range(20):
        tokens = data.draw(st.lists(st.integers(0, data.draw(st.integers(1, 4))), max_size=24))
        min_n = data.draw(st.integers(1, 4))
        max_n = min_n + data.draw(st.integers(0, 3))
        max_len = len(tokens) + data.draw(st.integers(-1, 6))
        k = data.draw(st.integers(1, 6))
        array = p.call("numpy:array", tokens, dtype="int64")
        found = p.call(SEARCH, array, min_n, max_n, max_len, k)
        p.see(p.call("builtins:list", found.tolist()))
        expected.append(brute_force(tokens, min_n, max_n, max_len, k))
    assert subject.run(p) == expected


CASES = [
    ([3], 1, 3, 9, 2),
    ([3, 3], 1, 3, 9, 2),
    ([1, 2, 1, 2], 3, 4, 9, 2),
    ([1, 2, 3, 1, 2], 2, 2, 9, 9),
    ([1, 2, 3, 4, 2, 3, 1, 2, 3], 2, 3, 20, 3),
    ([2, 3, 9, 1, 2, 3, 8, 2, 3], 1, 2, 20, 1),
    ([1, 2, 1], 1, 1, 3, 2),
    ([1, 2, 1], 1, 1, 2, 2),
    ([1, 2, 1], 1, 1, 4, 2),
]


def test_08_1_short_texts_and_limits(subject: Any) -> None:
    """One token, a match that overlaps the end, matches that are too short, no position left."""
    p = Program()
    for tokens, *limits in CASES:
        found = p.call(SEARCH, p.call("numpy:array", tokens, dtype="int64"), *limits)
        p.see(p.call("builtins:list", found.tolist()))
    assert subject.run(p) == [brute_force(*case) for case in CASES]


NUMBERS = (1, 12, 2, 23, 3, 31, 2**8 + 1, 2**15 + 1, 2**16 + 1, 2**32 + 1)
"""Some are equal in few bits, and some run into one another when their digits are written down."""


@many
@example(tokens=[1, 23, 2, 12, 3], min_n=1, as_array=True)
@example(tokens=[3, 31, 2, 33, 1], min_n=2, as_array=False)
@given(
    tokens=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=60),
    min_n=st.integers(1, 3),
    as_array=st.booleans(),
)
def test_08_1_tokens_are_numbers(
    subject: Any, tokens: list[int], min_n: int, as_array: bool
) -> None:
    """Tokens that are equal in their last bits, or digit by digit, are not equal. The same texts
    again, doubled: ends of all lengths match, and much follows them."""
    p = Program()
    cases = [(text, min_n, max_n, 200, 9) for text in (tokens, tokens * 2) for max_n in (3, 40)]
    for text, *limits in cases:
        given = p.call("numpy:array", text, dtype="int64") if as_array else text
        p.see(p.call("builtins:list", p.call(SEARCH, given, *limits).tolist()))
    assert subject.run(p) == [brute_force(*case) for case in cases]


def test_08_1_far_back_and_long(subject: Any) -> None:
    """What followed three thousand tokens ago; and twelve tokens in a row beat eight of them that
    stood earlier."""
    far = [7, 8, 9, *range(10, 3000), 7, 8]
    end = list(range(100, 112))
    long = [*end[4:], 1, *end, 2, *end]
    p = Program()
    for text, max_n in ((far, 5), (long, 12), (long, 8)):
        array = p.call("numpy:array", text, dtype="int64")
        p.see(p.call("builtins:list", p.call(SEARCH, array, 1, max_n, 4000, 1).tolist()))
    assert subject.run(p) == [[9], [2], [1]]


def test_08_1_whose_text_is_searched(subject: Any) -> None:
    """Those with a new token, one or several; and not what rejected drafts have left behind."""
    one = {"scheduled": 1, "drafts": 0, "sampled": 1}
    step = [
        {"id": "chunk", "tokens": [1, 2, 1, 2], "computed": 0, "scheduled": 2, "sampled": 0},
        {"id": "one", "tokens": [1, 2, 1, 2], "computed": 2} | one,
        {"id": "three", "tokens": [5, 6, 5, 6, 5, 6], "computed": 2, "scheduled": 4,
         "drafts": 3, "sampled": 3},
        {"id": "unheard", "tokens": [1, 2, 3, 4], "computed": 2} | one,
        {"id": "left", "tokens": [49, 7, 8, 9, 5, 6], "computed": 4} | one,
    ]  # fmt: skip
    p = Program()
    p.see(p.call(f"{DRAFTING}look_up", step, 1, 2, 3, 64))
    assert subject.run(p) == [{"one": [1, 2], "three": [5, 6, 5]}]


def test_08_1_token_0_is_a_draft(subject: Any) -> None:
    """Whatever followed is proposed, though it be token 0, first or alone."""
    one = {"computed": 3, "scheduled": 1, "sampled": 1}
    texts = {"zeros": [5, 0, 0, 5], "first": [6, 0, 7, 6]}
    p = Program()
    step = [{"id": name, "tokens": tokens} | one for name, tokens in texts.items()]
    p.see(p.call(f"{DRAFTING}look_up", step, 1, 2, 2, 64))
    assert subject.run(p) == [{"zeros": [0, 0], "first": [0, 7]}]


def test_08_1_the_proposers_own_limits(subject: Any) -> None:
    """Four tokens of at most six, five or four; n-grams that are too long; one draft at most."""
    step = [{"id": "a", "tokens": [1, 2, 1, 2], "computed": 3, "scheduled": 1, "sampled": 1}]
    p = Program()
    for limits in ((1, 2, 3, 6), (1, 2, 3, 5), (1, 2, 3, 4), (3, 3, 3, 64), (2, 2, 1, 64)):
        p.see(p.call(f"{DRAFTING}look_up", step, *limits))
    assert subject.run(p) == [{"a": [1, 2]}, {"a": [1]}, {}, {}, {"a": [1]}]


def test_08_1_each_step_anew(subject: Any) -> None:
    """Requests run in another order than their rows, and not all of them; then another step, which
    changes nothing of what was said in the first. An id returns with another text of the same
    length, and then with a longer one."""
    common = {"computed": 0, "scheduled": 3, "sampled": 1}
    batch = [{"id": str(n), "tokens": [n, n + 1, 9, n]} | common for n in range(4)]
    p = Program()
    proposer = p.new("mini_vllm.spec_decode.ngram_proposer:NgramProposer", 1, 2, 2, 64)
    steps = [p.call(f"{DRAFTING}make_step", batch, order=order) for order in ([3, 1], [2])]
    for text in ([7, 6, 5, 7], [8, 7, 6, 5, 8]):
        other = {"id": "2", "tokens": text} | common
        steps.append(p.call(f"{DRAFTING}make_step", [other]))
    for answer in [proposer.propose(step) for step in steps]:
        p.see(answer)
    first, again = {"3": [4, 9], "1": [2, 9]}, {"2": [3, 9]}
    assert subject.run(p) == [first, again, {"2": [6, 5]}, {"2": [7, 6]}]


def successor(token: int) -> int:
    return (3 * token + 1) % VOCAB


@st.composite
def requests(draw: Any, block_size: int = 4) -> list[dict[str, Any]]:
    """The end of a step: decodes with accepted and rejected drafts, chunks, prompts that end."""
    made: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 5))):
        length = draw(st.integers(3, 26))
        tokens = draw(st.lists(st.integers(0, VOCAB - 2), min_size=length, max_size=length))
        kind = draw(st.sampled_from(("decode", "chunk", "prompt")))
        request: dict[str, Any] = {"id": f"r{number}", "tokens": tokens}
        if kind == "decode":
            sampled = draw(st.integers(1, min(4, length - 1)))
            drafts = draw(st.integers(sampled - 1, sampled + 2))
            request |= {"computed": length - 1 - sampled, "scheduled": drafts + 1,
                        "drafts": drafts, "sampled": sampled}  # fmt: skip
        else:
            computed = draw(st.integers(0, length - 2))
            ends = length - 1 if kind == "prompt" else draw(st.integers(computed + 1, length - 1))
            request |= {"computed": computed, "scheduled": ends - computed,
                        "sampled": int(kind == "prompt")}  # fmt: skip
        held = length + draw(st.integers(0, 8))
        spare = request["computed"] + request["scheduled"]
        blocks = -(-max(held - draw(st.integers(0, 6)), spare) // block_size)
        request["blocks"] = [1 + 20 * number + index for index in range(blocks)]
        made.append(request)
    return made


FULL = {"id": "full", "tokens": list(range(9)), "computed": 0, "scheduled": 8, "sampled": 1,
        "blocks": [5, 9]}  # fmt: skip
"""A prompt that fills its two blocks of 4: the newest token has no slot."""
BEYOND = {"id": "beyond", "tokens": list(range(18)), "computed": 14, "scheduled": 3, "sampled": 0,
          "blocks": [1, 2, 3, 4, 6]}  # fmt: skip
"""A chunk behind the positions of a draft model that has 12."""
SHORT = {"id": "short", "tokens": list(range(8)), "computed": 0, "scheduled": 7, "sampled": 1,
         "blocks": [5, 9]}  # fmt: skip
"""A prompt whose newest token has the last slot: it may have one draft."""
LONG = {"id": "long", "tokens": [30, 31, 32], "computed": 0, "scheduled": 2, "sampled": 1,
        "blocks": [11, 12, 13]}  # fmt: skip


@st.composite
def steps(draw: Any) -> tuple[list[dict[str, Any]], int, list[int]]:
    """The batch, its block size, and which of its requests ran, in the order of the flat batch."""
    block_size = draw(st.sampled_from((2, 4, 8)))
    batch = draw(requests(block_size))
    order = draw(st.permutations(range(len(batch))))
    return batch, block_size, order[: draw(st.integers(1, len(order)))]


@many
@given(step=steps(), k=st.integers(1, 5), limit=st.sampled_from((12, 20, 64)))
@example(step=([FULL], 4, [0]), k=3, limit=64)
@example(step=([BEYOND, SHORT], 4, [1, 0]), k=3, limit=12)
def test_08_8_counts_and_limits(
    subject: Any, step: tuple[list[dict[str, Any]], int, list[int]], k: int, limit: int
) -> None:
    """How much each request feeds first, and how much it may draft, by its slots and positions."""
    batch, block_size, order = step
    p = Program()
    p.see(p.call(f"{DRAFTING}draft", batch, k, limit, block_size, order))
    [got] = subject.run(p)
    counts, limits = [], []
    for request in (batch[index] for index in order):
        length, slots = len(request["tokens"]), block_size * len(request["blocks"])
        end = length if request["sampled"] else request["computed"] + request["scheduled"]
        counts.append(max(min(end, slots, limit) - request["computed"], 0))
        room = max(min(slots - length + 1, limit - 1 - length, k), 0)
        limits.append(room if request["sampled"] else 0)
    assert [got["counts"], got["limits"]] == [counts, limits]


def test_08_8_tens_of_thousands_of_slots(subject: Any) -> None:
    """Texts of 200 and of 33,000 tokens in blocks of 16: their slots need more than 8 and 16 bits.
    Asked twice, the answer is the same."""
    p = Program()
    common = {"scheduled": 9, "sampled": 1}
    batch = [
        {"id": str(length), "tokens": p.call("builtins:range", length), "computed": length - 10,
         "blocks": list(range(1, blocks))} | common
        for length, blocks in ((200, 14), (33_000, 2064))
    ]  # fmt: skip
    step = p.call(f"{DRAFTING}make_step", batch, 16, 40_000)
    proposer = p.new(
        "mini_vllm.spec_decode.draft_model:DraftModelProposer",
        p.new(f"{DRAFTING}ToyModel"), p.new(f"{DRAFTING}ToyCache"), 20, 40_000,
        p.call("torch:device", "cpu"),
    )  # fmt: skip
    for _ in range(2):
        p.see(proposer.first_pass_counts(step).tolist())
        p.see(proposer.num_drafts(step).tolist())
    assert subject.run(p) == [[10, 10], [9, 9]] * 2


@many
@given(step=steps(), k=st.integers(1, 5), limit=st.sampled_from((12, 20, 64)))
@example(step=([SHORT, LONG, BEYOND], 4, [0, 1, 2]), k=4, limit=12)
def test_08_9_drafts_passes_and_slots(
    subject: Any, step: tuple[list[dict[str, Any]], int, list[int]], k: int, limit: int
) -> None:
    """Whatever the step was: how much each request drafts, what is fed, where, into which slots."""
    batch, block_size, order = step
    p = Program()
    p.see(p.call(f"{DRAFTING}draft", batch, k, limit, block_size, order))
    [got] = subject.run(p)
    fed: dict[int, set[tuple[int, int, int]]] = {}
    expected_drafts = {}
    for request in (batch[index] for index in order):
        tokens, blocks = request["tokens"], request["blocks"]
        slots = len(blocks) * block_size
        sampled = request["sampled"]
        end = len(tokens) if sampled else request["computed"] + request["scheduled"]
        room = min(slots - len(tokens) + 1, limit - 1 - len(tokens), k)
        count = max(room, 0) if sampled else 0
        for position in range(request["computed"], min(end, slots, limit)):
            slot = blocks[position // block_size] * block_size + position % block_size
            fed.setdefault(0, set()).add((tokens[position], position, slot))
        token, drafts = tokens[-1], []
        for place in range(count):
            token = successor(token)
            drafts.append(token)
            if place + 1 < count:
                position = len(tokens) + place
                slot = blocks[position // block_size] * block_size + position % block_size
                fed.setdefault(place + 1, set()).add((token, position, slot))
        if count:
            expected_drafts[request["id"]] = drafts
    assert {i: d for i, d in got["drafts"].items() if d} == expected_drafts
    assert [{tuple(t) for t in one} for one in got["passes"]] == list(fed.values())
    assert [len(one) for one in got["passes"]] == [len(one) for one in fed.values()]


def test_08_9_each_step_anew(subject: Any) -> None:
    """A request outside the second step has no drafts from the first; and an id that returns
    with another text has none of the old one."""
    common = {"computed": 0, "scheduled": 3, "sampled": 1}
    batch = [{"id": str(n), "tokens": [n, n + 1, 9, n]} | common for n in range(4)]
    p = Program()
    model, cpu = p.new(f"{DRAFTING}ToyModel"), p.call("torch:device", "cpu")
    proposer = p.new(
        "mini_vllm.spec_decode.draft_model:DraftModelProposer",
        model, p.new(f"{DRAFTING}ToyCache"), 2, 64, cpu,
    )  # fmt: skip
    for order in ([3, 1], [2]):
        p.see(proposer.propose(p.call(f"{DRAFTING}make_step", batch, order=order)))
    returned = {"id": "2", "tokens": [5, 6, 7, 8]} | common
    p.see(proposer.propose(p.call(f"{DRAFTING}make_step", [returned])))
    expected = {n: [successor(n), successor(successor(n))] for n in (*range(4), 8)}
    assert subject.run(p) == [
        {"3": expected[3], "1": expected[1]}, {"2": expected[2]}, {"2": expected[8]}
    ]  # fmt: skip


def test_08_9_the_step_stays(subject: Any) -> None:
    """A decode with a rejected draft beside a chunk of a prompt: counts, rows and the batch say
    afterwards what they said before."""
    p = Program()
    batch = [
        {"id": "a", "tokens": [1, 2, 3, 4], "computed": 2, "scheduled": 3, "drafts": 2,
         "sampled": 1},
        {"id": "b", "tokens": list(range(9)), "computed": 0, "scheduled": 5, "sampled": 0},
    ]  # fmt: skip
    step = p.call(f"{DRAFTING}make_step", batch, order=[1, 0])
    proposer = p.new(
        "mini_vllm.spec_decode.draft_model:DraftModelProposer",
        p.new(f"{DRAFTING}ToyModel"), p.new(f"{DRAFTING}ToyCache"), 3, 64,
        p.call("torch:device", "cpu"),
    )  # fmt: skip
    held = [step.rows, step.num_computed, step.num_scheduled, step.num_drafts, step.num_sampled]
    held += [getattr(step.batch, name) for name in
             ("token_ids", "num_tokens", "num_computed_tokens", "num_blocks")]  # fmt: skip
    for _ in range(2):
        for each in held:
            p.see(each.tolist())
        p.see(proposer.propose(step))
    seen = subject.run(p)
    assert len(seen) == 2 * (len(held) + 1), seen[-1:]
    assert seen[: len(held)] == seen[len(held) + 1 : -1]
    assert seen[len(held)] == seen[-1]


@many
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=1)
def test_08_9_drawn_drafts(subject: Any, reference: Any, seed: int) -> None:
    """Each has a random number of its own, and is judged by what it was drawn from: of the last
    proposal, however often its request has drafted before."""
    p = Program()
    model, cpu = p.new(f"{DRAFTING}ToyModel"), p.call("torch:device", "cpu")
    proposer = p.new(
        "mini_vllm.spec_decode.draft_model:DraftModelProposer",
        model, p.new(f"{DRAFTING}ToyCache"), 4, 64, cpu, True,
    )  # fmt: skip
    for first, order in ((0, [3, 1, 0]), (20, [3, 2, 0]), (7, [1, 0])):
        batch = [
            {"id": str(n), "tokens": [n, 1, 9, first + n], "computed": 0, "scheduled": 3,
             "sampled": 1, "params": {"temperature": n / 2, "seed": seed + n}} for n in range(4)
        ]  # fmt: skip
        p.see(proposer.propose(p.call(f"{DRAFTING}make_step", batch, order=order)))
        for n in order:
            p.see(proposer.draft_probs(str(n), 3).tolist())
    for found, expected in zip(subject.run(p), reference.run(p), strict=True):
        assert np.allclose(found, expected) if isinstance(found, list) else found == expected


@many
@given(step=steps(), k=st.integers(1, 9))
def test_08_10_heads_read_the_state_of_the_last_token_that_stays(
    subject: Any, step: tuple[list[dict[str, Any]], int, list[int]], k: int
) -> None:
    """Hidden state number t is t, and head j adds j: the drafts say which rows were read."""
    batch, _, order = step
    for request in batch:
        request.pop("blocks", None)  # nothing is stored, and the drawn ones may be of another size
    p = Program()
    p.see(p.call(f"{DRAFTING}look_ahead", batch, k, order))
    [got] = subject.run(p)
    start, expected = 0, {}
    for request in (batch[index] for index in order):
        if request["sampled"]:
            stays = request["scheduled"] - request.get("drafts", 0) + request["sampled"] - 1
            last = start + stays - 1
            expected[request["id"]] = [successor(last + index) for index in range(k)]
        start += request["scheduled"]
    assert got == expected
