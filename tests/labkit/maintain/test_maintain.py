"""The maintainer's track: the catalogue, the working copy, the process with vLLM, the screens."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.course.console import Screen
from labkit.course.root import ROOT, upstream_root
from labkit.grading import batch
from labkit.inside import child as child_of_inside
from labkit.maintain import bugs, child, command, copy, exam
from labkit.maintain.bugs import Bug, CatalogueError, Sibling
from labkit.maintain.copy import CopyError
from labkit.maintain.judge import Outcome, traces
from labkit.sandbox.build import SubmissionError
from labkit.setup.requirements import installed, missing, requirements

WANTED = requirements(("serve", "structured", "vision", "maintain"))
LACKING = [need.name for need in missing(WANTED, installed([need.name for need in WANTED]))]
runs_vllm = pytest.mark.skipif(
    bool(LACKING) or upstream_root(ROOT) is None,
    reason="`make maintain` and `make upstream` bring what is needed here",
)
BUGS = bugs.load(ROOT)
SCHEDULER = "vllm/core/scheduler.py"


# ------------------------------------------------------------------ the catalogue
def test_forty_bugs_each_with_a_name_of_its_own() -> None:
    assert len(BUGS) == 40
    assert len({bug.name for bug in BUGS}) == len({bug.id for bug in BUGS}) == 40
    for bug in BUGS:
        assert (ROOT / "phases").glob(f"{bug.phase}-*") and 1 <= bug.difficulty <= 5
        assert bugs.find(ROOT, bug.name) == bugs.find(ROOT, bug.id.lstrip("0")) == bug


def test_a_report_tells_no_number_and_no_file() -> None:
    for bug in BUGS:
        assert not re.search(r"#\d|\.py\b|vllm/", f"{bug.title} {bug.report}"), bug.id


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_what_is_sealed_is_complete(bug: Bug) -> None:
    sealed = bug.sealed()
    assert sealed.fix and len(sealed.wrong) >= 2 and sealed.cause and sealed.upstream
    assert len(bugs.neighbours(bug.tests)) >= 2
    if (tree := upstream_root(ROOT)) is not None:
        for fix in (sealed.fix, *(wrong.fix for wrong in sealed.wrong)):
            assert 0 < copy.size(tree, bugs.edits(tree, fix)) <= 60


def test_an_unknown_bug_is_named() -> None:
    with pytest.raises(CatalogueError, match="no bug '99'; `make maintain` lists the 40"):
        bugs.find(ROOT, "99")


def test_an_incomplete_entry_is_named(tmp_path: Path) -> None:
    (tmp_path / bugs.REPORTS).parent.mkdir(parents=True)
    (tmp_path / bugs.REPORTS).write_text('[[bugs]]\nid = "01"\n')
    with pytest.raises(CatalogueError, match="bug 01 has the keys id; they must be difficulty"):
        bugs.load(tmp_path)


def test_a_replacement_must_fit_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(CatalogueError, match=r"a.py holds 'x = 1\\n' 2 times; it must, once"):
        bugs.edits(tmp_path, [("a.py", "x = 1\n", "x = 2\n")])


# ------------------------------------------------------------------ the working copy
@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that is called as vLLM's."""
    place = tmp_path / "tree"
    for name, text in {
        "vllm/__init__.py": "",
        "vllm/core/__init__.py": "from vllm.core.scheduler import limit\n",
        SCHEDULER: "from vllm.core import sizes\n\n\ndef limit():\n    return sizes.LARGE\n",
        "vllm/core/sizes.py": "LARGE = 10\n",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


@pytest.fixture
def bug(tmp_path: Path) -> Bug:
    return Bug(tmp_path, "07", "too-large", "It is too large", "We see 10.", "03", 1)


def test_a_copy_has_a_history_that_begins_at_the_pin(bug: Bug, tree: Path) -> None:
    copy.begin(bug, tree)
    place = copy.folder(bug)
    assert place == bug.root / "hunts" / "upstream" / "07-too-large"
    log = subprocess.run(["git", "log", "--format=%s"], cwd=place, capture_output=True, text=True)
    assert log.stdout == "vLLM 0.22.1 (0decac0)\n"
    assert copy.git(place, "status", "--porcelain") == "", "report and test are not in the way"
    assert bug.report in (place / copy.REPORT).read_text()
    assert copy.edits(place, tree) == {}


def test_what_was_changed_is_found_and_counted(bug: Bug, tree: Path) -> None:
    copy.begin(bug, tree)
    place = copy.folder(bug)
    (place / "vllm/core/sizes.py").write_text("LARGE = 9\nMORE = 1\n")
    (place / "vllm/core/new.py").write_text("x = 1\n")
    (place / "notes.py").write_text("not below vllm/\n")
    found = copy.edits(place, tree)
    assert sorted(found) == ["vllm/core/new.py", "vllm/core/sizes.py"]
    assert copy.size(tree, found) == 4
    assert "-LARGE = 10" in list(copy.diff(tree, found))


def test_a_patch_is_what_was_changed_since_the_pin(bug: Bug, tree: Path) -> None:
    copy.begin(bug, tree)
    place = copy.folder(bug)
    (place / "vllm/core/sizes.py").write_text("LARGE = 9\n")
    copy.git(place, "add", "vllm")
    copy.git(place, *copy.AUTHOR, "commit", "-q", "-m", "Make it smaller")
    patch = copy.write_patch(place)
    text = patch.read_text()
    assert exam.patched({}, tree, text) == {"vllm/core/sizes.py": "LARGE = 9\n"}
    planted = {"vllm/core/more.py": "x = 1\n"}
    assert exam.patched(planted, tree, text) == {**planted, "vllm/core/sizes.py": "LARGE = 9\n"}


SIZES = "vllm/core/sizes.py"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "fix.patch changes no file"),
        ("--- a/x.py\n+++ b/x.py\n", "fix.patch changes x.py; it must be a file that vllm/ has"),
        ("--- a\n+++ b/vllm/../x.py\n", "changes vllm/../x.py; it must be"),
        (f"--- a/{SIZES}\n+++ b/{SIZES}\n@@ -1 +1 @@\n-NO\n+YES\n", "does not apply"),
    ],
)
def test_a_patch_that_is_refused(tree: Path, text: str, says: str) -> None:
    with pytest.raises(CatalogueError, match=re.escape(says)):
        exam.patched({}, tree, text)


