"""`"type": ["array", "null"]` is an array, too: what xgrammar cannot enforce there is seen."""

from vllm.tool_parsers.utils import extract_types_from_schema
from vllm.v1.structured_output.backend_xgrammar import (
    has_xgrammar_unsupported_json_features as unsupported,
)

CASES = [
    ("integer", {"multipleOf": 3}), ("number", {"multipleOf": 0.5}), ("array", {"uniqueItems": True}),
    ("array", {"contains": {"type": "string"}}), ("string", {"format": "credit-card"}), ("object", {"propertyNames": {"maxLength": 3}}),
]  # fmt: skip


def the_bug(draw):
    for kind, more in CASES:
        types = [kind, "null"]
        draw.shuffle(types)
        found = {"type": types, **more}
        assert unsupported(found), f"{found} is taken, and {next(iter(more))} is not kept"
        assert unsupported({"type": "object", "properties": {"a": found}})


def neighbour_plain_types():
    for kind, more in CASES:
        assert unsupported({"type": kind, **more})
        assert not unsupported({"type": kind}) and not unsupported({"type": [kind, "null"]})


def neighbour_keys_of_other_types():
    assert not unsupported({"type": "string", "multipleOf": 3}) and not unsupported(
        {"type": ["string", "null"], "uniqueItems": True}
    )
    assert not unsupported({"type": ["string", "null"], "format": "date"})
    assert not unsupported(
        {
            "type": "object",
            "properties": {"type": {"type": "string"}, "uniqueItems": {"type": "boolean"}},
        }
    )


def the_sibling(draw):
    """An argument of several types keeps them all."""
    types = draw.sample(["integer", "number", "boolean", "null", "array"], draw.randint(1, 3))
    assert sorted(extract_types_from_schema({"type": types})) == sorted(types)
    assert extract_types_from_schema({"type": types[0]}) == types[:1]
