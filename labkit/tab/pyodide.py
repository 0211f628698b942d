"""Bring what the tab needs of others to `.upstream/tab/`: Pyodide, and the wheels of pytest and
msgspec. `pyodide.toml` pins each file by its digest.

They come from a folder that is named, else from npm where it is installed, else from a public
mirror of npm; the wheels come through pip. Without a network the book is built without the tab.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

FACTS = Path(__file__).with_suffix(".toml")
FOLDER = Path(".upstream") / "tab"
"""Below the checkout: what was fetched."""
SECONDS = 300
"""For each of npm, pip and the mirror."""
LEXERS = ("__init__", "_mapping", "diff", "python")
"""Of Pygments' lexers those that pytest loads; the others are most of its size."""


class Unavailable(RuntimeError):
    """What the tab needs could not be had; says what was tried, and what to do."""


@cache
def facts() -> dict[str, Any]:
    """The pins: version, python, platforms, url, files, packages."""
    return tomllib.loads(FACTS.read_text(encoding="utf-8"))


def bring(root: Path, given: Path | None = None) -> Path:
    """The folder with Pyodide's files and the wheels, all of them checked.

    Args:
        root: the checkout; the folder is below it.
        given: a folder to take Pyodide's files, and wheels, from.

    Raises:
        Unavailable: one of them cannot be had, or is another file than the pinned one.
    """
    folder = root / FOLDER / facts()["version"]
    folder.mkdir(parents=True, exist_ok=True)
    if given and given.resolve() != folder.resolve():
        _copy(given, folder)
    lacking = _lacking(folder)
    if given and lacking:
        names = ", ".join(lacking)
        raise Unavailable(f"{given} does not hold {names} as pinned in {FACTS.name}")
    if lacking & facts()["files"].keys():
        _by_npm(folder)
    for name in sorted(_lacking(folder) & facts()["files"].keys()):
        _by_mirror(folder, name)
    if _lacking(folder):
        _by_pip(folder)
    if lacking := _lacking(folder):
        names = ", ".join(sorted(lacking))
        raise Unavailable(
            f"Pyodide {facts()['version']} is not here, and could not be fetched: {names}."
            " With a network, `make book` fetches it; `--pyodide FOLDER` names a copy."
        )
    return folder


def packages(folder: Path) -> dict[str, bytes]:
    """The files of the wheels, as they lie in `site-packages`."""
    found: dict[str, bytes] = {}
    for wheel in sorted(_wheels(folder).values()):
        with zipfile.ZipFile(wheel) as archive:
            names = (name for name in archive.namelist() if not name.endswith("/"))
            found |= {name: archive.read(name) for name in names if _wanted(name)}
    return found


def _wanted(name: str) -> bool:
    parts = Path(name).parts
    if parts[0] == "pygments" and parts[1:2] == ("lexers",):
        return Path(name).stem in LEXERS
    return not name.endswith((".pyi", ".so.debug", "-linux-gnu.so", ".c"))


def _lacking(folder: Path) -> set[str]:
    """Names of files and packages that are not in a folder as they are pinned."""
    files = {
        name
        for name, digest in facts()["files"].items()
        if not (folder / name).is_file() or _digest(folder / name) != digest
    }
    return files | (facts()["packages"].keys() - _wheels(folder).keys())


def _wheels(folder: Path) -> dict[str, Path]:
    """The pinned packages of which a folder holds the wheel."""
    known = {digest: name for name, digest in facts()["packages"].items()}
    digests = {_digest(wheel): wheel for wheel in sorted(folder.glob("*.whl"))}
    return {known[digest]: wheel for digest, wheel in digests.items() if digest in known}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _copy(source: Path, folder: Path) -> None:
    for file in source.iterdir() if source.is_dir() else ():
        if file.name in facts()["files"] or file.suffix == ".whl":
            shutil.copyfile(file, folder / file.name)


def _by_npm(folder: Path) -> None:
    """From npm's registry, whichever is configured; nothing where there is no npm or no network."""
    npm = shutil.which("npm")
    with tempfile.TemporaryDirectory() as place:
        name = f"pyodide@{facts()['version']}"
        if npm is None or not _run([npm, "pack", "--silent", "--fetch-retries=0", name], place):
            return
        for archive in Path(place).glob("*.tgz"):
            with tarfile.open(archive) as pack:
                for name, data in _members(pack):
                    (folder / name).write_bytes(data)


def _members(pack: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for name in facts()["files"]:
        file = pack.extractfile(f"package/{name}")
        if file:
            yield name, file.read()


def _by_mirror(folder: Path, name: str) -> None:
    try:
        with urllib.request.urlopen(facts()["url"] + name, timeout=20) as answer:
            (folder / name).write_bytes(answer.read())
    except OSError:  # no network: what is lacking is said at the end
        return


def _by_pip(folder: Path) -> None:
    """The wheels, from the package index that pip is told to use."""
    pins = facts()
    lines = [f"{name} --hash=sha256:{digest}\n" for name, digest in pins["packages"].items()]
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(lines), encoding="utf-8")
    _run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--retries=1", "--no-deps",
         "--require-hashes", "--only-binary=:all:", f"--python-version={pins['python']}",
         *(f"--platform={name}" for name in pins["platforms"]), "--dest", ".", "-r", wanted.name],
        str(folder),
    )  # fmt: skip


def _run(words: list[str], place: str) -> bool:
    try:
        done = subprocess.run(words, cwd=place, capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
