"""Grammars as text: `name ::= ...`, a dialect of GBNF, as vLLM takes them.

    root   ::= "SELECT " column ("," ws column)* " FROM " [a-z]+      # a comment
    column ::= [a-z_] [a-z0-9_]{0,30}
    ws     ::= " "?

Literals in double quotes, classes in brackets, groups, `|`, `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mini_vllm.structured_output.patterns import (
    MAX_CODE_POINT,
    Anchor,
    Call,
    Chars,
    Concat,
    Pattern,
    Range,
    Repeat,
    Rules,
    Union,
    any_but,
    chars,
)

MAX_GRAMMAR_LENGTH = 100_000
"""Most characters of a grammar."""
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<name>[A-Za-z_][\w.-]*)
      | (?P<defines>::=)
      | (?P<literal>"(?:[^"\\\n]|\\.)*")
      | (?P<chars>\[(?:[^\]\\\n]|\\.)*\])
      | (?P<repeat>[*+?]|\{\d+(?:,\d*)?\})
      | (?P<mark>[()|])""",
    re.VERBOSE,
)
_HINT = '; rules are written name ::= "literal" [a-z] (group)* other-rule'
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "f": "\f", "b": "\b", "v": "\v", "a": "\a",
            "e": "\x1b"}  # fmt: skip
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int
    is_first: bool  # of its line


class TokenReader:
    """Reads the tokens of a grammar one after the other; the base of both parsers.

    Args:
        forms: one named group for each kind of token; those of the kind "space" are skipped.
        hint: the end of the message about a text that is no token.
    """

    def __init__(self, source: str, forms: re.Pattern[str], hint: str) -> None:
        self._tokens = list(_scan(source, forms, hint))
        self._at = 0

    @property
    def next_token(self) -> Token:
        return self._tokens[self._at]

    def _take(self, kind: str, wanted: str) -> Token:
        """The next token, which must be of this kind; `wanted` describes it in the message."""
        token = self.next_token
        if token.kind != kind:
            raise _not_found(wanted, token)
        self._at += 1
        return token

    def _skip(self, *marks: str) -> bool:
        """Whether one of `marks` comes next; if so, it is read."""
        is_next = self.next_token.text in marks
        self._at += is_next
        return is_next

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise _not_found(repr(mark), self.next_token)


def error_at(line: int, message: str) -> ValueError:
    return ValueError(f"grammar line {line}: {message}")


def _not_found(wanted: str, token: Token) -> ValueError:
    found = repr(token.text) if token.text else "its end"
    return error_at(token.line, f"expected {wanted}, found {found}")


def _scan(source: str, forms: re.Pattern[str], hint: str) -> Iterator[Token]:
    position, line, last = 0, 1, 0
    while position < len(source):
        found = forms.match(source, position)
        if found is None:
            rest = source[position : position + 20].split("\n")[0]
            raise error_at(line, f"cannot read {rest!r}{hint}")
        if found.lastgroup != "space":
            yield Token(found.lastgroup or "", found[0], line, line != last)
            last = line
        line += found[0].count("\n")
        position = found.end()
    yield Token("end", "", line, True)


def parse_grammar(source: str) -> Rules:
    """Read the rules of a grammar; it begins with the rule `root`.

    Raises:
        ValueError: with the line, for text that cannot be read, a call of a rule that is not
            defined, a rule that is defined twice, and a grammar without `root`.
    """
    if not source.strip():
        raise ValueError("grammar is blank; write at least a rule root ::= ...")
    if len(source) > MAX_GRAMMAR_LENGTH:
        raise ValueError(
            f"grammar has {len(source):,} characters; at most {MAX_GRAMMAR_LENGTH:,} are compiled; "
            "shorten it"
        )
    try:
        return _Parser(source).rules()
    except RecursionError:
        raise ValueError("grammar nests its groups too deeply; give the inner ones names") from None


