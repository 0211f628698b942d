"""The course's command line: one table of commands, each imported only when it is called.

Add a command with one line in `COMMANDS`. A target is either

* `module:attribute`, where the attribute is a function with Typer annotations, a `typer.Typer`
  app, or a function that takes a list of strings (marked with `argv=True`), or
* `-m module words...`, which runs that module as `python -m` would.

`needs` names the groups of packages from `pyproject.toml` that the command uses. Before a command
runs, `bootstrap.enter` finds an interpreter that has them, and sets one up where there is none.
This file imports the standard library only, so that `--help` is instant on a bare Python.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from labkit.course.remedies import remedy
from labkit.course.root import ROOT
from labkit.setup import bootstrap, slips
from labkit.setup.requirements import DEFAULT_GROUPS, SetupError

ENGINE = ("engine",)
COURSE = ("engine", "course")
SERVE = ("engine", "serve", "structured")
DEV = DEFAULT_GROUPS
VLLM = ("engine", "course", "serve", "structured", "vision", "maintain")
"""What importing vLLM's own Python files takes."""
INTERRUPTED = 130
"""Exit code, by custom."""
AUTHORS = "Maintain"
"""The section that `--help` leaves out."""


@dataclass(frozen=True)
class Command:
    """One row of the table: where the code is, what it is for, which packages it needs."""

    target: str
    help: str
    needs: tuple[str, ...] = COURSE
    section: str = "Learn"
    argv: bool = False


