"""The packages that `pyproject.toml` asks for, and which of them an interpreter lacks."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.course.root import ROOT

OLDEST, NEWEST = (3, 11), (3, 14)
"""Pythons that set-up takes: those that `venv.TORCH` has a build for."""
PYTHONS = "Python 3.11 to 3.14"
DEFAULT_GROUPS = ("engine", "course", "dev", "serve", "structured", "vision")


class SetupError(Exception):
    """Set-up cannot go on. Says what is wrong and what to do about it."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"setup: {problem}\n  fix: {fix}")


@dataclass(frozen=True)
class Requirement:
    """One line of `pyproject.toml`, such as `torch>=2.11,<2.14`."""

    text: str
    name: str
    bounds: tuple[tuple[str, str], ...]

    def accepts(self, version: str | None) -> bool:
        """Whether an installed version (None: not installed) is within the bounds."""
        return version is not None and all(
            _compare(_release(version), operator, _release(limit))
            for operator, limit in self.bounds
        )


def _release(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13): trailing zeros, local parts and pre-release marks do not count."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match.group().split(".")] if match else [0]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _compare(have: tuple[int, ...], operator: str, limit: tuple[int, ...]) -> bool:
    return {"==": have == limit, ">=": have >= limit, "<": have < limit}[operator]


def parse_requirement(text: str, system: str = sys.platform) -> Requirement | None:
    """Read one requirement; None when its marker excludes this system.

    Knows the forms that `pyproject.toml` uses: `name>=a,<b` and the marker `sys_platform == 'x'`.
    """
    body, _, marker = text.partition(";")
    only_on = re.fullmatch(r"\s*sys_platform == '(\w+)'\s*", marker)
    if marker and only_on is None:
        raise ValueError(f"{text!r}: only the marker sys_platform == '...' is understood")
    if only_on and only_on.group(1) != system:
        return None
    match = re.fullmatch(r"\s*([\w.-]+)\s*((?:(?:==|>=|<)[\w.]+,?)*)\s*", body)
    if match is None:
        raise ValueError(f"{text!r}: only `name` with the bounds ==, >= and < is understood")
    bounds = re.findall(r"(==|>=|<)([\w.]+)", match.group(2))
    return Requirement(body.strip(), match.group(1), tuple(bounds))


def requirements(groups: Sequence[str], system: str = sys.platform) -> list[Requirement]:
    """All requirements of some groups: `engine`, or the name of an optional group."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, Requirement] = {}
    for group in groups:
        optional = project["optional-dependencies"]
        for text in project["dependencies"] if group == "engine" else optional[group]:
            requirement = parse_requirement(text, system)
            if requirement is not None:
                found[requirement.name] = requirement
    return list(found.values())


def missing(wanted: Sequence[Requirement], have: Mapping[str, str]) -> list[Requirement]:
    """The requirements that a set of installed versions does not meet."""
    return [need for need in wanted if not need.accepts(have.get(need.name))]


def installed(names: Sequence[str]) -> dict[str, str]:
    """Versions of the packages that the running interpreter has."""
    have = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            have[name] = importlib.metadata.version(name)
    return have
