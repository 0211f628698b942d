"""The course as data: `phases/NN-slug/phase.toml`, read and checked.

Every tool of the course asks this module where a phase's files lie and what its exercises are.
Hints stand in `phases/NN-slug/hints.toml`, out of sight of a reader who looks for chapters.
`tests/labkit/course/test_manifest.py` shows a small valid file; CONTRIBUTING explains each key.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

WORKLOADS = (
    "engine",
    "kernels",
    "naive",
    "quantized",
    "structured",
    "adapters",
    "bottlenecks",
    "drafts",
    "hybrids",
    "mixtures",
    "pictures",
    "policies",
    "ranks",
    "service",
    "transfers",
)
"""What `run NN` can measure; `labkit.learner.ab` has one function for each."""
HINT_LEVELS = ("concept", "invariant", "where", "nearly the code")


class ManifestError(ValueError):
    """A phase.toml or hints.toml that cannot be used; the message names the file, the key, the
    value and the fix."""


@dataclass(frozen=True)
class Exercise:
    """One task: one or more functions of one module that the learner writes.

    Attributes:
        id: "03.2", the phase's number and the task's.
        title: a line for the screen.
        module: dotted name of the engine's module, "mini_vllm.core.scheduler".
        functions: qualified names inside the module, "Scheduler._clamp_new_tokens".
        points: weight in a grade.
        hints: one text for each of HINT_LEVELS.
        test_hints: public test -> the hint that comes first where it fails.
        read: chapter and anchor below the phase's folder, "02-mini-build.md#task-2".
        upstream: "vllm/v1/core/sched/scheduler.py#L329-L340 (Scheduler.schedule)", or "".
    """

    id: str
    title: str
    module: str
    functions: tuple[str, ...]
    points: int
    hints: tuple[str, ...]
    read: str
    upstream: str
    test_hints: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def number(self) -> int:
        return int(self.id.split(".")[1])

    @property
    def test_prefix(self) -> str:
        """Tests that judge this task have names that begin so: "test_03_2_"."""
        return f"test_{self.id.replace('.', '_')}_"


@dataclass(frozen=True)
class Phase:
    """One phase of the course; paths are absolute, `root` is the checkout.

    `environment` holds variables for every process that runs the phase's modules.
    """

    root: Path
    slug: str
    title: str
    question: str
    status: str
    hours: float
    hardware: str
    summary: str
    coming: tuple[str, ...]
    prerequisites: tuple[str, ...]
    modules: tuple[str, ...]
    upstream: tuple[str, ...]
    notebook: str
    run: str
    traces: tuple[str, ...]
    test_seconds: float
    memory_mb: int
    environment: Mapping[str, str]
    exercises: tuple[Exercise, ...]

    @property
    def number(self) -> str:
        return self.slug[:2]

    @property
    def ready(self) -> bool:
        return self.status == "ready"

    @property
    def folder(self) -> Path:
        return self.root / "phases" / self.slug

    @property
    def labs(self) -> Path:
        return self.root / "labs" / self.slug

    @property
    def solutions(self) -> Path:
        return self.root / "solutions" / self.slug

    @property
    def public_tests(self) -> Path:
        return self.root / "tests" / "public" / self.slug

    @property
    def hidden_tests(self) -> Path:
        return self.root / "tests" / "hidden" / self.slug

    @property
    def notebook_source(self) -> Path | None:
        return self.folder / self.notebook if self.notebook else None

    def reference_file(self, module: str) -> Path:
        """The engine's source of a module."""
        return self.root.joinpath(*module.split(".")).with_suffix(".py")

    def lab_file(self, module: str) -> Path:
        """The file that the learner edits in place of `module`."""
        return self.labs / f"{module.rpartition('.')[2]}.py"

    def lab_path(self, module: str) -> str:
        """The same, as the learner types it: "labs/03-scheduler/scheduler.py"."""
        return self.lab_file(module).relative_to(self.root).as_posix()

    def exercise(self, name: str) -> Exercise:
        """Find a task by "03.2", or as one types it: "2", "3.2", "03.02".

        Raises:
            ManifestError: there is no such task; the message lists those that exist.
        """
        number, _, place = name.rpartition(".")
        wanted = f"{(number or self.number).zfill(2)}.{place.lstrip('0')}"
        for exercise in self.exercises:
            if exercise.id == wanted:
                return exercise
        known = ", ".join(exercise.id for exercise in self.exercises)
        raise ManifestError(f"phase {self.number} has no task {name!r}; its tasks are {known}")

    def of_module(self, module: str) -> Iterator[Exercise]:
        return (exercise for exercise in self.exercises if exercise.module == module)

    def holes(self, module: str) -> dict[str, Exercise]:
        """Qualified name of every function of `module` that the learner writes -> its task."""
        return {name: task for task in self.of_module(module) for name in task.functions}


