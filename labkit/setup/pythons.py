"""Which Pythons are on this machine, and what they have."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.setup.requirements import NEWEST, OLDEST

MINORS = range(NEWEST[1], OLDEST[1] - 1, -1)


@dataclass(frozen=True)
class Interpreter:
    """A Python that answered: where it is, and which packages it has."""

    path: str
    version: tuple[int, int, int]
    packages: Mapping[str, str] = field(default_factory=dict)
    has_venv: bool = True

    @property
    def supported(self) -> bool:
        return OLDEST <= self.version[:2] <= NEWEST

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.path})"


PROBE = """
import json, sys
from importlib import metadata
from importlib.util import find_spec
packages = {}
for name in sys.argv[1:]:
    try:
        packages[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps({"path": sys.executable, "version": sys.version_info[:3], "packages": packages,
                  "has_venv": bool(find_spec("venv") and find_spec("ensurepip"))}))
"""


def probe(path: str, names: Sequence[str] = ()) -> Interpreter | None:
    """Ask a Python what it is; None when it does not run (a dangling link, a stub)."""
    try:
        answer = subprocess.run(
            [path, "-c", PROBE, *names], capture_output=True, text=True, timeout=30, cwd="/"
        )
        found = json.loads(answer.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    version = tuple(found["version"])
    return Interpreter(found["path"], version, found["packages"], found["has_venv"])


def other_pythons() -> Iterator[str]:
    """Paths where a supported Python may be, most likely first."""
    for name in ("python3", "python", *(f"python3.{minor}" for minor in MINORS)):
        path = shutil.which(name)
        if path:
            yield path
    for folder in (Path("/opt/homebrew/bin"), Path("/usr/local/bin"), Path("/usr/bin")):
        yield from (str(folder / f"python3.{minor}") for minor in MINORS)
    for minor in MINORS:
        versions = Path.home() / ".pyenv" / "versions"
        yield from map(str, sorted(versions.glob(f"3.{minor}.*/bin/python3")))
