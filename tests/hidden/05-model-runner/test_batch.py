"""Rows and flat arrays: random stories beside plain dictionaries and loops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=25, phases=[Phase.generate])
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
    """What each request's row shows, and which request is in which, from seven observations."""
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
def test_05_1_unused_table_entries_are_zero(subject: Any, data: st.DataObject) -> None:
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


@many
@given(data=st.data())
def test_05_1_long_tables_make_room_for_short_ones(subject: Any, data: st.DataObject) -> None:
    """Hundreds of blocks, in parts, and ids of up to 31 bits; the null block is one like any
    other. Behind a short table of the same row there are zeros again."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 1, 1200, SIZE)
    expected = []
    for number in range(data.draw(st.integers(2, 4))):
        size = data.draw(st.sampled_from([1, 3, 130, 400]))
        first = data.draw(st.sampled_from([1, 2**15 - 60, 2**30]))
        table = [first + index for index in range(size)]
        for place in data.draw(st.sets(st.integers(0, size - 1), max_size=3)):
            table[place] = 0
        cuts = sorted({0, *data.draw(st.lists(st.integers(0, size), max_size=3)), size})
        parts = [table[begin:end] for begin, end in pairwise(cuts)]
        batch.add_request(state(p, f"r{number}", [1]), parts[0], 0)
        for part in parts[1:]:
            batch.append_blocks(f"r{number}", part)
        p.see([batch.block_table[0].tolist(), batch.num_blocks[0].item()])
        expected.append([table + [0] * (400 - size), size])
        batch.remove_request(f"r{number}")
    assert subject.run(p) == expected


def test_05_1_refused_in_any_full_batch(subject: Any) -> None:
    """The limit is exact for one row and for hundreds, and a refused request is entered nowhere:
    not in the arrays either."""
    for limit in (1, 2, 7, 300):
        p = Program()
        batch = p.new(f"{BATCH}InputBatch", limit, 12, SIZE)
        names = [f"r{number}" for number in range(limit)]
        for name in names:
            p.see(batch.add_request(state(p, name, [1]), [1], 0))
        number = rf"\b{limit}\b"
        p.refuse("ValueError", batch.add_request, state(p, "last", [9]), [8], 5, says=number)
        p.see_each(batch.rows, "req_id")
        p.see(batch.req_id_to_row)
        for array in ("token_ids", "block_table", "num_tokens", "num_computed_tokens"):
            p.see(getattr(batch, array).tolist())
        *rows, order, index, tokens, tables, lengths, computed = subject.run(p)
        assert [rows, order] == [[*range(limit)], names]
        assert index == {name: row for row, name in enumerate(names)}
        assert [row[0] for row in (*tokens, *tables)] == [1] * (2 * limit)
        assert [lengths, computed] == [[1] * limit, [0] * limit]


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
def test_05_4_which_requests_are_sampled(
    subject: Any, requests: list[tuple[int, int, int]]
) -> None:
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


# ------------------------------------------------------------------ sizes, kinds, and what stays


@many
@given(data=st.data())
def test_05_1_any_request_in_any_row(subject: Any, data: st.DataObject) -> None:
    """Hundreds of rows, long tables, and resumed requests of whom more is computed than their
    prompt; a table may come as a tuple or an array, and grow as often as it likes."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 40, 400, SIZE)
    number = data.draw(st.sampled_from([1, 9, 17, 40]))
    expected = []
    for row in range(number):
        prompt = [row + 1] * data.draw(st.integers(1, 90))
        output = [1000 + row] * data.draw(st.integers(0, 30))
        computed = data.draw(st.integers(0, len(prompt + output)))
        table = [50 * row + 1 + index for index in range(data.draw(st.integers(1, 40)))]
        kind = data.draw(st.sampled_from(["list", "tuple", "array"]))
        cut = data.draw(st.integers(0, len(table)))
        parts = [np.array(part, np.int32) if kind == "array" else
                 tuple(part) if kind == "tuple" else part
                 for part in (table[:cut], table[cut:])]  # fmt: skip
        p.see(batch.add_request(state(p, f"r{row}", prompt, output), parts[0], computed))
        batch.append_blocks(f"r{row}", parts[1])
        known = prompt + output
        expected.append((known, computed, table))
    p.see([batch.num_tokens.tolist(), batch.num_computed_tokens.tolist()])
    p.see([batch.num_blocks.tolist(), batch.token_ids.tolist(), batch.block_table.tolist()])
    *rows, (lengths, computed_tokens), (blocks, tokens, tables) = subject.run(p)
    assert rows == list(range(number))
    for row, (known, computed, table) in enumerate(expected):
        assert (lengths[row], computed_tokens[row]) == (len(known), computed)
        assert tokens[row][: len(known)] == known
        assert blocks[row] == len(table) and tables[row][: len(table)] == table
        assert not any(tables[row][len(table) :])


