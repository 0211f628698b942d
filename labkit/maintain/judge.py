"""What is run for a verdict, and what came of it.

A `Bench` is one process that has imported what vLLM needs (`labkit.maintain.child`). It is asked
for one run after the other; each sees the pinned tree with the files of an edit in their places.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.course.files import write_text
from labkit.course.root import ROOT, UPSTREAM, upstream_root
from labkit.inside.child import Tail
from labkit.inside.timeouts import Patience
from labkit.maintain import bugs, locked
from labkit.maintain.bugs import Bug, Edits
from labkit.sandbox import isolation
from labkit.sandbox.build import open_to_all
from labkit.trace import golden
from labkit.trace.kinds import ALL_KINDS

VARIANTS = 3
LIMIT = 40
"""Changed lines of a fix."""
RUN_SECONDS = 660.0
"""That one run may compute or sleep; the process ends a run by itself after 600 s."""
TRACES_OF_A_KIND, ASYNC_TRACES = 4, 8
"""60 traces: 4 of each of the 13 kinds, and 8 with late results."""


class BenchError(ValueError):
    """vLLM cannot be run here; the message says what to do."""


@dataclass(frozen=True)
class Outcome:
    """What came of one test or one trace; `said` is the reason of a failure."""

    name: str
    passed: bool
    said: str


def failed(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if not outcome.passed]


def tree_of(root: Path) -> Path:
    """The pinned tree.

    Raises:
        BenchError: it is not here.
    """
    tree = upstream_root(root)
    if tree is None:
        raise BenchError(f"vLLM's source is not in {UPSTREAM}; `make upstream` fetches it")
    return tree.resolve()


class Bench:
    """Runs tests on vLLM's Python files. Use it as a context manager; starting takes seconds.

    Args:
        rung: how the process is locked up; a learner's own files need nothing between.

    Raises:
        BenchError: the pinned source is not here.
    """

    def __init__(self, root: Path = ROOT, rung: type[isolation.Rung] = isolation.Plain) -> None:
        self.tree = tree_of(root)
        self._folder = tempfile.TemporaryDirectory(prefix="maintain-", ignore_cleanup_errors=True)
        self._place = Path(self._folder.name)
        locked.prepare(self._place)
        self._runs = 0
        self._rung = rung()
        self._process = locked.start(self._rung, self._place, self.tree)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._log = Tail(self._process.stderr)

    def tests(self, bug: Bug, edits: Edits, seeds: Sequence[int]) -> list[Outcome]:
        """A bug's test with these seeds, and its neighbours once."""
        calls: list[list[Any]] = [[bugs.BUG, seed] for seed in seeds]
        calls += [[name, None] for name in bugs.neighbours(bug.tests)]
        return self._ask(edits, bug.tests, calls=calls)

    def sibling(self, bug: Bug, edits: Edits, seeds: Sequence[int]) -> list[Outcome]:
        """The test of a bug's sibling with these seeds."""
        return self._ask(edits, bug.tests, calls=[[bugs.SIBLING, seed] for seed in seeds])

    def own_test(self, file: Path, edits: Edits) -> list[Outcome]:
        """All functions test_... of a file."""
        return self._ask(edits, file, calls=None)

    def lockstep(self, edits: Edits) -> list[Outcome]:
        """60 golden traces; vLLM must decide as recorded."""
        return self._ask(edits, traces=traces())

    def _ask(self, edits: Edits, file: Path | None = None, **words: Any) -> list[Outcome]:
        """One run. It sees its own files; those of the run before are removed."""
        shutil.rmtree(self._place / "runs" / str(self._runs), ignore_errors=True)
        self._runs += 1
        place = self._place / "runs" / str(self._runs)
        run = {"tree": str(self.tree), "edits": {}, **words}
        if file is not None:
            run["file"] = str(place / file.name)
            write_text(place / file.name, file.read_text(encoding="utf-8"))
        for path, text in edits.items():
            run["edits"][path] = str(place / path)
            write_text(place / path, text)
        place.mkdir(parents=True, exist_ok=True)
        open_to_all(place)
        try:
            self._stdin.write(json.dumps(run).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            pass  # the log tells more
        reply = self._reply()
        if not reply:
            raise BenchError(f"vLLM's process has died:\n{self._log.text()[-2000:]}")
        return [Outcome(**outcome) for outcome in json.loads(reply)]

    def _reply(self) -> bytes:
        """The line that answers a run; b"" if there is none, and the process has ended."""
        replies: list[bytes] = []
        reader = threading.Thread(target=lambda: replies.append(self._stdout.readline()))
        reader.start()
        patience = Patience(RUN_SECONDS, self._process.pid)
        while reader.is_alive() and patience.left > 0:
            with patience.turn() as seconds:
                reader.join(seconds)
        if reader.is_alive():
            self._rung.end(self._process)
        reader.join()
        return replies[0]

    def close(self) -> None:
        self._rung.end(self._process)
        self._process.wait()
        self._log.close()
        self._stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def traces() -> list[tuple[str, int]]:
    """File and number of the golden traces that a fix is replayed on."""
    found = [(kind, number) for kind in ALL_KINDS for number in range(TRACES_OF_A_KIND)]
    return found + [(golden.ASYNC, number) for number in range(ASYNC_TRACES)]


def fresh_seeds(count: int = VARIANTS) -> list[int]:
    return [random.SystemRandom().randrange(1 << 30) for _ in range(count)]


# ------------------------------------------------------------------ the learner's own test
def own_test_verdict(bench: Bench, bug: Bug, file: Path) -> str:
    """Why a learner's test does not count, or "" if it does: it fails on the pin, passes with the
    sealed fix, and fails with at least one wrong fix, where one is known."""
    on_pin = bench.own_test(file, {})
    if not on_pin:
        return f"{file.name} has no function test_...; write one that fails on the pin"
    if not failed(on_pin):
        return "it passes on the pin; it must show what the user reports, and fail there"
    if any(outcome.name == "import" for outcome in on_pin):
        return f"it cannot be imported: {on_pin[0].said}"
    mended = failed(bench.own_test(file, bugs.edits(bench.tree, bug.sealed().fix)))
    if mended:
        return f"it fails with a right fix, too: {mended[0].name}: {mended[0].said}"
    wrong = [bugs.edits(bench.tree, one.fix) for one in bug.sealed().wrong]
    if wrong and not any(failed(bench.own_test(file, edits)) for edits in wrong):
        return (
            f"it passes with a wrong fix, too: {len(wrong)} are known here, and it notices none;"
            " test more than one case"
        )
    return ""


# ------------------------------------------------------------------ the fix
def lockstep_failures(bench: Bench, bug: Bug, edits: Edits) -> list[Outcome]:
    """Traces that are decided otherwise, but for those that a right fix decides otherwise, too."""
    permitted = set(bug.sealed().may_differ)
    return [o for o in failed(bench.lockstep(edits)) if o.name not in permitted]
