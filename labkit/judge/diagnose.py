"""From what happened to what a learner can do about it: one sentence for each typical mistake."""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from labkit.course import source
from labkit.course.files import git, read_python
from labkit.course.manifest import Phase
from labkit.inside.alarm import shorten
from labkit.judge import readable
from labkit.judge.declared import declared_otherwise, kept_nothing
from labkit.judge.moved_code import (
    UPSTREAM_IMPORT,
    about_module,
    imports_vllm,
    like_function,
    why_missing,
)
from labkit.judge.public import Test
from labkit.judge.suspects import place_of, slips_met, source_line
from labkit.testing import one


@dataclass(frozen=True)
class Problem:
    """Why a phase cannot be judged at all: what is wrong, where, and what to do."""

    what: str
    lines: tuple[str, ...]
    todo: str


MOST_SLIPS = 2
COMPARING = {"all", "any", "equal", "array_equal", "allclose"}


KEYBOARD = (
    "Your code waits for the keyboard (`input` or `breakpoint`), and nothing can be typed while"
    " tests run. What it prints is shown here instead."
)


OTHER_DEVICE = (
    "on the same device|the expected device|compiled with CUDA|No CUDA GPUs|no NVIDIA driver"
)
"""What torch says of tensors that do not lie where the others do."""
ONE_DEVICE = (
    "Results stay where their inputs are: make new tensors with `device=that_input.device`, and"
    " send none elsewhere."
)


CIRCULAR = (
    "Two files import each other, so one of them is not ready yet. Import it inside of the function"
    " that needs it, or, for annotations alone, below `if TYPE_CHECKING:`."
)


SHOWN = 160
"""Characters of a line that is no Python: those around the place, if there are more."""
SYNTAX = {
    "from __future__ imports must": "A line of code stands above `from __future__ import"
    " annotations`, which must be the first: move it below.",
    "outside async function": "`await`, `async for` and `async with` belong inside of an"
    " `async def`: has the `async` before its `def` gone?",
    "outside function": "It belongs inside of a function: is the line indented far enough?",
    "unexpected indent": "The line begins further to the right than the one above it: they belong"
    " to one block, or the one above lacks its `:`.",
    "unindent does not match": "The line begins at a place where no block above it begins: count"
    " its blanks.",
    "expected an indented block": "What belongs to the line above begins four blanks further to the"
    " right.",
    "inconsistent use of tabs": "Tabs and blanks are mixed: indent with four blanks everywhere.",
    "'return' with value in async generator": "A function that is `async` and has a `yield` gives"
    " each value by a `yield`; `return` alone ends it.",
}
"""What a compiler says -> what it means for a reader who meets it for the first time."""


def before(phase: Phase, notebook: bool = True) -> Problem | None:
    """Look at the learner's files before anything runs: missing, not Python, or a function gone.

    Args:
        notebook: what runs needs it, too.
    """
    if heavy := readable.too_much(phase):
        return _too_much_problem(f"labs/{phase.slug}/{heavy.name}", phase)
    for module in phase.modules:
        path, shown = phase.lab_file(module), phase.lab_path(module)
        if not path.exists():
            known_of_it, back = why_missing(path, shown)
            skeleton = f"make reset-{phase.number} puts the skeleton back"
            todo = f"{back}, then make lab-{phase.number}" if back else skeleton
            return Problem(f"{shown} is missing.", known_of_it, todo)
        try:
            text = read_python(path)
            unmerged = source.unresolved_merge(text)
            if unmerged:
                return _merge_problem(text, unmerged, shown, phase)
            known = source.functions(text, shown)
            source.compiled(text, shown)
        except source.UnresolvedMerge as error:
            return _merge_problem(text, error.lineno or 1, shown, phase)
        except SyntaxError as error:
            return _syntax_problem(error, shown, phase)
        for name in phase.holes(module):
            if name not in known:
                return _gone(phase, module, name, text)
    if notebook and phase.notebook and not (phase.labs / "lab.ipynb").exists():
        return Problem(
            f"labs/{phase.slug}/lab.ipynb is missing.",
            (),
            f"make reset-{phase.number} puts the notebook back (your modules are backed up first)",
        )
    return None


