"""Which backend serves a constraint: chosen for each request, by what the constraint needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import lru_cache

from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputKey,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.native import NativeBackend, read_constraint
from mini_vllm.structured_output.pushdown import check_total_size
from mini_vllm.structured_output.regex_automaton import TooLarge
from mini_vllm.structured_output.request import get_structured_output_key
from mini_vllm.structured_output.structural_tag import NeedsXgrammar
from mini_vllm.structured_output.token_index import TokenTable
from mini_vllm.structured_output.xgrammar import XgrammarBackend, check_supported, import_xgrammar


def check_constraint(config: StructuredOutputsConfig, params: StructuredOutputsParams) -> None:
    """Check a constraint in the front end, as far as that is possible without compiling it.

    Raises:
        ValueError: for a constraint that cannot be read, or not be enforced by its backend.
    """
    _check(config, get_structured_output_key(params))


@lru_cache(maxsize=256)
def _check(config: StructuredOutputsConfig, key: StructuredOutputKey) -> None:
    close_objects = config.disable_additional_properties
    if config.backend == "xgrammar":
        import_xgrammar()
        check_supported(*key, close_objects=close_objects)
    else:
        try:
            check_total_size(read_constraint(*key, close_objects=close_objects))
        except NeedsXgrammar:
            if "xgrammar" not in backends_for(config, key[0]):
                raise
            check_supported(*key, close_objects=close_objects)
        except TooLarge as error:
            raise ValueError(f"{key[0].value} {error}") from None


def backends_for(config: StructuredOutputsConfig, kind: StructuredOutputOptions) -> list[str]:
    """The backends to try, in order: the configured one, or with "auto" all that may fit.

    `native` reads every constraint strictly, so it comes first. It supports neither left recursion
    nor structural tags of single tokens; such constraints go to xgrammar, if it is installed.
    """
    if config.backend != "auto":
        return [config.backend]
    kinds = (StructuredOutputOptions.GRAMMAR, StructuredOutputOptions.STRUCTURAL_TAG)
    if kind in kinds and importlib.util.find_spec("xgrammar"):
        return ["native", "xgrammar"]
    return ["native"]


def make_backend(
    name: str, tokens: TokenTable, stop_token_ids: Sequence[int], config: StructuredOutputsConfig
) -> StructuredOutputBackend:
    """A backend by its name; the library behind "xgrammar" is imported when it is first needed."""
    kind = NativeBackend if name == "native" else XgrammarBackend
    return kind(
        tokens,
        stop_token_ids,
        any_whitespace=not config.disable_any_whitespace,
        close_objects=config.disable_additional_properties,
    )
