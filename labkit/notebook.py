"""What a phase's notebook imports: checks that answer at once, and predictions that are scored."""

from __future__ import annotations

import html
import linecache
import logging
import math
import os
import re
import subprocess
import symtable
import sys
import traceback
from numbers import Integral, Real
from types import FrameType
from typing import Any

from labkit.course import notebook_source
from labkit.course.borrow import borrow, in_lab
from labkit.course.console import some
from labkit.course.manifest import Course, Phase
from labkit.course.root import find_root
from labkit.course.state import State
from labkit.inside.alarm import shorten
from labkit.process import overlay
from labkit.setup.requirements import installed, missing, requirements
from labkit.testing import same

_started: list[Phase] = []
_borrowed: list[str] = []
"""Functions of the learner that are still open, and run with the reference's bodies."""


class CheckFailed(AssertionError):
    """An answer is wrong; the message says what was expected and why."""

    def _render_traceback_(self) -> list[str]:
        """Jupyter shows the message alone: the traceback would only show the check."""
        return [f"✗ {self}"]


def start(number: str, lab: str | None = None) -> None:
    """Begin a notebook: put the learner's modules of this phase into the engine. What is not
    written yet is borrowed from the reference, so that the notebook runs from the first day.

    Args:
        number: the phase, "03".
        lab: "labs" or "reference"; default: the LAB variable, else "labs".

    Raises:
        ImportError: the phase's modules are imported already; restart the kernel.
    """
    course = Course(find_root())
    phase = course.phase(number)
    if "google.colab" in sys.modules:
        _install_missing()
    mapping, borrowed = borrow(phase, overlay.mapping_for([phase], lab))
    overlay.install(mapping)
    os.environ.update(overlay.environment(course.root, mapping) | dict(phase.environment))
    _started[:], _borrowed[:] = [phase], borrowed
    whose = "your files in " + f"labs/{phase.slug}" if mapping else "the reference"
    print(f"Phase {phase.number}, {phase.title}: its modules come from {whose}.")
    if borrowed:
        print(f"Not written yet, so borrowed from the reference: {some(borrowed)}.")
    _show_in_one_line(bool(mapping))


class _Cells:
    """The cells of a running notebook: which one runs, and which did not come to their end."""

    def __init__(self) -> None:
        cells = notebook_source.read(_started[0]).cells if _started else ()
        given = (c for c in cells if c.kind == "code" and c.tag != "todo")
        self.given = {notebook_source.student_source(cell).strip() for cell in given}
        self.waiting = notebook_source.experiments(_started[0]) if _started else {}
        self.running, self.text, self.stopped = "", "", set[str]()
        self.looks = False
        self.logged = set[str]()

    def begins(self, info: Any) -> None:
        self._look_before_it_shows()
        self.logged.clear()
        self.text = info.raw_cell.strip()
        self.running = getattr(info, "cell_id", None) or self.text

    def held_back(self, lines: list[str]) -> list[str]:
        """A cell as it runs: one that measures what a prediction asks for waits for the guess, also
        where the whole notebook is run at once."""
        task = self.waiting.get("".join(lines).strip(), "")
        if not task or State(_started[0].root).get("predictions", task):
            return lines
        said = f"TODO {task}: write your guess in its cell above; then this one measures"
        return [f"raise NotImplementedError({said!r})\n"]

    def ended(self, result: Any) -> None:
        if not result.success:
            return
        self.stopped.discard(self.running)
        own = self.text not in self.given and "predict(" not in self.text
        if self.running == self.text and own:
            self.stopped.clear()  # a front end without ids: it may be the one that was mended

    def leave_out_empty_pictures(self) -> None:
        """Close what a given cell has drawn of nothing, since a cell above made nothing."""
        plots: Any = sys.modules.get("matplotlib.pyplot")
        for number in plots.get_fignums() if plots and self.stopped else ():
            axes = [axes for axes in plots.figure(number).axes if axes.axison]
            if any(not abs(axes.dataLim.get_points()).max() < math.inf for axes in axes):
                plots.close(number)
                print("○ an empty picture is left out: a cell above did not come to its end")

    def _look_before_it_shows(self) -> None:
        """Pictures are shown by `plt.show()`, or when a cell has ended."""
        plots: Any = sys.modules.get("matplotlib.pyplot")
        if not plots or self.looks:
            return
        self.looks, show = True, plots.show

        def showing(*args: Any, **more: Any) -> Any:
            self.leave_out_empty_pictures()
            for number in plots.get_fignums():  # or IPython prints what fails, in full, by itself
                plots.figure(number).draw_without_rendering()
            return show(*args, **more)

        plots.show = showing

    def lacks_what_others_make(self, error: Exception) -> bool:
        """Whether a given cell fails in its own lines while another has not come to its end."""
        cells = [
            frame for frame, _ in traceback.walk_tb(error.__traceback__) if _is_of_a_cell(frame)
        ]
        own = len({frame.f_code.co_filename for frame in cells}) == 1
        others = self.stopped - {self.running}
        return self.text in self.given and bool(others) and own and not _in_labs(error)


