"""Checks of the entries of a checkpoint's `quantization_config`. Errors name the entry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mini_vllm.errors import show

NAMES_OF_LAYERS = ("ignore", "modules_to_not_convert", "ignored_layers")


def get_from_keys(config: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """The value of the first of `keys` that `config` has. Raises ValueError if it has none."""
    for key in keys:
        if key in config:
            return config[key]
    raise ValueError(
        f"quantization_config has none of {', '.join(keys)}; add what the model was quantised with"
    )


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Put the name of the file that is read before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def one_of(config: Mapping[str, Any], key: str, allowed: Sequence[Any], default: Any = None) -> Any:
    """The value of `key`. Raises ValueError unless it is one of `allowed`."""
    value = config.get(key, default)
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise ValueError(
            f"quantization_config: {key} is {value!r}; supported: {', '.join(map(repr, allowed))}"
        )
    return value


def check_kinds(config: Any) -> None:
    """Raise ValueError for an entry whose type no format allows."""
    check_kind("quantization_config", config, Mapping, "an object")
    for key in NAMES_OF_LAYERS:
        check_names(key, config.get(key))
    block = config.get("weight_block_size")
    check_kind("weight_block_size", block, list, "two numbers, such as [128, 128]")
    for size in block or []:
        check_kind("weight_block_size", size, int, "two whole numbers")
    groups = config.get("config_groups")
    check_kind("config_groups", groups, Mapping, "an object with one entry for each group")
    for name, group in (groups or {}).items():
        check_kind(f"config_groups.{name}", group, Mapping, "an object", is_needed=True)
        check_names(f"config_groups.{name}.targets", group.get("targets"))
        for part in ("weights", "input_activations", "output_activations"):
            check_kind(f"config_groups.{name}.{part}", group.get(part), Mapping, "an object")


def check_kind(key: str, value: Any, kind: type, wanted: str, is_needed: bool = False) -> None:
    if (value is None and not is_needed) or (isinstance(value, kind) and value is not True):
        return
    raise ValueError(f"quantization_config: {key} is {show(value)}; it must be {wanted}")


def check_names(key: str, names: Any) -> None:
    """Raise ValueError unless `names` is a list of layers, or of patterns after "re:"."""
    check_kind(key, names, list, 'a list of names of layers, or of patterns after "re:"')
    for name in names or []:
        check_kind(key, name, str, "a list of names", is_needed=True)
        try:
            re.compile(name.removeprefix("re:") if name.startswith("re:") else "")
        except re.error as error:
            raise ValueError(
                f"quantization_config: {key} has {show(name)}, which is no pattern: {error}"
            ) from None
