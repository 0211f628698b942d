"""additionalProperties is added to schemas, not to data that look like one."""

import copy

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
from vllm.tool_parsers.utils import find_tool_properties
from vllm.v1.structured_output.backend_guidance import process_for_additional_properties as closed


def schema(field="a", inner=None):
    return {"type": "object", "properties": {field: inner or {"type": "string"}}}


def the_bug(draw):
    field, value = draw.choice(["x", "size", "name"]), draw.randint(1, 99)
    wanted = {
        "type": "object",
        "properties": {
            "properties": {"type": "string"},
            "kind": {"enum": [{"properties": value}, "plain"]},
            "more": {"const": {"properties": {field: value}}},
            "other": {"type": "object", "default": {"properties": value}},
        },
    }
    found = closed(copy.deepcopy(wanted))
    wanted["additionalProperties"] = False
    assert found == wanted, f"properties: {found['properties']}"


def neighbour_schemas_are_closed():
    found = closed(
        {
            **schema("a", schema("b")),
            "$defs": {"properties": schema()},
            "anyOf": [schema(), {"items": schema()}],
        }
    )
    places = [
        found,
        found["properties"]["a"],
        found["$defs"]["properties"],
        found["anyOf"][0],
        found["anyOf"][1]["items"],
    ]
    assert all(place.get("additionalProperties") is False for place in places), found
    assert "additionalProperties" not in found["anyOf"][1]


def neighbour_what_the_client_says_stays():
    own = {**schema("a", schema("b")), "additionalProperties": {"type": "integer"}}
    before = copy.deepcopy(own)
    found = closed(own)
    assert found["additionalProperties"] == {"type": "integer"} and own == before


def the_sibling(draw):
    """An argument of a tool may be called properties."""
    other = draw.choice(["city", "name", "unit"])
    table = {"properties": {"type": "string"}, other: {"type": "integer"}}
    tool = ChatCompletionToolsParam(
        type="function",
        function={"name": "draw", "parameters": {"type": "object", "properties": table}},
    )
    assert find_tool_properties([tool], "draw") == table, find_tool_properties([tool], "draw")
