"""The named mistakes of a phase: read and checked, and recognised in what a learner's code fails.

`tests/corpora/mutants/NN-slug.toml` holds them; `tests/corpora/mutants/NN-slug.json` holds which
tests fail on each, as `labkit.quality.mutants` has recorded it. A learner whose failures equal a
mistake's has probably made it. `NN-slug.faults.json` holds what the first of these tests fails
with: where a learner's is the same, nothing needs to run to be sure.

An entry with `hidden_only = true` is a mistake that the public tests let pass on purpose.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labkit.course import source
from labkit.course.files import read_python
from labkit.course.manifest import ManifestError, Phase
from labkit.inside import child
from labkit.judge import public
from labkit.judge.slips import of_function

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Of an object, as `repr` shows it: another one in each run."""
MOST_ALIKE = 3
"""So many mistakes that fail the same tests are told apart by what they fail with; more take too
long."""


@dataclass(frozen=True)
class Mutant:
    """One mistake: `function` of the exercise's module with another body."""

    exercise: str
    name: str
    misconception: str
    module: str
    function: str
    text: str
    hidden_only: bool = False


def mutants_file(phase: Phase) -> Path:
    return phase.root / "tests" / "corpora" / "mutants" / f"{phase.slug}.toml"


def vectors_file(phase: Phase) -> Path:
    return mutants_file(phase).with_suffix(".json")


def faults_file(phase: Phase) -> Path:
    return mutants_file(phase).with_suffix(".faults.json")


def entries(phase: Phase) -> list[dict[str, Any]]:
    """The phase's entries as they are written, unchecked and quick to read.

    Raises:
        ManifestError: not TOML.
    """
    path = mutants_file(phase)
    if not path.exists():
        return []
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        shown = path.relative_to(phase.root).as_posix()
        raise ManifestError(f"{shown}: not valid TOML: {error}") from None
    return list(document.get("mutants", []))


def load(phase: Phase) -> list[Mutant]:
    """The phase's mutants, each with the whole text of its module.

    Raises:
        ManifestError: an entry is incomplete, names no hole, or does not change the function.
    """
    shown = mutants_file(phase).relative_to(phase.root).as_posix()
    mutants = [
        load_one(phase, f"{shown}: mutants[{i}]", entry) for i, entry in enumerate(entries(phase))
    ]
    names = [mutant.name for mutant in mutants]
    for name in names:
        if names.count(name) > 1:
            raise ManifestError(f"{shown}: two mutants are called {name!r}")
    return mutants


def load_one(phase: Phase, where: str, entry: dict[str, Any]) -> Mutant:
    """One entry of the file, checked, with the whole text of its module.

    Raises:
        ManifestError: see :func:`load`; `where` begins the message.
    """
    required = {"exercise", "name", "misconception", "function"}
    ways = [{"body"}, {"search", "replace"}]
    if set(entry) - {"hidden_only"} not in [required | way for way in ways]:
        raise ManifestError(
            f"{where}: keys are {', '.join(sorted(entry))}; give exercise, name, misconception,"
            " function, either body or search and replace, and hidden_only = true if only the"
            " hidden suite can catch it"
        )
    if entry.get("hidden_only", True) is not True:
        raise ManifestError(
            f"{where}: hidden_only is {entry['hidden_only']!r}; it must be true, or left out"
        )
    exercise = phase.exercise(entry["exercise"])
    reference = phase.reference_file(exercise.module).read_text(encoding="utf-8")
    function = source.find(reference, entry["function"], exercise.module)
    body = entry.get("body") or _patched(where, source.body_text(reference, function), entry)
    text = source.replace_body(reference, function.name, body)
    if function.name not in exercise.functions:
        raise ManifestError(f"{where}: {function.name} is not a function of task {exercise.id}")
    return Mutant(
        exercise.id,
        entry["name"],
        entry["misconception"].strip(),
        exercise.module,
        function.name,
        text,
        "hidden_only" in entry,
    )


def _patched(where: str, body: str, entry: dict[str, Any]) -> str:
    count = body.count(entry["search"])
    if count != 1:
        raise ManifestError(
            f"{where}: search text is {count} times in the body of {entry['function']}; it must be"
            f" there once. The body is:\n{body}"
        )
    return body.replace(entry["search"], entry["replace"])


def named(result: public.PhaseResult, mapping: Mapping[str, str]) -> Mutant | None:
    """The mutant that the learner has probably made; None if it may be another, or none of them.

    One with an endless loop is not run again to be sure. Of several whose failures are the
    learner's, the one that fails the first of these tests with the same values is meant, if it
    is the only one.
    """
    alike = [mutant for mutant in candidates(result) if _may_be_hers(result.phase, mutant, mapping)]
    if len(alike) > MOST_ALIKE:
        return None
    found = _recorded_alike(result, alike)
    hangs = any(test.outcome == "hang" for test in result.tests)
    if not found and not hangs:  # another machine may round otherwise than the one that recorded
        run = partial(_fails_alike, result, mapping, among=len(alike))
        with ThreadPoolExecutor(MOST_ALIKE) as pool:
            same = list((map if child.runs_here else pool.map)(run, alike))
        found = [mutant for mutant, is_same in zip(alike, same, strict=True) if is_same]
    if len(found) != 1:
        return None
    first = _first_failed(result, found[0])
    if first and _is_yes_or_no(first) and not hangs and not _is_hers(result, mapping, found[0]):
        return None
    if first and deed_of(first):
        again = run_some(result.phase, found[0], mapping, [first.id]).tests
        if deed_of(first) not in map(deed_of, again):
            return None
    return found[0]


