"""Rows and flat arrays: random stories beside plain dictionaries and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(
    max_examples=25,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
BATCH = "mini_vllm.worker.input_batch:"
SIZE = 3


def state(p: Program, name: str, prompt: Sequence[int], output: Sequence[int] = ()) -> Any:
    params = p.new("mini_vllm.sampling_params:SamplingParams")
    return p.new(f"{BATCH}CachedRequestState", name, list(prompt), params, None, list(output))


def see_batch(p: Program, batch: Any) -> None:
    for array in ("token_ids", "num_tokens", "num_computed_tokens", "block_table", "num_blocks"):
        p.see(getattr(batch, array).tolist())
    p.see(p.call("builtins:dict", batch.req_id_to_row))
    p.see_each(batch.rows, "req_id")


def read_batch(seen: list[Any]) -> tuple[dict[str, Any], list[str]]:
    """What each request's row shows, and who is in which row, from seven observations."""
    tokens, lengths, computed, tables, blocks, index, order = seen
    behind = {name: tables[r][blocks[r] :] for name, r in index.items()}
    assert not any(map(any, behind.values())), f"foreign blocks behind the tables: {behind}"
    rows = {
        name: (tokens[r][: lengths[r]], computed[r], tables[r][: blocks[r]])
        for name, r in index.items()
    }
    assert [order[r] for r in index.values()] == list(index), "rows and req_id_to_row disagree"
    return rows, order


@many
@given(data=st.data())
def test_05_2_rows_follow_a_dictionary(subject: Any, data: st.DataObject) -> None:
    """Requests come, grow, go and come back; after every step the batch shows what they are."""
    p = Program()
    limit = data.draw(st.integers(1, 6))
    batch = p.new(f"{BATCH}InputBatch", limit, 12, SIZE)
    known: dict[str, tuple[list[int], int, list[int]]] = {}
    expected = []
    for step in range(data.draw(st.integers(1, 8))):
        for name in data.draw(st.lists(st.sampled_from([*sorted(known), "none"]), max_size=3)):
            batch.remove_request(name)
            known.pop(name, None)
        for number in range(data.draw(st.integers(0, limit - len(known)))):
            name = f"r{step}.{number}"
            prompt = data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=6))
            output = data.draw(st.lists(st.integers(100, 199), max_size=3))
            blocks = data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=2))
            computed = data.draw(st.integers(0, 5))
            batch.add_request(state(p, name, prompt, output), blocks, computed)
            known[name] = (prompt + output, computed, blocks)
        batch.condense()
        for name in data.draw(st.lists(st.sampled_from([*sorted(known), ""]), max_size=2)):
            if name and len(known[name][2]) < 4:
                batch.append_blocks(name, [7])
                known[name][2].append(7)
        see_batch(p, batch)
        expected.append({name: (list(t), c, list(b)) for name, (t, c, b) in known.items()})
    seen = subject.run(p)
    assert len(seen) == 7 * len(expected), seen[-1]
    for step, right in enumerate(expected):
        rows, order = read_batch(seen[7 * step : 7 * step + 7])
        assert rows == right
        assert len(order) == len(right), "rows are not dense"


@many
@given(data=st.data())
def test_05_1_table_entries_that_nobody_uses_are_zero(subject: Any, data: st.DataObject) -> None:
    """One row, many owners: behind each one's blocks there is only the null block."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 1, 12, SIZE)
    expected = []
    for number in range(data.draw(st.integers(1, 5))):
        blocks = data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=4))
        more = data.draw(st.integers(0, 4 - len(blocks)))
        batch.add_request(state(p, f"r{number}", [1]), blocks, 0)
        batch.append_blocks(f"r{number}", [5] * more)
        p.see(batch.block_table.tolist())
        expected.append([(blocks + [5] * more + [0] * 4)[:4]])
        batch.remove_request(f"r{number}")
        if data.draw(st.booleans()):
            batch.condense()
    assert subject.run(p) == expected


def test_05_1_refused_in_any_full_batch(subject: Any) -> None:
    """The limit is exact for one row and for many, and whoever is refused is entered nowhere."""
    for limit in (1, 2, 7):
        p = Program()
        batch = p.new(f"{BATCH}InputBatch", limit, 12, SIZE)
        names = [f"r{number}" for number in range(limit)]
        for name in names:
            p.see(batch.add_request(state(p, name, [1]), [1], 0))
        refuse = p.new("unittest:TestCase").assertRaises
        refuse(p.name("builtins:ValueError"), batch.add_request, state(p, "last", [1]), [1], 0)
        p.see_each(batch.rows, "req_id")
        p.see(batch.req_id_to_row)
        index = {name: row for row, name in enumerate(names)}
        assert subject.run(p) == [*range(limit), names, index]


def test_05_1_bug_mini_sglang_94fe255_the_row_is_a_copy(subject: Any) -> None:
    """What happens to the plan's list of blocks afterwards does not change the table."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 2, 12, SIZE)
    blocks = p.call("builtins:list", [4, 5])
    first = state(p, "ana", [1, 2])
    batch.add_request(first, blocks, 0)
    blocks.append(9)
    first.prompt_token_ids.append(9)
    p.see(batch.block_table[0].tolist())
    p.see(batch.num_tokens[0].item())
    assert subject.run(p) == [[4, 5, 0, 0], 2]


