"""Strings and numbers as JSON writes them, against Python's arithmetic and `json`."""

from __future__ import annotations

import json
import random
from base64 import b64decode, urlsafe_b64decode
from datetime import date, datetime
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from uuid import UUID

import pytest

from mini_vllm.structured_output.formats import FORMATS, URI_CHAR, short_uri
from mini_vllm.structured_output.json_text import (
    Bound,
    integer_range_pattern,
    json_char,
    json_rules,
    number_range_pattern,
    string_but,
)
from mini_vllm.structured_output.patterns import EMPTY, MAX_CODE_POINT, Pattern, Rules, parse_regex
from mini_vllm.structured_output.regex_automaton import Dfa, compile_pattern, matches
from tests.engine.structured_output.walks import accepts, automaton


def smallest(pattern: Pattern) -> Dfa | None:
    """None if nothing matches."""
    try:
        return compile_pattern(pattern)
    except ValueError:
        return None


def test_integer_ranges() -> None:
    rng = random.Random(1)
    edges = [None, 0, -1, 9, 10, 98, 99, 1203, -5, -100]
    for _ in range(150):
        low, high = (rng.choice([rng.choice(edges), rng.randint(-1300, 1300)]) for _ in range(2))
        automaton = smallest(integer_range_pattern(low, high))
        near = [n + e for n in (low, high) if n is not None for e in (-1, 0, 1)]
        for n in [*range(-20, 21), *near, *(rng.randint(-20000, 20000) for _ in range(60))]:
            inside = (low is None or n >= low) and (high is None or n <= high)
            assert (automaton is not None and matches(automaton, str(n).encode())) == inside, (
                low, high, n,
            )  # fmt: skip
        for text in (b"", b"-", b"01", b"+1", b"1.0", b"-01"):
            assert automaton is None or not matches(automaton, text)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 2**63 - 1), (-(2**63), 2**63 - 1), (1_600_000_000_000, None), (10**20, 10**20 + 7),
     (999_999_999, 10**12), (12_345_678, 12_349_999), (10**150, 10**152 - 1)],
)  # fmt: skip
def test_large_integers_cost_no_more_than_their_digits(low: int, high: int | None) -> None:
    """Digits are compared block by block; case by case there would be 2^n of them."""
    automaton = smallest(integer_range_pattern(low, high))
    assert automaton is not None and len(automaton.table) < 700
    rng = random.Random(3)
    ends = [end for end in (low, high, 0, 10**19) if end is not None]
    near = [end + sign * 10**power for end in ends for sign in (-1, 1) for power in range(25)]
    within = [rng.randint(low, high or 10 * low) for _ in range(100)]
    for n in [*ends, *near, *within]:
        inside = low <= n and (high is None or n <= high)
        assert matches(automaton, str(n).encode()) == inside, n


def test_number_ranges() -> None:
    rng = random.Random(2)

    def number() -> Decimal:
        digits = Decimal(rng.choice([rng.randint(-30, 30), rng.randint(-3000, 3000)]))
        return digits / 10 ** rng.choice([0, 0, 1, 2, 3])

    def bound() -> Bound | None:
        return rng.choice([None, (number(), rng.random() < 0.5)])

    for _ in range(250):
        low, high = bound(), bound()
        if low and rng.random() < 0.4:  # close together, where digits meet
            high = (low[0] + Decimal(rng.randint(0, 30)) / 1000, rng.random() < 0.5)
        automaton = smallest(number_range_pattern(low, high))
        texts = [number() for _ in range(40)]
        for limit in (low, high):
            if limit:
                texts += [
                    limit[0] + e * Decimal("0.001") * k for e in (-1, 0, 1) for k in (1, 10, 999)
                ]
        for value in texts:
            text = f"{value:f}"
            if text.startswith("-") and value == 0:
                continue
            above = low is None or value > low[0] or (value == low[0] and not low[1])
            below = high is None or value < high[0] or (value == high[0] and not high[1])
            found = automaton is not None and matches(automaton, text.encode())
            assert found == (above and below), (low, high, text)


def test_every_character_can_be_written_raw_and_escaped() -> None:
    free = compile_pattern(json_char(((0, MAX_CODE_POINT),), free=True))
    plain = compile_pattern(json_char(((0, MAX_CODE_POINT),)))
    rng = random.Random(3)
    codes = [*range(0x300), 0xD7FF, 0xE000, 0xFFFF, 0x10000, MAX_CODE_POINT]
    codes += [rng.randint(0, MAX_CODE_POINT) for _ in range(500)]
    for code in codes:
        if 0xD800 <= code <= 0xDFFF:
            continue
        for ascii_only in (True, False):
            written = json.dumps(chr(code), ensure_ascii=ascii_only)[1:-1].encode()
            assert matches(free, written) and matches(plain, written), hex(code)
    assert matches(free, b"\\/") and matches(free, b"\\u0041") and not matches(plain, b"\\u0041")
    for wrong in (
        b'"',
        b"\\",
        b"\n",
        b"\\x41",
        b"\\ud83d",
        b"\\ude00\\ud83d",
        b"\\ud83dx",
        b"\xff",
    ):
        assert not matches(free, wrong), wrong


