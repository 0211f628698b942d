"""Where what is missing may have gone to: a file under another name, a function that was renamed or
moved, a module that is no module of the engine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from labkit.course import source
from labkit.course.files import read_python
from labkit.course.manifest import Phase
from labkit.inside import child

NOT_IN_A_TAB = (
    "numpy",
    "orjson",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
    "zmq",
)
"""What the engine uses and a browser's tab does not have."""
UPSTREAM_IMPORT = (
    "vLLM itself is not installed, and not needed: the course's names for the same things are in"
    " mini_vllm, and what a file needs is imported at its top already."
)


def like_file(path: Path) -> str:
    """The name of the one file beside a missing one that an editor, a browser or a file manager may
    have made of it: "Request.py", "request.py.txt", "request (1).py"; "" if there is none."""
    stem, found = path.stem.lower(), list[str]()
    for other in path.parent.iterdir() if path.parent.is_dir() else ():
        name = other.name.lower()
        spelt = re.fullmatch(rf"{re.escape(stem)}([ _.-].*|\(\d+\).*)?", name.partition(".py")[0])
        if other.is_file() and spelt and ".py" in name and not name.endswith(("~", ".swp")):
            found.append(other.name)
    return found[0] if len(found) == 1 else ""


def like_folder(path: Path) -> str:
    """The one other folder beside that of a missing file, and none of the course's, that holds a
    file of this name, "labs/mine"; "" if there is none."""
    folder = path.parent
    ours = {each.name for each in (folder.parents[1] / "phases").iterdir()}
    found = [p.parent for p in folder.parent.glob(f"*/{path.name}") if p.parent.name not in ours]
    return f"{folder.parent.name}/{found[0].name}" if len(found) == 1 else ""


def why_missing(path: Path, shown: str) -> tuple[tuple[str, ...], str]:
    """Of a lab file that is not there: what is known, and the command that brings it back; "" where
    only the skeleton is left."""
    if path.is_symlink():
        return (f"It is a link to {os.readlink(path)}, where nothing is.",), ""
    if not path.parent.exists() and (moved := like_folder(path)):
        folder = Path(shown).parent.as_posix()
        return (f"{folder} is gone; {moved} holds a {path.name}.",), f'mv "{moved}" {folder}'
    other = like_file(path)
    if not other:
        return ("Your backups, if any, lie in .labkit/backups/.",), ""
    beside = f"{Path(shown).parent.as_posix()}/{other}"
    return (f"{beside} may be it, under another name.",), f'mv "{beside}" {shown}'


def like_function(name: str, known: Mapping[str, source.Function], given: str) -> str:
    """Where a missing function may be, as a sentence: moved out of its class, or renamed.

    Args:
        known: the functions of the learner's file.
        given: the text of the reference: what has a name there is no renamed function.
    """
    bare, ours = name.rpartition(".")[2], known.keys() - source.functions(given).keys()
    moved = [other for other in ours if other.rpartition(".")[2] == bare]
    if len(moved) == 1:
        where = moved[0].rpartition(".")[0]
        inside = f"in `class {where}`" if where else "outside of any class"
        return f"`{bare}` in line {known[moved[0]].line} stands {inside}: is it indented as it was?"
    new = {other.lower(): other for other in ours}
    near = get_close_matches(name.lower(), new, n=1)
    if near:
        other = new[near[0]]
        return f"Was it renamed? `{other.rpartition('.')[2]}` in line {known[other].line} is near."
    return "Was it renamed, deleted, or moved by a change of indentation?"


def about_module(message: str, phase: Phase) -> list[str]:
    """What to do about "No module named …"; [] for another message."""
    found = re.search(r"No module named '([\w.]+)'", message)
    if not found:
        return []
    name = found[1]
    if name.partition(".")[0] == "vllm":
        return [UPSTREAM_IMPORT]
    if child.runs_here and name.partition(".")[0] in ("mini_vllm", *NOT_IN_A_TAB):
        return [
            f"{name} cannot be imported in a browser's tab, and no task that runs here needs it. On"
            f" your machine it can: `make lab-{phase.number}` in a checkout of the course."
        ]
    modules = {phase.lab_file(module).stem: module for module in phase.modules}
    if name in modules:
        return [f"{name}.py stands in for {modules[name]}: from {modules[name]} import …"]
    if name.startswith("mini_vllm."):
        known = [p.with_suffix("") for p in (phase.root / "mini_vllm").rglob("*.py")]
        near = get_close_matches(
            name, [".".join(p.relative_to(phase.root).parts) for p in known], n=1
        )
        return [f"The engine has no such module{f'; {near[0]} is near' if near else ''}."]
    if (phase.labs / f"{name}.py").exists():
        held = f"{name}.py lies beside it, but only the course's own files take part when a phase"
        return [f"{held} is judged: write what you need into the file that imports it."]
    return [f"No task needs {name}, and it is not installed here: do without it."]


def imports_vllm(phase: Phase) -> bool:
    texts = [read_python(phase.lab_file(module)) for module in phase.modules]
    return any(re.search(r"^\s*(from|import) vllm\b", text, re.MULTILINE) for text in texts)
