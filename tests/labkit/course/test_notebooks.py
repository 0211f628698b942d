"""Notebooks run as they are: solved ones to their end, students' to the first open answer; and
their first cell finds the course wherever it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from labkit import notebook
from labkit.course import notebook_source, source, sync
from labkit.course.manifest import Course
from labkit.course.root import find_root
from labkit.setup.requirements import requirements
from tests.labkit.toy_course import make_course

COURSE = Course(find_root())
SLUGS = [phase.slug for phase in COURSE.ready if phase.notebook]
FIRST, *OTHERS = SLUGS
EACH = [FIRST, *(pytest.param(slug, marks=pytest.mark.slow) for slug in OTHERS)]


@pytest.fixture(autouse=True)
def _the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel must not depend on the files in labs/."""
    monkeypatch.setenv("LAB", "reference")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")


@pytest.mark.parametrize("slug", EACH)
def test_a_solved_notebook_runs_to_its_end(slug: str) -> None:
    text = sync.execute(COURSE.phase(slug))
    assert '"output_type": "error"' not in text
    assert "image/png" in text or slug == "00-orientation", "it shows no plot"


@pytest.mark.parametrize("slug", EACH)
def test_a_students_notebook_stops_at_the_first_open_answer(slug: str) -> None:
    phase = COURSE.phase(slug)
    cells = notebook_source.read(phase).cells
    first = next(cell.task for cell in cells if cell.tag in ("todo", "predict"))
    with pytest.raises(CellExecutionError, match=f"TODO {first}"):
        sync.execute(phase, solved=False)


def test_a_plot_whose_values_are_not_made_yet_is_one_line_and_no_picture() -> None:
    """A run below an open answer shows neither a traceback nor empty axes."""
    phase = COURSE.phase("01")
    text = notebook_source.to_ipynb(phase, notebook_source.read(phase), solved=False)
    node = nbformat.reads(text, as_version=4)
    made = "BATCHES"
    plot = f"import matplotlib.pyplot as plt\nplt.subplots()\nplt.plot({made})"
    elsewhere = f"exec('def f(): return {made}', module := {{'__name__': 'm'}})\nmodule['f']()"
    logged = (
        "import logging\ntry:\n    raise NotImplementedError('TODO N01.1: a hook')\n"
        "except NotImplementedError:\n"
        "    logging.getLogger('engine').exception('%s failed', 'a pass')"
    )
    first = next(cell for cell in node.cells if cell.cell_type == "code")
    imported = "load_model"
    sources = (plot, elsewhere, logged, imported)
    node.cells = [first, *map(nbformat.v4.new_code_cell, sources)]
    client = NotebookClient(
        node, timeout=300, kernel_name="python3", allow_errors=True,
        resources={"metadata": {"path": str(phase.folder)}},
    )  # fmt: skip
    client.execute()
    (shown,), (other,), (log,), (used,) = (cell.outputs for cell in node.cells[1:])
    assert shown.output_type == "error" and len(shown.traceback) == 1
    assert shown.traceback[0].startswith(f"○ `{made}` is made by a cell above")
    assert len(other.traceback) > 1, "a module's own mistake is shown in full"
    assert log.text == "a pass failed: TODO N01.1: a hook\n", "the engine's log is no traceback"
    assert used.traceback[0].startswith(f"○ `{imported}` is made by a cell above")


def test_what_an_unfinished_cell_left_out_is_one_line_in_the_given_cells_below_it() -> None:
    """A loop that stops at an open answer leaves a dictionary half full: 14 lines of KeyError."""
    phase = COURSE.phase("08")
    text = notebook_source.to_ipynb(phase, notebook_source.read(phase), solved=False)
    node = nbformat.reads(text, as_version=4)
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    plot = next(cell for cell in code if "Who guesses what" in cell.source)
    begun = (
        "import matplotlib.pyplot as plt\n"
        "texts, steps, METHODS, BLUE, ORANGE = {'chats': 0}, {}, {'ngram': 0}, 'b', 'r'"
    )
    open_answer = nbformat.v4.new_code_cell(f"{begun}\nraise NotImplementedError('TODO N08.3')")
    mine = nbformat.v4.new_code_cell("{}['my own']")
    ended = nbformat.v4.new_code_cell(begun)
    again = nbformat.v4.new_code_cell(plot.source)
    node.cells = [code[0], open_answer, plot, mine, ended, again]
    client = NotebookClient(
        node, timeout=300, kernel_name="python3", allow_errors=True,
        resources={"metadata": {"path": str(phase.folder)}},
    )  # fmt: skip
    client.execute()
    _, _, below, own, _, later = (cell.outputs for cell in node.cells)
    (error,) = [output for output in below if output.output_type == "error"]
    assert error.traceback == [
        "○ a cell above did not come to its end: run it first (KeyError: ('chats', None))"
    ]
    assert not any("data" in output for output in below), "empty axes"
    assert len(own[0].traceback) > 1, "a learner's own mistake is shown in full"
    assert len(later[-1].traceback) > 1, "nothing is unfinished any more"


