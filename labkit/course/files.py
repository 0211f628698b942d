"""Small file helpers: atomic writes, backups, temporary folders, and git's name for a text."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import tokenize
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: a reader never sees half of it."""
    write_all({path: text})


def holds(path: Path, data: bytes) -> bool:
    """Whether the file is there and holds just this."""
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def entries_as_json(document: Mapping[str, Any]) -> str:
    """JSON of what was recorded, with a line for each entry of each of its sections: short, and a
    diff shows which entries have changed."""

    def dumped(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def rows(entries: Mapping[str, Any], indent: str) -> str:
        return ",\n".join(f"{indent}{dumped(key)}: {dumped(entries[key])}" for key in entries)

    sections = [
        f" {dumped(name)}: {{\n{rows(section, '  ')}\n }}"
        if isinstance(section, Mapping) and section
        else f" {dumped(name)}: {dumped(section)}"
        for name, section in document.items()
    ]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def write_all(contents: Mapping[Path, str | bytes]) -> None:
    """Write all of these files or none: if one cannot be written, the others stay as they were.

    Everything is written beside its place first, so that a disk that is full is noticed before the
    first file changes. Texts are written as UTF-8.

    Raises:
        OSError: one cannot be written; nothing has changed then.
    """
    ready: dict[Path, Path] = {}
    before: dict[Path, bytes | None] = {}
    try:
        for path, content in contents.items():
            ready[path] = _write_beside(path, content)
        for path, new in ready.items():
            before[path] = path.read_bytes() if path.exists() else None
            os.replace(new, path)
    except BaseException:
        for path, old in before.items():
            if old is None:
                path.unlink(missing_ok=True)
            else:
                os.replace(_write_beside(path, old), path)
        raise
    finally:
        for new in ready.values():
            new.unlink(missing_ok=True)


def _write_beside(path: Path, content: str | bytes) -> Path:
    """A new file next to `path`, with its permissions: what is missing is one `os.replace`. A
    refusal names `path`, which the caller gave, and not that file."""
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.chmod(name, path.stat().st_mode if path.exists() else 0o644)
    except BaseException as error:
        if name:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and (name or path.parent.is_dir()):
            error.filename = str(path)
        raise
    return Path(name)


def read_python(path: Path) -> str:
    """A source file's text, decoded as Python itself does: UTF-8 with or without a mark at its
    beginning, or what its first lines declare.

    Raises:
        OSError: it cannot be read.
        SyntaxError: it is not text in the encoding that it has or declares.
    """
    data = path.read_bytes()
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        text = f"line {line} holds a zero byte, as files in UTF-16 do; save the file as UTF-8"
        raise SyntaxError(text, (path.name, line, 1, ""))
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(_with_newlines(data)).readline)
    except SyntaxError as error:  # of the first two lines
        raise SyntaxError(_undecided(data, error), (path.name, 1, 1, "")) from None
    try:
        return io.StringIO(data.decode(encoding), newline=None).read()
    except LookupError as error:  # a code that is not for texts
        said = SyntaxError(str(error))
        raise SyntaxError(_undecided(data, said), (path.name, 1, 1, "")) from None
    except UnicodeError as error:
        line = data[: getattr(error, "start", 0)].count(b"\n") + 1
        declared = "" if encoding.startswith("utf-8") else "delete the comment that says so, and "
        text = f"line {line} is no {encoding} text; {declared}save the file as UTF-8"
        raise SyntaxError(text, (path.name, line, 1, "")) from None


DECLARED = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)
"""What Python takes for the declaration of an encoding, in either of the first two lines."""


