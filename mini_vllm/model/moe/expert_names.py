"""Which expert, and which of its projections, a tensor of a checkpoint holds.

    one by one      experts.3.gate_proj.weight [I, H], up_proj, down_proj [H, I]
    Mixtral's       experts.3.w1 (gate), w3 (up), w2 (down)
    stacked         experts.gate_up_proj [E, 2I, H], experts.down_proj [E, H, I]
    transposed      experts.gate_up_proj [E, H, 2I], experts.down_proj [E, I, H]    Llama 4
    interleaved     the same, with features gate 0, up 0, gate 1, up 1, ...         gpt-oss

Source: vllm/model_executor/layers/fused_moe/layer.py#L1325-L1365
(FusedMoE.make_expert_params_mapping) @ v0.22.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

RENAMED = (
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"\.feed_forward\.", ".mlp."),
    (r"\.mlp\.router\.", ".mlp.gate."),
    (r"\.shared_experts\.", ".shared_expert."),
    (r"(\.experts\.\d+)\.w1\.", r"\1.gate_proj."),
    (r"(\.experts\.\d+)\.w3\.", r"\1.up_proj."),
    (r"(\.experts\.\d+)\.w2\.", r"\1.down_proj."),
)
"""Names of some families, and our names for them."""
STACKED = re.compile(
    r"(.*\.experts)\.(gate_up_proj|gate_proj|up_proj|down_proj)(\.weight|_bias|\.bias|_blocks|_scales)?"
)
"""A tensor with one projection of all experts: its place, its projection, and its kind."""


def common_name(name: str) -> str:
    """Our name of a tensor of a mixture of experts."""
    for pattern, ours in RENAMED:
        name = re.sub(pattern, ours, name)
    return name


@dataclass(frozen=True)
class ExpertPart:
    """One projection of one expert in a stacked tensor.

    Args:
        expert: its number, the first index of the tensor.
        rows: of the projection's matrix [out, in], after transposing; for a bias, its entries.
        shape: of the part, as in `Linear`: [out, in] for a weight, [out] for a bias.
    """

    expert: int
    rows: slice
    shape: tuple[int, ...]


def rows_of(projection: str, size: int, is_interleaved: bool) -> dict[str, slice]:
    """The rows of each projection in one expert's matrix of `size` rows, gate before up.

    `gate_up_proj` is two: the first half of the rows is `gate_proj` and the second `up_proj`; or,
    interleaved, `gate_proj` has rows 0, 2, 4 and so on, `up_proj` has 1, 3, 5. Any other projection
    has all rows for itself.
    """
    if projection != "gate_up_proj":
        return {projection: slice(0, size)}
    if is_interleaved:
        return {"gate_proj": slice(0, size, 2), "up_proj": slice(1, size, 2)}
    return {"gate_proj": slice(0, size // 2), "up_proj": slice(size // 2, size)}


def expert_parts(
    name: str, shape: list[int], is_transposed: bool, is_interleaved: bool
) -> dict[str, ExpertPart]:
    """Our name of each part that the stacked tensor `name` holds, and where the part is.

    Our names are those of experts one by one: `...mlp.experts.3.up_proj.weight`, also for
    ``_blocks`` and ``_scales``, and `.bias` for a bias. What stands before the experts' number is
    the tensor's name through `common_name`. `shape` is [E, out, in], or [E, in, out] if
    `is_transposed`; that of a bias is [E, out] in both cases. A name that `STACKED` does not match
    as a whole holds no parts: the answer is empty. Experts come in their order, and of one expert
    gate before up.
    """
    match = STACKED.fullmatch(name)
    if match is None:
        return {}
    base, projection, kind = common_name(match[1] + "."), match[2], match[3] or ".weight"
    is_bias = kind.endswith("bias")
    one = shape[:0:-1] if is_transposed and not is_bias else shape[1:]
    found = {}
    for expert in range(shape[0]):
        for part, rows in rows_of(projection, one[0], is_interleaved).items():
            size = len(range(*rows.indices(one[0])))
            ours = f"{base}{expert}.{part}.{'bias' if is_bias else 'weight'}"
            found[ours] = ExpertPart(expert, rows, (size, *one[1:]))
    return found
