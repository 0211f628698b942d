"""Bytecode of what a first run imports, put into the zip files that the tab unpacks.

`compile.mjs` runs this in Pyodide: no other Python's bytecode can be read there. A `.pyc` is not
checked against its source. The course's source lies beside it unchanged, for failures show its
lines; the standard library's and the packages' bytecode lies in place of their source.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import zipfile

WHEN = (2020, 1, 1, 0, 0, 0)
COURSE = "/course/"
PACKAGES = "/lib/python3.14/site-packages/"
OURS = ("labkit/", "mini_vllm/")
"""Of the course all of these; pytest writes tests anew, and the learner the labs."""
FIRST = ("00", "03")
"""Phases that are run to see what a run imports."""


def main() -> None:
    """Turn /tmp/NAME.zip into /tmp/NAME.compiled.zip, for each of the three."""
    shutil.unpack_archive("/tmp/packages.zip", PACKAGES)
    shutil.unpack_archive("/tmp/course.zip", COURSE)
    sys.path.insert(0, COURSE)
    from labkit.tab.driver import Driver

    driver = Driver(lambda event: None)
    for phase in FIRST:
        driver.answer(json.dumps({"do": "run", "phase": phase}))
    seen = {str(getattr(module, "__file__", None)) for module in [*sys.modules.values()]}
    stdlib = next(path for path in sys.path if path.endswith(".zip")) + "/"
    for name, place in (("stdlib", stdlib), ("packages", PACKAGES), ("course", COURSE)):
        with (
            zipfile.ZipFile(f"/tmp/{name}.zip") as given,
            zipfile.ZipFile(f"/tmp/{name}.compiled.zip", "w") as made,
        ):
            for file in given.namelist():
                data = given.read(file)
                wanted = file.startswith(OURS) if place == COURSE else place + file in seen
                compiled = wanted and file.endswith(".py")
                if not compiled or place == COURSE:
                    put(made, file, data)
                if compiled:
                    name_of_it = cached(file) if place == COURSE else file + "c"
                    put(made, name_of_it, bytecode(data, place + file))


def bytecode(data: bytes, path: str) -> bytes:
    """What stands in a `.pyc` file that is not checked against its source."""
    code = compile(data, path, "exec", dont_inherit=True)
    turn = importlib._bootstrap_external._code_to_hash_pyc  # type: ignore[attr-defined]
    return bytes(turn(code, importlib.util.source_hash(data), False))


def cached(file: str) -> str:
    """Where Python looks for a file's bytecode: "a/__pycache__/b.cpython-314.pyc" of "a/b.py"."""
    folder, _, last = file.rpartition("/")
    beside = f"__pycache__/{last[:-3]}.{sys.implementation.cache_tag}.pyc"
    return f"{folder}/{beside}" if folder else beside


def put(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Add a file; the same files give the same archive."""
    archive.writestr(zipfile.ZipInfo(name, WHEN), data, zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    main()
