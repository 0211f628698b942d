"""Bug hunts: a mistake that an engine really had, put back, and a user's report of it.

`tests/corpora/hunts/NN-slug.toml` holds them. The mistake is a named one of
`tests/corpora/mutants`; the script shows what a user saw; the row is the true story's in
`upstream_notes/HISTORY.md`. A hunt lives in `hunts/NN.K/`: the learner's files are never touched.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.course import source
from labkit.course.files import backup, write_text
from labkit.course.manifest import Course, Exercise, ManifestError, Phase
from labkit.inside import child
from labkit.judge import mistakes, public
from labkit.judge.hidden_suite import run_hidden
from labkit.practice import copies, scenes
from labkit.practice.counted import hunts_file
from labkit.process import overlay

CLUES = ("where to look", "which rule is broken", "where it shows")
KEYS = {"title", "mutant", "row", "symptom", "script", "clues", "story"}
OPTIONAL = {"row", "wrong_fixes", "profile"}
SCRIPT_SECONDS = 180.0
"""That a hunt's script may compute or sleep."""
PROFILED = """
Where the script spends its time, as a flame graph of functions:

    make hunt-{hunt.id} ARGS="--profile"
"""
LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
ROW = re.compile(r"\| (H\d\d\d?) \|")


@dataclass(frozen=True)
class Hunt:
    """One bug to be found.

    Attributes:
        id: "03.2", the second hunt of phase 03.
        mistake: what is wrong, where, and the whole module that has it.
        row: of HISTORY.md, or "" for a mistake that learners make.
        symptom: what a user writes.
        script: Python that shows it.
        clues: one text for each of CLUES.
        story: what it was, told after the hunt.
        wrong_fixes: where the engine is right and slow: named mistakes of the same
            function that do less work, and are wrong. The hidden suite refuses each.
    profile: false where what grows takes no time of the processor, so that a profile
        of the script does not name the function: bytes to a device, pauses of a loop.
    """

    phase: Phase
    id: str
    title: str
    mistake: mistakes.Mutant
    row: str
    symptom: str
    script: str
    clues: tuple[str, ...]
    story: str
    wrong_fixes: tuple[mistakes.Mutant, ...] = ()
    profile: bool = True

    @property
    def is_seen_in_a_profile(self) -> bool:
        return bool(self.wrong_fixes) and self.profile

    @property
    def exercise(self) -> Exercise:
        return self.phase.exercise(self.mistake.exercise)

    @property
    def folder(self) -> Path:
        return self.phase.root / "hunts" / self.id

    @property
    def file(self) -> Path:
        """The working copy that the learner mends."""
        return self.folder / f"{self.mistake.module.rpartition('.')[2]}.py"

    def shown(self, path: Path) -> str:
        return path.relative_to(self.phase.root).as_posix()


def load(phase: Phase) -> list[Hunt]:
    """The phase's hunts, in their order; [] if it has none.

    Raises:
        ManifestError: an entry is incomplete, or names no mistake of the phase.
    """
    path = hunts_file(phase)
    if not path.exists():
        return []
    known = {entry["name"]: entry for entry in mistakes.entries(phase)}
    hunts = []
    for number, entry in enumerate(tomllib.loads(path.read_text(encoding="utf-8"))["hunts"], 1):
        where = f"{path.name}: hunt {number}"
        if set(entry) | OPTIONAL != KEYS | OPTIONAL:
            raise ManifestError(f"{where}: its keys are {', '.join(sorted(entry))}; they must be"
                                f" {', '.join(sorted(KEYS))}; row may be left out, and wrong_fixes"
                                " and profile be added")  # fmt: skip
        named = [entry["mutant"], *entry.get("wrong_fixes", [])]
        for name in named:
            if name not in known:
                raise ManifestError(f"{where}: there is no mistake {name!r} in"
                                    f" tests/corpora/mutants/{phase.slug}.toml")  # fmt: skip
        if len(entry["clues"]) != len(CLUES):
            raise ManifestError(f"{where}: it has {len(entry['clues'])} clues; give {len(CLUES)}")
        mistake, *wrong = (mistakes.load_one(phase, where, known[name]) for name in named)
        texts = {key: entry.get(key, "").strip() for key in KEYS - {"clues", "mutant"}}
        profile = entry.get("profile", True)
        clues = tuple(clue.strip() for clue in entry["clues"])
        hunts.append(
            Hunt(phase, f"{phase.number}.{number}", mistake=mistake, clues=clues,
                 wrong_fixes=tuple(wrong), profile=profile, **texts)
        )  # fmt: skip
    return hunts


def find(course: Course, name: str) -> Hunt:
    """The hunt called "03.2"; ManifestError if there is none."""
    return copies.find(course, name, load, "hunt")


# ------------------------------------------------------------------ what the learner gets
def buggy_text(hunt: Hunt) -> str:
    """The module with the mistake in it: the learner's own module if its tasks passed, else the
    reference's."""
    mistake = hunt.mistake
    mine = copies.own_text(hunt.phase, mistake.module)
    if mine is not None:
        wrong = source.function_text(mistake.text, source.find(mistake.text, mistake.function))
        try:
            return source.replace_function(mine, mistake.function, wrong, hunt.file.name)
        except (SyntaxError, source.SourceError):
            pass  # it is written otherwise: the reference has the function
    return mistake.text


