"""Pytest plugin of the hidden suites: `subject` is what is judged, `reference` is what is right.

Tests never import a learner's module: both fixtures are children (`labkit.process.worker.Worker`).
The subject lives in a sandbox (`labkit.sandbox.build`), in a fresh one for each task: a task whose
code hangs, dies or answers with garbage is lost as a whole, and the next task begins as if nothing
had happened.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from labkit.course.manifest import Course, Phase
from labkit.inside import child, plain, timeouts
from labkit.inside.alarm import REST, EndlessLoop
from labkit.inside.worker_child import REPLACED, WATCH
from labkit.judge import counterexample
from labkit.judge.public import task_of
from labkit.process import overlay
from labkit.process.worker import Program, Worker, WorkerError
from labkit.sandbox import build as sandbox
from labkit.sandbox import isolation
from labkit.sandbox.build import Sandbox

SUBJECT = "LABKIT_SUBJECT"
ISOLATION = "LABKIT_ISOLATION"
TASKS = "LABKIT_TASKS"
ASKED = "LABKIT_ASKED"
"""A file for what subjects are asked: a task and a digest of the request in each line. Tests of
kernels, whose cases are drawn elsewhere, are left out."""
ANSWER_SECONDS = 10.0
FIRST_SECONDS = 10.0
"""What the first answer of a fresh worker has on top, as long as no task is lost: it imports the
rest of the engine."""
IMPORT_SECONDS = 20.0
"""For the imports of the graded modules, which bring most of the engine: a supply for the whole
grade, since each task has a fresh worker, which imports all of them anew."""
FAIR_TIMES = 5
"""To that each start of a worker adds so many times what the reference's imports take here."""
LOOK_SECONDS = 5.0
"""Once a task's answers have taken so long, and twice and four times as long, it is looked whether
threads that never end make them slow, or files that are written again and again."""
MOST_WRITTEN = 1 << 30
"""Bytes for one task: a right answer is written in a few thousand, and a folder holds 256 MiB."""
SLEEP_SECONDS = 20.0
"""For all answers of a task whose worker was at rest meanwhile, whatever the machine had to do: it
sleeps in each of its functions, or waits for a lock that is never opened."""
TASK_SECONDS = 120.0
"""For all answers of one task. On an idle machine right files need less for a whole phase
(docs/instructors.md, "What it costs")."""
LEAST_SHARE = 1 / 8
"""Each task that was waited for in vain halves the time of an answer, and of a task, for those that
follow, down to this share: a trap in every function costs little more than one in three. An answer
has `FAIR_TIMES` what the slowest of the reference's took, if that is more."""
WARM_SECONDS = 60.0
SHRINK_SECONDS = 2.0
"""For each test's search for a smaller example. Hypothesis's own limit is five minutes, and an
unfinished hand-in fails every test."""
KERNEL_SECONDS = 300.0
"""For all cases of one kernel, compilers included; each case has a limit of its own in
`labkit.kernels.workers`."""
WORKERS = pytest.StashKey[dict[tuple[str, str], "Observed"]]()
LAST_TASK = pytest.StashKey[str]()
WARM = "labkit.inside.basic:warm"
BUSY = "labkit.inside.basic:is_busy"
COMPUTED = "labkit.inside.basic:computed"
WRITTEN = "labkit.inside.basic:written"
NAMED = re.compile(r"[\"']([a-z_][\w.]*):[A-Za-z_]")
"""A module that a hidden test names in a program."""
SANDBOX = "sandbox"
"""The kind of failure that is the grader's own."""
LOST = {"hang": "endless loop", "died": "crash", "garbage": "garbage"}
RAISED = {
    "NotImplementedError": "open TODO",
    "MemoryError": "memory",
    "ImportError": "cannot import",
    "ModuleNotFoundError": "cannot import",
    "SyntaxError": "cannot import",
}
TOO_MUCH = {"MemoryError": "memory", "TooLarge": "garbage"}
"""Exceptions after which a task is over: each time they take seconds."""
STAND_INS = {"EndlessLoop": "endless loop", "Crash": "crash", "Garbage": "garbage"}
"""As `RAISED`, for what the stand-ins of `Subject._set_aside` raise."""
RAISED |= STAND_INS


