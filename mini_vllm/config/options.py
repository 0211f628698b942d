"""Options of the command line: one for each field of the configuration, and those of vLLM alone.

A command written for vLLM should work here, too. An option of vLLM that has no effect here is
accepted and ignored; one that is not supported is refused with the reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from mini_vllm.config.descriptions import descriptions, summary
from mini_vllm.config.engine import (
    ARGUMENT_NAMES,
    BESIDE_SECTIONS,
    FLAT_SECTIONS,
    WHOLE_SECTIONS,
    arguments,
    check_as_it_is,
    is_near,
)
from mini_vllm.config.lora import LoRAConfig
from mini_vllm.config.structured import StructuredOutputsConfig
from mini_vllm.config.vllm_names import (
    ALIASES,
    AS_IT_IS,
    DEFAULTS,
    IGNORED,
    REFUSED,
    asks_for_nothing,
    why_not,
)
from mini_vllm.errors import show
from mini_vllm.json_files import parse_json

SWITCHES = (
    "disable_cascade_attn", "disable_log_requests", "disable_log_stats",
    "enable_server_load_tracking", "enable_sleep_mode",
    "trust_remote_code",
)  # fmt: skip
"""Options without effect that take no value."""
SERVE_HAS = {"stream_interval", "enable_log_requests", "served_model_name", "shutdown_timeout"}
"""Options that do have an effect in `serve`."""
SEVERAL = ("ignore_patterns",)
OF_SERVE = {
    "headless": "replicas are made by data_parallel_size, on one machine",
    "config": "give the options themselves",
    "grpc": "HTTP is what is spoken",
    "scheduler_cls": "use --scheduler path/to/file.py:ClassName",
}
"""Options of vLLM's `serve` that are in none of its configuration classes, and why not here."""
_DRAFTS = """use --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""
FORMER = {
    "guided_decoding_*": """use --structured-outputs-config '{"backend": "xgrammar"}'""",
    "disable_frontend_multiprocessing": "the engine has a process of its own; leave it out",
    "*_use_ray": "use --distributed-executor-backend ray",
    "*scheduler_steps": "a step is one token of each; leave it out",
    "multi_step_*": "a step is one token of each; leave it out",
    "num_lookahead_slots": "drafts get their slots by themselves; leave it out",
    "use_v2_block_manager": "there is one block manager; leave it out",
    "preemption_mode": "what is preempted is computed anew; leave it out",
    "disable_async_output_proc": "leave it out",
    "speculative_*": _DRAFTS,
    "num_speculative_tokens": _DRAFTS,
    "ngram_prompt_lookup_*": _DRAFTS,
    "enable_reasoning": "use --reasoning-parser alone",
    "enable_prompt_adapter": "adapters are LoRA; use --enable-lora",
    "tokenizer_pool_*": "long texts are tokenized in threads; leave it out",
    "max_seq_len": "use --max-model-len",
}
"""Options of older versions of vLLM, which many commands still have."""


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


SHORT = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
    "enable_expert_parallel": "-ep",
    "quantization": "-q",
    "speculative_config": "-sc",
}
"""vLLM's short names of these options."""
SHORT_REFUSED = {
    "-ac": "attention_config", "-cc": "compilation_config", "-O": "optimization_level",
    "-dcp": "decode_context_parallel_size",
    "-pcp": "prefill_context_parallel_size", "-n": "nnodes", "-r": "node_rank",
    "-dpn": "data_parallel_rank", "-dpr": "data_parallel_start_rank",
    "-dpl": "data_parallel_size_local", "-dpa": "data_parallel_address",
    "-dpp": "data_parallel_rpc_port", "-dpb": "data_parallel_backend",
    "-dpe": "data_parallel_external_lb", "-dph": "data_parallel_hybrid_lb",
    "-dpm": "data_parallel_multi_port_external_lb",
}  # fmt: skip
"""vLLM's short names of options that are not supported."""
UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30,
         "T": 2**40}  # fmt: skip


def whole_number(text: str) -> int:
    """A whole number, also with a unit: 4096, 4k for 4,000, 4K for 4,096.

    Source: vllm/utils/argparse_utils.py#L29-L72 (human_readable_int) @ v0.22.1
    """
    match = re.fullmatch(r"\s*([-+]?\d+(?:\.\d+)?)([kKmMgGtT]?)\s*", text)
    if match is not None:
        number = Fraction(match[1]) * UNITS.get(match[2], 1)
        if number.denominator == 1 and ("." not in match[1] or match[2].islower()):
            return int(number)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a whole number; write it like 4096, 4k for 4,000, or 4K for 4,096"
    )


