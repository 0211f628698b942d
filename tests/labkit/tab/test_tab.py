"""The tab's bundle, and what its driver says, under plain Python: no browser is needed here."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.course import here, sealed, source
from labkit.course.console import Screen
from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.course.state import State
from labkit.learner import rounds
from labkit.practice import portfolio, progress
from labkit.practice.question import PHASES, draw
from labkit.reader import boxes
from labkit.tab import bundle, compiled, look, pyodide, remembering, site, taking

COURSE = Course(ROOT)
ZERO = COURSE.phase("00")
RIGHT = {m: ZERO.reference_file(m).read_text("utf-8") for m in ZERO.modules}
MODULE = ZERO.modules[0]
PATH = ZERO.lab_path(MODULE)
WHOLE = {ZERO.lab_path(m): text for m, text in RIGHT.items()}
ENDLESS = source.replace_body(RIGHT[MODULE], "Request.num_tokens", "while True:\n    pass")
WRONG = source.replace_body(RIGHT[MODULE], "Request.num_tokens", "return self.num_prompt_tokens")


@pytest.fixture(scope="module")
def contents() -> dict[str, bytes]:
    return bundle.contents(COURSE)


# ---------------------------------------------------------------- what is in the bundle
def test_the_bundle_holds_no_hidden_test_and_no_solution(contents: dict[str, bytes]) -> None:
    """Neither as a file nor inside of one: the bodies of the course's holes are looked for."""
    secret = re.compile(r"(^|/)(hidden|solutions|autograder)(/|$)|mutants/.*\.toml$")
    assert [name for name in contents if secret.search(name)] == []
    texts = [data.decode("utf-8", "replace") for data in contents.values()]
    everything = "\n".join(" ".join(text.split()) for text in texts)
    owned = {name for name, data in contents.items() if name.startswith("mini_vllm/")}
    found = []
    for phase in COURSE.ready:
        for module in phase.modules:
            assert phase.reference_file(module).relative_to(ROOT).as_posix() not in owned
            text = phase.reference_file(module).read_text("utf-8")
            for name in phase.holes(module):
                body = " ".join(source.body_text(text, source.find(text, name)).split())
                found += [f"{module}:{name}"] * (len(body) > 80 and body in everything)
    assert found == []


def test_what_is_sealed_comes_back_and_is_not_read_by_accident(contents: dict[str, bytes]) -> None:
    files = sealed.unseal(contents[sealed.NAME])
    assert files["mini_vllm/request.py"] == RIGHT[MODULE].encode()
    assert b"def " not in contents[sealed.NAME] and b"PK" not in contents[sealed.NAME][:4]


def test_the_bundle_is_the_same_each_time(contents: dict[str, bytes]) -> None:
    some = dict(list(contents.items())[:20])
    assert bundle.packed(some) == bundle.packed(dict(reversed(some.items())))


def test_every_skeleton_is_red_in_the_bundle(contents: dict[str, bytes]) -> None:
    for slug, names in here.tasks().items():
        phase = COURSE.phase(slug)
        for name in names:
            text = contents[phase.lab_path(phase.exercise(name).module)].decode()
            assert f"TODO {name}" in text


def test_at_least_eighty_eight_tasks_run_in_a_browser() -> None:
    assert here.count() >= 88
    assert all(len(here.tasks()[COURSE.phase(n).slug]) == len(COURSE.phase(n).exercises)
               for n in ("00", "02", "03", "16"))  # fmt: skip


# ---------------------------------------------------------------- the pages
def test_each_task_has_a_box_or_says_where_it_runs() -> None:
    """At the end of its section, before the next heading of its level."""
    phase = COURSE.phase("08")
    page = "".join(f'<h2 id="build--task-{n}-x">Task</h2><p>{n}.</p>' for n in range(1, 12))
    text = boxes.with_boxes(phase, "02-mini-build.md", "build", page)
    assert text.count('class="try"') == len(here.tasks()[phase.slug]) == 1
    assert text.count('class="not-here"') == 10
    assert text.index("08.1 runs on your machine") < text.index('id="build--task-2-x"')
    assert 'data-task="08.11" data-file="labs/08-spec-decode/metrics.py"' in text