@many
@given(data=st.data())
def test_05_2_long_rows_make_room_for_short_ones(subject: Any, data: st.DataObject) -> None:
    """Rows full to the last token and block move into the holes of short ones, and short ones
    follow where they stood: nothing is cut, and nothing is left behind."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 6, 100, SIZE)
    known: dict[str, tuple[list[int], int, list[int]]] = {}
    expected, number = [], 0
    for _ in range(data.draw(st.integers(2, 6))):
        for name in data.draw(st.sets(st.sampled_from(sorted(known)))) if known else ():
            batch.remove_request(name)
            del known[name]
        batch.condense()
        while len(known) < 6 and data.draw(st.integers(0, 5)):
            name, number = f"r{number}", number + 1
            size = data.draw(st.sampled_from([1, 100]))
            tokens, blocks = (
                [number + 1] * size,
                [200 * number + i for i in range(-(-size // SIZE))],
            )
            batch.add_request(state(p, name, tokens), blocks, size)
            known[name] = (tokens, size, blocks)
        see_batch(p, batch)
        expected.append(dict(known))
    seen = subject.run(p)
    assert len(seen) == 7 * len(expected), seen[-1]
    for step, right in enumerate(expected):
        rows, order = read_batch(seen[7 * step : 7 * step + 7])
        assert rows == right and len(order) == len(right)


def test_05_2_a_state_moves_as_it_is(subject: Any) -> None:
    """The row's new place holds the very same state, which others hold too: tokens that are
    sampled later reach it, and its adapter is still its own."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 3, 12, SIZE)
    states = [state(p, f"r{row}", [row]) for row in range(3)]
    for row, one in enumerate(states):
        p.set(one, "lora_name", f"adapter{row}")
        batch.add_request(one, [row + 1], 0)
    batch.remove_request("r0")
    batch.condense()
    batch.append_tokens(np.array([0, 1]), np.array([70, 71]))
    for row in range(2):
        p.see([p.call("operator:is_", batch.rows[row], one) for one in states])
    p.see([one.lora_name for one in states])
    p.see([one.output_token_ids for one in states])
    by_row, by_other, adapters, tokens = subject.run(p)
    assert [by_row, by_other] == [[False, False, True], [False, True, False]]
    assert adapters == ["adapter0", "adapter1", "adapter2"] and tokens == [[], [71], [70]]


