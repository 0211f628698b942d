"""Chapters from Markdown to HTML: citations become buttons for the source beside them."""

from __future__ import annotations

import base64
import html
import mimetypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from labkit.citations.changed import Change, Changes
from labkit.citations.scan import Citation, scan_text
from labkit.reader import code
from labkit.reader.diagrams import draw

_ALERT = re.compile(r"\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]\s*", re.IGNORECASE)
_BREAKS = re.compile(r"([./](?=\w)|(?<=[A-Za-z0-9])_(?=[A-Za-z0-9]))")
_OR_BREAK = r"\1<wbr>"
_RANGE = re.compile(r"(\d+[-–]\d+)")


@dataclass
class Heading:
    """A heading of a chapter, for the table of contents and the search."""

    level: int
    text: str
    anchor: str


@dataclass
class Rendered:
    """One Markdown file as HTML, and what it is made of."""

    html: str
    title: str
    headings: list[Heading]
    citations: list[Citation]


@dataclass
class Links:
    """How the links of one file are rewritten.

    Attributes:
        file: the Markdown file that is rendered.
        output: folder that the page is written to.
        chapters: file name of each chapter of the page -> its anchor prefix.
        pages: absolute path of a Markdown file -> page (and prefix) that holds it.
        names: what may stand in code and leads somewhere -> where: functions that the learner
            writes, chapters, notes.
        changes: what a newer release has done to the cited places.
    """

    file: Path
    output: Path
    chapters: dict[str, str] = field(default_factory=dict)
    pages: dict[Path, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=lambda: Changes({}))

    def rewrite(self, href: str) -> str:
        """Where a link of the Markdown file leads to in the built page."""
        if re.match(r"[a-z]+:", href):
            return href
        path, _, anchor = href.partition("#")
        if not path or path in self.chapters:
            prefix = self.chapters[path or self.file.name]
            return f"#{prefix}--{anchor}" if anchor else f"#{prefix}"
        target = (self.file.parent / path).resolve()
        if target in self.pages:
            page = self.pages[target]
            joint = "--" if "#" in page else "#"
            return page + (joint + anchor if anchor else "")
        return os.path.relpath(target, self.output) + (f"#{anchor}" if anchor else "")


