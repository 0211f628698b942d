"""References move with their schema: the whole says of a part what the part said alone."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mini_vllm.entrypoints.openai.tool_parser import tool_schema
from mini_vllm.structured_output.json_schema import compile_schema
from mini_vllm.structured_output.references import (
    hoisted,
    moved,
    nests_deeper,
    read_pointer,
    write_pointer,
)
from tests.engine.structured_output.walks import accepts, automaton

INTEGER = {"type": "integer"}
SCHEMAS: list[dict[str, Any]] = [
    {"$ref": "#/$defs/P", "$defs": {"P": INTEGER}},
    {"$ref": "#/definitions/P", "definitions": {"P": INTEGER}},
    {"$ref": "#/$defs/a~1b~0c%25d", "$defs": {"a/b~c%d": INTEGER}},
    {"$ref": "#/$defs/%C3%A9%20", "$defs": {"é ": INTEGER}},
    {"$ref": "#/$defs/~01", "$defs": {"~1": INTEGER}},
    {"$ref": "#/x-schemas/0/A", "x-schemas": [{"A": {"$ref": "#/x-schemas/0/B"}, "B": INTEGER}]},
    {"$ref": "#p", "$defs": {"P": {"$anchor": "p", **INTEGER}}},
    {"$ref": "#p", "$defs": {"P": {"$id": "#p", **INTEGER}}},
    {"$id": "https://x.y/a.json", "$ref": "a.json#/$defs/P", "$defs": {"P": INTEGER}},
    {"$id": "https://x.y/a/b", "$ref": "c", "$defs": {
        "C": {"$id": "/a/c", "$ref": "#/$defs/P", "$defs": {"P": INTEGER}}, "P": {"type": "null"}}},
    {"$id": "urn:uuid:0", "$ref": "urn:uuid:0#/$defs/P", "$defs": {"P": INTEGER}},
    {"anyOf": [{"$ref": "#/$defs/P/anyOf/1"}],
     "$defs": {"P": {"anyOf": [{"type": "null"}, INTEGER]}}},
    {"type": ["array", "integer"], "items": {"$ref": "#"}},
    {"$ref": "#/$defs/P", "minimum": 0, "description": "beside", "$defs": {"P": INTEGER}},
    {"const": {"$ref": "#/$defs/P"}, "$defs": {"P": INTEGER}},
    {"enum": [{"$ref": "#"}, {"$id": "a"}]},
    {"type": "object", "properties": {"$ref": {"$ref": "#/properties/$id"}, "$id": INTEGER}},
]  # fmt: skip
VALUES: list[tuple[Any, str]] = [
    (1, "1"), (-1, "-1"), (None, "null"), ([], "[]"), ([[1], 2], "[[1],2]"), ([None], "[null]"),
    ({"$ref": "#/$defs/P"}, '{"$ref":"#/$defs/P"}'), ({"$ref": "#"}, '{"$ref":"#"}'),
    ({"$id": "a"}, '{"$id":"a"}'), ({"$ref": 1, "$id": 2}, '{"$ref":1,"$id":2}'),
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_reference_means_the_same_wherever_its_schema_stands(schema: dict[str, Any]) -> None:
    """jsonschema says what the schema means alone; but not of the anchors of Draft 7."""
    alone = automaton(compile_schema(schema, any_whitespace=False))
    called = automaton(compile_schema(as_call(schema), any_whitespace=False))
    oracle = Draft202012Validator(schema)
    for value, text in VALUES:
        legal = type(value) is int if "#p" in str(schema) else oracle.is_valid(value)
        assert accepts(alone, text) == legal, text
        assert accepts(called, f'[{{"name":"f","parameters":{text}}}]') == legal, text
        for whole in (as_call(schema), hoisted(as_call(schema))):
            call = [{"name": "f", "parameters": value}]
            assert Draft202012Validator(whole).is_valid(call) == legal, text


def as_call(parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema of calls of one of two tools, whose other has the same names for other parts."""
    other = {"$ref": "#/$defs/P", "$defs": {"P": {"$anchor": "p", "type": "boolean"}}}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in (("g", other), ("f", parameters))
    ]
    schema = tool_schema(tools, "required")
    assert schema is not None
    return schema


def test_what_is_moved_is_a_copy() -> None:
    schema = {"$ref": "#/$defs/P", "$defs": {"P": {"$anchor": "p"}}}
    before = str(schema)
    assert moved(schema, ("a/b", "%"))["$ref"] == "#/a~1b/%25/$defs/P" and str(schema) == before


@pytest.mark.parametrize("reference", ["http://[", "#/no", "#no", "other.json", "http://x.y/z#/a"])
def test_what_leads_nowhere_leads_nowhere_in_the_whole(reference: str) -> None:
    """Not to a part of the list of calls that happens to have that path."""
    for whole in (as_call({"$ref": reference}), as_call({"$ref": "#/items"})):
        with pytest.raises(ValueError, match=r"leads|names an anchor"):
            compile_schema(whole)


def test_a_pointer_comes_back() -> None:
    for pointer in ((), ("",), ("a/b", "~1", "%2F", "é", "~0~")):
        assert read_pointer(write_pointer(pointer)) == pointer


def test_depth_is_a_sentence() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    assert nests_deeper(deep, 5000) and not nests_deeper(deep, 5001)
    for read in (moved, hoisted, as_call, compile_schema):
        with pytest.raises(ValueError, match="nests too deeply, at most 500 levels"):
            read(deep)