class TaskLost(BaseException):
    """The subject gave no answer, so its task is over. Not an Exception: Hypothesis must not try
    again with other inputs."""


class SandboxBroken(BaseException):
    """The sandbox did not come up, before any code of the learner ran; or the reference gave no
    answer, on a machine that stood still. No Exception either: it would call a test flaky that
    passes the second time, and so its failure the learner's."""


class Replaced(AssertionError):
    """The submission gave a name outside its files to something else; the name is the message."""


class Observed(Worker):
    """A worker that remembers what it was asked last, and what came of it.

    Attributes:
        asked: scenario and arguments of the last request.
        seen: its answer, as far as there is one.
        refusals: of a program, the steps that must raise, and what.
        raised: name of the exception that ended it, or "".
        first, slowest: seconds that the first answer took, which imports everything, and the
            slowest of the others; 0 before.
    """

    first, slowest = 0.0, 0.0
    asked: tuple[str, dict[str, Any]] = ("", {})
    seen: Any = None
    refusals: Mapping[int, str] = MappingProxyType({})
    raised: str = ""

    def call(self, scenario: str, **args: Any) -> Any:
        self.asked, self.seen, self.raised = (scenario, args), None, ""
        begin = time.monotonic()
        try:
            self.seen = super().call(scenario, **args)
            seconds = time.monotonic() - begin
            self.slowest = max(self.slowest, seconds if self.first else 0.0)
            self.first = self.first or seconds
        except WorkerError as error:
            if error.kind in LOST:  # not the learner's, whose answers have another way out
                raise SandboxBroken(str(error)) from None
            self.raised = error.detail["type"]
            raise
        self._notice_the_end()
        return self.seen

    def run(self, program: Program) -> list[Any]:
        self.refusals = program.refusals
        self.seen = super().run(program)
        self._notice_the_end()
        return self.seen

    def _notice_the_end(self) -> None:
        last = self.seen[-1] if isinstance(self.seen, list) and self.seen else None
        if isinstance(last, dict) and isinstance(last.get("!raises"), str):
            self.raised = last["!raises"]


