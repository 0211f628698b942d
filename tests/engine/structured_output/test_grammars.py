"""Both backends: masks, advancing, taking back, ends; and their masks beside one another."""

from __future__ import annotations

import gc
import json
import random
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from mini_vllm import bundled
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.ebnf import parse_grammar
from mini_vllm.structured_output.native import NativeBackend, read_constraint
from mini_vllm.structured_output.patterns import NOTHING, Union, concat, one_of
from mini_vllm.structured_output.regex_automaton import check_size
from mini_vllm.structured_output.token_index import TokenTable, token_bytes
from mini_vllm.structured_output.xgrammar import XgrammarBackend, check_supported
from tests.engine.structured_output.keyword_table import NODE, PERSON, TREE
from tests.engine.structured_output.walks import accepts, automaton, blocked, cut, row_of

JSON, JSON_OBJECT, REGEX, CHOICE, GRAMMAR, *_ = StructuredOutputOptions
LETTERS = [bytes([byte]) for byte in range(ord("a"), ord("z") + 1)] + [b""]
EOS = 26


@pytest.fixture(scope="module")
def tokens() -> TokenTable:
    return TokenTable(token_bytes(load_tokenizer(bundled.path("storyteller")), 2048))


@pytest.fixture(params=["native", "xgrammar"])
def letters(request: pytest.FixtureRequest) -> StructuredOutputBackend:
    """A backend whose tokens are the letters."""
    if request.param == "xgrammar":
        pytest.importorskip("xgrammar")
        return XgrammarBackend(TokenTable(LETTERS), [EOS])
    return NativeBackend(TokenTable(LETTERS), [EOS])


def spelled(grammar: StructuredOutputGrammar) -> str:
    """The letters that the mask allows, and . for the end."""
    return "".join("abcdefghijklmnopqrstuvwxyz."[i] for i in np.flatnonzero(row_of(grammar, 27)))


def test_the_smallest_example(letters: StructuredOutputBackend) -> None:
    grammar = letters.compile_grammar(REGEX, "ab")
    assert spelled(grammar) == "a" and grammar.accept_tokens("", [0])
    assert spelled(grammar) == "b" and grammar.accept_tokens("", [1])
    assert spelled(grammar) == "." and not grammar.is_terminated()
    assert grammar.accept_tokens("", [EOS]) and grammar.is_terminated() and spelled(grammar) == ""
    assert not grammar.accept_tokens("", [0]) and not grammar.accept_tokens("", [EOS])
    grammar.rollback(1)
    assert not grammar.is_terminated() and spelled(grammar) == "."
    grammar.rollback(2)
    assert spelled(grammar) == "a"
    with pytest.raises(ValueError, match="cannot take 1 tokens back"):
        grammar.rollback(1)


def test_accepting_is_all_or_nothing(letters: StructuredOutputBackend) -> None:
    grammar = letters.compile_grammar(REGEX, "abcd")
    assert not grammar.accept_tokens("", [0, 1, 5]) and spelled(grammar) == "a"
    assert grammar.validate_tokens([0, 1, 5, 2]) == [0, 1] and spelled(grammar) == "a"
    assert grammar.accept_tokens("", [0, 1, 2, 3])
    assert grammar.validate_tokens([EOS, 0]) == [EOS]
    assert not grammar.accept_tokens("", [EOS, 0]) and not grammar.is_terminated()
    assert grammar.accept_tokens("", [EOS])
    grammar.reset()
    assert not grammar.is_terminated() and spelled(grammar) == "a"
    assert grammar.accept_tokens("", [0])


def test_the_end_only_where_the_text_may_end(letters: StructuredOutputBackend) -> None:
    grammar = letters.compile_grammar(REGEX, "(ab)*")
    assert spelled(grammar) == "a."
    grammar.accept_tokens("", [0])
    assert spelled(grammar) == "b" and not grammar.accept_tokens("", [EOS])


def test_grammars_of_one_constraint_do_not_share_their_place(
    letters: StructuredOutputBackend,
) -> None:
    first, second = (letters.compile_grammar(CHOICE, '["ab", "b"]') for _ in range(2))
    assert first.accept_tokens("", [0])
    assert spelled(first) == "b" and spelled(second) == "ab"


