"""Phase 00 as a newcomer meets it: each typical mistake gets a message that leads back to the path.

The toy course of `test_loop.py` covers the tools; here the real first phase is judged, on freshly
generated skeletons in a temporary folder.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from labkit.course import notebook_source, source, sync
from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.learner import commands as loop

SLUG = "00-orientation"


@pytest.fixture
def phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Phase:
    """The real phase 00 and the engine's text, copied into an empty folder."""
    root = ROOT
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.delenv("LAB", raising=False)
    for name in (f"phases/{SLUG}", f"tests/public/{SLUG}", f"tests/hidden/{SLUG}"):
        shutil.copytree(root / name, tmp_path / name)
    (tmp_path / "tests/corpora/mutants").mkdir(parents=True)
    for suffix in ("toml", "json"):
        shutil.copy(
            root / f"tests/corpora/mutants/{SLUG}.{suffix}", tmp_path / "tests/corpora/mutants"
        )
    ignored = shutil.ignore_patterns("storyteller*", "adapters", "__pycache__")  # the weights
    shutil.copytree(root / "mini_vllm", tmp_path / "mini_vllm", ignore=ignored)
    course = Course(tmp_path)
    sync.sync(course)
    return course.phase("00")


@pytest.fixture
def no_notebook(phase: Phase) -> Phase:
    """The same without its notebook: half the time, for mistakes in the module."""
    manifest = phase.folder / "phase.toml"
    lines = manifest.read_text(encoding="utf-8").splitlines(keepends=True)
    manifest.write_text("".join(x for x in lines if not x.startswith("notebook")), encoding="utf-8")
    return Course(phase.root).phase("00")


def lab(phase: Phase, module: str = "mini_vllm.request") -> Path:
    return phase.lab_file(module)


def write(phase: Phase, name: str, body: str, module: str = "mini_vllm.request") -> None:
    """Give one function of a lab file a body, as the newcomer would."""
    file = lab(phase, module)
    text = file.read_text(encoding="utf-8")
    file.write_text(source.replace_body(text, name, body), encoding="utf-8")


def solve(phase: Phase, *leave_open: str) -> None:
    """Write every function but some, as the reference has them."""
    for module in phase.modules:
        reference = phase.reference_file(module).read_text(encoding="utf-8")
        for name in phase.holes(module):
            if name not in leave_open:
                body = source.body_text(reference, source.find(reference, name))
                write(phase, name, body, module)


def screen(phase: Phase) -> str:
    """What `make lab-00` prints; it must not be green."""
    out = io.StringIO()
    with redirect_stdout(out):
        green = loop.judge_and_show(phase)
    assert not green
    return out.getvalue()


def says(text: str, *words: str) -> None:
    for word in words:
        assert word in text, f"{word!r} is not in:\n{text}"


def test_the_first_screen_names_file_line_and_command(phase: Phase) -> None:
    line = lab(phase).read_text(encoding="utf-8").split("def is_finished")[0].count("\n") + 1
    text = screen(phase)
    says(
        text,
        "Nothing is written yet",
        f"edit   labs/{SLUG}/request.py:{line} (RequestStatus.is_finished)",
        "read   phases/00-orientation/00-guide.md, then 02-mini-build.md#task-1",
        "make hint-00",
    )
    tour = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    says(tour, *text.splitlines())  # else: python -m labkit docs tour


def test_one_line_turns_the_first_task_green(no_notebook: Phase) -> None:
    write(no_notebook, "RequestStatus.is_finished", "return status > RequestStatus.PREEMPTED")
    text = screen(no_notebook)
    says(text, "✓ 00.1 Is this request finished?  (6 of 6)", *[f"○ 00.{n}" for n in (2, 3, 4, 5)])
    says(text, "(Request.num_tokens), then make lab-00")
    assert "✗" not in text


