"""Parses JSON from users and files. Every error is a ValueError.

`json.loads` raises three types of errors: JSONDecodeError for most texts, UnicodeDecodeError for
bytes that are not UTF-8, and RecursionError for a text that is nested too deeply, such as ten
thousand `[`. That limit depends on Python's version (3.14 reads twenty thousand), so the depth is
checked before, against `DEEPEST`. And of two equal names in an object, `json.loads` silently keeps
the last one; here they are an error.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

from mini_vllm.errors import show

BOM = "\ufeff"
"""Byte order mark, with which some Windows programs begin a file."""
LFS_POINTER = b"version https://git-lfs"
"""Beginning of a pointer file, which Git LFS puts in place of a large file."""
DEEPEST = 500
"""Most levels of nested lists and objects; recursive code can process so many."""
_STRINGS = re.compile(r'"(?:[^"\\]|\\.?)*(?:"|\Z)', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. `NaN` and `Infinity` are numbers, as in Python's library.

    Raises:
        UnicodeDecodeError: for bytes that are not UTF-8.
        json.JSONDecodeError: for any other invalid text. Both are ValueErrors.
    """
    text = (text if isinstance(text, str) else text.decode("utf-8")).removeprefix(BOM)

    def entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
            said = f"{show(twice)} stands twice in one object"
            raise json.JSONDecodeError(said, text, max(text.rfind(json.dumps(twice)), 0))
        return made

    too_deep = json.JSONDecodeError(f"it nests too deep, more than {DEEPEST} levels", text, 0)
    if _levels(text) > DEEPEST:
        raise too_deep
    try:
        return json.loads(text, object_pairs_hook=entries)
    except json.JSONDecodeError:
        raise
    except RecursionError:  # the caller itself is deep in Python's stack
        raise too_deep from None
    except ValueError as error:  # a number of more digits than Python reads
        raise json.JSONDecodeError(str(error), text, 0) from None


def _levels(text: str) -> int:
    """The depth of nested lists and objects, or an upper bound that is at most DEEPEST."""
    opened = text.count("[") + text.count("{")
    if opened <= DEEPEST:
        return opened
    bare = _STRINGS.sub("", text)
    return max(accumulate(_STEPS.get(mark, 0) for mark in bare), default=0)


def check_no_pointer(path: Path) -> None:
    """Raises ValueError for a pointer of Git LFS, whose file has not been fetched."""
    with path.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ValueError(
                f"{path} is a pointer of Git LFS, and not the file itself; run `git lfs pull` "
                "in its folder, or download it"
            )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        OSError: if there is no such file, or it is a folder.
        ValueError: with the file's name, if it is no JSON object.
    """
    check_no_pointer(path)
    try:
        value = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {show(value)}; it must be a JSON object, {{...}}")
    return value
