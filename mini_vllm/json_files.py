"""JSON from outside: whatever is wrong with a text, the error is a ValueError that says so.

`json.loads` has three kinds of errors: JSONDecodeError for most texts, UnicodeDecodeError for bytes
that are no text, and RecursionError for one that nests too deep, such as ten thousand `[`. How deep
that is depends on Python's version (3.14 reads twenty thousand), so `DEEPEST` is counted before.
And where a name stands twice in an object, `json.loads` keeps the last one in silence.
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
"""Some Windows programs begin a file so."""
LFS_POINTER = b"version https://git-lfs"
"""How the file begins that git leaves in place of a large one."""
DEEPEST = 500
"""Lists and objects inside one another, at most; code that calls itself for each bears them."""
_STRINGS = re.compile(r'"(?:[^"\\]|\\.?)*(?:"|\Z)', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def parse_json(text: str | bytes) -> Any:
    """The value that a text writes down. `NaN` and `Infinity` are numbers, as in Python's library.

    Raises:
        UnicodeDecodeError: for bytes that are no UTF-8.
        json.JSONDecodeError: for all else that is no such text. Both are ValueErrors.
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
    except RecursionError:  # the caller itself stands deep in Python's stack
        raise too_deep from None
    except ValueError as error:  # a number of more digits than Python reads
        raise json.JSONDecodeError(str(error), text, 0) from None


def _levels(text: str) -> int:
    """How many lists and objects are open at the deepest place; no more than there are at all."""
    opened = text.count("[") + text.count("{")
    if opened <= DEEPEST:
        return opened
    bare = _STRINGS.sub("", text)
    return max(accumulate(_STEPS.get(mark, 0) for mark in bare), default=0)


def check_no_pointer(path: Path) -> None:
    """Raises ValueError for what git has instead of a large file, until it is told to fetch it."""
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
        ValueError: that names the file if it holds something else.
    """
    check_no_pointer(path)
    try:
        value = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {show(value)}; it must be a JSON object, {{...}}")
    return value
