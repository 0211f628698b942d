"""`labkit rooms`: how the house is built, counted from the imports.

A room is what lies directly below a package: a folder, or a file. Every import counts, also one
inside a function or for types only. A floor is a set of rooms that need only the floors below.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from labkit.course.console import polite
from labkit.course.root import ROOT
from labkit.quality import route

PACKAGES = ("labkit", "mini_vllm")
Graph = dict[str, set[str]]
"""Name -> the names that it imports."""


def imports_of(folder: Path) -> Graph:
    """Module -> the modules of the same package that it imports; `folder` holds the package."""
    files = {_dotted(path, folder): path for path in sorted(folder.rglob("*.py"))}
    graph: Graph = {module: set() for module in files}
    for module, path in files.items():
        for name in _named(ast.parse(path.read_bytes()), module, path.name == "__init__.py"):
            found = name if name in files else name.rpartition(".")[0]
            if found in files and found != module:
                graph[module].add(found)
    return graph


def _dotted(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _named(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """What the import statements of a module name; it may be a module, or a name in one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: len(module.split(".")) - node.level + is_package]
            stem = ".".join([*base, *filter(None, [node.module])]) if node.level else node.module
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def between_rooms(modules: Graph) -> Graph:
    """The same graph, with the modules of a room as one."""
    rooms: Graph = {_room(module): set() for module in modules if "." in module}
    for module, targets in modules.items():
        for target in targets:
            if {_room(module), _room(target)} <= rooms.keys() and _room(module) != _room(target):
                rooms[_room(module)].add(_room(target))
    return rooms


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def reachable(graph: Graph) -> Graph:
    """Name -> all that it needs, directly or through others."""
    found = {name: set(targets) for name, targets in graph.items()}
    for middle in graph:
        for name in graph:
            if middle in found[name]:
                found[name] |= found[middle]
    return found


def circles(graph: Graph) -> list[list[str]]:
    """The groups in which each needs each other."""
    needs = reachable(graph)
    groups = {
        tuple(sorted({name} | {other for other in needs[name] if name in needs[other]}))
        for name in graph
        if name in needs[name]
    }
    return [list(group) for group in sorted(groups)]


def floors(graph: Graph) -> list[list[str]]:
    """The names in floors, the lowest first; a circle is one room."""
    needs, left = reachable(graph), set(graph)
    found = []
    while left:
        floor = sorted(
            name for name in left if not {o for o in needs[name] & left if name not in needs[o]}
        )
        found.append(floor)
        left -= set(floor)
    return found


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank line, no comment, no docstring."""
    text = path.read_text(encoding="utf-8")
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped | {tokenize.ENDMARKER}:
            held |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            held -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


@dataclass(frozen=True)
class House:
    """What one package looks like."""

    package: str
    modules: Graph
    longest: str
    longest_lines: int

    def __str__(self) -> str:
        rooms = between_rooms(self.modules)
        arrows = sum(map(len, rooms.values()))
        rounds = len(circles(rooms)), len(circles(self.modules))
        return (
            f"{self.package:<10} {len(rooms):3} rooms {len(floors(rooms)):3} floors {arrows:4}"
            f" arrows {rounds[0]:2} circles of rooms {rounds[1]:2} of modules;"
            f" longest file {self.longest_lines} code lines ({self.longest})"
        )


def look(root: Path) -> list[House]:
    """The packages of a checkout."""
    houses = []
    for package in PACKAGES:
        folder = root / package
        longest = max(folder.rglob("*.py"), key=code_lines)
        name = longest.relative_to(root).as_posix()
        houses.append(House(package, imports_of(folder), name, code_lines(longest)))
    return houses


def at(commit: str, folder: Path) -> Path:
    """The packages as they were at a commit, unpacked below `folder`.

    Raises:
        ValueError: this checkout has no such commit.
    """
    command = ["git", "-C", str(ROOT), "archive", commit, *PACKAGES]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        why = done.stderr.decode().strip()
        raise ValueError(f"{commit}: {why}; give a commit of this checkout")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def show(houses: list[House], all_floors: bool) -> None:
    for house in houses:
        print(house)
        if not all_floors:
            continue
        for number, floor in reversed(list(enumerate(floors(between_rooms(house.modules)), 1))):
            print(f"  floor {number}  {'  '.join(room.rpartition('.')[2] for room in floor)}")


@polite
def main(
    commit: str = typer.Option("", "--at", help="a commit; default: the files as they are now"),
    all_floors: bool = typer.Option(False, "--floors", help="name the rooms on each floor"),
    the_route: bool = typer.Option(False, "--route", help="run a request; count what it passes"),
) -> None:
    """Count floors, arrows between rooms and import circles; exit code 1 if there is a circle."""
    if the_route:
        print(route.show(route.of_one_request()))
        raise typer.Exit(0)
    with tempfile.TemporaryDirectory() as folder:
        houses = look(at(commit, Path(folder)) if commit else ROOT)
    show(houses, all_floors)
    found = [circle for house in houses for circle in circles(house.modules)]
    for circle in found:
        print(f"circle: {', '.join(circle)}")
    raise typer.Exit(1 if found else 0)