@dataclass(frozen=True)
class Course:
    """A checkout of the course: everything is found from its root."""

    root: Path

    @cached_property
    def manifests(self) -> dict[str, Path]:
        """The folder's name of each phase -> its phase.toml, in order."""
        files = sorted(self.root.glob("phases/[0-9][0-9]-*/phase.toml"))
        return {file.parent.name: file for file in files}

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """All phases in order, planned ones included.

        Raises:
            ManifestError: a manifest is wrong, or two phases own one module.
        """
        phases = tuple(load_phase(self.root, file) for file in self.manifests.values())
        owner: dict[str, Phase] = {}
        for phase in phases:
            for module in phase.modules:
                other = owner.setdefault(module, phase)
                if other is not phase:
                    raise ManifestError(
                        f"phases/{phase.slug}/phase.toml: modules: {module} already belongs to"
                        f" phase {other.slug}; a module belongs to at most one phase"
                    )
        return phases

    @property
    def ready(self) -> tuple[Phase, ...]:
        return tuple(phase for phase in self.phases if phase.ready)

    def phase(self, name: str) -> Phase:
        """Find a phase by "3", "03", "03-scheduler", or as one types it in haste: "lab_03", "003",
        "scheduler". Only its own manifest is read: to read all takes a tenth of a second, at each
        `make lab-NN`.

        Raises:
            ManifestError: there is no such phase; the message names the first and the last.
        """
        typed = re.fullmatch(r"(?:labs?|phases?|s)?[-_ /]*(\d.*?)/?", name.strip().lower())
        wanted = typed[1] if typed else name.strip().lower()
        number = f"{int(wanted):02d}" if wanted.isdecimal() else wanted
        named = [slug for slug in self.manifests if number in (slug, slug[:2])]
        if not named and len(number) > 2:  # a word of its name that no other phase has
            named = [slug for slug in self.manifests if number in slug]
        if len(named) == 1:
            return load_phase(self.root, self.manifests[named[0]])
        slugs = list(self.manifests)
        known = ", ".join(slugs if len(slugs) < 4 else [slugs[0], "…", slugs[-1]]) or "none"
        listed = "; `make progress` lists them" if slugs else ""
        raise ManifestError(f"there is no phase {name!r}; the phases are: {known}{listed}")


class _Table:
    """A TOML table that is emptied key by key, so that what is left over is a misspelt key."""

    def __init__(self, file: str, where: str, data: dict[str, Any]) -> None:
        self.file, self.where, self.data, self.asked = file, where, dict(data), list[str]()

    def fail(self, key: str, problem: str) -> ManifestError:
        return ManifestError(f"{self.file}: {self.where}{key}{problem}")

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        self.asked.append(key)
        if key not in self.data:
            if default is None:
                raise self.fail(key, " is missing")
            return default
        value = self.data.pop(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            names = " or ".join(k.__name__ for k in kinds)
            raise self.fail(key, f" is {value!r}; it must be a {names}")
        return value

    def texts(self, key: str, default: list[str] | None = None) -> tuple[str, ...]:
        values = self.take(key, list, default)
        for index, value in enumerate(values):
            if not isinstance(value, str) or not value.strip():
                raise self.fail(f"{key}[{index}]", f" is {value!r}; it must be a non-empty string")
        return tuple(value.strip() for value in values)

    def finish(self) -> None:
        for key in self.data:
            near = difflib.get_close_matches(key, self.asked, 1)
            hint = (
                f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(self.asked)}"
            )
            raise self.fail(key, f" is not a key here{hint}")


def load_phase(root: Path, file: Path) -> Phase:
    """Read and check one manifest.

    Raises:
        ManifestError: the file is not TOML, or a key is missing, unknown or out of range.
    """
    shown = file.relative_to(root).as_posix()
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{shown}: not valid TOML: {error}") from None
    table = _Table(shown, "", data)
    slug = table.take("slug", str)
    if slug != file.parent.name:
        raise table.fail(
            "slug", f" is {slug!r}; it must equal the folder's name, {file.parent.name!r}"
        )
    status = table.take("status", str)
    if status not in ("ready", "planned"):
        raise table.fail("status", f" is {status!r}; it must be 'ready' or 'planned'")
    ready = status == "ready"
    exercises = table.take("exercises", list, None if ready else [])
    hints = _Table(*_read_hints(root, file.with_name("hints.toml"), ready))
    phase = Phase(
        root=root,
        slug=slug,
        status=status,
        title=table.take("title", str),
        question=table.take("question", str),
        summary=table.take("summary", str, ""),
        coming=table.texts("coming", [] if ready else None),
        hours=float(table.take("hours", (int, float), None if ready else 0)),
        hardware=table.take("hardware", str, "CPU"),
        prerequisites=table.texts("prerequisites", []),
        modules=table.texts("modules", None if ready else []),
        upstream=table.texts("upstream", []),
        notebook=table.take("notebook", str, ""),
        run=table.take("run", str, "engine"),
        traces=table.texts("traces", []),
        test_seconds=float(table.take("test_seconds", (int, float), 5)),
        memory_mb=table.take("memory_mb", int, 4096),
        environment=_environment(table),
        exercises=tuple(
            _exercise(shown, slug, i, entry, hints) for i, entry in enumerate(exercises)
        ),
    )
    table.finish()
    hints.finish()
    if phase.run not in WORKLOADS:
        raise table.fail("run", f" is {phase.run!r}; it must be one of {', '.join(WORKLOADS)}")
    _check_phase(phase, table)
    return phase