def test_taking_back_restores_every_mask(letters: StructuredOutputBackend) -> None:
    rng = random.Random(0)
    for pattern in ("(a|bc)*d?", "a{2,5}(b|c)", "(ab?c){3}"):
        grammar = letters.compile_grammar(REGEX, pattern)
        masks = [spelled(grammar)]
        for _ in range(12):
            legal = np.flatnonzero(row_of(grammar, 27)).tolist()
            if not legal:
                break
            assert grammar.accept_tokens("", [rng.choice(legal)])
            masks.append(spelled(grammar))
        while len(masks) > 1:
            count = rng.randint(1, min(3, len(masks) - 1))
            grammar.rollback(count)
            del masks[-count:]
            assert spelled(grammar) == masks[-1]


def test_a_bitmask_of_torch_is_filled_in_place(letters: StructuredOutputBackend) -> None:
    grammar = letters.compile_grammar(REGEX, "c")
    bitmask = letters.allocate_token_bitmask(3)
    assert bitmask.dtype == torch.int32 and tuple(bitmask.shape) == (3, 1)
    grammar.fill_bitmask(bitmask, 1)
    assert bitmask.flatten().tolist() == [-1, 4, -1]


# ---------------------------------------------------------------- completeness
CASES: list[tuple[StructuredOutputOptions, str, list[str]]] = [
    (REGEX, r"\d{4}-\d\d-\d\d", ["1815-12-10"]),
    (REGEX, "(日本|[ぁ-ん])+ é?", ["日本ひ é", "ん "]),
    (REGEX, "[^\\n]{3,9}", ["Adä 😀", "<|im_end|"[:9]]),
    (CHOICE, '["a\\nb", "quote \\" and \\\\", "日本"]', ["a\nb", 'quote " and \\', "日本"]),
    (JSON, json.dumps(PERSON), ['{"name": "Ada \\u00e9é\\n<|endoftext|>", "age": 36}',
                                '{"name":"","age":0,"tags":["a","bcd"]}']),
    (JSON, json.dumps(NODE), ['{"value": 1, "next": {"value": -20, "next": null}}']),
    (JSON, json.dumps(TREE), ['{"name": "x", "children": [{"name": "x", "children": []}]}']),
    (JSON_OBJECT, "", ['{"a": [1, {"b": null}], "c": "日本"}', "{}"]),
    (GRAMMAR, 'root ::= "(" root ")" | [a-z]+ (" " root)?', ["((ab))", "a b (c)"]),
]  # fmt: skip


@pytest.mark.parametrize("kind, spec, texts", CASES, ids=lambda value: str(value)[:30])
def test_every_way_to_cut_a_legal_text_stays_open(
    tokens: TokenTable, kind: StructuredOutputOptions, spec: str, texts: list[str]
) -> None:
    backend, rng = NativeBackend(tokens, [0, 2]), random.Random(1)
    for text in texts:
        for how in ("longest", "bytes", *["random"] * 4):
            grammar = backend.compile_grammar(kind, spec)
            path = cut(text.encode(), tokens, rng, how)
            assert not blocked(grammar, path, tokens.vocab_size), (text, how)
            row = row_of(grammar, tokens.vocab_size)
            assert row[0] and row[2] and not row[1], "the end: both EOS, no other special token"


def test_special_tokens_are_never_inside_a_string(tokens: TokenTable) -> None:
    for backend in (NativeBackend(tokens, [0, 2]), XgrammarBackend(tokens, [0, 2])):
        grammar = backend.compile_grammar(JSON, '{"type": "string"}')
        assert grammar.accept_tokens("", [tokens.texts.index(b'"')])
        row = row_of(grammar, tokens.vocab_size)
        assert not row[:3].any() and row[tokens.texts.index(b"a")]
        assert row[tokens.texts.index(b"<")], "but what they look like may be spelled"


