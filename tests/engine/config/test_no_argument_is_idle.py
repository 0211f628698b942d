"""An argument that is taken changes something, or its one legal value is what is so anyway."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mini_vllm
from mini_vllm import LLM, SamplingParams
from mini_vllm.config.engine import FLAT_SECTIONS, WHOLE_SECTIONS
from mini_vllm.config.vllm_names import AS_IT_IS, IGNORED
from mini_vllm.entrypoints.serve import add_serve_options
from mini_vllm.model.config_schema import CONFIG
from mini_vllm.sample.filters import FILTERS
from mini_vllm.sampling_params import BeamSearchParams

ENGINE = Path(mini_vllm.__file__).parent
SECTIONS = {**FLAT_SECTIONS, **{key: section for key, (_, section) in WHOLE_SECTIONS.items()}}

ONE_VALUE = {
    "cpu_offload_gb": 1,
    "draft_tensor_parallel_size": 2,
    "routed_experts_prompt_start": 1,
}
"""Fields that have one legal value, and another, which is refused by the field's name."""
READ_BY_THEIR_SECTION = {
    "tokenizer_revision": "find_tokenizer downloads that one",
    "distributed_executor_backend": "`backend` settles it with the number of workers",
    "rejection_sample_method": "`draws_drafts` and the rates follow from it",
    "synthetic_acceptance_rates": "`synthetic_rates` are made of them",
    "synthetic_acceptance_length": "the rates are made of it",
    "pooling_type": "one of the next two is made of it",
    "logit_bias": "`logit_mean` is made of it",
    "logit_scale": "`logit_sigma` is made of it",
    "normalize": "`use_activation` is made of it",
}
"""Fields that a property or a step of `mini_vllm.config` turns into what others read."""


@cache
def names_read(outside_of: str) -> frozenset[str]:
    """Every attribute that is read anywhere in the engine but in one module or package."""
    files = [file for file in ENGINE.rglob("*.py") if outside_of not in str(file)]
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    return frozenset(
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


FIELDS = [(name, item.name) for name, section in SECTIONS.items() for item in
          dataclasses.fields(section)]  # fmt: skip


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_every_argument_is_read_by_something(section: str, name: str) -> None:
    if name in ONE_VALUE or name in READ_BY_THEIR_SECTION:
        return
    assert name in names_read("/config/"), f"{name} of {section} is taken, and no code reads it"


@pytest.mark.parametrize("kind", [SamplingParams, BeamSearchParams])
def test_every_sampling_parameter_is_read_by_something(kind: Any) -> None:
    names = {item.name for item in dataclasses.fields(kind)} - ONE_VALUE.keys()
    names -= {"spaces_between_special_tokens"}  # nor does vLLM, with a fast tokenizer
    names -= {"skip_clone"}  # `SamplingParams.clone` reads it
    names -= FILTERS.keys()  # each is read by its name; tests/engine/sample/test_filters.py looks
    assert not names - names_read("/sampling_params.py")


@pytest.mark.parametrize(("name", "value"), ONE_VALUE.items())
def test_another_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        if name in {item.name for item in dataclasses.fields(SamplingParams)}:
            SamplingParams(**{name: value})
        elif name == "draft_tensor_parallel_size":
            SECTIONS["speculative_config"](num_speculative_tokens=1, model="x", **{name: value})
        else:
            SECTIONS["cache"](**{name: value})


def test_every_option_of_serve_is_read() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_serve_options(parser)
    source = "".join(file.read_text("utf-8") for file in (ENGINE / "entrypoints").rglob("*.py"))
    names = {action.dest for action in parser._actions} - {"help"}
    taken = {*IGNORED, *AS_IT_IS, *(name for _, name in FIELDS), *WHOLE_SECTIONS}
    idle = {name for name in names - taken if f"args.{name}" not in source}
    assert not idle


@pytest.mark.parametrize("method", [LLM.__init__, LLM.generate, LLM.chat, LLM.beam_search])
def test_every_parameter_of_a_call_is_used(method: Any) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not inspect.signature(method).parameters.keys() - used - {"self"}


def test_what_the_config_table_calls_unread_is_unread() -> None:
    """Entries that are only checked stand behind a comment in the table; none of them is read."""
    text = (ENGINE / "model" / "config_schema.py").read_text("utf-8")
    only_checked = text[text.index("# Inference does not read these") : text.index("ROPE: dict")]
    names = [name for name in CONFIG if f'"{name}"' in only_checked]
    source = (ENGINE / "model" / "config.py").read_text("utf-8")
    assert names and not [name for name in names if f'config.get("{name}"' in source]
