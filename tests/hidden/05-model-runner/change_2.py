"""Change request 2, over random batches."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch


@pytest.mark.parametrize("seed", range(40))
def test_change_2_rows_and_all_that_belongs_to_them(seed: int) -> None:
    rng = Random(seed)
    batch = InputBatch(10, 16, 4)
    names = [f"r{i}" for i in range(rng.randint(1, 10))]
    for number, name in enumerate(names):
        prompt = [100 * number + i for i in range(rng.randint(1, 6))]
        state = CachedRequestState(name, prompt, SamplingParams(), None)
        batch.add_request(state, [number + 1], rng.randint(0, len(prompt)))
    kept = [name for name in names if rng.random() < 0.6]
    before = {state.req_id: row for row, state in enumerate(batch.rows) if state}
    arrays = ("token_ids", "num_tokens", "num_computed_tokens", "block_table", "num_blocks")
    rows = {n: [getattr(batch, a)[before[n]].tolist() for a in arrays] for n in names}
    for name in rng.sample(names, len(names)):
        if name not in kept:
            batch.remove_request(name)
    batch.condense()
    assert [state.req_id for state in batch.rows if state] == kept
    assert len(batch.rows) == len(kept)
    assert batch.req_id_to_row == {name: row for row, name in enumerate(kept)}
    for row, name in enumerate(kept):
        assert [getattr(batch, a)[row].tolist() for a in arrays] == rows[name]
