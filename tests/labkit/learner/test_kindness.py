"""What goes wrong around the code, and what the learner reads then: each screen leads back."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from labkit.cli import main
from labkit.course import files, source, sync
from labkit.course.console import polite, task_in
from labkit.course.manifest import Course, ManifestError
from labkit.course.root import find_root
from labkit.course.state import State
from labkit.grading import likeness
from labkit.judge import public, suspects
from labkit.judge.declared import declared_otherwise
from labkit.judge.mistakes import Mutant
from labkit.learner import commands as loop
from labkit.notebook import CheckFailed, check, check_close, predict
from labkit.setup import bootstrap
from tests.labkit.learner.test_commands import CATCHES_EVERYTHING, says, screen
from tests.labkit.toy_course import lab, rewrite, solve

ROOT = find_root()


def shown(course: Course, **options: object) -> str:
    """The screen of `make lab-00 ARGS=...`."""
    out = io.StringIO()
    with redirect_stdout(out):
        loop.judge_and_show(course.phase("0"), **options)  # type: ignore[arg-type]
    return out.getvalue()


# ---------------------------------------------------------------- files as editors leave them
@pytest.mark.parametrize(
    "data",
    [b"\xef\xbb\xbfx = 'caf\xc3\xa9'\r\n", b"# -*- coding: latin-1 -*-\nx = 'caf\xe9'\n"],
    ids=["a mark at the beginning", "declared latin-1"],
)
def test_a_file_in_any_encoding_that_python_reads_is_read(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(data)
    assert "x = 'café'\n" in files.read_python(file)


def test_a_mark_at_the_beginning_of_a_lab_file_changes_nothing(toy: Course) -> None:
    solve(toy)
    lab(toy).write_bytes(b"\xef\xbb\xbf" + lab(toy).read_bytes())
    says(screen(toy)[0], "✓ 00.1", "✓ 00.2", "public 5/5")


def test_bytes_that_are_no_text_are_named_with_their_line(toy: Course) -> None:
    lab(toy).write_bytes(lab(toy).read_bytes() + b"# caf\xe9\n")
    says(screen(toy)[0], "is not Python yet", "save the file as UTF-8")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: b"# coding: rot13\n" + text.encode(),
        lambda text: b"# coding: idna\n" + text.encode() + b"# caf\xe9\n",
        lambda text: b"# coding: klingon\n" + text.encode(),
        lambda text: text.encode() + b"\0\n",
    ],
    ids=["UTF-16", "UTF-16 without a mark", "no code of texts", "idna", "unknown", "a zero byte"],
)
def test_a_file_that_no_python_reads_is_named_with_the_way_out(
    toy: Course, change: Callable[[str], bytes]
) -> None:
    """As Notepad and PowerShell write it, or with a declaration that was a joke."""
    lab(toy).write_bytes(change(lab(toy).read_text()))
    says(screen(toy)[0], "is not Python yet", "save the file as UTF-8")


@pytest.mark.parametrize("length", [6000, 20_000])  # a RecursionError, a MemoryError of 3.11
def test_a_file_that_is_nested_too_deeply_is_told_so(toy: Course, length: int) -> None:
    with lab(toy).open("a", encoding="utf-8") as file:
        file.write("if 0:\n    x = 0\n" + "elif 0:\n    x = 0\n" * length)
    text = " ".join(screen(toy)[0].split())
    assert "is no Python that can be read" in text and "thousands of `elif`" in text
    assert "mend it, then make lab-00" in text and "Traceback" not in text


@pytest.mark.parametrize(
    "command",
    ["trace-diff 0", "run 0", "run --labs 0 -- -m toy"],
    ids=["trace-diff", "run", "run --labs"],
)
@pytest.mark.parametrize(
    ("left", "said"),
    [("def f(:", "is not Python yet"), ("del_clamp", "has no clamp any more"), ("", "is missing")],
)
def test_what_is_no_python_is_told_before_the_engine_meets_it(
    toy: Course, command: str, left: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`trace-diff` gave a difference in step 0, at the line of the file that imports it."""
    if left == "del_clamp":
        lab(toy).write_text(lab(toy).read_text().replace("def clamp(", "def clamped("))
    elif left:
        lab(toy).write_text(f"{lab(toy).read_text()}\n{left}\n")
    else:
        lab(toy).unlink()
    assert main(command.split()) == 1
    text = capsys.readouterr().out
    says(text, "✗ labs/00-toy/fifo.py", said, "next: ")
    assert "first difference" not in text and "not run" not in text


def test_marks_of_a_merge_come_before_everything_else(toy: Course) -> None:
    solve(toy)
    text = lab(toy).read_text()
    mine, theirs = "<<<<<<< yours\n    x = (\n", "=======\n    y = 1\n>>>>>>> new-skeleton\n"
    lab(toy).write_text(text.replace("    # both bounds count\n", mine + theirs))
    text, green = screen(toy)
    assert not green
    says(text, "labs/00-toy/fifo.py:10 holds an unresolved merge", "make undo")
    assert "SyntaxError" not in text
    with pytest.raises(source.UnresolvedMerge, match="line 10 holds an unresolved merge"):
        source.functions(lab(toy).read_text())
    found = likeness.compare(toy.phase("0"), "toy.fifo", lab(toy).parent)
    assert found["broken"].startswith("line 10 holds an unresolved merge")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = " + "(" * 100_000 + ")" * 100_000, "too many nested parentheses"),
        ("x = " + "1+" * 5_000_000 + "1", "costs Python too much to read"),
        ("x = " + "-" * 1_000_000 + "1", "nested too deeply"),
        ("a\n" * 5_000_000, "costs Python too much to read"),
        ("def f(): pass\n" * 70_000, "costs Python too much to read"),
        ("x = [" + "a " + "for a in b " * 90_000 + "]", "costs Python too much to read"),
        (
            "".join(f"{' ' * n}try: 1\n{' ' * n}finally:\n" for n in range(19)) + " " * 19 + "1",
            "costs Python too much to read",
        ),
        (
            f"x = {{{', '.join(str(n * (2**61 - 1)) for n in range(40_000))}}}",
            "costs Python too much to read",
        ),
    ],
    ids=["brackets", "sum", "minus", "10 MB", "one name", "comprehension", "finally", "one hash"],
)
def test_a_text_that_costs_the_parser_too_much_is_named_and_bounded(
    toy: Course, text: str, said: str
) -> None:
    """Ten thousand functions of one name take half a minute, `finally` in `finally` a gigabyte."""
    solve(toy)
    lab(toy).write_text(f"{lab(toy).read_text()}\n\n{text}\n")
    begin = time.monotonic()
    shown, green = screen(toy)
    assert not green
    says(shown, "labs/00-toy/fifo.py", said, "next: ", "make lab-00")
    assert max(map(len, shown.splitlines())) < 400, "the file's own line"
    assert time.monotonic() - begin < 60


