"""What the docstrings promise and no story shows: large steps, types of arrays, dense rows, and all
that is remembered of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=25, phases=[Phase.generate])
BATCH = "mini_vllm.worker.input_batch:"
PLAN = "mini_vllm.core.scheduler_output:"
COST = "labkit.inside.cost:"


def make_runner(p: Program, rows: int, tokens: int = 32) -> Any:
    """A runner without a model: rows of so many tokens in blocks of 4."""
    device = p.call("torch:device", "cpu")
    return p.new("mini_vllm.worker.model_runner:ModelRunner", None, None, rows, tokens, 4, device)


def new(
    p: Program,
    name: str,
    prompt: Sequence[int],
    blocks: Sequence[int],
    computed: int = 0,
    **more: Any,
) -> Any:
    params = p.new("mini_vllm.sampling_params:SamplingParams", temperature=0.5)
    prompt, blocks = list(prompt), list(blocks)
    return p.new(f"{PLAN}NewRequestData", name, prompt, params, 7, blocks, computed, **more)


def plan(
    p: Program,
    counts: Mapping[str, int],
    requests: Sequence[Any] = (),
    computed: Mapping[str, int] | None = None,
    finished: Sequence[str] = (),
    resumed: Sequence[str] = (),
    blocks: Mapping[str, list[int]] | None = None,
    preempted: Sequence[str] = (),
) -> Any:
    """A step with these tokens of each request.

    Args:
        requests: those that are new.
        computed: those that are known already -> their computed tokens.
        resumed: those of them that come back.
        blocks: the whole table of a resumed request, the additional blocks of others.
    """
    known = computed or {}
    cached = p.new(f"{PLAN}CachedRequestData", list(known), list(known.values()), set(resumed), {})
    total, new_blocks = sum(counts.values()), dict(blocks or {})
    return p.new(
        f"{PLAN}SchedulerOutput",
        list(requests), cached, dict(counts), total, {}, new_blocks, list(preempted), set(finished),
    )  # fmt: skip


def state(p: Program, name: str, output: Sequence[int] = ()) -> Any:
    params = p.new("mini_vllm.sampling_params:SamplingParams")
    return p.new(f"{BATCH}CachedRequestState", name, [5, 6], params, None, list(output))


def seated(p: Program, names: Sequence[str | None]) -> Any:
    """A batch of 6 rows in which these requests sit; None is a hole."""
    batch = p.new(f"{BATCH}InputBatch", 6, 12, 4)
    p.set(batch, "rows", [name and state(p, name) for name in names])
    index = {name: row for row, name in enumerate(names) if name}
    p.set(batch, "req_id_to_row", index)
    return batch


def test_05_1_the_lowest_row_is_taken_first(subject: Any) -> None:
    """The first hole, then the next one, and only then a row at the end."""
    p = Program()
    batch = seated(p, ["ana", None, "cleo", None, "eve"])
    for name in ("fay", "gus", "hal"):
        p.see(batch.add_request(state(p, name), [1], 0))
    assert subject.run(p) == [1, 3, 5]


def test_05_1_what_is_remembered_stays_as_it_is(subject: Any) -> None:
    """Ana is resumed after two tokens: the row holds all four, her own lists are what they were."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 2, 12, 4)
    ana = state(p, "ana", [70, 71])
    batch.add_request(ana, [1], 0)
    p.see(batch.token_ids[0].tolist())
    p.see(ana.prompt_token_ids)
    p.see(ana.output_token_ids)
    row, *lists = subject.run(p)
    assert row[:4] == [5, 6, 70, 71]
    assert lists == [[5, 6], [70, 71]]


def test_05_2_a_request_that_moves_moves_once(subject: Any) -> None:
    """Whichever of six rows are holes: no request moves twice, and no more move than there are
    holes."""
    for kept in product([True, False], repeat=6):
        names = [f"r{row}" if here else None for row, here in enumerate(kept)]
        p = Program()
        batch = seated(p, names)
        move = p.new("unittest.mock:Mock", wraps=batch._move_row)
        p.set(batch, "_move_row", move)
        batch.condense()
        p.see_each(batch.rows, "req_id")
        p.see_each(move.call_args_list, "args")
        order, moves = subject.run(p)
        assert set(order) == set(filter(None, names)) and len(order) == sum(kept)
        assert sum(names[row] != name for row, name in enumerate(order)) <= names.count(None)
        filled: set[int] = set()
        for source, target in filter(None, moves):
            assert source not in filled, f"{names}: a request moved twice, (from, to): {moves}"
            filled.add(target)