# ------------------------------------------------------------------ the exam
def test_a_draw_follows_from_key_term_and_name() -> None:
    key = b"a key of many bytes"
    first = exam.draw(ROOT, key, "2026-autumn", "alice")
    assert first == exam.draw(ROOT, key, "2026-autumn", "alice")
    others = [exam.draw(ROOT, key, "2026-autumn", f"student{n}") for n in range(30)]
    assert len({tuple(bug.id for bug in chosen) for chosen in others}) > 10
    for chosen in [first, *others]:
        assert [min(bug.difficulty, 3) for bug in chosen] == [1, 2, 3]
        assert len({bug.phase for bug in chosen}) == 3
        assert len(set.union(*map(exam.files, chosen))) == sum(map(len, map(exam.files, chosen)))
    hard = {bug.phase for bug in exam.pool(ROOT) if bug.difficulty > 2}
    never = {bug.id for bug in exam.pool(ROOT) if bug.difficulty < 3 and {bug.phase} == hard}
    assert never == {"27", "30"}, "docs/instructors.md names those that cannot be drawn"
    asked = {bug.id for chosen in others for bug in chosen}
    assert asked <= {bug.id for bug in exam.pool(ROOT)} and len(exam.pool(ROOT)) == 23


SIBLING = Sibling("below vllm/core", ((SIZES, "LARGE = 10", "LARGE = 99"),))


def test_each_bug_of_the_exam_has_a_sibling_elsewhere() -> None:
    for bug in exam.pool(ROOT):
        sealed = bug.sealed()
        assert sealed.sibling and sealed.sibling.plant, bug.id
        places = {old for _, old, _ in sealed.fix}
        assert not places & {old for _, old, _ in sealed.sibling.plant}, bug.id
        assert f"def {bugs.SIBLING}(draw" in bug.tests.read_text(encoding="utf-8"), bug.id


def test_a_sibling_is_taken_back_where_it_still_stands() -> None:
    assert SIBLING.undone({SIZES: "LARGE = 99\n", "a.py": ""}) == {
        SIZES: "LARGE = 10\n",
        "a.py": "",
    }
    assert SIBLING.undone({SIZES: "LARGE = 7\n"}) == {SIZES: "LARGE = 7\n"}