def test_what_the_judge_itself_weighs_is_not_counted(toy: Course) -> None:
    """On Linux `ru_maxrss` of a child begins with what its parent had."""
    solve(toy)
    ballast = b"x" * (600 << 20)
    shown, _ = screen(toy)
    assert ballast and "costs Python too much" not in shown


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        (
            "<<<<<<< Updated upstream\nA = 1\n=======\nA = 2\n>>>>>>> Stashed changes\n",
            "stands what was committed here, from there to >>>>>>> what you had stashed.",
        ),
        (
            "<<<<<<< HEAD\nA = 1\n||||||| 1a2b\nA = 0\n=======\nA = 2\n>>>>>>> main~1\n",
            "From ||||||| to ======= stands what both began with: delete it.",
        ),
        ("<<<<<<< HEAD\r\nA = 1\r\n=======\r\n>>>>>>> x\r\n", "git calls 'x'"),
        (">>>>>>> x\n", "alone: delete this line"),
        ("=======\n", "alone: delete this line"),
        ("||||||| 1a2b\n", "alone: delete this line"),
        ("<<<<<<< HEAD\n", "alone: delete this line"),
    ],
)
def test_marks_of_any_merge_are_said_by_their_names(toy: Course, marks: str, said: str) -> None:
    solve(toy)
    lab(toy).write_text(marks + lab(toy).read_text(), newline="")
    text, _ = screen(toy)
    says(text, "labs/00-toy/fifo.py:1 holds an unresolved merge", said)
    assert "make undo" not in text, "no update has written these"


def test_a_line_below_a_title_is_no_mark(toy: Course) -> None:
    solve(toy)
    lab(toy).write_text(lab(toy).read_text() + '\nNOTE = """My code\n=======\n"""\n')
    assert "✓ 00.1" in screen(toy)[0]


def test_a_function_that_was_made_async_is_told_that_nothing_in_it_runs(toy: Course) -> None:
    text = lab(toy).read_text(encoding="utf-8")
    lab(toy).write_text(text.replace("def clamp(", "async def clamp("), encoding="utf-8")
    rewrite(toy, "clamp", "return max(min(wanted, budget, limit), 0)")
    text = " ".join(screen(toy)[0].split())
    assert "clamp is an `async def`: a call only makes a coroutine" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(self, number: int)", "(self, number, more)", "it is called with (self, number)."),
        ("    def drain", "    @staticmethod\n    def drain", "has a `@staticmethod` that was not"),
        ("        return taken", "        yield taken", "a call only makes a generator"),
        ("    @property\n", "", "Fifo.head has lost its `@property`: put it back"),
        (
            "        return taken\n",
            "        return taken\n\n    def drain(self, number):\n        return [99]\n",
            "Fifo.drain is defined twice; the one in line 40 counts.",
        ),
    ],
)
def test_what_was_changed_about_a_functions_first_lines_is_told(
    toy: Course, old: str, new: str, said: str
) -> None:
    solve(toy)
    text = lab(toy).read_text(encoding="utf-8")
    assert old in text
    lab(toy).write_text(text.replace(old, new), encoding="utf-8")
    shown = " ".join(screen(toy)[0].split())
    assert said in shown
    function = "Fifo.head" if "head" in said else "Fifo.drain"
    assert f"({function}), then make lab-00" in shown, "the next step is that function alone"


@pytest.mark.parametrize(
    "new",
    [
        "def drain(self, number, /)",
        "def drain(self, number: int, more: int = 1)",
        "def drain(me, *_)",
    ],
    ids=["by place", "a default", "any"],
)
def test_first_lines_that_take_every_call_are_the_learners_own(toy: Course, new: str) -> None:
    solve(toy)
    text = lab(toy).read_text(encoding="utf-8").replace("def drain(self, number: int)", new)
    lab(toy).write_text(text, encoding="utf-8")
    phase = toy.phase("00")
    said = declared_otherwise(phase, phase.exercise("2"))
    assert len(said) == ("me" in new), said  # another name for `self` is reported, too


def test_upstreams_import_gets_a_hint(toy: Course) -> None:
    text = lab(toy).read_text()
    there = "from collections import deque\n"
    lab(toy).write_text(text.replace(there, there + "from vllm.v1.request import Request\n"))
    says(screen(toy)[0], "No module named 'vllm'", "not needed", "mini_vllm")


