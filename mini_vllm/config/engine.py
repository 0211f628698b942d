"""The whole configuration, and how it is made from a flat list of arguments."""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from mini_vllm import hub
from mini_vllm.config.arguments import EngineOptions
from mini_vllm.config.cache import CacheConfig
from mini_vllm.config.checks import require_flag
from mini_vllm.config.kv_transfer import KVEventsConfig, KVTransferConfig
from mini_vllm.config.lora import LoRAConfig
from mini_vllm.config.model import ModelConfig
from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.config.parallel import EPLBConfig, ParallelConfig
from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.config.structured import StructuredOutputsConfig
from mini_vllm.config.vllm_names import (
    ALIASES,
    AS_IT_IS,
    DEFAULTS,
    IGNORED,
    REFUSED,
    SECTION_KEYS,
    asks_for_nothing,
    spelled,
    why_not,
)
from mini_vllm.errors import show
from mini_vllm.gguf import is_gguf
from mini_vllm.json_files import parse_json

logger = logging.getLogger(__name__)

FLAT_SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "parallel": ParallelConfig,
    "multimodal": MultiModalConfig,
    "lora": LoRAConfig,
}
"""Sections whose fields are arguments of ``LLM`` and options of the command line, by name."""
ARGUMENT_NAMES = {"profile": "scheduler_profile"}
"""Fields whose argument has another name, because the field's name is unclear without its
section."""
WHOLE_SECTIONS: dict[str, tuple[str, type]] = {
    "speculative_config": ("speculative", SpeculativeConfig),
    "structured_outputs_config": ("structured", StructuredOutputsConfig),
    "kv_transfer_config": ("kv_transfer", KVTransferConfig),
    "kv_events_config": ("kv_events", KVEventsConfig),
    "pooler_config": ("pooler", PoolerConfig),
}
"""Sections that are one argument each, as in vLLM: a dict, its JSON, or the dataclass."""

NESTED: dict[str, type] = {"eplb_config": EPLBConfig}
"""Arguments of a flat section that are given in the same forms as `WHOLE_SECTIONS`."""

BESIDE_SECTIONS = ("enable_lora", "reasoning_parser")
"""Arguments that are no fields of a flat section: they concern a section as a whole, or a section
of `WHOLE_SECTIONS`."""
SPECULATIVE_ARGUMENTS = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
"""Short arguments, and the key of ``speculative_config`` that each sets."""

LEFT_OPEN = (
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "mm_processor_kwargs",
)
"""Arguments whose default in vLLM is None. None means our default, and not False."""


