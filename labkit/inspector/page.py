"""One HTML file that plays a run, or two side by side; it needs no network and no server.

The page's source is the folder `page/`: a template, a style, and JavaScript modules. They are
inlined here; the recording goes in as JSON (`labkit.inspector.packing`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from labkit.inspector.packing import pack
from labkit.inspector.recording import Run
from labkit.reader import templates

PAGE = Path(__file__).parent / "page"
MODULES = (
    "recording", "theme", "words", "view", "timeline", "pool", "details", "player", "main",
)  # fmt: skip
"""In the order of their imports: joined, they are one module."""
PLACE = "%RECORDING%"
"""Stands in `build_shell`'s page where the recording goes."""


def build_page(runs: Sequence[Run], title: str) -> str:
    """The HTML of one run or two."""
    return _page(title, _embedded(pack(runs, title)))


def build_shell(title: str) -> str:
    """The HTML of a run that a script puts in PLACE, as JSON."""
    return _page(title, PLACE)


def _page(title: str, data: str) -> str:
    return templates.render(
        "inspector.html",
        title=title,
        style=(PAGE / "style.css").read_text(encoding="utf-8"),
        script="\n".join(_module(name) for name in MODULES),
        data=Markup(data),
    )


def _module(name: str) -> str:
    """A module without the lines that join it to the others."""
    source = (PAGE / f"{name}.js").read_text(encoding="utf-8")
    source = re.sub(r"^import [^;]*;\n", "", source, flags=re.MULTILINE)
    return re.sub(r"^export ", "", source, flags=re.MULTILINE)


def _embedded(data: Any) -> str:
    """JSON that may stand inside a script element: request ids are anybody's text."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
