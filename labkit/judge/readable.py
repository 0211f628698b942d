"""Whether Python gets through a learner's files at all, before this process reads them.

A few hundred bytes can cost Python's parser or compiler minutes, gigabytes or its life: `finally`
within `finally`, or one name for ten thousand functions. So a child under limits goes first:
`python -m labkit.judge.readable FILE…` prints a line for each file that it has come through.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from labkit.course import source
from labkit.course.files import read_python
from labkit.course.manifest import Phase
from labkit.inside import child
from labkit.process import overlay

LIMITS = child.Limits(seconds=20, memory_mb=1024, cpu_seconds=10)
"""For the child, its own start included."""
MOST_SECONDS = 1.0
"""Of computing time for one file. Those of no phase of the course need more than 0.03 s and 4 MB.
Each task of a grade has a process of its own, which compiles every file anew."""
MOST_MB = 512
"""What a file may need on the way: this process has to go it, too."""


@contextlib.contextmanager
def within_reason() -> Iterator[None]:
    """In a child: what is done inside ends this process if it takes more than `MOST_SECONDS` or
    `MOST_MB`. A signal does it, since Python's compiler listens to nothing else."""
    if hasattr(signal, "setitimer"):  # on Windows the limit of the whole child has to do
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
    if _peak_mb() > MOST_MB:
        sys.exit(1)


def too_much(phase: Phase) -> Path | None:
    """The first file of a phase that costs Python too much to read."""
    return first_too_much(phase.root, [phase.lab_file(module) for module in phase.modules])


def first_too_much(root: Path, paths: Iterable[Path]) -> Path | None:
    """The first of some files that does; one that is not there costs nothing."""
    there = [path for path in paths if path.is_file()]
    stamps = [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in there]
    return _first_that_ends_it(root, tuple(stamps))


@lru_cache(maxsize=8)
def _first_that_ends_it(root: Path, files: tuple[tuple[Path, int, int], ...]) -> Path | None:
    """Kept, since one screen asks several times about files that have not changed."""
    if child.runs_here:  # the page ends what takes too long
        return None
    words = ["-m", "labkit.judge.readable", *(str(path) for path, _, _ in files)]
    done = child.run(words, overlay.environment(root, {}), LIMITS)
    return None if done.code == 0 else files[len(done.stdout.splitlines())][0]


def main(paths: list[str]) -> None:
    """Read each file as the screens do; end at one that costs too much."""
    for path in paths:
        with within_reason(), contextlib.suppress(OSError, SyntaxError, ValueError):
            text = read_python(Path(path))
            source.functions(text)
            source.compiled(text)
        print(path, flush=True)


def _peak_mb() -> int:
    """The most memory of this process so far. What `getrusage` says on Linux is no less than what
    its parent had when it was started."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((int(x.split()[1]) >> 10 for x in lines if x.startswith("VmHWM:")), 0)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20  # macOS counts bytes


if __name__ == "__main__":
    main(sys.argv[1:])
