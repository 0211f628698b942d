"""`labkit import FILE.zip`: work from a browser's tab comes into labs/, with a backup of what stood
there."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import typer

from labkit.course import unfinished
from labkit.course.console import course, polite, some
from labkit.course.files import backup, write_all
from labkit.course.manifest import Course
from labkit.course.state import State
from labkit.tab.remembering import remember

STATE = ".labkit/state.json"
MOST_BYTES = 4 << 20
"""Of one file: no lab file has a hundredth of it."""


@polite
def take(
    file: Path = typer.Argument(help="what the book's page has exported: mini_vllm-work.zip"),
) -> None:
    """Put work that was exported from the book's pages into labs/; your files are backed up."""
    known = course()
    texts, left = read(known, file)
    fresh = {known.root / name: text for name, text in texts.items() if name != STATE}
    fresh = {path: text for path, text in fresh.items() if not _holds(path, text)}
    kept = backup(known.root, list(fresh))
    if kept:
        where = kept.relative_to(known.root).as_posix()
        print(f"your files as they were are in {where}; `make undo` brings them back")
    with unfinished.under_way(unfinished.Unfinished(known.root, "import", kept)):
        write_all(fresh)
    for path in fresh:
        print(f"took in {path.relative_to(known.root).as_posix()}")
    if STATE in texts:
        remember(known, State(known.root), json.loads(texts[STATE]))
    if left:
        print(f"left out, for they are no lab files of this course: {some(left)}")
    numbers = sorted({name[5:7] for name in texts if name != STATE})
    if not fresh:
        print("your files hold all of it already")
    print(f"next: {some([f'make lab-{number}' for number in numbers])}")


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def read(known: Course, file: Path) -> tuple[dict[str, str], list[str]]:
    """The lab files and the state in an export, and the names of what is neither.

    Raises:
        ValueError: it is no zip file, it is damaged, it holds nothing of this course, or a file in
            it is too large or no text.
    """
    names = {phase.lab_path(m) for phase in known.ready for m in phase.modules} | {STATE}
    texts, left = dict[str, str](), list[str]()
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.filename in names:
                    texts[info.filename] = _text(archive, info)
                elif not info.is_dir():
                    left.append(info.filename)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        raise ValueError(f"{file} cannot be read as a zip file: {error}") from None
    if STATE in texts and not isinstance(_json(texts[STATE]), dict):
        del texts[STATE]
        left.append(STATE)
    if not texts.keys() - {STATE}:
        raise ValueError(f"{file} holds no lab file of this course, such as {min(names - {STATE})}")
    return texts, left


def _text(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    if info.file_size > MOST_BYTES:
        raise ValueError(f"{info.filename} has {info.file_size} bytes; the limit is {MOST_BYTES}")
    try:
        return archive.read(info).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{info.filename} is no text in UTF-8; nothing was taken in") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
