"""The result file: what one grading found, in one JSON document that everything else is made from.

`labkit.grading.grade.grade_files(phase, files, seed) -> GradeResult` makes one from {module: file}
and raises for nothing that a submission does; `grade NN --result FILE` writes it. Batch grading
(`labkit.grading.batch`) collects many, and `labkit.grading.exports` renders them for Gradescope,
GitHub Classroom, JUnit and a spreadsheet. It holds no hidden input, no expected value and nothing
that the learner's code wrote but short, cut texts.

    {"schema": 1, "phase": "00-orientation", "status": "graded", "seed": {"commitment": "…", …},
     "groups": [{"id": "00.1", "status": "passed", "points": 5, "earned": 5, …}, …], …}
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import secrets
import stat
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from labkit.course.files import write_text
from labkit.sandbox.isolation import ISOLATION
from labkit.setup.requirements import installed

SCHEMA = 1
STATUSES = ("partial", "graded", "error")
"""Of a whole result. "partial" is written before the run: a grader that dies leaves that behind.
"error" means that the grader could not judge; it says nothing about the learner."""
OUTCOMES = ("passed", "failed", "not run")
KINDS = (
    "wrong result",
    "error",
    "open TODO",
    "endless loop",
    "timeout",
    "crash",
    "memory",
    "garbage",
    "replaced",
    "cannot import",
    "missing file",
    "not run",
)
"""What sort of failure it was; "" for what passed."""

NAMES: dict[Any, str] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    types.NoneType: "null",
}
TOOLS = ("torch", "triton", "numpy", "pytest", "hypothesis")
T = TypeVar("T")


class ResultError(ValueError):
    """A result file that cannot be used; the message names the file, the key, the value and what it
    must be."""


@dataclass
class TestRecord:
    """One hidden test.

    Attributes:
        id: pytest's name for it, relative to the suite: "test_request.py::test_00_1_a_name".
        title: the first paragraph of its docstring; safe to show to a learner.
        group: the task that it judges, "00.1".
        kind: one of KINDS, or "" if it passed.
    """

    __test__ = False  # pytest must not collect it

    id: str
    title: str
    group: str
    status: str
    kind: str = ""
    seconds: float = 0.0


@dataclass
class GroupRecord:
    """One task: what the points hang on. All of its tests pass, or it earns nothing.

    Attributes:
        hint: an authored sentence for the learner, or "".
        passed, total: number of its tests.
    """

    id: str
    title: str
    status: str
    points: float
    earned: float = 0.0
    kind: str = ""
    hint: str = ""
    passed: int = 0
    total: int = 0
    seconds: float = 0.0


@dataclass
class Seed:
    """The seed of the random inputs: promised before the run, shown after it.

    Attributes:
        commitment: `commitment(value)`, known before the learner's code starts.
        value: None until the run is over.
    """

    commitment: str
    value: int | None = None


@dataclass
class Flag:
    """Something for a human to look at; it never costs a point.

    Attributes:
        kind: "same as the reference", "reads the reference", …
        where: "scheduler.py: Scheduler._preempt".
    """

    kind: str
    where: str
    message: str = ""


@dataclass
class GradeResult:
    """One grading of one phase of one submission.

    Attributes:
        phase: its folder's name, "03-scheduler".
        submission: name of each declared file -> its sha256, or "" if it is missing.
        suite: sha256 over the hidden suite's files (`hash_suite`).
        isolation: one of ISOLATION.
        unavailable: each stronger rung -> why it does not work on the grader's machine.
        tools: name -> version, "python", "torch", "hypothesis", …
        problem: which files of the submission could not run, and why ("request.py: SyntaxError,
            line 12"); or why the grader could not judge if `status` is "error"; else "".
        started: UTC, ISO 8601.
    """

    phase: str
    title: str
    submission: dict[str, str]
    suite: str
    seed: Seed
    isolation: str
    tools: dict[str, str]
    groups: list[GroupRecord]
    tests: list[TestRecord] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    status: str = "graded"
    problem: str = ""
    started: str = ""
    seconds: float = 0.0
    schema: int = SCHEMA

    @property
    def earned(self) -> float:
        return sum(group.earned for group in self.groups)

    @property
    def points(self) -> float:
        return sum(group.points for group in self.groups)

    @property
    def passed(self) -> bool:
        """All of it, and it was judged to the end."""
        whole = self.status == "graded" and bool(self.groups)
        return whole and all(group.status == "passed" for group in self.groups)

    def write(self, path: Path) -> None:
        """Write the whole file or nothing."""
        document = dataclasses.asdict(self)
        document |= {"earned": self.earned, "points": self.points, "passed": self.passed}
        write_text(path, json.dumps(document, indent=1) + "\n")


LARGEST = 1e300
"""No number of a result comes near; what is larger, or NaN, no table takes."""
MAX_RESULT = 16 << 20
"""Bytes of the largest result file that is read; a whole one has some 20,000."""
DERIVED = ("earned", "points", "passed")
"""Keys of the document that follow from the groups; written for readers, checked when read."""


def load(path: Path) -> GradeResult:
    """Read and check a result file.

    Raises:
        ResultError: no plain file, too large, not JSON, another schema, or a key that is missing,
            unknown or wrong.
        OSError: the file cannot be read.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ResultError(f"{path}: is no plain file")
    if about.st_size > MAX_RESULT:
        raise ResultError(f"{path}: has {about.st_size} bytes; no result has {MAX_RESULT}")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ResultError(f"{path}: not JSON: nested too deep") from None
    except ValueError as error:
        raise ResultError(f"{path}: not JSON: {error}") from None
    return from_dict(document, str(path))


def from_dict(document: Any, file: str = "result") -> GradeResult:
    """The result that a JSON document describes.

    Raises:
        ResultError: as `load`.
    """
    if not isinstance(document, dict):
        raise ResultError(f"{file}: is a {type(document).__name__}; it must be an object")
    if document.get("schema") != SCHEMA:
        raise ResultError(
            f"{file}: schema is {document.get('schema')!r}; this labkit reads schema {SCHEMA}:"
            " grade again, or use the labkit that wrote it"
        )
    body = {key: value for key, value in document.items() if key not in DERIVED}
    result = _record(GradeResult, body, file, "")
    _check_words(result, file)
    for key in DERIVED:
        if key in document and document[key] != getattr(result, key):
            raise ResultError(
                f"{file}: {key} is {document[key]!r}; its groups say {getattr(result, key)!r}"
            )
    return result


def _record(cls: type[T], data: Any, file: str, where: str) -> T:
    """A dataclass from a JSON object, key by key."""
    if not isinstance(data, dict):
        raise ResultError(f"{file}: {where.rstrip('.')} is {data!r}; it must be an object")
    fields = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise ResultError(f"{file}: {where}{key} is not a key here; known: {', '.join(fields)}")
    hints = typing.get_type_hints(cls)
    values = {}
    for name, item in fields.items():
        if name in data:
            values[name] = _value(hints[name], data[name], file, where + name)
        elif item.default is item.default_factory is dataclasses.MISSING:
            raise ResultError(f"{file}: {where}{name} is missing")
    return cls(**values)


def _value(hint: Any, value: Any, file: str, where: str) -> Any:
    """`value` as the type that a field declares: a builtin, a list, a dict of texts or a record."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and isinstance(value, list):
        return [_value(arguments[0], v, file, f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {k: _value(arguments[1], v, file, f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint), value, file, f"{where}.")
    allowed = arguments if origin is types.UnionType else (origin or hint,)
    if float in allowed and type(value) in (int, float) and not abs(value) < LARGEST:
        raise ResultError(f"{file}: {where} is {value!r:.20}; it must be a finite number")
    if type(value) in allowed or (float in allowed and type(value) is int):
        return value
    wanted = " or ".join(NAMES[kind] for kind in allowed)
    raise ResultError(f"{file}: {where} is {value!r}; it must be {wanted}")


def _check_words(result: GradeResult, file: str) -> None:
    """Every word with a meaning is one of the known ones."""

    def check(where: str, value: str, known: tuple[str, ...]) -> None:
        if value not in known:
            words = ", ".join(repr(word) for word in known)
            raise ResultError(f"{file}: {where} is {value!r}; it must be one of {words}")

    check("status", result.status, STATUSES)
    check("isolation", result.isolation, ISOLATION)
    tables: tuple[tuple[str, list[Any]], ...] = (("groups", result.groups), ("tests", result.tests))
    for table, records in tables:
        for index, record in enumerate(records):
            check(f"{table}[{index}].status", record.status, OUTCOMES)
            check(f"{table}[{index}].kind", record.kind, ("", *KINDS))
    seen: set[str] = set()
    for index, group in enumerate(result.groups):
        if group.id in seen:
            raise ResultError(f"{file}: groups[{index}].id is {group.id!r}, for the second time")
        if not 0 <= group.earned <= group.points:
            raise ResultError(
                f"{file}: groups[{index}].earned is {group.earned!r}; it must lie between 0 and"
                f" its points, {group.points!r}"
            )
        seen.add(group.id)


# ---------------------------------------------------------------- what goes into it
def fresh_seed() -> int:
    """A seed that cannot be guessed: 63 random bits."""
    return secrets.randbits(63)


def commitment(seed: int) -> str:
    """The promise of a seed: sha256 of its decimal digits."""
    return hashlib.sha256(str(seed).encode()).hexdigest()


MAX_HASHED = 64 << 20
"""Bytes of the largest file that is hashed; what is graded is far smaller."""


def hash_file(path: Path) -> str:
    """sha256 of a file; "" if there is none, or one that cannot or will not be read."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_HASHED:
            return ""
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:  # a link to itself, or a file or a folder that is closed
        return ""


def hash_submission(files: Mapping[str, Path]) -> dict[str, str]:
    """Name -> sha256 of each declared file."""
    return {name: hash_file(path) for name, path in files.items()}


def hash_suite(folder: Path) -> str:
    """sha256 over the names and contents, in order, of a hidden suite's .py files and of the
    conftest.py beside its folder, which all suites share."""
    total = hashlib.sha256()
    for path in [folder.parent / "conftest.py", *sorted(folder.rglob("*.py"))]:
        name = path.relative_to(folder.parent).as_posix()
        total.update(f"{name} {hash_file(path)}\n".encode())
    return total.hexdigest()


def tool_versions() -> dict[str, str]:
    """Versions of what a grade may depend on, as far as it is installed."""
    return {"python": platform.python_version()} | installed(TOOLS)


def now() -> str:
    """The time for `GradeResult.started`."""
    return datetime.now(UTC).isoformat(timespec="seconds")