@pytest.mark.parametrize("number", [16, 17, 33, 300])
def test_05_3_decodes_lead_in_a_large_batch(subject: Any, number: int) -> None:
    """Sorts that keep no order look as if they did up to 16 elements."""
    counts = [1 + (index * 7 % 5 < 2) * (1 + index % 3) for index in range(number)]
    p = Program()
    p.see(p.call(f"{BATCH}decodes_first", counts).tolist())
    right = sorted(range(number), key=lambda index: counts[index] != 1)
    assert subject.run(p) == [right]


def test_05_3_no_loop_over_requests(subject: Any) -> None:
    """512 requests take as many steps of Python as 8."""
    p = Program()
    flatten = p.name(f"{BATCH}flatten_tokens")
    for number in (8, 512):
        counts = p.call("numpy:full", number, 3, dtype="int32")
        p.see(p.call(f"{COST}steps", flatten, counts, counts))
    few, many = subject.run(p)
    assert many < 1.5 * few


def test_05_4_no_row_is_copied(subject: Any) -> None:
    """Sixteen rows of 40,000 tokens, a slot and a token for each: next to no memory is taken."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 16, 40_000, 4)
    p.set(batch, "rows", [state(p, f"r{row}") for row in range(16)])
    rows = p.call("numpy:arange", 16)
    for method in (batch.slot_mapping, batch.append_tokens):
        method(rows, rows)
        p.see(p.call(f"{COST}peak_bytes", method, rows, rows))
    assert max(subject.run(p)) < 100_000


def test_05_5_rows_are_dense_when_a_step_begins(subject: Any) -> None:
    """Two of four finish and none comes: what is left are two rows without a hole."""
    p = Program()
    runner = make_runner(p, 4)
    names = ["ana", "ben", "cleo", "dan"]
    requests = [new(p, name, [5, 6], [number + 1]) for number, name in enumerate(names)]
    runner._update_states(plan(p, dict.fromkeys(names, 2), requests))
    left = {"cleo": 2, "dan": 2}
    step = plan(p, dict.fromkeys(left, 1), computed=left, finished=["ana", "ben"])
    runner._update_states(step)
    p.see_each(runner.batch.rows, "req_id")
    p.see(runner.batch.req_id_to_row)
    (order, index) = subject.run(p)
    assert sorted(order) == ["cleo", "dan"]
    assert index == {name: row for row, name in enumerate(order)}


def test_05_5_all_of_a_new_request_is_remembered(subject: Any) -> None:
    """Its parameters, its last token and its adapter are sent once."""
    p = Program()
    runner = make_runner(p, 2)
    request = new(p, "ana", [5, 6], [1], lora_name="acme")
    runner._update_states(plan(p, {"ana": 2}, [request]))
    state = runner.requests["ana"]
    for value in (state.req_id, state.prompt_token_ids, state.eos_token_id, state.lora_name):
        p.see(value)
    p.see(state.sampling_params.temperature)
    p.see(state.output_token_ids)
    assert subject.run(p) == ["ana", [5, 6], 7, "acme", 0.5, []]


def test_05_5_the_count_is_what_the_plan_says(subject: Any) -> None:
    """Also if it is less than it was."""
    p = Program()
    runner = make_runner(p, 2)
    prompt = range(9)
    runner._update_states(plan(p, {"ana": 4}, [new(p, "ana", prompt, [1, 2, 3])]))
    counts = [4, 6, 5, 0, 2]
    for count in counts:
        runner._update_states(plan(p, {"ana": 1}, computed={"ana": count}))
        p.see(runner.batch.num_computed_tokens[0].item())
    assert subject.run(p) == counts


@pytest.mark.parametrize("hits", [[4, 0, 8], [0, 4]])
def test_05_5_the_prefix_cache_has_computed_some(subject: Any, hits: list[int]) -> None:
    """A new request begins behind the tokens that the cache has supplied."""
    p = Program()
    runner = make_runner(p, 3)
    names = ["ana", "ben", "cleo"][: len(hits)]
    tables = [[1, 2, number] for number in range(3, 3 + len(hits))]
    requests = [new(p, *about) for about in zip(names, [range(9)] * 3, tables, hits, strict=False)]
    runner._update_states(plan(p, dict.fromkeys(names, 1), requests))
    for name in names:
        row = runner.batch.req_id_to_row[name]
        p.see(runner.batch.num_computed_tokens[row].item())
    assert subject.run(p) == hits


@many
@given(data=st.data())
def test_05_5_any_comings_and_goings(subject: Any, data: st.DataObject) -> None:
    """Requests come, get blocks, are preempted, come back and finish, in any order; a finished id
    may come again. After every step each running one has a row with its tokens, count and table,
    and the rows are dense; a preempted request is remembered, a finished one is not."""
    p, rows = Program(), 4
    runner = make_runner(p, rows)
    prompts: dict[str, list[int]] = {}
    running: dict[str, tuple[int, list[int]]] = {}  # its computed tokens and its table
    expected: list[Any] = []
    for _ in range(data.draw(st.integers(1, 6))):
        draw = data.draw
        gone = [name for name in prompts if draw(st.integers(0, 5)) == 0]
        preempted = [n for n in running if n not in gone and draw(st.integers(0, 4)) == 0]
        prompts = {name: prompt for name, prompt in prompts.items() if name not in gone}
        running = {n: r for n, r in running.items() if n in prompts and n not in preempted}
        away = [name for name in prompts if name not in running and name not in preempted]
        new_blocks: dict[str, list[int]] = {}
        for name, (computed, table) in list(running.items()):
            more = draw(st.lists(st.integers(1, 99), max_size=min(2, 8 - len(table))))
            new_blocks |= {name: more} if more else {}
            running[name] = (draw(st.integers(0, computed + 2)), table + more)
        resumed = away[: max(0, rows - len(running) - 1)]
        for name in resumed:
            new_blocks[name] = draw(st.lists(st.integers(1, 99), min_size=1, max_size=4))
            running[name] = (draw(st.integers(0, 3)), new_blocks[name])
        known = {name: computed for name, (computed, _) in running.items()}
        requests = []
        name = f"r{draw(st.integers(0, 3))}"
        if name not in prompts and len(running) < rows:
            prompts[name] = draw(st.lists(st.integers(0, 999), min_size=1, max_size=9))
            table = draw(st.lists(st.integers(1, 99), min_size=1, max_size=3))
            running[name] = (draw(st.integers(0, len(prompts[name]) - 1)), table)
            requests.append(new(p, name, prompts[name], table, running[name][0]))
        counts = dict.fromkeys(running, 1)
        step = plan(p, counts, requests, known, gone, resumed, new_blocks, preempted)
        runner._update_states(step)
        p.see(p.call("builtins:sorted", runner.requests))
        p.see(p.call("builtins:sorted", runner.batch.req_id_to_row))
        p.see(p.call("builtins:sorted", runner.batch.req_id_to_row.values()))
        expected += [sorted(prompts), sorted(running), list(range(len(running)))]
        for name, (computed, table) in running.items():
            row = runner.batch.req_id_to_row[name]
            p.see(runner.batch.rows[row].req_id)
            p.see(runner.batch.token_ids[row].tolist())
            p.see(runner.batch.num_computed_tokens[row].item())
            p.see(runner.batch.block_table[row].tolist())
            expected += [name, prompts[name], computed, table + [0] * (8 - len(table))]
    seen = subject.run(p)
    assert len(seen) == len(expected), seen[-1]
    for yours, right in zip(seen, expected, strict=True):
        assert (yours[: len(right)] if isinstance(right, list) else yours) == right


@pytest.mark.parametrize("number", [4, 150])
def test_05_5_rows_are_dense_though_no_request_has_finished(subject: Any, number: int) -> None:
    """All but the last two are preempted; they are remembered as they were, prompt apart from
    output."""
    p = Program()
    runner = make_runner(p, number)
    names = [f"r{row}" for row in range(number)]
    requests = [new(p, name, [5, 6], [row + 1]) for row, name in enumerate(names)]
    runner._update_states(plan(p, dict.fromkeys(names, 2), requests))
    for row, name in enumerate(names):
        runner.requests[name].output_token_ids.append(70 + row)
    left = dict.fromkeys(names[-2:], 2)
    runner._update_states(plan(p, dict.fromkeys(left, 1), computed=left, preempted=names[:-2]))
    p.see_each(runner.batch.rows, "req_id")
    for name in names[:-2]:
        p.see([runner.requests[name].prompt_token_ids, runner.requests[name].output_token_ids])
    order, *remembered = subject.run(p)
    assert sorted(order) == sorted(left)
    assert remembered == [[[5, 6], [70 + row]] for row in range(number - 2)]


def test_05_5_a_step_in_which_no_request_computes(subject: Any) -> None:
    """Two of three finish, and one that never had a row: it was aborted while it waited. The rows
    are dense, and only cleo is remembered."""
    p = Program()
    runner = make_runner(p, 4)
    names = ["ana", "ben", "cleo"]
    requests = [new(p, name, [5, 6], [number + 1]) for number, name in enumerate(names)]
    runner._update_states(plan(p, dict.fromkeys(names, 2), requests))
    runner._update_states(plan(p, {}, finished=["ben", "dan", "ana"]))
    p.see_each(runner.batch.rows, "req_id")
    p.see([runner.batch.req_id_to_row, p.call("builtins:list", runner.requests)])
    assert subject.run(p) == [["cleo"], [{"cleo": 0}, ["cleo"]]]


@pytest.mark.parametrize("size", [3, 99])
def test_05_5_as_many_blocks_as_a_step_brings(subject: Any, size: int) -> None:
    """A chunk of hundreds of tokens brings a hundred blocks, to a running and to a resumed one."""
    p = Program()
    runner = make_runner(p, 2, 400)
    requests = [new(p, name, range(399), [1]) for name in ("ana", "ben")]
    runner._update_states(plan(p, {"ana": 4, "ben": 4}, requests))
    runner._update_states(plan(p, {"ana": 1}, computed={"ana": 4}, preempted=["ben"]))
    tables = {"ana": list(range(2, 2 + size)), "ben": list(range(200, 200 + size))}
    computed = {"ana": 5, "ben": 0}
    step = plan(p, {"ana": 9, "ben": 9}, computed=computed, resumed=["ben"], blocks=tables)
    runner._update_states(step)
    for name in ("ana", "ben"):
        p.see(runner.batch.block_table[runner.batch.req_id_to_row[name]].tolist())
    rows = [[1, *tables["ana"]], tables["ben"]]
    assert subject.run(p) == [row + [0] * (100 - len(row)) for row in rows]


@pytest.mark.parametrize(("eos", "lora"), [(0, ""), (None, None), (0, "acme")])
def test_05_5_nothing_is_not_the_same_as_none(subject: Any, eos: Any, lora: Any) -> None:
    """Token 0 may be the one that ends a text."""
    p = Program()
    runner = make_runner(p, 2)
    params = p.new("mini_vllm.sampling_params:SamplingParams")
    request = p.new(
        f"{PLAN}NewRequestData", "ana", [5, 6], params, eos, [1], 0, lora_name=lora
    )  # fmt: skip
    runner._update_states(plan(p, {"ana": 2}, [request]))
    p.see([runner.requests["ana"].eos_token_id, runner.requests["ana"].lora_name])
    assert subject.run(p) == [[eos, lora]]


def test_05_5_a_plan_is_read(subject: Any) -> None:
    """Others read it after the runner: which requests finished, were preempted, and compute."""
    p = Program()
    runner = make_runner(p, 4)
    names = ["ana", "ben", "cleo"]
    requests = [new(p, name, [5, 6], [number + 1]) for number, name in enumerate(names)]
    runner._update_states(plan(p, dict.fromkeys(names, 2), requests))
    more = {"cleo": [8]}
    step = plan(
        p, {"cleo": 1}, computed={"cleo": 2}, finished=["ana"], preempted=["ben"], blocks=more
    )
    runner._update_states(step)
    p.see([step.finished_req_ids, step.preempted_req_ids, step.new_block_ids])
    cached = step.scheduled_cached_reqs
    p.see([cached.req_ids, cached.num_computed_tokens, cached.resumed_req_ids])
    assert subject.run(p) == [[{"ana"}, ["ben"], more], [["cleo"], [2], set()]]


def test_05_6_rows_are_looked_up_in_every_step(subject: Any) -> None:
    """Cleo alone has a turn, then ana leaves and cleo's row becomes another, and she alone has a
    turn again."""
    p = Program()
    runner = make_runner(p, 4)
    names = ["ana", "ben", "cleo"]
    requests = [new(p, name, [5, 6 + n], [n + 1]) for n, name in enumerate(names)]
    runner._update_states(plan(p, dict.fromkeys(names, 2), requests))
    for finished in ([], ["ana"], ["ben"]):
        step = plan(p, {"cleo": 1}, computed={"cleo": 1}, finished=finished)
        runner._update_states(step)
        inputs = runner._prepare_inputs(step)
        p.see([inputs.input_ids.tolist(), inputs.metadata.block_table.tolist()])
        p.see([inputs.sample_rows[0].item(), runner.batch.req_id_to_row["cleo"]])
    seen = subject.run(p)
    assert seen[::2] == [[[8], [[3]]]] * 3
    assert all(sampled == row for sampled, row in seen[1::2]) and len(seen) == 6


def test_05_6_hundreds_of_requests(subject: Any) -> None:
    """350 prompts, every third of one token: all have their places in the step, and the table is
    as wide as theirs, with blocks that are not needed yet."""
    p = Program()
    runner = make_runner(p, 400)
    counts = {f"r{row}": 1 if row % 3 == 0 else 2 + row % 5 for row in range(350)}
    requests = [
        new(p, name, [1000 * row + i for i in range(count)], [row + 1, row + 501, 9])
        for row, (name, count) in enumerate(counts.items())
    ]
    step = plan(p, counts, requests)
    runner._update_states(step)
    inputs = runner._prepare_inputs(step)
    metadata = inputs.metadata
    _, rows, scheduled = (runner._order_requests(step)[part] for part in range(3))
    p.see([rows, scheduled])
    p.see([inputs.req_ids, inputs.input_ids.tolist(), inputs.logits_indices.tolist()])
    p.see([metadata.seq_lens.tolist(), metadata.num_decode_reqs, metadata.block_table.tolist()])
    order = sorted(range(350), key=lambda row: row % 3 != 0)
    lengths = [counts[f"r{row}"] for row in order]
    ids = [1000 * row + i for row, count in zip(order, lengths, strict=True) for i in range(count)]
    ends = [sum(lengths[: index + 1]) - 1 for index in range(350)]
    tables = [[row + 1, row + 501, 9] for row in order]
    arrays, *seen = subject.run(p)
    first = [[f"r{row}" for row in order], ids, ends]
    assert seen == [first, [lengths, 117, tables]]
    assert [array.tolist() for array in arrays] == [order, lengths]
    assert [array.dtype.str for array in arrays] == ["<i8", "<i4"]


def test_05_6_a_step_is_prepared_without_a_trace(subject: Any) -> None:
    """The same step twice gives the same tensors, the plan stays as it is, its order included, and
    the first step's tensors do not change when the batch goes on."""
    p = Program()
    runner = make_runner(p, 4)
    first = [new(p, "ana", range(9), [1, 2, 3]), new(p, "ben", range(12), [4, 5, 6])]
    runner._update_states(plan(p, {"ana": 8, "ben": 10}, first))
    counts = {"ben": 2, "ana": 1}
    step = plan(p, counts, computed={"ana": 8, "ben": 10})
    runner._update_states(step)
    both = [runner._prepare_inputs(step), runner._prepare_inputs(step)]

    def see() -> None:
        for inputs in both:
            metadata = inputs.metadata
            tensors = inputs.input_ids, inputs.positions, inputs.logits_indices
            others = metadata.slot_mapping, metadata.seq_lens, metadata.block_table
            p.see([tensor.tolist() for tensor in (*tensors, *others)])

    see()
    p.see([p.call("builtins:list", step.num_scheduled_tokens.items()), step.num_scheduled_tokens])
    p.see(runner.batch.num_computed_tokens.tolist())
    for array in ("token_ids", "num_tokens", "num_computed_tokens", "block_table"):
        getattr(runner.batch, array).fill(30)
    see()
    one, two, (items, plan_after), computed, *again = subject.run(p)
    assert one == two == again[0] == again[1]
    assert items == [("ben", 2), ("ana", 1)] and plan_after == counts
    assert sorted(computed[:2]) == [8, 10]