def _show_in_one_line(mine: bool) -> None:
    """In Jupyter, show as one line, without a traceback, what is not written yet, and what only
    cells above can make; in a few lines what comes of a learner's functions. A cell that fails
    leaves no picture half drawn, and none measures what is still to be predicted.

    Args:
        mine: the learner's modules run, not the reference.
    """
    if "IPython" not in sys.modules:
        return
    from IPython.core.getipython import get_ipython

    cells = _Cells()

    def show(shell: Any, kind: Any, error: Any, trace: Any, tb_offset: Any = None) -> None:
        if plots := sys.modules.get("matplotlib.pyplot"):
            plots.close("all")
        line = _one_line(error)
        if not line and not isinstance(error, CheckFailed) and cells.lacks_what_others_make(error):
            said = shorten(f"{type(error).__name__}: {error}", 120)
            cause = "a cell above did not come to its end: run it first"
            if cells.logged:
                cause = "an error is logged above: begin there"
            line = f"○ {cause} ({said})"
        if not line and (place := _in_labs(error)):
            line = _of_a_lab(error, *place)
        elif not line and mine and cells.text in cells.given and not isinstance(error, CheckFailed):
            line = _of_a_given_cell(error, cells.given)
        if line:
            sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace  # for %tb
        if line:
            cells.stopped.add(cells.running)
            shell._showtraceback(kind, error, [line])
        else:
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)

    if shell := get_ipython():
        shell.set_custom_exc((Exception,), show)
        shell.input_transformers_cleanup.append(cells.held_back)
        shell.events.register("pre_run_cell", cells.begins)
        shell.events.register("post_run_cell", cells.ended)
        shell.events.register("post_execute", cells.leave_out_empty_pictures)
        _log_in_one_line(cells.logged)


def _in_labs(error: BaseException) -> tuple[str, str] | None:
    """Where in the learner's files an exception came up, "labs/…/queue.py:9", and the function;
    None if its way did not lead through them."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        for phase in _started:
            if place := in_lab(phase.root, frame.f_code.co_filename, line):
                shown = place[0].relative_to(phase.root).as_posix()
                return f"{shown}:{place[1]}", frame.f_code.co_qualname.partition(".<locals>")[0]
    return None


def _of_a_lab(error: BaseException, place: str, function: str) -> str:
    """An exception from the learner's files: what, where, and from which line of the cell."""
    whose = ", borrowed: what a function of yours gave does not suit it" * (function in _borrowed)
    said = [_said(error), f"  in {function}, {place}{whose}"]
    said += _cell_line(error, "called by line")
    number = _started[0].number
    return "\n".join([*said, f"  `make lab-{number}` judges it; `%tb` shows the whole traceback"])