def test_the_worker_that_keeps_the_book_names_each_file_and_its_release(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>one</p>")
    site.write_worker(tmp_path)
    first = (tmp_path / "sw.js").read_text()
    digest = hashlib.sha256(b"<p>one</p>").hexdigest()[:32]
    assert f'FILES = {{\n"index.html": "{digest}"\n}};' in first and "%" not in first
    site.write_worker(tmp_path)
    assert (tmp_path / "sw.js").read_text() == first
    (tmp_path / "index.html").write_text("<p>two</p>")
    site.write_worker(tmp_path)
    assert (tmp_path / "sw.js").read_text() != first


def test_a_folder_that_lacks_pyodide_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "pyodide.mjs").write_text("another file")
    with pytest.raises(pyodide.Unavailable, match=r"does not hold .*asm\.wasm.* as pinned"):
        pyodide.bring(tmp_path, tmp_path / "given")


def test_the_folder_that_a_build_has_filled_may_be_named(tmp_path: Path) -> None:
    """Nothing is copied onto itself; what is lacking is said as of any folder."""
    folder = tmp_path / pyodide.FOLDER / pyodide.facts()["version"]
    folder.mkdir(parents=True)
    (folder / "pyodide.mjs").write_text("another file")
    with pytest.raises(pyodide.Unavailable, match="does not hold"):
        pyodide.bring(tmp_path, folder)


# ---------------------------------------------------------------- the driver
class Recorder(Screen):
    """Keeps the lines of a screen."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def put(self, *parts: tuple[str, str]) -> None:
        self.lines.append("".join(text for text, _ in parts))


def on_a_machine(place: Path, phase: Phase, files: dict[str, str]) -> list[str]:
    """What `make lab-NN` says of the same files, in processes of their own."""
    for name, text in files.items():
        (place / name).write_text(text, encoding="utf-8")
    out = Recorder()
    names = tuple(task for task in phase.exercises if task.id in here.tasks()[phase.slug])
    there = replace(phase, root=place, notebook="", exercises=names)
    rounds.judge_and_show(there, out=out, keeps=False)
    return out.lines


def words(events: list[dict[str, Any]]) -> list[list[str]]:
    """The lines of each answer."""
    found: list[list[str]] = [[]]
    for event in events:
        if event.get("event") == "line":
            found[-1].append("".join(text for text, _ in event["parts"]))
        elif "green" in event:
            found.append([])
    return found[:-1]


def test_the_tab_says_what_make_lab_says(
    contents: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same words for right and for wrong answers; and what is endless ends."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "right": RIGHT[MODULE],
        "wrong": WRONG,
        "not Python": RIGHT[MODULE] + "def (:\n",
        "torch": RIGHT[MODULE].replace("import enum\n", "import enum\nimport torch\n"),
    }
    files = {name: WHOLE | {PATH: text} for name, text in texts.items()}
    asked = [{"do": "run", "phase": "00", "task": "", "files": f} for f in files.values()]
    asked.append({"do": "hint", "phase": "00", "task": "00.2", "files": {PATH: WRONG}})
    asked.append({"do": "run", "phase": "00", "task": "00.2", "files": {PATH: ENDLESS}})
    asked.append({"do": "run", "phase": "00", "task": "", "files": {"../x.py": ""}})
    toml = "phases/00-orientation/phase.toml"
    hasty = {toml: contents[toml].replace(b"test_seconds = 5", b"test_seconds = 1")}
    events = look.drive(tmp_path, contents | hasty, asked)
    said = dict(zip([*texts, "hint", "endless", "foreign"], words(events), strict=True))
    for name in ("wrong", "not Python"):
        assert said[name] == on_a_machine(tmp_path, ZERO, files[name]), name
    assert any("first difference" in line for line in said["wrong"])
    assert any(line.strip() == "^" for line in said["not Python"])
    assert any("torch cannot be imported in a browser's tab" in line for line in said["torch"])
    assert any(line.startswith("00.2 ") for line in said["hint"])
    assert any("endless loop?" in line for line in said["endless"])
    assert any("It was at labs/00-orientation/request.py" in line for line in said["endless"])
    assert said["foreign"] == ["✗ ../x.py is no file that this page may write"]
    answers = [event for event in events if "green" in event]
    assert [answer["green"] for answer in answers] == [True] + [False] * 6
    assert json.loads(answers[0]["files"][".labkit/state.json"])["phases"]


def test_a_run_can_be_stepped_through_and_compared(
    contents: dict[str, bytes], tmp_path: Path
) -> None:
    """With the learner's scheduler, whole or wrong; the first difference is where it is wrong."""
    three = COURSE.phase("03")
    right = {three.lab_path(m): three.reference_file(m).read_text("utf-8") for m in three.modules}
    path = three.lab_path("mini_vllm.core.scheduler")
    body = "return min(num_new_tokens, token_budget, 1)"
    wrong = source.replace_body(right[path], "Scheduler._clamp_new_tokens", body)
    broken = source.replace_body(right[path], "Scheduler.schedule", "return 1 / 0")
    files = [right, right | {path: wrong}, right | {path: wrong}, right | {path: broken}]
    verbs = ["watch", "watch", "trace", "watch"]
    asked = [{"do": do, "phase": "03", "files": f} for do, f in zip(verbs, files, strict=True)]
    events = look.drive(tmp_path, contents, asked)
    same, other = (event["data"] for event in events if event.get("event") == "recording")
    assert same["difference"] is None and [run["name"] for run in same["runs"]] == [
        "yours", "the reference"]  # fmt: skip
    assert other["difference"]["step"] > 0
    said = words(events)
    assert "yours: all of phase 03" in said[0]
    assert any("first difference in step" in line for line in said[2])
    assert any("ZeroDivisionError" in line and path in line for line in said[3])