# ---------------------------------------------------------------- beside xgrammar
COMMON: list[tuple[StructuredOutputOptions, str]] = [
    (REGEX, pattern)
    for pattern in [
        "abc", "(yes|no)", "[a-c]{2,4}", "(ab)*c+", "[0-9]{4}-[0-9]{2}", "a?b?c?", "x(y|z)*",
        "[A-Za-z ]{1,20}", "-?(0|[1-9][0-9]*)", "(a|b)*a(a|b)", r"\d+\.\d{2}", "é|日本", "[à-é]+",
        "a.c", "^x[^a]$", r"[^\n]\s", r"\x41a[\x41a]", r"[\^a]+", r"\012[\01\b]", r"\Z",
        "(ab[cd])*",
    ]
] + [(CHOICE, '["red", "green", "blue"]'), (CHOICE, '["a", "ab", "abc"]')] + [
    (JSON, json.dumps(schema))
    for schema in [
        {"type": "boolean"}, {"type": "null"}, {"type": "string"}, {"enum": ["a", 1, None]},
        {"type": "integer", "minimum": 98, "maximum": 1203}, {"const": "x y"},
        {"type": "array", "items": {"type": "boolean"}},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 3},
        {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}},
         "required": ["a", "b"], "additionalProperties": False},
        {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
         "required": ["a"], "additionalProperties": False},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]}, TREE,
        {"type": "object", "properties": {}},
    ]
] + [
    (GRAMMAR, 'root ::= "(" root ")" | "x"'),
    (GRAMMAR, 'root ::= item ("," item)*\nitem ::= [a-z]+'),
    (GRAMMAR, 'root ::= ("\\x41a" [^a\\x41b] | "\\.")+ x\nx ::= ("b" ("" "c") [\\a])*'),
]  # fmt: skip


@pytest.mark.parametrize("kind, spec", COMMON, ids=lambda value: str(value)[:40])
def test_masks_equal_those_of_xgrammar(
    tokens: TokenTable, kind: StructuredOutputOptions, spec: str
) -> None:
    pytest.importorskip("xgrammar")
    layout = {"any_whitespace": False}
    ours = NativeBackend(tokens, [0, 2], **layout)
    theirs = XgrammarBackend(tokens, [0, 2], **layout)
    rng = random.Random(spec)
    for _ in range(6):
        grammars = ours.compile_grammar(kind, spec), theirs.compile_grammar(kind, spec)
        for _ in range(25):
            mine, others = (row_of(grammar, tokens.vocab_size) for grammar in grammars)
            differing = np.flatnonzero(mine != others)
            assert not len(differing), [(int(t), tokens.texts[t]) for t in differing[:5]]
            token = int(rng.choice(np.flatnonzero(mine).tolist()))
            assert all(grammar.accept_tokens("", [token]) for grammar in grammars)
            if grammars[0].is_terminated():
                assert grammars[1].is_terminated()
                break


