"""Sequence diagrams: participants side by side, messages downwards."""

from __future__ import annotations

import re
from itertools import pairwise

from labkit.reader.diagrams.graph import DiagramError, clean
from labkit.reader.diagrams.layout import text_width
from labkit.reader.diagrams.svg import MARGIN, label_plate, svg, text

_PARTICIPANT = re.compile(r"(?:participant|actor)\s+(\w+)(?:\s+as\s+(.+))?$")
_MESSAGE = re.compile(r"(\w+)\s*(--?>>?|--?x|--?\))\s*[+-]?\s*(\w+)\s*:\s*(.*)$")
_NOTE = re.compile(r"[Nn]ote (?:over|right of|left of) (\w+)(?:\s*,\s*(\w+))?\s*:\s*(.*)$")
_BLOCK = re.compile(r"(loop|alt|opt|par|else|and|end)\b\s*(.*)$")
_IGNORED = re.compile(r"(autonumber|activate|deactivate|title)\b")
ROW = 40.0


def draw(lines: list[str]) -> str:
    """The diagram as SVG.

    Raises:
        DiagramError: a line is not understood.
    """
    names: dict[str, str] = {}
    rows: list[tuple[str, ...]] = []
    for line in (line.strip() for line in lines):
        if match := _PARTICIPANT.match(line):
            names[match[1]] = clean(match[2] or match[1])
        elif match := _MESSAGE.match(line):
            for end in (match[1], match[3]):
                names.setdefault(end, end)
            rows.append(("message", match[1], match[3], clean(match[4]), match[2]))
        elif match := _NOTE.match(line):
            names.setdefault(match[1], match[1])
            rows.append(("note", match[1], match[2] or match[1], clean(match[3]), ""))
        elif match := _BLOCK.match(line):
            rows.append((match[1], "", "", clean(match[2]), ""))
        elif not _IGNORED.match(line):
            raise DiagramError(line)
    return _render(names, rows)


def _columns(names: dict[str, str], rows: list[tuple[str, ...]]) -> dict[str, float]:
    """The x of each participant's line; neighbours are as far apart as their messages need."""
    order = list(names)
    widths = {n: max(text_width(part) for part in names[n].split("\n")) + 28 for n in order}
    gaps = [(widths[a] + widths[b]) / 2 + 24 for a, b in pairwise(order)]
    for kind, source, target, label, _ in rows:
        if kind == "message" and source != target:
            low, high = sorted((order.index(source), order.index(target)))
            need = max(text_width(part, 12) for part in label.split("\n")) + 32
            missing = need - sum(gaps[low:high])
            for index in range(low, high):
                gaps[index] += max(0.0, missing / (high - low))
    x, columns = widths[order[0]] / 2, {order[0]: widths[order[0]] / 2}
    for name, gap in zip(order[1:], gaps, strict=True):
        x += gap
        columns[name] = x
    return columns


def _render(names: dict[str, str], rows: list[tuple[str, ...]]) -> str:
    if not names:
        raise DiagramError("no participants")
    columns = _columns(names, rows)
    right = max(columns[n] + text_width(names[n]) / 2 + 14 for n in names)
    parts, y, depth = [], 62.0, 0
    frames: list[tuple[float, str, str, int]] = []
    behind = []
    for kind, source, target, label, arrow in rows:
        if kind in ("loop", "alt", "opt", "par"):
            frames.append((y - 14, kind, label, depth))
            depth, y = depth + 1, y + 26
        elif kind in ("else", "and"):
            behind.append(_divider(y - 12, right, label))
            y += 22
        elif kind == "end" and frames:
            top, word, title, level = frames.pop()
            depth = level
            behind.append(_frame(top, y - 14, right, word, title, level))
            y += 8
        elif kind == "note":
            parts.append(_note(columns[source], columns[target], y, label))
            y += ROW
        else:
            step = 15.0 * label.count("\n")
            parts.append(_message(columns[source], columns[target], y + step, label, arrow))
            y += ROW + step
            right = (
                max(right, columns[source] + text_width(label, 12) + 60)
                if (source == target)
                else right
            )
    bottom = y - 14
    lifelines = "".join(
        f'<path class="edge dotted" d="M{x:.1f} 38 V{bottom:.1f}"/>' for x in columns.values()
    )
    heads = "".join(_head(columns[name], names[name]) for name in names)
    content = f'<g transform="translate({MARGIN} {MARGIN})">' + lifelines + "".join(behind)
    content += heads + "".join(parts) + "</g>"
    return svg(right + 2 * MARGIN, bottom + 2 * MARGIN, content)


def _head(x: float, label: str) -> str:
    width = max(text_width(part) for part in label.split("\n")) + 24
    box = (
        f'<rect class="node" x="{x - width / 2:.1f}" y="0" width="{width:.1f}" height="38" rx="5"/>'
    )
    return box + text(x, 19, label)


def _message(ax: float, bx: float, y: float, label: str, arrow: str) -> str:
    style = "dotted" if arrow.startswith("--") else "solid"
    if ax == bx:
        path = f"M{ax:.1f} {y - 8:.1f} h26 v16 h-22"
        tip = (
            f'<polygon class="head" points="{ax:.1f},{y + 8} {ax + 8},{y + 4} {ax + 8},{y + 12}"/>'
        )
        plate = label_plate(ax + 38 + text_width(label, 12) / 2, y, label)
        return f'<path class="edge {style}" d="{path}"/>{tip}{plate}'
    way = 1 if bx > ax else -1
    tip = f"{bx:.1f},{y} {bx - 8 * way:.1f},{y - 4} {bx - 8 * way:.1f},{y + 4}"
    line = f'<path class="edge {style}" d="M{ax:.1f} {y} H{bx - 4 * way:.1f}"/>'
    rows = label.count("\n") + 1
    caption = text((ax + bx) / 2, y - 11 - 9 * (rows - 1), label, "label")
    return line + f'<polygon class="head" points="{tip}"/>' + caption


def _note(ax: float, bx: float, y: float, label: str) -> str:
    middle = (ax + bx) / 2
    width = max(text_width(label, 12) + 20, abs(bx - ax) + 40)
    box = (
        f'<rect class="node note" x="{middle - width / 2:.1f}" y="{y - 16:.1f}" '
        f'width="{width:.1f}" height="26" rx="3"/>'
    )
    return box + text(middle, y - 3, label, "label")


def _frame(top: float, bottom: float, right: float, word: str, title: str, level: int) -> str:
    inset = 6.0 * level - 8
    frame = (
        f'<rect class="group" x="{inset:.1f}" y="{top:.1f}" width="{right - 2 * inset:.1f}" '
        f'height="{bottom - top:.1f}" rx="5"/>'
    )
    return frame + text(inset + 8, top + 11, f"{word}  {title}", "group-title", "start")


def _divider(y: float, right: float, label: str) -> str:
    line = f'<path class="edge dotted" d="M0 {y:.1f} H{right:.1f}"/>'
    return line + text(8, y + 11, f"else  {label}", "group-title", "start")