def test_a_classic_mistake_is_named(no_notebook: Phase) -> None:
    write(no_notebook, "RequestStatus.is_finished", "return status >= RequestStatus.PREEMPTED")
    text = screen(no_notebook)
    says(text, "✗ PREEMPTED is a pause", "yours    True", "expected False", "known mistake")
    says(text, "02-mini-build.md#task-1", "vllm/v1/request.py#L336-L338")


def test_a_syntax_error_is_shown_with_its_line(no_notebook: Phase) -> None:
    write(no_notebook, "RequestStatus.is_finished", "return status > RequestStatus.PREEMPTED")
    text = lab(no_notebook).read_text(encoding="utf-8")
    broken = text.replace("return status > RequestStatus", "return status > > RequestStatus")
    lab(no_notebook).write_text(broken, encoding="utf-8")
    line = broken.split("status > > ")[0].count("\n") + 1
    says(screen(no_notebook), f"labs/{SLUG}/request.py:{line} is not Python yet", f"line {line}")


def test_a_wrong_return_type_is_named(no_notebook: Phase) -> None:
    solve(no_notebook)
    write(no_notebook, "Request.num_tokens", "return self.all_token_ids")
    text = screen(no_notebook)
    says(text, "✗ 00.2", "Request.num_tokens returned a list; its signature promises int")


def test_a_forgotten_return_is_named(no_notebook: Phase) -> None:
    solve(no_notebook)
    write(no_notebook, "RequestStatus.is_finished", "status > RequestStatus.PREEMPTED")
    says(screen(no_notebook), "is_finished returned None", "Is a `return` missing")


def test_infinite_recursion_is_named(no_notebook: Phase) -> None:
    solve(no_notebook)
    write(no_notebook, "Request.num_tokens_with_spec", "return self.num_tokens_with_spec + 1")
    says(screen(no_notebook), "num_tokens_with_spec calls itself without an end", "request.py:")


def test_a_task_that_uses_an_open_one_waits_for_it(no_notebook: Phase) -> None:
    solve(no_notebook, "RequestStatus.is_finished")
    says(screen(no_notebook), "○ 00.1", "✓ 00.3", "… 00.4", "waits for 00.1")


def test_editing_the_engine_instead_of_the_lab_is_noticed(no_notebook: Phase) -> None:
    root = str(no_notebook.root)
    identity = ["-c", "user.name=newcomer", "-c", "user.email=newcomer@example.org"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "clone"]):
        subprocess.run(["git", "-C", root, *words], check=True)
    engine = no_notebook.reference_file("mini_vllm.request")
    engine.write_text(engine.read_text(encoding="utf-8") + "\n# mine\n", encoding="utf-8")
    says(
        screen(no_notebook),
        f"mini_vllm/request.py is edited, but your file is labs/{SLUG}/request.py",
        "git checkout -- mini_vllm/request.py",
    )


def test_a_deleted_file_is_named_with_the_way_back(no_notebook: Phase) -> None:
    lab(no_notebook).unlink()
    says(screen(no_notebook), f"labs/{SLUG}/request.py is missing", "make reset-00")


def test_a_removed_notebook_cell_is_named_and_tasks_stay_green(phase: Phase) -> None:
    solve(phase)
    path = phase.labs / "lab.ipynb"
    document = json.loads(path.read_text(encoding="utf-8"))
    book = notebook_source.read(phase)
    gone = next(cell for cell in book.cells if cell.tag == "todo")
    kept = [cell for cell in document["cells"] if cell["metadata"].get("task") != gone.task]
    assert len(kept) < len(document["cells"])
    path.write_text(json.dumps(document | {"cells": kept}), encoding="utf-8")
    text = screen(phase)
    chapter = (phase.folder / "02-mini-build.md").read_text(encoding="utf-8")
    checkpoints = [line for line in chapter.splitlines() if line.startswith("  ✓ ")]
    assert len(checkpoints) == len(phase.exercises)
    says(text, *checkpoints)
    says(text, f"✗ {gone.task} {gone.title}", "its cell is gone", "reset 00 --notebook")
