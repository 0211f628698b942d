"""Which values an entry of a file may have, and how an error message says so."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mini_vllm.errors import show


@dataclass(frozen=True)
class Rule:
    """Which values an entry may have, and how an error message says so."""

    legal: Callable[[Any], bool]
    says: str
    required: bool = False

    def or_null(self) -> Rule:
        """The same rule, except that null is legal, too; it means the default."""
        return Rule(lambda value: value is None or self.legal(value), f"{self.says}, or null")


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return is_integer(value) or isinstance(value, float)


def integer(low: int, high: int, required: bool = False) -> Rule:
    return Rule(
        lambda value: is_integer(value) and low <= value <= high,
        f"it must be an integer of at least {low} and at most {high}",
        required,
    )


def number(low: float, high: float) -> Rule:
    """A number from `low` to `high`, both included. NaN is refused: it compares as false."""
    return Rule(
        lambda value: is_number(value) and low <= value <= high,
        f"it must be a number of at least {low:g} and at most {high:g}",
    )


def one_of(*values: str) -> Rule:
    names = ", ".join(map(repr, values))
    return Rule(lambda value: isinstance(value, str) and value in values, f"choose from {names}")


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def list_of(rule: Rule, noun: str) -> Rule:
    return Rule(
        lambda value: isinstance(value, list) and all(map(rule.legal, value)),
        f"it must be a list of {noun}",
    )


def off(what: str) -> Rule:
    """For a switch that must be off, because the engine does not have `what` it switches on."""
    return Rule(lambda value: not value, f"only false is supported: {what} would be needed")


BOOLEAN = Rule(lambda value: isinstance(value, bool), "it must be true or false")
NOTHING = Rule(lambda value: value is None, "only null is supported")
NUMBER = Rule(is_number, "it must be a number")
STRING = Rule(lambda value: isinstance(value, str), "it must be a string")
OBJECT = Rule(lambda value: isinstance(value, dict), "it must be an object")


def check_entries(
    entries: Mapping[str, Any], rules: Mapping[str, Rule], source: str, prefix: str = ""
) -> None:
    """Raise ValueError for the first entry that breaks its rule. Unknown entries are accepted.

    Args:
        source: the file, for the message.
        prefix: of the key in the message, such as "rope_scaling.".
    """
    for key, rule in rules.items():
        if (key in entries or rule.required) and not rule.legal(entries.get(key)):
            found = near(key, [name for name in entries if name not in rules])
            hint = f"; is {prefix}{found} meant to be it?" if found and key not in entries else ""
            raise ValueError(
                f"{source}: {prefix}{key} is {show(entries.get(key))}; {rule.says}{hint}"
            )


def near(key: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is `key` but for a letter or two, if there is one."""
    found = difflib.get_close_matches(key, list(names), n=1, cutoff=0.85)
    return found[0] if found else None


def misspelt(entries: Mapping[str, Any], known: Collection[str]) -> dict[str, str]:
    """Entries that are not known, and look like one that is and that is left out: by name, that
    one's name. Most entries that are not known are of no harm, and so is one with a line before its
    name, which its program keeps for itself."""
    left_out = [name for name in known if name not in entries]
    strange = [name for name in entries if name not in known and not name.startswith("_")]
    return {name: meant for name in strange if (meant := near(name, left_out))}
