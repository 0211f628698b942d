"""Builders for the tests of phase 05. The story: a small chat service; requests bear the names of
customers. Blocks hold 4 tokens; block 0 is the null block, so no request owns it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mini_vllm.core.scheduler_output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch
from mini_vllm.worker.model_runner import ModelRunner

GREEDY = SamplingParams(temperature=0.0)


def new_batch(rows: int = 4, max_model_len: int = 16, block_size: int = 4) -> InputBatch:
    """An empty batch."""
    return InputBatch(rows, max_model_len, block_size)


def new_state(
    name: str, prompt: Sequence[int], output: Sequence[int] = (), **known: Any
) -> CachedRequestState:
    """What the worker remembers of a request."""
    return CachedRequestState(name, list(prompt), GREEDY, None, list(output), **known)


def seat(
    batch: InputBatch,
    row: int,
    name: str,
    tokens: Sequence[int],
    computed: int = 0,
    blocks: Sequence[int] = (),
) -> CachedRequestState:
    """Put a request into a row by hand, without the functions of tasks 05.1 and 05.2."""
    while len(batch.rows) <= row:
        batch.rows.append(None)
    state = new_state(name, tokens)
    batch.rows[row] = state
    batch.req_id_to_row[name] = row
    batch.token_ids[row] = 0
    batch.token_ids[row, : len(tokens)] = tokens
    batch.num_tokens[row] = len(tokens)
    batch.num_computed_tokens[row] = computed
    batch.block_table[row] = 0
    batch.block_table[row, : len(blocks)] = blocks
    batch.num_blocks[row] = len(blocks)
    return state


def leave(batch: InputBatch, row: int) -> None:
    """Make a hole by hand, without the function of task 05.2."""
    state = batch.rows[row]
    assert state is not None
    del batch.req_id_to_row[state.req_id]
    batch.rows[row] = None


def names(batch: InputBatch) -> list[str]:
    """Which request is in which row; "-" is a hole."""
    return ["-" if state is None else state.req_id for state in batch.rows]


def show(batch: InputBatch, name: str) -> dict[str, Any]:
    """A request's row in plain values, or that it has none."""
    row = batch.req_id_to_row.get(name)
    if row is None:
        return dict.fromkeys(("tokens", "computed", "blocks"), "no row")
    return {
        "tokens": batch.token_ids[row, : batch.num_tokens[row]].tolist(),
        "computed": int(batch.num_computed_tokens[row]),
        "blocks": batch.block_table[row, : batch.num_blocks[row]].tolist(),
    }


def new_runner(rows: int = 4, max_model_len: int = 16) -> ModelRunner:
    """A runner without a model or a cache: enough for rows and inputs."""
    return ModelRunner(None, None, rows, max_model_len, 4, torch.device("cpu"))  # type: ignore[arg-type]


def new_request(
    name: str, prompt: Sequence[int], blocks: Sequence[int], computed: int = 0, **known: Any
) -> NewRequestData:
    """What the plan says of a request that is new."""
    known = {"sampling_params": GREEDY, "eos_token_id": None} | known
    return NewRequestData(
        req_id=name,
        prompt_token_ids=list(prompt),
        block_ids=list(blocks),
        num_computed_tokens=computed,
        **known,
    )


def new_plan(
    scheduled: Mapping[str, int],
    new: Sequence[NewRequestData] = (),
    computed: Mapping[str, int] | None = None,
    blocks: Mapping[str, Sequence[int]] | None = None,
    resumed: Sequence[str] = (),
    preempted: Sequence[str] = (),
    finished: Sequence[str] = (),
) -> SchedulerOutput:
    """A plan as the scheduler writes it.

    Args:
        scheduled: tokens of each request, in the scheduler's order.
        new: those described in full.
        computed: count before this step, of those that are known already.
        blocks: new blocks of those that are known already.
        resumed: which of them come back after a preemption.
    """
    computed = computed or {}
    new_block_ids = {request.req_id: request.block_ids for request in new}
    new_block_ids |= {name: list(ids) for name, ids in (blocks or {}).items()}
    return SchedulerOutput(
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=CachedRequestData(
            list(computed), list(computed.values()), set(resumed), {}
        ),
        num_scheduled_tokens=dict(scheduled),
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens={},
        new_block_ids=new_block_ids,
        preempted_req_ids=list(preempted),
        finished_req_ids=set(finished),
    )


def array(values: Sequence[int], kind: Any = np.int32) -> Any:
    """A numpy array, int32 unless told otherwise."""
    return np.array(values, kind)


CONFIG: dict[str, Any] = dict(
    architectures=["Qwen3ForCausalLM"],
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    dtype="float32",
)


def new_model(**changes: Any) -> Any:
    """An empty model of 2 layers: hidden size 16, 4 query heads, 2 key/value heads of 8."""
    args = ModelArgs.from_dict(CONFIG | changes)
    model = resolve_model_class(args.architectures)(args)
    for parameter in model.parameters():
        parameter.requires_grad_(False).fill_(-1.0)
    return model


def checkpoint_shapes(tied: bool = False) -> dict[str, list[int]]:
    """Name and shape of every tensor that a checkpoint for `new_model` holds."""
    shapes = {"model.embed_tokens.weight": [40, 16], "model.norm.weight": [16]}
    if not tied:
        shapes["lm_head.weight"] = [40, 16]
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{name}.weight"] = [16]
        for name in ("q_norm", "k_norm"):
            shapes[f"{prefix}self_attn.{name}.weight"] = [8]
        for name, rows in (("q", 32), ("k", 16), ("v", 16)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = [rows, 16]
        shapes[f"{prefix}self_attn.o_proj.weight"] = [16, 32]
        for name in ("gate", "up"):
            shapes[f"{prefix}mlp.{name}_proj.weight"] = [24, 16]
        shapes[f"{prefix}mlp.down_proj.weight"] = [16, 24]
    return shapes


def random_tensors(tied: bool = False) -> dict[str, Tensor]:
    """The tensors of a checkpoint for `new_model`."""
    generator = torch.Generator().manual_seed(5)
    shapes = checkpoint_shapes(tied)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_checkpoint(folder: Path, tensors: Mapping[str, Tensor], files: int = 1) -> None:
    """Write tensors as a checkpoint of one file, or of several with their index."""
    if files == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return
    weight_map = {name: f"part-{i % files}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        part = {name: tensors[name] for name in tensors if weight_map[name] == file}
        save_file(part, folder / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def rows() -> SimpleNamespace:
    """Builders for the batch, by name."""
    return SimpleNamespace(
        batch=new_batch,
        state=new_state,
        seat=seat,
        leave=leave,
        names=names,
        show=show,
        array=array,
    )


@pytest.fixture
def step() -> SimpleNamespace:
    """Builders for the runner and its plans, by name."""
    return SimpleNamespace(
        runner=new_runner,
        new=new_request,
        plan=new_plan,
        seat=seat,
        names=names,
        show=show,
    )


@pytest.fixture
def files() -> SimpleNamespace:
    """Builders for models and checkpoints, by name."""
    return SimpleNamespace(
        model=new_model,
        shapes=checkpoint_shapes,
        tensors=random_tensors,
        write=write_checkpoint,
    )