def _too_much_problem(shown: str, phase: Phase) -> Problem:
    """Of a file that ends the process which reads it, or takes too long."""
    limits = f"{readable.MOST_SECONDS:g} s and {readable.MOST_MB} MB"
    why = "Is one expression, or one nesting of statements, thousands of parts long?"
    todo = f"write it as several statements, then make lab-{phase.number}"
    what = f"{shown} costs Python too much to read: {limits} did not suffice."
    return Problem(what, (why,), todo)


def _gone(phase: Phase, module: str, name: str, text: str) -> Problem:
    """A function of a task that the learner's file does not have."""
    shown, exercise = phase.lab_path(module), phase.holes(module)[name]
    if not text.strip():
        back = (
            f"`make undo`, if a backup holds it; make reset-{phase.number} puts the skeleton back"
        )
        return Problem(f"{shown} is empty.", (), back)
    given = phase.reference_file(module).read_text(encoding="utf-8")
    alone = f" TASK={exercise.number}" if source.has_class_of(text, name) else ""
    return Problem(
        f"{shown} has no {name} any more; task {exercise.id} needs it.",
        (like_function(name, source.functions(text, shown), given),),
        f"bring it back; make reset-{phase.number}{alone} does, with a TODO in it",
    )


def _merge_problem(text: str, line: int, shown: str, phase: Phase) -> Problem:
    """Of the first place in the text, with the names that its marks give the two sides: an update
    writes others than `git merge`, and `git stash pop` has them the other way round."""
    place = [part.rstrip() for part in source.lines_of(text)[line - 1 :]]
    end = next((n for n, part in enumerate(place) if part.startswith(">>>>>>> ")), 0)
    first, last = place[0][8:], place[end][8:]
    if not place[0].startswith("<<<<<<< ") or not end:
        lines = ["It is one of the marks that a merge has left, alone: delete this line."]
    else:
        lines = [
            f"Between <<<<<<< and ======= stands {_side(first)}, from there to >>>>>>>"
            f" {_side(last)}.",
            "Keep one of the two sides, or both, and delete the lines with the marks.",
        ]
        if any(part.startswith("|||||||") for part in place[:end]):
            lines[1:1] = ["From ||||||| to ======= stands what both began with: delete it."]
    undo = "; `make undo` takes the update back" if first == "yours" else ""
    again = f"mend {shown}:{line}, then make lab-{phase.number}{undo}"
    return Problem(f"{shown}:{line} holds an unresolved merge.", tuple(lines), again)


def _side(label: str) -> str:
    """What a mark's label says, in words."""
    known = {
        "yours": "your version",
        "new-skeleton": "the course's",
        "HEAD": "what was committed here",
        "Updated upstream": "what was committed here",
        "Stashed changes": "what you had stashed",
    }
    return known.get(label, f"the version that git calls {label!r}")


