"""Task 17.1: which layer is of which kind."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.model.families.layer_kinds import dense_layers, layer_windows


def config(layers: int = 6, **entries: Any) -> dict[str, Any]:
    return {"num_hidden_layers": layers, **entries}


def test_17_1_the_file_says_the_kinds() -> None:
    """`layer_types` counts, whatever the pattern says."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    found = layer_windows(config(4, sliding_window=9, layer_types=kinds), every=2)
    expect(found, (9, None, 9, 9), at="layer_types of 4 layers, window 9")


def test_17_1_a_pattern_counts_from_one() -> None:
    """Every third layer sees everything: the third, the sixth."""
    found = layer_windows(config(7, sliding_window=512), every=3)
    expect(found, (512, 512, None, 512, 512, None, 512), at="7 layers, every third")


def test_17_1_null_kinds_are_no_kinds() -> None:
    """A config may write `layer_types: null`, or an empty list, and mean that it does not say."""
    for kinds in (None, []):
        found = layer_windows(config(2, sliding_window=4, layer_types=kinds), every=2)
        expect(found, (4, None), at=f"layer_types {kinds}")


def test_17_1_no_window_no_windows() -> None:
    """Kinds without a size: all layers see everything."""
    expect(layer_windows(config(2), every=2), (None, None), at="no sliding_window")
    found = layer_windows(config(1, sliding_window=None, layer_types=["sliding_attention"]), 1)
    expect(found, (None,), at="sliding_window null")


def test_17_1_other_kinds_have_no_window() -> None:
    """Only "sliding_attention" has one."""
    kinds = ["chunked_attention", "linear_attention", "sliding_attention"]
    found = layer_windows(config(3, sliding_window=8, layer_types=kinds), every=1)
    expect(found, (None, None, 8), at=", ".join(kinds))


def test_17_1_the_first_layers_are_dense() -> None:
    """DeepSeek V3 begins with three MLPs; a model may have fewer layers than that."""
    expect(dense_layers(config(first_k_dense_replace=3)), (0, 1, 2), at="first_k_dense_replace 3")
    expect(dense_layers(config(2, first_k_dense_replace=3)), (0, 1), at="3 of 2 layers")


def test_17_1_a_list_of_dense_layers() -> None:
    """Of a list of dense layers count those that are there; the answer ascends."""
    expect(dense_layers(config(mlp_only_layers=[4, 1, 9])), (1, 4), at="mlp_only_layers 4, 1, 9")


def test_17_1_qwen_counts_from_one() -> None:
    """decoder_sparse_step 2: layers 1, 3 and 5 have experts."""
    expect(dense_layers(config(decoder_sparse_step=2)), (0, 2, 4), at="decoder_sparse_step 2")


def test_17_1_deepseek_counts_from_zero() -> None:
    """moe_layer_freq 2: layers 0, 2 and 4 have experts."""
    expect(dense_layers(config(moe_layer_freq=2)), (1, 3, 5), at="moe_layer_freq 2")


def test_17_1_one_reason_is_enough() -> None:
    """Entries add up; null says nothing."""
    entries: dict[str, Any] = dict(moe_layer_freq=3, first_k_dense_replace=1, mlp_only_layers=[3])
    expect(dense_layers(config(7, **entries)), (0, 1, 2, 3, 4, 5), at=str(entries))
    nothing = dict.fromkeys(
        ("moe_layer_freq", "first_k_dense_replace", "mlp_only_layers", "decoder_sparse_step")
    )
    expect(dense_layers(config(3, **nothing)), (), at="all four null")
    expect(dense_layers(config(3)), (), at="none of the four")
