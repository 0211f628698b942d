"""Rows that change hands: random batches, and what a hook knows of each row after every update."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=25)
SCRIPT = """
from mini_vllm.sample.custom import BatchUpdate, MoveDirectionality, process_dict_updates
from mini_vllm.sampling_params import SamplingParams

states = {}
def state_of(params, prompt, output):
    kind = prompt[0]
    if kind == 0:
        return None
    return states.setdefault(output[0], [] if kind == 1 else [output[0]] if kind == 2 else [7])

known, seen, params = {}, [], SamplingParams()
for removed, added, moved in updates:
    came = [(row, params, [kind], [number]) for row, kind, number in added]
    moves = [(a, b, MoveDirectionality[name]) for a, b, name in moved]
    before = dict(known)
    changed = process_dict_updates(known, BatchUpdate(9, removed, came, moves), state_of)
    owner = {id(state): number for number, state in states.items()}
    seen.append([bool(changed), {row: owner[id(state)] for row, state in sorted(known.items())}])
unchanged = process_dict_updates(known, None, state_of)
"""


def story(seed: int) -> tuple[list[Any], list[Any]]:
    """Updates, and after each one: whether what is known has changed, and of which request.

    It is open (None) where something known came or moved and all is as before in the end.
    """
    draw, rows, number = random.Random(seed), {}, 0
    kinds: dict[int, int] = {}
    updates, right = [], []
    for _ in range(8):
        before = {row: one for row, one in rows.items() if kinds[one]}
        removed = draw.sample(range(8), draw.randint(0, 3))
        for row in removed:
            rows.pop(row, None)
        added = []
        for row in draw.sample(range(8), draw.randint(0, 3)):
            kinds[number] = draw.choice([0, 1, 2, 3])
            rows[row] = number
            added.append((row, kinds[number], number))
            number += 1
        moved, is_touched = [], any(kind for _, kind, _ in added)
        for _ in range(draw.randint(0, 4)):
            a, b = draw.sample(range(8), 2)
            name = draw.choice(["UNIDIRECTIONAL", "SWAP"])
            of_a, of_b = rows.pop(a, None), rows.pop(b, None)
            is_touched |= any(kinds.get(one) for one in (of_a, of_b) if one is not None)
            if of_a is not None:
                rows[b] = of_a
            if of_b is not None and name == "SWAP":
                rows[a] = of_b
            moved.append((a, b, name))
        updates.append((removed, added, moved))
        after = {row: one for row, one in sorted(rows.items()) if kinds[one]}
        right.append([before != after or (None if is_touched else False), after])
    return updates, right


@many
@given(seed=st.integers(0, 2**31))
def test_06_10_any_updates(subject: Any, seed: int) -> None:
    """Requests leave, come and move; states may be empty, and equal to each other."""
    updates, right = story(seed)
    p = Program()
    names = p.execute(SCRIPT, updates=updates)
    p.see(names["seen"])
    p.see(names["unchanged"])
    seen, unchanged = subject.run(p)
    for (changed, known), (wanted, after) in zip(seen, right, strict=True):
        assert known == after and wanted in (None, changed)
    assert unchanged is False


EQUAL = """
from mini_vllm.sample.custom import BatchUpdate, process_dict_updates
from mini_vllm.sampling_params import SamplingParams

seen, params = [], SamplingParams()
for removed in ([], [0]):
    known = {0: [7], 1: [8]}
    update = BatchUpdate(2, removed, [(0, params, [1], [])])
    seen.append([process_dict_updates(known, update, lambda *_: [7]), known])
"""


def test_06_10_an_equal_state_in_the_place_of_the_old(subject: Any) -> None:
    """Only the entries hold a state, so a new one may lie where the forgotten one lay."""
    p = Program()
    names = p.execute(EQUAL)
    p.see(names["seen"])
    assert subject.run(p) == [[[True, {0: [7], 1: [8]}]] * 2]


HOOK = """
import itertools
import torch
from mini_vllm.sample.custom import AdapterLogitsProcessor, update_of
from mini_vllm.sample.metadata import SamplingRow
from mini_vllm.sampling_params import SamplingParams

class Counting(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        if params.seed == 0:
            return None
        calls = itertools.count(1)
        if params.seed % 2:
            return lambda output, logits: logits + next(calls)
        return lambda prompt, output, logits: logits.add_(next(calls)) * 1

requests = {
    name: SamplingRow(SamplingParams(seed=index % 5), [1], [index])
    for index, name in enumerate(sorted(set("".join(stories))))
}
hook, before, seen = Counting(None, torch.device("cpu"), False), [], []
for story in stories:
    after = [requests[name] for name in story]
    hook.update_state(update_of(before, after))
    logits = hook.apply(torch.zeros(len(after), 3))
    seen.append(logits[:, 1].tolist())
    hook.update_state(None)
    before = after
"""


@many
@given(seed=st.integers(0, 2**31))
def test_06_10_functions_go_with_their_requests(subject: Any, seed: int) -> None:
    """Each function counts its calls, whatever row its request is in."""
    draw, alive, stories = random.Random(seed), set("abc"), []
    fresh = iter("defghijklmnopqrstuvwxyz")
    for _ in range(8):
        alive -= set(draw.sample(sorted(alive), draw.randint(0, len(alive))))
        alive |= {next(fresh) for _ in range(draw.randint(0, 2))}
        order = sorted(alive)
        draw.shuffle(order)
        stories.append("".join(order))
    names, calls, right = sorted(set("".join(stories))), dict.fromkeys("".join(stories), 0), []
    for one in stories:
        for name in one:
            calls[name] += names.index(name) % 5 != 0
        right.append([float(calls[name]) for name in one])
    p = Program()
    scope = p.execute(HOOK, stories=stories)
    p.see(scope["seen"])
    assert subject.run(p) == [right]


LENT = """
import torch
from mini_vllm.sample.custom import AdapterLogitsProcessor, BatchUpdate
from mini_vllm.sampling_params import SamplingParams

class Telling(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        if params.seed == 0:
            return None
        if params.seed == 1:
            return lambda output, logits: logits + len(output)
        return lambda prompt, output, logits: logits + 10 * len(prompt) + sum(output)

outputs, hook, seen = [[], [5], [7]], Telling(None, torch.device("cpu"), False), []
rows = [(i, SamplingParams(seed=i), [1, 2], output) for i, output in enumerate(outputs)]
hook.update_state(BatchUpdate(3, [], rows))
for step in range(3):
    given = torch.zeros(3, 2)
    result = hook.apply(given)
    seen.append([result is given, given[:, 0].tolist()])
    for output in outputs:
        output.append(1)
    hook.update_state(None)
"""


def test_06_10_lists_grow_and_logits_are_written_in_place(subject: Any) -> None:
    """A function sees the tokens that its request has by now; what comes out is what went in, with
    the rows written that have a function."""
    p = Program()
    scope = p.execute(LENT)
    p.see(scope["seen"])
    right = [[True, [0.0, 1.0 + step, 27.0 + step]] for step in range(3)]
    assert subject.run(p) == [right]
