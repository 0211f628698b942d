"""Which backend serves a constraint: chosen for each request, by what the constraint needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.native import NativeBackend, read_constraint
from mini_vllm.structured_output.token_index import TokenTable


def choose_backend(
    config: StructuredOutputsConfig, kind: StructuredOutputOptions, spec: str
) -> str:
    """The backend's name: the configured one, or with "auto" the one that can do it.

    Ours reads every constraint strictly, so it comes first. It cannot follow left recursion and
    other things that people write in grammars; what it cannot read of a grammar is given to
    xgrammar, if that is installed.
    """
    if config.backend != "auto":
        return config.backend
    if kind is StructuredOutputOptions.GRAMMAR and importlib.util.find_spec("xgrammar"):
        try:
            from mini_vllm.structured_output.pushdown import compile_rules

            compile_rules(read_constraint(kind, spec))
        except ValueError:
            return "xgrammar"
    return "native"


def make_backend(
    name: str, tokens: TokenTable, stop_token_ids: Sequence[int], config: StructuredOutputsConfig
) -> StructuredOutputBackend:
    """A backend by its name; xgrammar is imported when it is first needed."""
    layout = (not config.disable_any_whitespace, config.disable_additional_properties)
    if name == "native":
        return NativeBackend(tokens, stop_token_ids, *layout)
    from mini_vllm.structured_output.xgrammar import XgrammarBackend

    return XgrammarBackend(tokens, stop_token_ids, *layout)
