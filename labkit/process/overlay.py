"""Put a learner's file in the place of an engine module, without touching the engine.

An import finder maps `mini_vllm.core.scheduler` to `labs/03-scheduler/scheduler.py`. It is
installed before `mini_vllm` is
imported: a process gets its mapping in the environment, and
`labkit/process/_site/sitecustomize.py`, which Python imports when it starts, installs it. Child
processes inherit both. Without the variable nothing changes.

This module imports the standard library only and is imported at the start of every child: keep it
small.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from labkit.course.root import HOME
from labkit.process import reach

if TYPE_CHECKING:
    from labkit.course.manifest import Phase

VARIABLE = "LABKIT_OVERLAY"
CHOICE = "LAB"


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the file each time: a .pyc could otherwise outlive an edit or a switch of files."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        data: Any = self.get_data(path)
        try:
            if reach.VARIABLE in os.environ:
                try:
                    return self.source_to_code(reach.marked(data, path, fullname), path)
                except RecursionError:  # Python nests deeper in a text than in a tree
                    reach.enter_whole(fullname)
            return self.source_to_code(data, path)
        except SyntaxError as error:
            error.add_note(f"This file stands in for {fullname}.")
            raise

    def exec_module(self, module: ModuleType) -> None:
        marked = reach.VARIABLE in os.environ
        if marked:
            module.__dict__[reach.NAME] = reach.enter
        try:
            super().exec_module(module)
        except SystemExit as error:  # it would end the tests' process, without saying why
            ended = ImportError(f"this file ends its process: SystemExit({error.code!r})")
            raise ended.with_traceback(error.__traceback__) from None
        if marked:
            reach.watch_kernels(module.__dict__, module.__name__)


class Finder(MetaPathFinder):
    """Finds the mapped modules in their other files; knows nothing about any other module."""

    def __init__(self, mapping: Mapping[str, str]) -> None:
        self.mapping = dict(mapping)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = self.mapping.get(fullname)
        if file is None:
            return None
        if not os.path.exists(file):
            raise ModuleNotFoundError(
                f"{file} is missing; it stands in for {fullname}. `reset` restores it.",
                name=fullname,
            )
        return importlib.util.spec_from_file_location(
            fullname, file, loader=_Loader(fullname, file)
        )


def install(mapping: Mapping[str, str]) -> None:
    """Install the finder in this process.

    Raises:
        ImportError: one of the modules is imported already, so the learner's file would be ignored.
    """
    late = sorted(set(mapping) & set(sys.modules))
    if late:
        raise ImportError(
            f"{', '.join(late)}: imported before the overlay; install the overlay first"
        )
    for finder in [finder for finder in sys.meta_path if isinstance(finder, Finder)]:
        sys.meta_path.remove(finder)
    if mapping:
        sys.meta_path.insert(0, Finder(mapping))


def install_from_environment() -> None:
    """What `sitecustomize` calls: install the mapping that the parent process chose."""
    install(json.loads(os.environ.get(VARIABLE, "{}")))


def mapping_for(phases: Iterable[Phase], choice: str | None = None) -> dict[str, str]:
    """Module -> lab file for some phases; empty if LAB (or `choice`) is "reference".

    Raises:
        ValueError: LAB is neither "labs" nor "reference".
    """
    choice = choice or os.environ.get(CHOICE) or "labs"
    if choice not in ("labs", "reference"):
        raise ValueError(f"{CHOICE} is {choice!r}; it must be 'labs' (yours) or 'reference'")
    if choice == "reference":
        return {}
    return {module: str(phase.lab_file(module)) for phase in phases for module in phase.modules}


def environment(
    root: Path, mapping: Mapping[str, str], base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment of a child process that runs under `mapping` and imports the engine from
    `root`."""
    env: dict[str, Any] = dict(os.environ if base is None else base)
    ours = [str(HOME / "process" / "_site"), str(root), str(HOME.parent)]
    kept = [
        part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part and part not in ours
    ]
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*ours, *kept]))
    env.pop(VARIABLE, None)
    if mapping:
        env[VARIABLE] = json.dumps(dict(mapping))
    return env