def test_an_exam_gives_a_copy_with_the_sibling(
    bug: Bug, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = SimpleNamespace(sibling=SIBLING)
    monkeypatch.setattr(Bug, "sealed", lambda self: sealed)
    place = tmp_path / "exam" / "07-too-large"
    exam.give(bug, tree, place)
    assert (place / SIZES).read_text() == "LARGE = 99\n"
    assert copy.git(place, "status", "--porcelain") == "", "its history begins with the sibling"
    told = (place / copy.REPORT).read_text()
    assert "a second place, below vllm/core" in told and "make maintain-07" in told
    sealed.sibling = None
    with pytest.raises(CatalogueError, match="bug 07 has no sibling; an exam's bug needs one"):
        exam.planted(tree, bug)


def test_a_link_is_not_handed_in(tmp_path: Path) -> None:
    (tmp_path / copy.TEST).symlink_to("/etc/hostname")
    with pytest.raises(SubmissionError, match=r"test_mine\.py is a link or no file"):
        exam.handed_in(tmp_path)


def test_a_class_is_graded_student_by_student(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ada", "bob"):
        (tmp_path / "in" / name).mkdir(parents=True)
    row = {"test": "accepted", "fix": "right", "sibling": "=1+1", "words": "2"}

    def run(words: list[str], *rest: object) -> child_of_inside.Finished:
        if "grade" in words and "bob" not in words:
            result = Path(words[words.index("--result") + 1])
            result.write_text(json.dumps({"isolation": "namespaces", "bugs": {"34": row}}))
        said = "" if "grade" in words else "ada: 34\nbob: 35\n"
        return child_of_inside.Finished(0, said, "it broke", 1.0)

    monkeypatch.setattr(batch.child, "run", run)
    found = batch.exam_class(ROOT, tmp_path / "in", tmp_path / "out", ["key", "term"], "auto", 2)
    assert capsys.readouterr().out == "ada: 34\nbob: 35\nisolation: namespaces\n"
    first, second, third = batch.exam_table(found).splitlines()
    assert first == "student,bug,test,fix,sibling,words"
    assert second == "ada,34,accepted,right,'=1+1,2", "a cell is no formula"
    assert third.startswith("bob,,not graded: the grader ended without a result; it said: it broke")


def test_an_exam_needs_the_key_of_its_draw() -> None:
    with pytest.raises(ValueError, match="graded with the draw's --key and --term"):
        batch.exam_words(None, "2026-autumn")


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short\n")
    with pytest.raises(CatalogueError, match="holds 5 bytes; an exam's key has at least 16"):
        exam.read_key(tmp_path / "key")


def test_a_copy_that_cannot_be_judged_says_why(bug: Bug, tree: Path) -> None:
    copy.begin(bug, tree)
    place = copy.folder(bug)
    (place / SCHEDULER).write_text("def limit(:\n")
    with pytest.raises(CopyError, match=r"scheduler.py is no Python: .*; mend it first"):
        copy.edits(place, tree)
    (place / SCHEDULER).unlink()
    with pytest.raises(CopyError, match=r"was removed; `git checkout vllm/core/scheduler.py`"):
        copy.edits(place, tree)


# ------------------------------------------------------------------ the process
def run(tree: Path, text: str, edits: dict[str, str], calls: object) -> list[Outcome]:
    """What a run in a fork of this process says."""
    file = tree.parent / "test_here.py"
    file.write_text(text)
    words = {"tree": str(tree), "edits": edits, "file": str(file), "calls": calls}
    return [Outcome(**outcome) for outcome in child.forked(child.carry_out, words, 60)]


TEST = """
from vllm.core import limit, sizes

def the_bug(draw):
    assert limit() < 10 + 0 * draw.randint(1, 9), f"it is {limit()}"

def neighbour_size():
    sizes.LARGE = 3
    assert limit() == 3

def test_own():
    assert limit() == 10
"""


def test_a_run_sees_the_tree_and_its_edits(tree: Path, tmp_path: Path) -> None:
    calls = [["neighbour_size", None], ["the_bug", 1]]
    first, second = run(tree, TEST, {}, calls)
    assert first.passed and second == Outcome("the_bug", False, "test_here.py:5: it is 10")
    edited = tmp_path / "mine.py"
    edited.write_text("LARGE = 9\n")
    edits = {"vllm/core/sizes.py": str(edited)}
    assert all(outcome.passed for outcome in run(tree, TEST, edits, calls))
    edited.write_text("from vllm.core.scheduler import limit\nlimit = lambda: 8\n")
    package = {"vllm/core/__init__.py": str(edited)}
    assert run(tree, TEST.replace(", sizes", ""), package, [["the_bug", 1]])[0].passed


def test_own_tests_are_those_that_are_called_so(tree: Path) -> None:
    assert run(tree, TEST, {}, None) == [Outcome("test_own", True, "")]


def test_a_file_that_cannot_be_imported(tree: Path) -> None:
    (outcome,) = run(tree, "import vllm.nothing\n", {}, None)
    assert outcome == Outcome(
        "import", False, "test_here.py:1: ModuleNotFoundError: No module named 'vllm.nothing'"
    )


def test_a_test_that_hangs_or_dies(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "TEST_SECONDS", 1)
    hangs, dies = run(
        tree,
        "import os\n\ndef test_hangs():\n    while True: pass\n\n"
        "def test_dies():\n    os._exit(3)\n",
        {},
        None,
    )
    assert (
        hangs.said == "no end within 1 s of processor time" and dies.said == "the process died (3)"
    )


def test_sixty_traces() -> None:
    assert len(traces()) == 60


# ------------------------------------------------------------------ the screens
def test_the_list_shows_reports_by_phase(capsys: pytest.CaptureFixture[str]) -> None:
    command.show_all(Screen(), ROOT)
    shown = capsys.readouterr().out
    rows = re.findall(r"(?m)^  [○…✓] (\d\d)  phase (\d\d)  (\*+) +(.+)$", shown)
    assert len(rows) == 40 and [row[1] for row in rows] == sorted(row[1] for row in rows)
    assert {row[3] for row in rows} == {bug.title for bug in BUGS}


def test_a_check_before_a_beginning(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no bug is begun; `make maintain` lists them"):
        command.current(tmp_path)


def test_each_part_of_a_text_is_asked_for(bug: Bug) -> None:
    text = command.template(bug)
    assert command.unanswered(text) == list(command.SECTIONS)
    filled = text.replace("## What\n", "## What\nOne two three four five.\n")
    assert command.unanswered(filled) == list(command.SECTIONS[1:])


# ------------------------------------------------------------------ vLLM itself
@pytest.fixture(scope="module")
def bench():  # type: ignore[no-untyped-def]
    from labkit.maintain.judge import Bench

    with Bench(ROOT) as found:
        yield found


@runs_vllm
@pytest.mark.upstream
@pytest.mark.sampled(35)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_red_on_the_pin_green_with_our_fix(bug: Bug, bench) -> None:  # type: ignore[no-untyped-def]
    """And wrong fixes are refused, and 60 golden traces are decided as before."""
    from labkit.maintain import proof

    assert list(proof.faults(bench, bug)) == []


RIG = """
from labkit.maintain.rig import make_scheduler

def test_a():
    scheduler = make_scheduler(encoder_cache_size=9, max_num_encoder_input_tokens=7)
    assert scheduler.encoder_cache_manager.cache_size == 9
    assert scheduler.max_num_encoder_input_tokens == 7
"""


@runs_vllm
@pytest.mark.upstream
def test_the_rig_takes_the_limits_of_an_encoder_cache(bench, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "test_mine.py"
    file.write_text(RIG)
    assert bench.own_test(file, {}) == [Outcome("test_a", True, "")]


@runs_vllm
@pytest.mark.upstream
def test_what_is_handed_in_sees_no_key_and_no_other_test(tmp_path: Path) -> None:
    """In the strongest isolation that works here."""
    from labkit.maintain import judge, locked

    rung, why = locked.choose(judge.tree_of(ROOT))
    if not rung.hides:
        pytest.skip(f"no rung that hides works here: {why}")
    secret = tmp_path / "exam.key"
    secret.write_text("0123456789abcdef")
    file = tmp_path / "test_mine.py"
    sealed = ROOT / bugs.SEALED / "22.toml"
    file.write_text(
        f"import os\nimport vllm.v1.request\n\ndef test_a():\n"
        f"    assert not os.path.exists({str(secret)!r})\n"
        f"    assert not os.path.exists({str(sealed)!r})\n"
    )
    with judge.Bench(ROOT, rung) as locked_bench:
        assert locked_bench.own_test(file, {}) == [Outcome("test_a", True, "")]