def _syntax_problem(error: SyntaxError, shown: str, phase: Phase) -> Problem:
    if error.lineno is None:  # of the whole file, as one that is nested too deeply
        again = f"mend it, then make lab-{phase.number}"
        return Problem(f"{shown} is no Python that can be read.", (f"It is {error.msg}.",), again)
    line = error.lineno
    lines = [f"{type(error).__name__}: {error.msg}"]
    if error.text:
        code, offset = error.text.rstrip("\n"), max(error.offset or 1, 1)
        start = max(0, offset - SHOWN // 2) if len(code) > SHOWN else 0
        lines += [f"  {code[start : start + SHOWN]}", "  " + " " * (offset - 1 - start) + "^"]
    lines += [means for says, means in SYNTAX.items() if says in error.msg]
    if "__future__" in error.msg and imports_vllm(phase):
        lines.append(UPSTREAM_IMPORT)
    return Problem(
        f"{shown}:{line} is not Python yet.",
        tuple(lines),
        f"mend line {line} (or the one above it), then make lab-{phase.number}",
    )


def warned(phase: Phase) -> list[str]:
    """What Python warns of in the learner's files, and not in what was given."""
    found: list[str] = []
    if readable.too_much(phase):
        return found
    for module in phase.modules:
        with contextlib.suppress(OSError, SyntaxError):
            shown = phase.lab_path(module)
            told = source.compiled(read_python(phase.lab_file(module)), shown)
            found += [f"{shown}:{line}: Python warns: {what}" for line, what in told]
    return found


def notices(phase: Phase) -> list[str]:
    """Edits in the wrong place: the engine or the solutions instead of the lab file."""
    paths = [phase.reference_file(m).relative_to(phase.root).as_posix() for m in phase.modules]
    solutions = phase.solutions.relative_to(phase.root).as_posix()
    changed = git(phase.root, "status", "--porcelain", "--", *paths, solutions) or ""
    found = []
    for line in changed.splitlines():
        name = line[3:].strip()
        if not {"M", "D"} & set(line[:2]):
            continue  # new to git: a course that came as an archive, or a file of the learner's own
        lab = next(
            (phase.lab_path(m) for m, p in zip(phase.modules, paths, strict=True) if p == name), ""
        )
        if lab:
            found.append(
                f"{name} is edited, but your file is {lab}: edits in {name} change nothing here."
                f" Move them, then undo with: git checkout -- {name}"
            )
        else:
            found.append(f"{name} is edited; it is only there to compare with.")
    return found


def import_problem(phase: Phase, text: str) -> Problem:
    """The tests could not be loaded: most often the learner's file fails while it is imported."""
    lines = text.strip().splitlines()
    last = next(
        (line for line in reversed(lines) if re.search(r"\w+(Error|Exception)\b", line)), ""
    )
    last = re.sub(r"^E\s+", "", last).strip() or (lines[-1].strip() if lines else "no message")
    place, code = _import_place(phase, text)
    endless = "EndlessLoop" in text
    if endless:
        what = f"{place or f'labs/{phase.slug}'} does not end while it is imported (endless loop?)."
        why = ["A file's top level runs at each import; only functions and names belong there."]
        why[:0] = [f"It was stopped at: {code}"] if code else []
        return Problem(what, tuple(why), f"mend {place or 'that'}, then make lab-{phase.number}")
    what = f"{place or f'labs/{phase.slug}'} fails while it is imported, so no test could run."
    said = [last, *about_module(last, phase)]
    said += [KEYBOARD] if "reading from stdin" in last else []
    said += [CIRCULAR] if "partially initialized module" in last else []
    return Problem(what, tuple(said), f"mend {place or 'that'}, then make lab-{phase.number}")


def _import_place(phase: Phase, text: str) -> tuple[str, str]:
    """Where the learner's files stood in a traceback of an import, "labs/…/queue.py:9", and that
    line of code. One file imports the next, so the innermost line is meant; but where two import
    each other, that may be a given one, and the line that the learner has added is outside of it.
    """
    files = {phase.lab_path(module): module for module in phase.modules}
    names = "|".join(map(re.escape, files))
    hits = [(m[1], int(m[2])) for m in re.finditer(rf"({names})\D{{1,8}}(\d+)", text)]
    places = [(p, n, source_line(phase.lab_file(files[p]), n)) for p, n in hits]
    added = [place for place in places if not _is_given(phase, files[place[0]], place[2])]
    for path, line, code in (added or places)[-1:]:
        return f"{path}:{line}", code
    return "", ""


def _is_given(phase: Phase, module: str, code: str) -> bool:
    """Whether the reference has this line, too."""
    text = phase.reference_file(module).read_text(encoding="utf-8")
    return code in map(str.strip, text.splitlines())


def test_line(test: Test, phase: Phase) -> str:
    """Where the test stood when it failed: "tests/public/03-scheduler/test_clamp.py:41". A line of
    the test itself comes before one of the helpers that it called."""
    name, folder = test.name.partition("[")[0], str(phase.root / "tests")
    frames = [frame for frame in test.detail.get("frames", []) if frame[0].startswith(folder)]
    own = [frame for frame in frames if frame[2] == name]
    for file, line, _ in (own or frames)[-1:]:
        return f"{Path(file).relative_to(phase.root).as_posix()}:{line}"
    return test.id.partition("::")[0]


def asked(test: Test, phase: Phase) -> str:
    """Of a test that asks whether something holds, the question as it stands there, such as
    "ours < 0.95 * plain": False beside True says too little. "" for other tests, as for one whose
    question is a single call of a function that answers yes or no."""
    if test.detail.get("types") != ["bool", "bool"]:
        return ""
    place, _, line = test_line(test, phase).rpartition(":")
    for node in ast.walk(ast.parse(read_python(phase.root / place))):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "expect"):
            continue
        if node.lineno <= int(line) <= (node.end_lineno or 0) and len(node.args) == 2:
            return shorten(ast.unparse(node.args[0]), 100) if _compares(node.args[0]) else ""
    return ""


