"""The references of a schema: resolving them, and rewriting them for another schema.

A reference is an address. `"#/$defs/P"` begins at the schema's own root, so it would point to
another place once the schema is a part of a larger one. `moved` rewrites every address::

    {"$ref": "#/$defs/P"}   at #/items/anyOf/0   ->   {"$ref": "#/items/anyOf/0/$defs/P"}
    {"$ref": "#"}                                ->   {"$ref": "#/items/anyOf/0"}
    {"const": {"$ref": "#"}}                     ->   unchanged: a value, not a schema

An address may also be a name: `$id` makes a part a document of its own, in which "#" means that
part, and `$anchor` names a place in its document. Afterwards all references are paths from the
root.

Source: JSON Schema Draft 2020-12, sections 8.2 and 9; RFC 6901 (JSON Pointer).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

MAX_NESTING = 500
"""Most levels of objects and lists. The compiler's key of a part is its text, so the keys of nested
parts grow with the square of the depth."""
TOO_DEEP = f"the schema nests too deeply, at most {MAX_NESTING} levels; use $defs and $ref"

Pointer = tuple[str, ...]
"""The steps from the root to a part: names of members, and indexes of lists."""

PLAIN_REFERENCE = re.compile(r"#(/(\$defs|definitions)/[^/~%]+)?")
"""The root, or a plain name in one of its two usual places for definitions."""
_ONE = (
    "items additionalProperties not if then else contains propertyNames unevaluatedItems "
    "unevaluatedProperties additionalItems contentSchema"
).split()
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_NAMES = ("$id", "$anchor", "$dynamicAnchor")


def read_pointer(reference: str) -> Pointer:
    """The steps of "#", or of "#/" and a path: percent escapes first, then ~1 and ~0."""
    steps = unquote(reference[1:]).split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def write_pointer(pointer: Pointer) -> str:
    """The inverse of `read_pointer`."""
    return "#" + "".join("/" + escaped(step).replace("%", "%25") for step in pointer)


def escaped(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def look_up(root: Any, pointer: Pointer) -> Any:
    """The part of `root` at the end of the steps.

    Raises:
        KeyError: with the index of the first step that does not exist.
    """
    part = root
    for index, step in enumerate(pointer):
        if isinstance(part, list) and step.isdecimal() and int(step) < len(part):
            part = part[int(step)]
        elif isinstance(part, dict) and step in part:
            part = part[step]
        else:
            raise KeyError(index)
    return part


def parts_of(schema: dict[str, Any]) -> Iterator[tuple[Pointer, Any]]:
    """The schemas directly inside `schema`, and the steps to each. Plain values are skipped."""
    for key in _ONE:
        if isinstance(schema.get(key), dict):
            yield (key,), schema[key]
    for key in _LISTS:
        if isinstance(parts := schema.get(key), list):
            yield from (((key, str(index)), part) for index, part in enumerate(parts))
    for key in _MAPS:
        if isinstance(named := schema.get(key), dict):
            yield from (((key, name), part) for name, part in named.items())


def moved(schema: Any, to: Pointer = ()) -> Any:
    """A copy of `schema` with the same meaning as a part of another schema, at `to`.

    Every local reference becomes a path from the other schema's root. A reference out of `schema`,
    or to a name that no part has, stays unchanged.

    Raises:
        ValueError: for a schema that nests deeper than MAX_NESTING levels.
    """
    if nests_deeper(schema, MAX_NESTING):
        raise ValueError(TOO_DEEP)
    try:
        copy = json.loads(json.dumps(schema))
    except RecursionError:  # the stack was deep already
        raise ValueError(TOO_DEEP) from None
    addresses = _Addresses(copy)
    for part, document in addresses.parts:  # it grows by the targets of references
        if isinstance(reference := part.get("$ref"), str):
            target = addresses.target(reference, document)
            if target is not None:
                part["$ref"] = write_pointer(to + target)
                addresses.enter(target, document)
    for part, _ in addresses.parts:
        for name in _NAMES:
            if isinstance(part.get(name), str):
                del part[name]
    return copy


def hoisted(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of `schema` whose references point to the root or to a plain name in its `$defs`.

    For parsers such as xgrammar that cannot follow a path through lists or escapes. The target of
    a longer path is repeated in `$defs`.
    """
    copy = moved(schema)
    addresses = _Addresses(copy)
    named = copy.get("$defs", {})
    names: dict[str, str] = {}
    for part, _ in addresses.parts:
        reference = part.get("$ref")
        if isinstance(reference, str) and not PLAIN_REFERENCE.fullmatch(reference):
            target = addresses.target(reference, "")
            if target is None or not addresses.enter(target, ""):
                continue
            if reference not in names:
                names[reference] = next(
                    name for n in count(len(names)) if (name := f"part_{n}") not in named
                )
            part["$ref"] = f"#/$defs/{names[reference]}"
    parts = {name: look_up(copy, read_pointer(path)) for path, name in names.items()}
    return copy | {"$defs": named | parts} if parts else copy