@many
@given(gone=st.sets(st.integers(0, 39), max_size=40) | st.sets(st.integers(1, 38), max_size=25))
def test_05_2_as_many_move_as_there_are_holes(subject: Any, gone: set[int]) -> None:
    """Some of 40 leave at once, from anywhere, and the rows are dense again."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 40, 12, SIZE)
    for number in range(40):
        batch.add_request(state(p, f"r{number}", [number + 1]), [number + 1], 0)
    for number in gone:
        batch.remove_request(f"r{number}")
    batch.condense()
    see_batch(p, batch)
    rows, order = read_batch(subject.run(p))
    assert rows == {f"r{n}": ([n + 1], 0, [n + 1]) for n in range(40) if n not in gone}
    assert sorted(order) == sorted(rows), "holes are left between the rows"


def test_05_3_requests_of_many_tokens(subject: Any) -> None:
    """Ends are counted beyond 16 bits too."""
    p = Program()
    counts = [40_000, 1, 70_000]
    flat = p.call(f"{BATCH}flatten_tokens", np.array(counts, np.int32), np.zeros(3, np.int32))
    p.see(flat.query_start_loc)
    p.see(flat.positions)
    p.see(flat.req_indices)
    starts, positions, rows = subject.run(p)
    assert starts.tolist() == [0, 40_000, 40_001, 110_001]
    assert np.array_equal(positions, np.concatenate([np.arange(count) for count in counts]))
    assert np.array_equal(rows, np.repeat(np.arange(3), counts))


def test_05_3_arrays_of_their_own_in_64_bits(subject: Any) -> None:
    """Two steps: what the first one laid out stays, in the widths that it was promised, for more
    requests than 16 bits count, and longer contexts than float32 does."""
    counts = [np.ones(70_000, np.int32), np.array([3, 1], np.int32)]
    computed = [np.full(70_000, 2**25 + 1, np.int32), np.array([0, 70_000], np.int32)]
    p = Program()
    flats = [p.call(f"{BATCH}flatten_tokens", *pair) for pair in zip(counts, computed, strict=True)]
    for flat in flats:
        for name in ("req_indices", "positions", "query_start_loc"):
            p.see(getattr(flat, name))
    seen = subject.run(p)
    assert [array.dtype.str for array in seen] == ["<i8", "<i8", "<i4"] * 2
    right = [np.arange(70_000), np.full(70_000, 2**25 + 1), np.arange(70_001)]
    right += [np.array(row) for row in ([0, 0, 0, 1], [0, 1, 2, 70_000], [0, 3, 4])]
    assert all(map(np.array_equal, seen, right))


@many
@given(
    counts=st.lists(st.sampled_from([1, 2, 255, 256, 257, 65_537]), min_size=1, max_size=12),
    kind=st.sampled_from(["iter", "list", "tuple"]),
)
def test_05_3_decodes_lead_whatever_the_counts_come_in(
    subject: Any, counts: list[int], kind: str
) -> None:
    """Any iterable, which may be read once only, and counts of any size."""
    p = Program()
    order = p.call(f"{BATCH}decodes_first", p.call(f"builtins:{kind}", counts))
    p.see(order)
    (seen,) = subject.run(p)
    assert seen.dtype.str == "<i8"
    assert seen.tolist() == sorted(range(len(counts)), key=lambda index: counts[index] != 1)


def test_05_4_whole_numbers_of_64_bits(subject: Any) -> None:
    """Small slots and indices too, and slots beyond 2**32: a kernel was compiled for one width.
    What was handed over stays."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 2, 40, 5)
    for row, table in enumerate(([3, 2**31 - 1, 7], [2**30, 1, 2])):
        batch.add_request(state(p, f"r{row}", [1]), table, 0)
    rows, positions = np.array([0, 0, 1, 0]), np.array([4, 9, 0, 14])
    for chosen in (slice(0, 1), slice(0, 4)):
        p.see(batch.slot_mapping(rows[chosen], positions[chosen]))
    flat = p.call(f"{BATCH}flatten_tokens", np.array([1, 2], np.int32), np.array([4, 0], np.int32))
    seq_lens, num_tokens = np.array([5, 2], np.int32), np.array([5, 2], np.int32)
    found = p.call(f"{BATCH}rows_to_sample", flat, seq_lens, num_tokens)
    p.see([found[0], found[1], flat.query_start_loc, batch.block_table.tolist()])
    one, four, (sampled, last, starts, table) = subject.run(p)
    assert [array.dtype.str for array in (one, four, sampled, last)] == ["<i8"] * 4
    assert one.tolist() == [19]
    assert four.tolist() == [19, (2**31 - 1) * 5 + 4, 2**30 * 5, 39]
    assert [sampled.tolist(), last.tolist(), starts.tolist()] == [[0, 1], [0, 2], [0, 1, 3]]
    assert [row[:3] for row in table] == [[3, 2**31 - 1, 7], [2**30, 1, 2]]


@many
@given(positions=st.lists(st.integers(0, 69_999), min_size=1, max_size=9))
def test_05_4_slots_of_a_long_context(subject: Any, positions: list[int]) -> None:
    """Blocks of one token: a table of 70,000."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 1, 70_000, 1)
    batch.add_request(state(p, "ana", [1]), np.arange(70_000, 0, -1, np.int32), 0)
    p.see(batch.slot_mapping(np.zeros(len(positions), np.int64), np.array(positions)).tolist())
    assert subject.run(p) == [[70_000 - position for position in positions]]


def test_05_4_a_token_is_known_and_not_yet_computed(subject: Any) -> None:
    """It takes the row's last place if that is the next; the count of computed tokens is the
    plan's, and ids may be as large as any vocabulary's."""
    p = Program()
    batch = p.new(f"{BATCH}InputBatch", 2, 4, SIZE)
    for row, prompt in enumerate(([1, 2, 3], [4])):
        batch.add_request(state(p, f"r{row}", prompt), [1, 2], 1)
    batch.append_tokens(np.array([1, 0]), np.array([2**31 - 1, 9]))
    p.see([batch.token_ids.tolist(), batch.num_tokens.tolist()])
    p.see([batch.num_computed_tokens.tolist(), batch.num_blocks.tolist()])
    (tokens, lengths), others = subject.run(p)
    assert tokens[0] == [1, 2, 3, 9] and tokens[1][:2] == [4, 2**31 - 1]
    assert [lengths, *others] == [[4, 2], [1, 1], [2, 2]]