@pytest.mark.parametrize("kind, spec, word", [
    (REGEX, "(a", "missing )"), (REGEX, "a^b", "has a ^ or $"), (REGEX, "x(a|^b)", "has a ^ or $"),
    (JSON, '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    (JSON, '{"maxLength": 2}', "maxLength"), (JSON, '{"type": ["string", "null"]}', "type"),
    (JSON, '{"type": "string", "pattern": "a"}', "pattern"), (JSON, '{"allOf": [{}]}', "allOf"),
    (JSON, '{"type": "string", "format": "date"}', "format"),
    (JSON, '{"type": "string", "maxLength": 12}', "maxLength"),
    (JSON, '{"type": "array", "items": {"type": "string", "minLength": 1}}', "minLength"),
    (JSON, "[1]", "must be an object"),
    (JSON, '{"properties": {"a": {"oneOf": [{"type": "null"}]}}, "type": "object"}', "oneOf"),
    (JSON, '{"type": "integer", "anyOf": [{"type": "string"}, {"type": "integer"}]}', "type"),
    (JSON, '{"type": "string", "enum": [1, "a"]}', "type"),
    (JSON, '{"$ref": "#/default", "default": {"maxLength": 2}}', "maxLength"),
    (JSON, '{"type": "object", "required": ["a"]}', "required"),
    (JSON, '{"type": "array", "maxItems": 2}', "items may not"),
    (JSON, '{"type": "object", "properties": {"a": {}}, "additionalProperties": true}', "additio"),
])  # fmt: skip
def test_what_xgrammar_would_weaken_is_refused(
    kind: StructuredOutputOptions, spec: str, word: str
) -> None:
    with pytest.raises(ValueError) as error:
        check_supported(kind, spec)
    assert word in str(error.value)


@pytest.mark.parametrize("kind, spec", [
    (REGEX, r"^a\.b\$$"), (REGEX, r"\\s"), (JSON, '{"type": "object"}'),
    (JSON, '{"type": "object", "properties": {"a": {}}, "additionalProperties": false}'),
])  # fmt: skip
def test_what_xgrammar_enforces_is_left_to_it(kind: StructuredOutputOptions, spec: str) -> None:
    check_supported(kind, spec)


@pytest.mark.parametrize(
    "rules", ["b ::= (b){0,1}", "b ::= c{0,1}\nc ::= (b){0,2}", 'b ::= ("" b){0,1}']
)
def test_a_rule_that_is_itself_alone_is_not_left_to_xgrammar(rules: str) -> None:
    """The library would overflow its stack and end the process."""
    with pytest.raises(ValueError, match="rule 'b' consists of itself alone"):
        check_supported(StructuredOutputOptions.GRAMMAR, f'root ::= b "a"\n{rules}')
    check_supported(StructuredOutputOptions.GRAMMAR, 'root ::= root "x" | "a" root{0,1}')


def test_open_objects_are_not_left_to_xgrammar() -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "null"}}}'
    check_supported(JSON, schema)
    with pytest.raises(ValueError, match="additionalProperties may not be enforced"):
        check_supported(JSON, schema, close_objects=False)


@pytest.mark.parametrize("where", ["$defs", "definitions"])
def test_xgrammar_is_asked_about_definitions_too(where: str) -> None:
    schema = {"$ref": f"#/{where}/x", where: {"x": {"type": "string", "minLength": 2}}}
    with pytest.raises(ValueError, match=re.escape(f"#/{where}/x: minLength may not be enforced")):
        check_supported(StructuredOutputOptions.JSON, json.dumps(schema))


# ---------------------------------------------------------------- grammars as text
def test_what_a_grammar_can_say() -> None:
    walk = automaton(parse_grammar(r'''
        # a list of key = value
        root  ::= pair ("," ws pair){0,2}
        pair  ::= key ws "=" ws (number | "\"" [^"\\\n]* "\"") | "\x41\u00e9\\"
        key   ::= [a-z_-] [a-z0-9_]*
        number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
        ws ::= " "?
    '''))  # fmt: skip
    for text, legal in {"a=1": True, 'a_1 = "é"': True, "a=1, b=-2.5": True, "-=0": True,
                        "Aé\\": True, "a=01": False, "a=1,b=1,c=1,d=1": False,
                        "1=a": False}.items():  # fmt: skip
        assert accepts(walk, text) == legal, text


