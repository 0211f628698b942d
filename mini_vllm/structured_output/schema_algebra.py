"""Operations on schemas: check their syntax, merge two into one, and see whether two are disjoint.

Source: JSON Schema Draft 2020-12, https://json-schema.org/draft/2020-12.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from mini_vllm.structured_output.formats import FORMATS, REMARKS

Schema = dict[str, Any] | bool
Resolve = Callable[[str, str], tuple[Schema, str]]
"""Maps a reference and its place to the schema that it points to and the place of that schema."""

MAX_DEPTH = 64
"""Most merges inside one another; references in a circle would never end."""
MAX_BRANCHES = 64


class SchemaError(ValueError):
    """A fault in a schema, with the JSON pointer of its place."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_integer(value) or (isinstance(value, float) and value % 1 == 0),
    "number": lambda value: _is_integer(value) or isinstance(value, float),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
ANNOTATIONS = frozenset(
    "title description default examples $schema $comment $defs definitions deprecated "
    "readOnly writeOnly discriminator contentEncoding contentMediaType contentSchema example "
    "externalDocs xml enumNames enumDescriptions markdownDescription errorMessage "
    "propertyOrdering".split()
)
"""Keywords that forbid nothing: the standard's, OpenAPI's, and those of form libraries and editors.
"""


def _is_count(value: Any) -> bool:
    return TYPES["integer"](value) and value >= 0


