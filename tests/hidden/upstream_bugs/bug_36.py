"""Rows of the batch change places: a budget goes along with its request."""

import inspect
from types import SimpleNamespace

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

SWAP, MOVE = MoveDirectionality.SWAP, MoveDirectionality.UNIDIRECTIONAL


def new(*budgets):
    """Rows with these budgets (None: without)."""
    reasoning = SimpleNamespace(
        reasoning_start_token_ids=[5], reasoning_end_token_ids=[6], enabled=True
    )
    known = {
        "reasoning_config": reasoning, "max_num_seqs": 8, "max_num_reqs": 8, "num_spec_tokens": 0,
        "device": torch.device("cpu"), "is_pin_memory": False, "pin_memory": False,
    }  # fmt: skip
    names = inspect.signature(ThinkingBudgetStateHolder.__init__).parameters
    holder = ThinkingBudgetStateHolder(**{name: known[name] for name in names if name in known})
    added = [
        (row, SamplingParams(thinking_token_budget=budget), [5, 1], [])
        for row, budget in enumerate(budgets)
    ]
    update(holder, added=added)
    return holder


def update(holder, *, removed=(), added=(), moved=()):
    holder.sync_batch(
        BatchUpdate(batch_size=8, removed=list(removed), added=list(added), moved=list(moved))
    )


def rows(holder):
    """Rows with a budget, from outside: a row is one if, without all others, some are tracked."""
    import copy

    found = []
    for row in range(8):
        alone = copy.deepcopy(holder)
        update(alone, removed=[other for other in range(8) if other != row])
        found += [row] * alone.has_tracked_requests()
    return found


def the_bug(draw):
    thinker, other = draw.sample(range(4), 2)
    holder = new(*(10 if row == thinker else None for row in range(4)))
    first, second = draw.sample([thinker, other], 2)
    update(holder, moved=[(first, second, SWAP)])
    assert rows(holder) == [other], (
        f"rows {thinker} and {other} change places, and rows {rows(holder)} have a budget"
    )
    update(holder, moved=[(first, second, SWAP)])
    assert rows(holder) == [thinker], "and back"


def neighbour_two_budgets():
    holder = new(10, 20, None)
    update(holder, moved=[(0, 1, SWAP)])
    assert rows(holder) == [0, 1]
    update(holder, removed=[0], moved=[(1, 2, SWAP)])
    assert rows(holder) == [2]


def neighbour_a_move_in_one_direction():
    holder = new(None, None, 10)
    update(holder, removed=[0], moved=[(2, 0, MOVE)])
    assert rows(holder) == [0]
    holder = new(None, None, None)
    update(holder, moved=[(0, 1, SWAP)])
    assert rows(holder) == []


def the_sibling(draw):
    """What a sparse processor keeps of its rows goes along when rows change places."""
    first, second = draw.sample(range(6), 2)
    for direction, start, expected in (
        (SWAP, {first: "a"}, {second: "a"}),
        (SWAP, {second: "b"}, {first: "b"}),
        (SWAP, {first: "a", second: "b"}, {first: "b", second: "a"}),
        (MOVE, {first: "a"}, {second: "a"}),
        (MOVE, {first: "a", second: "b"}, {second: "a"}),
    ):
        found = dict(start)
        moved = BatchUpdate(batch_size=8, removed=[], added=[], moved=[(first, second, direction)])
        process_dict_updates(found, moved, lambda *args: None)
        assert found == expected, f"{start} becomes {found}, not {expected}"
