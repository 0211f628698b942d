"""Random engines and steps: a replay answers and stores as a direct call of the model does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

few = settings(max_examples=30)
HERE = "mini_vllm.worker.cuda_graphs:"
BLOCK_SIZE, ROOM = 4, 16
TOY = """
import torch

class Toy:
    '''Stores each token's id in its slot; answers with position plus the sum of the context.'''

    def __init__(self):
        self.cache, self.rows = torch.zeros(4096), []

    def __call__(self, input_ids, positions, metadata):
        self.rows.append(len(input_ids))
        stored = metadata.slot_mapping >= 0
        self.cache[metadata.slot_mapping[stored]] = input_ids[stored].float()
        place = torch.arange(metadata.block_table.shape[1] * 4)
        slots = metadata.block_table[:, place // 4].long() * 4 + place % 4
        context = (self.cache[slots] * (place < metadata.seq_lens[:, None])).sum(1)
        return (context + 1000 * positions)[:, None]

def decode(tokens, seq_lens, tables):
    from mini_vllm.attention import AttentionMetadata
    metadata = AttentionMetadata.from_lists([1] * len(tokens), seq_lens, tables, 4)
    return torch.tensor(tokens), metadata.seq_lens.long() - 1, metadata

def read_by_graph(inputs, bucket):
    # Slots and lengths of the bucket's rows, and ids, positions and blocks of those that have a
    # context; what lies beside and behind them is free.
    slots, lens = inputs.slot_mapping[:bucket].tolist(), inputs.seq_lens[:bucket].tolist()
    rows = [(r, n) for r, n in enumerate(lens) if n]
    return slots, lens, [
        [int(inputs.input_ids[r]), int(inputs.positions[r]),
         inputs.block_table[r, : -(-n // 4)].tolist()]
        for r, n in rows
    ]
"""


@pytest.fixture(scope="module", autouse=True)
def _warm(subject: Any, reference: Any) -> None:
    """Import torch before the first answer is timed."""
    for worker in (subject, reference):
        p = Program()
        p.call("importlib:import_module", "torch")
        worker.run(p)


def toy(p: Program) -> Any:
    names = p.execute(TOY)
    return names


def expect_same(subject: Any, reference: Any, run: Callable[[Any], list[Any]]) -> None:
    """The subject answers as the reference, which raises nothing."""
    right = run(reference)
    assert not [seen for seen in right if isinstance(seen, dict)], f"the reference: {right}"
    assert run(subject) == right


@few
@given(limit=st.integers(1, 2000), data=st.data())
def test_07_1_every_engine_has_buckets_that_hold_its_steps(
    subject: Any, reference: Any, limit: int, data: st.DataObject
) -> None:
    """Random limits, and random steps up to beyond the largest bucket."""
    sizes = data.draw(st.lists(st.integers(1, 600), min_size=1, max_size=8))

    def run(worker: Any) -> Any:
        p = Program()
        buckets = p.call(HERE + "make_buckets", limit)
        p.see(buckets)
        for size in sizes:
            p.see(p.call(HERE + "choose_bucket", size, buckets))
        return worker.run(p)

    expect_same(subject, reference, run)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[int], list[tuple[list[int], list[int], list[list[int]]]]]:
    """Buckets, and decode steps of requests that come, grow and go; each has its own 4 blocks.

    A step is (tokens, context lengths, block tables). In most steps none comes or goes, so that
    what a step leaves behind can be taken for what the next one needs.
    """
    buckets = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=5)))
    some, length = st.sets(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, ROOM - 4)
    lengths = {request: draw(length) for request in sorted(draw(some))}
    steps = []
    for number in range(draw(st.integers(2, 8))):
        change = draw(st.sampled_from(["none", "none", "come", "go"])) if number else "none"
        if change == "come":
            lengths |= {r: draw(length) for r in sorted(draw(some)) if r not in lengths}
        elif change == "go" and lengths:
            for request in draw(st.sets(st.sampled_from(sorted(lengths)), min_size=1)):
                del lengths[request]
        lengths = {request: n + 1 for request, n in lengths.items() if n < ROOM}
        if lengths:
            tokens = [1 + 10 * number + request for request in lengths]
            tables = [
                [1 + 4 * request + i for i in range(-(-n // BLOCK_SIZE))]
                for request, n in lengths.items()
            ]
            steps.append((tokens, list(lengths.values()), tables))
    return buckets, steps


def replayed(worker: Any, buckets: list[int], steps: Any) -> Any:
    """What a replay of each step says (None if it declined), and the cache at the end."""
    p = Program()
    names = toy(p)
    model = names["Toy"]()
    device = p.call("torch:device", "cpu")
    inputs = p.new(HERE + "StaticInputs", buckets[-1], ROOM, BLOCK_SIZE, device)
    record = p.name(HERE + "record_eagerly")
    graphs = p.new(HERE + "DecodeGraphs", model, inputs, buckets, record)
    graphs.capture()
    p.see(model.rows)
    for tokens, lens, tables in steps:
        step = names["decode"](tokens, lens, tables)
        hidden = graphs.replay(step[0], step[1], step[2])
        fits = len(tokens) <= buckets[-1]
        p.see(hidden.tolist() if fits else hidden)
    p.see(model.rows)
    p.see(model.cache.nonzero().flatten().tolist())
    return worker.run(p)


@few
@given(run=runs())
def test_07_3_replays_of_random_runs(subject: Any, reference: Any, run: Any) -> None:
    """Requests come, grow and go; rows, answers and the cache are those of the reference."""
    buckets, steps = run
    expect_same(subject, reference, lambda worker: replayed(worker, buckets, steps))


@few
@given(run=runs())
def test_07_2_padding_after_any_step(subject: Any, reference: Any, run: Any) -> None:
    """The rows that the bucket's graph reads, after each step. Those behind them are free."""
    _, steps = run

    def filled(worker: Any) -> Any:
        p = Program()
        names = toy(p)
        device = p.call("torch:device", "cpu")
        inputs = p.new(HERE + "StaticInputs", 10, ROOM, BLOCK_SIZE, device)
        for index, (tokens, lens, tables) in enumerate(steps):
            step = names["decode"](tokens, lens, tables)
            bucket = min(len(tokens) + index % 3, 10)
            inputs.fill(step[0], step[1], step[2], bucket)
            p.see(names["read_by_graph"](inputs, bucket))
        return worker.run(p)

    expect_same(subject, reference, filled)


@pytest.mark.parametrize("captured", [[], [1, 4], [2]])
def test_07_3_without_a_graph_there_is_no_replay(subject: Any, captured: list[int]) -> None:
    """Of buckets 1, 2 and 4 only some are recorded: None for the others, and for a prompt."""
    p = Program()
    names = toy(p)
    device = p.call("torch:device", "cpu")
    inputs = p.new(HERE + "StaticInputs", 4, ROOM, BLOCK_SIZE, device)
    record = p.name(HERE + "record_eagerly")
    graphs = p.new(HERE + "DecodeGraphs", names["Toy"](), inputs, [1, 2, 4], record)
    for bucket in captured:
        graphs.graphs.update({bucket: graphs._capture_bucket(bucket)})
    for number in range(1, 5):
        step = names["decode"](list(range(number)), [3] * number, [[1 + r] for r in range(number)])
        hidden = graphs.replay(step[0], step[1], step[2])
        p.see(p.call("builtins:isinstance", hidden, p.name("torch:Tensor")))
    ids = p.call("torch:arange", 4)
    mixed = p.call("mini_vllm.attention:AttentionMetadata.from_lists",
                   [1, 3], [5, 3], [[1, 2], [3]], BLOCK_SIZE)  # fmt: skip
    p.see(graphs.replay(ids, ids, mixed))
    replayed = [bucket in captured for bucket in (1, 2, 4, 4)]
    assert subject.run(p) == [*replayed, None]


def test_07_2_tensors_stay_where_a_graph_reads_them(subject: Any) -> None:
    """A graph knows addresses, not names: steps of any size leave each tensor in its place."""
    p = Program()
    names = toy(p)
    inputs = p.new(HERE + "StaticInputs", 4, ROOM, BLOCK_SIZE, p.call("torch:device", "cpu"))

    def see_places() -> None:
        for name in ("input_ids", "positions", "slot_mapping", "seq_lens", "block_table"):
            p.see(getattr(inputs, name).data_ptr())

    see_places()
    for number in (4, 1, 3):
        step = names["decode"](list(range(number)), [3] * number, [[1 + r] for r in range(number)])
        inputs.fill(step[0], step[1], step[2], 4)
        see_places()
    seen = subject.run(p)
    assert len(set(seen[:5])) == 5 and seen == seen[:5] * 4


@few
@given(data=st.data())
def test_07_2_as_much_padding_as_there_is(subject: Any, data: st.DataObject) -> None:
    """A batch of hundreds, and behind it one of few in a bucket of hundreds: all rows between are
    inert, and those of the step are its own."""
    p, room = Program(), 300
    names = toy(p)
    inputs = p.new(HERE + "StaticInputs", room, ROOM, BLOCK_SIZE, p.call("torch:device", "cpu"))
    sizes = [room, *data.draw(st.lists(st.integers(1, room), min_size=1, max_size=3))]
    buckets = [data.draw(st.integers(size, room)) for size in sizes]
    for size, bucket in zip(sizes, buckets, strict=True):
        tables = [[1 + row] for row in range(size)]
        step = names["decode"](list(range(size)), [1 + row % 4 for row in range(size)], tables)
        inputs.fill(step[0], step[1], step[2], bucket)
        p.see([inputs.slot_mapping.tolist(), inputs.seq_lens.tolist()])
        p.see([inputs.input_ids.tolist(), inputs.positions.tolist()])
    seen = subject.run(p)
    assert len(seen) == 2 * len(sizes), seen[-1:]
    for size, bucket, written, read in zip(sizes, buckets, seen[::2], seen[1::2], strict=True):
        rows, padding = range(size), bucket - size
        slots = [BLOCK_SIZE * (1 + row) + row % 4 for row in rows]
        assert written[0][:bucket] == [*slots, *[-1] * padding]
        assert written[1][:bucket] == [*(1 + row % 4 for row in rows), *[0] * padding]
        assert [part[:size] for part in read] == [list(rows), [row % 4 for row in rows]]


def test_07_2_all_of_a_wide_table_is_copied(subject: Any) -> None:
    """A context of 100 blocks beside one of 1, in a cache of billions of slots."""
    p = Program()
    names = toy(p)
    inputs = p.new(HERE + "StaticInputs", 2, 400, BLOCK_SIZE, p.call("torch:device", "cpu"))
    blocks = list(range(2**30, 2**30 + 100))
    step = names["decode"]([7, 8], [400, 1], [blocks, [200]])
    inputs.fill(step[0], step[1], step[2], 2)
    p.see(inputs.block_table.tolist())
    p.see(inputs.slot_mapping.tolist())
    [[long, short], slots] = subject.run(p)
    assert long == blocks, "blocks of a long context are left out"
    assert short[0] == 200
    assert slots == [4 * blocks[-1] + 3, 800]


def test_07_3_each_step_replays_its_own_smallest_graph(subject: Any) -> None:
    """A batch that shrinks goes back to a smaller graph; the answer is that graph's own output."""
    p = Program()
    names = toy(p)
    model = names["Toy"]()
    inputs = p.new(HERE + "StaticInputs", 4, ROOM, BLOCK_SIZE, p.call("torch:device", "cpu"))
    record = p.name(HERE + "record_eagerly")
    graphs = p.new(HERE + "DecodeGraphs", model, inputs, [1, 2, 4], record)
    graphs.capture()
    sizes, buckets = [4, 3, 2, 1, 3], [4, 4, 2, 1, 4]
    for number, bucket in zip(sizes, buckets, strict=True):
        step = names["decode"](list(range(number)), [3] * number, [[1 + r] for r in range(number)])
        p.see(graphs.replay(step[0], step[1], step[2]).data_ptr())
        p.see(graphs.graphs[bucket][1].data_ptr())
    p.see(model.rows)
    *places, rows = subject.run(p)
    assert places[::2] == places[1::2]
    assert rows == [4, 2, 1, *buckets]


def test_07_3_every_bucket_has_its_graph(subject: Any) -> None:
    """91 of them, of up to 200 rows: the largest is recorded first, and each is replayed."""
    p = Program()
    names, buckets = toy(p), [*range(1, 91), 200]
    model = names["Toy"]()
    inputs = p.new(HERE + "StaticInputs", 200, ROOM, BLOCK_SIZE, p.call("torch:device", "cpu"))
    record = p.name(HERE + "record_eagerly")
    graphs = p.new(HERE + "DecodeGraphs", model, inputs, buckets, record)
    graphs.capture()
    p.see(model.rows)
    sizes = [200, 1, 90, 91, 199]
    for size in sizes:
        tables = [[1 + row] for row in range(size)]
        step = names["decode"](list(range(size)), [1 + row % 4 for row in range(size)], tables)
        p.see(p.call("builtins:len", graphs.replay(step[0], step[1], step[2])))
    p.see(model.rows)
    recorded, *lengths, rows = subject.run(p)
    assert recorded == buckets[::-1] and lengths == sizes
    assert rows == [*recorded, 200, 1, 90, 200, 200]


def test_07_1_buckets_are_a_list_of_their_own(subject: Any, reference: Any) -> None:
    """To add a bucket to one engine's list adds none to another's."""

    def run(worker: Any) -> Any:
        p = Program()
        for limit in (8, 8, 100, 8):
            buckets = p.call(HERE + "make_buckets", limit)
            p.see(buckets)
            buckets.append(-1)
        return worker.run(p)

    expect_same(subject, reference, run)


@few
@given(
    buckets=st.sets(st.integers(1, 700), max_size=6).map(sorted),
    beside=st.integers(-1, 1),
    kind=st.sampled_from(["list", "tuple"]),
)
def test_07_1_any_ascending_buckets(
    subject: Any, buckets: list[int], beside: int, kind: str
) -> None:
    """They need not be those of `make_buckets`, nor a list, and there may be none; one less, as
    many, one more."""
    p = Program()
    handed = p.call(f"builtins:{kind}", buckets)
    sizes = [max(bucket + beside, 1) for bucket in [*buckets, 8]]
    for size in sizes:
        p.see(p.call(HERE + "choose_bucket", size, handed))
    p.see(p.call("builtins:list", handed))
    right = [next((b for b in buckets if b >= size), None) for size in sizes]
    assert subject.run(p) == [*right, buckets]


def test_07_2_a_step_is_copied_and_padding_is_valid(subject: Any) -> None:
    """What the step holds is what it held; ids and positions of padding are such as a table of
    embeddings and one of angles have; rows begin where they began."""
    p = Program()
    names = toy(p)
    inputs = p.new(HERE + "StaticInputs", 6, ROOM, BLOCK_SIZE, p.call("torch:device", "cpu"))
    steps = [(5, 6), (2, 6), (3, 4), (1, 2), (4, 6)]
    for number, bucket in steps:
        tokens = [10 * number + row for row in range(number)]
        lens = [number + row for row in range(number)]
        tables = [[1 + row, 9, 8][: -(-n // BLOCK_SIZE)] for row, n in enumerate(lens)]
        step = names["decode"](tokens, lens, tables)
        handed = [step[0], step[1], step[2].slot_mapping, step[2].seq_lens, step[2].block_table]
        numbers = [step[2].num_decode_reqs, step[2].query_lens_cpu, step[2].seq_lens_cpu]
        p.see([*(one.tolist() for one in handed), *numbers])
        inputs.fill(step[0], step[1], step[2], bucket)
        p.see([*(one.tolist() for one in handed), *numbers])
        p.see([inputs.input_ids.tolist(), inputs.positions.tolist()])
        p.see(inputs.query_start_loc.tolist())
    seen = subject.run(p)
    assert len(seen) == 20, seen[-1:]
    for (number, _), before, after, (ids, places), starts in zip(
        steps, seen[::4], seen[1::4], seen[2::4], seen[3::4], strict=True
    ):
        assert before == after and starts == list(range(7))
        assert ids[:number] == [10 * number + row for row in range(number)]
        assert places[:number] == [number - 1 + row for row in range(number)]
        assert all(0 <= token < 60 for token in ids) and all(0 <= n < ROOM for n in places)