class _Parser(TokenReader):
    """Recursive descent: alternatives of sequences of items with repeats."""

    def __init__(self, source: str) -> None:
        super().__init__(source, _TOKEN, _HINT)
        self._called: dict[str, int] = {}

    def rules(self) -> Rules:
        rules: Rules = {}
        while self.next_token.kind != "end":
            name = self._take("name", "the name of a rule")
            if name.text in rules:
                raise error_at(name.line, f"rule {name.text!r} is there twice")
            self._take("defines", "::=")
            rules[name.text] = self._choices()
        for called, line in self._called.items():
            if called not in rules:
                known = ", ".join(rules)
                raise error_at(line, f"there is no rule {called!r}; the rules are: {known}")
        if "root" not in rules:
            raise ValueError(
                f"grammar has no rule 'root', where it would begin; it has: {', '.join(rules)}"
            )
        return rules

    def _choices(self) -> Pattern:
        choices = [self._sequence()]
        while self._skip("|"):
            choices.append(self._sequence())
        return choices[0] if len(choices) == 1 else Union(tuple(choices))

    def _sequence(self) -> Pattern:
        parts: list[Pattern] = []
        while (token := self.next_token).kind in ("name", "literal", "chars") or token.text == "(":
            if token.kind == "name" and self._tokens[self._at + 1].kind == "defines":
                break  # the next rule
            parts.append(self._repeated(self._item()))
        return Concat(tuple(parts))

    def _item(self) -> Pattern:
        token = self._tokens[self._at]
        self._at += 1
        if token.kind == "name":
            self._called.setdefault(token.text, token.line)
            return Call(token.text)
        if token.kind == "literal":
            codes = characters(token.text[1:-1], token.line)
            return Concat(tuple(chars([(code, code)]) for code, _ in codes))
        if token.kind == "chars":
            return char_class(token.text[1:-1], token.line)
        inner = self._choices()
        if not self._skip(")"):
            raise error_at(token.line, "this ( is never closed")
        return inner

    def _repeated(self, item: Pattern) -> Pattern:
        while (token := self.next_token).kind == "repeat":
            self._at += 1
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(token.text, (0, 0))
            if token.text[0] == "{":
                first, comma, last = token.text[1:-1].partition(",")
                low = int(first)
                high = int(last) if last else None if comma else low
            if high is not None and high < low:
                raise error_at(token.line, f"{token.text} has more than it allows")
            item = Repeat(item, low, high)
        return item


def characters(body: str, line: int) -> list[tuple[int, bool]]:
    """`(code point, whether it was escaped)` of each character of a literal or class."""
    result: list[tuple[int, bool]] = []
    position = 0
    while position < len(body):
        char = body[position]
        position += 1
        if char != "\\":
            result.append((ord(char), False))
            continue
        escape = body[position]
        position += 1
        if escape.isalnum() and escape not in _ESCAPES | _HEX_DIGITS:
            raise error_at(line, f"\\{escape} is no escape; write out its characters")
        code = ord(_ESCAPES.get(escape, escape))
        if escape in _HEX_DIGITS:
            digits = body[position : position + _HEX_DIGITS[escape]]
            position += len(digits)
            if not re.fullmatch("[0-9A-Fa-f]+", digits) or len(digits) < _HEX_DIGITS[escape]:
                raise error_at(line, f"\\{escape}{digits} is no hex escape")
            code = int(digits, 16)
            if code > MAX_CODE_POINT:
                raise error_at(line, f"\\{escape}{digits} is no character")
        result.append((code, True))
    return result


def written_as_ebnf(pattern: Pattern) -> str:
    """A pattern in this notation.

    Raises:
        ValueError: for an anchor, and for a class without characters. The message has no line
            number; the caller adds it.
    """
    match pattern:
        case Call(rule):
            return rule
        case Chars(ranges) if ranges:
            return "[" + "".join(map(_written_range, ranges)) + "]"
        case Concat(parts):
            if all(map(_is_one_character, parts)):
                return '"' + "".join(_written(part.ranges[0][0]) for part in parts) + '"'  # type: ignore[union-attr]
            return " ".join(map(grouped_ebnf, parts))
        case Union(choices):
            return " | ".join(map(grouped_ebnf, choices))
        case Repeat(part, low, high):
            times = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get(
                (low, high), f"{{{low},{'' if high is None else high}}}"
            )
            return grouped_ebnf(part) + times
        case Anchor():
            raise ValueError("has a ^ or $, which EBNF does not have; leave it out")
    raise ValueError("has a character class without characters; remove it, or add some")


def grouped_ebnf(pattern: Pattern) -> str:
    """`written_as_ebnf` as one item: in brackets, unless it is a class, a literal or a call."""
    text = written_as_ebnf(pattern)
    is_literal = isinstance(pattern, Concat) and all(map(_is_one_character, pattern.parts))
    return text if is_literal or isinstance(pattern, Chars | Call) else f"({text})"


def _is_one_character(pattern: Pattern) -> bool:
    return isinstance(pattern, Chars) and [low == high for low, high in pattern.ranges] == [True]


def _written(code: int) -> str:
    """A character of a literal or class; characters with a special meaning are written as hex."""
    is_plain = 0x20 <= code < 0x7F and chr(code) not in '"\\[]^-'
    return chr(code) if is_plain else f"\\U{code:08x}"


def _written_range(ends: Range) -> str:
    low, high = ends
    return _written(low) if low == high else f"{_written(low)}-{_written(high)}"


def char_class(body: str, line: int) -> Chars:
    """The characters of `a-z0-9`, or with a leading ^ all others."""
    negated = body.startswith("^")
    items = characters(body[negated:], line)
    ranges: list[Range] = []
    while items:
        low = items.pop(0)[0]
        high = low
        if len(items) >= 2 and items[0] == (ord("-"), False):
            high = items[1][0]
            items = items[2:]
        if high < low:
            raise error_at(line, f"[{body}] has a range that runs backwards")
        ranges.append((low, high))
    return any_but(ranges) if negated else chars(ranges)