@dataclass(frozen=True)
class EngineConfig:
    """Everything that :class:`~mini_vllm.engine.core.EngineCore` needs to start."""

    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    structured: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)
    multimodal: MultiModalConfig = field(default_factory=MultiModalConfig)
    lora: LoRAConfig | None = None
    speculative: SpeculativeConfig | None = None
    kv_transfer: KVTransferConfig | None = None
    kv_events: KVEventsConfig | None = None
    pooler: PoolerConfig | None = None
    """Of a pooling model; None for one that generates."""
    fits_max_model_len: bool = False
    """`max_model_len` was not given: the engine takes the longest that fits its KV cache, and at
    most the model's number of positions."""

    def __post_init__(self) -> None:
        scheduler = self.scheduler
        # vLLM has the length in its ModelConfig, too, where clients read it.
        object.__setattr__(self.model, "_max_model_len", scheduler.max_model_len)
        if self.speculative is not None:  # the method decides: not every drafter writes KV
            num_lookahead = self.speculative.num_lookahead_tokens
            scheduler = dataclasses.replace(scheduler, num_lookahead_tokens=num_lookahead)
            object.__setattr__(self, "scheduler", scheduler)
        if not self.fits_max_model_len:
            self.check_budget()

    def check_budget(self) -> None:
        """Raises ValueError if prompts are not split, and the longest does not fit a step."""
        scheduler = self.scheduler
        too_small = scheduler.max_num_batched_tokens < scheduler.max_model_len
        if too_small and not scheduler.enable_chunked_prefill:
            raise ValueError(
                f"max_num_batched_tokens is {scheduler.max_num_batched_tokens}; without chunked "
                f"prefill it must be at least max_model_len={scheduler.max_model_len}, or a long "
                "request could never run; raise it, lower max_model_len or set "
                "enable_chunked_prefill=True"
            )

    # vLLM's names of the sections, for code that gets this object as its ``vllm_config``.
    @property
    def model_config(self) -> ModelConfig:
        return self.model

    @property
    def cache_config(self) -> CacheConfig:
        return self.cache

    @property
    def scheduler_config(self) -> SchedulerConfig:
        return self.scheduler

    @property
    def parallel_config(self) -> ParallelConfig:
        return self.parallel

    @property
    def lora_config(self) -> LoRAConfig | None:
        return self.lora

    @property
    def speculative_config(self) -> SpeculativeConfig | None:
        return self.speculative

    @property
    def structured_outputs_config(self) -> StructuredOutputsConfig:
        return self.structured

    @property
    def kv_transfer_config(self) -> KVTransferConfig | None:
        return self.kv_transfer

    @property
    def kv_events_config(self) -> KVEventsConfig | None:
        return self.kv_events

    @property
    def pooler_config(self) -> PoolerConfig | None:
        return self.pooler

    @classmethod
    def from_kwargs(cls, model: str | Path, **given: Unpack[EngineOptions]) -> EngineConfig:
        """Make the sections from the keyword arguments of ``LLM``.

        Args:
            model: a folder in Hugging Face layout, the name of a bundled model, or OWNER/NAME of
                a model on a hub, which is downloaded if necessary; see `mini_vllm.hub`.
            given: fields of `FLAT_SECTIONS`, sections of `WHOLE_SECTIONS`, and `BESIDE_SECTIONS`.
                Without ``max_model_len``, or with -1, the engine chooses it.

        Raises:
            TypeError: for an unknown argument; the message has the most similar one.
            ValueError: for a value out of range, or an unknown key of a section.
            OSError: if there is no such model, or it cannot be downloaded.
        """
        options: dict[str, Any] = {**given}
        take_speculative(options)
        check_arguments(options)
        options = {k: v for k, v in options.items() if v is not None or k not in LEFT_OPEN}
        folder = find_model(model, options)
        check_load_format(given.get("load_format"), folder)
        if options.get("tokenizer") is not None:
            options["tokenizer"] = str(find_tokenizer(options))
        is_open = options.get("max_model_len", -1) in (-1, "auto")
        if is_open:
            options.pop("max_model_len", None)
        settle_step_limits(options)
        flat, field_names = arguments(), {name: own for own, name in ARGUMENT_NAMES.items()}
        sections: dict[str, Any] = {name: {} for name in FLAT_SECTIONS}
        sections["model"]["model"] = str(folder)
        whole: dict[str, Any] = {}
        enable_lora = options.pop("enable_lora", False)
        reasoning_parser = options.pop("reasoning_parser", None)
        require_flag("enable_lora", enable_lora)
        for key, value in options.items():
            if key in WHOLE_SECTIONS:
                name, section = WHOLE_SECTIONS[key]
                if value is not None:
                    whole[name] = read_section(key, section, value)
            else:
                if key in NESTED:
                    value = read_section(key, NESTED[key], value)
                sections[flat[key]][field_names.get(key, key)] = value
        if reasoning_parser:  # as in vLLM, it overrides the one in the section
            structured = whole.get("structured", StructuredOutputsConfig())
            whole["structured"] = dataclasses.replace(structured, reasoning_parser=reasoning_parser)
        adapters = sections.pop("lora")
        if enable_lora:
            whole["lora"] = LoRAConfig(**adapters)
        elif unused := [name for name in adapters if adapters[name] != _default(LoRAConfig, name)]:
            logger.warning("%s has no effect without enable_lora", ", ".join(unused))
        made = {name: FLAT_SECTIONS[name](**values) for name, values in sections.items()}
        return cls(**made, **whole, fits_max_model_len=is_open)


def _default(section: type, name: str) -> Any:
    return next(item.default for item in dataclasses.fields(section) if item.name == name)


def default_of(name: str) -> Any:
    """The default of an argument, as vLLM's `EngineArgs` tells it: None where the engine decides,
    and of a section that is one argument."""
    section = arguments().get(name)
    if section is None or name in LEFT_OPEN:
        return False if name == "enable_lora" else None
    fields = {argument: own for own, argument in ARGUMENT_NAMES.items()}
    found = _default(FLAT_SECTIONS[section], fields.get(name, name))
    return None if found is dataclasses.MISSING else found


def take_speculative(options: dict[str, Any]) -> None:
    """Write the short arguments of speculation into ``speculative_config``.

    Raises:
        ValueError: for a key that is given twice, or beside a section that is no mapping.

    Source: vllm/engine/arg_utils.py#L1660-L1694 (EngineArgs.create_speculative_config) @ v0.22.1
    """
    given = {name: options.pop(name, None) for name in SPECULATIVE_ARGUMENTS}
    section = options.get("speculative_config")
    for name, value in given.items():
        if value is None:
            continue
        key = SPECULATIVE_ARGUMENTS[name]
        if not isinstance(section, Mapping | None) or key in (section or {}):
            raise ValueError(
                f"{name} is {show(value)}, and speculative_config is given, too; write {key!r} "
                f"there, and leave {name} out"
            )
        section = options["speculative_config"] = {**(section or {}), key: value}


def check_arguments(options: dict[str, Any]) -> None:
    """Remove the arguments of vLLM that have no effect here.

    Raises:
        ValueError: for an argument of vLLM that is not supported, with the reason and the fix.
        TypeError: for an unknown name; the message has the most similar one.
    """
    known = [*arguments(), *BESIDE_SECTIONS, *WHOLE_SECTIONS]
    for key in list(options):
        if key in ALIASES:
            options[ALIASES[key]] = options.pop(key)
        elif key in IGNORED:
            check_as_it_is(key, options.pop(key))
        elif key in known:
            options[key] = spelled(key, options[key])
        elif (key in REFUSED or not is_near(key, known)) and (reason := why_not(key)) is not None:
            as_it_is = AS_IT_IS.get(key, ()) + DEFAULTS.get(key, ())
            if not asks_for_nothing(options.pop(key), as_it_is):
                raise ValueError(f"{key} is vLLM's, and not supported: {reason}")
        else:
            raise TypeError(f"unknown argument {key!r}{_nearest(key, known)}")