def _of_a_given_cell(error: BaseException, given: set[str]) -> str:
    """An exception in a cell that runs well with the reference: what, where, and whose fault it may
    be: a function of the learner's files, or of a cell that the learner has written."""
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__) if _is_of_a_cell(f)]
    inner = frames[-1].f_code if frames else None
    if inner and "".join(linecache.getlines(inner.co_filename)).strip() not in given:
        said = [_said(error), *_cell_line(error, f"in {inner.co_name}, line", "its cell")]
        return "\n".join([*said, "  `%tb` shows the whole traceback"])
    number = _started[0].number
    whose = "  With the reference it runs: one of your functions may answer otherwise;"
    tail = f"{whose} `make lab-{number}` judges them, `%tb` shows the whole traceback"
    return "\n".join([_said(error), *_cell_line(error, "in line"), tail])


def _said(error: BaseException) -> str:
    return f"✗ {shorten(f'{type(error).__name__}: {error}'.removesuffix(': '), 600)}"


def _cell_line(error: BaseException, how: str, which: str = "this cell") -> list[str]:
    """The innermost line of a cell that an exception came through."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _is_of_a_cell(frame):
            code = linecache.getline(frame.f_code.co_filename, line).strip()
            return [f"  {how} {line} of {which}: {shorten(code, 100)}"]
    return []


def _log_in_one_line(logged: set[str]) -> None:
    """What the engine itself meets of the learner's, such as an open answer in a hook or a function
    that raises, is one line of its log, too, and once a cell: those in `logged` were written."""
    made = logging.getLogRecordFactory()

    def make(*args: Any, **more: Any) -> logging.LogRecord:
        record = made(*args, **more)
        error = record.exc_info[1] if record.exc_info else None
        place = _in_labs(error) if error else None
        said = f"{type(error).__name__}: {error} ({place[0]})" if place else ""
        if said := str(error) if _is_todo(error) else said:
            record.msg, record.args = f"{record.getMessage()}: {shorten(said, 400)}", ()
            if record.msg in logged:
                record.levelno = logging.NOTSET  # no handler takes it
            logged.add(record.msg)
            record.exc_info = None
        return record

    logging.setLogRecordFactory(make)


def _is_todo(error: BaseException | None) -> bool:
    return isinstance(error, NotImplementedError) and str(error).startswith("TODO")


def _one_line(error: Exception) -> str:
    """What an error is about, if one line says it; else ""."""
    if _is_todo(error):
        return f"○ {error}"
    if isinstance(error, NameError) and _raised_in_a_cell(error) and error.name in _made_by_cells():
        return (
            f"○ `{error.name}` is made by a cell above that did not come to its end: run it first"
        )
    return ""


def _is_of_a_cell(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "__main__"


def _raised_in_a_cell(error: Exception) -> bool:
    """Whether it came up in the notebook's own code, not in a module."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return _is_of_a_cell(frame)


def _made_by_cells() -> set[str]:
    """The names that the notebook's cells make or import, outside of functions."""
    cells = notebook_source.read(_started[0]).cells if _started else ()
    tables = [symtable.symtable(c.source, c.id, "exec") for c in cells if c.kind == "code"]
    symbols = [name for t in tables for name in t.get_symbols()]
    return {name.get_name() for name in symbols if name.is_assigned() or name.is_imported()}


def _install_missing() -> None:
    """On Colab: install the packages of `pyproject.toml` that the machine lacks, or has too old."""
    wanted = requirements(("engine", "course"))
    lacking = missing(wanted, installed([need.name for need in wanted]))
    if lacking:
        words = [need.text for need in lacking]
        print(f"installing {', '.join(words)}")
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *words], check=True)


def _reject_todo(value: Any) -> None:
    if value is ...:
        raise NotImplementedError("TODO: this answer is still `...`; write it in the cell above")


def check(yours: Any, expected: Any, why: str = "") -> None:
    """Say at once whether an answer is right.

    Raises:
        CheckFailed: it is not; the message shows both values and `why`.
        NotImplementedError: the answer is still `...`.
    """
    _reject_todo(yours)
    yours = _python(yours)
    if not same(yours, expected):
        raise CheckFailed(
            f"yours is {yours!r}, expected is {expected!r}" + (f": {why}" if why else "")
        )
    print("✓ right")


