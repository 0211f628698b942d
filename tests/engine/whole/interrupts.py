"""Ctrl-C at a chosen line: a trace function raises KeyboardInterrupt where a real one could."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import mini_vllm

PACKAGE = str(Path(mini_vllm.__file__).parent)


class Strikes:
    """Counts the lines of our package that run, and strikes at one of them.

    Args:
        at: which; None: at none.
        inside: count only lines of files with this in their path.

    Attributes:
        num_lines: how many have run.
        place: where it struck, or None.
    """

    def __init__(self, at: int | None = None, inside: str = "") -> None:
        self.at = at
        self.inside = inside
        self.num_lines = 0
        self.place: str | None = None

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and self.inside in frame.f_code.co_filename:
            self.num_lines += 1
            if self.num_lines == self.at:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return self.trace


@contextmanager
def strike(at: int | None = None, inside: str = "") -> Iterator[Strikes]:
    """Raise KeyboardInterrupt at the ``at``-th line inside the block, and swallow it there.

    Args:
        inside: count only lines of files with this in their path.
    """
    strikes = Strikes(at, inside)
    before = sys.gettrace()
    sys.settrace(strikes.trace)
    try:
        yield strikes
    except KeyboardInterrupt:
        if strikes.place is None:
            raise
    finally:
        sys.settrace(before)