def test_a_plot_of_what_no_cell_has_filled_is_left_out() -> None:
    phase = COURSE.phase("02")
    text = notebook_source.to_ipynb(phase, notebook_source.read(phase), solved=False)
    code = [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
    plot = next(cell for cell in code if 'title="Only full blocks' in cell.source)
    begun = "import matplotlib.pyplot as plt\nBLUE, rates = 'b', {}"
    stopped = f"{begun}\nraise NotImplementedError('TODO N02.4')"
    node = nbformat.v4.new_notebook()
    node.cells = [code[0], *map(nbformat.v4.new_code_cell, (stopped, plot.source))]
    node.cells += map(nbformat.v4.new_code_cell, ("rates[4] = 90", plot.source, "rates.clear()"))
    node.cells.append(nbformat.v4.new_code_cell(plot.source))
    client = NotebookClient(
        node, timeout=300, kernel_name="python3", allow_errors=True,
        resources={"metadata": {"path": str(phase.folder)}},
    )  # fmt: skip
    client.execute()
    shown = [cell.outputs for cell in node.cells]
    assert [output.text for output in shown[2]] == [
        "○ an empty picture is left out: a cell above did not come to its end\n"
    ]
    for there in (shown[4], shown[6]):  # filled; or the learner's own, with nothing unfinished
        assert any("image/png" in output.get("data", {}) for output in there)


def test_a_given_cell_that_fails_with_the_learners_functions_is_told_in_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """matplotlib's 99 lines about a None that a learner's function had returned."""
    monkeypatch.setenv("LAB", "labs")
    phase = COURSE.phase("01")
    text = notebook_source.to_ipynb(phase, notebook_source.read(phase), solved=False)
    code = [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
    plot = next(cell for cell in code if 'label="the roof"' in cell.source)
    node = nbformat.v4.new_notebook()
    check = next(cell for cell in code if cell.source.startswith("check(tokens_computed"))
    mine = "def tokens_computed(*words):\n    return [][1]"
    node.cells = [code[0], nbformat.v4.new_code_cell(GIVES_NONE), plot]
    node.cells += [nbformat.v4.new_code_cell(mine), check]
    client = NotebookClient(
        node, timeout=300, kernel_name="python3", allow_errors=True,
        resources={"metadata": {"path": str(phase.folder)}},
    )  # fmt: skip
    client.execute()
    (error,) = [each for each in node.cells[2].outputs if each.output_type == "error"]
    what, line, whose = error.traceback[0].split("\n")
    assert what.startswith("✗ TypeError: ") and line.startswith("  in line ")
    assert "one of your functions may answer otherwise; `make lab-01` judges them" in whose
    (error,) = node.cells[4].outputs
    assert error.traceback == [
        "✗ IndexError: list index out of range\n"
        "  in tokens_computed, line 2 of its cell: return [][1]\n"
        "  `%tb` shows the whole traceback"
    ]


GIVES_NONE = """
from types import SimpleNamespace
import matplotlib.pyplot as plt
BLUE, ORANGE = "b", "r"
points = [("decode", 1, SimpleNamespace(flops=1, bytes=1), 1.0)]
ridge, machine = 1.0, SimpleNamespace(bytes_per_s=1, flops_per_s=1)

def arithmetic_intensity(cost):
    return None
"""


def test_what_a_learners_function_raises_is_told_with_its_own_line(
    tmp_path: Path,
) -> None:
    """Of the phase a part is written, so a copy runs, with other line numbers: 42 lines led there,
    and the engine's log held one more traceback for each request."""
    root = tmp_path / "course"
    root.mkdir()
    for name in ("mini_vllm", "labkit", "phases", "pyproject.toml", "Makefile"):
        (root / name).symlink_to(COURSE.root / name)
    shutil.copytree(COURSE.phase("00").labs, root / "labs/00-orientation")
    phase = Course(root).phase("00")
    lab = phase.labs / "request.py"
    text = source.replace_body(lab.read_text(), "RequestStatus.can_become", "raise ValueError(old)")
    lab.write_text(text)
    line = source.find(text, "RequestStatus.can_become").end_line
    node = nbformat.v4.new_notebook()
    cells = (
        f"import os, sys; sys.path.insert(0, '{root}')\n"
        f"os.environ |= {{'LABKIT_ROOT': '{root}', 'LAB': 'labs'}}\n"
        "from labkit.notebook import start\nstart('00')",
        "from mini_vllm.request import Request, RequestStatus\n"
        "def run():\n    Request('a', [1]).transition_to(RequestStatus.RUNNING)\nrun()",
        "import logging\nfor _ in range(3):\n    try:\n        run()\n"
        "    except ValueError:\n        logging.getLogger('engine').exception('failed')",
        "[].pop()",
    )
    node.cells = list(map(nbformat.v4.new_code_cell, cells))
    client = NotebookClient(
        node, timeout=300, kernel_name="python3", allow_errors=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )  # fmt: skip
    client.execute()
    raised, logged, own = (cell.outputs[0] for cell in node.cells[1:])
    assert raised.traceback == [
        "✗ ValueError: WAITING\n"
        f"  in RequestStatus.can_become, labs/00-orientation/request.py:{line}\n"
        "  called by line 3 of this cell: Request('a', [1]).transition_to(RequestStatus.RUNNING)\n"
        "  `make lab-00` judges it; `%tb` shows the whole traceback"
    ]
    told = f"failed: ValueError: WAITING (labs/00-orientation/request.py:{line})"
    assert logged.text == f"{told}\n", "the same line three times"
    assert len(own.traceback) > 1, "a mistake in a cell is shown in full"


def test_an_experiment_waits_for_its_prediction(tmp_path: Path) -> None:
    """`Run All` would show what is to be guessed, before it is guessed."""
    phase = make_course(tmp_path).phase("00")
    open_guess, shows = (
        'guess = predict("P1", ..., "How many?")',
        'print("experiment")\nscore("P1", 7)',
    )
    assert notebook_source.experiments(phase) == {shows: "P00.1"}
    begin = (
        f"import os, sys; sys.path.insert(0, '{COURSE.root}')\n"
        f"os.environ |= {{'LABKIT_ROOT': '{tmp_path}', 'LAB': 'labs'}}\n"
        "from labkit.notebook import predict, score, start\nstart('00')"
    )
    node = nbformat.v4.new_notebook()
    cells = (begin, open_guess, shows, open_guess.replace("...", "7"), shows)
    node.cells = list(map(nbformat.v4.new_code_cell, cells))
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(
        node, timeout=300, kernel_name="python3", allow_errors=True, resources=resources
    )
    client.execute()
    _, asked, held, _, shown = (cell.outputs for cell in node.cells)
    (question,), (waits,) = asked, held
    assert question.traceback == ["○ TODO P00.1: write your guess instead of `...`: How many?"]
    assert waits.traceback == [
        "○ TODO P00.1: write your guess in its cell above; then this one measures"
    ]
    assert [shown[0].text] == ["experiment\nguess 7, measured 7: exact\n"]


# ------------------------------------------------------------------ the first cell

LABKIT = "def start(*a, **k): print('started', __file__)\ncheck = check_close = check_that = 0\n"


def a_course(folder: Path) -> Path:
    """Just enough of a checkout for the first cell."""
    (folder / "labkit").mkdir(parents=True)
    text = LABKIT + "predict = score = 0\n"
    (folder / "labkit" / "notebook.py").write_text(text, encoding="utf-8")
    return folder


def first_cell(here: Path, address: str = "") -> subprocess.CompletedProcess[str]:
    here.mkdir(parents=True, exist_ok=True)
    code = notebook_source.FIRST_CELL.format(url=address, arguments='"00"')
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, cwd=here, capture_output=True, text=True)


def starts_from(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert f"started {folder.resolve()}" in done.stdout


def test_the_checkout_above_is_found(tmp_path: Path) -> None:
    a_course(tmp_path)
    starts_from(first_cell(tmp_path / "labs" / "00-toy"), tmp_path)


def test_a_folder_beside_the_notebook_is_found(tmp_path: Path) -> None:
    a_course(tmp_path / "course")
    starts_from(first_cell(tmp_path), tmp_path / "course")


def test_an_uploaded_zip_is_unpacked(tmp_path: Path) -> None:
    a_course(tmp_path / "packed" / "course-main")
    here = tmp_path / "content"
    shutil.make_archive(str(here / "upload"), "zip", tmp_path / "packed")
    shutil.make_archive(str(here / "other"), "zip", tmp_path / "packed" / "course-main" / "labkit")
    starts_from(first_cell(here), here / "upload" / "course-main")
    assert not (here / "other").exists(), "a zip without the course is left alone"
    starts_from(first_cell(here), here / "upload" / "course-main")


def test_the_address_of_the_metadata_is_cloned(tmp_path: Path) -> None:
    origin = a_course(tmp_path / "origin")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "course"]):
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *author, *words], cwd=origin, check=True)
    here = tmp_path / "content"
    starts_from(first_cell(here, origin.as_uri()), here / "mini-vllm")


