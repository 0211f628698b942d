"""Structural tags: what both backends accept, and which of them a format needs."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.structured_output.choose import check_constraint
from mini_vllm.structured_output.native import NativeBackend
from mini_vllm.structured_output.structural_tag import _Compiler, compile_structural_tag
from mini_vllm.structured_output.token_index import TokenTable
from mini_vllm.structured_output.xgrammar import XgrammarBackend
from tests.engine.structured_output.walks import accepts, automaton

KIND = StructuredOutputOptions.STRUCTURAL_TAG
END = 256
BYTES = TokenTable([bytes([byte]) for byte in range(256)] + [b""])


def nested(kind: str) -> dict[str, Any]:
    """An object whose p is of a type that stands in `$defs`, as pydantic writes it."""
    p = {"properties": {"p": {"$ref": "#/$defs/P"}}, "required": ["p"]}
    return {"type": "object", "$defs": {"P": {"type": kind}}, "additionalProperties": False} | p


P, Q = nested("integer"), nested("boolean")


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": value}


def word(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


TAGS = [tag("<f=a>", schema(P), "</f>"), tag("<f=b>", schema(Q), "</f>")]
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": TAGS}
ONE = '<f=a>{"p": 1}</f>'
TWO = '<f=b>{"p": true}</f>'
GRAMMAR = {"type": "grammar", "grammar": 'root ::= x+\nx ::= "a" | "b"'}
OTHER = {"type": "grammar", "grammar": "start: x\nx: /[cd]/"}
FORMATS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (TRIGGERED, ["", "no call", f"so {ONE} and {TWO} <f", ONE + TWO],
     ["<f=", "<f=c>", '<f=a>{"p": true}</f>', '<f=b>{"p": 1}</f>', "x <f=a>{}</f>"]),
    (TRIGGERED | {"at_least_one": True}, [ONE, ONE + "and " + TWO], ["", "so " + ONE]),
    (TRIGGERED | {"stop_after_first": True}, ["so " + ONE, "none"], [ONE + " and", ONE + TWO]),
    (TRIGGERED | {"at_least_one": True, "stop_after_first": True}, [ONE, TWO], ["", "a" + ONE]),
    (TRIGGERED | {"excludes": ["no"]}, ["n o" + ONE], ["no" + ONE, ONE + "no"]),
    (tag("<t>", {"type": "any_text"}, ["</t>", "<e>"]), ["<t></t>", "<t>a<b</t>", "<t>x<e>"],
     ["<t>", "<t>a</t>b</t>", "<t>a<e></t>"]),
    ({"type": "sequence", "elements": [tag("<t>", {"type": "any_text"}, "</t>"), TRIGGERED]},
     ["<t>hm <f=?></t>ok", f"<t></t>{ONE}"], ["<t>", "<t></t><f=?>"]),
    ({"type": "tags_with_separator", "tags": TAGS, "separator": ","}, ["", f"{ONE},{TWO}"],
     [f"{ONE},", f"{ONE}{TWO}"]),
    ({"type": "tags_with_separator", "tags": TAGS, "separator": ",", "at_least_one": True},
     [ONE], [""]),
    ({"type": "sequence", "elements": [GRAMMAR, OTHER, GRAMMAR]}, ["abda", "acb"], ["ad", "aba"]),
    ({"type": "or", "elements": [word("yes"), word("no")]}, ["yes", "no"], ["", "yesno"]),
    ({"type": "optional", "content": word("x")}, ["", "x"], ["xx"]),
    ({"type": "plus", "content": word("x")}, ["x", "xx"], [""]),
    ({"type": "star", "content": word("x")}, ["", "xx"], ["y"]),
    ({"type": "repeat", "min": 1, "max": 2, "content": word("x")}, ["x", "xx"], ["", "xxx"]),
    ({"type": "repeat", "min": 2, "max": -1, "content": word("x")}, ["xx", "xxxx"], ["x"]),
    ({"type": "regex", "pattern": "[A-Z]{3}-[0-9]+"}, ["ABC-12"], ["ABC-"]),
    ({"type": "dispatch", "rules": [["<a>", word("1")], ["<b>", GRAMMAR]], "excludes": ["!"]},
     ["", "x<a>1<b>ab?", "<"], ["<a>", "x!", "<b>c"]),
    ({"type": "dispatch", "rules": [["<a>", word("1")]], "loop": False}, ["x<a>1"], ["<a>1x"]),
]  # fmt: skip


@pytest.mark.parametrize("form, legal, illegal", FORMATS, ids=lambda value: str(value)[:40])
def test_both_backends_accept_the_same(
    form: dict[str, Any], legal: list[str], illegal: list[str]
) -> None:
    spec = json.dumps({"type": "structural_tag", "format": form})
    for make in (NativeBackend, XgrammarBackend):
        for texts, is_legal in ((legal, True), (illegal, False)):
            for text in texts:
                grammar = make(BYTES, [END]).compile_grammar(KIND, spec)
                took = grammar.accept_tokens("", [*text.encode(), END])
                assert took == is_legal, (make.__name__, text)


def test_the_older_form_is_triggered_tags() -> None:
    older = {"type": "structural_tag", "triggers": ["<f="], "structures": [
        {"begin": "<f=a>", "schema": P, "end": "</f>"},
        {"begin": "<f=b>", "schema": Q, "end": "</f>"}]}  # fmt: skip
    for make in (NativeBackend, XgrammarBackend):
        grammar = make(BYTES, [END]).compile_grammar(KIND, json.dumps(older))
        assert grammar.accept_tokens("", [*f"so {ONE}{TWO}.".encode(), END])
        grammar.reset()
        assert not grammar.accept_tokens("", [*b"<f=c>"])


@pytest.mark.parametrize("form, message", [
    ({"type": "x"}, "format has type 'x'; the formats are const_string"),
    ({"type": "tag", "begin": "a", "end": "b"}, "format: content is missing"),
    ({"type": "sequence", "elements": [schema(P), {}]}, "format.elements[1]: type is missing"),
    (schema({"type": "array", "uniqueItems": True}), "format: #: uniqueItems cannot be enforced"),
    (schema(7), "json_schema is 7; it must be of type object or true or false"),
    ({"type": "repeat", "min": 3, "max": 2, "content": word("x")}, "repeats from 3 to 2 times"),
    (TRIGGERED | {"triggers": ["<g="]}, "begins with '<f=a>'; exactly one of its triggers"),
    (TRIGGERED | {"triggers": ["<f=", "<"]}, "and 2 are"),
    ({"type": "any_text", "excludes": ["x" * 1001]}, "all at most 1,000"),
    ({"type": "regex", "pattern": "("}, "format: regex '('"),
])  # fmt: skip
def test_what_is_no_format_is_refused_with_its_place(form: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        compile_structural_tag(json.dumps({"type": "structural_tag", "format": form}))
    assert message in str(error.value)


@pytest.mark.parametrize("form, what", [
    ({"type": "token", "token": 3}, "'token'"), ({"type": "any_tokens"}, "'any_tokens'"),
    ({"type": "any_text", "max_tokens": 3}, "max_tokens"),
    (schema(P) | {"style": "qwen_xml"}, "'qwen_xml'"),
])  # fmt: skip
def test_what_only_the_library_follows_says_so(form: Any, what: str) -> None:
    params = StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": form})
    with pytest.raises(ValueError, match=f"{what} is supported by xgrammar only; run: pip install"):
        check_constraint(StructuredOutputsConfig(backend="native"), params)
    check_constraint(StructuredOutputsConfig(), params)  # xgrammar is here


def test_a_grammar_inside_is_checked_as_one_alone() -> None:
    """It is left recursive, so the library gets it, whose process it would end."""
    grammar = {"type": "grammar", "grammar": 'root ::= b "a"\nb ::= b{0,1}'}
    params = StructuredOutputsParams(
        structural_tag={"type": "structural_tag", "format": tag("<a>", grammar, "</a>")}
    )
    with pytest.raises(ValueError, match="rule 'b' consists of itself alone"):
        check_constraint(StructuredOutputsConfig(backend="xgrammar"), params)


def test_depth_is_a_sentence() -> None:
    form: dict[str, Any] = word("x")
    for _ in range(400):
        form = {"type": "optional", "content": form}
    deep = '{"format": ' + '{"content": ' * 5000 + "1" + "}" * 5001
    for spec in (deep, "[" * 100_000, json.dumps({"format": form})):
        try:
            compile_structural_tag(spec)
        except ValueError as error:
            assert "too deeply" in str(error)


def test_free_text_is_what_does_not_contain() -> None:
    draw = random.Random(0)
    for _ in range(60):
        excludes = ["".join(draw.choices("ab<", k=draw.randint(1, 4))) for _ in range(3)]
        compiler = _Compiler(lambda schema: {})
        compiler.rules["root"] = compiler.text("t", {}, excludes)
        pushdown = automaton(compiler.rules)
        for _ in range(60):
            text = "".join(draw.choices("ab<", k=draw.randint(0, 9)))
            assert accepts(pushdown, text) == (not any(e in text for e in excludes)), excludes
