"""Schemas: nothing invalid can be written, all that is valid can, the rest is refused by name."""

from __future__ import annotations

import contextlib
import json
import random
import re
from functools import partial
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mini_vllm.structured_output import json_schema
from mini_vllm.structured_output.json_schema import compile_schema
from mini_vllm.structured_output.pushdown import compile_rules
from mini_vllm.structured_output.references import MAX_NESTING
from tests.engine.pace import cpu_seconds
from tests.engine.structured_output.keyword_table import PERSON, REFUSED, TABLE
from tests.engine.structured_output.walks import accepts, automaton, random_text

CHECKER = Draft202012Validator.FORMAT_CHECKER
STYLES: list[dict[str, Any]] = [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}]


def validator(schema: Any) -> Draft202012Validator:
    return Draft202012Validator(schema, format_checker=CHECKER)


@pytest.mark.parametrize("schema, valid, invalid", TABLE, ids=lambda value: str(value)[:50])
def test_instances_of_each_keyword(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    oracle = validator(schema)
    spaced = automaton(compile_schema(schema))
    compact = automaton(compile_schema(schema, any_whitespace=False))
    for instance in valid:
        assert oracle.is_valid(instance), f"the table is wrong: {instance}"
        for ascii_only in (True, False):
            for style in STYLES:
                text = json.dumps(instance, ensure_ascii=ascii_only, **style)
                assert accepts(spaced, text), text
            assert accepts(compact, json.dumps(instance, ensure_ascii=ascii_only, **STYLES[3]))
    for instance in invalid:
        assert not oracle.is_valid(instance), f"the table is wrong: {instance}"
        for style in STYLES:
            assert not accepts(spaced, json.dumps(instance, **style)), instance


@pytest.mark.parametrize("any_whitespace", [True, False])
@pytest.mark.parametrize("schema", [row[0] for row in TABLE], ids=lambda value: str(value)[:50])
def test_whatever_can_be_written_is_valid(schema: Any, any_whitespace: bool) -> None:
    oracle, rng = validator(schema), random.Random(0)
    walk = automaton(compile_schema(schema, any_whitespace))
    texts = [random_text(walk, rng) for _ in range(25)]
    written = [text for text in texts if text is not None]
    assert written
    for text in written:
        assert oracle.is_valid(json.loads(text.decode())), text


@pytest.mark.parametrize("schema, message", REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        compile_rules(compile_schema(schema))


def test_the_place_of_a_mistake_is_named() -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(ValueError, match="#/properties/tags: uniqueItems cannot be enforced"):
        compile_schema(schema)


def test_objects_with_properties_are_closed_unless_told_otherwise() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert not accepts(automaton(compile_schema(schema)), '{"a": 1, "b": 2}')
    assert accepts(automaton(compile_schema(schema, close_objects=False)), '{"a": 1, "b": 2}')
    opened = schema | {"additionalProperties": True}
    assert accepts(automaton(compile_schema(opened)), '{"a": 1, "b": 2}')


def test_a_name_cannot_be_written_twice_to_get_round_its_schema() -> None:
    schema = {
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": True,
        "type": "object",
    }
    walk = automaton(compile_schema(schema))
    assert accepts(walk, '{"a": 1, "b": 2}') and not accepts(walk, '{"a": 1, "a": "x"}')
    assert not accepts(walk, '{"a": 1, "\\u0061": "x"}')


def test_white_space_is_bounded() -> None:
    walk = automaton(compile_schema({"type": "object"}))
    assert accepts(walk, "{\n" + " " * 20 + "}")
    assert not accepts(walk, "{" + " " * 21 + "}") and not accepts(walk, "{\n\n}")
    assert not accepts(walk, " {}") and not accepts(walk, "{} ")
    assert not accepts(automaton(compile_schema(PERSON, False)), '{"name": "a","age":1}')


def test_text_and_dict_give_the_same_rules() -> None:
    assert compile_schema(PERSON) == compile_schema(json.dumps(PERSON))


def test_pydantic_models() -> None:
    pydantic = pytest.importorskip("pydantic")
    from enum import Enum
    from typing import Literal

    class Colour(Enum):
        RED = "red"
        BLUE = "blue"

    class Cat(pydantic.BaseModel):
        kind: Literal["cat"]
        lives: int = pydantic.Field(9, ge=0, le=9)

    class Dog(pydantic.BaseModel):
        kind: Literal["dog"]
        colour: Colour | None = None

    class Owner(pydantic.BaseModel):
        """A person with animals."""

        name: str = pydantic.Field(min_length=1, max_length=20)
        animals: list[Cat | Dog] = pydantic.Field(max_length=3)
        favourite: Cat | Dog = pydantic.Field(discriminator="kind")
        pair: tuple[int, str]
        friend: Owner | None = None
        born: str = pydantic.Field(pattern=r"^\d{4}$")

    walk = automaton(compile_schema(Owner.model_json_schema()))
    cat, dog = Cat(kind="cat"), Dog(kind="dog", colour=Colour.RED)
    owner = Owner(name="Ada", animals=[cat, dog], favourite=dog, pair=(1, "é"), born="1815")
    assert accepts(walk, owner.model_dump_json())
    assert accepts(walk, owner.model_copy(update={"friend": owner}).model_dump_json(indent=2))
    rng = random.Random(5)
    for _ in range(20):
        if text := random_text(walk, rng, 2000):
            Owner.model_validate_json(text)


@pytest.mark.serial
def test_bombs_are_compiled_or_refused_within_a_second() -> None:
    def nested(levels: int) -> dict[str, Any]:
        defs: dict[str, Any] = {"s0": {"type": "string", "maxLength": 3}}
        for level in range(1, levels):
            before = {"$ref": f"#/$defs/s{level - 1}", "minLength": 1}
            defs[f"s{level}"] = {"anyOf": [before, {**before, "maxLength": level}]}
        return {"$defs": defs, "$ref": f"#/$defs/s{levels - 1}"}

    deep: Any = {}
    for _ in range(5_000):
        deep = {"items": deep, "type": "array"}
    ring = {"$defs": {f"r{i}": {"$ref": f"#/$defs/r{(i + 1) % 500}"} for i in range(500)}}
    bombs: list[Any] = [
        nested(40) | {"maxLength": 1},
        {"enum": [f"choice number {i}" for i in range(20_000)]},
        {"type": "string", "maxLength": 100_000},
        {"type": "object", "properties": {f"p{i}": {} for i in range(2_000)}},
        {**ring, "$ref": "#/$defs/r0"},
        deep,
        '{"description": "' + "x" * 1_000_000 + '"}',
        {"type": "array", "items": {"type": "integer"}, "minItems": 50_000},
    ]

    def defuse(bomb: Any) -> None:
        with contextlib.suppress(ValueError):
            compile_rules(compile_schema(bomb))
            assert bomb is bombs[0], "only the first can be compiled, by merging"

    for bomb in bombs:
        assert cpu_seconds(partial(defuse, bomb), limit=1.0) < 1.0, str(bomb)[:60]


def test_nesting_has_a_limit_of_its_own() -> None:
    """Not Python's, which is 1,000 levels in one version and 10,000 in another."""

    def nested(levels: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"const": 1}
        for _ in range(levels - 1):
            schema = {"items": schema}
        return schema

    assert compile_schema(nested(MAX_NESTING))
    for schema in (nested(MAX_NESTING + 1), json.dumps(nested(MAX_NESTING + 1))):
        with pytest.raises(ValueError, match=f"at most {MAX_NESTING} levels; use \\$defs and"):
            compile_schema(schema)
    with pytest.raises(ValueError, match="at most"):
        compile_schema('{"items":' * 20_000 + "{}" + "}" * 20_000)


def test_many_properties_are_what_a_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to write an object down have the same texts."""
    rng = random.Random(3)
    for _ in range(40):
        names = [f"n{number}" for number in range(rng.randrange(6))]
        schema = {
            "type": "object",
            "properties": {name: {"enum": [1, 2]} for name in names},
            "required": [name for name in names if rng.random() < 0.4],
            "additionalProperties": rng.choice([False, True, {"type": "null"}]),
        }
        automata = []
        for limit in (99, -1):
            monkeypatch.setattr(json_schema, "MAX_SPELLED_OUT", limit)
            automata.append(automaton(compile_schema(schema, any_whitespace=False)))
        for one, other in (automata, automata[::-1]):
            text = random_text(one, rng, 80)
            if text is not None:
                assert accepts(other, text), (schema, text)
                broken = bytearray(text)
                broken[rng.randrange(len(text))] = rng.choice(b'{},:"n012')
                assert accepts(one, bytes(broken)) == accepts(other, bytes(broken)), (
                    schema,
                    broken,
                )


def test_large_schemas_of_the_usual_kinds_compile() -> None:
    values = [f"value {number}" for number in range(2000)]
    many = {f"p{number}": {"type": "string"} for number in range(100)}
    for schema, instance in (
        ({"enum": values}, values[1234]),
        ({"type": "object", "properties": many}, {"p3": "a", "p77": "b"}),
        ({"type": "object", "properties": many, "required": list(many)}, dict.fromkeys(many, "")),
    ):
        assert accepts(automaton(compile_schema(schema)), json.dumps(instance))