def two_files(course: Course) -> None:
    """`toy.clock` imports `toy.fifo`, and both are the learner's: the tests import the first."""
    clock = '"""Counts."""\n\nfrom toy.fifo import clamp\n\nLIMIT = clamp(1, 2, 3)\n'
    for folder in ("toy", "labs/00-toy"):
        (course.root / folder / "clock.py").write_text(clock)
    manifest = course.root / "phases/00-toy/phase.toml"
    text = manifest.read_text()
    manifest.write_text(text.replace('["toy.fifo"]', '["toy.fifo", "toy.clock"]'))
    tests = course.root / "tests/public/00-toy/test_toy.py"
    tests.write_text(tests.read_text().replace("from toy.fifo", "import toy.clock\nfrom toy.fifo"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import numpi", "No module named 'numpi'"),
        ("from fifo import Fifo", "fifo.py stands in for toy.fifo: from toy.fifo import"),
        ("from toy.clock import LIMIT", "Two files import each other"),
        ("LIMIT = THE_LIMIT", "name 'THE_LIMIT' is not defined"),
        ("raise SystemExit('bye')", "this file ends its process: SystemExit('bye')"),
    ],
)
def test_a_fault_of_a_file_that_another_imports_is_named_in_its_own_line(
    toy: Course, line: str, said: str
) -> None:
    """Not in the line of the importing file, which is right."""
    solve(toy)
    two_files(toy)
    there = "from collections import deque\n"
    lab(toy).write_text(text := lab(toy).read_text().replace(there, there + line + "\n"))
    number = text.splitlines().index(line) + 1
    says(screen(toy)[0], f"labs/00-toy/fifo.py:{number} fails while it is imported", said)


# ---------------------------------------------------------------- what is shown of a failure
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import no_such_pandas", "No task needs no_such_pandas, and it is not installed here"),
        ("from helpers import twice", "helpers.py lies beside it, but only the course's own files"),
        ("import fifo", "fifo.py stands in for toy.fifo: from toy.fifo import"),
        ("import mini_vllm.configs", "The engine has no such module"),
        ("print(input())", "nothing can be typed while tests run"),
    ],
)
def test_what_a_file_cannot_import_is_told_with_the_way_out(
    toy: Course, line: str, said: str
) -> None:
    solve(toy)
    lab(toy).with_name("helpers.py").write_text("twice = 2\n")
    there = "from collections import deque\n"
    lab(toy).write_text(lab(toy).read_text().replace(there, f"{there}{line}\n"))
    says(screen(toy)[0], "fifo.py:6 fails while it is imported", said)


@pytest.mark.parametrize("name", ["Fifo.py", "fifo (1).py", "fifo.py.txt", "fifo_old.py"])
def test_a_lab_file_under_another_name_is_found(toy: Course, name: str) -> None:
    lab(toy).rename(lab(toy).with_name(name))
    says(screen(toy)[0], "fifo.py is missing", f'mv "labs/00-toy/{name}" labs/00-toy/fifo.py')


def test_a_lab_folder_under_another_name_is_found(toy: Course) -> None:
    folder = lab(toy).parent
    folder.rename(folder.with_name("my toy"))
    said = ("labs/00-toy is gone; labs/my toy holds a fifo.py", 'mv "labs/my toy" labs/00-toy')
    says(screen(toy)[0], *said)
    shutil.copytree(folder.with_name("my toy"), folder.with_name("another"))
    assert "mv " not in screen(toy)[0], "of two it is not clear which"


def test_of_several_files_under_other_names_none_is_chosen(toy: Course) -> None:
    lab(toy).rename(lab(toy).with_name("fifo1.py"))
    assert "mv " not in screen(toy)[0]
    for name in ("fifo-a.py", "fifo-b.py"):
        lab(toy).with_name(name).touch()
    says(screen(toy)[0], "fifo.py is missing", "make reset-00 puts the skeleton back")
    lab(toy).symlink_to("nowhere.py")
    says(screen(toy)[0], "It is a link to nowhere.py, where nothing is.")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def drain(", "def drains(", "Was it renamed? `drains` in line"),
        ("    def drain(", "def drain(", "`drain` in line"),
        ("def drain(", "def empty_out_all(", "Was it renamed, deleted, or moved"),
    ],
)
def test_a_function_that_is_gone_is_looked_for_and_brought_back_alone(
    toy: Course, old: str, new: str, said: str
) -> None:
    solve(toy)
    before = lab(toy).read_text()
    head, _, tail = before.rpartition(old)
    lab(toy).write_text(head + new + tail)
    says(screen(toy)[0], "fifo.py has no Fifo.drain any more", said, "make reset-00 TASK=2")
    printed(loop.reset, "00", task="2", notebook_only=False)
    functions = source.functions(lab(toy).read_text())
    assert {"clamp", "Fifo.push", "Fifo.head", "Fifo.drain"} <= functions.keys()
    says(screen(toy)[0], "✓ 00.1", "○ 00.2 Leave in order  (not written yet)")


def test_an_empty_file_is_told_so(toy: Course) -> None:
    lab(toy).write_text("\n")
    says(screen(toy)[0], "fifo.py is empty", "`make undo`, if a backup holds it")


@pytest.mark.parametrize("name", ["clamp", "Fifo.push", "Fifo.__init__"])
def test_a_function_is_put_back_wherever_it_stood(toy: Course, name: str) -> None:
    text = (toy.root / "toy/fifo.py").read_text()
    lost = source.find(text, name)
    lines = source.lines_of(text)
    without = "".join(lines[: lost.first_line - 1] + lines[lost.end_line :])
    assert name not in source.functions(without)
    again = source.put_back(without, name, text)
    assert source.functions(again).keys() == source.functions(text).keys()
    assert source.function_text(again, source.find(again, name)) == source.function_text(text, lost)
    with pytest.raises(source.SourceError, match="no class 'Fifo'"):
        source.put_back("x = 1\n", "Fifo.push", text, "fifo.py")