class _Addresses:
    """The parts of a schema, and the names that references may use for them.

    Attributes:
        parts: each schema inside the root, with the `$id` of its document.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        self.parts: list[tuple[dict[str, Any], str]] = []
        self._known: set[int] = set()  # identities of `parts`
        self._documents: dict[str, Pointer] = {"": ()}
        self._anchors: dict[tuple[str, str], Pointer] = {}
        self._enter((), root, "")

    def target(self, reference: str, document: str) -> Pointer | None:
        """The target of a reference in a part of `document`, if it is inside the root."""
        address, fragment = _split(document, reference)
        if address not in self._documents:
            return None
        if fragment and fragment[0] != "/":
            return self._anchors.get((address, unquote(fragment)))
        return self._documents[address] + read_pointer("#" + fragment)

    def enter(self, pointer: Pointer, document: str) -> bool:
        """Add a part that is found only through a reference, as in `#/x-schemas/P`.

        Returns whether it exists. If it does not, the compiler reports it when it needs the part.
        """
        try:
            self._enter(pointer, look_up(self.root, pointer), document)
        except KeyError:
            return False
        return True

    def _enter(self, pointer: Pointer, schema: Any, document: str) -> None:
        todo = [(pointer, schema, document)]
        while todo:
            pointer, schema, document = todo.pop()
            if not isinstance(schema, dict) or id(schema) in self._known:
                continue
            self._known.add(id(schema))
            document = self._name(pointer, schema, document)
            self.parts.append((schema, document))
            todo += [(pointer + steps, part, document) for steps, part in parts_of(schema)]

    def _name(self, pointer: Pointer, schema: dict[str, Any], document: str) -> str:
        """Record a part's names; returns the document of its references."""
        if isinstance(own := schema.get("$id"), str):
            address, fragment = _split(document, own)
            if own[:1] == "#":  # before Draft 2019-09 an anchor
                self._anchors[document, fragment] = pointer
            else:
                document = address
                self._documents[document] = pointer
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(key), str):
                self._anchors[document, name] = pointer
        return document


def _split(document: str, reference: str) -> tuple[str, str]:
    """The document and the fragment of a reference in `document`."""
    if reference[:1] == "#":  # `urljoin` handles this only for some schemes
        return document, reference[1:]
    try:
        address, fragment = urldefrag(urljoin(document, reference))
    except ValueError:  # not a URL, so it names no document
        return reference, ""
    return address, fragment


def nests_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects nest deeper than `levels`. Checked without recursion, because the
    recursion limit differs between Python versions."""
    layer = [value]
    for _ in range(levels):
        layer = [part for one in layer for part in _members(one)]
        if not layer:
            return False
    return any(isinstance(one, (dict, list)) for one in layer)


def _members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
