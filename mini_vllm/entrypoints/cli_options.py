"""The command-line options for the engine, adapters and sampling parameters."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mini_vllm.bundled import INSTALLED, NAMES, SEEING
from mini_vllm.config.engine import SPECULATIVE_ARGUMENTS, read_object
from mini_vllm.config.options import add_engine_options, given_options
from mini_vllm.lora.request import LoRARequest, parse_lora_modules
from mini_vllm.policies import POLICIES, load_scheduler
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.engine.llm import LLM

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "storyteller"
NO_OPTIONS = ("seed", "output_kind", "eos_token_ids")
"""Sampling parameters that are not options: they are set in another way."""
MODELS = ", ".join((*NAMES, *SEEING, *INSTALLED))
"""Models that have a short name."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = False
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help=f"folder, .gguf file, OWNER/NAME of a hub's, or one of {MODELS} (default "
        f"{DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--scheduler",
        metavar="NAME",
        help=f"{', '.join(POLICIES)} (default), or your own as path/to/file.py:ClassName",
    )
    add_engine_options(parser)
    features = parser.add_argument_group(
        "engine options (short)", "Shorter ways to say some of the others."
    )
    features.add_argument(
        "--lora-modules",
        nargs="+",
        default=[],
        metavar="NAME=PATH",
        help="adapters to load; they switch --enable-lora on",
    )
    for name, key in SPECULATIVE_ARGUMENTS.items():
        option = "--" + name.replace("_", "-")
        kind = int if name == "spec_tokens" else str
        about = f"the key {key!r} of --speculative-config"
        features.add_argument(option, default=argparse.SUPPRESS, type=kind, help=about)


def options_of(args: argparse.Namespace, *sections: type) -> dict[str, Any]:
    """The given options as keyword arguments, without the model."""
    names = {field.name for section in sections for field in dataclasses.fields(section)}
    return {name: getattr(args, name) for name in names - {"model"} if hasattr(args, name)}


def load_llm(args: argparse.Namespace, **defaults: Any) -> LLM:
    say_start(args.model)
    with no_collections():
        from mini_vllm.engine.llm import LLM

        return LLM(args.model, **(defaults | engine_options_of(args)))


@contextmanager
def no_collections() -> Iterator[None]:
    """Switch Python's cyclic garbage collection off inside the `with` block.

    The objects of a start, modules and a model, stay alive, so collections would free nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def say_start(model: str) -> None:
    """Log the start, before torch is imported, which takes seconds."""
    logger.info("starting %s: libraries first", model)


def engine_options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The given options of the engine, with the class that ``--scheduler`` names."""
    options: dict[str, Any] = {"enable_lora": True} if args.lora_modules else {}
    options |= given_options(args)
    if (speculative := speculative_config_of(args)) is not None:
        options["speculative_config"] = speculative
    if args.scheduler is not None:
        options["scheduler_cls"] = load_scheduler(args.scheduler)
    return options


def process_options_of(args: argparse.Namespace) -> dict[str, Any]:
    """:func:`engine_options_of` for an engine in another process, to which no class can be sent."""
    options = engine_options_of(args)
    if options.pop("scheduler_cls", None) is not None:
        options["scheduler"] = args.scheduler
    return options


def adapters_of(args: argparse.Namespace, count: int) -> list[LoRARequest | None]:
    """The adapter of each of ``count`` prompts: ``--lora`` by the names of ``--lora-modules``."""
    known: dict[str, LoRARequest | None] = {"base": None, **parse_lora_modules(args.lora_modules)}
    for name in args.lora:
        if name not in known:
            raise ValueError(
                f"--lora names {name!r}; known are {', '.join(known)}; add it to --lora-modules"
            )
    loras = [known[name] for name in args.lora] or [None]
    return loras * count if len(loras) == 1 else loras


def speculative_config_of(args: argparse.Namespace) -> Any:
    """``--speculative-config`` together with its short options; None without any of them.

    Raises:
        ValueError: for a key that is given twice, or JSON that is no object.
    """
    config = getattr(args, "speculative_config", None)
    given = {name: getattr(args, name) for name in SPECULATIVE_ARGUMENTS if hasattr(args, name)}
    if not given:
        return config
    section = dict(read_object("speculative_config", "{}" if config is None else config))
    for name, value in given.items():
        key = SPECULATIVE_ARGUMENTS[name]
        if key in section:
            raise ValueError(
                f"{key!r} is given by --{name.replace('_', '-')} and by --speculative-config; "
                "leave one of them out"
            )
        section[key] = value
    return section


def sampling_params_of(args: argparse.Namespace, **defaults: Any) -> SamplingParams:
    return SamplingParams(**(defaults | options_of(args, SamplingParams)))
