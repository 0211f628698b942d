"""The files of sentence-transformers beside a decoder: the steps after it.

modules.json                 the steps: Transformer, Pooling, Normalize, Dense
1_Pooling/config.json        last token, first token, or mean
2_Dense/config.json          a linear layer
sentence_bert_config.json    the longest text
config_sentence_transformers.json    instructions before a text, by its purpose
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.errors import show
from mini_vllm.gguf import is_gguf
from mini_vllm.json_files import parse_json, read_json

STEPS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
ORDER = re.compile("(Transformer )*Pooling (Dense )*(Normalize )*")
"""The order of steps that is computed here. A dropout does nothing outside training."""
ST_POOLING = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"}
"""Our names of pooling types, by those of sentence-transformers."""


@dataclass(frozen=True)
class Dense:
    """A step of sentence-transformers: y = activation(W x + b), with weights in its own folder."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str
    """ "Identity" or "Tanh"."""


def read_steps(folder: Path) -> list[dict[str, Any]] | None:
    """The steps of `modules.json`; None if pooling is not among them.

    Source: vllm/transformers_utils/config.py#L844-L918 (get_pooling_config) @ v0.22.1
    """
    path = folder / "modules.json"
    if is_gguf(folder) or not path.is_file():
        return None
    try:
        steps = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    is_list = isinstance(steps, list) and all(isinstance(step, dict) for step in steps)
    if not is_list or not all(isinstance(s.get("type"), str) for s in steps):
        raise ValueError(f"{path} holds {show(steps)}; it must be a list of objects with a type")
    return steps if any(_kind(step) == "Pooling" for step in steps) else None


def _kind(step: Mapping[str, Any]) -> str:
    """The class name of a step, without its module."""
    return str(step["type"]).rpartition(".")[2]


def pooler_of(
    steps: Sequence[Mapping[str, Any]], folder: Path, given: PoolerConfig
) -> PoolerConfig:
    """The pooling configuration of the steps. If `given` has a pooling type, that of the steps is
    not read."""
    kinds = [_kind(step) for step in steps]
    for kind in kinds:
        if kind not in STEPS:
            raise ValueError(
                f"{folder / 'modules.json'} has a step {kind!r}; known are {', '.join(STEPS)}"
            )
    if not steps:
        return PoolerConfig()
    found = [kind for kind in kinds if kind != "Dropout"]
    if not ORDER.fullmatch("".join(f"{kind} " for kind in found)):
        raise ValueError(
            f"{folder / 'modules.json'} has the steps {', '.join(found)}; another order than "
            "Transformer, Pooling, Dense, Normalize is not supported"
        )
    normalizes = "Normalize" in kinds
    if given.seq_pooling_type is not None:
        return PoolerConfig(use_activation=normalizes)
    path = _file_of(steps[kinds.index("Pooling")], folder)
    return PoolerConfig(seq_pooling_type=_st_mode(read_json(path), path), use_activation=normalizes)


def _file_of(step: Mapping[str, Any], folder: Path) -> Path:
    """The `config.json` of a step. Raises FileNotFoundError if it is not there."""
    path = folder / str(step.get("path")) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder / 'modules.json'} has a step {_kind(step)!r}, whose file {path} is not "
            "there; download it"
        )
    return path


def _st_mode(entries: Mapping[str, Any], path: Path) -> str:
    """The pooling type of a `1_Pooling/config.json`, of which exactly one must be set."""
    prefix = "pooling_mode_"
    modes = [
        key.removeprefix(prefix).removesuffix("_token").removesuffix("_tokens")
        for key, value in entries.items()
        if key.startswith(prefix) and value is True
    ]
    newer = entries.get("pooling_mode")
    modes = modes or [mode for mode in (newer if isinstance(newer, list) else [newer]) if mode]
    if len(modes) != 1 or modes[0] not in ST_POOLING:
        raise ValueError(
            f"{path}: pooling is {show(modes)}; it must be one of {', '.join(ST_POOLING)}; or say "
            "what is meant with pooler_config={'pooling_type': ...}"
        )
    return ST_POOLING[modes[0]]


def dense_of(folder: Path) -> tuple[Dense, ...]:
    """The dense layers after pooling, in order."""
    steps = read_steps(folder) or []
    return tuple(_dense(step, folder) for step in steps if _kind(step) == "Dense")


def _dense(step: Mapping[str, Any], folder: Path) -> Dense:
    """Source: vllm/model_executor/models/adapters.py#L40-L69 (_load_st_projector) @ v0.22.1"""
    path = _file_of(step, folder)
    entries = read_json(path)
    sizes: list[Any] = [entries.get(name) for name in ("in_features", "out_features")]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"{path}: in_features and out_features are {sizes}; both must be numbers")
    activation = str(entries.get("activation_function", "Identity")).rpartition(".")[2]
    if activation not in ("Identity", "Tanh"):
        raise ValueError(
            f"{path}: activation_function is {show(activation)}; it must be Identity or Tanh"
        )
    in_size, out_size = sizes
    return Dense(path.parent, in_size, out_size, entries.get("bias", True) is True, activation)


def max_seq_length(folder: Path) -> int | None:
    """The longest text of the model in sentence-transformers; None if it is not limited.

    Raises:
        ValueError: if texts must be converted to lower case, which is not supported.

    Source: vllm/transformers_utils/config.py#L935-L983 (get_sentence_transformer_tokenizer_config)
    @ v0.22.1
    """
    file = folder / "sentence_bert_config.json"
    if not file.is_file():
        return None
    entries = read_json(file)
    if entries.get("do_lower_case"):
        raise ValueError(f"{file}: do_lower_case is true; texts are read as they are here")
    length = entries.get("max_seq_length")
    return length if type(length) is int and length > 0 else None


def instructions_of(folder: Path, entries: Mapping[str, Any]) -> dict[str, str]:
    """The instructions before a text that the model was trained with, by the text's purpose, such
    as "query".

    Args:
        entries: of `config.json`; its ``task_instructions`` are preferred.

    Source: vllm/entrypoints/pooling/embed/io_processor.py#L258-L264
    (EmbedIOProcessor._load_task_instructions) @ v0.22.1
    """
    file = folder / "config_sentence_transformers.json"
    given = entries.get("task_instructions")
    if not given and not is_gguf(folder) and file.is_file():
        given = read_json(file).get("prompts")
    named = given.items() if isinstance(given, Mapping) else ()
    return {name: text for name, text in named if isinstance(text, str)}
