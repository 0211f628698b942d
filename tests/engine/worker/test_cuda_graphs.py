"""CUDA graphs without a GPU: buckets, padding, and what a replay reads and writes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.reference import store_kv
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.worker.cuda_graphs import (
    LARGEST_BUCKET,
    DecodeGraphs,
    StaticInputs,
    choose_bucket,
    make_buckets,
    record_eagerly,
)
from mini_vllm.worker.step_inputs import StepInputs

BLOCK_SIZE = 4


def test_buckets_are_dense_where_batches_are_small() -> None:
    assert make_buckets(1) == [1]
    assert make_buckets(5) == [1, 2, 4, 5]
    assert make_buckets(24) == [1, 2, 4, 8, 16, 24]
    assert make_buckets(300)[-4:] == [256, 272, 288, 300]
    assert make_buckets(10_000)[-1] == LARGEST_BUCKET


def test_smallest_bucket_that_holds_the_batch() -> None:
    buckets = [1, 2, 4, 8]
    assert [choose_bucket(n, buckets) for n in (1, 3, 4, 5, 8)] == [1, 4, 4, 8, 8]
    assert choose_bucket(9, buckets) is None


class ToyModel:
    """Stores each token's id in its slot, then sums what is in its context."""

    def __init__(self) -> None:
        self.cache = torch.zeros(2, 8, BLOCK_SIZE, 1, 1)
        self.calls = 0

    def __call__(self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
        self.calls += 1
        tokens = input_ids.float()[:, None, None]
        store_kv(tokens, tokens, self.cache, metadata.slot_mapping)
        context = torch.arange(metadata.block_table.shape[1] * BLOCK_SIZE)
        slots = metadata.block_table[:, context // BLOCK_SIZE] * BLOCK_SIZE + context % BLOCK_SIZE
        visible = context < metadata.seq_lens[:, None]
        seen = torch.where(visible, self.cache[0].flatten()[slots.long()], 0.0)
        return seen.sum(1, keepdim=True)


def decode(tokens: list[int], seq_lens: list[int], tables: list[list[int]]) -> tuple:
    metadata = AttentionMetadata.from_lists([1] * len(tokens), seq_lens, tables, BLOCK_SIZE)
    return torch.tensor(tokens), metadata.seq_lens.long() - 1, metadata


@pytest.fixture
def graphs() -> DecodeGraphs:
    inputs = StaticInputs(4, 16, BLOCK_SIZE, torch.device("cpu"))
    graphs = DecodeGraphs(ToyModel(), inputs, [1, 2, 4], record_eagerly)
    graphs.capture()
    return graphs


def test_replay_equals_a_direct_call(graphs: DecodeGraphs) -> None:
    direct = ToyModel()
    steps = [
        ([5, 6, 7], [1, 1, 1], [[1], [2], [3]]),
        ([8, 9], [2, 2], [[1], [3]]),
        ([1, 2, 3, 4], [3, 2, 3, 1], [[1], [2], [3], [4]]),
    ]
    for step in steps:
        inputs = decode(*step)
        assert graphs.replay(*inputs).tolist() == direct(*inputs).tolist()
    assert graphs.forward.cache.equal(direct.cache)


def test_padding_rows_store_nothing_even_after_a_larger_step(graphs: DecodeGraphs) -> None:
    graphs.replay(*decode([1, 2, 3, 4], [1] * 4, [[1], [2], [3], [4]]))
    before = graphs.forward.cache.clone()
    graphs.replay(*decode([9, 9, 9], [2] * 3, [[1], [2], [3]]))
    changed = (graphs.forward.cache[0] != before[0]).flatten().nonzero().flatten().tolist()
    assert changed == [5, 9, 13]


def test_replay_declines_what_it_has_no_graph_for(graphs: DecodeGraphs) -> None:
    five = decode([1] * 5, [1] * 5, [[1]] * 5)
    assert graphs.replay(*five) is None
    mixed = AttentionMetadata.from_lists([1, 2], [1, 2], [[1], [2]], BLOCK_SIZE)
    assert graphs.replay(torch.ones(3).long(), torch.tensor([0, 0, 1]), mixed) is None


def test_result_is_a_view_of_one_output(graphs: DecodeGraphs) -> None:
    first = graphs.replay(*decode([5], [1], [[1]]))
    second = graphs.replay(*decode([6], [1], [[2]]))
    assert first.data_ptr() == second.data_ptr()


def test_bug_nano_vllm_every_batch_size_has_a_bucket() -> None:
    """Its graphs for 20 requests ended at 16."""
    for limit in (*range(1, 300), 511, LARGEST_BUCKET):
        buckets = make_buckets(limit)
        assert buckets == sorted(set(buckets)) and buckets[-1] == limit
        assert all((choose_bucket(n, buckets) or 0) >= n for n in range(1, limit + 1))


def test_bug_mini_sglang_0e5f1e7_padding_reads_nothing(graphs: DecodeGraphs) -> None:
    """Memory that was not written is NaN here, and so is a sum that reads it."""
    toy = graphs.forward
    toy.cache.fill_(float("nan"))
    graphs.replay(*decode([1, 2, 3, 4], [1] * 4, [[1], [2], [3], [4]]))
    toy.cache.fill_(float("nan"))  # the four requests have gone
    graphs.replay(*decode([9, 9, 9], [1] * 3, [[5], [6], [7]]))
    _, output = graphs.graphs[4]
    assert output.flatten().tolist() == [9.0, 9.0, 9.0, 0.0]


def test_bug_mini_sglang_58_a_steps_inputs_outlive_the_next_step() -> None:
    """No tensor of a step stands in a buffer that the next step fills."""
    llm = LLM("storyteller-draft", dtype="float32", max_model_len=64, max_num_seqs=3)
    runner, seen = llm.engine.core.model_runner, list[tuple[list[Tensor], list[Tensor]]]()
    prepare = runner._prepare_inputs

    def kept(output: SchedulerOutput) -> StepInputs:
        inputs = prepare(output)
        metadata = inputs.metadata
        tensors = [inputs.input_ids, inputs.positions, inputs.logits_indices]
        tensors += [metadata.seq_lens, metadata.slot_mapping, metadata.block_table]
        seen.append((tensors, [tensor.clone() for tensor in tensors]))
        return inputs

    runner._prepare_inputs = kept  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    llm.generate([[5, 6, 7], [8] * 20, [9]], params, use_tqdm=False)
    assert len(seen) >= 6
    for tensors, copies in seen:
        assert all(map(torch.equal, tensors, copies))
