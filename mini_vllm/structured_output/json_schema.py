"""Compile a JSON schema into rules. Their texts are JSON and satisfy the schema.

Every part of a schema becomes a rule whose name is its JSON pointer, so a `$ref` is a call, which
may be recursive. A keyword is either enforced exactly or refused by name; none is ignored silently.

Three things are narrower than the standard: properties come in the schema's order, white space is
bounded, and an object with `properties` has no others unless `additionalProperties` allows them.

Source: JSON Schema Draft 2020-12; the closed objects are what vLLM's default backend does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from mini_vllm.structured_output import json_text
from mini_vllm.structured_output.formats import (
    FORMATS,
    LEAST_URI,
    REMARKS,
    URI_CHAR,
    short_uri,
)
from mini_vllm.structured_output.json_text import (
    integer_range_pattern,
    json_string_of,
    literal,
    number_range_pattern,
    object_pattern,
    pair,
    string_but,
)
from mini_vllm.structured_output.patterns import (
    ANCHORS,
    EMPTY,
    NOTHING,
    Call,
    Pattern,
    Repeat,
    Rules,
    Union,
    any_but,
    concat,
    is_anchored,
    lengths_of,
    one_of,
    optional,
    parse_regex,
    union,
)
from mini_vllm.structured_output.references import (
    TOO_DEEP,
    escaped,
    look_up,
    moved,
    read_pointer,
    write_pointer,
)
from mini_vllm.structured_output.schema_algebra import (
    ANNOTATIONS,
    TYPES,
    SchemaError,
    check_syntax,
    disjoint,
    merge,
)

MAX_SCHEMA_BYTES = 200_000
MAX_RULES = 2_000
MAX_VALUES = 2_000
"""Most values of an enum."""
MAX_SPELLED_OUT = 12
"""Most properties of an object whose cases are written out one by one."""
MAX_INDENT = 20
"""Most spaces or tabs in one place."""

Schema = dict[str, Any] | bool


def white_space(any_whitespace: bool) -> Pattern:
    """What may stand between the parts of a JSON text: at most a line break and an indent.

    Unbounded white space would be legal JSON, but models then tend to write it until `max_tokens`.
    """
    if not any_whitespace:
        return EMPTY
    return concat(optional(concat("\n")), Repeat(parse_regex(r"[ \t]"), 0, MAX_INDENT))


def any_json(any_whitespace: bool = True) -> Rules:
    """The rules of an object with any content, for `json_object=True`."""
    return compile_schema({"type": "object"}, any_whitespace)


def compile_schema(schema: Any, any_whitespace: bool = True, close_objects: bool = True) -> Rules:
    """The rules of all texts that satisfy `schema`; the first one is `root`.

    Args:
        schema: a dict or bool, or the text of one.
        any_whitespace: True allows bounded white space everywhere, False none.
        close_objects: an object with `properties` and no `additionalProperties` has no others.

    Raises:
        ValueError: with the JSON pointer and the keyword, if this is not a schema, cannot be
            enforced, or no text satisfies it.
    """
    if isinstance(schema, str):
        if len(schema) > MAX_SCHEMA_BYTES:
            raise ValueError(
                f"the schema has {len(schema):,} characters; at most {MAX_SCHEMA_BYTES:,} are "
                "compiled; split it"
            )
        try:
            schema = json.loads(schema)
        except RecursionError:
            raise ValueError(TOO_DEEP) from None
        except ValueError as error:
            raise ValueError(f"json is no valid JSON: {error}") from None
    try:
        return _Compiler(moved(schema), white_space(any_whitespace), close_objects).compile()
    except RecursionError:  # with its references resolved it nests deeper than as written
        raise ValueError(TOO_DEEP) from None


class _Compiler:
    """Turns schemas into patterns, and collects the rules that these call."""

    def __init__(self, root: Schema, space: Pattern, close_objects: bool) -> None:
        self.root = root
        self.close_objects = close_objects
        self.space: Pattern = Call("space") if space != EMPTY else EMPTY
        self.rules: Rules = {"root": NOTHING, "space": space, **json_text.json_rules(self.space)}
        self._names: dict[str, str] = {}
        self._todo: list[tuple[str, Schema, str]] = []

    def compile(self) -> Rules:
        self._names[_key(self.root)] = "root"
        self._todo.append(("root", self.root, "#"))
        while self._todo:
            name, schema, place = self._todo.pop()
            self.rules[name] = self.pattern(schema, place)
        return self.rules

    def call(self, schema: Schema, place: str) -> Pattern:
        """A call of the rule of a part of the schema; equal parts share one rule."""
        if schema is True or schema == {}:
            return Call("value")
        if (key := _key(schema)) not in self._names:
            if len(self._names) >= MAX_RULES:
                raise SchemaError(place, f"the schema has more than {MAX_RULES:,} parts; split it")
            self._names[key] = place
            self.rules[place] = NOTHING
            self._todo.append((place, schema, place))
        return Call(self._names[key])

    # ------------------------------------------------------------ one schema
    def pattern(self, schema: Schema, place: str) -> Pattern:
        """The pattern of `schema`: references first, then combinations, then types."""
        check_syntax(schema, place)
        if isinstance(schema, bool):
            return Call("value") if schema else NOTHING
        rest = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        if rest.get("format") in REMARKS:
            del rest["format"]
        if "$ref" in rest:
            target, where = self.resolve(rest.pop("$ref"), place)
            return self.call(merge(target, rest, self.resolve, place) if rest else target, where)
        if "allOf" in rest:
            parts = rest.pop("allOf")
            merged: Schema = rest
            for index, part in enumerate(parts):
                merged = merge(merged, part, self.resolve, f"{place}/allOf/{index}")
            return self.pattern(merged, place)
        for keyword in ("anyOf", "oneOf"):
            if keyword in rest:
                return self.combination(keyword, rest.pop(keyword), rest, place)
        if "enum" in rest or "const" in rest:
            return self.literals(rest, place)
        types = rest.get("type", [name for name in TYPES if name != "integer"])
        choices = [
            self.of_type(t, rest, place) for t in ([types] if isinstance(types, str) else types)
        ]
        return Union(tuple(choices))

    def resolve(self, reference: str, place: str) -> tuple[Schema, str]:
        """The schema that a local reference points to, and its JSON pointer."""
        if not reference.startswith("#"):
            raise SchemaError(
                place, f"$ref {reference!r} leads out of the schema; copy its target to $defs"
            )
        if reference != "#" and not reference.startswith("#/"):
            raise SchemaError(
                place, f"$ref {reference!r} names an anchor that no part of the schema has"
            )
        path = read_pointer(reference)
        try:
            return look_up(self.root, path), reference
        except KeyError as error:
            end = path[: error.args[0]]
            found = look_up(self.root, end)
            known = ", ".join(found) if isinstance(found, dict) else ""
            raise SchemaError(
                place, f"$ref {reference!r} leads nowhere; {write_pointer(end)} has: "
                f"{known or 'nothing'}",
            ) from None  # fmt: skip

    def combination(self, keyword: str, parts: list[Schema], rest: Schema, place: str) -> Pattern:
        """One of `parts`, each merged with `rest`, the keywords beside the combination."""
        if keyword == "oneOf" and not disjoint(parts, self.resolve, place):
            raise SchemaError(
                place, "oneOf cannot be enforced, as two of its parts may hold together; use "
                "anyOf, or give each a required property with a const of its own",
            )  # fmt: skip
        return Union(
            tuple(
                self.call(merge(rest, part, self.resolve, where) if rest else part, where)
                for index, part in enumerate(parts)
                for where in [f"{place}/{keyword}/{index}"]
            )
        )

    def literals(self, schema: dict[str, Any], place: str) -> Pattern:
        """One of a list of values."""
        if others := schema.keys() - {"enum", "const", "type"}:
            raise SchemaError(
                place, f"{min(others)} cannot be enforced beside enum or const; leave out the "
                "values that it forbids",
            )  # fmt: skip
        values = schema.get("enum", [schema.get("const")])
        if len(values) > MAX_VALUES:
            raise SchemaError(
                place, f"enum has {len(values):,} values; at most {MAX_VALUES:,} are compiled"
            )
        if "const" in schema:
            values = [value for value in values if _key(value) == _key(schema["const"])]
        types = schema.get("type", list(TYPES))
        wanted = [types] if isinstance(types, str) else types
        values = [value for value in values if any(TYPES[name](value) for name in wanted)]
        if not values:
            raise SchemaError(place, "no value is left of enum and const")
        strings = [value for value in values if isinstance(value, str)]
        choices = [literal(value, self.space) for value in values if not isinstance(value, str)]
        if strings:
            choices.append(concat('"', one_of(strings, json_text.written), '"'))
        return Union(tuple(choices))

    def of_type(self, name: str, schema: dict[str, Any], place: str) -> Pattern:
        """The texts of one type that satisfy the keywords of that type."""
        if name == "null":
            return concat("null")
        if name == "boolean":
            return union("true", "false")
        makers: dict[str, Callable[[dict[str, Any], str], Pattern]] = {
            "string": self.string, "integer": self.integer, "number": self.number,
            "array": self.array, "object": self.object,
        }  # fmt: skip
        return makers[name](schema, place)

    # ------------------------------------------------------------ strings and numbers
    def string(self, schema: dict[str, Any], place: str) -> Pattern:
        low, high = _counts(schema, "minLength", "maxLength", place)
        lengths = [key for key in ("minLength", "maxLength") if key in schema]
        if (form := schema.get("format")) is not None:
            if "pattern" in schema:
                raise SchemaError(
                    place, "pattern and format cannot be enforced together; leave one of them out"
                )
            return self.formatted(form, low, high, place)
        if "pattern" in schema:
            try:
                inner = parse_regex(schema["pattern"])
            except ValueError as error:
                raise SchemaError(place, f"pattern: {error}") from None
            self.check_length("pattern", inner, low, high, place)
            anything = Repeat(any_but([]), 0, None)
            # A rule of its own, whose start and end are what ^ and $ mean.
            self.rules[f"{place}/pattern"] = json_string_of(concat(anything, inner, anything))
            return concat('"', Call(f"{place}/pattern"), '"')
        if not lengths:
            return Call("string")
        return concat('"', Repeat(Call("char"), low, high), '"')

    def formatted(self, form: str, low: int, high: int | None, place: str) -> Pattern:
        """A string of a format; a given length must already follow from the format."""
        if form == "uri" and high is not None:
            if high < LEAST_URI:
                raise SchemaError(
                    place, f"a uri of at most {high} characters cannot be enforced; allow "
                    f"{LEAST_URI} or more"
                )  # fmt: skip
            self.rules.setdefault("format/uri/char", json_string_of(URI_CHAR))
            pattern = short_uri(high, Call("format/uri/char"))
            form, high = f"uri/{high}", None
        else:
            pattern = parse_regex(FORMATS[form])
        self.check_length("format", concat(ANCHORS[0], pattern, ANCHORS[1]), low, high, place)
        self.rules.setdefault(f"format/{form}", json_string_of(pattern))  # all strings share it
        return concat('"', Call(f"format/{form}"), '"')

    def check_length(
        self, kind: str, pattern: Pattern, low: int, high: int | None, place: str
    ) -> None:
        """Refuse length limits that `pattern` does not already imply."""
        least, most = lengths_of(pattern)
        if not is_anchored(pattern):
            most = None
        if low > least:
            raise _not_together(place, kind, "minLength")
        if high is not None and (most is None or most > high):
            raise _not_together(place, kind, "maxLength")

    def integer(self, schema: dict[str, Any], place: str) -> Pattern:
        low, high = _bounds(schema, place)
        if low is None and high is None:
            return json_text.INTEGER
        least = None if low is None else math.floor(low[0]) + 1 if low[1] else math.ceil(low[0])
        most = None if high is None else math.ceil(high[0]) - 1 if high[1] else math.floor(high[0])
        if least is not None and most is not None and least > most:
            raise SchemaError(place, f"no integer is at least {least} and at most {most}")
        return integer_range_pattern(least, most)

    def number(self, schema: dict[str, Any], place: str) -> Pattern:
        if schema.get("multipleOf") == 1:  # the one divisor that `_bounds` lets through
            return self.integer(schema, place)
        low, high = _bounds(schema, place)
        if low is None and high is None:
            return json_text.NUMBER
        return number_range_pattern(low, high)

    # ------------------------------------------------------------ arrays and objects
    def array(self, schema: dict[str, Any], place: str) -> Pattern:
        """`prefixItems` in their order, then any number of `items`."""
        low, high = _counts(schema, "minItems", "maxItems", place)
        if schema.get("uniqueItems") and (high is None or high > 1):
            raise _unenforceable(place, "uniqueItems")
        prefix = schema.get("prefixItems", [])
        first = [self.call(s, f"{place}/prefixItems/{i}") for i, s in enumerate(prefix)]
        items = schema.get("items", True)
        if items is False:
            high = len(first) if high is None else min(high, len(first))
        more = self.call(items, f"{place}/items") if items is not False else NOTHING
        if high is not None and low > high:
            raise SchemaError(place, f"minItems {low} is above the {high} items that are allowed")
        return concat("[", self.space, self.sequence(first, more, low, high), "]")

    def sequence(self, first: list[Pattern], more: Pattern, low: int, high: int | None) -> Pattern:
        """`low` to `high` items with commas: first those of `first`, then copies of `more`.

        Built from the end: item i is followed by nothing, or by a comma, item i + 1 and what may
        follow that item.
        """
        beyond = max(low - len(first), 0)
        comma = concat(self.space, ",", self.space)
        if high is None or high > len(first):
            most = None if high is None else high - max(len(first), 1)
            least = beyond if first else max(beyond - 1, 0)
            rest: Pattern = Repeat(concat(comma, more), least, most)
        else:
            first, rest = first[:high], EMPTY
        if not first and high == 0:
            return EMPTY
        items = first or [more]
        for index in reversed(range(len(items))):
            separator = comma if index else EMPTY
            rest = concat(separator, items[index], rest)
            if index == 0:
                rest = concat(rest, self.space)
            if index >= low:
                rest = optional(rest)
        return rest

    def object(self, schema: dict[str, Any], place: str) -> Pattern:
        """The named properties in the schema's order, then additional ones."""
        properties: dict[str, Schema] = dict(schema.get("properties", {}))
        required = schema.get("required", [])
        extra = schema.get("additionalProperties")
        if extra is None:
            extra = not (self.close_objects and "properties" in schema)
            properties |= {name: True for name in required if name not in properties}
        for name in required:
            if properties.get(name, extra) is False:
                raise SchemaError(place, f"property {name!r} is required and forbidden")
            properties.setdefault(name, extra)
        allowed = {name: part for name, part in properties.items() if part is not False}
        members = [
            pair(
                literal(name, EMPTY),
                self.call(part, f"{place}/properties/{escaped(name)}"),
                self.space,
            )
            for name, part in allowed.items()
        ]
        needed = [name in required for name in allowed]
        others = None
        if extra is not False:
            key: Pattern = Call("string")
            if properties:
                self.rules[f"{place}/other"] = string_but(list(properties))
                key = concat('"', Call(f"{place}/other"), '"')
            others = pair(key, self.call(extra, f"{place}/additionalProperties"), self.space)
        self.check_count(schema, needed, others is not None, place)
        comma = concat(self.space, ",", self.space)
        if len(members) <= MAX_SPELLED_OUT:
            inside: Pattern = object_pattern(members, needed, others, comma)
        else:
            inside = self.long_object(members, needed, others, comma, place)
        return concat(
            "{",
            self.space,
            optional(concat(inside, self.space)) if not any(needed) else concat(inside, self.space),
            "}",
        )

    def long_object(
        self,
        members: list[Pattern],
        needed: list[bool],
        others: Pattern | None,
        comma: Pattern,
        place: str,
    ) -> Pattern:
        """`object_pattern` for many members: the tail after each member is a rule of its own.

        Written out, the tails of n optional members would hold n * n / 2 members.
        """
        following: Pattern = EMPTY
        if others is not None:
            following = Repeat(concat(comma, others), 0, None)
        cases: list[Pattern] = []
        if others is not None and not any(needed):
            cases.append(concat(others, following))
        for index in reversed(range(len(members))):
            rule = f"{place}/behind/{index}"
            self.rules[rule] = following
            if not any(needed[:index]):
                cases.append(concat(members[index], Call(rule)))
            following = concat(comma, members[index], Call(rule))
            if not needed[index]:
                following = union(following, Call(rule))
        return Union(tuple(cases))

    def check_count(
        self, schema: dict[str, Any], needed: list[bool], has_others: bool, place: str
    ) -> None:
        """Refuse `minProperties` and `maxProperties` unless the other keywords imply them."""
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        if least > sum(needed):
            raise _unenforceable(place, "minProperties")
        if most is not None and (has_others or most < len(needed)):
            raise _unenforceable(place, "maxProperties")


