"""A pytest plugin: one JSON line a test, a time limit for each, and what a failing function
returned.

Loaded by `labkit.judge.public` with `-p labkit.judge.pytest_report`; the file and the limit come in
the environment. A test that runs beyond its limit is interrupted where it stands, so the line of an
endless loop is known.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Any

import pytest

from labkit.inside import alarm, child
from labkit.inside.alarm import EndlessLoop, message_of, shorten
from labkit.inside.basic import is_busy
from labkit.judge import variables
from labkit.judge.caught import watching
from labkit.judge.difference import first_difference
from labkit.judge.given import case_of, given
from labkit.judge.return_types import wrong_return
from labkit.judge.similar_names import meant
from labkit.judge.variables import KEPT, REPORT, SECONDS, WATCH
from labkit.process import reach
from labkit.testing import Divergence

MAX_HANGS = 3
IMPORT_SECONDS = 20.0
"""Computing time for all that is imported before the first test: torch takes three of them."""
NEXT_SECONDS = 1.0
"""For further tests of a task of which one did not end: it is red already."""
LOOK_SECONDS = 1.0
"""For a failed test's second run, which looks for a wrong type: it comes early, or not at all."""
MAX_TEXT = 4000


class Reporter:
    """Writes the lines; knows how many tests hung."""

    def __init__(self, path: str, seconds: float) -> None:
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as pytest
        self.seconds, self.hangs = seconds, 0
        self.exitstatus: int | None = None
        self.watched: dict[str, dict[str, str]] = json.loads(os.environ.get(WATCH, "{}"))
        self.extra: dict[str, dict[str, Any]] = {}
        self.looked_at: set[str] = set()
        self.endless: set[str] = set()
        """Tasks of which a test did not end."""
        self.shared: set[str] = set()
        """Functions entered between tests: each test may depend on them."""

    def write(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        if variables.listener:
            variables.listener(record)

    @pytest.hookimpl(trylast=True)  # after all that leave tests out
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = os.environ.get(KEPT, "").replace(".", "_").split(",")
        prefixes = tuple(f"test_{task}_" for task in kept if task)
        items[:] = [item for item in items if not item.name.startswith(prefixes or "/")]
        items.sort(key=_place)
        for item in items:
            doc = getattr(getattr(item, "obj", None), "__doc__", None) or ""
            title = " ".join(doc.strip().partition("\n\n")[0].split()) or item.name
            self.write({"event": "collected", "id": item.nodeid, "name": item.name, "title": title})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(
                {"event": "broken", "id": report.nodeid, "text": str(report.longrepr)[-MAX_TEXT:]}
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        begin = time.perf_counter()
        self.shared |= reach.taken()
        known = _task(item) in self.endless
        alarm.arm(min(self.seconds, NEXT_SECONDS) if known else self.seconds)
        try:
            return (yield)
        except BaseException as error:
            stood = alarm.interrupted()
            alarm.arm(0)
            inner = _inside_of_a_kernel(error)
            way = _frames(error) + (_frames(inner) if inner is not error else [])
            self.extra[item.nodeid] = _describe(inner, way)
            if not isinstance(error, Divergence):
                self.extra[item.nodeid]["given"] = given(error, self.watched)
                parameters = getattr(getattr(item, "callspec", None), "params", {})
                self.extra[item.nodeid]["case"] = case_of(parameters)
            if stood and not isinstance(error, EndlessLoop):  # an event loop has kept it
                self.extra[item.nodeid] = {"error": "EndlessLoop", "frames": _without_ours(stood)}
            if stood or isinstance(error, EndlessLoop):
                self.hangs += 1
                self.endless.add(_task(item))
            elif self._ends_the_tests(item, error):
                raise RuntimeError("a test was to end here, or all of them") from None
            elif self._worth_a_second_run(item, error):
                alarm.arm(min(self.seconds, LOOK_SECONDS))
                self._look_again(item)
            raise
        finally:
            alarm.arm(0)
            record = self.extra.setdefault(item.nodeid, {})
            record["seconds"] = time.perf_counter() - begin
            record["entered"] = sorted(reach.taken())

    def _ends_the_tests(self, item: pytest.Item, error: BaseException) -> bool:
        """Whether the learner's file has raised what pytest takes for a wish: to leave this test
        out, or to end the run. It is a failure like any other."""
        wishes = pytest.skip.Exception | pytest.exit.Exception | KeyboardInterrupt
        files = [file for file, *_ in self.extra[item.nodeid]["frames"]]
        return isinstance(error, wishes) and bool(self.watched.keys() & {*files[-1:]})

    def _worth_a_second_run(self, item: pytest.Item, error: BaseException) -> bool:
        """Once a task: the first failure is the one that the screen explains."""
        task = _task(item)
        silent = NotImplementedError | MemoryError | RecursionError
        if not self.watched or isinstance(error, silent) or task in self.looked_at:
            return False
        self.looked_at.add(task)
        return True

    def _look_again(self, item: pytest.Item) -> None:
        """Run it a second time: what was returned that should not be, and what was raised in the
        learner's files where the traceback does not lead there."""
        record = self.extra[item.nodeid]
        with watching(self.watched) as raised:
            record["returned"] = wrong_return(item, self.watched)
        if raised and not any(file in self.watched for file, *_ in record["frames"]):
            record["caught"] = raised[0]
            record["frames"] += raised[0]["frames"]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        record: dict[str, Any] = {
            "event": "done",
            "id": report.nodeid,
            "outcome": report.outcome,
            "when": report.when,
            "properties": dict(report.user_properties),
        }
        if report.failed and report.when != "call":
            record["message"] = str(report.longrepr)[-MAX_TEXT:]
        printed = _own_frames(report.capstdout + report.capstderr, self.watched)
        record["printed_lines"] = printed.count("\n")
        record["printed"] = printed[:MAX_TEXT]
        self.write(record | self.extra.pop(report.nodeid, {}))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, nodeid: str
    ) -> None:
        """That a coroutine was never awaited is told when the test is over, and never by it."""
        if re.fullmatch("coroutine '.+' was never awaited", str(warning_message.message)):
            at = (warning_message.filename, warning_message.lineno)
            self.write({"event": "not awaited", "id": nodeid, "at": at})

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if self.hangs >= MAX_HANGS:
            item.session.shouldstop = f"{MAX_HANGS} tests did not end"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.exitstatus = int(exitstatus)
        busy = threading.active_count() > 1 and is_busy()
        entered = sorted(self.shared | reach.taken())
        self.write({"event": "end", "entered": entered, "busy": busy})

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self.exitstatus is not None and not child.runs_here:
            # else it ends by an error, which is to be seen
            alarm.leave(self.exitstatus)


def _task(item: pytest.Item) -> str:
    """ "test_03_2" of "test_03_2_budget"."""
    return "_".join(item.name.split("_")[:3])


def _place(item: pytest.Item) -> list[int]:
    """Task 2 before task 10, which the names of files do not do: a test that does not end keeps
    none from being run that stands above it on the screen."""
    return [int(part) for part in _task(item).split("_")[1:] if part.isdigit()]


def _inside_of_a_kernel(error: BaseException) -> BaseException:
    """What Triton's interpreter has met in a kernel, whose traceback has the kernel's line; a hole
    that was reached, and any other error, is told as it is."""
    wraps = type(error).__name__ == "InterpreterError" and "TODO" not in str(error)
    return error.__cause__ if wraps and error.__cause__ else error


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    """(file, line, function) of the traceback, without pytest's and our own frames."""
    found, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append((code.co_filename, trace.tb_lineno, code.co_qualname))
        trace = trace.tb_next
    if isinstance(error, RecursionError) and [f[2] for f in found[-2:]] == [found[-1][2]] * 2:
        found.pop()  # the call that was too many stands at its first line
    return _without_ours(found)


def _without_ours(frames: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Those that are neither pytest's nor ours; of a deep recursion the first and last twenty."""
    ours = str(Path(__file__).parents[1])
    found = [f for f in frames if "site-packages" not in f[0] and not f[0].startswith(ours)]
    return found if len(found) <= 40 else found[:20] + found[-20:]


def _own_frames(printed: str, files: Collection[str]) -> str:
    """What was printed, its tracebacks with the lines of these files alone: a process that ends by
    an exception prints all that Python did to start it."""
    kept, is_foreign = [], False
    for line in printed.splitlines(keepends=True):
        if line.startswith('  File "'):
            is_foreign = line.split('"')[1] not in files
        elif not line.startswith("    "):  # the code of a frame stands below it
            is_foreign = False
        if not is_foreign:
            kept.append(line)
    return "".join(kept)


def _describe(error: BaseException, frames: list[tuple[str, int, str]]) -> dict[str, Any]:
    described: dict[str, Any] = {"error": type(error).__name__, "frames": frames}
    if isinstance(error, Divergence):
        described |= {
            "at": error.at,
            "yours": shorten(_visible(error.yours), 400),
            "expected": shorten(_visible(error.expected), 400),
            "differs": first_difference(error.yours, error.expected),
            "note": error.note,
            "types": [type(error.yours).__name__, type(error.expected).__name__],
            "state": {name: shorten(_visible(value), 200) for name, value in error.state.items()},
        }
    described |= {"message": shorten(message_of(error)), "meant": meant(error)}
    return described


def _visible(value: Any) -> Any:
    """A text that is nothing, or begins or ends with blanks, in quotes: else it cannot be seen."""
    return repr(value) if type(value) is str and value != (value.strip() or None) else value


def pytest_load_initial_conftests() -> None:
    """Until the tests are loaded, look for no garbage: torch makes a million objects when it is
    imported, all of them stay, and to go through them again and again takes a tenth of the time.

    A loop at the top of the learner's file would never end, so the alarm is set.
    """
    gc.disable()
    if REPORT in os.environ:
        alarm.install()
        alarm.arm(IMPORT_SECONDS)


def pytest_collection_finish() -> None:
    alarm.arm(0)
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(REPORT)
    if path is None:
        return
    reach.asking()
    sys.path.insert(0, str(Path.cwd()))
    config.pluginmanager.register(
        Reporter(path, float(os.environ.get(SECONDS, "5"))), "labkit-report"
    )