def _is_bound(value: Any) -> bool:
    """Whether it is a finite number; Python's JSON parser also accepts infinite ones."""
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_json(value: Any) -> bool:
    """Whether JSON can represent it; Python's JSON parser also accepts infinite numbers."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_list_of_schemas(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _allows_all_names(value: Any) -> bool:
    """Whether it allows every name; zod writes such a `propertyNames` for every record."""
    if not isinstance(value, dict):
        return value is True
    others = {key for key in value if key not in ANNOTATIONS} - {"type"}
    types = value.get("type", "string")
    return not others and "string" in ([types] if isinstance(types, str) else types)


KEYWORDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "$ref": (lambda v: isinstance(v, str), "a string"),
    "allOf": (lambda v: _is_list_of_schemas(v) and bool(v), "a list of schemas"),
    "anyOf": (lambda v: _is_list_of_schemas(v) and bool(v), "a list of schemas"),
    "oneOf": (lambda v: _is_list_of_schemas(v) and bool(v), "a list of schemas"),
    "enum": (lambda v: isinstance(v, list) and _is_json(v), "a list of JSON values"),
    "const": (_is_json, "a JSON value"),
    "type": (_is_type, f"one or several of {', '.join(TYPES)}"),
    "minLength": (_is_count, "a count"),
    "maxLength": (_is_count, "a count"),
    "pattern": (lambda v: isinstance(v, str), "a regular expression"),
    "format": (
        lambda v: isinstance(v, str) and (v in FORMATS or v in REMARKS),
        f"one of {', '.join(FORMATS)}",
    ),
    "minimum": (_is_bound, "a finite number"),
    "maximum": (_is_bound, "a finite number"),
    "exclusiveMinimum": (_is_bound, "a finite number"),
    "exclusiveMaximum": (_is_bound, "a finite number"),
    "multipleOf": (_is_bound, "a finite number"),
    "items": (_is_schema, "a schema"),
    "prefixItems": (_is_list_of_schemas, "a list of schemas"),
    "minItems": (_is_count, "a count"),
    "maxItems": (_is_count, "a count"),
    "uniqueItems": (TYPES["boolean"], "true or false"),
    "properties": (
        lambda v: isinstance(v, dict) and all(map(_is_schema, v.values())),
        "an object of schemas",
    ),
    "required": (
        lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v),
        "a list of names",
    ),
    "additionalProperties": (_is_schema, "a schema"),
    "propertyNames": (
        _allows_all_names,
        'true or {"type": "string"}: names cannot be restricted; check the output yourself',
    ),
    "minProperties": (_is_count, "a count"),
    "maxProperties": (_is_count, "a count"),
    "nullable": (lambda v: v is False, 'false; write null as a type: ["string", "null"]'),
}
"""The keywords that are enforced: whether a value is legal, and what it must be."""


def check_syntax(schema: Any, place: str) -> None:
    """Refuse a value that is not a schema, and keywords that cannot be enforced.

    Raises:
        SchemaError: names the place, the keyword and the value.
    """
    if not _is_schema(schema):
        raise SchemaError(
            place, f"the schema is {json.dumps(schema)[:60]}; it must be an object, true or false"
        )
    for keyword, value in {} if isinstance(schema, bool) else schema.items():
        if keyword in ANNOTATIONS or keyword.startswith("x-"):
            continue
        if keyword not in KEYWORDS:
            near = difflib.get_close_matches(keyword, KEYWORDS, n=1, cutoff=0.8)
            hint = f"did you mean {near[0]}?" if near else "remove it and check the output yourself"
            raise SchemaError(place, f"{keyword} cannot be enforced; {hint}")
        legal, wanted = KEYWORDS[keyword]
        if not legal(value):
            raise SchemaError(place, f"{keyword} is {json.dumps(value)[:60]}; it must be {wanted}")


# ---------------------------------------------------------------- both at once
def merge(first: Schema, second: Schema, resolve: Resolve, place: str, depth: int = 0) -> Schema:
    """One schema that is satisfied exactly by the values that satisfy `first` and `second`.

    Raises:
        SchemaError: if two keywords cannot be merged, or references form a circle.
    """
    if depth > MAX_DEPTH:
        raise SchemaError(place, "its references go in a circle, so they cannot be merged")
    for schema in (first, second):
        check_syntax(schema, place)
    if isinstance(first, bool) or isinstance(second, bool):
        return False if False in (first, second) else second if first is True else first
    merged = {key: value for key, value in first.items() if key not in ANNOTATIONS}
    other = {key: value for key, value in second.items() if key not in ANNOTATIONS}
    for one, two in ((merged, other), (other, merged)):
        if "$ref" in one:
            target, _ = resolve(one.pop("$ref"), place)
            return merge(
                merge(target, one, resolve, place, depth + 1), two, resolve, place, depth + 1
            )
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword in one and (keyword == "allOf" or two):
                return _distribute(keyword, one, two, resolve, place, depth)
    if any("prefixItems" in a and {"items", "prefixItems"} & b.keys() and a != b
           for a, b in ((merged, other), (other, merged))):  # fmt: skip
        raise SchemaError(place, "prefixItems cannot be merged with other items")
    _merge_objects(merged, other, resolve, place, depth)
    for keyword, value in other.items():
        if keyword not in merged or json.dumps(merged[keyword]) == json.dumps(value):
            merged[keyword] = value  # compared as text, because 1 == True in Python
        elif keyword in _COMBINE:
            merged[keyword] = _COMBINE[keyword](merged[keyword], value)
            if merged[keyword] == []:
                return False
        elif keyword == "items":
            merged[keyword] = merge(merged[keyword], value, resolve, place, depth + 1)
        else:
            raise SchemaError(place, f"two different values of {keyword} cannot be merged")
    return merged


def _distribute(
    keyword: str,
    one: dict[str, Any],
    two: dict[str, Any],
    resolve: Resolve,
    place: str,
    depth: int,
) -> Schema:
    """Merge the keywords beside a combination into it."""
    parts = one.pop(keyword)
    if keyword == "allOf":
        merged: Schema = one
        for part in [*parts, two]:
            merged = merge(merged, part, resolve, place, depth + 1)
        return merged
    if len(parts) > MAX_BRANCHES:
        raise SchemaError(
            place, f"{keyword} has {len(parts)} parts to merge; at most {MAX_BRANCHES}"
        )
    beside = merge(one, two, resolve, place, depth + 1)
    if isinstance(beside, dict) and keyword in beside:
        raise SchemaError(place, f"two {keyword} cannot be merged; write their pairs out")
    if isinstance(beside, bool):
        return {keyword: parts} if beside else False
    return {**beside, keyword: parts}


def _merge_types(first: Any, second: Any) -> list[str]:
    """The types that are in both; an integer is also a number."""
    one, two = ([v] if isinstance(v, str) else v for v in (first, second))
    both = [name for name in one if name in two or (name == "integer" and "number" in two)]
    return both + [
        name for name in two if name == "integer" and "number" in one and name not in both
    ]


_COMBINE: dict[str, Callable[[Any, Any], Any]] = (
    {
        "type": _merge_types,
        "enum": lambda a, b: [value for value in a if json.dumps(value) in map(json.dumps, b)],
        "required": lambda a, b: a + [name for name in b if name not in a],
        "uniqueItems": lambda a, b: a or b,
        "propertyNames": lambda a, b: a,  # neither restricts names
    }
    | dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max)
    | dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min)
)


def _merge_objects(
    merged: dict[str, Any], other: dict[str, Any], resolve: Resolve, place: str, depth: int
) -> None:
    """Merge `properties` and `additionalProperties`, together: a property that one schema names may
    be an additional one for the other. Both keywords are moved to `merged`."""
    has_rest = "additionalProperties" in merged or "additionalProperties" in other
    if not has_rest and not ("properties" in merged and "properties" in other):
        return
    mine, yours = merged.get("properties", {}), other.pop("properties", {})
    my_rest = merged.get("additionalProperties", True)
    your_rest = other.pop("additionalProperties", True)
    properties = {
        name: merge(mine.get(name, my_rest), yours.get(name, your_rest), resolve, place, depth + 1)
        for name in [*mine, *(name for name in yours if name not in mine)]
    }
    if properties:
        merged["properties"] = properties
    if my_rest is not True or your_rest is not True:
        merged["additionalProperties"] = merge(my_rest, your_rest, resolve, place, depth + 1)


# ---------------------------------------------------------------- never both
def disjoint(parts: list[Schema], resolve: Resolve, place: str) -> bool:
    """Whether it can be proved that no value satisfies two of `parts`.

    The proof is by their types, by their lists of values, or by a property that both require and
    whose schemas are disjoint.
    """
    plain = [_resolved(part, resolve, place) for part in parts]
    return all(
        _never_both(one, two, resolve, place, 0)
        for index, one in enumerate(plain)
        for two in plain[index + 1 :]
    )


def _resolved(schema: Schema, resolve: Resolve, place: str) -> Schema:
    for _ in range(MAX_DEPTH):
        if isinstance(schema, bool) or "$ref" not in schema:
            return schema
        schema = resolve(schema["$ref"], place)[0]
    raise SchemaError(place, "its references go in a circle")


def _never_both(one: Schema, two: Schema, resolve: Resolve, place: str, depth: int) -> bool:
    if isinstance(one, bool) or isinstance(two, bool):
        return False in (one, two)
    values = [_values(schema) for schema in (one, two)]
    for these, schema in zip(values, (two, one), strict=True):
        if these is not None and "type" in schema:
            types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
            if not any(TYPES[name](value) for value in these for name in types):
                return True
    if values[0] is not None and values[1] is not None:
        return not {_number_key(v) for v in values[0]} & {_number_key(v) for v in values[1]}
    types_of = [schema.get("type", list(TYPES)) for schema in (one, two)]
    if not _merge_types(*types_of):
        return True
    if _merge_types(*types_of) != ["object"] or depth > MAX_DEPTH:
        return False
    shared = [n for n in one.get("required", []) if n in two.get("required", [])]
    both: Mapping[str, tuple[Schema, Schema]] = {
        name: (one["properties"][name], two["properties"][name])
        for name in shared
        if name in one.get("properties", {}) and name in two.get("properties", {})
    }
    return any(
        _never_both(
            _resolved(a, resolve, place), _resolved(b, resolve, place), resolve, place, depth + 1
        )
        for a, b in both.values()
    )


def _values(schema: dict[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _number_key(value: Any) -> str:
    """A key in which 1 and 1.0 are equal, and true differs from both, as in JSON Schema."""
    plain = int(value) if isinstance(value, float) and value % 1 == 0 else value
    return json.dumps(plain, sort_keys=True)