# ---------------------------------------------------------------- small things
def _bounds(
    schema: Mapping[str, Any], place: str
) -> tuple[json_text.Bound | None, json_text.Bound | None]:
    """The tighter lower and upper limit, each as `(number, excluded)`."""
    if "multipleOf" in schema and schema["multipleOf"] != 1:
        raise _unenforceable(place, "multipleOf")
    lows = [(Decimal(str(schema[key])), excluded) for key, excluded in
            (("minimum", False), ("exclusiveMinimum", True)) if key in schema]  # fmt: skip
    highs = [(Decimal(str(schema[key])), excluded) for key, excluded in
             (("maximum", False), ("exclusiveMaximum", True)) if key in schema]  # fmt: skip
    low = max(lows, default=None)
    high = min(highs, default=None, key=lambda bound: (bound[0], not bound[1]))
    if low and high and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        raise SchemaError(place, f"no number is above {low[0]} and below {high[0]}")
    return low, high


def _counts(
    schema: Mapping[str, Any], low_name: str, high_name: str, place: str
) -> tuple[int, int | None]:
    """The least and the largest count; 2.0 is a count, too."""
    low, high = int(schema.get(low_name, 0)), schema.get(high_name)
    if high is not None and low > high:
        raise SchemaError(place, f"{low_name} {low} is above {high_name} {high}")
    return low, None if high is None else int(high)


def _not_together(place: str, one: str, other: str) -> SchemaError:
    return SchemaError(
        place, f"{one} and {other} cannot be enforced together; put the length into the pattern"
    )


def _unenforceable(place: str, keyword: str) -> SchemaError:
    return SchemaError(
        place, f"{keyword} cannot be enforced; remove it and check the output yourself"
    )


def _key(value: Any) -> str:
    """A key that is equal for equal JSON values with the same order of properties."""
    return json.dumps(value)
