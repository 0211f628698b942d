"""Random engines and steps: a replay answers and stores as a direct call of the model does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.worker import Program

few = settings(
    max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
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

def real_rows(positions, metadata):
    return [p for p, s in zip(positions.tolist(), metadata.seq_lens.tolist()) if s]
"""


@pytest.fixture(scope="module", autouse=True)
def _warm(subject: Any, reference: Any) -> None:
    """Import torch before the first answer is timed."""
    for worker in (subject, reference):
        p = Program()
        p.call("importlib:import_module", "torch")
        worker.run(p)


def toy(p: Program) -> Any:
    names = p.call("builtins:dict")
    p.call("builtins:exec", TOY, names)
    return names


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

    assert run(subject) == run(reference)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[int], list[tuple[list[int], list[int], list[list[int]]]]]:
    """Buckets, and decode steps of requests that come, grow and go; each has its own 4 blocks."""
    buckets = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=5)))
    lengths: dict[int, int] = {}
    steps = []
    for number in range(draw(st.integers(1, 7))):
        for request in draw(st.sets(st.integers(0, 9), max_size=4)):
            lengths.setdefault(request, 0)
        for request in draw(st.sets(st.sampled_from(sorted(lengths) or [0]), max_size=2)):
            lengths.pop(request, None)
        alive = [request for request, length in lengths.items() if length < ROOM]
        if not alive:
            continue
        for request in alive:
            lengths[request] += 1
        tokens = [1 + 10 * number + request for request in alive]
        tables = [
            [1 + 4 * request + i for i in range(-(-lengths[request] // BLOCK_SIZE))]
            for request in alive
        ]
        steps.append((tokens, [lengths[request] for request in alive], tables))
    return buckets, steps


def replayed(worker: Any, buckets: list[int], steps: Any) -> Any:
    """What a replay of each step says (None if it declined), and the cache at the end."""
    p = Program()
    names = toy(p)
    model = p.call(names["Toy"])
    device = p.call("torch:device", "cpu")
    inputs = p.new(HERE + "StaticInputs", buckets[-1], ROOM, BLOCK_SIZE, device)
    record = p.get(HERE + "record_eagerly")
    graphs = p.new(HERE + "DecodeGraphs", model, inputs, buckets, record)
    graphs.capture()
    p.see(model.rows)
    for tokens, lens, tables in steps:
        step = p.call(names["decode"], tokens, lens, tables)
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
    assert replayed(subject, buckets, steps) == replayed(reference, buckets, steps)


@few
@given(run=runs())
def test_07_2_padding_after_any_step(subject: Any, reference: Any, run: Any) -> None:
    """The static tensors after each step, row by row; where they stand never changes."""
    _, steps = run

    def filled(worker: Any) -> Any:
        p = Program()
        names = toy(p)
        device = p.call("torch:device", "cpu")
        inputs = p.new(HERE + "StaticInputs", 10, ROOM, BLOCK_SIZE, device)
        for index, (tokens, lens, tables) in enumerate(steps):
            step = p.call(names["decode"], tokens, lens, tables)
            inputs.fill(step[0], step[1], step[2], min(len(tokens) + index % 3, 10))
            p.see(inputs.slot_mapping.tolist())
            p.see(inputs.seq_lens.tolist())
            p.see(inputs.block_table[0].tolist())
            p.see(p.call(names["real_rows"], inputs.positions, inputs))
        return worker.run(p)

    assert filled(subject) == filled(reference)
