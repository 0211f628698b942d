"""Write docs/tour.md: a newcomer's first session, with the real screens.

    python -m labkit docs tour

It clones the checkout into a temporary folder, does there what a newcomer does, and records what
the commands print. Only what is committed is seen. Nothing but the path of the folder is changed.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from labkit.course import notebook_source, source
from labkit.course.files import write_text
from labkit.course.manifest import Course, Exercise, Phase
from labkit.course.root import ROOT

HOME = "~/mini_vllm"
MISTAKE = "return status >= RequestStatus.PREEMPTED"
STEP_SECONDS = 300

INTRO = """\
# A tour: your first half hour

A whole session, from a fresh clone to green. Every screen below is what the command printed;
`python -m labkit docs tour` records it anew. Lines that begin with `$` are what you type; a
change with `+` and `-` is what you write in your editor. Times differ from machine to machine.
"""


class Tour:
    """A clone in which commands are run, and the transcript of them.

    Args:
        clone: the folder of the fresh clone.
    """

    def __init__(self, clone: Path) -> None:
        self.clone = clone
        self.phase: Phase = Course(clone).phase("00")
        self.parts = [INTRO]

    def say(self, text: str) -> None:
        """Add prose: paragraphs, wrapped."""
        self.parts.append("\n\n".join(fill(part, 100) for part in text.split("\n\n")) + "\n")

    def type(self, command: str, code: int) -> None:
        """Run a command and record its screen.

        Raises:
            RuntimeError: it ends with another exit code than `code`.
        """
        env = {k: v for k, v in os.environ.items() if k not in ("LAB", "LABKIT_ROOT", "NO_COLOR")}
        env |= {"PYTHON": sys.executable, "COLUMNS": "100", "TERM": "dumb"}
        done = subprocess.run(
            command.split(),
            cwd=self.clone,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_SECONDS,
        )
        if done.returncode != code:
            raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}")
        self.parts.append(f"```\n$ {command}\n{self.neutral(done.stdout).rstrip()}\n```\n")

    def neutral(self, text: str) -> str:
        """The screen with the folder's path shortened, and without trailing spaces."""
        text = text.replace(str(self.clone.resolve()), HOME).replace(str(self.clone), HOME)
        return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)

    def write(self, exercise: Exercise, bodies: dict[str, str], shown: bool = True) -> None:
        """Replace functions of the lab file and record the change, if it is to be shown."""
        path = self.phase.lab_file(exercise.module)
        before = after = path.read_text(encoding="utf-8")
        for name, body in bodies.items():
            after = source.replace_body(after, name, body)
        write_text(path, after)
        if not shown:
            return
        name = self.phase.lab_path(exercise.module)
        lines = list(
            difflib.unified_diff(
                before.splitlines(), after.splitlines(), name, name, n=1, lineterm=""
            )
        )
        kept = [line for line in lines[2:] if not line.startswith("@@")]
        shown_lines = self.neutral("\n".join(kept)).rstrip()
        self.parts.append(f"```diff\n# {name}\n{shown_lines}\n```\n")

    def solve(self, exercise: Exercise, shown: bool = True) -> None:
        """Write the reference's bodies, as a learner who got it right."""
        text = self.phase.reference_file(exercise.module).read_text(encoding="utf-8")
        bodies = {
            name: source.body_text(text, source.find(text, name)) for name in exercise.functions
        }
        self.write(exercise, bodies, shown)

    def answer_notebook(self) -> None:
        """Fill the learner's notebook with the solved cells."""
        book = notebook_source.read(self.phase)
        solved = {
            (cell.tag, cell.task): notebook_source.solved_source(cell)
            for cell in book.cells
            if cell.tag in ("todo", "predict")
        }
        path = self.phase.labs / "lab.ipynb"
        document = json.loads(path.read_text(encoding="utf-8"))
        for cell in document["cells"]:
            tag = (cell["metadata"].get("tags") or [""])[0]
            key = (tag, cell["metadata"].get("task", ""))
            if key in solved:
                cell["source"] = solved[key].splitlines(keepends=True)
        write_text(path, json.dumps(document, indent=1) + "\n")


def walk(tour: Tour) -> None:
    """The session itself."""
    first, *others = tour.phase.exercises
    tour.say("## Red\n\nAfter cloning, one command. You start from red.")
    tour.parts.append(
        f"```\n$ git clone <the address of this repository> mini_vllm\n$ cd {HOME}\n```\n"
    )
    tour.type("make lab-00", 2)
    tour.say(
        "The screen names the file and the line. You open it, read the docstring, and write one"
        " line. Your first try has a small mistake, as first tries have:"
    )
    tour.write(first, {first.functions[0]: MISTAKE})
    tour.type("make lab-00", 2)
    tour.say(
        "Yours stands beside the expected, the mistake is one that the course knows, and the last"
        " line says what to do. A hint would have been one command away:"
    )
    tour.type("make hint-00", 0)
    tour.say("## The first green line")
    tour.solve(first)
    tour.type("make lab-00", 2)
    for exercise in others:
        tour.solve(exercise, shown=False)
    tour.say("## The rest\n\nThe other four tasks go the same way; they are yours. After them:")
    tour.type("make lab-00", 2)
    tour.say(
        "## Green\n\nFour answers in the notebook are missing. `make notebook-00` opens it; an"
        " answer is a line or two, checked at once. After that:"
    )
    tour.answer_notebook()
    tour.type("make lab-00", 0)
    tour.say(
        "## Your module in the engine\n\nNow the whole engine runs with your files inside, beside"
        " the reference, on a real model:"
    )
    tour.type("make run-00", 0)
    tour.type("make progress", 0)


def record() -> str:
    """The page, as a session of today makes it."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "mini_vllm")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        tour = Tour(clone)
        walk(tour)
    return "\n".join(tour.parts)


def renew(check: bool) -> Iterator[str]:
    """Record the tour again. It is old if more than measured numbers differ; with `check` the page
    stays as it is."""
    page = ROOT / "docs" / "tour.md"
    new = record()
    if unmeasured(new) != unmeasured(page.read_text(encoding="utf-8")):
        yield "docs/tour.md"
    if not check:
        write_text(page, new)


def unmeasured(text: str) -> str:
    """The text without what differs from run to run: measured numbers, the spaces before them, and
    the time of day."""
    return re.sub(r" +", " ", re.sub(r"\d+\.\d+|\b\d\d:\d\d\b", "0", text))
