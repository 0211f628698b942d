"""Grammars in Lark's notation, converted to EBNF.

::

    ?start: sum                                root ::= start
    sum: NUMBER ("+" NUMBER)*        ->        start ::= sum
    %import common.NUMBER                      sum ::= NUMBER ("+" NUMBER)*
                                               NUMBER ::= [0-9]+ ...

The start rule is `start`, or else the first rule. Marks that only shape a parse tree (`?`, `!`,
`->`, priorities) are dropped. After each terminal in a rule, one text of an `%ignore` terminal may
follow. Features without an EBNF form are refused by name, with their line.

Source: vllm/v1/structured_output/utils.py#L321-L448 (convert_lark_to_ebnf) @ v0.22.1;
https://lark-parser.readthedocs.io/en/stable/grammar.html
"""

from __future__ import annotations

import re

from mini_vllm.structured_output.ebnf import (
    Token,
    TokenReader,
    char_class,
    characters,
    error_at,
    grouped_ebnf,
    written_as_ebnf,
)
from mini_vllm.structured_output.patterns import (
    Chars,
    Concat,
    Pattern,
    chars,
    mapped,
    parse_regex,
)

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"i?|'(?:[^'\\\n]|\\.)*'i?)
      | (?P<regex>/(?:[^/\\\n]|\\.)+/[a-z]*)
      | (?P<chars>\[(?=[^\]\s"'/]*[-^\\])(?:[^\]\\\s"'/]|\\.)*\])
      | (?P<directive>%[A-Za-z_]+)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<repeat>[*+?]|\{\d+(?:,\d*)?\})
      | (?P<number>\d+)
      | (?P<mark>->|\.\.|[:|()\[\]{}~!.,])""",
    re.VERBOSE,
)
_LITERALS = re.compile(r"""//[^\n]*|\#[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")
_DECIMAL = r"([0-9]+\.[0-9]*|\.[0-9]+)"
_FLOAT = rf"([0-9]+[eE][+-]?[0-9]+|{_DECIMAL}([eE][+-]?[0-9]+)?)"
COMMON = {
    "DIGIT": "[0-9]", "HEXDIGIT": "[0-9a-fA-F]", "INT": "[0-9]+", "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": _DECIMAL, "FLOAT": _FLOAT, "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"({_FLOAT}|[0-9]+)", "SIGNED_NUMBER": f"[+-]?({_FLOAT}|[0-9]+)",
    "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"', "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]", "WORD": "[A-Za-z]+", "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+", "WS": r"[ \t\f\r\n]+", "CR": r"\r", "LF": r"\n",
    "NEWLINE": r"(\r?\n)+", "SH_COMMENT": r"#[^\n]*", "CPP_COMMENT": r"//[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
}  # fmt: skip
"""Lark's own terminals, for `%import common.NAME`, as regular expressions."""
_IGNORED = "_ignored"


def grammar_is_likely_lark(grammar: str) -> bool:
    """Whether rules are written `name: ...`, and none `name ::= ...`.

    Source: vllm/v1/structured_output/utils.py#L289-L318 (grammar_is_likely_lark) @ v0.22.1
    """
    bare = _LITERALS.sub("", grammar)
    return ":" in bare and "::=" not in bare


def as_ebnf(grammar: str) -> str:
    """The grammar in the notation of `ebnf.parse_grammar`, from there or from Lark's."""
    return convert_lark_to_ebnf(grammar) if grammar_is_likely_lark(grammar) else grammar


def convert_lark_to_ebnf(grammar: str) -> str:
    """The EBNF of a Lark grammar: a line `name ::= ...` for each rule, `root` first.

    Raises:
        ValueError: with the line, for text that is not Lark, undefined names, and features that
            EBNF does not have: templates, imports of files, flags, lookarounds and others.

    >>> print(convert_lark_to_ebnf("rule: 'hello'"))
    root ::= rule
    rule ::= "hello"
    """
    converter = _Converter(grammar)
    try:
        return converter.convert()
    except RecursionError:
        line = converter.next_token.line
        message = "nests its groups too deeply; give the inner ones names"
        raise error_at(line, message) from None


class _Converter(TokenReader):
    """Recursive descent, as in `ebnf`; each method returns the EBNF of what it has read."""

    def __init__(self, grammar: str) -> None:
        super().__init__(grammar, _TOKEN, ", which is no Lark")
        self._rules: dict[str, str] = {}
        self._called: dict[str, int] = {}
        self._ignored: list[str] = []
        self._in_terminal = False
        self._ignores = any(token.text == "%ignore" for token in self._tokens)

    def convert(self) -> str:
        while (token := self.next_token).kind != "end":
            if token.kind == "directive":
                self._directive()
            else:
                self._rule()
        if self._ignores:
            self._rules[_IGNORED] = f"({' | '.join(self._ignored)})?"
        for name, line in self._called.items():
            if name not in self._rules:
                known = ", ".join(self._rules)
                raise error_at(line, f"there is no rule or terminal {name!r}; there are: {known}")
        if not self._rules:
            raise ValueError("grammar has no rule; write one, as in start: ...")
        first = "start" if "start" in self._rules else next(iter(self._rules))
        space = f"{_IGNORED} " if self._ignores else ""
        lines = [f"{_ebnf_name(name)} ::= {body}" for name, body in self._rules.items()]
        return "\n".join([f"root ::= {space}{_ebnf_name(first)}", *lines])

    # ------------------------------------------------------------ statements
    def _rule(self) -> None:
        """`name: choices`; marks for the parse tree may stand before and after the name."""
        while self._skip("?", "!"):
            pass
        name = self._take("name", "the name of a rule")
        if self.next_token.text == "{":
            raise error_at(name.line, f"{name.text} is a template; write it out for each use")
        if self._skip("."):
            self._take("number", "a priority")
        self._expect(":")
        if name.text in self._rules:
            raise error_at(name.line, f"rule {name.text!r} is there twice")
        self._in_terminal = name.text.lstrip("_").isupper()
        self._rules[name.text] = self._choices()
        if not (token := self.next_token).is_first and token.kind != "end":
            raise error_at(token.line, f"cannot read {token.text!r} here")

    def _directive(self) -> None:
        directive = self._tokens[self._at]
        self._at += 1
        if directive.text == "%import":
            self._import(directive.line)
        elif directive.text == "%ignore":
            self._in_terminal = True
            self._ignored.append(self._choices())
        else:
            raise error_at(directive.line, f"{directive.text} has no EBNF; write the rules out")

    def _import(self, line: int) -> None:
        """`%import common.NAME`, `%import common.NAME -> OTHER`, or `%import common (A, B)`."""
        library = self._take("name", "the name of a library").text
        if library != "common" or self.next_token.text not in (".", "("):
            raise error_at(line, "%import reads Lark's common terminals only, as in "
                         "%import common.NUMBER; write other rules out")  # fmt: skip
        is_list = self._tokens[self._at].text == "("
        self._at += 1
        names = [self._take("name", "the name of a terminal").text]
        while is_list and self._skip(","):
            names.append(self._take("name", "the name of a terminal").text)
        if is_list:
            self._expect(")")
        alias = names[0]
        if not is_list and self._skip("->"):
            alias = self._take("name", "the new name").text
        for name in names:
            if name not in COMMON:
                raise error_at(
                    line, f"common has no terminal {name!r}; it has: {', '.join(COMMON)}"
                )
            self._rules[name if is_list else alias] = written_as_ebnf(parse_regex(COMMON[name]))

    # ------------------------------------------------------------ what a rule says
    def _choices(self) -> str:
        choices = [self._sequence()]
        while self._skip("|"):
            choices.append(self._sequence())
        return " | ".join(choices)

    def _sequence(self) -> str:
        parts: list[str] = []
        while not self._ends_sequence():
            parts.append(self._repeated(self._item()))
        if self.next_token.text == "->" and not self.next_token.is_first:
            self._at += 1
            self._take("name", "the name of a branch")
        return " ".join(parts) or '""'

    def _ends_sequence(self) -> bool:
        token = self.next_token
        is_item = token.kind in ("name", "string", "regex", "chars") or token.text in ("(", "[")
        return not is_item or (token.is_first and self._begins_rule())

    def _begins_rule(self) -> bool:
        behind = self._tokens[self._at + 1 :][:1]
        return self.next_token.kind == "name" and behind[0].text in (":", ".", "{")

    def _item(self) -> str:
        token = self._tokens[self._at]
        self._at += 1
        if token.text in ("(", "["):
            inner = self._choices()
            self._expect(")" if token.text == "(" else "]")
            return f"({inner})" + ("?" if token.text == "[" else "")
        if token.kind == "name":
            if self.next_token.text == "{":
                raise error_at(token.line, f"{token.text} is a template; write it out")
            self._called.setdefault(token.text, token.line)
            name = _ebnf_name(token.text)
            return self._terminal(name) if token.text.lstrip("_").isupper() else name
        pattern = self._pattern(token)
        try:
            return self._terminal(grouped_ebnf(pattern))
        except ValueError as error:
            raise error_at(token.line, f"{token.text} {error}") from None

    def _terminal(self, ebnf: str) -> str:
        """A terminal; in a rule, ignored text may follow it."""
        return f"({ebnf} {_IGNORED})" if self._ignores and not self._in_terminal else ebnf

    def _pattern(self, token: Token) -> Pattern:
        if token.kind == "chars":
            return char_class(token.text[1:-1], token.line)
        if token.kind == "regex":
            body, _, flags = token.text[1:].rpartition("/")
            if other := set(flags) - {"i", "u", "m"}:
                raise error_at(token.line, f"the flag {min(other)!r} of {token.text} has no EBNF; "
                             "write the expression without")  # fmt: skip
            try:
                pattern = parse_regex(body.replace(r"\/", "/"))
            except ValueError as error:
                raise error_at(token.line, str(error)) from None
            return _any_case(pattern) if "i" in flags else pattern
        codes = self._codes(token)
        if self._skip(".."):
            last = self._take("string", "the last character of a range")
            ends = codes + self._codes(last)
            if len(ends) != 2 or ends[0] > ends[1]:
                raise error_at(token.line, f"{token.text}..{last.text} is no range of characters")
            return chars([(ends[0], ends[1])])
        text = Concat(tuple(chars([(code, code)]) for code in codes))
        return _any_case(text) if token.text.endswith("i") else text

    @staticmethod
    def _codes(token: Token) -> list[int]:
        body = token.text.removesuffix("i")[1:-1]
        return [code for code, _ in characters(body, token.line)]

    def _repeated(self, item: str) -> str:
        while not (token := self.next_token).is_first and (
            token.kind == "repeat" or token.text == "~"
        ):
            self._at += 1
            times = token.text
            if times == "~":
                low = high = self._take("number", "how often").text
                if self._skip(".."):
                    high = self._take("number", "how often at most").text
                times = f"{{{low},{high}}}"
            low, _, high = times.strip("{}").partition(",")
            if high and int(high) < int(low):
                raise error_at(token.line, f"{times} has more than it allows")
            item = f"({item}){times}" if item[-1] in "*+?}" else item + times
        return item


def _ebnf_name(name: str) -> str:
    """The name in EBNF, where `root` is the name of the start rule."""
    return "root-rule" if name == "root" else name


def _any_case(pattern: Pattern) -> Pattern:
    """`pattern` with each ASCII letter in both cases."""

    def both_cases(leaf: Pattern) -> Pattern:
        if not isinstance(leaf, Chars):
            return leaf
        more = []
        for low, high in leaf.ranges:
            for first, last, step in ((65, 90, 32), (97, 122, -32)):
                if (a := max(low, first)) <= (b := min(high, last)):
                    more.append((a + step, b + step))
        return chars([*leaf.ranges, *more])

    return mapped(pattern, both_cases)
