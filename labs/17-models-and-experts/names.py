"""The names of our tensors in a family's files: two functions that apply the family's table.

ours      model.layers.0.mlp.gate_up_proj.weight
stacked   model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight
renamed   model.layers.0.feed_forward.w1.weight, ...          by the table's `names`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def projections(name: str, stacked: Mapping[str, Sequence[str]]) -> list[str]:
    """The names of the projections that our tensor `name` holds, in the order of its rows.

    `stacked` has our projections, and the ones that a file has instead of each. A projection is a
    whole piece of a name between dots, and it is replaced once: `layers.0.qkv_proj.weight` has
    the piece `qkv_proj`, and `layers.0.my_qkv_proj.weight` has not. A name without such a piece is
    its own only projection. So is one that the table maps to itself, because the file has it as we
    do.

    Source: vllm/model_executor/models/llama.py#L436-L498 (LlamaModel.load_weights) @ v0.22.1.
    """
    # TODO 17.2
    raise NotImplementedError(
        "TODO 17.2: write projections in labs/17-models-and-experts/names.py"
        " (phase 17, 02-mini-build.md#task-2)"
    )


def renamed(name: str, pieces: Mapping[str, str]) -> str:
    """The file's name of a tensor that we call `name`.

    `pieces` maps pieces of our names to the file's. Each piece that is in the name is replaced, one
    after the other in the order of the table; so a later one may find what an earlier one wrote.
    """
    # TODO 17.2
    raise NotImplementedError(
        "TODO 17.2: write renamed in labs/17-models-and-experts/names.py"
        " (phase 17, 02-mini-build.md#task-2)"
    )
