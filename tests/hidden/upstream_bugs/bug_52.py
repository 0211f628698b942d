"""Arguments of a call are text for programs and for people: a city keeps its letters."""

import json

from transformers import AutoTokenizer
from vllm.tool_parsers.granite_tool_parser import GraniteToolParser
from vllm.tool_parsers.hunyuan_a13b_tool_parser import HunyuanA13BToolParser

from labkit.maintain.rig import MODEL

PARSER = HunyuanA13BToolParser(AutoTokenizer.from_pretrained(MODEL))


def arguments(value):
    call = json.dumps([{"name": "weather", "arguments": {"city": value}}], ensure_ascii=False)
    found = PARSER.extract_tool_calls(f"<tool_calls>{call}</tool_calls>", None)
    assert found.tools_called
    text = found.tool_calls[0].function.arguments
    assert json.loads(text) == {"city": value}, text
    return text


def the_bug(draw):
    city = "".join(draw.sample("Zürich北京Łódźñé", 4))
    assert city in arguments(city), f"{city} comes as {arguments(city)}"


def neighbour_plain_letters():
    assert arguments("Bern") == '{"city": "Bern"}'


def neighbour_quotes_and_line_ends():
    for value in ('a "b" \\ c', "a\nb\tc", "100 %", {"name": "Bern", "zip": [3000, None]}):
        arguments(value)


def the_sibling(draw):
    """Another model's parser keeps the letters, too."""
    city = "".join(draw.sample("Zürich北京Łódźñé", 4)) + "ü"
    call = json.dumps([{"name": "weather", "arguments": {"city": city}}], ensure_ascii=False)
    found = GraniteToolParser(AutoTokenizer.from_pretrained(MODEL)).extract_tool_calls(call, None)
    text = found.tool_calls[0].function.arguments
    assert json.loads(text) == {"city": city} and city in text, f"{city} comes as {text}"