def slug(text: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


class Renderer(RendererHTML):
    """HTML with anchors, coloured code, drawn diagrams and citation links."""

    def fence(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        """A fenced block: a diagram, or code."""
        token = tokens[index]
        language = token.info.split()[0] if token.info.strip() else ""
        if language != "mermaid":
            return code.block(token.content, language)
        picture = draw(token.content)
        if picture:
            return f'<figure class="drawn">{picture}</figure>\n'
        note = '<p class="small">This diagram is shown as its Mermaid text.</p>'
        return note + code.block(token.content, "text")

    def code_inline(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        """Names may break after a dot or inside snake_case, so that narrow columns hold them.

        The name of a task's function leads to the learner's file, that of a chapter to it.
        """
        name = tokens[index].content
        shown = f"<code>{_BREAKS.sub(_OR_BREAK, html.escape(name, quote=False))}</code>"
        href = env["links"].names.get(name.removesuffix("()"))
        if href and not _inside_link(tokens, index):
            kind = ' class="task"' if href.startswith("#m") else ""
            return f'<a{kind} href="{href}">{shown}</a>'
        return shown

    def text(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        """Plain text; a range of numbers stays on one line."""
        escaped = html.escape(tokens[index].content, quote=False)
        return _RANGE.sub(r'<span class="nb">\1</span>', escaped)

    def heading_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        """A heading with an anchor that is unique in the page."""
        text = _plain(tokens[index + 1])
        level = int(tokens[index].tag[1])
        taken = {heading.anchor for heading in env["headings"]}
        base = anchor = f"{env['prefix']}--{slug(text)}"
        number = 0
        while anchor in taken:
            number += 1
            anchor = f"{base}-{number}"
        env["headings"].append(Heading(level, text, anchor))
        return f'<h{level} id="{anchor}">'

    def heading_close(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        anchor = env["headings"][-1].anchor
        level = tokens[index].tag
        return f' <a class="anchor" href="#{anchor}" aria-label="Link here">#</a></{level}>\n'

    def link_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        """A link; one that cites upstream carries its place."""
        href = str(tokens[index].attrs.get("href", ""))
        found = next(iter(scan_text(f"[`{_symbol(tokens, index)}`]({href})", "")), None)
        if isinstance(found, Citation):
            env["citations"].append(found)
            env["changed"] = env["links"].changes.of(found)
            lines = f"{found.first}–{found.last}" if found.first < found.last else f"{found.first}"
            data = f'data-path="{found.path}" data-first="{found.first}" data-last="{found.last}"'
            data += f' data-lines="{lines}"'
            where = f"{found.path} {found.region}"
            name = "cite" if found.region in _link_text(tokens, index) else "cite bare"
            return f'<a class="{name}" href="{html.escape(href)}" {data} title="{where}">'
        outside = ' rel="noreferrer"' if href.startswith("http") else ""
        return f'<a href="{html.escape(env["links"].rewrite(href))}"{outside}>'

    def link_close(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        """The end of a link; behind one that cites what has changed since, a badge that says so."""
        change, env["changed"] = env["changed"], None
        return "</a>" + (_badge(change, env) if change else "")

    def image(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        """A picture, put into the page itself."""
        token = tokens[index]
        source = str(token.attrs.get("src", ""))
        file = env["links"].file.parent / source
        alt = html.escape(token.content)
        if not file.is_file():
            return f'<img src="{html.escape(source)}" alt="{alt}">'
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        data = base64.b64encode(file.read_bytes()).decode()
        return f'<img src="data:{kind};base64,{data}" alt="{alt}">'

    def table_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return '<div class="table" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        return "</table></div>\n"

    def blockquote_open(self, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        """A quotation, or one of GitHub's alerts, or a box named by its first bold words."""
        inline = tokens[index + 2] if len(tokens) > index + 2 else None
        if inline is None or inline.type != "inline" or not inline.children:
            return "<blockquote>\n"
        alert = _ALERT.match(inline.content)
        if alert:
            inline.children = _without(inline.children, len(alert[0].rstrip()))
            name = alert[1].lower()
            return f'<blockquote class="{name}"><p class="alert">{name}</p>\n'
        return '<blockquote class="box">\n' if inline.content.startswith("**") else "<blockquote>\n"


def _without(children: list[Token], length: int) -> list[Token]:
    children[0].content = children[0].content[length:].lstrip()
    rest = children[1:] if not children[0].content else children
    return rest[1:] if rest and rest[0].type == "softbreak" else rest


def _inside_link(tokens: Sequence[Token], index: int) -> bool:
    before = [token.type for token in tokens[:index]]
    return before.count("link_open") > before.count("link_close")


BADGES = re.compile(r'<button class="since.*?</button><span class="told".*?</span>', re.DOTALL)
"""What :func:`_badge` has put into a page."""


_NOTHING = "Read: nothing that matters has changed."
_UNTOLD = {
    True: ("since nothing", "\u2248", ", not in what matters", _NOTHING),
    False: ("since", "?", ", not read yet", "How is not told yet."),
}
"""Kind, sign, end of the label and text of a badge without a sentence: of a change that was read,
and of one that was not."""


def _badge(change: Change, env: Any) -> str:
    """A button that opens the sentence about a change, without a script."""
    env["badges"] += 1
    anchor = f"{env['prefix']}--since-{env['badges']}"
    where = f", {change.now}" if change.now else ""
    kind, sign, more, said = _UNTOLD[change.is_read]
    if change.sentences:
        kind, sign, more, said = "since read", "\u0394", "", " ".join(change.sentences)
    told = MarkdownIt("commonmark").renderInline(said)
    label = f"changed in vLLM {change.release}{more}"
    return (
        f'<button class="{kind}" popovertarget="{anchor}" title="{label}" aria-label="{label}">'
        f'{sign}</button><span class="told" id="{anchor}" popover>'
        f"<b>vLLM {change.release}: {html.escape(change.state + where)}.</b> {told}</span>"
    )


def _plain(token: Token) -> str:
    return "".join(child.content for child in token.children or [])


def _link_text(tokens: Sequence[Token], index: int) -> str:
    """The text of the link that opens at `index`, without its code."""
    inside = takewhile(lambda token: token.type != "link_close", tokens[index + 1 :])
    return "".join(token.content for token in inside if token.type == "text")


def _symbol(tokens: Sequence[Token], index: int) -> str:
    """The code in the text of the link that opens at `index`."""
    inside = takewhile(lambda token: token.type != "link_close", tokens[index + 1 :])
    return next((token.content for token in inside if token.type == "code_inline"), "")


def render(text: str, prefix: str, links: Links) -> Rendered:
    """Render one Markdown file.

    Args:
        text: its source.
        prefix: what its anchors begin with, unique in the page.
        links: how its links are rewritten.
    """
    engine = MarkdownIt("commonmark", {"html": True}, renderer_cls=Renderer)
    engine.enable(["table", "strikethrough"])
    environment: dict[str, Any] = {
        "prefix": prefix,
        "links": links,
        "headings": [],
        "citations": [],
        "changed": None,
        "badges": 0,
    }
    body = engine.render(text, environment)
    headings: list[Heading] = environment["headings"]
    title = next((h.text for h in headings if h.level == 1), prefix)
    return Rendered(body, title, headings, environment["citations"])