@pytest.mark.parametrize("source, message", [
    ("", "blank"), ('x ::= "a"', "no rule 'root'"), ("root ::= a", "line 1: there is no rule 'a'"),
    ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is there twice"),
    ('root ::= ("a"', "never closed"),
    ('start: "a"', "cannot read"), ('root ::= "a', "cannot read"), ("root ::= [z-a]", "backwards"),
    ('root ::= "a"{3,1}', "more than it allows"), ('root "a"', "expected ::="),
    ('root ::= "\\x4"', "no hex escape"), ("root ::= [\\d]", r"\\d is no escape"),
    ('root ::= [\\UFFFFFFFF]', "is no character"),
    ("root ::= " + "(" * 3000, "too deeply"),
])  # fmt: skip
def test_what_is_no_grammar(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", "\\[")):
        parse_grammar(source)


@pytest.mark.parametrize("source, message", [
    ('root ::= root "a" | "b"', "left recursion in 'root'"),
    ('root ::= a\na ::= b "x" | "y"\nb ::= "" a', "left recursion"),
    ('root ::= a\na ::= "x" a', "no text matches"), ('root ::= [a-z]{30000}', "needs more than"),
])  # fmt: skip
def test_grammars_that_cannot_be_followed(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        automaton(parse_grammar(source))


def test_a_rule_that_ends_in_itself_needs_no_stack() -> None:
    walk = automaton(parse_grammar('root ::= "a" root | ""'))
    state = walk.start
    for _ in range(5_000):
        state = walk.next(state, ord("a"))
    assert len(walk) <= 2


def test_brackets_are_counted_however_deep() -> None:
    walk = automaton(parse_grammar('root ::= "(" root ")" | "x"'))
    assert accepts(walk, "(" * 900 + "x" + ")" * 900)
    assert not accepts(walk, "(" * 900 + "x" + ")" * 899)


def test_a_byte_that_no_token_has_is_named() -> None:
    with pytest.raises(ValueError, match="the vocabulary has no token with byte 0x00"):
        NativeBackend(TokenTable(LETTERS), [EOS]).compile_grammar(REGEX, "日")


def test_compiled_grammars_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = NativeBackend(TokenTable(LETTERS), [EOS])
    assert backend.compile_grammar(REGEX, "a+").index is backend.compile_grammar(REGEX, "a+").index
    monkeypatch.setattr("mini_vllm.structured_output.native.MAX_CACHE_BYTES", 200_000)
    for number in range(50):
        backend.compile_grammar(REGEX, f"a{{{number}}}")
    sizes = [index.nbytes for index in backend._indexes.values()]
    assert 1 <= len(sizes) < 50 and sum(sizes) < 200_000 + max(sizes)


def test_what_a_grammar_takes_is_counted_whole() -> None:
    """Of a long one the automata of its rules are the most, before they are walked."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index = NativeBackend(TokenTable(LETTERS), [EOS]).compile_grammar(REGEX, "a{2000}").index
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / 2 < index.nbytes < 2 * taken


def test_the_librarys_cache_is_emptied_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgrammar")
    monkeypatch.setattr("mini_vllm.structured_output.xgrammar.MAX_COMPILED", 3)
    backend = XgrammarBackend(TokenTable(LETTERS), [EOS])
    sizes = []
    for number in range(1, 7):
        backend.compile_grammar(REGEX, f"a{{{number}}}")
        sizes.append(backend.compiler.get_cache_size_bytes())
    assert sizes[0] < sizes[1] and sizes[2] < sizes[1] and sizes[5] == sizes[2]


def test_the_library_may_not_take_long_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgrammar")
    grammar = XgrammarBackend(TokenTable(LETTERS), [EOS]).compile_grammar(REGEX, "ab")
    assert grammar.accept_tokens("", [0]) and spelled(grammar) == "b"
    monkeypatch.setattr("mini_vllm.structured_output.xgrammar.MAX_SECONDS", -1.0)
    with pytest.raises(
        ValueError, match=r"too ambiguous: .* behind 1 tokens took .* \(limit: -1 s"
    ):
        spelled(grammar)


def test_names_of_the_interface() -> Any:
    assert {option.value for option in StructuredOutputOptions} == {
        "json", "json_object", "regex", "choice", "grammar", "structural_tag",
        "json without white space", "all texts",
    }  # fmt: skip


def test_one_of_many_texts_shares_beginnings() -> None:
    words = ["card", "care", "cat", "", "care", "dog", "caret"]
    walk = automaton({"root": one_of(words)})
    assert {word for word in [*words, "car", "ca", "d", "carets"] if accepts(walk, word)} == {
        *words
    }
    assert check_size(one_of(words)) < check_size(Union(tuple(map(concat, words))))
    assert accepts(automaton({"root": one_of([""])}), "") and one_of([]) == NOTHING


def test_too_many_choices_are_refused_at_once() -> None:
    choices = json.dumps([f"choice number {number}" for number in range(20_000)])
    with pytest.raises(ValueError, match=r"20,000 texts of .* characters.*at most 100,000"):
        read_constraint(StructuredOutputOptions.CHOICE, choices)
