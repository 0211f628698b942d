"""Options of the command line that are made from names: fields of ours, and what is vLLM's alone.

A command written for vLLM should work here, too: an option that asks for what is so anyway is taken
and dropped, and one that cannot be had is refused with the reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.config.engine import FLAT_SECTIONS, WHOLE_SECTIONS, arguments, is_near
from mini_vllm.config.vllm_names import ALIASES, IGNORED, why_not

SWITCHES = (
    "async_scheduling", "disable_cascade_attn", "disable_log_requests", "disable_log_stats",
    "enable_log_requests", "enable_server_load_tracking", "trust_remote_code", "use_tqdm_on_load",
)  # fmt: skip
"""Options without effect that take no value; the others take one, or several."""
SEVERAL = ("ignore_patterns",)
OF_SERVE = {
    "api_server_count": "one front end",
    "headless": "replicas are made by data_parallel_size, on one machine",
    "config": "give the options themselves",
    "grpc": "HTTP is what is spoken",
}
"""Options of vLLM's `serve` that stand in none of its classes, and why they are not here."""


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


SHORT = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
}
"""What vLLM calls these for short."""


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """An option for every argument of the engine but its model, and for those without effect."""
    for section in FLAT_SECTIONS.values():
        add_field_options(parser, section, "engine", skip=("model",))
    _add_dropped(parser)
    features = parser.add_argument_group("engine options (features)")
    features.add_argument(
        "--enable-lora", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS
    )
    for name in WHOLE_SECTIONS:
        features.add_argument(_option(name), default=argparse.SUPPRESS, metavar="JSON")


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Those of :func:`add_engine_options` that were given, as arguments of the engine."""
    names = (*arguments(), *WHOLE_SECTIONS, "enable_lora")
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def add_field_options(
    parser: argparse.ArgumentParser, section: type, title: str, skip: Sequence[str]
) -> None:
    """One option per field of a configuration class; those not given stay out of the result."""
    group = parser.add_argument_group(f"{title} options ({section.__name__})")
    for name, hint in typing.get_type_hints(section).items():
        if name not in skip:
            also = [_option(alias) for alias, meant in ALIASES.items() if meant == name]
            also += [SHORT[name]] if name in SHORT else []
            how = _how_to_read(hint)
            group.add_argument(_option(name), *also, default=argparse.SUPPRESS, **how)


def _how_to_read(hint: Any) -> dict[str, Any]:
    """What argparse must be told to read a field of this type, such as ``list[int] | None``."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if is_union else (hint,)
    origins = [typing.get_origin(kind) for kind in kinds]
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    for kind, origin in zip(kinds, origins, strict=True):
        if origin in (list, Sequence):
            (item,) = typing.get_args(kind)
            is_plain = item in (int, float) and str not in kinds
            return {"nargs": "+", "type": item if is_plain else str, "metavar": "VALUE"}
    if dict in origins or Mapping in origins or any(map(dataclasses.is_dataclass, kinds)):
        return {"type": json.loads, "metavar": "JSON"}
    kind = next((kind for kind in (int, float) if kind in kinds), str)
    return {"type": kind, "metavar": kind.__name__.upper()}


class _Drop(argparse.Action):
    """Reads an option with its values, and keeps nothing of it."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        pass


def _add_dropped(parser: argparse.ArgumentParser) -> None:
    """Take vLLM's options that change nothing here; help does not show them."""
    for name in IGNORED:
        also = [_option("no_" + name)] if name in SWITCHES else []
        nargs = 0 if name in SWITCHES else "+" if name in SEVERAL else None
        parser.add_argument(
            _option(name), *also, dest="no_effect", action=_Drop, nargs=nargs,
            default=argparse.SUPPRESS, help=argparse.SUPPRESS,
        )  # fmt: skip


def with_dashes(words: Sequence[str]) -> list[str]:
    """``--max_num_seqs=4`` as ``--max-num-seqs=4``: vLLM takes both. Behind ``--`` come prompts."""
    end = words.index("--") if "--" in words else len(words)
    return [*map(_with_dashes, words[:end]), *words[end:]]


def _with_dashes(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def complaint(words: Sequence[str]) -> str:
    """What to say of words that the command line does not know; of vLLM's options, why not."""
    known = [*arguments(), *WHOLE_SECTIONS, "enable_lora"]
    for word in (word.partition("=")[0] for word in words if word.startswith("--")):
        name = word.removeprefix("--").removeprefix("no-").replace("-", "_")
        reason = OF_SERVE.get(name) or why_not(name)
        if reason is not None and not is_near(name, known):
            return f"{word} is vLLM's, and not supported: {reason}"
    return f"unrecognized arguments: {' '.join(words)}"
