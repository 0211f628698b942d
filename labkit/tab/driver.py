"""What runs in the worker: the learner's files in, the words of `make lab-NN` out.

The page sends one request at a time, as JSON, and hears of each test as it ends, and of each line
of the screen. Nothing here knows of a browser: `tests/labkit/tab` runs it under plain Python, and
there it must say what `make lab-NN` says.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from labkit.course import here, sealed
from labkit.course.console import Screen, told
from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.course.skeleton import skeleton
from labkit.course.state import State
from labkit.inside import child
from labkit.judge import variables
from labkit.judge.public import task_of
from labkit.learner import rounds
from labkit.practice import quiz
from labkit.practice.question import draw, kinds
from labkit.process import here as in_this_process
from labkit.tab import racing, remembering

Post = Callable[[dict[str, Any]], None]
Asked = dict[str, Any]
KEPT = (".labkit/state.json",)
"""Beside the labs, what the page keeps for the learner."""
COUNT = 5
"""Questions of one round."""


class TabScreen(Screen):
    """A screen whose lines the page shows."""

    def __init__(self, post: Post) -> None:
        self.post = post

    def put(self, *parts: tuple[str, str]) -> None:
        self.post({"event": "line", "parts": [list(part) for part in parts]})


class Driver:
    """One course in one worker.

    Args:
        post: told each event, a dict that JSON can hold.
        root: where the bundle lies unpacked.
    """

    def __init__(self, post: Post, root: Path = ROOT) -> None:
        child.runs_here = in_this_process.run
        os.chdir(root)
        self.post, self.root, self.course = post, root, Course(root)
        pack = root / sealed.NAME
        if pack.exists():
            for name, data in sealed.unseal(pack.read_bytes()).items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            pack.unlink()
        for phase in here.tasks():  # they are on a machine: the screen says "hidden not run"
            (root / "tests" / "hidden" / phase).mkdir(parents=True, exist_ok=True)

    def answer(self, request: str) -> str:
        """Do what the page asks for, and give what it is to keep, both as JSON.

        A request names in "do" one of the methods below that begin with an underscore:

        ======  ========================================================================
        run     judge "phase", or its "task"
        hint    the next hint
        reset   the functions of a task, or all files of the phase, as they were given
        trace   the first step in which the learner and the reference differ
        watch   both runs, step by step, for the inspector's page
        race    the learner's schedulers and the course's, under one load
        quiz    questions of the phase with "number", or without one those that are due
        say     what the learner has "said" to the question of a "kind" and a "seed"
        report  progress and the portfolio, of all "labs" that the page has kept
        join    what the course remembers, and what an export has of it in "theirs"
        ======  ========================================================================

        "files" are what the page has kept: {"labs/03-scheduler/scheduler.py": text}. The answer
        {"green": bool, "files": {path: text}} holds those that are to be kept as they are now.
        """
        asked = json.loads(request)
        out, green, mine = TabScreen(self.post), False, [*KEPT]
        try:
            if "phase" in asked:
                phase = asked["phase"] = self.phase(asked["phase"])
                mine += [phase.lab_path(module) for module in phase.modules]
            self._take(mine, asked.get("files", {}))
            green = bool(getattr(self, f"_{asked['do']}")(out, asked))
        except (ValueError, OSError, SyntaxError, ImportError) as error:
            out.line(f"✗ {told(error)}", "red")
        return json.dumps({"green": green, "files": self._kept(mine)})

    def phase(self, name: str) -> Phase:
        """A phase with those of its tasks that can run here; the notebook stays on a machine."""
        phase = self.course.phase(name)
        names = here.tasks().get(phase.slug, ())
        exercises = tuple(task for task in phase.exercises if task.id in names)
        return replace(phase, exercises=exercises, notebook="")

    def _run(self, out: Screen, asked: Asked) -> bool:
        """Judge a phase, or one task of it."""
        variables.listener = self._hear
        try:
            return rounds.judge_and_show(
                asked["phase"], task=asked.get("task", ""), out=out, keeps=False
            )
        finally:
            variables.listener = None

    def _hear(self, record: dict[str, Any]) -> None:
        """Of the first run of pytest, each test as it comes in. What follows only looks for the
        mistake behind what has failed."""
        if record["event"] == "collected":
            self.post({"event": "check", "id": record["id"], "task": task_of(record["name"]),
                       "title": record["title"], "outcome": "waiting"})  # fmt: skip
        elif record["event"] == "done":
            todo = record.get("error") == "NotImplementedError"
            outcome = "todo" if todo else record["outcome"]
            self.post({"event": "check", "id": record["id"], "outcome": outcome})
        elif record["event"] == "end":
            variables.listener = None

    def _hint(self, out: Screen, asked: Asked) -> None:
        phase, task = asked["phase"], asked.get("task", "")
        exercise = rounds.current_task(phase, task)
        rounds.show_hint(out, phase, exercise, rounds.function_at(phase, exercise), bool(task))

    def _reset(self, out: Screen, asked: Asked) -> None:
        """One task, or all files of the phase; the page keeps what stood there."""
        phase = asked["phase"]
        if asked.get("task"):
            fresh = rounds.reset_task(phase, phase.exercise(asked["task"]))
        else:
            fresh = {phase.lab_file(module): skeleton(phase, module) for module in phase.modules}
        for path, text in fresh.items():
            path.write_text(text, encoding="utf-8")
            out.line(f"restored {path.relative_to(self.root).as_posix()}")

    def _trace(self, out: Screen, asked: Asked) -> bool:
        from labkit.learner import divergence  # it imports the engine: not before it is unsealed

        return not divergence.show(asked["phase"], [], out)

    def _watch(self, out: Screen, asked: Asked) -> None:
        from labkit.tab import stepping

        data = stepping.step_through(asked["phase"], out)
        self.post({"event": "recording", "data": data})

    def _race(self, out: Screen, asked: Asked) -> None:
        racing.race(asked["phase"], out)

    def _quiz(self, out: Screen, asked: Asked) -> None:
        """Questions that the engine can answer here: some need torch."""
        number, state = asked.get("number", ""), State(self.root)
        names = [f"{number}/{name}" for name in kinds(number)] if number else quiz.ripe(state)
        able = [name for name in names if _can_be_asked(name)]
        names = able[:COUNT] if not number else [able[n % len(able)] for n in range(COUNT) if able]
        for kind, seed in quiz.seeds(names, asked["seed"]):
            question = draw(kind, seed)
            self.post({"event": "question", "kind": kind, "seed": seed,
                       "text": question.text, "choices": question.choices})  # fmt: skip
        due = quiz.due(state)
        if number and not names:
            out.line(f"The questions of {number} need torch: make quiz-{number} on your machine.")
        elif not due and not names:
            out.line("Nothing to review yet: answer the questions of a phase first.")
        elif not names:
            out.line(f"Nothing is due. The next question is due on {due[0][0][:16]} UTC.")

    def _say(self, out: Screen, asked: Asked) -> None:
        """Judge an answer and remember it; an empty one skips the question."""
        question, said = draw(asked["kind"], asked["seed"]), asked["said"].strip()
        verdict = "right" if said and question.accepts(said) else "wrong" if said else "skipped"
        if verdict == "right":
            out.line("✓ right", "green")
        else:
            mark = "✗" if said else "…"
            out.line(f"{mark} it is {quiz.shown(question)}. {question.why}", "yellow")
        quiz.remember(State(self.root), asked["kind"], verdict)
        self.post({"event": "verdict", "verdict": verdict})

    def _report(self, out: Screen, asked: Asked) -> None:
        """What `make progress` and `make portfolio` will say where the export is taken in."""
        from labkit.practice import portfolio_page, progress  # with Jinja: not before it is asked

        labs = asked["labs"]
        for phase in map(self.course.phase, here.tasks()):
            for module in phase.modules:
                text = labs.get(phase.lab_path(module)) or skeleton(phase, module)
                phase.lab_file(module).write_text(text, encoding="utf-8", newline="")
        with tempfile.TemporaryDirectory() as fresh:
            state = State(Path(fresh))
            remembering.remember(self.course, state, State(self.root).data)
            progress.show(self.course, state, out)
            page = portfolio_page.page(self.course, state)
        self.post({"event": "portfolio", "page": page})

    def _join(self, out: Screen, asked: Asked) -> None:
        theirs = json.loads(asked["theirs"])
        if not isinstance(theirs, dict):
            raise ValueError("what the export remembers is damaged")
        remembering.remember(self.course, State(self.root), theirs)

    def _take(self, mine: Sequence[str], files: Mapping[str, str]) -> None:
        """Write what the page has kept: lab files of the phase, and what the course remembers.

        Raises:
            ValueError: a file that is neither.
        """
        for name, text in files.items():
            if name not in mine:
                raise ValueError(f"{name} is no file that this page may write")
            path = self.root / PurePosixPath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")

    def _kept(self, mine: Sequence[str]) -> dict[str, str]:
        paths = {name: self.root / name for name in mine}
        return {n: p.read_text(encoding="utf-8") for n, p in paths.items() if p.exists()}


def _can_be_asked(kind: str) -> bool:
    """Whether the engine gives an answer here."""
    try:
        draw(kind, "a try").engine()
    except ImportError:
        return False
    return True
