"""Task 11.1: names and scale."""

from __future__ import annotations

import math
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.lora.peft import parse_fine_tuned_lora_name

Q = "model.layers.0.self_attn.q_proj"


def scale(lab: Any, rank: int = 8, module: str = Q, **config: Any) -> Any:
    """Rounded, so that an exact comparison is fair."""
    value = lab.helper(**config).scaling(module, rank)
    return round(value, 6) if isinstance(value, float) else value


def test_11_1_alpha_over_rank(lab: Any) -> None:
    """The scale is alpha divided by the rank."""
    expect(scale(lab), 2.0, at="lora_alpha 16, rank 8")


def test_11_1_the_rank_is_that_of_the_module(lab: Any) -> None:
    """A module with another rank than the config's has another scale."""
    expect(scale(lab, rank=4), 4.0, at="lora_alpha 16, r 8, and 4 rows in this module's A")


def test_11_1_rslora_divides_by_the_square_root(lab: Any) -> None:
    """With use_rslora the scale is alpha divided by the root of the rank."""
    at = "use_rslora, lora_alpha 16, rank 3"
    expect(scale(lab, rank=3, use_rslora=True), round(16 / math.sqrt(3), 6), at=at)


def test_11_1_a_pattern_fits_the_end_of_a_name(lab: Any) -> None:
    """alpha_pattern: q_proj stands for every module whose last part it is."""
    expect(scale(lab, alpha_pattern={"q_proj": 32}), 4.0, at="alpha 32 for q_proj, rank 8")
    at = "alpha 32 for self_attn.q_proj"
    expect(scale(lab, alpha_pattern={"self_attn.q_proj": 32}), 4.0, at=at)


def test_11_1_a_pattern_fits_whole_parts_only(lab: Any) -> None:
    """alpha_pattern: proj is not the end of q_proj, for no dot stands before it."""
    expect(scale(lab, alpha_pattern={"proj": 32}), 2.0, at="a pattern proj, module ...q_proj")
    at = "a pattern layers.0, module model.layers.0.self_attn.q_proj"
    expect(scale(lab, alpha_pattern={"layers.0": 32}), 2.0, at=at)


def test_11_1_a_pattern_is_a_regular_expression(lab: Any) -> None:
    """alpha_pattern: keys are regular expressions."""
    pattern = {r"layers\.[01]\..*q_proj": 32}
    expect(scale(lab, alpha_pattern=pattern), 4.0, at="layers 0 and 1 have alpha 32")
    module = Q.replace("0", "2")
    expect(scale(lab, module=module, alpha_pattern=pattern), 2.0, at="layer 2 has the config's")


def test_11_1_the_first_pattern_counts(lab: Any) -> None:
    """alpha_pattern: of several that fit, the first."""
    expect(scale(lab, alpha_pattern={"q_proj": 32, ".*": 8}), 4.0, at="q_proj: 32, then .*: 8")


def test_11_1_the_halves_of_a_pair() -> None:
    """A name says its module and its half."""
    name = f"base_model.model.{Q}.lora_A.weight"
    expect(parse_fine_tuned_lora_name(name), (Q, "A"), at=name)
    name = f"base_model.model.{Q}.lora_B.weight"
    expect(parse_fine_tuned_lora_name(name), (Q, "B"), at=name)


def test_11_1_a_name_without_prefix() -> None:
    """Where there is no prefix, none is cut."""
    expect(parse_fine_tuned_lora_name(f"{Q}.lora_B.weight"), (Q, "B"), at="no base_model.model.")


def test_11_1_the_prefix_is_cut_once() -> None:
    """A module of the base may be called base_model.model itself."""
    name = "base_model.model.base_model.model.fc.lora_A.weight"
    expect(parse_fine_tuned_lora_name(name), ("base_model.model.fc", "A"), at=name)


@pytest.mark.parametrize(
    "name",
    [
        "fc.lora_A.default.weight",
        "fc.weight",
        "fc.lora_embedding_A",
        "fc.lora_A.bias",
        "lora_A.weight",
    ],
)
def test_11_1_other_names_are_refused(name: str) -> None:
    """What is no half of a pair is an error that names the tensor."""
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        parse_fine_tuned_lora_name(name)
