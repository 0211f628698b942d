"""What the docstrings promise and no story shows: large steps, types of arrays, dense rows, and all
that is remembered of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from labkit.worker import Program

BATCH = "mini_vllm.worker.input_batch:"
PLAN = "mini_vllm.core.scheduler_output:"


def make_runner(p: Program, rows: int) -> Any:
    """A runner without a model: rows of 32 tokens in blocks of 4."""
    device = p.call("torch:device", "cpu")
    return p.new("mini_vllm.worker.model_runner:ModelRunner", None, None, rows, 32, 4, device)


def new(p: Program, name: str, prompt: Sequence[int], blocks: Sequence[int], **more: Any) -> Any:
    params = p.new("mini_vllm.sampling_params:SamplingParams", temperature=0.5)
    return p.new(f"{PLAN}NewRequestData", name, list(prompt), params, 7, list(blocks), 0, **more)


def plan(
    p: Program,
    counts: Mapping[str, int],
    requests: Sequence[Any] = (),
    computed: Mapping[str, int] | None = None,
    finished: Sequence[str] = (),
) -> Any:
    """A step with these tokens of each request.

    Args:
        requests: those that are new.
        computed: those that run already -> their computed tokens.
    """
    known = computed or {}
    cached = p.new(f"{PLAN}CachedRequestData", list(known), list(known.values()), set(), {})
    total = sum(counts.values())
    return p.new(
        f"{PLAN}SchedulerOutput",
        list(requests), cached, dict(counts), total, {}, {}, [], set(finished),
    )  # fmt: skip


@pytest.mark.parametrize("number", [16, 17, 33, 300])
def test_05_3_decodes_lead_in_a_large_batch(subject: Any, number: int) -> None:
    """Sorts that keep no order look as if they did up to 16 elements."""
    counts = [1 + (index * 7 % 5 < 2) * (1 + index % 3) for index in range(number)]
    p = Program()
    p.see(p.call(f"{BATCH}decodes_first", counts).tolist())
    right = sorted(range(number), key=lambda index: counts[index] != 1)
    assert subject.run(p) == [right]


def test_05_5_rows_are_dense_when_a_step_begins(subject: Any) -> None:
    """Two of four finish and nobody comes: what is left are two rows without a hole."""
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
    """Nobody will repeat its parameters, its last token or its adapter."""
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


def mixed(p: Program) -> Any:
    """The inputs of a step with a decode of ana, and chunks of 2 and 3 tokens of two others."""
    runner = make_runner(p, 4)
    runner._update_states(plan(p, {"ana": 1}, [new(p, "ana", [5, 6], [1])]))
    others = [new(p, "ben", [7] * 2, [2]), new(p, "cleo", [8] * 5, [3, 4])]
    step = plan(p, {"ben": 2, "cleo": 3, "ana": 1}, others, {"ana": 1})
    runner._update_states(step)
    return runner._prepare_inputs(step)


def test_05_6_the_longest_query_and_context(subject: Any) -> None:
    """Kernels size their grids by them: one that is too small leaves tokens out."""
    p = Program()
    metadata = mixed(p).metadata
    for name in ("max_query_len", "max_seq_len", "query_lens_cpu", "seq_lens_cpu"):
        p.see(getattr(metadata, name))
    assert subject.run(p) == [3, 3, [1, 2, 3], [2, 2, 3]]


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
