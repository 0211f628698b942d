"""An incremental JSON parser: how far an object is written, and where its members are.

::

    {"name": "f", "arguments": {"note": "a } in a string", "n": [1, 2
     └ name: whole ┘└ arguments: begun, and valid as far as it is written

Each character is read once, and its meaning depends only on the characters before it. So an object
in several pieces gives the same result as in one piece.

JSON allows no control characters in strings. Models write them anyway, above all line ends in code,
and the meaning is clear: they are read as if they were written as escapes.

Source: RFC 8259 (the grammar of JSON). vLLM's Hermes parser splits a call by regular expressions.
Its other parsers use the package ``partial_json_parser``, which gives values, but not where they
are in the text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

SPACE = " \t\n\r"
VALUE = '"{[-0123456789tfn'
"""Characters with which a value may begin."""
_ATOM = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_ATOM_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzE+-.0123456789")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = frozenset("0123456789abcdefABCDEF")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
"""A JSON string, which may have no end yet."""
_CONTROL = re.compile(r"[\x00-\x1f]")
_PART = re.compile(r"\\.|[\x00-\x1f]", re.DOTALL)


@dataclass
class Member:
    """Where the value of a member is in the object's text; ``end`` is None until it is read."""

    start: int
    end: int | None = None


def _escape_of(character: str) -> str:
    return json.dumps(character)[1:-1]


def _growth(escape: tuple[int, str]) -> int:
    return len(_escape_of(escape[1])) - 1


class ObjectReader:
    """Reads one object, each character once.

    Attributes:
        text: the text read so far, with the white space before the object, as valid JSON: control
            characters in strings are replaced by escapes.
        members: of the object itself, by key. Of two members with one key the first counts: a
            stream may have sent it before the second is read.
        is_whole: the closing brace of the object has been read.
        is_broken: the next character is not valid JSON at this place.
    """

    def __init__(self, text: str = "") -> None:
        self.text = ""
        self._escapes: list[tuple[int, str]] = []  # place of each replaced character, and which
        self.members: dict[str, Member] = {}
        self.is_whole = self.is_broken = False
        self._allowed = "{"  # characters that may follow, outside strings and atoms
        self._open: list[str] = []  # the braces and brackets that are not closed yet
        self._inside = ""  # "key", "text" or "atom" while one of them is being read
        self._start = 0  # where it begins
        self._escape = 0  # state of an escape: 5 after its backslash, then 4 to 1 hex digits left
        self._member = Member(0)
        self._key = ""
        self.read(text)

    def read(self, text: str) -> str:
        """Read more text. Returns the text after the object, or from the invalid character on."""
        place, begin, before = 0, len(self.text), len(self._escapes)
        plain = self._with_escapes(text) if _CONTROL.search(text) else text
        self.text += plain
        while place < len(plain) and not (self.is_whole or self.is_broken):
            is_plain = self._inside in ("key", "text") and not self._escape
            if is_plain and (run := _PLAIN.match(plain, place)):
                place = run.end()
            elif self._take(plain[place], begin + place):
                place += 1
            else:
                self.is_broken = True
                break
        self.text = self.text[: begin + place]
        while self._escapes and self._escapes[-1][0] >= begin + place:
            self._escapes.pop()  # after the object
        return text[place - sum(map(_growth, self._escapes[before:])) :]

    @property
    def written(self) -> str:
        """The original text read so far, with the white space before the object."""
        pieces, end = [], 0
        for place, character in self._escapes:
            pieces += [self.text[end:place], character]
            end = place + len(character) + _growth((place, character))
        return "".join(pieces) + self.text[end:]

    def _with_escapes(self, text: str) -> str:
        """`text` with escapes for the control characters in JSON strings."""
        before = '"' if self._inside in ("key", "text") else ""
        whole = before + ("\\" if self._escape == 5 else "") + text
        end = len(whole) - len(text)
        pieces: list[str] = []
        place = len(self.text)
        for found in _TEXT.finditer(whole):
            for part in _PART.finditer(whole, *found.span()):
                if len(part[0]) == 1:  # and not an escape
                    place += part.start() - end
                    self._escapes.append((place, part[0]))
                    pieces += [whole[end : part.start()], _escape_of(part[0])]
                    place, end = place + len(pieces[-1]), part.end()
        return "".join(pieces) + whole[end:]

    def find(self, *keys: str) -> tuple[str, bool] | None:
        """The first member that has one of these keys: the text of its value as far as it is
        written, and whether it is whole. None if no such value has begun."""
        for key, member in self.members.items():
            if key in keys:
                return self.text[member.start : member.end], member.end is not None
        return None

    def _take(self, character: str, place: int) -> bool:
        """Read this character, if it is valid here. Returns whether it is."""
        if self._inside == "atom":
            if character in _ATOM_CHARACTERS:
                return True
            if not _ATOM.fullmatch(self.text[self._start : place]):
                return False
            self._value_ends(place)
        elif self._inside:
            return self._take_of_text(character, place)
        return character in SPACE or self._take_mark(character, place)

    def _take_of_text(self, character: str, place: int) -> bool:
        if self._escape == 5:
            self._escape = 4 if character == "u" else 0
            return character in '"\\/bfnrtu'
        if self._escape:
            self._escape -= 1
            return character in _HEX
        if character == "\\":
            self._escape = 5
        elif character == '"' and self._inside == "key":
            self._inside, self._allowed = "", ":"
            self._key = json.loads(self.text[self._start : place + 1])
        elif character == '"':
            self._value_ends(place + 1)
        else:
            return False  # a control character
        return True

    def _take_mark(self, character: str, place: int) -> bool:
        if character not in self._allowed:
            return False
        is_value = self._allowed.startswith(VALUE)
        if is_value and len(self._open) == 1:
            self._member = Member(place)
            self.members.setdefault(self._key, self._member)
        if character in "{[":
            self._open.append(character)
            self._allowed = '"}' if character == "{" else VALUE + "]"
        elif character in "}]":
            self._open.pop()
            self._value_ends(place + 1)
        elif character == ":":
            self._allowed = VALUE
        elif character == ",":
            self._allowed = '"' if self._open[-1] == "{" else VALUE
        else:
            self._start = place
            self._inside = "atom" if character != '"' else "text" if is_value else "key"
        return True

    def _value_ends(self, end: int) -> None:
        self._inside = ""
        if len(self._open) == 1:
            self._member.end = end
        self.is_whole = not self._open
        self._allowed = ",}" if self._open and self._open[-1] == "{" else ",]"
