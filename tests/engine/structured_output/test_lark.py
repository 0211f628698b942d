"""Grammars in Lark's notation: converted, or refused by the construct and its line."""

from __future__ import annotations

import pytest

from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.structured_output.ebnf import parse_grammar
from mini_vllm.structured_output.lark import convert_lark_to_ebnf, grammar_is_likely_lark
from mini_vllm.structured_output.native import NativeBackend, read_constraint
from mini_vllm.structured_output.token_index import TokenTable
from mini_vllm.structured_output.xgrammar import XgrammarBackend
from tests.engine.structured_output.walks import accepts, automaton

ARITHMETIC = """
    ?start: expression
    ?expression: term (("+" | "-") term)*
    ?term: factor (("*" | "/") factor)*
    ?factor: NUMBER
           | "-" factor
           | "(" expression ")"
    %import common.NUMBER
"""
JSON = r"""
    ?start: value
    ?value: object
          | array
          | ESCAPED_STRING
          | SIGNED_NUMBER      -> number
          | "true"             -> true   // only for the tree
          | "false"
          | "null"             # as this
    array  : "[" [value ("," value)*] "]"
    object : "{" [pair ("," pair)*] "}"
    pair   : ESCAPED_STRING ":" value
    %import common.ESCAPED_STRING
    %import common.SIGNED_NUMBER
    %import common.WS
    %ignore WS
"""
SQL = """
    start: select_statement
    select_statement: "SELECT"i " " column (", " column)~0..2 " from " TABLE ["." /[a-z]{2}/]
    column: "a".."c" ~ 2 | 'it"s' | "\\n\\x41"
    !TABLE.2: /t_[0-9]+/i
            | "all::=x"
"""
CASES = [
    (ARITHMETIC, ["1", "-1.5*(2+3)", "((7))"], ["", "1+", "1 + 2", "(1"]),
    (JSON, ['{"a": [1, true]}', "[]", '"x\\"y"', ' [ 1 , null ] '], ["[1,]", "{a:1}", "tru e"]),
    (SQL, ["sElEcT aa from t_1", "SELECT bc, it\"s, \nA from T_22.xy", "select cc from all::=x"],
     ["select a from t_1", "select aa, bb, cc, aa from t_1", "select aa from t_1.xyz"]),
    ("rule: 'hello'", ["hello"], ["rule"]),
    ("root: a\na: b\n?b: [x-z]+ | \"(\"", ["xyz", "("], ["", "a"]),
    ("start: a?\n?a: B{2}\nB: \"b\"", ["", "bb"], ["b"]),
    ("start: /((ab)[cd])*/", ["", "abcabd"], ["abcd"]),
]  # fmt: skip


@pytest.mark.parametrize("grammar, legal, illegal", CASES)
def test_a_grammar_says_what_lark_says(grammar: str, legal: list[str], illegal: list[str]) -> None:
    assert grammar_is_likely_lark(grammar)
    pushdown = automaton(read_constraint(StructuredOutputOptions.GRAMMAR, grammar))
    tokens = TokenTable([bytes([byte]) for byte in range(256)] + [b""])
    both = [backend(tokens, [256]) for backend in (NativeBackend, XgrammarBackend)]
    for text, is_legal in [*((t, True) for t in legal), *((t, False) for t in illegal)]:
        assert accepts(pushdown, text) == is_legal, text
        for backend in both:
            matcher = backend.compile_grammar(StructuredOutputOptions.GRAMMAR, grammar)
            assert matcher.accept_tokens("", [*text.encode(), 256]) == is_legal, (text, backend)


@pytest.mark.parametrize("grammar, message", [
    ("start: a{x}\na{x}: x", "line 1: a is a template"),
    ('start: "a"\n_sep{x, y}: x y', "line 2: _sep is a template"),
    ("start: a", "line 1: there is no rule or terminal 'a'; there are: start"),
    ("start: A\n\n%import python.A", "line 3: %import reads Lark's common terminals only"),
    ("start: A\n%import .other.A", "line 2: expected the name of a library, found '.'"),
    ("start: A\n%import common.AB", "line 2: common has no terminal 'AB'"),
    ("start: A\n%declare A", "line 2: %declare has no EBNF"),
    ("start: /a/\n%extend B: /b/", "line 2: %extend has no EBNF"),
    ("start: /(?=a)/", "line 1: regex '(?=a)' uses a lookaround"),
    ("start: /a.b/s", "line 1: the flag 's' of /a.b/s has no EBNF"),
    ("start: /a/\n     | /^a/", "line 2: /^a/ has a ^ or $, which EBNF does not have"),
    ("start: /a/\n\nA: /[^\\x00-\\U0010ffff]/", "line 3: /[^\\x00-\\U0010ffff]/ has a character"),
    ("start: a\n\n\na: [z-a]", "line 4: [z-a] has a range that runs backwards"),
    ("start: a\n\n\na: [a-z\\xq]", "line 4: \\xq is no hex escape"),
    ('start: a\n\n\na: "b"{3,1}', "line 4: {3,1} has more than it allows"),
    ('start: a\n\n\na: "b" ~ 3..1', "line 4: {3,1} has more than it allows"),
    ('start: ("a"', "line 1: expected ')', found its end"),
    ('start: "a"\nstart: "b"', "line 2: rule 'start' is there twice"),
    ('start: "a', "line 1: cannot read '\"a'"),
    ('start: "b".."a"', 'line 1: "b".."a" is no range'),
    ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "line 1: nests its groups too deeply"),
])  # fmt: skip
def test_what_has_no_ebnf_is_refused_with_its_line(grammar: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        convert_lark_to_ebnf(grammar)
    assert message in str(error.value)


def test_ebnf_is_no_lark() -> None:
    for grammar in ('root ::= "a:b"', "root ::= a # a: b\na ::= [:]", "words", ""):
        assert not grammar_is_likely_lark(grammar)


def test_the_first_line_is_the_root() -> None:
    assert convert_lark_to_ebnf("rule: 'hello'").splitlines()[0] == "root ::= rule"
    assert set(parse_grammar(convert_lark_to_ebnf("root: A\nA: /[^a]/"))) == {
        "root",
        "root-rule",
        "A",
    }
