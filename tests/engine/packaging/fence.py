"""A Python that has only what `pyproject.toml` declares: the engine, and its dependencies.

The fence is a folder of links into this environment: to the engine, and to each package that the
engine's own dependencies and some extras bring in, through others too. `python -S` with that folder
as its path finds no other package, as in an environment where only these were installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from labkit.course.root import find_root

PROJECT = tomllib.loads((find_root() / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_THE_COURSE = ("course", "dev", "maintain", "notebook")
EXTRAS = tuple(name for name in PROJECT["optional-dependencies"] if name not in OF_THE_COURSE)
"""Those of the engine."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extras: Iterable[str]) -> list[Requirement]:
    """What the engine asks for, with these extras, on this system."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][name] for name in extras)]
    found = [Requirement(text) for requirements in lists for text in requirements]
    return [need for need in found if need.marker is None or need.marker.evaluate()]


def closure(needs: Iterable[Requirement]) -> dict[str, metadata.Distribution]:
    """The distributions that these bring in, by name; those that are installed here."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(need.name, extra) for need in needs for extra in ("", *need.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (canonical(name), extra) in seen:
            continue
        seen.add((canonical(name), extra))
        try:
            found[canonical(name)] = distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, distribution.requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                waiting += [(need.name, more) for more in ("", *need.extras)]
    return found


def top_level(distribution: metadata.Distribution) -> Iterator[Path]:
    """Where its modules and its metadata lie."""
    names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    yield from (Path(str(distribution.locate_file(name))) for name in names)


class Fence:
    """Runs programs behind the fence; `folder` is empty, and becomes it."""

    def __init__(self, folder: Path, extras: Sequence[str] = ()) -> None:
        self.folder = folder
        (folder / "mini_vllm").symlink_to(find_root() / "mini_vllm")
        for distribution in closure(declared(extras)).values():
            for path in top_level(distribution):
                if path.exists() and not (folder / path.name).exists():
                    (folder / path.name).symlink_to(path)

    def run(self, *words: str, given: str = "", seconds: float = 120) -> tuple[int, str, str]:
        """`python words`: the exit code, and what it wrote to standard output and error."""
        environment = os.environ | {"PYTHONPATH": str(self.folder), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [sys.executable, "-S", *words],
            cwd=self.folder,
            env=environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        return done.returncode, done.stdout, done.stderr