def test_the_learners_schedulers_race(contents: dict[str, bytes], tmp_path: Path) -> None:
    """One that preempts more is slower; one that raises is out, and the others are shown."""
    three = COURSE.phase("03")
    path = three.lab_path("mini_vllm.core.scheduler")
    right = three.reference_file("mini_vllm.core.scheduler").read_text("utf-8")
    broken = source.replace_body(right, "Scheduler.schedule", "return 1 / 0")
    asked = [{"do": "race", "phase": "03", "files": {path: text}} for text in (right, broken)]
    same, out = words(look.drive(tmp_path, contents, asked))
    assert [line.split()[-4:] for line in same[-2:-1]] == [line.split()[-4:] for line in same[-1:]]
    assert same[-2].startswith("yours, vllm-v1 ") and same[-1].startswith("vllm-v1 ")
    assert out[-2].startswith("✗ yours, vllm-v1: raised ZeroDivisionError") and out[-1] == same[-1]


def test_a_quiz_is_asked_and_what_is_wrong_comes_back(
    contents: dict[str, bytes], tmp_path: Path
) -> None:
    kind, seed = "02/hits", "1/0/0"
    right = str(draw(kind, seed).engine())
    answers = ["no number", right, "", "1000"]
    asked: list[dict[str, Any]] = [{"do": "quiz", "number": number, "seed": 3} for number in
                                   ("02", "05")]  # fmt: skip
    asked += [{"do": "say", "kind": kind, "seed": seed, "said": said} for said in answers]
    events = look.drive(tmp_path, contents, [*asked, {"do": "quiz", "seed": 3}])
    assert sum(event.get("event") == "question" for event in events) == 5
    verdicts = [event["verdict"] for event in events if event.get("event") == "verdict"]
    assert verdicts == ["right", "skipped", "wrong"]
    said = words(events)
    assert said[1] == ["The questions of 05 need torch: make quiz-05 on your machine."]
    assert said[2] == ["✗ 'no number' is no number; answer with one, such as 12"]
    assert said[5][0].startswith(f"✗ it is {right}.")
    assert said[6][0].startswith("Nothing is due. The next question is due on ")


