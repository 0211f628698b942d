"""Verdicts that need no second run: of tasks that passed, and nothing they can reach has changed.

`.labkit/verdicts/NN-slug.json` keeps for each task that passed which of the learner's functions its
tests entered (`labkit.process.reach`) and a digest of these, of what stands outside of functions,
and of everything else that a verdict depends on: engine, tests, judge, Python. A task counts as
unchanged if the digest, made anew from the files as they are, is the same. Comments and blank lines
are not in it. Failures always run again, and a run that was cut off leaves nothing here.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from labkit.course.files import write_text
from labkit.course.manifest import Phase
from labkit.course.root import HOME
from labkit.process import reach

NOTEBOOK = "notebook"
"""Under this name the notebook's answers stand beside the tasks."""
CACHES = {"cache", "lru_cache", "cached_property"}
"""What these decorate is entered once, by whichever test is first: every task depends on it."""
VARIABLES = ("CUDA", "HYPOTHESIS", "MINI_VLLM", "OMP", "TORCH", "TRITON")


@dataclass
class Kept:
    """What of the last runs still holds.

    Attributes:
        tasks: task -> its tests, as {"id", "name", "title"}.
        notebook: the answers' records; None if they are to be judged.
        since: when the oldest of these verdicts was found.
    """

    tasks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    notebook: list[dict[str, Any]] | None = None
    since: str = ""


class Verdicts:
    """The stored verdicts of a phase, beside its files as they are when this is made: what is
    edited while they are judged does not get the verdict of what stood there before.

    Args:
        mapping: the overlay, module -> file.
    """

    def __init__(self, phase: Phase, mapping: Mapping[str, str]) -> None:
        self.file = phase.root / ".labkit" / "verdicts" / f"{phase.slug}.json"
        self.stored = _read(self.file)
        self._parts, self._world = _parts(mapping), _world(phase, mapping)
        self._notebook = _notebook_text(phase)

    def unchanged(self) -> Kept:
        """Those that hold for the files as they are."""
        kept, times = Kept(), []
        for name, verdict in self.stored.items():
            if verdict["digest"] != self._digest(name, verdict["entered"]):
                continue
            times.append(verdict["when"])
            if name == NOTEBOOK:
                kept.notebook = verdict["answers"]
            else:
                kept.tasks[name] = verdict["tests"]
        kept.since = min(times, default="")
        return kept

    def keep(self, name: str, entered: Iterable[str], **found: Any) -> None:
        """Take in what has passed.

        Args:
            name: a task, or `NOTEBOOK`.
            entered: the learner's functions that its tests, or its cells, have entered.
            found: `tests` of a task, or `answers` of the notebook.
        """
        names = sorted(entered)
        now = datetime.now().isoformat(timespec="seconds")
        about = {"entered": names, "digest": self._digest(name, names), "when": now}
        self.stored[name] = about | found

    def write(self) -> None:
        write_text(self.file, json.dumps(self.stored, indent=1, sort_keys=True) + "\n")

    def _digest(self, name: str, entered: Iterable[str]) -> str:
        """Of the functions that were entered, of what all may notice, and of the world."""
        always = (part for part in self._parts if part.endswith(":"))
        parts = [f"{p} {self._parts.get(p, 'gone')}" for p in sorted({*entered, *always})]
        return _hash("\n".join([self._world, self._notebook * (name == NOTEBOOK), *parts]))


def _read(file: Path) -> dict[str, Any]:
    """What is stored; nothing if the file is missing or not as it is written here."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        for name, verdict in stored.items():
            found = "answers" if name == NOTEBOOK else "tests"
            kinds = {"entered": list, "digest": str, "when": str, found: list}
            whole = all(isinstance(verdict[key], kind) for key, kind in kinds.items())
            if not whole or not all(isinstance(each, str) for each in verdict["entered"]):
                return {}
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}
    return stored


# ---------------------------------------------------------------- digests
def _parts(mapping: Mapping[str, str]) -> dict[str, str]:
    """A digest of each function, "package.module:Class.function"; of all else in a module under
    "package.module:"; of all of it under "package.module:*". A module that is no Python, or nested
    too deeply to be taken apart, is one piece."""
    found = {}
    for module, file in mapping.items():
        try:
            data = Path(file).read_bytes()
            found[f"{module}:*"] = _hash(repr(data))
            found |= _parts_of(module, ast.parse(data))
        except (OSError, SyntaxError, ValueError) as error:
            found[f"{module}:"] = repr(error)
        except (RecursionError, MemoryError):  # nested too deeply to be taken apart
            found[f"{module}:"] = found.get(f"{module}:*", "")
    return found


def _parts_of(module: str, tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    rest = []
    for name, node in reach.functions(tree):
        body = _hash(_dump(node))
        if CACHES & {n.rpartition(".")[2] for n in map(_called, node.decorator_list)}:
            rest.append(body)
        rest.append(found.get(f"{module}:{name}", ""))  # defined twice: both count for all
        found[f"{module}:{name}"] = body
    for _, node in reach.functions(tree):
        node.body = []
    found[f"{module}:"] = _hash("\n".join([_dump(tree), *rest]))
    return found


def _called(decorator: ast.expr) -> str:
    """`functools.lru_cache(maxsize=8)` -> "functools.lru_cache"."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _dump(node: ast.AST) -> str:
    return ast.dump(node, include_attributes=False)


def _world(phase: Phase, mapping: Mapping[str, str]) -> str:
    """A digest of everything but the learner's files: engine, tests, judge, Python."""
    root = phase.root
    packages = sorted({module.partition(".")[0] for module in phase.modules})
    folders = [*(root / name for name in packages), phase.public_tests, HOME]
    files = [phase.folder / "phase.toml", phase.folder / "notebook.py"]
    lines = [sys.version, sys.prefix, repr(sorted(mapping.items()))]
    lines += [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES)]
    lines += [_stamp(Path(entry)) for entry in sys.path if "-packages" in entry]
    for folder in folders:
        files += sorted(path for path in folder.rglob("*") if path.is_file())
    lines += [_stamp(path) for path in files if "__pycache__" not in path.parts]
    return _hash("\n".join(lines))


def _stamp(path: Path) -> str:
    """A file's name, size and time: an edit changes one of the last two."""
    try:
        about = path.stat()
    except OSError:
        return f"{path} missing"
    return f"{path} {about.st_size} {about.st_mtime_ns}"


def _notebook_text(phase: Phase) -> str:
    """The code of the learner's notebook, without what it has put out; all of a file that is no
    notebook."""
    data = b""
    try:
        data = (phase.labs / "lab.ipynb").read_bytes()
        cells = json.loads(data.decode("utf-8-sig"))["cells"]
        return repr([cell["source"] for cell in cells if cell["cell_type"] == "code"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        return repr((error, data))


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
