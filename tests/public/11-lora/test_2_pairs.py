"""Task 11.2: pair A with B, and find their projection in the base."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.lora.checkpoint import LoRAModel, pair_tensors

BLOCK = "layers.0.self_attn"


def weights_of(lab: Any, tensors: Any, **config: Any) -> Any:
    """The weights by module: None, or (A, B) as lists, for each slice."""
    model = LoRAModel.from_tensors("pirate@1", tensors, lab.helper(**config), lab.targets())
    expect(model.key, "pirate@1", at="the key of the model")
    return {
        module: [pair and (pair.a.tolist(), pair.b.tolist()) for pair in pairs]
        for module, pairs in model.weights.items()
    }


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_11_2_pairs_in_any_order(lab: Any, order: str) -> None:
    """Pairs: the file may name all A before all B, or the other way round."""
    pairs = {f"{BLOCK}.q_proj": lab.pair(1, 2, 4), f"{BLOCK}.v_proj": lab.pair(2, 2, 2, 5.0)}
    found = pair_tensors(lab.file_of(pairs, order))
    expect(sorted(found), sorted(pairs), at=f"all {order[0]} come first")
    for module, pair in pairs.items():
        expect(type(found[module]).__name__, "LoRAPair", at=f"the pair of {module}")
        expect(found[module].a.tolist(), pair.a.tolist(), at=f"A of {module}")
        expect(found[module].b.tolist(), pair.b.tolist(), at=f"B of {module}")


@pytest.mark.parametrize("missing", ["A", "B"])
def test_11_2_half_a_pair(lab: Any, missing: str) -> None:
    """Half a pair is an error that names module and missing half."""
    tensors = lab.file_of({f"{BLOCK}.q_proj": lab.pair(1, 2, 4)})
    del tensors[f"base_model.model.{BLOCK}.q_proj.lora_{missing}.weight"]
    with pytest.raises(ValueError, match=f"q_proj.*no lora_{missing}"):
        pair_tensors(tensors)


def test_11_2_every_projection_in_its_slice(lab: Any) -> None:
    """q, k and v are slices 0, 1 and 2; each keeps its own A."""
    names = ("v_proj", "q_proj", "k_proj")
    sizes = {"q_proj": 4, "k_proj": 2, "v_proj": 2}
    pairs = {f"{BLOCK}.{n}": lab.pair(8, 2, sizes[n], i + 1.0) for i, n in enumerate(names)}
    found = weights_of(lab, lab.file_of(pairs))[lab.QKV]
    for index, name in enumerate(("q_proj", "k_proj", "v_proj")):
        pair = pairs[f"{BLOCK}.{name}"]
        at = f"slice {index} is {name}, scale 2"
        expect(found[index], (pair.a.tolist(), (2 * pair.b).tolist()), at=at)


def test_11_2_a_missing_projection_is_none(lab: Any) -> None:
    """A slice that the adapter lacks is None; a module that it lacks is absent."""
    found = weights_of(lab, lab.file_of({f"{BLOCK}.v_proj": lab.pair(8, 2, 2)}))
    expect(sorted(found), [lab.QKV], at="an adapter of v_proj alone")
    expect([pair is None for pair in found[lab.QKV]], [True, True, False], at="its slices")


def test_11_2_each_projection_has_its_own_rank(lab: Any) -> None:
    """The scale of a projection follows from the rows of its own A."""
    pairs = {"layers.0.mlp.gate_proj": lab.pair(1, 2, 3), "layers.0.mlp.up_proj": lab.pair(2, 2, 3)}
    found = weights_of(lab, lab.file_of(pairs))[lab.GATE_UP]
    gate, up = pairs.values()
    expect(found[0][1], (16 * gate.b).tolist(), at="gate: rank 1, alpha 16")
    expect(found[1][1], (8 * up.b).tolist(), at="up: rank 2, alpha 16")


def test_11_2_the_pattern_of_the_projection(lab: Any) -> None:
    """Patterns are asked for the checkpoint's name, not for that of the stacked matrix."""
    pairs = {
        f"{BLOCK}.{name}": lab.pair(8, 2, size) for name, size in (("q_proj", 4), ("k_proj", 2))
    }
    found = weights_of(lab, lab.file_of(pairs), alpha_pattern={"k_proj": 8})[lab.QKV]
    expect(found[0][1][0][0], 20.0, at="q_proj: 10 times 16 / 8")
    expect(found[1][1][0][0], 10.0, at="k_proj: 10 times 8 / 8")


def test_11_2_scaled_in_float32_and_once(lab: Any) -> None:
    """The scale is multiplied in float32, and the caller's tensors stay as they are."""
    pair = lab.pair(8, 2, 4)
    tensors = {n: t.to(torch.bfloat16) for n, t in lab.file_of({f"{BLOCK}.q_proj": pair}).items()}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for _ in range(2):
        model = LoRAModel.from_tensors("k", tensors, lab.helper(lora_alpha=1), lab.targets())
        b = model.weights[lab.QKV][0].b
        expect(str(b.dtype), "torch.float32", at="the dtype of the scaled B")
        expect(b[0, 1].item(), 11 / 8, at="11 in bfloat16, times 1 / 8")
    unchanged = all(torch.equal(tensors[name], before[name]) for name in tensors)
    expect(unchanged, True, at="the tensors of the file, after they were loaded twice")
