"""Flowcharts and state diagrams read into nodes and edges."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


class DiagramError(ValueError):
    """A line that the reader does not understand."""


@dataclass
class Node:
    """A box. Shapes: box, round, pill, diamond, circle, store; start, end and note of states."""

    name: str
    label: str
    shape: str = "box"


@dataclass
class Edge:
    """An arrow, or a line when `arrow` is false; `style` is `solid`, `dotted` or `thick`."""

    source: str
    target: str
    label: str = ""
    style: str = "solid"
    arrow: bool = True


@dataclass
class Graph:
    """A diagram before it has positions. `direction` is `TD`, `LR`, `BT` or `RL`."""

    direction: str = "TD"
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    groups: list[tuple[str, list[str]]] = field(default_factory=list)
    """Subgraphs: title and the names of their nodes."""

    def node(self, name: str) -> Node:
        return self.nodes.setdefault(name, Node(name, name))


_SHAPES = (
    (r"\(\((.*)\)\)", "circle"),
    (r"\(\[(.*)\]\)", "pill"),
    (r"\[\((.*)\)\]", "store"),
    (r"\[\[(.*)\]\]", "box"),
    (r"\{\{(.*)\}\}", "pill"),
    (r"\[/(.*)[/\\]\]", "box"),
    (r"\((.*)\)", "round"),
    (r"\{(.*)\}", "diamond"),
    (r"\[(.*)\]", "box"),
    (r">(.*)\]", "box"),
)
_NAME = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*")
_ARROW = re.compile(
    r"\s*(?:"
    r"(?P<open><)?(?P<line>--|-\.|==)\s+(?P<text>[^->|=.][^|]*?)\s+(?P<tail>-{2,}[>ox]?|\.+->?|={2,}>?)"
    r"|(?P<open2><)?(?P<plain>-{2,}[>ox]?|-\.+->?|={2,}>?)(?:\|(?P<label>[^|]*)\|)?"
    r")\s*"
)
_OPENERS = {"(": ")", "[": "]", "{": "}", ">": "]"}


def clean(label: str) -> str:
    """A label without quotes and markup; `<br>` becomes a line break."""
    label = re.sub(r"<br\s*/?>|\\n", "\n", label.strip().strip('"').strip())
    label = re.sub(r"</?(?:b|i|code|strong|em)>|[`*]{1,2}", "", label)
    entities = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "#quot;": '"'}
    for entity, character in entities.items():
        label = label.replace(entity, character)
    return label


def parse_flowchart(lines: list[str]) -> Graph:
    """Read `flowchart LR` and the lines after it."""
    head = lines[0].split()
    graph = Graph(head[1].replace("TB", "TD") if len(head) > 1 else "TD")
    open_groups: list[tuple[str, list[str]]] = []
    for line in (part.strip() for whole in lines[1:] for part in whole.split(";")):
        word = line.split()[0] if line else "end of statement"
        if word in ("style", "classDef", "class", "linkStyle", "click") or not line:
            continue
        if word == "subgraph":
            title = re.sub(r"^\w+\s*\[(.*)\]$", r"\1", line[len(word) :].strip())
            open_groups.append((clean(title), []))
        elif word == "end" and open_groups:
            graph.groups.append(open_groups.pop())
        elif word == "direction":
            continue
        else:
            before = set(graph.nodes)
            _statement(graph, line)
            for _, members in open_groups:
                members += [name for name in graph.nodes if name not in before]
    return graph


def _statement(graph: Graph, line: str) -> None:
    """`a[Label] -->|text| b & c --> d`: chains and fans of edges."""
    sources, rest = _fan(graph, line)
    while rest.strip():
        arrow = _ARROW.match(rest)
        if not arrow:
            raise DiagramError(line)
        targets, rest = _fan(graph, rest[arrow.end() :])
        kind = arrow["line"] or arrow["plain"]
        end = arrow["tail"] or arrow["plain"]
        label = clean(arrow["text"] or arrow["label"] or "")
        style = {"-.": "dotted", "==": "thick"}.get(kind[:2], "solid")
        for source in sources:
            for target in targets:
                graph.edges.append(Edge(source, target, label, style, end[-1] in ">ox"))
        sources = targets


def _fan(graph: Graph, text: str) -> tuple[list[str], str]:
    names = []
    while True:
        name, text = _node(graph, text.lstrip())
        names.append(name)
        if not text.lstrip().startswith("&"):
            return names, text
        text = text.lstrip()[1:]


def _node(graph: Graph, text: str) -> tuple[str, str]:
    match = _NAME.match(text)
    if not match:
        raise DiagramError(text)
    node, rest = graph.node(match[0]), text[match.end() :]
    if rest[:1] in _OPENERS and rest[:1]:
        end = _closing(rest)
        node.label, node.shape = _shape(rest[:end])
        rest = rest[end:]
    return match[0], re.sub(r"^:::\w+", "", rest)


def _closing(text: str) -> int:
    """Where the bracket that opens `text` is closed again, quotes respected."""
    depth, quoted = 0, False
    for index, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif not quoted and character in "([{":
            depth += 1
        elif not quoted and character in ")]}":
            depth -= 1
            if depth <= 0:
                return index + 1
    raise DiagramError(text)


def _shape(text: str) -> tuple[str, str]:
    for pattern, shape in _SHAPES:
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match:
            return clean(match[1]), shape
    raise DiagramError(text)


_TRANSITION = re.compile(r"(\[\*\]|\w+)\s*-->\s*(\[\*\]|\w+)\s*(?::\s*(.*))?$")
_ALIAS = re.compile(r'state\s+"([^"]*)"\s+as\s+(\w+)$')
_DESCRIBED = re.compile(r"(\w+)\s*:\s*(.+)$")
_NOTE = re.compile(r"note (?:right|left) of (\w+)\s*(?::\s*(.*))?$")


def parse_states(lines: list[str]) -> Graph:
    """Read `stateDiagram-v2` and the lines after it. Notes become boxes beside their state."""
    graph = Graph()
    rest = iter(line.strip() for line in lines[1:])
    for line in rest:
        if match := _TRANSITION.match(line):
            source, target = _end(graph, match[1], "start"), _end(graph, match[2], "end")
            graph.edges.append(Edge(source, target, clean(match[3] or "")))
        elif match := _ALIAS.match(line):
            graph.nodes[match[2]] = Node(match[2], clean(match[1]), "round")
        elif match := _NOTE.match(line):
            text = match[2] or "\n".join(iter(lambda: next(rest, "end note"), "end note"))
            name = f"note {len(graph.nodes)}"
            graph.nodes[name] = Node(name, clean(text), "note")
            graph.edges.append(Edge(match[1], name, "", "dotted", arrow=False))
        elif line.startswith("direction "):
            graph.direction = line.split()[1].replace("TB", "TD")
        elif match := _DESCRIBED.match(line):
            graph.nodes[_end(graph, match[1], "")].label = clean(match[2])
        elif re.fullmatch(r"\w+", line):
            _end(graph, line, "")
        elif line.startswith(("classDef", "class ")):
            continue
        else:
            raise DiagramError(line)
    return graph


def _end(graph: Graph, name: str, role: str) -> str:
    if name == "[*]":
        graph.nodes.setdefault(role, Node(role, "", role))
        return role
    node = graph.nodes.setdefault(name, Node(name, name, "round"))
    return node.name