@pytest.mark.parametrize("address", ["", "file:///nowhere/at/all"])
def test_without_a_course_it_says_what_to_do(tmp_path: Path, address: str) -> None:
    done = first_cell(tmp_path, address)
    assert done.returncode != 0
    for words in ("The course is not here", str(tmp_path), "upload", "run this cell again"):
        assert words in done.stderr


def test_the_address_comes_from_the_metadata(tmp_path: Path) -> None:
    phase = Course(find_root()).phase("00")
    pretended = replace(phase, root=tmp_path)
    assert 'ADDRESS = ""' in notebook_source.first_cell(pretended, solved=False)
    metadata = '[project.urls]\nRepository = "https://example.org/course.git"\n'
    (tmp_path / "pyproject.toml").write_text(metadata, encoding="utf-8")
    cell = notebook_source.first_cell(pretended, solved=False)
    assert 'ADDRESS = "https://example.org/course.git"' in cell


def test_on_colab_what_is_missing_or_too_old_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = requirements(("engine", "course"))
    have = {need.name: dict(need.bounds)[">="] for need in wanted} | {"typer": "0.1"}
    del have["rich"]
    commands: list[list[str]] = []
    monkeypatch.setattr(notebook, "installed", lambda names: have)
    monkeypatch.setattr(notebook.subprocess, "run", lambda words, **_: commands.append(words))
    notebook._install_missing()
    (command,) = commands
    assert [word.partition(">")[0] for word in command[5:]] == ["typer", "rich"]