class Subject(Observed):
    """What is judged: one sandboxed worker a task.

    Attributes:
        task: whose tests run now, "03.2".
        seconds: what its answers have taken so far; `passed`: by the clock.
        kept_waiting: for how long its worker had waited for a processor before its first answer.
        lost: tasks that are over -> why, one of `labkit.grading.result.KINDS`.
        unusable: modules whose import raised or never ended -> why. Their tasks are lost without
            another try: each would wait for the same limit again.
        raised_by: modules whose import raised -> what, as `WorkerError.detail`.
        waits: tasks that were waited for in vain.
        calm: whether nothing computes once all modules are imported; None before a look.
        died: modules during whose import a worker has ended. Once may be the machine's doing: where
            memory is short, the kernel ends a worker first (`labkit.inside.child.be_killed_first`).
        imports: seconds that all imports have taken, in `starts` workers.
        fair: those that the reference's take in one; 0 before an answer is slow.
        computed: seconds that the worker had computed before its first answer.
        last_task: behind which no other comes, as far as that is known.
    """

    last_task = ""
    is_asked = False

    def __init__(self, phase: Phase, launcher: Sandbox) -> None:
        limits = child.Limits(ANSWER_SECONDS, phase.memory_mb)
        super().__init__(phase.root, {}, limits, "subject", launcher)
        self.task = ""
        self.seconds = self.passed = self.kept_waiting = 0.0
        self.lost: dict[str, str] = {}
        self.unusable: dict[str, str] = {}
        self.raised_by: dict[str, dict[str, Any]] = {}
        self.waits = 0
        self.calm: bool | None = None
        self.died: set[str] = set()
        self.starts, self.imports, self.fair = 0, 0.0, 0.0
        self.look_at, self.first_seconds, self.computed = LOOK_SECONDS, FIRST_SECONDS, 0.0
        self.phase, self.sandbox = phase, launcher
        self.packages = sandbox.heavy_packages(phase)
        self.watched = watched_modules(phase, self.packages)

    def call(self, scenario: str, **args: Any) -> Any:
        if path := os.environ.get(ASKED):
            request = hashlib.sha256(repr((scenario, args)).encode()).hexdigest()
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{self.task} {request}\n")
        begin, self.is_asked = time.process_time(), True
        try:
            return super().call(scenario, **args)
        finally:
            own = time.process_time() - begin
            self.seconds += self.patience.waited + own
            self.passed += self.patience.passed + own
            self._end_what_takes_too_much()

    def _end_what_takes_too_much(self) -> None:
        """Memory is filled in seconds, and slow answers are in time one by one; but Hypothesis asks
        for a hundred, and for more to find a smaller example."""
        why = TOO_MUCH.get(self.raised, "")
        if not why and self.seconds > self.look_at:
            self.look_at *= 2
            why = "endless loop" if self._is_busy() else "timeout" if self._writes_on() else ""
        if why or self._is_late() or self._is_asleep():
            self.lose(why or "timeout", why not in TOO_MUCH.values())
            raise TaskLost(self.lost[self.task])

    def _is_late(self) -> bool:
        """Whether the task has taken too long. A short answer is counted by the clock. Where
        hundreds of them are too much, the time that the worker waited for a processor is taken
        off."""
        most = self._share() * TASK_SECONDS
        if self.seconds <= most or self._process is None:
            return self.seconds > most
        others = timeouts.kept_waiting(self._process.pid) - self.kept_waiting
        return self.passed - others > most or self.passed > timeouts.WALL_TIMES * most

    def _share(self) -> float:
        """Of the usual time, what there is after all that was waited for."""
        return max(0.5**self.waits, LEAST_SHARE)

    def enter(self, task: str, right: Observed | None = None) -> None:
        """From now on tests of `task` run; another task's worker ends. `right`: the reference."""
        if self.waits:
            fair = FAIR_TIMES * (right.slowest if right else 0.0)
            seconds = min(max(self._share() * ANSWER_SECONDS, fair), ANSWER_SECONDS)
            self.limits = replace(self.limits, seconds=seconds)
            first = (right.first if right else 0.0) or self._share() * FIRST_SECONDS
            self.first_seconds = min(first, FIRST_SECONDS)
        if task != self.task:
            if self.task:  # before the first test, a fixture may have asked already
                self.close()
            self.task, self.look_at = task, LOOK_SECONDS
            self.seconds = self.passed = 0.0

    def lose(self, why: str, waited: bool = False) -> None:
        self.waits += waited
        self.lost.setdefault(self.task, why)
        self.close()

    def _over(self) -> str:
        """Why the task that runs now cannot be judged any more, or ""."""
        return self.lost.get(self.task) or self.unusable.get(self._own_module(), "")

    def _own_module(self) -> str:
        return next((task.module for task in self.phase.exercises if task.id == self.task), "")

    def culprit(self) -> str:
        """The file whose import keeps the task that runs now from being judged, or "". It may be
        another task's, which this one's imports."""
        own = self._own_module()
        if own not in self.unusable and self.raised not in STAND_INS:
            return ""
        return self.phase.lab_file(next(iter(self.sandbox.stand_ins), own)).name

    def _start(self) -> None:
        """Import the big packages and then the graded modules first, each under a limit of its
        own: the packages' time is not the learner's, and an import that never ends is not what a
        task asks for."""
        super()._start()
        self.starts += 1
        try:
            self._import(self.packages, WARM_SECONDS)
            self._tell(WATCH, WARM_SECONDS, modules=self.watched, graded=list(self.phase.modules))
        except WorkerError as error:
            raise SandboxBroken(str(error)) from None
        for module in self.phase.modules:
            if module not in self.unusable and self._process is not None:
                self._try(module)
        if self.calm is None and self._process is not None:
            self.calm = not self._is_busy()
            if not self.calm:  # whose threads? A fresh worker looks after each module
                self.close()
        if self._process is None:  # an import has ended it
            self._start()
        self.computed = self._ask(COMPUTED) or 0.0
        self.kept_waiting = timeouts.kept_waiting(self._process.pid) if self._process else 0.0
        self._extra = self.first_seconds
        if (self.lost or self.unusable) and not self.waits:  # an answer's own time suffices
            self._extra = 0.0
        if self.task and self.task != self.last_task != "":
            self.prepare(WARM, packages=self.packages)

    def _try(self, module: str) -> None:
        """Import a graded module; or remember why that does not work."""
        why = ""
        try:
            self._import([module], self._import_seconds())
        except WorkerError as error:
            if error.kind == "error":
                self.unusable[module] = RAISED.get(error.detail["type"], "cannot import")
                self.raised_by[module] = error.detail
            elif error.kind == "died" and module not in self.died:
                self.died.add(module)
                self.close()  # the next worker imports it once more
            else:
                why = LOST[error.kind]
        self.imports += self.patience.waited
        if module not in self.unusable and not why and self.calm is False and self._is_busy():
            self.calm, why = None, "endless loop"
        if why:
            self._set_aside(module, why)

    def _import_seconds(self) -> float:
        """What is left for the next import."""
        left = IMPORT_SECONDS - self.imports
        if left <= IMPORT_SECONDS / 2:
            self.fair = self.fair or self._import_the_reference()
            left += FAIR_TIMES * self.fair * self.starts
        return max(left, 0.001)

    def _import_the_reference(self) -> float:
        """How long its imports take on this machine now."""
        files = {m: self.phase.reference_file(m).read_bytes() for m in self.phase.modules}
        launcher = Sandbox(self.phase, files, self.sandbox.rung_type)
        limits = child.Limits(WARM_SECONDS, self.phase.memory_mb)
        with Worker(self.phase.root, {}, limits, "reference", launcher) as worker:
            worker.call(WARM, packages=self.packages)
            worker.call(WARM, packages=list(self.phase.modules))
            return worker.patience.waited

    def _set_aside(self, module: str, why: str) -> None:
        """From now on importing this module raises at once, also where another one does it: what it
        did to this worker it would do to the next."""
        self.unusable[module] = why
        name = why.title().replace(" ", "")
        self.sandbox.stand_ins[module] = (
            f"class {name}(ImportError):\n    pass\n\n\nraise {name}('{module}')\n".encode()
        )
        self.end()  # also the one that is prepared, with the file as it was

    def _is_busy(self) -> bool:
        """Whether the imports left threads behind that compute without an end. They would make
        every answer slow, up to the limit of each task."""
        return self._ask(BUSY) is True

    def _writes_on(self) -> bool:
        """Whether the answers are slow because files are written again and again."""
        now = self._ask(WRITTEN)
        return isinstance(now, int) and now > MOST_WRITTEN

    def _is_asleep(self) -> bool:
        """Whether the task has been waited for long, and its worker has hardly computed."""
        if self.seconds <= self._share() * SLEEP_SECONDS:
            return False
        now = self._ask(COMPUTED)
        return isinstance(now, float) and now - self.computed < REST * self.seconds

    def _ask(self, scenario: str) -> Any:
        """What the worker says of itself; None if it is gone: the next question will say why."""
        if self._process is None:
            return None
        try:
            return [value for _, value in super()._exchange(scenario, {})][-1]
        except WorkerError:
            return None

    def _import(self, modules: list[str], seconds: float) -> None:
        """
        Raises:
            WorkerError: one of them raised, or there was no answer in time.
        """
        self._tell(WARM, seconds, packages=modules)

    def _tell(self, scenario: str, seconds: float, **args: Any) -> None:
        """Ask for what has no answer."""
        usual, self.limits = self.limits, replace(self.limits, seconds=seconds)
        try:
            for _ in super()._exchange(scenario, args):
                pass
        finally:
            self.limits = usual

    def check_names(self) -> None:
        """
        Raises:
            Replaced: since it was imported, the submission has given a name of others to something
                else: what was observed need not be what happened.
        """
        if self._process is None or not self.is_asked:
            return
        self.is_asked = False
        name = self._ask(REPLACED)
        if not isinstance(name, str):
            self.lose("crash")
            raise TaskLost("crash")
        if name:
            raise Replaced("".join(re.findall(r"[\w. ()]", name))[:100])

    def _exchange(self, scenario: str, args: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        if self._process is None and not self._over():
            self._start()
        if why := self._over():
            self.lose(why)
            raise TaskLost(why)
        try:
            yield from super()._exchange(scenario, args)
        except WorkerError as error:
            if error.kind == "error":
                raise
            self.lose(LOST[error.kind], error.kind == "hang")
            raise TaskLost(LOST[error.kind]) from None


def watched_modules(phase: Phase, packages: Sequence[str]) -> list[str]:
    """Modules outside the engine that hidden tests name, and the big ones."""
    texts = [path.read_text(encoding="utf-8") for path in phase.hidden_tests.glob("*.py")]
    named = {name for text in texts for name in NAMED.findall(text)}
    known = {name for name in named if name.partition(".")[0] in sys.stdlib_module_names}
    known |= {"numpy"} & named
    return sorted(known | ({"numpy", "torch", "torch.nn.functional"} & {"torch", *packages}))


def import_first(packages: Sequence[str], *workers: Worker, threads: int | None = None) -> None:
    """Import large packages before an answer is timed: each is an answer of its own, and costs
    nothing the second time. With `threads`, torch computes with so many."""
    asked: list[tuple[str, Any]] = [("importlib:import_module", name) for name in packages]
    asked += [("torch:set_num_threads", threads)] if threads else []
    for worker in workers:
        for name, argument in asked:
            p = Program()
            p.call(name, argument)
            worker.run(p)


def _phase_of(path: Path) -> Phase:
    """The phase of a hidden test, from where it lies: tests/hidden/NN-slug/."""
    for folder in path.parents:
        if folder.parent.name == "hidden" and folder.parent.parent.name == "tests":
            return Course(folder.parents[2]).phase(folder.name)
    raise pytest.UsageError(f"{path} does not lie below tests/hidden/NN-slug/")


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Observed:
    """The learner's modules (LAB=labs, the default), the reference, or a mutant."""
    return _worker(request, "subject", _make_subject)


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest) -> Observed:
    """The engine as it is."""

    def make(phase: Phase) -> Observed:
        limits = child.Limits(WARM_SECONDS, phase.memory_mb)
        worker = Observed(phase.root, {}, limits, "reference")
        worker.prepare(WARM, packages=[*sandbox.heavy_packages(phase), *phase.modules])
        return worker

    return _worker(request, "reference", make)