COMMANDS: dict[str, Command] = {
    # Start
    "setup": Command("labkit.setup.bootstrap:main", "install what is needed", (), "Start", True),
    "doctor": Command(
        "labkit.setup.doctor:main", "check this machine line by line", (), "Start", True
    ),
    "demo": Command("-m mini_vllm demo", "watch the engine answer", ENGINE, "Start"),
    "chat": Command("-m mini_vllm chat smollm2", "talk to a public model", ENGINE, "Start"),
    # Learn
    "lab": Command("labkit.learner.commands:lab", "judge your answers of one phase"),
    "watch": Command("labkit.learner.commands:watch", "judge again at every save", DEV),
    "hint": Command("labkit.learner.commands:hint", "the next hint of a phase"),
    "diff": Command(
        "labkit.learner.commands:diff", "compare with the solution, function by function", DEV
    ),
    "reset": Command("labkit.learner.commands:reset", "restore a skeleton, keeping a backup", DEV),
    "undo": Command("labkit.learner.commands:undo", "bring the last backup back", DEV),
    "progress": Command("labkit.practice.progress:progress", "everything done so far"),
    "run": Command("labkit.learner.commands:run", "run the engine with your modules in it"),
    "trace-diff": Command(
        "labkit.learner.commands:trace_diff", "first step where you and the reference differ"
    ),
    "read": Command("labkit.tab.cli:read", "read a phase beside vLLM's source"),
    "book": Command("labkit.tab.cli:book", "build the whole course as a site"),
    "hunt": Command("labkit.practice.hunt_command:main", "find a bug that an engine really had"),
    "change": Command(
        "labkit.practice.change_command:main", "a requirement changes; change your module"
    ),
    "quiz": Command("labkit.practice.quiz_command:quiz", "predict what the engine does"),
    "dot-product": Command(
        "labkit.practice.dot_product:main", "judge a C++ loop by its counted instructions"
    ),
    "interview": Command(
        "labkit.practice.interview:main", "questions with a clock, judged by yourself"
    ),
    "maintain": Command(
        "labkit.maintain.command:main", "mend a bug of the real vLLM, in the real tree", VLLM
    ),
    "portfolio": Command("labkit.practice.portfolio:main", "one page about your engine"),
    "review": Command("labkit.practice.quiz_command:review", "questions that are due again"),
    "notebook": Command("labkit.learner.commands:notebook", "open a phase's notebook", DEV),
    "import": Command("labkit.tab.taking:take", "take in work from the book's pages"),
    "update": Command("labkit.learner.commands:update", "merge new skeletons into your labs", DEV),
    # Look inside
    "trace": Command(
        "labkit.trace.cli:app", "replay a schedule and print every step", COURSE, "Look inside"
    ),
    "inspect": Command(
        "labkit.inspector.cli:inspect", "look into a recorded timeline", COURSE, "Look inside"
    ),
    "serve": Command("-m mini_vllm serve", "serve a model over HTTP", SERVE, "Look inside"),
    "arena": Command(
        "labkit.arena.cli:app", "schedulers race on the same load", COURSE, "Look inside"
    ),
    "bench": Command(
        "-m benchmarks.bench_offline", "measure the engine's throughput", ENGINE, "Look inside"
    ),
    "bench-scheduler": Command(
        "-m benchmarks.bench_scheduler", "measure one schedule() call", ENGINE, "Look inside"
    ),
    "async-scheduling": Command(
        "-m benchmarks.async_scheduling",
        "results one step late, the same tokens",
        ENGINE,
        "Look inside",
    ),
    "profile": Command(
        "labkit.learner.commands:profile",
        "where a run's time goes, as a flame graph of host and device",
        COURSE,
        "Look inside",
    ),
    "tune": Command(
        "-m benchmarks.tune",
        "the engine's settings for a promise, searched on this machine",
        ENGINE,
        "Look inside",
    ),
    "families": Command(
        "-m benchmarks.families",
        "is every family's output that of transformers?",
        COURSE,
        "Look inside",
    ),
    "real-vllm": Command(
        "labkit.trace.real_vllm:main",
        "one prompt in the real vLLM, beside ours",
        COURSE,
        "Look inside",
    ),
    "upstream": Command(
        "labkit.citations.upstream:main",
        "fetch and show the pinned vLLM source",
        COURSE,
        "Look inside",
        True,
    ),
    # Judge
    "check-kernel": Command(
        "labkit.kernels.command:main", "judge one Triton kernel", COURSE, "Judge"
    ),
    "gpu-report": Command(
        "labkit.gpu.report:main", "measure the engine on this GPU", (), "Judge", True
    ),
    "grade": Command(
        "labkit.grading.grade:main", "run the hidden suite of a phase", COURSE, "Judge"
    ),
    "grade-submission": Command(
        "labkit.grading.submission:main", "grade one handed-in folder", COURSE, "Judge"
    ),
    "grade-class": Command(
        "labkit.grading.batch:main", "grade a folder of submissions", COURSE, "Judge"
    ),
    "grade-practice": Command(
        "labkit.practice.class_practice:main",
        "grade one student's hunts and change requests",
        COURSE,
        "Judge",
    ),
    "export": Command(
        "labkit.grading.exports:main", "render a result for another system", COURSE, "Judge"
    ),
    "receipt": Command(
        "labkit.grading.receipt:app", "sign what was passed, check what was signed", COURSE, "Judge"
    ),
    "maintain-exam": Command(
        "labkit.maintain.exam:app", "draw and grade the exam on the real vLLM", VLLM, "Judge"
    ),
    "viva": Command("labkit.practice.viva:main", "questions for an oral examination"),
    "student-dist": Command(
        "labkit.grading.student_dist:main", "the tree to hand out", DEV, "Judge"
    ),
    "unseal": Command(
        "labkit.grading.student_dist:open_pack", "open the hidden pack", DEV, "Judge"
    ),
    # Keep the house
    "test": Command(
        "labkit.quality.checks:test", "every check of the project", DEV, "Maintain", True
    ),
    "lint": Command(
        "labkit.quality.checks:lint", "the checks that run no code", DEV, "Maintain", True
    ),
    "conformance": Command(
        "labkit.trace.conformance:main", "compare with vLLM's own scheduler", DEV, "Maintain", True
    ),
    "cite-check": Command(
        "labkit.citations:main", "check every citation of vLLM", COURSE, "Maintain", True
    ),
    "cite-drift": Command(
        "labkit.citations:drift", "cited lines that changed upstream", COURSE, "Maintain", True
    ),
    "follow": Command(
        "labkit.quality.follow:main", "look at the newest vLLM", DEV, "Maintain", True
    ),
    "sync": Command("labkit.course.sync:main", "generate skeletons and notebooks", DEV, "Maintain"),
    "matrix": Command(
        "labkit.quality.matrix:main", "skeletons red, reference green", DEV, "Maintain"
    ),
    "mutants": Command(
        "labkit.quality.mutants:main", "named mistakes must be caught", DEV, "Maintain"
    ),
    "history": Command(
        "labkit.quality.history:main", "historic bugs must be caught", DEV, "Maintain"
    ),
    "suite-quality": Command(
        "labkit.quality.survey:main", "measure what the hidden suites catch", DEV, "Maintain"
    ),
    "kernel-corpus": Command(
        "labkit.kernels.proof.corpus_command:main",
        "what the kernel checker must tell apart",
        COURSE,
        "Maintain",
    ),
    "pitfalls": Command(
        "labkit.quality.pitfalls:main", "warnings must have a public test", DEV, "Maintain"
    ),
    "prove": Command("labkit.quality.prove:main", "all that proves a phase", DEV, "Maintain"),
    "new-phase": Command(
        "labkit.quality.new_phase:main", "files for a phase that is to come", DEV, "Maintain"
    ),
    "docs": Command(
        "labkit.quality.docs:main", "make the documents' tour, pictures, figures", DEV, "Maintain"
    ),
    "rooms": Command(
        "labkit.quality.rooms:main", "count floors, arrows and import circles", COURSE, "Maintain"
    ),
    "clean": Command(
        "labkit.quality.checks:clean", "remove caches and built files", (), "Maintain", True
    ),
    "meant": Command("labkit.cli:meant", "run or name what a slip means", (), "Maintain", True),
    "help": Command("labkit.cli:make_help", "list the make targets", (), "Maintain", True),
}


