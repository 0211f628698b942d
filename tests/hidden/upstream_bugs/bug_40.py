"""Python reads -1 as an operator before a 1; a call with a negative number is a call."""

import json

from transformers import AutoTokenizer
from vllm.tool_parsers.gemma4_tool_parser import _parse_gemma4_args
from vllm.tool_parsers.pythonic_tool_parser import PythonicToolParser

from labkit.maintain.rig import MODEL

PARSER = PythonicToolParser(AutoTokenizer.from_pretrained(MODEL))


def read(text):
    """The arguments of the calls in a text; None if there are none."""
    found = PARSER.extract_tool_calls(text, None)
    return (
        [json.loads(call.function.arguments) for call in found.tool_calls]
        if found.tools_called
        else None
    )


def the_bug(draw):
    whole, part = draw.randint(1, 999), draw.randint(1, 999) / 8
    assert read(f"[go(x=-{whole}, y={part}, z=-{part})]") == [{"x": -whole, "y": part, "z": -part}]
    assert read(f'[go(xs=[-{whole}, +2], of={{"a": -{part}}})]') == [
        {"xs": [-whole, 2], "of": {"a": -part}}
    ]


def neighbour_plain_calls():
    assert read('[move(x=1, y="-a"), stop(now=True, why=None)]') == [
        {"x": 1, "y": "-a"},
        {"now": True, "why": None},
    ]


def neighbour_other_expressions_are_no_literals():
    assert read("[f(x=not 1)]") is None and read("[f(x=~1)]") is None
    assert (
        read("[f(x=-True)]") is None and read("[f(x=1-2)]") is None and read('[f(x=-"a")]') is None
    )


def the_sibling(draw):
    """Another parser's numbers have a sign, too."""
    number, part = draw.randint(1, 99), draw.randint(1, 9)
    found = _parse_gemma4_args(f"a:{number},b:-{number},c:-{number}.{part},d:[-{part}]")
    assert found == {"a": number, "b": -number, "c": -float(f"{number}.{part}"), "d": [-part]}, (
        found
    )
