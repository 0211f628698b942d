"""parallel_tool_calls=false with tool_choice="required": the grammar allows one call."""

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionToolsParam,
)
from vllm.tool_parsers.abstract_tool_parser import ToolParser
from vllm.tool_parsers.utils import get_json_schema_from_tools

from labkit.maintain.rig import MODEL

TOKENIZER = AutoTokenizer.from_pretrained(MODEL)


def schema(names=("add",), choice="required", **more):
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}} for name in names
    ]
    request = ChatCompletionRequest(
        messages=[{"role": "user", "content": "hi"}], tools=tools, tool_choice=choice, **more
    )
    return ToolParser(TOKENIZER, request.tools).adjust_request(request).structured_outputs.json


def the_bug(draw):
    names = draw.sample(["add", "sub", "move", "stop"], draw.randint(1, 3))
    found = schema(names, parallel_tool_calls=False)
    assert found.get("maxItems") == 1 and found["minItems"] == 1, f"the schema is {found}"


def neighbour_several_calls_by_default():
    assert schema()["minItems"] == 1 and "maxItems" not in schema()
    assert "maxItems" not in schema(parallel_tool_calls=True)


def neighbour_a_named_function():
    named = {"type": "function", "function": {"name": "add"}}
    assert schema(choice=named) == schema(choice=named, parallel_tool_calls=False)
    assert schema(choice=named)["type"] == "object"


def the_sibling(draw):
    """tool_choice="required" asks for a call; the schema must, too."""
    tools = [
        ChatCompletionToolsParam(type="function", function={"name": f"tool{n}", "parameters": {}})
        for n in range(draw.randint(1, 3))
    ]
    schema = get_json_schema_from_tools("required", tools)
    assert schema.get("minItems", 0) >= 1, "an empty list of calls fits the schema"