def test_escapes_spell_exactly_the_range() -> None:
    rng = random.Random(4)
    for low, high in ((0x41, 0x1F5FF), (0x30, 0x39), (0xD7F0, 0xE010), (0x10FFF, 0x12001)):
        automaton = compile_pattern(json_char(((low, high),), free=True))
        for code in [low - 1, low, high, high + 1, *(rng.randint(0, 0x1FFFF) for _ in range(300))]:
            if 0xD800 <= code <= 0xDFFF:
                continue
            units = chr(code).encode("utf-16-be")
            escaped = "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
            for case in (escaped.encode(), escaped.upper().replace("\\U", "\\u").encode()):
                assert matches(automaton, case) == (low <= code <= high), (hex(low), hex(code))


def test_a_string_but_some_names() -> None:
    rules: Rules = {"root": string_but(["ab", "a", "", "é"]), **json_rules(EMPTY)}
    walk = automaton(rules)
    for text, legal in {"": False, "a": False, "ab": False, "é": False, "\\u00e9": False, "b": True,
                        "abc": True, "ac": True, "éa": True, "aé": True}.items():  # fmt: skip
        assert accepts(walk, text) == legal, text


@pytest.mark.parametrize("name, read, right, wrong", [
    ("date", date.fromisoformat, ["2024-02-29", "1999-12-31"],
     ["2023-02-29", "2024-04-31", "0000-01-01"]),
    ("date-time", datetime.fromisoformat, ["2024-02-29T23:59:59Z", "1999-12-31T00:00:00.123+02:00"],
     ["2024-02-29 23:59:59Z", "2024-02-29T24:00:00Z", "2024-02-29T23:59:59"]),
    ("uuid", UUID, ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
    ("ipv4", IPv4Address, ["0.0.0.0", "255.255.255.255"], ["256.0.0.0", "01.1.1.1", "1.1.1"]),
    ("email", str, ["ada@example.org", "a.b+c@d-e.fg"], ["ada", "a@b", ".a@b.c", "a@b..c"]),
    ("uuid4", UUID, ["123e4567-e89b-42d3-a456-426614174000"],
     ["123e4567-e89b-12d3-a456-426614174000"]),
    ("ipv6", IPv6Address, ["::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::",
                           "::2:3:4:5:6:7:8", "1::3:4:5:6:7:8"],
     [":", ":::", "1:2:3:4:5:6:7", "1::2::3", "1:2:3:4:5:6:7:8:9", "12345::", "[::1]", "1:2:"]),
    ("duration", str, ["P1D", "PT5M", "P2W", "P1Y2M3DT4H5M6S", "PT0S"],
     ["P", "PT", "1D", "P1DT", "P1H", "PT1D", "P1Y2W", "P1S"]),
    ("ipvanyaddress", ip_address, ["1.2.3.4", "::1"], ["1.2.3", ":", ""]),
    ("byte", b64decode, ["", "YQ==", "YWI=", "YWJj", "+/+/"], ["YQ", "YQ=", "=", "YW Jj", "_-_-"]),
    ("base64url", urlsafe_b64decode, ["", "YQ==", "_-_-"], ["YQ", "+/+/"]),
    ("hostname", str, ["a", "example.org", "a-b.c1", "EXAMPLE"],
     ["", "-a", "a-", "a..b", ".a", "a.", "a_b", "xn--a", "a" * 64]),
    ("uri", str, ["https://example.org", "http://a.b:80/c/d?e=f/?#g", "mailto:a@b.c", "urn:x:y"],
     ["", "a b", "/path", "http://", "example.org", "http://a/<", "http://a#b#c", "1http://a"]),
    ("time", str, ["23:59:59Z", "00:00:00.5-01:30"], ["24:00:00Z", "23:59:60Z", "1:00:00Z"]),
])  # fmt: skip
def test_formats(name: str, read: Any, right: list[str], wrong: list[str]) -> None:
    automaton = compile_pattern(parse_regex(FORMATS[name]))
    for text in right:
        read(text)
        assert matches(automaton, text.encode()), text
    for text in wrong:
        assert not matches(automaton, text.encode()), text


def test_a_uri_has_at_most_so_many_characters() -> None:
    automaton = compile_pattern(short_uri(300, URI_CHAR))
    assert matches(automaton, b"https://example.org/a?b#c")
    host = ".".join(["a" + "-a" * 23] * 5)
    longest = f"https://{host}:12345/{'p' * 18}#{'f' * 20}"
    assert matches(automaton, longest.encode()) and len(longest) == 293
    for wrong in (longest + "f", "ftp://example.org"):
        assert not matches(automaton, wrong.encode())