def main(argv: list[str]) -> int:
    """Run one command and return its exit code. 2 means: asked for something that is not there, or
    that the system refuses."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows no ✓ shows a question mark
            stream.reconfigure(errors="replace")
    if not argv or argv[0] in ("-h", "--help"):
        print(usage("--all" in argv))
        return 0
    name, rest = argv[0], argv[1:]
    if rest and re.fullmatch(r"-+\d.*", rest[0]):  # "make lab--03": a number is no option
        rest[0] = rest[0].lstrip("-")
    command = COMMANDS.get(name)
    words = slips.meant(name)[0] if command is None else []
    if words and words[0] in COMMANDS:  # "lab-03", as it is typed for make
        return main([*words, *rest])
    if command is None:
        near = get_close_matches(name, COMMANDS, n=1)
        meant = f"did you mean `{near[0]}`? " if near else ""
        print(f"labkit: no command `{name}`; {meant}`python -m labkit --help --all` lists all.")
        return 2
    if not is_built(command):
        print(f"labkit: `{name}` is not built yet ({command.help}).")
        return 2
    try:
        bootstrap.require_python(argv)
        bootstrap.enter(command.needs, argv)
        return call(name, command, rest)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(remedy(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return INTERRUPTED


def meant(argv: list[str]) -> int:
    """What `make` does with a word that no target is called: run what it spells, or say what is
    near and exit with 2."""
    words, says = slips.meant(argv[0] if argv else "")
    if words:
        return main([*words, *argv[1:]])
    print(says, file=sys.stderr)
    return 2


def is_built(command: Command) -> bool:
    """Whether the module a command points at exists; its packages may still be missing."""
    module = command.target.removeprefix("-m ").split(" ")[0].split(":")[0]
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def call(name: str, command: Command, rest: list[str]) -> int:
    """Import the command's target and call it with the remaining words."""
    if command.target.startswith("-m "):
        module, *words = command.target.split(" ")[1:]
        return run_module(module, [*words, *rest])
    module, attribute = command.target.split(":")
    function: Callable[..., Any] | None = getattr(importlib.import_module(module), attribute, None)
    if function is None:
        print(f"labkit: `{name}` is not built yet ({command.help}).")
        return 2
    if command.argv:
        return int(function(rest) or 0)
    return call_typer(name, function, rest)


def call_typer(name: str, function: Callable[..., Any], rest: list[str]) -> int:
    """Give a Typer app, or a function with Typer annotations, its arguments."""
    import typer

    app = function
    if not isinstance(app, typer.Typer):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(function)
    try:
        done = app(args=rest, prog_name=f"python -m labkit {name}", standalone_mode=False)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except typer.Abort:
        print("\nInterrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        said = getattr(error, "format_message", None)  # click's, of words that no command takes
        if said is None:
            raise
        if shown := said().rstrip("."):  # nothing: it has shown its help
            print(f"{shown}; `python -m labkit {name} --help` lists what it takes", file=sys.stderr)
        return 2
    if done == INTERRUPTED:  # Typer has caught it, and says nothing
        print("\nInterrupted.", file=sys.stderr)
    return done if isinstance(done, int) else 0


def run_module(module: str, words: list[str]) -> int:
    """Run a module as `python -m module words...` would, in this process."""
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return stop.code or 0
    return 0


def usage(everything: bool = False) -> str:
    """The text of `python -m labkit --help`: what learners and instructors type, and with `--all`
    also what keeps the course in order."""
    lines = ["usage: python -m labkit COMMAND ...      (COMMAND --help tells more)"]
    for section in dict.fromkeys(command.section for command in COMMANDS.values()):
        if section == AUTHORS and not everything:
            continue
        lines += ["", section]
        rows = [(n, c) for n, c in COMMANDS.items() if c.section == section]
        for name, command in rows:
            note = "" if is_built(command) else "  (not built yet)"
            lines.append(f"  {name:<16} {command.help}{note}")
    if not everything:
        lines += ["", "`--help --all` lists the commands for authors, too."]
    return "\n".join(lines)


def make_help(argv: list[str]) -> int:
    """Print the Makefile's targets from their `##` comments; `##@` starts a section."""
    print("usage: make TARGET      NN is a phase: 00, 01, 02 ...")
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if line.startswith("##@"):
            print(f"\n{line[3:].strip()}")
        elif ":" in line and "## " in line and not line.startswith(("\t", "#")):
            target, text = line.split(":")[0].strip(), line.split("## ", 1)[1]
            print(f"  {target.replace('%', 'NN'):<16} {text}")
    return 0
