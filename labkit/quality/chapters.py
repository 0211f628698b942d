"""Chapters must not lie: every file, command and method that they name exists.

Names in fenced examples are checked too, except a link's text: a link to upstream names upstream's
own symbols. A command counts only in code, since prose may make room. Placeholders (NN, *, <...>,
...) are left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from labkit.course.manifest import Phase

NAMES = ("00-guide.md", "01-deep-dive.md", "02-mini-build.md", "03-labs.md")
_FOLDERS = r"(?:mini_vllm|labs|phases|tests|solutions|labkit|upstream_notes|benchmarks)"
_PATH = re.compile(rf"(?<![\w/.-]){_FOLDERS}/[\w./*<>…-]*")
_MAKE = re.compile(
    r"(?:^|[;&|] *)(?:\$ )?(?:[A-Z]+=\S+ )*make ([a-z][a-z-]*?)(?:-(?:\d\d|NN))?(?![\w-])"
)
_FENCE = re.compile(r" *(```|~~~)")
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\([^)]*\)")
_METHOD = re.compile(r"^([A-Z]\w*)\.(\w+)(?:\(.*\))?$")


def check(phase: Phase) -> list[str]:
    """What is wrong with the chapters, the walkthrough and the manifest's anchors; [] = nothing."""
    problems = []
    paths = [phase.folder / name for name in NAMES] + sorted(phase.folder.glob("0[4-9]-*.md"))
    paths.append(phase.solutions / "WALKTHROUGH.md")
    classes = _classes(phase)
    targets = _make_targets(phase.root)
    for path in paths:
        shown = path.relative_to(phase.root).as_posix()
        if not path.exists():
            problems.append(f"{shown} does not exist")
            continue
        text = path.read_text(encoding="utf-8")
        for line, problem in _check_text(text, phase.root, classes, targets):
            problems.append(f"{shown}:{line}: {problem}")
    return [*problems, *_check_anchors(phase)]


def _check_text(
    text: str, root: Path, classes: dict[str, set[str]], targets: set[str]
) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, raw in enumerate(text.splitlines(), 1):
        fenced ^= bool(_FENCE.match(raw))
        line = _LINK.sub("", raw)
        for match in _PATH.finditer(line):
            name = match[0].rstrip(".")
            if not re.search(r"NN|[*<>…]", name) and not (root / name).exists():
                yield number, f"there is no {name}"
        for code in [line.strip()] if fenced else _CODE.findall(line):
            for target in _MAKE.findall(code):
                if targets and target not in targets:
                    yield number, f"there is no make target {target}"
        for code in _CODE.findall(line):
            method = _METHOD.match(code)
            if method and method[1] in classes and method[2] not in classes[method[1]]:
                yield number, f"{method[1]} has no {method[2]}"


def _make_targets(root: Path) -> set[str]:
    """Targets of the Makefile; of `lab-%` and `lab-03` the part before."""
    path = root / "Makefile"
    if not path.exists():
        return set()
    text = path.read_text(encoding="utf-8")
    lines = re.findall(r"^([a-z][\w% -]*):(?!=)", text, re.MULTILINE)
    names = [name for line in lines for name in line.split()]
    phony = re.findall(r"^\.PHONY: *(.*)$", text, re.MULTILINE)
    names += [name for line in phony for name in line.split()]
    return {re.sub(r"-(%|\d\d)$", "", name) for name in names}


def _classes(phase: Phase) -> dict[str, set[str]]:
    """Class -> names of its methods and attributes, for the classes of the phase's modules.

    A class with a base that is no class of these modules is left out, unless the base is a
    well-known one that adds nothing which chapters name.
    """
    found: dict[str, set[str]] = {}
    for module in phase.modules:
        tree = ast.parse(phase.reference_file(module).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = {"name", "value"} | _members(node)
    return found


def _members(node: ast.ClassDef) -> set[str]:
    names: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(child.name)
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            names.add(child.attr)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
        elif isinstance(statement, ast.Assign):
            names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return names


def anchors(text: str) -> set[str]:
    """Anchors of a chapter: headings as GitHub names them, "task-2" for "## Task 2 …", explicit
    ids."""
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(slug)
        task = re.match(r"task (\d+)\b", heading.lower())
        if task:
            found.add(f"task-{task[1]}")
    return found


def _check_anchors(phase: Phase) -> Iterator[str] | list[str]:
    problems = []
    for exercise in phase.exercises:
        name, _, anchor = exercise.read.partition("#")
        path = phase.folder / name
        where = f"phases/{phase.slug}/phase.toml: task {exercise.id}"
        if not path.exists():
            problems.append(f"{where}: read names {name}, which does not exist")
            continue
        text = path.read_text(encoding="utf-8")
        if anchor and anchor not in anchors(text):
            problems.append(f"{where}: {name} has no heading or id {anchor!r}")
        for function in exercise.functions:
            if function.rpartition(".")[2] not in text:
                problems.append(f"{where}: {name} never names {function}")
    return problems
