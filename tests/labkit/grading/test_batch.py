"""A class: one broken submission stops no other, and a second run does only what is left."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from labkit.course.files import write_text
from labkit.course.manifest import Course, Phase
from labkit.course.root import find_root
from labkit.course.skeleton import skeleton
from labkit.grading import batch, submission
from labkit.grading.batch import Job
from labkit.grading.result import Flag, GradeResult, load
from labkit.inside import child

ROOT = find_root()
PHASE = Course(ROOT).phase("00")
REFERENCE = (ROOT / "mini_vllm" / "request.py").read_text(encoding="utf-8")
HOLE = "        return status > RequestStatus.PREEMPTED\n"


def with_body(body: str) -> str:
    """The reference with another body for is_finished."""
    assert HOLE in REFERENCE
    return REFERENCE.replace(HOLE, f"        {body}\n")


CLASS: dict[str, str | bytes | None] = {
    "ada": REFERENCE,
    "bob": skeleton(PHASE, "mini_vllm.request"),
    "cid": with_body("return False"),
    "dan": "def broken(:\n",
    "eve": with_body("while True: pass"),
    "fay": None,
    "gus": b"\x7fELF\x00\x01\x02\xff\xfe",
    "hal": with_body("__import__('os')._exit(0)"),
    "ida": "import no_such_module\n",
    "jon": with_body("return [0] * 10**11"),
    "kim": "",
    "lea": REFERENCE + "\n\nprint('hello ' * 100000)\n",
}
"""A student's request.py; None: the file is missing."""
BROKEN = {"dan", "eve", "fay", "gus", "hal", "ida", "jon", "kim"}


def hand_in(folder: Path, students: Mapping[str, str | bytes | None]) -> Path:
    """A folder for each student: her request.py, and the reference's step.py."""
    for name, content in students.items():
        (folder / name).mkdir(parents=True)
        if content is not None:
            data = content.encode() if isinstance(content, str) else content
            (folder / name / "request.py").write_bytes(data)
        shutil.copy(ROOT / "mini_vllm" / "engine" / "step.py", folder / name)
    return folder


def fake(job: Job) -> GradeResult:
    """A grader that judges at once."""
    files = submission.find_files(job.phase, job.folder)
    refused = submission.refuse(job.phase, files, job.seed, submission.Problem("", ""))
    result = replace(refused, isolation="plain", problem="")
    result.write(job.out)
    return result


# ---------------------------------------------------------------- what is done already
@pytest.fixture
def job(tmp_path: Path) -> Job:
    hand_in(tmp_path / "in", {"ada": "x = 1\n"})
    (job,) = batch.find_jobs(PHASE, tmp_path / "in", tmp_path / "out", seed=7)
    fake(job)
    return job


def test_a_result_of_the_same_is_done(job: Job) -> None:
    assert batch.finished(job) == load(job.out)


def test_another_submission_is_graded_again(job: Job) -> None:
    (job.folder / "request.py").write_text("x = 2\n", encoding="utf-8")
    assert batch.finished(job) is None


def test_another_seed_is_graded_again(job: Job) -> None:
    assert batch.finished(replace(job, seed=8)) is None


def test_another_phase_is_graded_again(job: Job) -> None:
    assert batch.finished(replace(job, phase=Course(ROOT).phase("02"))) is None


@pytest.mark.parametrize("status", ["partial", "error"])
def test_what_was_not_judged_is_graded_again(job: Job, status: str) -> None:
    replace(load(job.out), status=status).write(job.out)
    assert batch.finished(job) is None


def test_another_suite_is_graded_again(job: Job) -> None:
    replace(load(job.out), suite="of last year").write(job.out)
    assert batch.finished(job) is None


def test_half_a_file_is_graded_again(job: Job) -> None:
    job.out.write_text(job.out.read_text(encoding="utf-8")[:99], encoding="utf-8")
    assert batch.finished(job) is None


# ---------------------------------------------------------------- the class
def test_a_name_is_one_line(tmp_path: Path) -> None:
    """Else a folder writes another student's points on the screen, or turns it red."""
    hand_in(tmp_path / "in", {"a\nbob: 40 of 40 points": "", "c\x1b[31m": "", "\u5b66 \u00fc": ""})
    names = [job.name for job in batch.find_jobs(PHASE, tmp_path / "in", tmp_path / "out", 7)]
    assert sorted(names) == ["a\\nbob: 40 of 40 points", "c\\x1b[31m", "\u5b66 \u00fc"]


@pytest.mark.parametrize("letter", ["x", "\u5b66"])
def test_a_long_name_does_not_stop_a_class(tmp_path: Path, letter: str) -> None:
    """A folder may have a name that leaves no room for `.json`, nor for `.practice.json`."""
    length = 255 // len(letter.encode())
    names = [letter * length, letter * (length - 1), "ada"]
    hand_in(tmp_path / "in", dict.fromkeys(names, "x = 1\n"))
    jobs = batch.find_jobs(PHASE, tmp_path / "in", tmp_path / "out", seed=7)
    for job in jobs:
        assert fake(job) == load(job.out)
    assert {job.name for job in jobs} == set(names)
    assert len(list((tmp_path / "out").iterdir())) == 3
    assert (tmp_path / "out" / "ada.json").exists()