def wanted_error(test: Test, phase: Phase) -> str:
    """Of a test that wants an exception and met another, the one that it wants: "ValueError"."""
    place, _, number = test_line(test, phase).rpartition(":")
    if not place or test.detail.get("message", "").startswith("Regex pattern did not match"):
        return ""
    for node in ast.walk(ast.parse(read_python(phase.root / place))):
        if not isinstance(node, ast.With):
            continue
        call = node.items[0].context_expr
        inside = node.body[0].lineno <= int(number) <= (node.end_lineno or 0)
        if inside and isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.raises":
            return ast.unparse(call.args[0]) if call.args else ""
    return ""


def _compares(question: ast.expr) -> bool:
    """Whether it says more than that a function answered: "a < b", "torch.equal(a, b)"."""
    for node in ast.walk(question):
        if isinstance(node, ast.Compare | ast.BoolOp | ast.Not):
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in COMPARING:
            return True
    return False


def _not_awaited(test: Test, phase: Phase) -> list[str]:
    """Calls in the learner's files that only made a coroutine, which nothing has run."""
    labs = f"{phase.labs}{os.sep}"
    places = {(Path(f).name, line) for f, line in test.detail.get("not_awaited", []) if labs in f}
    return [
        f"What is called in {name}:{line} is `async` and was not awaited, so nothing of it ran: put"
        " `await` before the call."
        for name, line in sorted(places)
    ]


def explain(test: Test, phase: Phase) -> list[str]:
    """What most probably went wrong, in sentences; [] if the comparison says it all."""
    detail, place = test.detail, place_of(test, phase)
    error = detail.get("error", "")
    where = f"{place[0]}:{place[1]} in {place[2]}" if place else ""
    found = []
    if test.outcome == "hang":
        code = f": {source_line(phase.root / place[0], place[1])}" if place else ""
        found.append(
            f"Still running after {phase.test_seconds:g} s of computing or sleeping, so it was"
            " stopped (endless loop?)."
        )
        found.append(f"It was at {where}{code}" if where else "It was not in your file.")
    elif error == "ModuleNotFoundError":
        found += about_module(detail.get("message", ""), phase)
    elif error == "BdbQuit" or "reading from stdin" in detail.get("message", ""):
        found.append(KEYBOARD)
    elif re.search(OTHER_DEVICE, detail.get("message", "")):
        found.append(ONE_DEVICE)
    elif error == "RecursionError":
        calls = Counter(f for file, _, f in detail["frames"] if file.startswith(str(phase.labs)))
        name = calls.most_common(1)[0][0] if calls else "a function"
        found.append(f"{name} calls itself without an end. Which case should stop it?")
    elif error == "MemoryError":
        found.append(f"Out of memory at {phase.memory_mb} MB: does a list grow in a loop? {where}")
    elif error == "OSError" and "File too large" in detail.get("message", ""):
        found.append(f"It printed without an end, so it was stopped. {where}")
    if note := detail.get("note"):
        found.append(f"{note[0].upper()}{note[1:]}.")
    if caught := detail.get("caught"):
        found.append(
            f"{caught['error']} was raised in your file, and caught by what calls it:"
            f" {shorten(caught['message'], 200)}"
        )
    if detail.get("meant"):
        found.append(f"Did you mean `{detail['meant']}`?")
    found += _not_awaited(test, phase)
    exercise = next((each for each in phase.exercises if each.id == test.task), None)
    found += declared_otherwise(phase, exercise) if exercise else []
    met = slips_met(test, phase, exercise) if exercise else []
    found += [f"In {slip.function}, {slip.said}" for slip in met[:MOST_SLIPS]]
    returned = detail.get("returned")
    nothing = returned and returned["type"] == "NoneType"
    if exercise and (nothing or (place and "NoneType" in detail.get("message", ""))):
        found += kept_nothing(phase, exercise)
    if returned and nothing:
        found.append(
            f"{returned['function']} returned None; its signature promises {returned['promised']}."
            " Is a `return` missing on some path?"
        )
    elif returned:
        what = f"{returned['function']} {returned['verb']} {one(returned['type'])}"
        inside, promised = returned.get("inside"), returned["promised"]
        found.append(
            f"{what}, but {inside}: promised is {promised}."
            if inside
            else f"{what}; its signature promises {promised}."
        )
    if detail.get("printed_lines", 0) > 20:
        found.append(
            f"Your code printed {detail['printed_lines']} lines; the first are shown below."
        )
    return found