def test_the_next_step_is_the_given_function_that_was_changed(toy: Course) -> None:
    solve(toy)
    lab(toy).write_text(lab(toy).read_text().replace("self.items.append(item)", "self.itms.push()"))
    text = screen(toy)[0]
    line = lab(toy).read_text().splitlines().index("        self.itms.push()") + 1
    says(text, "has no attribute 'itms'", f"next: edit labs/00-toy/fifo.py:{line} (Fifo.push)")


def test_no_process_is_started_for_a_notebook_in_which_nothing_is_begun(
    toy: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve(toy)
    monkeypatch.setattr(public, "judge_notebook", lambda *_: pytest.fail("it ran"))
    says(shown(toy), "(not answered yet)", "notebook 0/2")
    path = toy.root / "labs/00-toy/lab.ipynb"
    path.write_text(path.read_text().replace("waste = ...", "waste = 15"))
    with pytest.raises(pytest.fail.Exception, match="it ran"):
        shown(toy)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import os; os._exit(0)", "exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("import ctypes; ctypes.string_at(0)", "signal 11"),
    ],
)
def test_code_that_ends_the_process_is_named(toy: Course, line: str, said: str) -> None:
    solve(toy)
    text = lab(toy).read_text()
    lab(toy).write_text(text.replace("    smallest =", f"    {line}\n    smallest ="))
    says(screen(toy)[0], "✗ 00.1", f"here the whole process ended ({said})", "- 00.2")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import pytest; pytest.skip('no')", "Skipped: no"),
        ("import pytest; pytest.exit('no')", "Exit: no"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import sys; sys.stdout.close()", "here the whole process ended"),
    ],
)
def test_code_that_ends_the_tests_and_not_the_process_is_named(
    toy: Course, line: str, said: str
) -> None:
    """The advice was to run the tests again, again and again."""
    solve(toy)
    text = lab(toy).read_text()
    lab(toy).write_text(text.replace("    smallest =", f"    {line}\n    smallest ="))
    text = screen(toy)[0]
    says(text, "✗ 00.1 Clamp", "✗ The budget bounds what fits.", said, "next: edit labs/00-toy")


def test_a_terminal_of_another_encoding_shows_a_screen() -> None:
    words = [sys.executable, "-m", "labkit", "progress"]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "00 Orientation" in done.stdout, done.stderr


@pytest.mark.parametrize("line", ["input('limit? ')", "breakpoint()"])
def test_code_that_reads_the_keyboard_is_told_that_it_cannot(toy: Course, line: str) -> None:
    solve(toy)
    text = lab(toy).read_text()
    lab(toy).write_text(text.replace("    smallest =", f"    {line}\n    smallest ="))
    says(screen(toy)[0], "nothing can be typed while tests run")


def test_a_failure_is_shown_before_the_last_function_is_written(toy: Course) -> None:
    solve(toy, "clamp", "Fifo.head")
    rewrite(toy, "Fifo.head", "return 99")
    text, _ = screen(toy)
    says(text, "✗ 00.2 Leave in order", "Fifo.drain not written", "The head is the oldest item")
    says(text, "(Fifo.head")


def test_every_failure_can_be_shown(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "clamp", "return 12345")
    rewrite(toy, "Fifo.drain", "return [7]")
    assert shown(toy).count("first difference") == 1
    assert shown(toy, every=True).count("first difference") == 2


def test_a_task_judged_alone_is_explained_though_its_tests_come_to_another(toy: Course) -> None:
    """What fails called a function of a task that was not judged: that one was to be explained."""
    solve(toy)
    taken = "taken = [self.items.popleft() for _ in range(min(number, len(self.items)))]"
    rewrite(toy, "Fifo.drain", f"{taken}\nreturn taken if number == 2 else []")
    text = shown(toy, task="2")
    says(text, "✗ 00.2", "first difference: the rest leaves", "yours", "fifo.py")
    assert text.count("make hint-00.2") == 2, "without a number it is the first task's"
    says(printed(loop.hint, "00.2", task="", function=""), "make hint-00.2 shows the next one")


def test_one_task_can_be_judged_alone(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "clamp", "return 12345")
    text = shown(toy, task="2")
    says(text, "✓ 00.2", "public 2/2")
    assert "00.1" not in text.split("next:")[0] and "notebook" not in text.split("next:")[0]
    assert State(toy.root).passed("00-toy") == {"00.2"}, "the others were not judged"


@pytest.mark.parametrize(("error", "found"), [("KernelFault", True), ("ValueError", False)])
def test_the_next_step_is_the_line_that_a_kernel_s_fault_names(
    toy: Course, error: str, found: bool
) -> None:
    """A kernel is judged in a copy: the traceback of its test does not lead to it."""
    solve(toy)
    phase = toy.phase("0")
    line = next(n for n, row in enumerate(lab(toy).read_text().splitlines(), 1) if "drain" in row)
    message = (
        f"probe raises TypeError: a tile is neither true nor false\n  fifo.py:{line}: if tile:"
    )
    test = public.Test("t", "t", "t", "00.2", "failed", detail={"error": error, "message": message})
    place = suspects.place_of_fault(test, phase, phase.exercise("2"))
    expected = ("labs/00-toy/fifo.py", line, "Fifo.drain")
    assert place == (expected if found else None)
    assert suspects.place_of_fault(test, phase, phase.exercise("1")) is None, "another task's"
    if found:  # a known mistake is in a function, the fault in a line of it
        mistake = Mutant("00.2", "leave it", "You leave it.", "toy.fifo", "Fifo.drain", "")
        said = suspects.place_to_edit(phase, phase.exercise("2"), [test], [], mistake)
        assert said == f"labs/00-toy/fifo.py:{line} (Fifo.drain)"


