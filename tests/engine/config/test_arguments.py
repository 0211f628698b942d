"""`EngineOptions` says to type checkers what the configuration classes say to Python."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest

from mini_vllm import LLM, AsyncEngineArgs, EngineArgs
from mini_vllm.config.arguments import EngineOptions
from mini_vllm.config.engine import (
    ARGUMENT_NAMES,
    FLAT_SECTIONS,
    LEFT_OPEN,
    NESTED,
    WHOLE_SECTIONS,
    arguments,
)
from mini_vllm.config.vllm_names import ALIASES, AS_IT_IS, IGNORED

OPTIONS = typing.get_type_hints(EngineOptions)
DROPPED = {*IGNORED, *AS_IT_IS}
ON_THEIR_OWN = {"disable_log_stats", "stream_interval"}
"""Parameters of ``LLM`` or ``AsyncEngineArgs`` that `EngineConfig.from_kwargs` would drop."""


def hint_of(name: str, section: str) -> Any:
    field = {flat: own for own, flat in ARGUMENT_NAMES.items()}.get(name, name)
    hint = typing.get_type_hints(FLAT_SECTIONS[section])[field]
    if name in NESTED:
        return Mapping[str, Any] | str | hint
    return hint | None if name in LEFT_OPEN else hint


WANTED = {name: hint_of(name, section) for name, section in arguments().items()}
WANTED |= {"enable_lora": bool, "reasoning_parser": str | None}
WANTED |= {"spec_method": str | None, "spec_model": str | None, "spec_tokens": int | None}
WANTED |= {
    name: Mapping[str, Any] | str | section | None for name, (_, section) in WHOLE_SECTIONS.items()
}
WANTED |= {alias: WANTED[name] for alias, name in ALIASES.items()}


@pytest.mark.parametrize("name", [*WANTED])
def test_an_argument_has_the_type_of_its_field(name: str) -> None:
    """If this is red, write the field into `mini_vllm/config/arguments.py` as it stands here."""
    assert OPTIONS.get(name) == WANTED[name], f"{name}: {WANTED[name]}"


def test_no_argument_is_told_that_is_not_taken() -> None:
    assert OPTIONS.keys() == WANTED.keys() | DROPPED - ON_THEIR_OWN


@pytest.mark.parametrize("name", sorted(AS_IT_IS.keys() - ON_THEIR_OWN))
def test_of_some_arguments_one_value_is_taken(name: str) -> None:
    assert OPTIONS[name] == Literal[AS_IT_IS[name]]


@pytest.mark.parametrize("made", [LLM, EngineArgs, AsyncEngineArgs])
def test_no_parameter_is_an_option_as_well(made: Callable[..., Any]) -> None:
    """Type checkers would refuse the signature."""
    assert not inspect.signature(made).parameters.keys() & OPTIONS.keys()
