"""Skeletons: bodies go, everything else stays; sync never overwrites a learner's work."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from labkit.course import notebook_source, source, sync, update
from labkit.course.manifest import Course
from labkit.course.skeleton import is_todo, left_todo, open_holes, skeleton, todo_in
from tests.labkit.toy_course import ENGINE, NOTEBOOK, lab, make_course, rewrite, solve, write

KERNEL = '''
import triton
import triton.language as tl


@triton.jit
def store(ptr, BLOCK: tl.constexpr):
    """Writes."""
    offsets = tl.arange(0, BLOCK)
    tl.store(ptr + offsets, 1)
'''


def test_a_hole_keeps_signature_docstring_decorators_and_comments_above(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    text = skeleton(phase, "toy.fifo")
    assert (
        "    # The oldest item leaves first.\n    @property\n    def head(self) -> int | None:\n"
        in text
    )
    assert '"""Tokens that fit: at most `budget`, at most `limit`; never below 0."""' in text
    assert "self.items.append(item)" in text, "functions that are no holes stay"
    for gone in ("min(wanted", "# both bounds count", "popleft", "self.items[0]"):
        assert gone not in text
    assert text.count("# TODO 00.1\n") == 1
    assert text.count("# TODO 00.2\n") == 2


def test_a_hole_names_itself_its_file_and_its_phase(tmp_path: Path) -> None:
    make_course(tmp_path)
    space: dict[str, object] = {}
    exec(compile(lab(Course(tmp_path)).read_text(), "fifo.py", "exec"), space)
    with pytest.raises(NotImplementedError) as caught:
        space["clamp"](1, 2, 3)  # type: ignore[operator]
    message = str(caught.value)
    assert message == (
        "TODO 00.1: write clamp in labs/00-toy/fifo.py (phase 00, 02-mini-build.md#task-1)"
    )
    assert is_todo(message) == "00.1"


def test_a_kernel_hole_is_a_static_assert(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    write(tmp_path, "toy/fifo.py", ENGINE + KERNEL)
    manifest = tmp_path / "phases/00-toy/phase.toml"
    manifest.write_text(manifest.read_text().replace('["clamp"]', '["clamp", "store"]'))
    text = skeleton(Course(course.root).phase("0"), "toy.fifo")
    assert 'static_assert(\n        False,\n        "TODO 00.1: write store in labs/' in text
    assert "tl.arange" not in text
    write(tmp_path, "labs/00-toy/fifo.py", text)
    open_ones = open_holes(Course(course.root).phase("0"))["00.1"]
    assert [function.name for function in open_ones] == ["clamp", "store"]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "InterpreterError(\"AssertionError('{}')\")",
        "at 8:4:\n    tl.static_assert(\n    ^\n{}",
    ],
)
def test_a_hole_is_found_in_what_triton_makes_of_it(text: str) -> None:
    todo = "TODO 04.2: write store_kv in labs/04/triton.py (phase 04, 02-mini-build.md#task-2)"
    assert todo_in(text.format(todo)) == todo
    assert todo_in(text.format("TODO: this answer is still `...`")) == ""


def test_a_todo_left_below_the_code_is_found(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    phase = course.phase("0")
    exercise = phase.exercises[0]
    file = phase.lab_file(exercise.module)
    assert left_todo(phase, exercise) == ""  # not begun
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("    # TODO 00.1\n", "    wanted = 1\n", 1), encoding="utf-8")
    line = file.read_text(encoding="utf-8").splitlines().index("    wanted = 1") + 2
    assert left_todo(phase, exercise) == f"{phase.lab_path(exercise.module)}:{line} (clamp)"
    solve(course)
    assert left_todo(phase, exercise) == ""


def test_a_manifest_that_names_no_function_is_refused(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    write(tmp_path, "toy/fifo.py", ENGINE.replace("def clamp", "def clip"))
    with pytest.raises(source.SourceError, match=r"toy/fifo.py has no function 'clamp'"):
        sync.sync(course)


def test_a_body_on_the_line_of_its_def_is_refused() -> None:
    with pytest.raises(source.SourceError, match="line of its own"):
        source.replace_body("def f(): return 1\n", "f", "return 2")


def test_body_replacement_handles_multi_line_headers_and_trailing_comments() -> None:
    text = (
        "def f(\n    a,\n):\n    # lead\n    x = a\n    return x\n    # tail\n\n\n# next\ny = 1\n"
    )
    assert source.replace_body(text, "f", "return 2") == (
        "def f(\n    a,\n):\n    return 2\n\n\n# next\ny = 1\n"
    )


@pytest.mark.parametrize("mark", ["\f", "\v", "\x1c", "\x85", "\u2028"])
def test_a_mark_that_ends_no_line_moves_none(mark: str) -> None:
    """`str.splitlines` takes each for the end of a line; Python and editors do not."""
    head = f"# a{mark}b\nX = 'c{mark}d'\n\n\n"
    text = f"{head}def f():\n    return 'e{mark}f'\n\n\ndef g():\n    return 2\n"
    known = source.functions(text)
    assert source.body_text(text, known["f"]) == f"return 'e{mark}f'"
    assert source.function_text(text, known["g"]) == "def g():\n    return 2"
    assert source.replace_body(text, "g", f"return 'h{mark}i'") == text.replace(
        "return 2", f"return 'h{mark}i'"
    )
    assert source.unresolved_merge(f"{head}<<<<<<< mine\n") == head.count("\n") + 1


def test_sync_is_idempotent_and_check_is_clean(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    assert sync.sync(course) == []
    assert [str(p) for p in sync.check(course, strict=True) if "lab.ipynb" not in p.path] == []


def test_solutions_are_relative_links_into_the_engine(tmp_path: Path) -> None:
    make_course(tmp_path)
    link = tmp_path / "solutions/00-toy/fifo.py"
    assert os.readlink(link) == "../../toy/fifo.py"
    assert link.read_text() == (tmp_path / "toy/fifo.py").read_text()


def test_sync_keeps_an_edited_lab_file(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    solve(course, "clamp")
    mine = lab(course).read_text()
    write(tmp_path, "toy/fifo.py", ENGINE.replace("A queue", "The queue"))
    changes = sync.sync(course)
    assert [(c.kind, c.path) for c in changes] == [("kept", "labs/00-toy/fifo.py")]
    assert lab(course).read_text() == mine


def test_check_passes_with_solved_labs_but_not_in_strict_mode(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    solve(course)
    paths = lambda strict: [p.path for p in sync.check(course, strict) if "ipynb" not in p.path]  # noqa: E731
    assert paths(strict=False) == []
    assert paths(strict=True) == ["labs/00-toy/fifo.py"]


def test_check_reports_a_changed_engine_and_a_wrong_link(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    write(tmp_path, "toy/fifo.py", ENGINE.replace("A queue", "The queue"))
    (tmp_path / "solutions/00-toy/fifo.py").unlink()
    found = {(p.kind, p.path) for p in sync.check(course)}
    assert ("stale", "labs/00-toy/fifo.py") in found
    assert ("wrong", "solutions/00-toy/fifo.py") in found


def test_open_holes_lists_what_is_still_to_write(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    phase = course.phase("0")
    assert {t: [f.name for f in fs] for t, fs in open_holes(phase).items()} == {
        "00.1": ["clamp"],
        "00.2": ["Fifo.head", "Fifo.drain"],
    }
    solve(course, "clamp", "Fifo.head")
    assert list(open_holes(phase)) == ["00.2"]


def test_update_merges_a_new_skeleton_into_edited_files(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    user = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "."], [*user, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    rewrite(course, "clamp", "return 42")
    write(tmp_path, "toy/fifo.py", ENGINE.replace("Put an item at the end.", "Append an item."))
    changes = {c.path: c.kind for c in update.update(course, pull=False)}
    text = lab(course).read_text()
    assert changes["labs/00-toy/fifo.py"] == "merged"
    assert "return 42" in text
    assert "Append an item." in text
    backups = list(tmp_path.glob(".labkit/backups/*/labs/00-toy/fifo.py"))
    assert len(backups) == 1
    assert "return 42" in backups[0].read_text()


def git(folder: Path, *words: str) -> None:
    user = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", "-C", str(folder), *user, *words], check=True, capture_output=True)


@pytest.mark.parametrize("committed", [False, True])
def test_update_pulls_a_newer_course_into_a_clone(tmp_path: Path, committed: bool) -> None:
    upstream, mine = tmp_path / "upstream", tmp_path / "mine"
    upstream.mkdir()
    make_course(upstream)
    write(upstream, ".gitignore", ".labkit/\n")
    git(upstream, "init", "-q")
    git(upstream, "add", ".")
    git(upstream, "commit", "-qm", "one")
    git(tmp_path, "clone", "-q", "upstream", "mine")
    git(mine, "config", "user.name", "t")
    git(mine, "config", "user.email", "t@t")
    course = Course(mine)
    rewrite(course, "clamp", "return 42")
    if committed:
        git(mine, "commit", "-qam", "my work")
    write(upstream, "toy/fifo.py", ENGINE.replace("Put an item at the end.", "Append an item."))
    sync.sync(Course(upstream))
    git(upstream, "commit", "-qam", "two")
    kinds = [change.kind for change in update.update(course)]
    assert kinds[0] == "backup"
    assert not {"wrong", "conflict"} & set(kinds)
    assert "return 42" in lab(course).read_text()
    assert "Append an item." in lab(course).read_text()
    assert sync.check(course) == [c for c in sync.check(course) if "solutions" in c.path]
    (kept,) = mine.glob(".labkit/backups/*/labs/00-toy/fifo.py")
    assert "return 42" in kept.read_text()


def test_update_marks_a_conflict_and_keeps_both_sides(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    text = lab(course).read_text()
    lab(course).write_text(text.replace("Put an item at the end.", "Mine."))
    write(tmp_path, "toy/fifo.py", ENGINE.replace("Put an item at the end.", "Theirs."))
    changes = {c.path: c.kind for c in update.update(course, pull=False)}
    assert changes["labs/00-toy/fifo.py"] == "conflict"
    text = lab(course).read_text()
    assert text.index("<<<<<<< yours") < text.index("Mine.") < text.index("Theirs.")


def test_a_failed_pull_leaves_every_file_as_it_was(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    rewrite(course, "clamp", "return 42")
    changes = update.update(course)  # there is no remote
    assert (changes[-1].kind, changes[-1].path) == ("wrong", ".")
    assert "return 42" in lab(course).read_text()


def test_sync_forgets_files_that_no_phase_has(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    record = sync.read_record(tmp_path)
    write(tmp_path, sync.RECORD, json.dumps(record | {"labs/00-toy/gone.py": "0"}))
    assert "no phase has it" in {change.why for change in sync.check(course)}
    sync.sync(course)
    assert sync.read_record(tmp_path) == record


def test_update_without_git_history_leaves_the_new_skeleton_beside(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    rewrite(course, "clamp", "return 42")
    write(tmp_path, "toy/fifo.py", ENGINE.replace("Put an item at the end.", "Append an item."))
    update.update(course, pull=False)
    assert "return 42" in lab(course).read_text()
    assert "Append an item." in (tmp_path / "labs/00-toy/fifo.py.new").read_text()


def test_student_and_solved_notebooks_come_from_one_source(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    book = notebook_source.read(phase)
    student = notebook_source.to_ipynb(phase, book, solved=False)
    solved = notebook_source.to_ipynb(phase, book, solved=True)
    assert book.tasks == {"N00.1": "Blocks of a request", "N00.2": "Waste"}
    assert "math.ceil" not in student
    assert '    raise NotImplementedError(\\"TODO N00.1: Blocks of a request\\")' in student
    assert "waste = ...  # TODO N00.2" in student
    assert 'predict(\\"P1\\", ..., ' in student
    for text in ("math.ceil", "waste = 32 - 17", 'predict(\\"P1\\", 7, '):
        assert text in solved
    assert "SOLUTION" not in student + solved
    ids = [cell["id"] for cell in json.loads(student)["cells"]]
    assert len(set(ids)) == len(ids)
    assert student == notebook_source.to_ipynb(phase, notebook_source.read(phase), solved=False)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('task="N2" title="Waste"', 'title="Waste"', "todo cell needs task"),
        ("  # SOLUTION\n", "\n", "marks no solution"),
        ('tags=["check"] task="N2"', 'tags=["chek"] task="N2"', "tags are"),
        ('tags=["check"] task="N2"', 'tags=["check"] task="N3"', "task N00.2 has no check cell"),
        ('print("experiment")', "x = 1  # SOLUTION", "only todo and predict"),
    ],
)
def test_a_wrong_notebook_source_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    phase = make_course(tmp_path).phase("0")
    assert old in NOTEBOOK
    write(tmp_path, "phases/00-toy/notebook.py", NOTEBOOK.replace(old, new, 1))
    with pytest.raises(notebook_source.NotebookError, match=words):
        notebook_source.read(phase)