@many
@given(
    requests=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2000)), min_size=1, max_size=12)
)
def test_05_3_flat_is_what_a_loop_makes(subject: Any, requests: list[tuple[int, int]]) -> None:
    """Token by token, request by request."""
    counts, computed = (np.array(column, np.int32) for column in zip(*requests, strict=True))
    p = Program()
    flat = p.call(f"{BATCH}flatten_tokens", counts, computed)
    for name in ("req_indices", "positions", "query_start_loc"):
        p.see(getattr(flat, name).tolist())
    right = [
        (index, first + offset)
        for index, (count, first) in enumerate(requests)
        for offset in range(count)
    ]
    starts = [sum(count for count, _ in requests[:r]) for r in range(len(requests) + 1)]
    assert subject.run(p) == [[i for i, _ in right], [where for _, where in right], starts]


def test_05_3_flat_is_as_long_as_the_step(subject: Any) -> None:
    """A budget of thousands of tokens: nothing was sized for small steps."""
    counts, computed = [1, 2048, 1, 700, 16], [4000, 0, 31, 2048, 32000]
    p = Program()
    flat = p.call(
        f"{BATCH}flatten_tokens", np.array(counts, np.int32), np.array(computed, np.int32)
    )
    p.see(flat.positions.tolist())
    p.see(flat.query_start_loc.tolist())
    stretches = [range(c, c + n) for c, n in zip(computed, counts, strict=True)]
    positions = [position for stretch in stretches for position in stretch]
    assert subject.run(p) == [positions, [0, 1, 2049, 2050, 2750, 2766]]


@many
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_05_3_decodes_lead_in_any_batch(subject: Any, counts: list[int]) -> None:
    """A stable partition, also for more elements than a small sort handles."""
    p = Program()
    p.see(p.call(f"{BATCH}decodes_first", counts).tolist())
    right = sorted(range(len(counts)), key=lambda index: counts[index] != 1)
    assert subject.run(p) == [right]


@many
@given(data=st.data())
def test_05_4_slots_of_any_block_size(subject: Any, data: st.DataObject) -> None:
    """The table decides, block sizes that are no power of two included. Every block id fits 32
    bits; a slot of a large cache does not."""
    size, rows = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", rows, 20, size)
    tables = []
    for row in range(rows):
        width = -(-20 // size)
        ids = st.integers(1, 99) | st.integers(2**30, 2**31 - 1)
        tables.append(data.draw(st.lists(ids, min_size=width, max_size=width)))
        batch.add_request(state(p, f"r{row}", [1]), tables[row], 0)
    tokens = data.draw(
        st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, 19)), min_size=1, max_size=12)
    )
    owners, positions = (np.array(column) for column in zip(*tokens, strict=True))
    p.see(batch.slot_mapping(owners, positions).tolist())
    assert subject.run(p) == [[tables[r][i // size] * size + i % size for r, i in tokens]]


@many
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=8
    )
)
def test_05_4_who_is_sampled(subject: Any, requests: list[tuple[int, int, int]]) -> None:
    """Exactly those of whom nothing is left to compute, at their last token."""
    counts, computed, left = (np.array(column, np.int32) for column in zip(*requests, strict=True))
    p = Program()
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    empty = np.zeros(0, np.int64)
    flat = p.new(f"{BATCH}FlatBatch", empty, empty, starts)
    after = computed + counts
    answer = p.call(f"{BATCH}rows_to_sample", flat, after, after + left)
    p.see(answer[0].tolist())
    p.see(answer[1].tolist())
    ready = [r for r, (_, _, rest) in enumerate(requests) if rest == 0]
    assert subject.run(p) == [ready, [int(starts[r + 1]) - 1 for r in ready]]


@many
@given(data=st.data())
def test_05_4_sampled_tokens_reach_their_rows(subject: Any, data: st.DataObject) -> None:
    """Any rows in any order, step after step; the row and the state agree."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 4, 12, SIZE)
    states = [state(p, f"r{row}", [row]) for row in range(4)]
    outputs: list[list[int]] = [[], [], [], []]
    for row in range(4):
        batch.add_request(states[row], [1], 0)
    for step in range(data.draw(st.integers(1, 5))):
        order = data.draw(st.lists(st.integers(0, 3), unique=True, min_size=1, max_size=4))
        ids = [100 * step + row for row in order]
        batch.append_tokens(np.array(order), np.array(ids))
        for row, token in zip(order, ids, strict=True):
            outputs[row].append(token)
    p.see(batch.token_ids.tolist())
    p.see(batch.num_tokens.tolist())
    p.see_each(states, "output_token_ids")
    tokens, lengths, remembered = subject.run(p)
    assert [tokens[r][: lengths[r]] for r in range(4)] == [[r, *outputs[r]] for r in range(4)]
    assert remembered == outputs
