"""`labkit new-phase NN MODULE:FUNCTION ...`: the files of a phase that is to be written.

The phase must be planned, and its functions must stand in the engine: the engine comes first. What
is written is valid: the manifest, the skeleton, the notebook and the chapters' names all check. But
every test ends in "WRITE", so the phase stays red until they are written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from labkit.course import source, sync
from labkit.course.arguments import PHASE
from labkit.course.console import course, polite
from labkit.course.files import write_text
from labkit.course.manifest import Course, Phase

TEMPLATES = Path(__file__).with_name("phase_template")


@dataclass(frozen=True)
class Task:
    """One exercise to be: a function of a module of the engine."""

    id: str
    module: str
    function: str

    @property
    def number(self) -> str:
        return self.id.partition(".")[2]

    @property
    def name(self) -> str:
        """What a test file and a heading call it."""
        return self.function.rpartition(".")[2]

    @property
    def imported(self) -> str:
        """What an import takes from the module: the function or its class."""
        return self.function.partition(".")[0]

    @property
    def file(self) -> str:
        return f"{self.module.rpartition('.')[2]}.py"


def tasks_of(phase: Phase, words: Sequence[str]) -> list[Task]:
    """The tasks that "module:function" words name.

    Raises:
        ValueError: the engine has no such function, or another phase has the module.
    """
    taken = {m: other.slug for other in Course(phase.root).phases for m in other.modules}
    tasks = []
    for number, word in enumerate(words, 1):
        module, _, function = word.partition(":")
        path = phase.reference_file(module)
        if not path.is_file():
            raise ValueError(f"{word}: there is no {path.relative_to(phase.root)}; write it first")
        if module in taken:
            raise ValueError(f"{word}: {module} belongs to phase {taken[module]}; take another")
        source.find(path.read_text(encoding="utf-8"), function, module)
        tasks.append(Task(f"{phase.number}.{number}", module, function))
    return tasks


def files_of(phase: Phase, tasks: Sequence[Task]) -> dict[Path, str]:
    """Path -> text of each file of the phase."""
    loader = FileSystemLoader(TEMPLATES)
    templates = Environment(
        loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    words = {
        "phase": phase,
        "tasks": tasks,
        "modules": json.dumps(list(dict.fromkeys(task.module for task in tasks))),
        "prerequisites": json.dumps(list(phase.prerequisites)),
        "lines": 5 * len(tasks),
    }

    def text(name: str, **more: object) -> str:
        return templates.get_template(f"{name}.j2").render(**words, **more)

    chapters = ("00-guide.md", "01-deep-dive.md", "02-mini-build.md", "03-labs.md")
    names = ("phase.toml", "hints.toml", "notebook.py", *chapters)
    found = {phase.folder / name: text(name) for name in names}
    for task in tasks:
        path = phase.public_tests / f"test_{task.number}_{task.name.strip('_')}.py"
        found[path] = text("test_public.py", task=task)
    found[phase.hidden_tests / "test_promises.py"] = text("test_hidden.py")
    mutants = phase.root / "tests" / "corpora" / "mutants" / f"{phase.slug}.toml"
    found[mutants] = text("mutants.toml")
    found[phase.solutions / "WALKTHROUGH.md"] = text("WALKTHROUGH.md")
    return found


def write(phase: Phase, words: Sequence[str]) -> list[Path]:
    """Write the phase's files and all that is generated from them; the paths.

    Raises:
        ValueError: it is no planned phase, or one of the files is there already.
    """
    if phase.ready:
        raise ValueError(f"phase {phase.slug} is there already; edit its files")
    if not words:
        raise ValueError("say which functions learners write: mini_vllm.package.module:function")
    files = files_of(phase, tasks_of(phase, words))
    there = [path for path in files if path.exists() and path.name != "phase.toml"]
    if there:
        raise ValueError(f"{there[0].relative_to(phase.root)} is there already; move it away first")
    for path, text in files.items():
        write_text(path, text)
    made = sync.sync(Course(phase.root))
    return [*files, *(phase.root / change.path for change in made)]


@polite
def main(
    phase: str = PHASE,
    functions: list[str] = typer.Argument(None, help="mini_vllm.core.scheduler:Scheduler.schedule"),
) -> None:
    """Write the files of a planned phase: red, complete, and to be filled in."""
    chosen = course().phase(phase)
    for path in write(chosen, functions or ()):
        print(f"written {path.relative_to(chosen.root).as_posix()}")
    print(f"Now write what says WRITE, then: python -m labkit prove {chosen.number}")
