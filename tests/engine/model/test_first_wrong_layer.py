"""`make families ARGS="--layer NAME"`: the first layer that is not transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.families import layers
from benchmarks.families.record import read
from benchmarks.families.tiny import write


@pytest.mark.parametrize("wrong", [0, 2, 3])
def test_a_layer_that_was_made_wrong_is_found(wrong: int) -> None:
    def spoiled(*args: Any) -> Any:
        model = layers_load_model(*args)
        model.model.layers[wrong].post_attention_layernorm.weight.data *= 1.5
        return model

    layers_load_model = layers.load_model
    with mock.patch.object(layers, "load_model", spoiled):
        said = layers.report("flex_olmo")
    assert said.startswith(f"flex_olmo: layer {wrong} is the first that differs, ")
    assert said.count("\n") == 2


def test_a_folder_is_asked_as_a_family_is(tmp_path: Path) -> None:
    answer = read()["mixtral"]
    write(tmp_path, answer["config"], answer["shapes"])
    assert layers.report(str(tmp_path)).startswith(f"{tmp_path}: no layer differs, 2 asked")


def test_what_cannot_be_compared_says_why() -> None:
    assert "its layers keep states" in layers.report("mamba2")