@pytest.mark.parametrize("line", ["while True:\n    pass", "for _ in iter(int, 1):\n    pass"])
def test_a_loop_at_the_top_of_a_file_is_named(toy: Course, line: str) -> None:
    solve(toy)
    there = "from collections import deque\n"
    lab(toy).write_text(lab(toy).read_text().replace(there, f"{there}\n{line}\n"))
    text, _ = screen(toy)
    says(
        text, "does not end while it is imported", "It was stopped at: ", "next: mend labs/00-toy/"
    )
    assert "site-packages" not in text and "importlib" not in text


def test_a_result_that_is_cut_off_is_a_full_disk(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    report.write_text('{"event": "collected"}\n{"event": "do')
    with pytest.raises(OSError, match="what the tests found out is cut off") as refused:
        public._events(report)
    assert refused.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    "said",
    [
        "Tensor on device meta is not on the expected device cpu!",
        "Expected all tensors to be on the same device, but found two: cuda:0 and cpu!",
        "Torch not compiled with CUDA enabled",
    ],
)
def test_a_tensor_that_lies_elsewhere_is_told_where_to_lie(toy: Course, said: str) -> None:
    solve(toy)
    rewrite(toy, "clamp", f"raise RuntimeError({said!r})")
    says(screen(toy)[0], said, "Results stay where their inputs are")


def test_a_refusal_in_words_is_shown_without_its_comparison(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "clamp", "assert False, 'not yet'")
    text = screen(toy)[0]
    assert "not yet" in text and "\n        assert False" not in text


def test_a_long_exception_is_cut(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "clamp", "raise ValueError('x' * 5000)")
    text, _ = screen(toy)
    says(text, "ValueError: xxx", "characters)")
    assert max(map(len, text.splitlines())) < 700


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "class Odd(Exception):\n    __str__ = None\nraise Odd",
            "Odd: <its message cannot be made",
        ),
        ("class Odd(Exception):\n    __str__ = lambda _: 1 / 0\nraise Odd", "ZeroDivisionError>"),
        ("raise NotImplementedError", "NotImplementedError\n"),
    ],
)
def test_an_exception_is_named_whatever_it_says(toy: Course, body: str, said: str) -> None:
    solve(toy)
    rewrite(toy, "clamp", body)
    says(screen(toy)[0], said, "in clamp, labs/00-toy/fifo.py:")


def test_tasks_that_a_loop_kept_from_running_keep_their_points(toy: Course) -> None:
    solve(toy)
    screen(toy)
    assert sorted(State(toy.root).passed("00-toy")) == ["00.1", "00.2"]
    rewrite(toy, "clamp", CATCHES_EVERYTHING)
    says(screen(toy)[0], "✗ 00.1", "- 00.2 Leave in order  (not run: an earlier test did not end)")
    assert list(State(toy.root).passed("00-toy")) == ["00.2"]


def test_a_task_that_stands_first_runs_first_whatever_its_file_is_called(toy: Course) -> None:
    solve(toy)
    tests = toy.root / "tests/public/00-toy"
    text = (tests / "test_toy.py").read_text()
    (tests / "test_10_first_by_name.py").write_text(text.replace("test_00_1_", "ended_"))
    (tests / "test_toy.py").write_text(text.replace("test_00_2_", "ended_"))
    rewrite(toy, "Fifo.drain", CATCHES_EVERYTHING)
    says(screen(toy)[0], "✓ 00.1", "✗ 00.2", "Still running after")


# ---------------------------------------------------------------- there and back again
def printed(command: object, *args: object, **options: object) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        command(*args, **options)  # type: ignore[operator]
    return out.getvalue()


def test_undo_brings_the_last_backup_back_and_can_be_undone(toy: Course) -> None:
    solve(toy)
    mine = lab(toy).read_text()
    says(printed(loop.reset, "00", task="", notebook_only=False), "your version is in", "make undo")
    blank = lab(toy).read_text()
    assert blank != mine
    says(printed(loop.undo, phase=""), "brought back labs/00-toy/fifo.py", "make undo` again")
    assert lab(toy).read_text() == mine
    printed(loop.undo, phase="")
    assert lab(toy).read_text() == blank


def test_after_several_resets_each_phase_can_be_brought_back(toy: Course) -> None:
    """`make undo` twice is a step back and forth: the first of two resets was out of reach."""
    other = toy.root / "labs/01-later/clock.py"
    other.parent.mkdir()
    other.write_text("MINE = 1\n")
    files.backup(toy.root, [other])
    other.write_text("TODO = 1\n")
    solve(toy)
    mine = lab(toy).read_text()
    printed(loop.reset, "00", task="", notebook_only=False)
    text = printed(loop.undo, phase="")
    says(text, "brought back labs/00-toy/fifo.py", "an older backup holds files of labs/01-later:")
    says(text, '`make undo ARGS="01"`')
    says(printed(loop.undo, phase="01"), "brought back labs/01-later/clock.py")
    assert other.read_text() == "MINE = 1\n" and lab(toy).read_text() == mine
    assert "labs/01-later" not in printed(loop.undo, phase="00")


def test_a_folder_that_is_gone_is_restored_whole(toy: Course) -> None:
    (toy.root / "labs/Makefile").write_text("all:\n")
    sync.sync(toy)
    folder = toy.root / "labs/00-toy"
    before = {path.name: path.read_text() for path in folder.iterdir()}
    shutil.rmtree(folder)
    says(printed(loop.reset, "00", task="", notebook_only=False), "restored labs/00-toy/Makefile")
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_undo_passes_over_a_backup_of_what_is_there(toy: Course) -> None:
    """An update that had nothing to do, or was refused, leaves one: the work lies before it."""
    solve(toy)
    mine = lab(toy).read_text()
    printed(loop.reset, "00", task="", notebook_only=False)
    blank = lab(toy).read_text()
    files.backup(toy.root, [lab(toy)])
    says(printed(loop.undo, phase=""), "brought back labs/00-toy/fifo.py")
    assert lab(toy).read_text() == mine
    printed(loop.undo, phase="")
    assert lab(toy).read_text() == blank