def test_05_6_a_step_costs_its_tokens(subject: Any) -> None:
    """Sixteen decodes in rows of 40,000 tokens with tables of 10,000 blocks. Neither is copied:
    that would take five megabytes, and 640 kB."""
    p = Program()
    runner = make_runner(p, 16, 40_000)
    counts = {f"r{row}": 1 for row in range(16)}
    step = plan(p, counts, [new(p, name, [5], [9]) for name in counts])
    runner._update_states(step)
    runner._prepare_inputs(step)
    p.see(p.call(f"{COST}peak_bytes", runner._prepare_inputs, step))
    assert subject.run(p)[0] < 100_000


LATE = """
import torch

class Late:
    '''A transfer as on a GPU: all tensors are filled together, when the step is prepared.'''

    def __init__(self):
        self.waiting = []

    def put(self, tensor):
        self.waiting.append((torch.zeros_like(tensor), tensor.clone()))
        return self.waiting[-1][0]

    def send(self):
        for there, tensor in self.waiting:
            there.copy_(tensor)
"""


def test_05_6_nothing_is_computed_from_what_has_not_arrived(subject: Any) -> None:
    """Until a step is prepared, its tensors on the device hold anything; then all are right."""
    p = Program()
    runner = make_runner(p, 4)
    late = p.execute(LATE)["Late"]()
    p.set(runner, "transfer", late)
    requests = [new(p, "ana", range(9), [1, 2, 3]), new(p, "ben", range(5), [4, 5])]
    step = plan(p, {"ana": 6, "ben": 5}, requests)
    runner._update_states(step)
    inputs = runner._prepare_inputs(step)
    late.send()
    metadata = inputs.metadata
    tensors = inputs.input_ids, inputs.positions, inputs.logits_indices
    others = metadata.slot_mapping, metadata.query_start_loc, metadata.seq_lens
    p.see([tensor.tolist() for tensor in (*tensors, *others, metadata.block_table)])
    places = [*range(6), *range(5)]
    slots = [4 * table[i // 4] + i % 4 for table, n in (([1, 2], 6), ([4, 5], 5)) for i in range(n)]
    tables = [[1, 2, 3], [4, 5, 0]]
    assert subject.run(p) == [[places, places, [10], slots, [0, 6, 11], [6, 5], tables]]


def mixed(p: Program) -> Any:
    """The inputs of a step with a decode of ana at her 9th token, the end of ben's prompt of 12,
    the first 5 tokens of cleo's, and dan's prompt of 2."""
    runner = make_runner(p, 4)
    first = [new(p, "ana", range(9), [1, 2, 3]), new(p, "ben", range(12), [4, 5, 6])]
    runner._update_states(plan(p, {"ana": 8, "ben": 10}, first))
    others = [new(p, "cleo", [8] * 7, [7, 8]), new(p, "dan", [7] * 2, [9])]
    counts = {"ben": 2, "cleo": 5, "ana": 1, "dan": 2}
    step = plan(p, counts, others, {"ana": 8, "ben": 10})
    runner._update_states(step)
    return runner._prepare_inputs(step)


def test_05_6_the_longest_query_and_context(subject: Any) -> None:
    """Kernels size their grids by them: one that is too small leaves tokens out. Neither is the
    first request's or the last one's, and they are not the same one's."""
    p = Program()
    metadata = mixed(p).metadata
    for name in ("max_query_len", "max_seq_len", "query_lens_cpu", "seq_lens_cpu"):
        p.see(getattr(metadata, name))
    assert subject.run(p) == [5, 12, [1, 2, 5, 2], [9, 12, 5, 2]]


@pytest.mark.history("vllm#26385", "vllm#27756")
def test_05_6_bug_vllm_26385_a_pause_takes_no_tokens(subject: Any) -> None:
    """Ana and cleo are in the batch and have no turn: the step holds one token, which is ben's."""
    p = Program()
    runner = make_runner(p, 4)
    names = ["ana", "ben", "cleo"]
    requests = [new(p, name, [5, 6 + n], [n + 1]) for n, name in enumerate(names)]
    runner._update_states(plan(p, dict.fromkeys(names, 2), requests))
    step = plan(p, {"ben": 1}, computed={"ben": 1})
    runner._update_states(step)
    inputs = runner._prepare_inputs(step)
    p.see(inputs.req_ids)
    p.see(inputs.input_ids.tolist())
    p.see(inputs.metadata.slot_mapping.tolist())
    assert subject.run(p) == [["ben"], [7], [2 * 4 + 1]]


def test_05_6_types_are_those_that_kernels_read(subject: Any) -> None:
    """A kernel that was compiled for 32 bits reads every other half of an array of 64."""
    p = Program()
    inputs = mixed(p)
    types = {
        "input_ids": "int64",
        "positions": "int64",
        "logits_indices": "int64",
        "metadata.slot_mapping": "int64",
        "metadata.query_start_loc": "int32",
        "metadata.seq_lens": "int32",
        "metadata.block_table": "int32",
    }
    for name in types:
        tensor = inputs
        for part in name.split("."):
            tensor = getattr(tensor, part)
        p.see(p.call("builtins:str", tensor.dtype))
    seen = subject.run(p)
    assert dict(zip(types, seen, strict=True)) == {n: f"torch.{t}" for n, t in types.items()}


def test_05_8_a_head_of_its_own_needs_a_place(subject: Any) -> None:
    """Only a tied head may be stored without need."""
    for tied, right in ((True, [None]), (False, [{"!raises": "ValueError"}])):
        p = Program()
        folder = p.call("pathlib:Path", "checkpoint")
        names = ["model.norm.weight"]
        found = [*names, "lm_head.weight"]
        p.see(p.call("mini_vllm.model.loader:check_names", names, found, folder, tied))
        assert subject.run(p) == right


@pytest.mark.parametrize("missing", ["lm_head", "model.norm", "model.embed_tokens"])
def test_05_8_whichever_is_missing(subject: Any, missing: str) -> None:
    """What the model needs must be there, tied or not, and be it a head."""
    names = [f"{stem}.weight" for stem in ("lm_head", "model.norm", "model.embed_tokens")]
    found = [name for name in names if not name.startswith(missing)]
    for tied in (True, False):
        p = Program()
        folder = p.call("pathlib:Path", "checkpoint")
        p.see(p.call("mini_vllm.model.loader:check_names", names, found, folder, tied))
        assert subject.run(p) == [{"!raises": "ValueError"}]


@many
@given(
    seed=st.integers(0, 2**31),
    source=st.sampled_from(["float32", "bfloat16", "float16"]),
    target=st.sampled_from(["float32", "bfloat16"]),
)
def test_05_8_numbers_of_any_size(subject: Any, seed: int, source: str, target: str) -> None:
    """Of every magnitude that the file's format has; none goes through a format that is smaller
    than both."""
    exponents = torch.rand(64, generator=torch.Generator().manual_seed(seed)) * 75 - 37
    numbers = (10.0 ** exponents.double()).to(getattr(torch, source))
    numbers[:3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    tiny = numbers[(numbers > 0) & (numbers < 1e-5)]
    for few in (numbers, tiny, tiny[tiny < 1e-30]):
        right = few.to(getattr(torch, target)).float()
        p = Program()
        there = p.call("torch:zeros", len(few), dtype=p.name(f"torch:{target}"))
        tensor = p.call("torch:tensor", few.tolist()).to(p.name(f"torch:{source}"))
        file = p.call("pathlib:Path", "model.safetensors")
        p.call("mini_vllm.model.loader:copy_weight", there, tensor, "norm", file)
        p.see(there.float())
        (seen,) = subject.run(p)
        assert torch.equal(torch.as_tensor(seen).nan_to_num(7), right.nan_to_num(7))


@pytest.mark.parametrize("kind", ["missing", "not needed"])
def test_05_8_the_first_in_order_is_named(subject: Any, kind: str) -> None:
    """Sets have no order: the same folder gets the same message in every run, with the number and
    the folder. What may be there without need is not counted."""
    p = Program()
    needed = ["model.norm.weight"]
    layers = [f"model.layers.{n}.mlp.up_proj.weight" for n in (4, 1, 6, 0, 2, 5, 3)]
    harmless = "model.layers.0.self_attn.rotary_emb.inv_freq"
    names = (
        (needed + layers, needed) if kind == "missing" else (needed, [harmless, *layers, *needed])
    )
    folder = p.call("pathlib:Path", "checkpoint")
    words = rf"(?s)(?=.*\b7\b)(?=.*checkpoint)(?=.*{re.escape(layers[3])})"
    check = p.name("mini_vllm.model.loader:check_names")
    p.refuse("ValueError", check, *names, folder, False, says=words)
    p.see("refused")
    assert subject.run(p) == ["refused"]
