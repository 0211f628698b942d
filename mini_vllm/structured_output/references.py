"""The references of a schema: where each leads, and how it is moved into another schema.

A reference is an address. `"#/$defs/P"` begins at the schema's own root, so it leads elsewhere, or
nowhere, once the schema is a part of a larger one. `moved` writes every address anew::

    {"$ref": "#/$defs/P"}   at #/items/anyOf/0   ->   {"$ref": "#/items/anyOf/0/$defs/P"}
    {"$ref": "#"}                                ->   {"$ref": "#/items/anyOf/0"}
    {"const": {"$ref": "#"}}                     ->   as it was: a value, and no schema

An address may also be a name: `$id` names a part as a document of its own, where "#" means that
part, and `$anchor` names a place of its document. Afterwards all are paths from the root.

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
"""Most levels of objects and lists: a part's key is its text, which its outer parts' hold again."""
TOO_DEEP = f"the schema nests too deeply, at most {MAX_NESTING} levels; use $defs and $ref"

Pointer = tuple[str, ...]
"""The steps from the root to a part: names of members, and indexes of lists."""

PLAIN_REFERENCE = re.compile(r"#(/(\$defs|definitions)/[^/~%]+)?")
"""One that needs no more than a look into one of the root's two usual places."""
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
        KeyError: with the number of the first step that cannot be gone.
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
    """The schemas directly inside `schema`, and the steps to each. Values are not looked at."""
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
    """A copy of `schema` that means the same as a part of another schema, at `to`.

    Every local reference becomes a path from the other schema's root. One that leads out of
    `schema`, or has a name that no part has, is left as it is.

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
    for part, document in addresses.parts:  # it grows by what references lead to
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
    """A copy of `schema` whose references lead to the root, or to a plain name of its `$defs`.

    For readers that cannot follow a path through lists or escapes, as xgrammar. What a longer
    path leads to is repeated in `$defs`.
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
    """The parts of a schema, and the names that references may call them by.

    Attributes:
        parts: each schema inside the root, with the `$id` of the document that it belongs to.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        self.parts: list[tuple[dict[str, Any], str]] = []
        self._known: set[int] = set()  # identities of `parts`
        self._documents: dict[str, Pointer] = {"": ()}
        self._anchors: dict[tuple[str, str], Pointer] = {}
        self._enter((), root, "")

    def target(self, reference: str, document: str) -> Pointer | None:
        """Where a reference of a part of `document` leads, if that is inside the root."""
        address, fragment = _split(document, reference)
        if address not in self._documents:
            return None
        if fragment and fragment[0] != "/":
            return self._anchors.get((address, unquote(fragment)))
        return self._documents[address] + read_pointer("#" + fragment)

    def enter(self, pointer: Pointer, document: str) -> bool:
        """Take in a part that only a reference leads to, as in `#/x-schemas/P`.

        Returns whether it is there. The compiler tells of one that is not, should it need it.
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
        """Note a part's names; returns the document that its references belong to."""
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
    """The document and the fragment that a reference of `document` means."""
    if reference[:1] == "#":  # `urljoin` knows it only for addresses of the web
        return document, reference[1:]
    try:
        address, fragment = urldefrag(urljoin(document, reference))
    except ValueError:  # no address: it names no document
        return reference, ""
    return address, fragment


def nests_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects nest deeper: Pythons differ in how much of it they bear."""
    layer = [value]
    for _ in range(levels):
        layer = [part for one in layer for part in _members(one)]
        if not layer:
            return False
    return any(isinstance(one, (dict, list)) for one in layer)


def _members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