def test_where_every_backup_is_what_is_there_nothing_is_undone(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    files.backup(toy.root, [lab(toy)])
    with pytest.raises(typer.Exit):
        loop.undo(phase="")
    assert "nothing to undo" in capsys.readouterr().out


def test_without_a_backup_undo_says_so(toy: Course, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        loop.undo(phase="")
    assert "there is no backup" in capsys.readouterr().out


def test_a_reset_writes_all_files_or_none(
    toy: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(toy)
    before = {path: path.read_text() for path in (toy.root / "labs").rglob("*.*")}
    real = files._write_beside

    def full(path: Path, content: str | bytes) -> Path:
        if path.suffix != ".py":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, content)

    monkeypatch.setattr(files, "_write_beside", full)
    with pytest.raises(typer.Exit):
        loop.reset("00", task="", notebook_only=False)
    assert {path: path.read_text() for path in before} == before
    told = capsys.readouterr()
    assert "your version is in" in told.out and "the disk is full" in told.err


def test_a_file_that_cannot_be_put_in_its_place_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All was written beside its place; moving the second of two fails."""
    old, new, real = tmp_path / "old.py", tmp_path / "new.py", os.replace
    old.write_bytes(b"# old\r\n")

    def refuse(source: Path, target: Path) -> None:
        if target == new:
            raise OSError(errno.EACCES, "Permission denied", str(target))
        real(source, target)

    monkeypatch.setattr(files.os, "replace", refuse)
    with pytest.raises(OSError, match="Permission denied"):
        files.write_all({old: "changed", new: "there"})
    assert [path.name for path in tmp_path.iterdir()] == ["old.py"]
    assert old.read_bytes() == b"# old\r\n"


def test_a_refused_folder_is_named_by_its_file_and_nothing_is_left_to_take_back(
    toy: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(toy)
    real = files.tempfile.mkstemp

    def refuse(**options: object) -> object:
        if "labs" in str(options["dir"]):
            raise PermissionError(errno.EACCES, "Permission denied", "/labs/.fifo.py.x1y2z3")
        return real(**options)

    monkeypatch.setattr(files.tempfile, "mkstemp", refuse)
    with pytest.raises(typer.Exit):
        loop.reset("00", task="", notebook_only=False)
    said = capsys.readouterr().err
    assert f"{lab(toy)}: Permission denied; you may not read or write it, or its folder" in said
    assert not (toy.root / ".labkit/unfinished.json").exists()


def test_progress_that_cannot_be_read_is_not_written_over(
    toy: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    State(toy.root).put("hints", "00.1", 3)
    real = Path.read_text

    def refuse(path: Path, **options: object) -> str:
        if path.name == "state.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(PermissionError, match=r"state\.json"):
        State(toy.root).put("hints", "00.2", 1)
    monkeypatch.undo()
    assert State(toy.root).get("hints", "00.1") == 3


@pytest.mark.parametrize("text", ['{"hints": {"00.1": 3', "[" * 100_000], ids=["cut", "nested"])
def test_damaged_progress_is_kept_beside_the_new(
    toy: Course, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = toy.root / ".labkit/state.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    State(toy.root).put("hints", "00.2", 1)
    says(capsys.readouterr().out, "state.json was damaged", "it is in .labkit/state.damaged")
    assert path.with_suffix(".damaged").read_text() == text
    assert State(toy.root).get("hints", "00.2") == 1


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes, as on a disk that is nearly full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_half_a_backup_is_none(toy: Course) -> None:
    """The disk is full when `reset` copies the second file: `make undo` must not bring a piece of
    it back later."""
    first, second = lab(toy), toy.root / "labs/00-toy/lab.ipynb"
    second.write_text(json.dumps({"cells": [], "text": "x" * 20_000}), encoding="utf-8")
    with largest_file(10_000), pytest.raises(OSError, match="File too large"):
        files.backup(toy.root, [first, second])
    assert not list((toy.root / ".labkit").glob("backup*/*"))
    kept = files.backup(toy.root, [first, second])
    assert kept and (kept / "labs/00-toy/lab.ipynb").read_bytes() == second.read_bytes()


LATIN = "# -*- coding: latin-1 -*-\n# h\u00e9\n"


def test_reset_and_undo_keep_a_file_as_its_editor_left_it(toy: Course) -> None:
    """A declared latin-1, and the ends of lines of Windows: `undo` brings back every byte."""
    mine = (LATIN + lab(toy).read_text()).replace("\n", "\r\n").encode("latin-1")
    lab(toy).write_bytes(mine)
    printed(loop.reset, "00", task="", notebook_only=False)
    assert b"coding" not in lab(toy).read_bytes()
    printed(loop.undo, phase="")
    assert lab(toy).read_bytes() == mine


def test_a_task_is_reset_in_a_file_of_another_encoding(toy: Course) -> None:
    """It is written as UTF-8, and says so: Python must read the same text afterwards."""
    lab(toy).write_bytes((LATIN + lab(toy).read_text()).encode("latin-1"))
    printed(loop.reset, "00", task="1", notebook_only=False)
    assert lab(toy).read_bytes().startswith(LATIN.replace("latin-1", "utf-8").encode())
    assert "h\u00e9" in files.read_python(lab(toy))


def test_skeletons_are_compared_with_files_in_any_encoding(toy: Course) -> None:
    """`sync` and `update` read what Python reads, and name what cannot be read."""
    text = lab(toy).read_text()
    lab(toy).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert not [change for change in sync.sync(toy) if change.kind == "kept"]
    lab(toy).write_bytes((LATIN + text).encode("latin-1"))
    assert [change.kind for change in sync.sync(toy)] == ["kept"]
    lab(toy).write_bytes(b"# h\xe9\n")
    with pytest.raises(
        ValueError, match=r"fifo\.py cannot be read as text: .*save the file as UTF-8"
    ):
        sync.sync(toy)


# ---------------------------------------------------------------- disks that refuse
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EFBIG])
def test_an_error_of_the_system_is_a_sentence_with_a_remedy(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @polite
    def command() -> None:
        raise OSError(number, os.strerror(number), "labs/x.py")

    with pytest.raises(typer.Exit):
        command()
    told = capsys.readouterr().err
    assert told.startswith(f"labs/x.py: {os.strerror(number)}; ") and "Traceback" not in told


def test_what_the_system_leaves_out_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    """An error without a file shows no number, one of temporary folders has a way out, and where
    a backup is stands below."""

    @polite
    def command(error: OSError) -> None:
        error.add_note("your files are in .labkit/backups/x")
        raise error

    for number, text in ((errno.ENOSPC, "No space left"), (2, "No usable temporary directory")):
        with pytest.raises(typer.Exit):
            command(OSError(number, text))
        first, second = capsys.readouterr().err.splitlines()
        assert first.startswith(f"{text}; ") and "free some space" in first
        assert second == "your files are in .labkit/backups/x"


def test_a_full_disk_does_not_hide_the_verdict(
    toy: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(toy)

    def full(self: State, *words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(State, "put", full)
    with pytest.raises(typer.Exit):
        loop.lab("00", labs="", task="", every=False, profile="")
    told = capsys.readouterr()
    assert "✓ 00.1" in told.out and "next:" in told.out and "the disk is full" in told.err


def test_a_full_disk_hides_no_hint(
    toy: Course, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: State, *words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(State, "put", full)
    with pytest.raises(typer.Exit):
        loop.hint("00", task="1", function="")
    told = capsys.readouterr()
    assert "1 of 4" in told.out and "the disk is full" in told.err


def test_a_refused_hint_is_not_counted(toy: Course, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        loop.hint("00", task="1", function="nonsense")
    assert "has no function 'nonsense'" in capsys.readouterr().err
    assert State(toy.root).get("hints", "00.1") is None


# ---------------------------------------------------------------- pytest typed by hand
@pytest.mark.serial
@pytest.mark.parametrize("inside", [False, True], ids=["by its path", "in its folder"])
def test_pytest_typed_by_hand_interprets_kernels(inside: bool) -> None:
    """As `make lab-04` does; a plain pytest ended in a traceback about Triton's variable."""
    folder = ROOT / "tests/public/04-attention-kernels"
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "masses_are_weights"]
    done = subprocess.run(
        [sys.executable, *words, *([] if inside else [str(folder)])],
        cwd=folder if inside else ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith(("TRITON", "LAB", "PYTEST"))},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert "judged: the reference in mini_vllm, not your files" in done.stdout


# ---------------------------------------------------------------- names and numbers
@pytest.mark.parametrize("name", ["lab_00", "lab00", "lab-0", "phase 0", "labs/00-toy/", "00-toy"])
def test_a_phase_is_found_as_one_types_it(toy: Course, name: str) -> None:
    assert toy.phase(name).slug == "00-toy"


def test_a_task_is_found_as_the_screen_writes_it() -> None:
    assert task_in("03.2", "") == ("03", "2")
    assert task_in("03-2", "") == ("03", "2")
    assert task_in("03-scheduler", "") == ("03-scheduler", "")
    assert task_in("03", "2") == ("03", "2")
    assert task_in("03.2", "4") == ("03.2", "4")


def test_a_phase_that_is_not_there_is_refused(toy: Course) -> None:
    with pytest.raises(ManifestError, match="00-toy"):
        toy.phase("lab_77")


def test_lab_without_a_phase_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        loop.lab("", labs="", task="", every=False)
    assert "make lab-03" in capsys.readouterr().err


@pytest.mark.parametrize(
    "guess", ["about half", "1e3", [1, 2] * 999, None, True, float("nan"), 10**400]
)
def test_a_prediction_is_a_number(
    toy: Course, monkeypatch: pytest.MonkeyPatch, guess: object
) -> None:
    monkeypatch.setattr("labkit.notebook._started", [toy.phase("0")])
    with pytest.raises(CheckFailed, match="write it as a number"):
        predict("P2", guess, "How much of it?")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ("12", "'12'; write it as a number, such as 12, without quotes"),
        ("12.5 ms", "such as 12.5, without quotes or unit"),
        ("30 %", r"such as 0.3 \(or 30, if percent are asked\)"),
        ("3 to 5", "such as 0.5"),
    ],
)
def test_a_number_in_quotes_is_taken_out_of_them(
    toy: Course, monkeypatch: pytest.MonkeyPatch, guess: Any, said: str
) -> None:
    monkeypatch.setattr("labkit.notebook._started", [toy.phase("0")])
    with pytest.raises(CheckFailed, match=said):
        predict("P2", guess, "How much of it?")


