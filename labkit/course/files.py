"""Small file helpers: atomic writes, backups, and git's name for a text."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tempfile
import tokenize
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, path.stat().st_mode if path.exists() else 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_all(texts: Mapping[Path, str]) -> None:
    """Write all of these files or none: if one cannot be written, the others stay as they were.

    Raises:
        OSError: one cannot be written; nothing has changed then.
    """
    before: dict[Path, str | None] = {}
    try:
        for path, text in texts.items():
            old = path.read_text(encoding="utf-8") if path.exists() else None
            write_text(path, text)
            before[path] = old
    except OSError:
        for path, old in before.items():
            if old is None:
                path.unlink()
            else:
                write_text(path, old)
        raise


def read_python(path: Path) -> str:
    """A source file's text, decoded as Python itself does: UTF-8 with or without a mark at its
    beginning, or what its first lines declare.

    Raises:
        OSError: it cannot be read.
        SyntaxError: it is not text in the encoding that it has or declares.
    """
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    try:
        return io.StringIO(data.decode(encoding), newline=None).read()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SyntaxError(
            f"line {line} is no {encoding} text; save the file as UTF-8", (path.name, line, 1, "")
        ) from None


def blob_id(text: str) -> str:
    """The name under which git stores this text as a file, so that git can give it back later."""
    data = text.encode("utf-8")
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def run_git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A git command in the checkout, with what it said; exit code 127 if git is missing or does
    not end."""
    words = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 127, "", str(error))


def git(root: Path, *arguments: str) -> str | None:
    """Output of a git command in the checkout; None if git is missing or says no."""
    done = run_git(root, *arguments)
    return done.stdout if done.returncode == 0 else None


def backup(root: Path, paths: list[Path]) -> Path | None:
    """Copy files to `.labkit/backups/<time>/<their path>`; returns that folder, or None if there
    was nothing to copy."""
    existing = [path for path in paths if path.exists()]
    if not existing:
        return None
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    folder = root / ".labkit" / "backups" / stamp
    for path in existing:
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    return folder