def environment(hunt: Hunt, mapping: Mapping[str, str]) -> dict[str, str]:
    """Of a process that has these files in the engine."""
    return {**overlay.environment(hunt.phase.root, mapping), **hunt.phase.environment}


def observe(hunt: Hunt, mapping: Mapping[str, str], timeline: Path | None = None) -> str:
    """What the hunt's script prints with these files in the engine."""
    env = environment(hunt, mapping)
    if timeline:
        env[scenes.TIMELINE] = str(timeline)
    limits = child.Limits(SCRIPT_SECONDS, memory_mb=0)
    done = child.run(["-W", "ignore", "-c", hunt.script], env, limits, hunt.phase.root)
    if done.timed_out:
        return f"no answer within {done.after}"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return done.stdout.strip("\n") + (f"\n{last}" if done.code else "")


def profile(hunt: Hunt, page: Path) -> int:
    """Run the report's script under the profiler, with the working copy in the engine, and write
    the page; its exit code. The first lines that it prints name the functions with the most time
    of their own."""
    words = ["-m", "labkit.learner.flames", hunt.shown(page), "--title", hunt.title]
    words += ["--script", hunt.shown(hunt.folder / "reproduce.py")]
    return run_with_copy(hunt, words)


def rerun(hunt: Hunt) -> int:
    """Run `reproduce.py` as it stands, with the working copy in the engine; its exit code. What
    either prints is seen at once, so both may be changed to print more."""
    path = str(hunt.folder / "reproduce.py")
    start = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    return run_with_copy(hunt, ["-c", start, path])


def run_with_copy(hunt: Hunt, words: Sequence[str]) -> int:
    """The exit code of Python with these arguments and the working copy in the engine."""
    env = environment(hunt, {hunt.mistake.module: str(hunt.file)})
    command = [sys.executable, "-W", "ignore", *words]
    return subprocess.run(command, env=env, cwd=hunt.phase.root).returncode


def begin(hunt: Hunt) -> Path | None:
    """Write the working copy, the report and a recording; a begun hunt is backed up first, and its
    backup returned."""
    files = [hunt.file, hunt.folder / "REPORT.md", hunt.folder / "reproduce.py"]
    kept = backup(hunt.phase.root, files)
    write_text(hunt.file, buggy_text(hunt))
    write_text(hunt.folder / "reproduce.py", hunt.script + "\n")
    timeline = hunt.folder / "timeline.jsonl"
    timeline.unlink(missing_ok=True)
    seen = observe(hunt, {hunt.mistake.module: str(hunt.file)}, timeline)
    expected = observe(hunt, {})
    write_text(hunt.folder / "REPORT.md", report(hunt, seen, expected, timeline.exists()))
    return kept


def report(hunt: Hunt, seen: str, expected: str, recorded: bool) -> str:
    """The user's report, as Markdown."""
    look = f"\n    make inspect TRACE=hunts/{hunt.id}/timeline.jsonl\n" if recorded else ""
    recording = f"\nA recording of the run that goes wrong:\n{look}" if look else ""
    return f"""# {hunt.title}

{hunt.symptom}

What we ran (`reproduce.py`):

```python
{hunt.script}
```

What we see:

```
{seen}
```

What the same script prints with an engine that has no such mistake:

```
{expected}
```
{recording}
The mistake is in `{hunt.file.name}`, in one function. Mend it there, then:

    make hunt-{hunt.id}

The script alone, with your file and without the tests. Print in both what you like, and try other
sizes in `reproduce.py`; what is judged is the script above:

    make hunt-{hunt.id} ARGS="--run"
{PROFILED.format(hunt=hunt) if hunt.is_seen_in_a_profile else ""}"""


# ------------------------------------------------------------------ what is judged
def judged_tasks(hunt: Hunt) -> list[str]:
    """The tasks of the hunt's module: a mend may break a neighbour."""
    return [task.id for task in hunt.phase.of_module(hunt.mistake.module)]


def judge(hunt: Hunt) -> public.PhaseResult:
    """The hidden tests of the tasks of the hunt's module, on the working copy."""
    files = {hunt.mistake.module: str(hunt.file)}
    return run_hidden(hunt.phase, files, seed=1, tasks=judged_tasks(hunt))


def row_text(hunt: Hunt) -> str:
    """Where it was, why, and how it stands at the pins, as the catalogue has it; "" without a row.
    How long a fix took the catalogue does not say, so nothing here does."""
    text = (hunt.phase.root / "upstream_notes" / "HISTORY.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        found = ROW.match(line)
        if hunt.row and found and found[1] == hunt.row:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            where = LINK.sub(r"\1 (\2)", cells[1])
            return f"{where}: {cells[2]} In the versions that this course pins: {cells[3]}."
    return ""