def test_start_installs_on_colab_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise InterruptedError

    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setattr(notebook, "_install_missing", stop)
    with pytest.raises(InterruptedError):
        notebook.start("00")


# ---------------------------------------------------------------- predictions
@pytest.mark.parametrize("slug", SLUGS)
def test_every_prediction_has_an_experiment_that_waits_for_it(slug: str) -> None:
    phase = COURSE.phase(slug)
    asked = [cell.task for cell in notebook_source.read(phase).cells if cell.tag == "predict"]
    scored = [task for text, task in notebook_source.experiments(phase).items() if "score(" in text]
    assert scored == asked


@pytest.mark.parametrize("slug", SLUGS)
def test_every_prediction_has_a_reason(slug: str) -> None:
    """In the prediction's own cell, or in the paragraph below the one that scores it."""
    book = notebook_source.read(COURSE.phase(slug))
    for cell in book.cells:
        if cell.tag == "predict":
            text = notebook_source.reason(book, cell.task)
            assert len(text.split()) >= 8 and not text.startswith("#"), f"{cell.task}: {text!r}"


@pytest.mark.parametrize(("guess", "opens"), [(7, False), (6, False), (3, True), (-1, True)])
def test_a_guess_that_is_not_close_opens_the_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    guess: int,
    opens: bool,
) -> None:
    phase = make_course(tmp_path).phase("00")
    source = tmp_path / "phases/00-toy/notebook.py"
    why = "Half of them are full."
    text = source.read_text().replace('title="Free blocks"', f'title="Free blocks" why="{why}"')
    source.write_text(text)
    monkeypatch.setattr(notebook, "_started", [phase])
    notebook.predict("P1", guess, "How many?")
    notebook.score("P1", 7)
    assert (why in capsys.readouterr().out) == opens