def settle_step_limits(options: dict[str, Any]) -> None:
    """If one of the two limits of a step is given, adapt the other, so that a step has at least one
    token for each running request.

    Source: vllm/engine/arg_utils.py#L2475-L2565
    (EngineArgs._set_default_max_num_seqs_and_batched_tokens_args) @ v0.22.1, which lowers
    ``max_num_seqs``; its default of the other is always large enough.
    """
    budget, rows = options.get("max_num_batched_tokens"), options.get("max_num_seqs")
    if rows is None and type(budget) is int and budget > 0:
        options["max_num_seqs"] = min(budget, SchedulerConfig.max_num_seqs)
    elif budget is None and type(rows) is int:
        options["max_num_batched_tokens"] = max(rows, SchedulerConfig.max_num_batched_tokens)


def check_as_it_is(key: str, value: Any) -> None:
    """Raises ValueError for an illegal value of an argument without effect. A text of a legal value
    is legal, too."""
    legal = AS_IT_IS.get(key, ())
    if legal and value is not None and value not in (*legal, *map(str, legal)):
        raise ValueError(
            f"{key} is {show(value)}; it must be {' or '.join(map(repr, legal))}: "
            f"{IGNORED.get(key) or why_not(key)}"
        )


def is_near(word: str, known: Iterable[str]) -> bool:
    """Whether a word is a known one with a typing error."""
    return bool(difflib.get_close_matches(word, list(known), n=1, cutoff=0.8))


def find_model(model: str | Path, options: Mapping[str, Any]) -> Path:
    """The model's folder; for random weights, a hub's weights are not downloaded."""
    return hub.folder(
        model,
        options.get("revision"),
        options.get("download_dir"),
        options.get("hf_token"),
        weights=options.get("load_format") != "dummy",
    )


def check_load_format(wanted: Any, folder: Path) -> None:
    """Raises ValueError for vLLM's name of a format that the model does not have."""
    kind = "a .gguf file" if is_gguf(folder) else "no .gguf file"
    if wanted in (("safetensors", "hf") if is_gguf(folder) else ("gguf",)):
        raise ValueError(
            f"load_format is {wanted!r}, and {str(folder)!r} is {kind}; give a model of that "
            "format, or leave load_format out"
        )


def find_tokenizer(options: Mapping[str, Any]) -> Path:
    """The folder of a tokenizer given by `tokenizer`."""
    return hub.folder(
        options["tokenizer"],
        options.get("tokenizer_revision"),
        options.get("download_dir"),
        options.get("hf_token"),
        weights=False,
    )


def arguments() -> dict[str, str]:
    """The section of every flat argument, by the argument's name; ``model`` is not among them."""
    return {
        ARGUMENT_NAMES.get(item.name, item.name): name
        for name, section in FLAT_SECTIONS.items()
        for item in dataclasses.fields(section)
        if item.name != "model"
    }


def read_section(key: str, section: type, value: Any) -> Any:
    """A section from a dict, from JSON, or from itself.

    Raises:
        ValueError: for another value, or an unknown key; the message has the most similar one.
    """
    if isinstance(value, section):
        return value
    value = read_object(key, value, f"an object or a {section.__name__}")
    fields = dataclasses.fields(section)
    value = known_keys(key, value, [item.name for item in fields])
    for item in fields:
        no_default = item.default is item.default_factory is dataclasses.MISSING
        if no_default and item.name not in value:
            raise ValueError(f"{key} needs {item.name!r}; it is {show(dict(value))}")
    return section(**value)


def known_keys(key: str, value: Mapping[Any, Any], known: Sequence[str]) -> dict[str, Any]:
    """A section's keys, without those of vLLM that have no effect.

    Raises:
        ValueError: for an unknown key, and for a key of vLLM that would have an effect, with the
            reason.
    """
    theirs = SECTION_KEYS.get(key, {})
    for name in value:
        if name not in known and name not in theirs:
            raise ValueError(f"{key} has no key {name!r}{_nearest(str(name), known)}")
        if name not in known and not asks_for_nothing(value[name], theirs[name][1]):
            raise ValueError(
                f"{key} has {name}={show(value[name])}, which is vLLM's, and not supported: "
                f"{theirs[name][0]}; leave it out"
            )
    return {name: value[name] for name in value if name in known}


def read_object(key: str, value: Any, wanted: str = "an object") -> Mapping[str, Any]:
    """A dict, or an object in JSON. Raises ValueError for anything else."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise ValueError(f"{key} is {show(value)}; that is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is {show(value)}; it must be {wanted}")
    return value


def _nearest(word: str, known: Iterable[str]) -> str:
    names = list(known)
    nearest = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(names)}"