def test_every_folder_is_a_student(tmp_path: Path) -> None:
    hand_in(tmp_path, {"zoe": "", "ada": "", ".git": ""})
    (tmp_path / "notes.txt").write_text("not a student", encoding="utf-8")
    names = [job.name for job in batch.find_jobs(PHASE, tmp_path, tmp_path, 7)]
    assert names == ["ada", "zoe"]
    assert [j.name for j in batch.find_jobs(PHASE, tmp_path, tmp_path / "zoe", 7)] == ["ada"]
    (tmp_path / "bob.zip").write_bytes(b"PK")
    assert "bob.zip" in batch.strays(tmp_path) and ".git" not in batch.strays(tmp_path)
    with pytest.raises(ValueError, match="holds no folders; it must hold one for each student"):
        batch.find_jobs(PHASE, tmp_path / "ada", tmp_path, 7)


def test_the_class_keeps_its_seed(tmp_path: Path) -> None:
    first = batch.class_seed(tmp_path, None)
    assert batch.class_seed(tmp_path, None) == first
    assert batch.class_seed(tmp_path, 5) == 5
    assert batch.class_seed(tmp_path, None) == 5
    write_text(tmp_path / "class.toml", "sead = 1\n")
    with pytest.raises(ValueError, match=r"class\.toml holds no seed; write `seed = 1`"):
        batch.class_seed(tmp_path, None)


def test_side_by_side_every_job_gives_a_result(tmp_path: Path) -> None:
    names = [f"student-{number:02}" for number in range(20)]
    hand_in(tmp_path / "in", dict.fromkeys(names, ""))
    jobs = batch.find_jobs(PHASE, tmp_path / "in", tmp_path / "out", 7)
    assert sorted(job.name for job, _ in batch.run(jobs, 4, fake)) == names


def test_a_grader_that_dies_is_an_error_of_the_grader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, costs the student nothing for good, and is tried again."""
    hand_in(tmp_path / "in", {"ada": "x = 1\n"})
    (job,) = batch.find_jobs(PHASE, tmp_path / "in", tmp_path / "out", 7)
    real = batch.child.run
    dies = ["-c", "import os, sys; print('no space', file=sys.stderr, flush=True); os.abort()"]
    monkeypatch.setattr(batch.child, "run", lambda words, *rest: real(dies, *rest))
    result = batch.grade(job)
    assert result.status == "error"
    assert "ended without a result: exit code -6; it said: " in result.problem
    assert load(job.out) == result
    assert batch.finished(job) is None


def test_the_summary_names_whose_every_function_is_the_references(job: Job) -> None:
    """In a class nearly all learners write one short function as the reference does."""
    one = Flag("same as the reference", "request.py: f")
    holes = sum(len(PHASE.holes(module)) for module in PHASE.modules)
    flags = {"ada": holes * [one], "bob": [one], "cid": [one], "dan": []}
    results = {name: replace(load(job.out), flags=own) for name, own in flags.items()}
    console = Console(record=True, width=100)
    batch.show(PHASE, results, job.out.parent, console)
    text = console.export_text()
    assert "every function is the reference's: ada\n" in text
    assert "some functions are: 2 more, in the column `flags`" in text


def test_the_rung_of_isolation_reaches_the_grader(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(batch, "load", lambda path: "found")
    monkeypatch.setattr(batch.child, "run", lambda words, *rest: seen.extend(words))
    batch.grade(replace(job, isolate="namespaces"))
    assert seen[seen.index("--isolation") + 1] == "namespaces"


def test_an_earlier_result_is_never_taken_for_a_new_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = batch.child.run
    monkeypatch.setattr(batch.child, "run", lambda words, *rest: real(["-c", "pass"], *rest))
    assert batch.grade(job).status == "error"


def grade_class(folder: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "labkit", "grade-class", "00", str(folder), "--out", str(out)]
    return subprocess.run(
        [*command, *words], cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=580
    )


@pytest.mark.slow
@pytest.mark.serial
def test_twelve_submissions_of_which_eight_are_broken(tmp_path: Path) -> None:
    folder, out = hand_in(tmp_path / "in", CLASS), tmp_path / "out"
    done = grade_class(folder, out, "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    results = {path.stem: load(path) for path in out.glob("*.json")}
    assert set(results) == set(CLASS)
    assert {name for name, r in results.items() if r.passed} == {"ada", "lea"}
    assert {name for name, r in results.items() if batch.why_broken(r)} == BROKEN
    assert all(result.status == "graded" for result in results.values())
    assert "12 submissions: 2 passed, 2 did not, 8 broken" in done.stdout
    for name in BROKEN:
        assert f"  {name}: " in done.stdout
    assert results["cid"].earned < results["ada"].earned == 50
    with open(out / "class.csv", encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert rows["ada"]["earned"] == "50"
    assert "request.py" in rows["dan"]["problem"]

    before = {path.stem: path.read_bytes() for path in out.glob("*.json")}
    shutil.rmtree(folder / "ada")
    hand_in(folder, {"ada": with_body("return True")})
    again = grade_class(folder, out)
    assert "11 of 12 are done already" in again.stdout
    assert not load(out / "ada.json").passed
    assert load(out / "ada.json").seed.value == 7
    after = {path.stem: path.read_bytes() for path in out.glob("*.json")}
    assert {name for name in after if after[name] != before[name]} == {"ada"}


def test_a_phase_without_its_suite_is_refused(tmp_path: Path) -> None:
    """In a student's tree the suites are sealed: nothing may be graded as if they had run."""
    hand_in(tmp_path / "in", {"ada": REFERENCE})
    copied = replace(PHASE, root=tmp_path)
    assert isinstance(copied, Phase)
    with pytest.raises(ValueError, match="hidden suite of phase 00 is not here"):
        submission.grade_folder(copied, tmp_path / "in" / "ada", 7)


