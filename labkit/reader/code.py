"""Source code as HTML, one element a line: Pygments reads it, a few classes colour it."""

from __future__ import annotations

import html
from collections.abc import Collection
from functools import lru_cache

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType
from pygments.util import ClassNotFound

# Most specific first. Everything else stays plain, which keeps pages small and colours calm.
_CLASSES: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "c"),
    (String.Doc, "d"),
    (String, "s"),
    (Number, "m"),
    (Keyword, "k"),
    (Name.Decorator, "o"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Builtin, "b"),
)


def _class_of(kind: _TokenType) -> str:
    return next((name for parent, name in _CLASSES if kind in parent), "")


@lru_cache(maxsize=64)
def highlight_lines(text: str, language: str) -> tuple[str, ...]:
    """Each line of `text` as HTML; an unknown language gives plain text."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return tuple(html.escape(line, quote=False) for line in text.splitlines())
    lines = [""]
    for kind, value in lexer.get_tokens(text):
        name = _class_of(kind)
        for index, part in enumerate(value.split("\n")):
            if index:
                lines.append("")
            if part:
                escaped = html.escape(part, quote=False)
                lines[-1] += f'<i class="{name}">{escaped}</i>' if name else escaped
    if lines[-1] == "" and text.endswith("\n"):
        lines.pop()
    return tuple(lines)


def block(text: str, language: str) -> str:
    """A fenced code block."""
    lines = highlight_lines(text.rstrip("\n"), language or "text")
    label = f' data-language="{html.escape(language)}"' if language else ""
    return f'<pre class="code" tabindex="0"{label}><code>' + "\n".join(lines) + "</code></pre>\n"


def numbered(lines: list[tuple[int, str]], prefix: str, todo: Collection[int] = ()) -> str:
    """Lines with their numbers, each with an id such as `prefix-12`; a gap shows as a rule.

    Args:
        lines: (number, HTML) in ascending order; a jump in the numbers is a gap.
        prefix: what ids begin with, unique in the page.
        todo: numbers of lines that the learner has to write.
    """
    parts, previous = [], None
    for number, content in lines:
        if previous is not None and number != previous + 1:
            parts.append(f'<div class="gap">{number - previous - 1} lines</div>')
        attributes = f'class="{"l todo" if number in todo else "l"}" id="{prefix}-{number}"'
        parts.append(f'<div {attributes} data-n="{number}"><code>{content}</code></div>')
        previous = number
    return "".join(parts)