def model_length(text: str) -> int:
    """A number of tokens; "auto" becomes -1."""
    return -1 if text.strip().lower() == "auto" else whole_number(text)


def json_value(text: str) -> Any:
    """The value of a JSON text."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{show(text)} is not JSON: {error}; write it like {like(text)}"
        ) from None


def like(text: str) -> str:
    """A guess at the JSON that the user meant, quoted for a shell."""
    pairs = [re.fullmatch(r"\s*(\w+)\s*[=:]\s*(.+?)\s*", part) for part in text.split(",")]
    found = {pair[1]: _json_or_text(pair[2]) for pair in pairs if pair is not None}
    if text.strip() == "*":
        return """'["*"]'"""
    return f"'{json.dumps(found)}'" if found and all(pairs) else """'{"key": "value"}'"""


def _json_or_text(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """An option for every argument of the engine but its model, and for those without effect."""
    for section in FLAT_SECTIONS.values():
        group = add_field_options(parser, section, skip=("model",))
        if section is LoRAConfig:
            group.add_argument(
                "--enable-lora", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS,
                help="Serve adapters beside the model.",
            )  # fmt: skip
    _add_dropped(parser)
    whole = parser.add_argument_group("VllmConfig", "Features with settings of their own, as JSON.")
    for name, (_, section) in WHOLE_SECTIONS.items():
        short = [SHORT[name]] if name in SHORT else []
        keys = ", ".join(item.name for item in dataclasses.fields(section))
        whole.add_argument(
            _option(name), *short, default=argparse.SUPPRESS, type=json_value, metavar="JSON",
            help=f"{summary(section)} Keys: {keys}.",
        )  # fmt: skip
    about = descriptions(StructuredOutputsConfig)["reasoning_parser"]
    whole.add_argument("--reasoning-parser", default=argparse.SUPPRESS, metavar="NAME", help=about)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The given options of :func:`add_engine_options`, as arguments of the engine."""
    names = (*arguments(), *WHOLE_SECTIONS, *BESIDE_SECTIONS)
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def add_field_options(
    parser: argparse.ArgumentParser, section: type, skip: Sequence[str]
) -> argparse._ArgumentGroup:
    """One option for each field of a configuration class, with the field's description. Options
    that are not given are not in the parsed namespace."""
    group = parser.add_argument_group(section.__name__, summary(section))
    about = descriptions(section)
    for name, hint in typing.get_type_hints(section).items():
        if name not in skip:
            also = [_option(alias) for alias, meant in ALIASES.items() if meant == name]
            also += [SHORT[name]] if name in SHORT else []
            how = _how_to_read(hint)
            how |= {"type": model_length} if name == "max_model_len" else {}
            text = about.get(name, "").replace("%", "%%")
            option = _option(ARGUMENT_NAMES.get(name, name))
            group.add_argument(option, *also, default=argparse.SUPPRESS, help=text, **how)
    return group


def _how_to_read(hint: Any) -> dict[str, Any]:
    """Arguments of argparse for a field of this type, such as ``list[int] | None``."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if is_union else (hint,)
    origins = [typing.get_origin(kind) for kind in kinds]
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    for kind, origin in zip(kinds, origins, strict=True):
        if origin in (list, Sequence):
            (item,) = typing.get_args(kind)
            is_plain = item in (int, float) and str not in kinds
            kind = whole_number if item is int else item
            return {"nargs": "+", "type": kind if is_plain else str, "metavar": "VALUE"}
    if dict in origins or Mapping in origins or any(map(dataclasses.is_dataclass, kinds)):
        return {"type": json_value, "metavar": "JSON"}
    kind = next((kind for kind in (int, float) if kind in kinds), str)
    read = whole_number if kind is int else kind
    return {"type": read, "metavar": kind.__name__.upper()}


class _Drop(argparse.Action):
    """Checks the values of an option without effect, and ignores them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        name = self.option_strings[0].removeprefix("--").replace("-", "_")
        try:
            check_as_it_is(name, values)
        except ValueError as error:
            parser.error(str(error))