def test_every_kind_of_question_is_asked_here_or_needs_torch(
    contents: dict[str, bytes], tmp_path: Path
) -> None:
    asked = [{"do": "quiz", "number": phase, "seed": 1} for phase in PHASES]
    events = look.drive(tmp_path, contents, asked)
    there = {event["kind"][:2] for event in events if event.get("event") == "question"}
    assert {"00", "02", "03", "08", "15", "16", "18"} <= there
    unexplained = [lines for lines in words(events) if lines and "need torch" not in lines[0]]
    assert unexplained == []


# ---------------------------------------------------------------- bytecode
@pytest.mark.slow
def test_bytecode_starts_python_sooner_and_changes_no_source(tmp_path: Path) -> None:
    """Node.js runs the tab's own Python, which makes it; needs Pyodide, from an earlier build."""
    brought = ROOT / pyodide.FOLDER / pyodide.facts()["version"]
    if shutil.which("node") is None or not brought.is_dir():
        pytest.skip("NOT RUN: needs Node.js, and Pyodide: `make book` fetches it")
    place = tmp_path / "try"
    tab = site.write(COURSE, tmp_path)
    assert tab.bytes < site.FIRST_RUN
    with zipfile.ZipFile(place / "course.zip") as archive:
        names = set(archive.namelist())
        assert archive.read("labkit/tab/driver.py") == (
            ROOT / "labkit/tab/driver.py").read_bytes()  # fmt: skip
    assert "labkit/tab/__pycache__/driver.cpython-314.pyc" in names
    assert not [name for name in names if name.endswith(".pyc") and name.startswith("labs/")]
    with zipfile.ZipFile(place / "pyodide" / "python_stdlib.zip") as archive:
        assert "json/decoder.pyc" in archive.namelist()


def test_without_node_the_pages_are_built_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in compiled.ARCHIVES:
        (tmp_path / "try" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "try" / name).write_bytes(b"as it was")
    monkeypatch.setattr("shutil.which", lambda name: None)
    why = compiled.add_bytecode(tmp_path / "try", tmp_path / "kept")
    assert why == "Node.js is not installed"
    assert (tmp_path / "try" / "course.zip").read_bytes() == b"as it was"