def candidates(result: public.PhaseResult) -> list[Mutant]:
    """The mutants whose failures equal the learner's, as far as tests that reached a hole can
    tell."""
    path = vectors_file(result.phase)
    if not path.exists():
        return []
    vectors: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))["public"]
    judged = {test.name for test in result.tests if test.outcome in ("passed", "failed", "hang")}
    mine = {test.name for test in result.tests if test.outcome in ("failed", "hang")}
    tasks = {public.task_of(name) for name in mine}
    if not mine:
        return []
    where = f"{mutants_file(result.phase).name}: candidates"
    try:
        return [
            load_one(result.phase, where, entry)
            for entry in entries(result.phase)
            if entry["exercise"] in tasks and set(vectors.get(entry["name"], ())) & judged == mine
        ]
    except (ManifestError, source.SourceError, KeyError):
        return []


def _may_be_hers(phase: Phase, mutant: Mutant, mapping: Mapping[str, str]) -> bool:
    """Whether the learner's function may hold a mistake. Where it is the reference's, the failures
    come from another function; if it has a slip that the mistake has not, they come from that."""
    name = mutant.function
    theirs = phase.reference_file(mutant.module).read_text(encoding="utf-8")
    mine = read_python(Path(mapping[mutant.module])) if mutant.module in mapping else theirs
    nodes = [source.find(text, name).node for text in (mine, theirs, mutant.text)]
    if of_function(mine, name, nodes[0]) and not of_function(mutant.text, name, nodes[2]):
        return False
    return ast.dump(nodes[0]) != ast.dump(nodes[1])


def _recorded_alike(result: public.PhaseResult, alike: Sequence[Mutant]) -> list[Mutant]:
    """Those that fail as the learner does, by what is recorded of them; none where one of them is
    not recorded in the learner's first failing test."""
    recorded, found = faults(result.phase), list[Mutant]()
    for mutant in alike:
        first = _first_failed(result, mutant)
        name, *digests = recorded.get(mutant.name, ["", "", ""])
        if first is None or name != first.name:
            return []
        sure = _needs_words(first, len(alike))
        found += [mutant] * (digests[sure] == fault_of(first, sure))
    return found


def _needs_words(failed: public.Test, among: int) -> bool:
    """Whether a mistake must fail with the learner's very words to be the learner's: where several
    fail the same tests, and where an error ended the test before a value was compared. Its kind
    alone, such as ValueError, fits many mistakes. A kernel's fault names a line of the file."""
    bare = "at" not in failed.detail and failed.detail.get("error") != "KernelFault"
    return among > 1 or bare


def deed_of(failed: public.Test) -> str:
    """What a kernel's fault did to which tensor, "reads behind the end of x", without the numbers,
    which differ with the order of a kernel's lines. "" for any other failure."""
    if failed.detail.get("error") != "KernelFault":
        return ""
    said = str(failed.detail.get("message", "")).partition("\n")[0]
    return " ".join(re.sub(r"\([^()]*\)|\d+|\belements?\b", "", said).split())


def _first_failed(result: public.PhaseResult, mutant: Mutant) -> public.Test | None:
    tests = (test for test in result.tests if test.outcome == "failed")
    return next((test for test in tests if test.task == mutant.exercise), None)


def _is_yes_or_no(failed: public.Test) -> bool:
    """Whether the test asked only if something holds: that it does not says nothing of a value."""
    return failed.detail.get("types") == ["bool", "bool"]


def _is_hers(result: public.PhaseResult, mapping: Mapping[str, str], mutant: Mutant) -> bool:
    """Whether the mutant fails all tests of its task that the learner fails, each in the same
    way; and there are values among them, or tests that the learner passes."""
    own = [test for test in result.tests if test.task == mutant.exercise]
    mine = {test.id: test for test in own if test.outcome == "failed"}
    if all(map(_is_yes_or_no, mine.values())):
        return any(test.passed for test in own)
    again = {test.id: test for test in run_some(result.phase, mutant, mapping, list(mine)).tests}
    return all(
        name in again and fault_of(again[name], False) == fault_of(test, False)
        for name, test in mine.items()
    )


def _fails_alike(
    result: public.PhaseResult, mapping: Mapping[str, str], mutant: Mutant, among: int
) -> bool:
    """Whether the mutant, one of `among`, fails the learner's first failing test in the same way:
    with the same value where values are compared, else with the same words."""
    first = _first_failed(result, mutant)
    if first is None:
        return False
    sure = _needs_words(first, among)
    again = run_some(result.phase, mutant, mapping, [first.id])
    return any(fault_of(test, sure) == fault_of(first, sure) for test in again.tests)


def run_some(
    phase: Phase, mutant: Mutant, mapping: Mapping[str, str], tests: Sequence[str]
) -> public.PhaseResult:
    """The mutant in some tests alone, among the other modules of `mapping`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, phase.lab_file(mutant.module).name)
        file.write_text(mutant.text, encoding="utf-8")
        there = {**mapping, mutant.module: str(file)}
        return public.run_tests(phase, [phase.root / test for test in tests], there)


def faults(phase: Phase) -> dict[str, list[str]]:
    """Mutant -> the first test of its task that it fails, and `fault_of` it, without and with the
    words. Empty where nothing is recorded."""
    path = faults_file(phase)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def fault_of(test: public.Test, sure: bool) -> str:
    """A digest of what a test failed with: the kind of error, the value that was compared; if it
    must be `sure`, the words too."""
    found = test.detail
    about = [found.get("error"), found.get("at"), found.get("yours"), sure and found.get("message")]
    text = ADDRESS.sub("", json.dumps(about, sort_keys=True))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def failing(result: public.PhaseResult) -> tuple[str, ...]:
    """Names of the tests that did not pass; a suite that cannot load fails as a whole."""
    if result.broken:
        return ("<import>",)
    return tuple(sorted(test.name for test in result.tests if not test.passed))
