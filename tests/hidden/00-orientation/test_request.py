"""Random lives of requests, and the whole engine core around the learner's `Request`."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from labkit.inside.program import Ref
from labkit.process.worker import Program
from labkit.trace import golden
from labkit.trace.diff import differing_fields
from labkit.trace.generate import generate

MODULE = "mini_vllm.request"
STATUSES = (
    "WAITING",
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",
    "WAITING_FOR_REMOTE_KVS",
    "WAITING_FOR_STREAMING_REQ",
    "RUNNING",
    "PREEMPTED",
    "FINISHED_STOPPED",
    "FINISHED_LENGTH_CAPPED",
    "FINISHED_ABORTED",
    "FINISHED_IGNORED",
    "FINISHED_ERROR",
    "FINISHED_REPETITION",
)
FUZZ = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
token_ids = st.integers(0, 5)


def status(program: Program, name: str) -> Ref:
    return program.name(f"{MODULE}:RequestStatus.{name}")


def new_request(program: Program, prompt: list[int]) -> Ref:
    return program.new(f"{MODULE}:Request", "r0", prompt, arrival_time=0.0)


def answers(worker: Any, function: str, questions: list[tuple[str, ...]]) -> list[Any]:
    """What a function of RequestStatus says to each status, or pair of them."""
    program = Program()
    for names in questions:
        arguments = [status(program, name) for name in names]
        program.see(program.call(f"{MODULE}:RequestStatus.{function}", *arguments))
    return worker.run(program)


def asked(arity: int) -> st.SearchStrategy[list[tuple[str, ...]]]:
    """All statuses, or pairs, in an order of their own, and some twice: no list of answers that
    was written down before fits the questions."""
    every = list(product(STATUSES, repeat=arity))

    def shuffled(seed: int) -> list[tuple[str, ...]]:
        chance = Random(seed)
        return chance.sample(every, len(every)) + chance.choices(every, k=20)

    return st.integers(0, 2**62).map(shuffled)


@FUZZ
@given(questions=asked(1))
def test_00_1_every_status(subject: Any, reference: Any, questions: list[tuple[str, ...]]) -> None:
    """is_finished, for all twelve, in any order."""
    expected = answers(reference, "is_finished", questions)
    assert answers(subject, "is_finished", questions) == expected


@FUZZ
@given(questions=asked(1))
def test_00_4_every_status(subject: Any, reference: Any, questions: list[tuple[str, ...]]) -> None:
    """is_blocked, for all twelve, in any order."""
    expected = answers(reference, "is_blocked", questions)
    assert answers(subject, "is_blocked", questions) == expected


@settings(FUZZ, max_examples=10)
@given(questions=asked(2))
def test_00_4_every_pair(subject: Any, reference: Any, questions: list[tuple[str, ...]]) -> None:
    """can_become, for all 144 pairs, in any order."""
    expected = answers(reference, "can_become", questions)
    assert answers(subject, "can_become", questions) == expected


@FUZZ
@given(
    prompt=st.lists(token_ids, min_size=1, max_size=12),
    output=st.lists(token_ids, max_size=12),
    drafts=st.lists(token_ids, max_size=4),
    computed=st.integers(0, 12),
)
def test_00_2_counts_match(
    subject: Any,
    reference: Any,
    prompt: list[int],
    output: list[int],
    drafts: list[int],
    computed: int,
) -> None:
    """Both counts, whatever else the request holds."""
    program = Program()
    request = new_request(program, prompt)
    request.output_token_ids.extend(output)
    request.all_token_ids.extend(output)
    program.set(request, "spec_token_ids", drafts)
    program.set(request, "num_computed_tokens", computed)
    program.see(request.num_tokens)
    program.see(request.num_tokens_with_spec)
    expected = len(prompt) + len(output)
    assert reference.run(program) == [expected, expected + len(drafts)]
    assert subject.run(program) == [expected, expected + len(drafts)]


FIELDS = (
    "prompt_token_ids",
    "output_token_ids",
    "all_token_ids",
    "spec_token_ids",
    "block_hashes",
    "num_computed_tokens",
    "num_preemptions",
    "num_cached_tokens",
    "stop_reason",
)


def see_all(program: Program, request: Ref) -> None:
    """Whatever a request holds that changes in its life."""
    for name in FIELDS:
        program.see(getattr(request, name))
    program.see(request.status.name)


@FUZZ
@given(
    states=st.lists(
        st.tuples(
            st.lists(token_ids, max_size=3),
            st.lists(token_ids, max_size=4),
            st.sampled_from(STATUSES),
        ),
        min_size=2,
        max_size=4,
    ),
    prompt=st.lists(token_ids, min_size=1, max_size=4),
)
def test_00_2_counting_is_asked_again_and_changes_nothing(
    subject: Any, prompt: list[int], states: list[tuple[list[int], list[int], str]]
) -> None:
    """While tokens and drafts come and go, in every status: each count is that of now, whatever
    was asked before, and the lists are what they were."""
    program = Program()
    request = new_request(program, prompt)
    tokens, output, expected = list(prompt), [], []
    for new, drafts, name in states:
        request.output_token_ids.extend(new)
        request.all_token_ids.extend(new)
        program.set(request, "spec_token_ids", drafts)
        program.set(request, "status", status(program, name))
        tokens, output = tokens + new, output + new
        for _ in range(2):
            program.see([request.num_tokens_with_spec, request.num_tokens])
            program.see([request.all_token_ids, request.output_token_ids, request.spec_token_ids])
            expected += [[len(tokens) + len(drafts), len(tokens)], [tokens, output, drafts]]
    assert subject.run(program) == expected


@FUZZ
@given(
    sampled=st.lists(token_ids | st.lists(token_ids, max_size=4), min_size=1, max_size=5),
    drafts=st.lists(token_ids, max_size=3),
    computed=st.integers(0, 9),
    max_tokens=st.integers(1, 4),
)
def test_00_3_nothing_else_moves(
    subject: Any, sampled: list[Any], drafts: list[int], computed: int, max_tokens: int
) -> None:
    """Whether a request ends is asked by others: tokens behind max_tokens and the token that ends a
    text are appended like any. Drafts, counts and status stay."""
    program = Program()
    params = program.new("mini_vllm.sampling_params:SamplingParams", max_tokens=max_tokens)
    request = program.new(
        f"{MODULE}:Request", "r0", [1, 2], params, arrival_time=0.0, eos_token_id=3
    )
    program.set(request, "spec_token_ids", drafts)
    program.set(request, "num_computed_tokens", computed)
    program.set(request, "status", status(program, "RUNNING"))
    output: list[int] = []
    expected: list[Any] = []
    for tokens in sampled:
        request.append_output_token_ids(tokens)
        see_all(program, request)
        output = output + (tokens if isinstance(tokens, list) else [tokens])
        expected += [[1, 2], output, [1, 2, *output], drafts, [], computed, 0, 0, None, "RUNNING"]
    assert subject.run(program) == expected


def test_00_3_a_request_without_a_prompt(subject: Any) -> None:
    """Its two lists are equal, and still two."""
    program = Program()
    request = new_request(program, [])
    request.append_output_token_ids(4)
    request.append_output_token_ids([5, 6])
    program.see([request.output_token_ids, request.all_token_ids, request.prompt_token_ids])
    assert subject.run(program) == [[[4, 5, 6], [4, 5, 6], []]]


@FUZZ
@given(sampled=st.lists(token_ids | st.lists(token_ids, max_size=4), min_size=1, max_size=5))
def test_00_3_the_lists_grow_in_place(subject: Any, sampled: list[Any]) -> None:
    """What was looked at before the first token is what has grown after the last."""
    program = Program()
    request = new_request(program, [1, 2])
    names = ("output_token_ids", "all_token_ids")
    held = [program.call("builtins:getattr", request, name) for name in names]
    output: list[int] = []
    for tokens in sampled:
        request.append_output_token_ids(tokens)
        output += tokens if isinstance(tokens, list) else [tokens]
    program.see(held)
    assert subject.run(program) == [[output, [1, 2, *output]]]


@FUZZ
@given(
    prompt=st.lists(token_ids, min_size=1, max_size=9),
    steps=st.lists(token_ids | st.lists(token_ids, max_size=7), max_size=8),
    block_size=st.integers(1, 5),
)
def test_00_3_lists_and_hashes_match(
    subject: Any, reference: Any, prompt: list[int], steps: list[Any], block_size: int
) -> None:
    """After every append: both lists, the prompt and the block hashes."""
    program = Program()
    request = new_request(program, prompt)
    hasher = program.new("mini_vllm.core.block_hash:BlockHasher", block_size, root=b"root")
    request.set_block_hasher(hasher)
    for sampled in steps:
        request.append_output_token_ids(sampled)
        for attribute in ("prompt_token_ids", "output_token_ids", "all_token_ids", "block_hashes"):
            program.see(getattr(request, attribute))
    assert subject.run(program) == reference.run(program)


@FUZZ
@given(handed=st.lists(st.lists(token_ids, min_size=1, max_size=3), min_size=2, max_size=4))
def test_00_3_lists_that_are_handed_over_stay_the_callers(
    subject: Any, handed: list[list[int]]
) -> None:
    """Later tokens grow none of the lists that earlier ones came in, nor the prompt's; and what the
    caller does with its lists afterwards is nothing to the request."""
    program = Program()
    lists = [program.call("builtins:list", tokens) for tokens in handed]
    prompt = program.call("builtins:list", [7, 8])
    request = program.new(f"{MODULE}:Request", "r0", prompt, arrival_time=0.0)
    expected = []
    for tokens, given_ids in zip(lists, handed, strict=True):
        request.append_output_token_ids(tokens)
        request.append_output_token_ids(6)
        expected += [*given_ids, 6]
    program.see([prompt, *lists])
    for tokens in lists:
        tokens.append(9)
    program.see([request.output_token_ids, request.all_token_ids])
    assert subject.run(program) == [[[7, 8], *handed], [expected, [7, 8, *expected]]]


@FUZZ
@given(path=st.lists(st.sampled_from(STATUSES), min_size=1, max_size=8))
def test_00_4_lives_match(subject: Any, reference: Any, path: list[str]) -> None:
    """A random path of changes ends, or is refused, at the same point."""
    program = Program()
    request = new_request(program, [1])
    for name in path:
        request.transition_to(status(program, name))
        program.see(request.status)
        program.see(request.is_finished)
    assert subject.run(program) == reference.run(program)


def test_00_4_a_change_of_status_changes_the_status(subject: Any, reference: Any) -> None:
    """Every pair, granted or refused: tokens, drafts and counts are the scheduler's to change, and
    it does so itself."""
    pairs = list(product(STATUSES, repeat=2))
    allowed = answers(reference, "can_become", pairs)
    program, right = Program(), []
    for number, ((old, new), may) in enumerate(zip(pairs, allowed, strict=True)):
        request = new_request(program, [1, number])
        request.append_output_token_ids(8)
        counts = {"num_computed_tokens": 2, "num_preemptions": 1, "num_cached_tokens": 1}
        for name, value in (*counts.items(), ("spec_token_ids", [9])):
            program.set(request, name, value)
        program.set(request, "status", status(program, old))
        wanted = status(program, new)
        if may:
            request.transition_to(wanted)
        else:
            program.refuse("ValueError", request.transition_to, wanted)
        see_all(program, request)
        right += [[1, number], [8], [1, number, 8], [9], [], 2, 1, 1, None, new if may else old]
    assert subject.run(program) == right


def test_00_4_a_refusal_changes_nothing(subject: Any, reference: Any) -> None:
    """Every forbidden change raises ValueError, and the request is what it was."""
    pairs = list(product(STATUSES, repeat=2))
    allowed = answers(reference, "can_become", pairs)
    program, right = Program(), []
    for (old, new), may in zip(pairs, allowed, strict=True):
        if not may:
            request = new_request(program, [1])
            program.set(request, "status", status(program, old))
            program.refuse("ValueError", request.transition_to, status(program, new))
            program.see(request.status.name)
            right.append(old)
    assert subject.run(program) == right


def replay(worker: Any, recorded: golden.Golden) -> str:
    """Where a replay parts from a recording; "" if it does not."""
    for step, (mine, other) in enumerate(
        zip(worker.trace(recorded.trace.to_dict()), recorded.lines, strict=True)
    ):
        if fields := differing_fields(mine, other):
            return f"recording {recorded.name}, step {step}: {', '.join(fields)} differ"
    return ""


@pytest.mark.parametrize("profile", ["mixed", "pressure", "abort", "priority"])
def test_00_4_recordings_of_vllm(subject: Any, profile: str) -> None:
    """Your request inside the scheduler decides as vLLM's own scheduler did."""
    recordings = golden.select(profile, limit=2)
    assert recordings
    for recorded in recordings:
        parting = replay(subject, recorded)
        assert not parting, parting