def test_a_decimal_comma_is_two_arguments(toy: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.notebook._started", [toy.phase("0")])
    with pytest.raises(CheckFailed, match=r"a point, not a comma: write 1\.5: How much of it\?"):
        predict("P2", 1, 5, "How much of it?")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "guess", [np.int64(3), np.float32(0.5), torch.tensor(2.5), Fraction(1, 2), 1_000, 12.5]
)
def test_a_number_may_be_of_any_type(
    toy: Course, monkeypatch: pytest.MonkeyPatch, guess: object
) -> None:
    monkeypatch.setattr("labkit.notebook._started", [toy.phase("0")])
    assert predict("P2", guess, "How much of it?") == guess  # type: ignore[arg-type]
    check_close(guess, float(guess))  # type: ignore[arg-type]
    assert State(toy.root).get("predictions", "P00.2")["guess"] == float(guess)  # type: ignore[arg-type]


def test_an_answer_may_be_numpys() -> None:
    check(np.int64(3), 3)
    check(np.bool_(True), True)
    with pytest.raises(CheckFailed, match="yours is 4, expected is 3"):
        check(np.int64(4), 3)
    for wrong in (3.0, "3", True, np.array([3])):
        with pytest.raises(CheckFailed):
            check(wrong, 3)


@pytest.mark.parametrize("text", ['{"cells": [1]}', "[" * 100_000], ids=["number", "nested"])
@pytest.mark.parametrize("written", [True, False])
def test_a_notebook_that_cannot_be_read_is_named_with_the_way_back(
    toy: Course, written: bool, text: str
) -> None:
    if written:
        solve(toy)
    (toy.root / "labs/00-toy/lab.ipynb").write_text(text)
    says(
        screen(toy)[0], "labs/00-toy/lab.ipynb cannot be read as a notebook", "reset 00 --notebook"
    )


