"""Pages of HTML from the templates in `assets/` and in the inspector's `page/`, by Jinja."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

ASSETS = Path(__file__).parent / "assets"
FOLDERS = (ASSETS, Path(__file__).parents[1] / "inspector" / "page")


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDERS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(name: str, **values: object) -> Markup:
    """A template with its values; text is escaped, `Markup` is not. `style` and `script` are the
    text of files of ours, and stand as they are."""
    ours = {key: Markup(values[key]) for key in ("style", "script") if key in values}
    return Markup(_environment().get_template(name).render(**values | ours))