@pytest.mark.parametrize("profile", ["mixed", "prefix"])
@settings(deadline=None, max_examples=4, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
def test_00_3_random_traces(subject: Any, reference: Any, profile: str, seed: int) -> None:
    """Fresh random traces beside the reference, step by step."""
    trace = generate(profile, seed, steps=40).to_dict()
    assert subject.trace(trace) == reference.trace(trace)


def test_00_2_however_many_there_are(subject: Any) -> None:
    """3,000 tokens and 500 drafts are counted to the last."""
    program = Program()
    request = new_request(program, [1, 2])
    request.output_token_ids.extend([7] * 3000)
    request.all_token_ids.extend([7] * 3000)
    program.set(request, "spec_token_ids", [8] * 500)
    program.see([request.num_tokens, request.num_tokens_with_spec])
    assert subject.run(program) == [[3002, 3502]]


def test_00_3_a_long_list_stays_the_callers(subject: Any) -> None:
    """100 tokens at once are appended, and the list that held them still does."""
    program = Program()
    request = new_request(program, [1])
    tokens = program.call("builtins:list", list(range(100)))
    request.append_output_token_ids(tokens)
    request.append_output_token_ids(5)
    program.see([tokens, request.output_token_ids, request.all_token_ids])
    every = list(range(100))
    assert subject.run(program) == [[every, [*every, 5], [1, *every, 5]]]