# ---------------------------------------------------------------- work that comes to a machine
def exported(path: Path, **texts: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without labs, for commands."""
    place = tmp_path / "machine"
    (place / "labs").mkdir(parents=True)
    for name in ("phases", "mini_vllm", "tests"):
        (place / name).symlink_to(ROOT / name)
    monkeypatch.setenv("LABKIT_ROOT", str(place))
    return place


def test_an_export_comes_into_labs_with_a_backup(
    tmp_path: Path, machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine / PATH).parent.mkdir()
    (machine / PATH).write_text("mine = 1\n")
    state = {"hints": {"00.1": 2}, "phases": {ZERO.slug: {"passed": ["00.1"], "green": True}}}
    files = {PATH: WRONG, ".labkit/state.json": json.dumps(state), "../evil.py": "x"}
    taking.take(exported(tmp_path / "work.zip", **files))
    said = capsys.readouterr().out
    assert (machine / PATH).read_text() == WRONG
    [kept] = machine.glob(f".labkit/backups/*/{PATH}")
    assert kept.read_text() == "mine = 1\n"
    assert f"took in {PATH}" in said and "left out" in said and "make lab-00" in said
    known = json.loads((machine / ".labkit" / "state.json").read_text())
    assert known["hints"] == {"00.1": 2}
    assert known["phases"][ZERO.slug]["passed"] == ["00.1"]
    assert not known["phases"][ZERO.slug]["green"], "the notebook is not answered"


def test_progress_and_the_portfolio_are_the_same_here_and_there(
    contents: dict[str, bytes],
    tmp_path: Path,
    machine: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the tab shows is what `progress` and `portfolio` say after `import`; a task that was
    edited since it passed counts in neither."""
    edited = source.replace_body(RIGHT[MODULE], "RequestStatus.is_finished", "return bool(self)")
    run = {"do": "run", "phase": "00", "task": "", "files": WHOLE}
    hint = {"do": "hint", "phase": "00", "task": "00.2", "files": WHOLE}
    labs = WHOLE | {PATH: edited, "labs/99-none/none.py": "x = 1\n"}
    reports = [{"do": "report", "labs": files} for files in (labs, WHOLE)]
    (tmp_path / "tab").mkdir()
    events = look.drive(tmp_path / "tab", contents, [run, hint, *reports])
    said = words(events)[2:]
    pages = [event["page"] for event in events if event.get("event") == "portfolio"]
    state = next(event for event in reversed(events) if "green" in event)["files"][taking.STATE]
    for files, lines, page in zip((labs, WHOLE), said, pages, strict=True):
        taking.take(exported(tmp_path / "work.zip", **files, **{taking.STATE: state}))
        capsys.readouterr()
        progress.progress()
        assert lines == capsys.readouterr().out.splitlines()
        assert page == portfolio.page(Course(machine), portfolio.Shown())
    assert "edited since it passed: 00.1" in said[0][0] and "Request.num_tokens" in pages[0]
    assert "RequestStatus.is_finished" in pages[1] and "notebook -/- · hints 1" in said[1][0]


def test_two_memories_become_one(contents: dict[str, bytes], tmp_path: Path) -> None:
    """In a tab that takes an export in; one that is damaged changes nothing."""
    phase = COURSE.phase("08")
    mine, theirs = State(tmp_path), {
        "hints": {"08.1": 1, "08.2": 3, "08.3": "many"},
        "phases": {phase.slug: {"passed": ["08.1"], "counts": {"08.1": [2, 2]}}, "99-none": {}},
        "quiz": {"00/x": 3},
    }  # fmt: skip
    mine.put("hints", "08.1", 2)
    mine.put("phases", phase.slug, {"passed": ["08.2"], "counts": {"08.2": [1, 1]}, "when": "now"})
    remembering.remember(COURSE, mine, theirs)
    assert mine.data["hints"] == {"08.1": 2, "08.2": 3} and not mine.data.get("quiz")
    record = mine.get("phases", phase.slug)
    assert record["passed"] == ["08.1", "08.2"] and record["when"] == "now"
    assert record["public"] == ["-", "-"] and not record["green"], "not all tasks were judged"
    kept = {taking.STATE: json.dumps(mine.data)}
    asked = [{"do": "join", "theirs": text, "files": kept} for text in (json.dumps(
        {"hints": {"08.1": 4}}), "[]", "{")]  # fmt: skip
    events = look.drive(tmp_path, contents, asked)
    answers = [json.loads(e["files"][taking.STATE]) for e in events if "green" in e]
    assert answers[0]["hints"] == {"08.1": 4, "08.2": 3}
    assert answers[1] == answers[2] == mine.data
    assert [bool(lines) for lines in words(events)] == [False, True, True]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"no zip", "cannot be read as a zip file"),
        (None, "holds no lab file of this course"),
    ],
)
def test_what_is_no_export_changes_nothing(data: bytes | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "work.zip"
    if data is None:
        exported(file, **{"readme.txt": "hello"})
    else:
        file.write_bytes(data)
    with pytest.raises(ValueError, match=says):
        taking.read(COURSE, file)