def _environment(table: _Table) -> dict[str, str]:
    """`environment = { NAME = "value" }`"""
    variables = table.take("environment", dict, {})
    for name, value in variables.items():
        if not isinstance(value, str):
            raise table.fail(f"environment.{name}", f" is {value!r}; it must be a string")
    return dict(variables)


def _read_hints(root: Path, file: Path, ready: bool) -> tuple[str, str, dict[str, Any]]:
    """What a table of a phase's hints is made of. A planned phase has none.

    Raises:
        ManifestError: the file is missing, or not TOML.
    """
    shown = file.relative_to(root).as_posix()
    if not ready:
        return shown, "", {}
    try:
        return shown, "", tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"{shown} is missing; it holds four hints for each task") from None
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{shown}: not valid TOML: {error}") from None


def _hints_of(task: str, hints: _Table) -> tuple[tuple[str, ...], dict[str, str]]:
    """A task's four hints, and those of its tests."""
    table = _Table(hints.file, f"{task}: ", hints.take(task, dict))
    texts, of_tests = table.texts("hints"), table.take("tests", dict, {})
    table.finish()
    if len(texts) != len(HINT_LEVELS):
        levels = ", ".join(HINT_LEVELS)
        raise table.fail("hints", f" has {len(texts)} texts; give {len(HINT_LEVELS)}: {levels}")
    start = f"test_{task.replace('.', '_')}_"
    for name, text in of_tests.items():
        if not name.startswith(start):
            raise table.fail(f"tests.{name}", f" is no test of the task; those begin with {start}")
        if not isinstance(text, str) or not text.strip():
            raise table.fail(f"tests.{name}", f" is {text!r}; it must be a non-empty string")
    return texts, dict(of_tests)


def _exercise(file: str, slug: str, index: int, entry: dict[str, Any], hints: _Table) -> Exercise:
    table = _Table(file, f"exercises[{index}].", entry)
    name = str(entry.get("id"))
    if name != f"{slug[:2]}.{index + 1}":
        raise table.fail(
            "id", f" is {name!r}; tasks count up, so this one is {slug[:2]}.{index + 1}"
        )
    texts, of_tests = _hints_of(name, hints)
    exercise = Exercise(
        id=table.take("id", str),
        title=table.take("title", str),
        module=table.take("module", str),
        functions=table.texts("functions"),
        points=table.take("points", int),
        hints=texts,
        test_hints=of_tests,
        read=table.take("read", str),
        upstream=table.take("upstream", str, ""),
    )
    table.finish()
    if exercise.points < 1:
        raise table.fail("points", f" is {exercise.points}; it must be at least 1")
    if not exercise.functions:
        raise table.fail("functions", " is empty; name at least one function of the module")
    return exercise


def _check_phase(phase: Phase, table: _Table) -> None:
    if not re.fullmatch(r"\d\d-[a-z0-9-]+", phase.slug):
        raise table.fail("slug", f" is {phase.slug!r}; it must look like '03-scheduler'")
    names = [phase.lab_file(module).name for module in phase.modules]
    for module, name in zip(phase.modules, names, strict=True):
        if names.count(name) > 1:
            raise table.fail("modules", f": two modules would both be {phase.lab_path(module)}")
    seen: dict[tuple[str, str], str] = {}
    for index, exercise in enumerate(phase.exercises):
        if exercise.module not in phase.modules:
            raise table.fail(
                f"exercises[{index}].module", f" is {exercise.module!r}; it is not in modules"
            )
        for function in exercise.functions:
            first = seen.setdefault((exercise.module, function), exercise.id)
            if first != exercise.id:
                raise table.fail(
                    f"exercises[{index}].functions", f": {function} is already task {first}"
                )
