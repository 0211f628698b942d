"""The child's side of `labkit.worker`: read a request, run its scenario, write the answer.

Answers go to a private copy of stdout; what the learner's code prints goes to stderr and cannot be
taken for an answer.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from labkit import plain
from labkit.alarm import shorten

LAST_FRAMES = 12


def main(folder: Path) -> None:
    """Serve requests until stdin ends."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    from labkit.scenarios import SCENARIOS

    for raw in requests:
        request = json.loads(raw)
        number = request["id"]

        def answer(kind: str, value: Any, number: int = number) -> None:
            arrays: dict[str, Any] = {}
            message: dict[str, Any] = {"id": number, kind: plain.encode(value, arrays)}
            if arrays:
                message["npz"] = f"answer-{number}-{len(os.listdir(folder))}.npz"
                plain.save_arrays(folder / message["npz"], arrays)
            answers.write(json.dumps(message).encode() + b"\n")
            answers.flush()

        try:
            arrays = plain.load_arrays(folder / request["npz"]) if "npz" in request else {}
            result = SCENARIOS[request["scenario"]](**plain.decode(request["args"], arrays))
            if inspect.isgenerator(result):
                for item in result:
                    answer("item", item)
                result = None
            answer("end", result)
        except BaseException as error:
            answer("error", describe(error))


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: class, message, and the innermost frames."""
    frames = [
        [frame.filename, frame.lineno, frame.name]
        for frame in traceback.extract_tb(error.__traceback__)[-LAST_FRAMES:]
    ]
    return {"type": type(error).__name__, "message": shorten(str(error), 600), "frames": frames}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
