"""All or nothing, also where a process is killed between two files: what a command that replaces
files has begun is noted before its first change, and the next such command takes it back.

The note, `.labkit/unfinished.json`, says which command it was, where the backup lies, and at which
commit the checkout was. It goes when the command has ended, well or with a refusal of its own.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.course.files import HALF, backup, git, holds, run_git, write_all, write_text

NOTE = Path(".labkit", "unfinished.json")


@dataclass(frozen=True)
class Unfinished:
    """What was begun.

    Attributes:
        command: "update", "reset" or "undo".
        folder: the backup of all that it may change; None if there was nothing to back up.
        head: the commit that a merge of it began at; "" where it merges nothing.
    """

    root: Path
    command: str
    folder: Path | None = None
    head: str = ""

    def __str__(self) -> str:
        where = f": your files are in {self._shown(self.folder)}" if self.folder else ""
        return f"a `make {self.command}` was stopped in its middle{where}"

    def _shown(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def write(self) -> None:
        where = self._shown(self.folder) if self.folder else ""
        about = {"command": self.command, "backup": where, "head": self.head}
        write_text(self.root / NOTE, json.dumps(about) + "\n")

    def take_back(self) -> list[str]:
        """Put every file back as it was, byte for byte; what stands there now is backed up. Says
        what was done.

        Raises:
            OSError: it cannot be; the note stays.
        """
        old = {path: kept.read_bytes() for path, kept in self._kept().items()}
        now = backup(self.root, [path for path in old if not holds(path, old[path])], HALF)
        self._end_merge()
        write_all({path: data for path, data in old.items() if not holds(path, data)})
        for path in old:  # what was written beside its place, and never got there
            for left in path.parent.glob(f".{path.name}.????????"):
                left.unlink(missing_ok=True)
        (self.root / NOTE).unlink(missing_ok=True)
        where = f"; your files are back from {self._shown(self.folder)}" if self.folder else ""
        says = [f"a `make {self.command}` was stopped in its middle and is taken back{where}"]
        return says + ([f"what stood there is in {self._shown(now)}"] if now else [])

    def _kept(self) -> dict[Path, Path]:
        """A file -> its backup."""
        if not self.folder:
            return {}
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {self.root / path.relative_to(self.folder): path for path in files}

    def _end_merge(self) -> None:
        """End the merge that the command began; the files around it come back after this."""
        if not self.head or git(self.root, "rev-parse", "-q", "--verify", "MERGE_HEAD") is None:
            return
        if (git(self.root, "rev-parse", "HEAD") or "").strip() != self.head:
            return  # a merge of the learner's own, later
        run_git(self.root, "checkout", "HEAD", "--", "labs")  # or git would not let go of them
        done = run_git(self.root, "merge", "--abort")
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:400]
            raise OSError(f"the merge that was begun cannot be ended; git says: {said}")


def found(root: Path) -> Unfinished | None:
    """What was begun here and has not ended; None if nothing was."""
    try:
        about = json.loads((root / NOTE).read_text(encoding="utf-8"))
        folder = root / about["backup"] if about["backup"] else None
        return Unfinished(root, about["command"], folder, about["head"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


@contextlib.contextmanager
def under_way(about: Unfinished) -> Iterator[None]:
    """While files change. If it is interrupted, all is taken back at once; if even that fails, as
    on a disk that is full, the note stays for the next command."""
    about.write()
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            about.take_back()
        raise
    (about.root / NOTE).unlink(missing_ok=True)
