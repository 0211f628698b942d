"""Regular expressions against Python's own `re`."""

from __future__ import annotations

import random
import re

import pytest

from mini_vllm.structured_output.patterns import parse_regex
from mini_vllm.structured_output.regex_automaton import (
    compile_pattern,
    determinise,
    matches,
    minimise,
    remove_dead_states,
    utf8_ranges,
)
from tests.engine.pace import cpu_seconds

PATTERNS = [
    "", "a", "ab|cd", "(ab|ac)*", "(a*)*b", "a?b?c?", "a{2,3}", "a{2,}", "a{0}", "(a|b){2,4}?",
    "(?:ab)+?", "(?P<name>a)b", "[a-c]+", "[^a]+", "[^a-c\\n]*", ".", ".{0,3}é?", "^ab$", "^a|b$",
    "(^a|b)c?", "\\Aa\\Z", r"\d+", r"\D", r"\s*a", r"\S+", r"\w+", r"\W", r"[\w-]+", r"[^\d]",
    "日本|[ぁ-ん]+", "[à-é]", "\\x41\\u00e9", "a|", "|", "(|a)+b", "((a|b)*c)?", "[]a]", "[a\\]]",
    r"\.\*\+", "(a|b)*a(a|b){3}", "x*(x|y)z", "(ab?)*", "[\x00-\x1f]", r"-?(0|[1-9]\d*)",
]  # fmt: skip
ALPHABET = "aabbcdxyz019-_ .*+]\n\t\x00é日本ぁA"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matches_what_re_matches(pattern: str) -> None:
    automaton = compile_pattern(parse_regex(pattern))
    rng = random.Random(pattern)
    for _ in range(800):
        text = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, 7)))
        expected = re.fullmatch(pattern, text, re.ASCII) is not None
        assert matches(automaton, text.encode()) == expected, text


def test_only_well_formed_utf8_matches() -> None:
    anything = compile_pattern(parse_regex(r"[\s\S]*"))
    for data in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe6\x97", b"\xf4\x90\x80\x80", b"\x80"):
        assert not matches(anything, data), data
    assert matches(anything, "\x00é日\U0010ffff".encode())


@pytest.mark.parametrize("low, high", [
    (0, 0x10FFFF), (0x41, 0xE9), (0x7FF, 0x801), (0xD000, 0xE100), (0xFFFE, 0x10001), (5, 4),
])  # fmt: skip
def test_utf8_ranges_spell_exactly_the_interval(low: int, high: int) -> None:
    ranges = utf8_ranges(low, high)
    spelled = set()
    for code in {*range(max(low - 70, 0), low + 70), *range(max(high - 70, 0), high + 70), 0x2603}:
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            continue
        data = chr(code).encode()
        for run in ranges:
            if len(run) == len(data) and all(
                a <= b <= c for b, (a, c) in zip(data, run, strict=True)
            ):
                spelled.add(code)
        assert (code in spelled) == (low <= code <= high), hex(code)


@pytest.mark.parametrize("pattern, states", [
    ("(a|b)*a(a|b){3}", 16), ("(ab|ac)*", 2), ("", 1), (r"\d{4}-\d\d-\d\d", 11),
    ("[a-z]{1,200}", 201),
])  # fmt: skip
def test_the_automaton_is_the_smallest(pattern: str, states: int) -> None:
    assert len(compile_pattern(parse_regex(pattern))) == states


def test_minimising_changes_no_text() -> None:
    rng = random.Random(0)
    for pattern in PATTERNS:
        large = remove_dead_states(determinise(parse_regex(pattern)))
        small = minimise(large)
        assert len(small) <= len(large)
        for _ in range(50):
            data = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, 6))).encode()
            assert matches(large, data) == matches(small, data)


@pytest.mark.parametrize("pattern, message", [
    ("(ab", "missing )"), ("a{3,1}", "min repeat"), ("[]", "unterminated"), ("[z-a]", "range"),
    ("(a)\\1", "backreference"), ("a(?=b)", "lookaround"), ("(?<!a)b", "lookaround"),
    ("a\\b", "\\b"), ("(?i)a", "flags"), ("(?s:a.)", "flags"), ("a$b", "$ with something after"),
    ("a++", "possessive"), ("(?>a)", "atomic"), ("(a)?(?(1)b|c)", "conditional"),
    ("(" * 500 + ")" * 500, "too deep"), ("a**", "multiple repeat"),
])  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        parse_regex(pattern)
    assert "regex" in str(error.value) and len(str(error.value)) < 300


def test_a_pattern_without_texts_is_refused() -> None:
    for pattern in ("a^b", "[^\\x00-\\U0010ffff]"):
        with pytest.raises(ValueError, match="no text matches"):
            compile_pattern(parse_regex(pattern))


@pytest.mark.serial
@pytest.mark.parametrize("pattern", [
    "(.*a.{18})", "(([a-z]{0,300}){0,300}){0,300}", "(a?){5000}", "a" * 150_000, "x{100000}",
    "((a{0,100}){0,100}b?){0,3}", "(a|b)*a(a|b){30}",
])  # fmt: skip
def test_bombs_are_refused_within_a_second(pattern: str) -> None:
    def refuse() -> None:
        with pytest.raises(ValueError, match=r"needs more|too ambiguous|characters"):
            compile_pattern(parse_regex(pattern))

    assert cpu_seconds(refuse, limit=1.0) < 1.0