def test_two_graders_do_not_share_a_folder(tmp_path: Path) -> None:
    """Each would remove what the other has written; after the first one's end the lock is gone."""
    pytest.importorskip("fcntl")
    out, refused = tmp_path / "out", pytest.raises(ValueError, match="another grade-class works on")
    with batch.alone(out), refused, batch.alone(out):
        pass
    with batch.alone(out):
        assert not list(out.glob("*.json"))


def test_what_a_killed_run_has_put_aside_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sandboxes of 5 MB each: a process that is killed cannot remove them."""
    pytest.importorskip("fcntl")
    aside, out = tmp_path / "tmp", tmp_path / "out"
    aside.mkdir()
    monkeypatch.setenv("TMPDIR", str(aside))
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = (
        "import os, pathlib, signal, tempfile\nfrom labkit.grading import batch\n"
        f"with batch.alone(pathlib.Path({str(out)!r})):\n"
        "    tempfile.mkdtemp()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT)
    (left,) = aside.iterdir()
    assert len(list(left.iterdir())) == 1
    with batch.alone(out):
        (mine,) = aside.iterdir()
        assert mine != left and Path(tempfile.mkdtemp()).parent == mine
        assert os.environ["TMPDIR"] == str(mine)
    assert list(aside.iterdir()) == [] and os.environ["TMPDIR"] == str(aside)


def started(pid: int) -> list[int]:
    """All that a process has started, and what these have, as far as it lives."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found += [int(folder.name), *started(int(folder.name))]
    return found


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def hear_signals() -> None:
    """What nohup and a script's `&` let these tests ignore, a child would ignore, too."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.skipif(sys.platform != "linux", reason="not run: there is no /proc")
@pytest.mark.parametrize("command", ["grade-class", "grade-submission"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_grader_that_is_stopped_leaves_no_process_and_no_folder(
    tmp_path: Path, command: str, name: str
) -> None:
    """At once, and not when the submissions at work have been judged."""
    hand_in(tmp_path / "in", dict.fromkeys(("ada", "bob"), with_body("while True: pass")))
    aside, at = tmp_path / "tmp", tmp_path / "in" / ("ada" if command == "grade-submission" else "")
    aside.mkdir(mode=0o711)
    words = [sys.executable, "-m", "labkit", command, "00", str(at)]
    words += ["--jobs", "2", "--out"] if command == "grade-class" else ["--result"]
    words += [str(tmp_path / "out")]
    env = os.environ | {"TMPDIR": str(aside)}
    with open(tmp_path / "said", "w") as said:
        grader = subprocess.Popen(
            words, cwd=ROOT, env=env, stdout=said, stderr=said, preexec_fn=hear_signals
        )
    deadline = time.monotonic() + 300
    while not (workers := list(aside.glob("**/scratch"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers, (tmp_path / "said").read_text()
    time.sleep(1)
    while not (processes := started(grader.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    grader.send_signal(getattr(signal, name))
    begin = time.monotonic()
    code = grader.wait(300)
    while any(map(lives, processes)) and time.monotonic() - begin < 40:
        time.sleep(0.05)
    assert processes and not any(map(lives, processes))
    assert time.monotonic() - begin < 30
    if name != "SIGKILL":
        assert code == 130 and "Interrupted." in (tmp_path / "said").read_text()
        assert list(aside.iterdir()) == []


def test_practice_lies_beside_the_results_and_not_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A student may be called "ada.practice", and an export reads every result of the folder."""
    hand_in(tmp_path / "in", {"ada": "", "ada.practice": ""})
    jobs = batch.find_jobs(PHASE, tmp_path / "in", tmp_path / "out", 7)
    results = {job.out for job in jobs}
    asked: list[Path] = []

    def run(words: list[str], *_: object) -> child.Finished:
        asked.append(Path(words[words.index("--result") + 1]))
        return child.Finished(1, "", "no", 0.1)

    monkeypatch.setattr(batch.child, "run", run)
    for job in jobs:
        batch.grade_practice(job)
    assert len(set(asked)) == 2
    assert not {path.parent for path in asked} & {path.parent for path in results}
