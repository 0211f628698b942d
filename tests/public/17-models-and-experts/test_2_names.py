"""Task 17.2: what a file calls our tensors."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.model.families.names import projections, renamed

LLAMA = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


def test_17_2_what_a_stack_holds() -> None:
    """The parts of a stack come in the order of its rows."""
    found = projections("model.layers.3.self_attn.qkv_proj.weight", LLAMA)
    base = "model.layers.3.self_attn."
    expect(found, [f"{base}{x}_proj.weight" for x in "qkv"], at="qkv_proj of layer 3")


def test_17_2_biases_and_scales_too() -> None:
    """Whatever stands behind the projection stays."""
    found = projections("layers.0.mlp.gate_up_proj.weight_scale", LLAMA)
    expect(found, [f"layers.0.mlp.{x}_proj.weight_scale" for x in ("gate", "up")], at="scales")


def test_17_2_what_is_no_stack_keeps_its_name() -> None:
    """A name that is no stack stays alone, in a list."""
    name = "model.layers.0.self_attn.o_proj.weight"
    expect(projections(name, LLAMA), [name], at="o_proj")


def test_17_2_a_stack_in_the_file_too() -> None:
    """Phi-3's file has gate and up as we do."""
    table = {**LLAMA, "gate_up_proj": ["gate_up_proj"]}
    name = "layers.0.mlp.gate_up_proj.weight"
    expect(projections(name, table), [name], at="gate_up_proj is its own only part")


def test_17_2_only_whole_pieces() -> None:
    """`my_qkv_proj` is another name, and `qkv_proj` twice is replaced once."""
    name = "layers.0.my_qkv_proj.weight"
    expect(projections(name, LLAMA), [name], at="my_qkv_proj")
    found = projections("qkv_proj.0.qkv_proj", {"qkv_proj": ["a", "b"]})
    expect(found, ["a.0.qkv_proj", "b.0.qkv_proj"], at="qkv_proj.0.qkv_proj")


def test_17_2_pieces_of_names() -> None:
    """Phi calls o_proj dense, and the last norm otherwise."""
    table = {".self_attn.o_proj.": ".self_attn.dense.", "model.norm.": "model.final_layernorm."}
    found = renamed("model.layers.1.self_attn.o_proj.bias", table)
    expect(found, "model.layers.1.self_attn.dense.bias", at="o_proj")
    expect(renamed("model.norm.weight", table), "model.final_layernorm.weight", at="norm")
    expect(renamed("lm_head.weight", table), "lm_head.weight", at="a name without a piece")


def test_17_2_all_pieces_in_order() -> None:
    """The second piece is found in what the first one wrote."""
    table = {".mlp.": ".feed_forward.", ".feed_forward.up_proj.": ".feed_forward.w3."}
    found = renamed("layers.0.mlp.up_proj.weight", table)
    expect(found, "layers.0.feed_forward.w3.weight", at="two pieces, one after the other")