def _add_dropped(parser: argparse.ArgumentParser) -> None:
    """Add vLLM's options without effect; help does not show them."""
    for name in {**IGNORED, **AS_IT_IS}.keys() - SERVE_HAS:
        also = [_option("no_" + name)] if name in SWITCHES else []
        nargs = 0 if name in SWITCHES else "+" if name in SEVERAL else None
        parser.add_argument(
            _option(name), *also, dest="no_effect", action=_Drop, nargs=nargs,
            default=argparse.SUPPRESS, help=argparse.SUPPRESS,
        )  # fmt: skip


def with_dashes(words: Sequence[str]) -> list[str]:
    """``--max_num_seqs=4`` as ``--max-num-seqs=4``: vLLM accepts both. Words after ``--`` are
    prompts and stay as they are."""
    end = words.index("--") if "--" in words else len(words)
    return [*map(_with_dashes, words[:end]), *words[end:]]


def _with_dashes(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def join_dotted(words: Sequence[str]) -> list[str]:
    """Join options such as ``--speculative-config.method ngram`` into one option with JSON.

    Source: vllm/utils/argparse_utils.py#L243-L429 (FlexibleArgumentParser.parse_args) @ v0.22.1
    """
    joined: dict[str, Any] = {}
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        match = re.fullmatch(r"(--[a-z][a-z-]*)\.([\w.-]+)(?:=(.*))?", word, re.DOTALL)
        if word == "--":
            others += [word, *rest]
        elif match is None:
            others.append(word)
        else:
            option, path, value = match.groups()
            *outer, last = path.replace("-", "_").split(".")
            place = joined.setdefault(option, {})
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = _json_or_text(next(rest, "") if value is None else value)
    added = [word for option, value in joined.items() for word in (option, json.dumps(value))]
    end = others.index("--") if "--" in others else len(others)
    return [*others[:end], *added, *others[end:]]


def without_defaults(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """`words` without options of vLLM that `parser` does not have, where each has vLLM's default
    value: it changes nothing. With another value it stays, for :func:`complaint`."""
    known, rest = _options_of(parser), list(words)
    kept: list[str] = []
    while rest:
        word = rest.pop(0)
        spelled = re.sub(r"^-O(?=[^=])", "-O=", word)
        option, equals, text = spelled.partition("=")
        if word == "--":
            return [*kept, word, *rest]
        if not word.startswith("-") or option in known or _why_not(option) is None:
            kept.append(word)
            continue
        defaults = DEFAULTS.get(_name(option), ())
        is_on, is_off = any(each is True for each in defaults), option.startswith("--no-")
        if is_on or is_off:  # a switch
            is_default = is_on is not is_off
        else:
            has_value = equals or (rest and not rest[0].startswith("-"))
            value = _json_or_text(text if equals or not rest else rest[0])
            is_default = bool(has_value) and (value == "None" or asks_for_nothing(value, defaults))
            if is_default and not equals:
                del rest[:1]
        kept += [] if is_default else [word]
    return kept


def _options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a parser and of its commands."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*map(_options_of, action.choices.values()))
    return found


def _name(option: str) -> str:
    """The name of vLLM's argument for an option."""
    name = option.removeprefix("--").removeprefix("no-").replace("-", "_")
    return SHORT_REFUSED.get("-O" if option.startswith("-O") else option, name)


def _why_not(option: str) -> str | None:
    """Why an option of vLLM's is not supported; None for an unknown one, and for one that is known
    but for a typing error."""
    name, known = _name(option), [*arguments(), *WHOLE_SECTIONS, *BESIDE_SECTIONS]
    reason = OF_SERVE.get(name) or why_not(name)
    is_theirs = name in REFUSED or not option.startswith("--") or not is_near(name, known)
    return reason if is_theirs else None


def complaint(words: Sequence[str]) -> str:
    """The error message for unknown words; for an option of vLLM, why it is not supported."""
    known = [*arguments(), *WHOLE_SECTIONS, *BESIDE_SECTIONS]
    for word in (word.partition("=")[0] for word in words if word.startswith("-")):
        if (reason := _why_not(word)) is not None:
            return f"{word} is vLLM's, and not supported: {reason}"
        name = _name(word)
        reason = next((why for old, why in FORMER.items() if fnmatchcase(name, old)), None)
        if reason is not None:
            return f"{word} was vLLM's: {reason}"
    text = f"unrecognized arguments: {' '.join(words)}"
    names = [word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words]
    near = [match for name in names for match in difflib.get_close_matches(name, known, n=1)]
    if near:
        text += f"; did you mean --{near[0].replace('_', '-')}?"
    if any(word.lower() in ("true", "false") for word in words):
        text += "; a switch takes no value: write --NAME, or --no-NAME"
    return text