@pytest.mark.parametrize(
    "text", ['{"phases": {"00-toy": "x"}}', '{"hints": {"00.1": "many"}}', '{"phases": [1]}']
)
def test_a_damaged_state_file_loses_only_the_state(toy: Course, text: str) -> None:
    solve(toy)
    (toy.root / ".labkit").mkdir(exist_ok=True)
    (toy.root / ".labkit/state.json").write_text(text)
    assert State(toy.root).passed("00-toy") == set()
    assert State(toy.root).get("hints", "00.1", 0) == 0
    assert "✓ 00.1" in screen(toy)[0]


def test_a_notebook_that_a_merge_has_torn_is_named(toy: Course) -> None:
    solve(toy)
    notebook = toy.root / "labs/00-toy/lab.ipynb"
    marked = notebook.read_text().replace("\n", "\n<<<<<<< HEAD\n", 1)
    notebook.write_text(marked)
    text, _ = screen(toy)
    says(text, "lab.ipynb cannot be read", "line 2 holds an unresolved merge")
    says(text, "--notebook` restores it", "next: restore the notebook, then make lab-00")


def test_the_first_marks_of_a_merge_are_found() -> None:
    assert source.unresolved_merge("a\n<<<<<<< yours\n") == 2
    assert source.unresolved_merge("shift = 1 << 2  # <<<<<<< no mark\n") == 0


@pytest.mark.parametrize("mapping", ["{}", '{"mini_vllm.request": "labs/x.py"}'])
def test_pytest_typed_by_hand_says_whom_it_judges(
    mapping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.public import conftest

    monkeypatch.setenv("LABKIT_OVERLAY", mapping)
    line = conftest.pytest_report_header(None)  # type: ignore[arg-type]
    assert ("make lab-" in line) is (mapping == "{}")


@pytest.mark.parametrize(
    ("folder", "command"), [("labs/03-scheduler", "make lab-03"), ("labs", "make lab-NN")]
)
def test_pytest_typed_among_one_s_own_files_names_the_right_command(
    folder: str, command: str
) -> None:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    base = {k: v for k, v in os.environ.items() if not k.startswith(("LABKIT", "PYTEST"))}
    done = subprocess.run(
        words, cwd=ROOT / folder, env=base, capture_output=True, text=True, timeout=300
    )
    assert f"`{command}` judges your files" in done.stdout, done.stdout


@pytest.mark.parametrize("quiet", ["-q", "-qq", "--no-header", "-v"])
def test_pytest_says_whom_it_judges_in_its_first_line_however_quiet(quiet: str) -> None:
    file = "tests/public/00-orientation/test_1_finished.py"
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", quiet, file]
    base = {k: v for k, v in os.environ.items() if not k.startswith(("LABKIT", "PYTEST"))}
    done = subprocess.run(words, cwd=ROOT, env=base, capture_output=True, text=True)
    assert done.returncode == 0
    said = "judged: the reference in mini_vllm, not your files; `make lab-00` judges those"
    assert done.stdout.count(said) == 1
    assert quiet == "-v" or "judged:" in "".join(done.stdout.splitlines()[:2])


def test_a_phase_with_a_part_written_is_not_called_untouched(toy: Course) -> None:
    """A task of two functions is open as long as one of them is: what fails in the other shows."""
    solve(toy, "Fifo.head")
    text, _ = screen(toy)
    assert "Nothing is written yet" not in text
    says(text, "○ 00.1 Clamp  (not written yet)", "○ 00.2 Leave in order  (Fifo.drain not written)")
    rewrite(toy, "Fifo.head", "return 99")
    says(screen(toy)[0], "✗ 00.2 Leave in order", "Fifo.drain not written", "99")


def test_nothing_is_installed_for_a_phase_that_is_not_there(
    toy: Course, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(bootstrap, "enter", lambda *words: asked.append(words))
    assert main(["notebook", "99"]) == 2
    assert "there is no phase '99'" in capsys.readouterr().err
    assert all("notebook" not in groups for groups, _ in asked)


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"cells": [1]}', '{"cells": {}}', None])
def test_nothing_is_installed_for_a_notebook_that_cannot_be_read(
    toy: Course,
    text: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notebook = toy.root / "labs/00-toy/lab.ipynb"
    notebook.unlink()
    if text is None:
        notebook.mkdir()
    else:
        notebook.write_text(text)
    asked: list[object] = []
    monkeypatch.setattr(bootstrap, "enter", lambda *words: asked.append(words))
    assert main(["notebook", "0"]) == 2
    said = capsys.readouterr().err
    assert "lab.ipynb" in said and said.count("\n") == 1
    assert all("notebook" not in groups for groups, _ in asked)


@pytest.mark.parametrize("typed", ["-00", "--0", "00-", "0."])
def test_a_number_among_dashes_is_that_phase(
    toy: Course, typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", typed]) == 1
    assert "lab-00 · " in capsys.readouterr().out