def _python(value: Any) -> Any:
    """Python's own value for numpy's, or for a tensor's that holds a single one."""
    return value.item() if getattr(value, "shape", None) == () else value


def _number(value: Any) -> float | None:
    """Python's number for one of any kind; None for what is no number."""
    value = _python(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def check_close(yours: float, expected: float, why: str = "", rel: float = 1e-6) -> None:
    """As `check`, for numbers that may differ by rounding: |yours - expected| <= rel *
    |expected|."""
    _reject_todo(yours)
    number = _number(yours)
    if number is None or not math.isclose(number, expected, rel_tol=rel):
        raise CheckFailed(
            f"yours is {yours!r}, expected is about {expected:.6g}: {why}".rstrip(": ")
        )
    print("✓ right")


def check_that(condition: bool, why: str) -> None:
    """Fail with `why` unless the condition holds."""
    _reject_todo(condition)
    if not condition:
        raise CheckFailed(why)
    print("✓ right")


def _prediction(name: str) -> tuple[State, str]:
    phase = _started[0]
    return State(phase.root), f"{name[0]}{phase.number}.{name[1:]}"


def predict(name: str, guess: float, question: str, *more: str) -> float:
    """Write down a guess before the measurement.

    Raises:
        NotImplementedError: the guess is still `...`.
        CheckFailed: it is no number, or one with a comma, which Python takes for two (`more`).
    """
    state, key = _prediction(name)
    if more:
        point = f"{guess}.{question}"
        raise CheckFailed(f"a number has a point, not a comma: write {point}: {more[-1]}")
    if guess is ...:
        raise NotImplementedError(f"TODO {key}: write your guess instead of `...`: {question}")
    number = _number(guess)
    if number is None or not abs(number) < 1e300:
        raise CheckFailed(f"your guess is {_as_a_number(guess)}: {question}")
    state.put("predictions", key, {"question": question, "guess": number})
    print(f"{question}\nYour guess: {number:g}")
    return number


def _as_a_number(guess: object) -> str:
    """What a guess is that is no number, and how to write it."""
    if not isinstance(guess, str):
        return f"{shorten(guess, 80)}; write it as a number, such as 0.5"
    numbers = re.findall(r"\d+(?:\.\d+)?", guess)
    such = numbers[0] if len(numbers) == 1 else "0.5"
    if "%" in guess and len(numbers) == 1:
        such = f"{float(such) / 100:g} (or {such}, if percent are asked)"
    return (
        f"{shorten(repr(guess), 80)}; write it as a number, such as {such}, without quotes or unit"
    )


def score(name: str, actual: float) -> float:
    """Compare a guess with what was measured; returns the factor between them (1.0 = exact)."""
    state, key = _prediction(name)
    record = state.get("predictions", key)
    if record is None:
        raise CheckFailed(f"there is no prediction {name}; run its cell first")
    guess = record["guess"]
    state.put("predictions", key, record | {"actual": actual})
    if guess == actual:
        factor = 1.0
    elif guess * actual <= 0:
        factor = math.inf
    else:
        factor = max(guess / actual, actual / guess)
    close = factor <= 1.25
    verdict = "exact" if factor == 1 else "close" if close else "not close; why?"
    print(f"guess {guess:g}, measured {actual:g}: {verdict}")
    if not close:
        _show_reason(notebook_source.reason(notebook_source.read(_started[0]), key))
    return factor


def _show_reason(text: str) -> None:
    """In a notebook a line that opens, elsewhere the text."""
    shell = sys.modules.get("IPython")
    if shell is None or shell.get_ipython() is None:
        print(text)
        return
    page = f"<details><summary>open the reason</summary>{html.escape(text)}</details>"
    shell.display.display({"text/html": page, "text/plain": text}, raw=True)
