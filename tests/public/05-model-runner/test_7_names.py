"""Task 05.7: the checkpoint's names, and the rows of our matrices that bear them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.model.loader import checkpoint_names, weight_targets

LAYER = "model.layers.1."


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_05_7_three_projections_are_one_matrix(kind: str) -> None:
    """qkv_proj holds q, k and v, in this order."""
    name = f"{LAYER}self_attn.qkv_proj.{kind}"
    right = [f"{LAYER}self_attn.{part}_proj.{kind}" for part in "qkv"]
    expect(checkpoint_names(name), right, at=f"checkpoint_names({name!r})")


def test_05_7_gate_and_up_are_one_matrix() -> None:
    """gate_up_proj holds gate, then up."""
    name = f"{LAYER}mlp.gate_up_proj.weight"
    right = [f"{LAYER}mlp.gate_proj.weight", f"{LAYER}mlp.up_proj.weight"]
    expect(checkpoint_names(name), right, at=f"checkpoint_names({name!r})")


@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}self_attn.o_proj.weight",
        f"{LAYER}self_attn.q_norm.weight",
        f"{LAYER}mlp.down_proj.weight",
        "model.embed_tokens.weight",
        "lm_head.weight",
    ],
)
def test_05_7_all_else_keeps_its_name(name: str) -> None:
    """One parameter, one tensor, one name."""
    expect(checkpoint_names(name), [name], at=f"checkpoint_names({name!r})")


@pytest.mark.parametrize("tied", [False, True])
def test_05_7_every_tensor_of_the_checkpoint_has_a_place(files: Any, tied: bool) -> None:
    """The names are the checkpoint's, the shapes are what it should hold."""
    targets = weight_targets(files.model(tie_word_embeddings=tied))
    shapes = {name: list(view.shape) for name, view in targets.items()}
    right = files.shapes(tied)
    at = f"2 layers, tie_word_embeddings={tied}"
    expect(sorted(shapes), sorted(right), at=f"{at}: names")
    wrong = {name: (shapes[name], right[name]) for name in right if shapes[name] != right[name]}
    expect(wrong, {}, at=f"{at}: names whose (shape, expected shape) differ")


def test_05_7_the_rows_are_those_of_the_projection(files: Any) -> None:
    """With 4 query heads and 2 key/value heads of 8: rows 0-31, 32-47 and 48-63."""
    model = files.model()
    targets = weight_targets(model)
    for number, part in enumerate("qkv"):
        targets[f"{LAYER}self_attn.{part}_proj.weight"].fill_(number)
    column = model.model.layers[1].self_attn.qkv_proj.weight[:, 0].int()
    parts = {"rows 0-31": column[:32], "rows 32-47": column[32:48], "rows 48-63": column[48:]}
    got = {name: part.unique().tolist() for name, part in parts.items()}
    at = "q is filled with 0, k with 1, v with 2: what stands in qkv_proj"
    expect(got, {"rows 0-31": [0], "rows 32-47": [1], "rows 48-63": [2]}, at=at)


def test_05_7_a_target_is_the_parameter_and_no_copy(files: Any) -> None:
    """What is written to a target stands in the model, so each tensor is copied only once."""
    model = files.model()
    for view in weight_targets(model).values():
        view.fill_(3.0)
    left = [name for name, p in model.named_parameters() if not bool((p == 3.0).all())]
    expect(left, [], at="every target is filled with 3: parameters that hold something else")


def test_05_7_biases_are_split_as_well(files: Any) -> None:
    """Qwen2 has biases on q, k and v: one number for each row."""
    model = files.model(architectures=["Qwen2ForCausalLM"])
    targets = weight_targets(model)
    shapes = [list(targets[f"{LAYER}self_attn.{part}_proj.bias"].shape) for part in "qkv"]
    expect(shapes, [[32], [16], [16]], at="Qwen2: shapes of the biases of q, k and v")


def test_05_7_a_tied_head_has_one_place(files: Any) -> None:
    """It is the embedding itself."""
    model = files.model(tie_word_embeddings=True)
    weight_targets(model)["model.embed_tokens.weight"].fill_(7.0)
    assert torch.equal(model.lm_head.weight, torch.full((40, 16), 7.0)), (
        "the embedding was filled with 7, and the tied lm_head holds something else"
    )