def _with_newlines(data: bytes) -> bytes:
    """Lines as Python counts them: a file from an old Mac ends each with a carriage return."""
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _undecided(data: bytes, error: SyntaxError) -> str:
    """Why Python does not know in which encoding to read a file, and the remedy."""
    lines = _with_newlines(data).split(b"\n")[:2]
    for number, line in enumerate(lines, 1):
        if found := DECLARED.match(line.removeprefix(codecs.BOM_UTF8)):
            name = found[1][:40].decode("ascii")
            return (
                f"line {number} declares the encoding {name!r}, in which the file cannot be read;"
                " delete that comment, and save the file as UTF-8"
            )
    for number, line in enumerate(lines, 1):
        if line != line.decode("utf-8", "ignore").encode():
            return f"line {number} is no UTF-8 text, and declares no other; save the file as UTF-8"
    return f"{error.msg}; save the file as UTF-8"


def read_as_utf8(path: Path) -> str:
    """A source file's text, to be written again as UTF-8: where it declares another encoding, the
    declaration says UTF-8 now.

    Raises:
        OSError, SyntaxError: see `read_python`.
    """
    lines = read_python(path).split("\n")
    for number, line in enumerate(lines[:2]):
        lines[number] = re.sub(r"^(\s*#.*?coding[:=]\s*)[-\w.]+", r"\1utf-8", line)
    return "\n".join(lines)


def printable(text: str) -> str:
    """The text with escapes in place of what no file and no terminal takes: halves of characters,
    as they stand in the name of a file that is no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def one_line(name: str) -> str:
    """A name that writes no line of its own on the screen and steers no terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in printable(name))


def blob_id(text: str) -> str:
    """The name under which git stores this text as a file, so that git can give it back later."""
    data = text.encode("utf-8")
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


NO_GIT = 127
GIT_SECONDS = 60


def run_git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A git command in the checkout, with what it said; exit code `NO_GIT` if git is missing or
    does not end."""
    words = ["git", "-C", str(root), *arguments]
    try:
        english = os.environ | {"LC_ALL": "C"}  # what git says is looked through for its reason
        return subprocess.run(
            words, capture_output=True, text=True, timeout=GIT_SECONDS, env=english
        )
    except OSError as error:
        return subprocess.CompletedProcess(words, NO_GIT, "", str(error))
    except subprocess.TimeoutExpired:
        said = f"`git {arguments[0]}` did not end within {GIT_SECONDS} s"
        return subprocess.CompletedProcess(words, NO_GIT, "", said)


def git(root: Path, *arguments: str) -> str | None:
    """Output of a git command in the checkout; None if git is missing or says no."""
    done = run_git(root, *arguments)
    return done.stdout if done.returncode == 0 else None


HALF = "-half"
"""Ends the name of a backup of what a command that was killed has left: `undo` passes it over."""


def backup(root: Path, paths: list[Path], ending: str = "") -> Path | None:
    """Copy files to `.labkit/backups/<time>/<their path>`; returns that folder, or None if there
    was nothing to copy. A backup is whole, or it is not there.

    Args:
        ending: of the folder's name, behind the time.

    Raises:
        OSError: a file cannot be copied.
    """
    existing = [path for path in paths if path.exists()]
    if not existing:
        return None
    name = datetime.now().strftime("%Y%m%d-%H%M%S-%f") + ending
    folder = root / ".labkit" / "backups" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / ".labkit", prefix="backup-") as making:
        whole = Path(making, "whole")
        for path in existing:
            target = whole / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        whole.rename(folder)
    return folder


ASIDE = "labkit-grade-"
FRESH_SECONDS = 60.0
"""A folder that was made later may be about to get its lock."""


@contextlib.contextmanager
def set_aside() -> Iterator[str]:
    """A temporary folder that goes in the end. Where this process is killed, the next one that asks
    for a folder removes it: its lock is held no more."""
    for left in Path(tempfile.gettempdir()).glob(f"{ASIDE}*") if fcntl else ():
        with contextlib.suppress(OSError):
            if time.time() - left.lstat().st_mtime > FRESH_SECONDS:
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
    made = tempfile.TemporaryDirectory(prefix=ASIDE, ignore_cleanup_errors=True)
    with made as folder, _locked(Path(folder)):
        yield folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """
    Raises:
        OSError: another process has the lock, or this is no folder of ours.
    """
    if fcntl is None:
        yield
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)