def _worker(
    request: pytest.FixtureRequest, name: str, make: Callable[[Phase], Observed]
) -> Observed:
    """One worker of a name for each phase of the session, for tests of several files in turn."""
    phase = _phase_of(request.path)
    workers = request.config.stash.setdefault(WORKERS, {})
    if (phase.slug, name) not in workers:
        workers[phase.slug, name] = worker = make(phase)
        request.session.addfinalizer(worker.end)
    return workers[phase.slug, name]


def _make_subject(phase: Phase) -> Subject:
    given = os.environ.get(SUBJECT)
    mapping = json.loads(given) if given is not None else overlay.mapping_for([phase])
    files = {m: Path(mapping.get(m) or phase.reference_file(m)) for m in phase.modules}
    submission = {module: path.read_bytes() for module, path in files.items()}
    rung = isolation.LADDER[os.environ.get(ISOLATION, "plain")]
    return Subject(phase, Sandbox(phase, submission, rung))


def _subject_of(item: pytest.Item) -> Subject | None:
    found = getattr(item, "funcargs", {}).get("subject")
    return found if isinstance(found, Subject) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the tasks that were asked for, and the tests of one task after the other."""
    if wanted := os.environ.get(TASKS):
        kept = [item for item in items if task_of(item.name) in wanted.split(",")]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    if ASKED in os.environ:
        items[:] = [item for item in items if "checker" not in getattr(item, "fixturenames", ())]
    items.sort(key=lambda item: task_of(item.name))
    config.stash[LAST_TASK] = task_of(items[-1].name) if items else ""


def pytest_collection_finish() -> None:
    """Hypothesis has no setting for this."""
    if engine := sys.modules.get("hypothesis.internal.conjecture.engine"):
        engine.MAX_SHRINKING_SECONDS = SHRINK_SECONDS  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each task has a worker of its own."""
    workers = item.config.stash.get(WORKERS, {})
    for (slug, _), worker in workers.items():
        if isinstance(worker, Subject):
            worker.last_task = item.config.stash.get(LAST_TASK, "")
            worker.enter(task_of(item.name), workers.get((slug, "reference")))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: Any
) -> Generator[None, Any, Any]:
    """What is lost while a fixture asks is the task that runs now. Pytest would keep the exception,
    or choke on it, and fail the tests of other tasks with it; so the fixture is worth nothing, and
    its test is told by the next hook."""
    try:
        return (yield)
    except TaskLost:
        fixturedef.cached_result = (None, fixturedef.cache_key(request), None)
        return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A module's first test makes the workers only while it is set up. What has passed in a worker
    whose names mean something else has not passed."""
    pytest_runtest_setup(item)
    subject = _subject_of(item)
    if subject and subject.task in subject.lost:
        raise TaskLost(subject.lost[subject.task])
    result = yield
    if subject:
        subject.check_names()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Tell the grader what sort of failure it was, and for which inputs."""
    found = _subject_of(item)
    if found is None or call.excinfo is None or call.when == "teardown":
        return
    right = item.funcargs.get("reference")  # type: ignore[attr-defined]
    kind = kind_of(found, right, call.excinfo.value)
    known = right is not None and asked_the_same(right, found)
    expected = right.seen if known else None
    text = counterexample.text(*found.asked, found.seen, expected, found.refusals)
    item.user_properties += [("kind", kind), ("counterexample", text)]
    item.user_properties += [("unusable", sorted(found.unusable))]
    if isinstance(call.excinfo.value, Replaced):
        item.user_properties += [("replaced", str(call.excinfo.value))]
    item.user_properties += [("culprit", found.culprit())] if kind != "open TODO" else []


def asked_the_same(one: Observed, other: Observed) -> bool:
    """Whether the last requests of two workers are equal, as they are sent: `==` of two arrays is
    an array, and an error here would end pytest with all tests that are left."""
    return bool(plain.encode(one.asked) == plain.encode(other.asked))


def kind_of(subject: Subject, reference: Any, error: BaseException) -> str:
    """What sort of failure ended a hidden test: one of `labkit.grading.result.KINDS`, or `SANDBOX`.

    Args:
        reference: the worker that was asked beside the subject, if any.
        error: what the test raised.
    """
    if isinstance(error, SandboxBroken):
        return SANDBOX
    if isinstance(error, Replaced):
        return "replaced"
    if isinstance(error, EndlessLoop):
        subject.lose("timeout", waited=True)
    kind = subject.lost.get(subject.task) or RAISED.get(subject.raised, "")
    if isinstance(error, NotImplementedError):  # the kernel checker saw a TODO, and ran nothing
        kind = kind or "open TODO"
    if not kind and subject.raised and subject.raised != getattr(reference, "raised", ""):
        kind = "error"
    return kind or "wrong result"
