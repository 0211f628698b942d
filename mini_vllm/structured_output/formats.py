"""The string formats of JSON Schema, each as a regular expression of the whole string.

Some formats only say how a program stores a value; they forbid no text. For URLs, durations and
mail addresses the expressions cover only a part of what the standard allows, so that every parser
accepts what the model writes.

Source: JSON Schema Draft 2020-12, validation, section 7.3.
"""

from __future__ import annotations

from mini_vllm.structured_output.patterns import Pattern, Repeat, concat, optional, parse_regex

_YEAR = r"([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    rf"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_DURATION_TIME = r"T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S)"
_DURATION_DATE = r"([0-9]{1,6}D|[0-9]{1,6}M([0-9]{1,6}D)?|[0-9]{1,6}Y([0-9]{1,6}M([0-9]{1,6}D)?)?)"
_GROUP = "[0-9a-fA-F]{1,4}"
_LABEL = "[a-zA-Z0-9](-?[a-zA-Z0-9]){0,23}"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
"""At most 239 characters, of the 253 that a name may have."""
_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-%s[0-9a-fA-F]{3}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_OF_A_PATH = "A-Za-z0-9._~!$&'()*+,;=:@/-"

REMARKS = frozenset(
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float double decimal password binary path "
    "file-path directory-path html markdown textarea enum".split()
)
"""Formats of OpenAPI, of pydantic and of form libraries that say how a program stores or shows a
value. They forbid no text."""


_AT_A_HOST = rf"://{_HOST}(:[0-9]{{1,5}})?"
_CHAR = rf"[?{_OF_A_PATH}]"
_PART = rf"({_CHAR}|%[0-9A-F]{{2}})"
LEAST_URI = 300
"""The smallest maxLength that a URL may have: its host alone may need 255 characters."""


def short_uri(most: int, place: Pattern) -> Pattern:
    """An http or https URL of at most `most` characters.

    Only these schemes, because pydantic's `HttpUrl` writes a maxLength into its schema and accepts
    no other scheme, which the schema does not say.

    Args:
        most: 300 or more.
        place: the pattern of one character of :data:`URI_CHAR`.
    """
    path = concat("/", Repeat(place, 0, most - 282))
    fragment = concat("#", Repeat(place, 0, 20))
    return concat(parse_regex(f"https?{_AT_A_HOST}"), optional(path), optional(fragment))


URI_CHAR = parse_regex(_CHAR)
_BASE64 = r"([A-Za-z0-9%s]{4})*([A-Za-z0-9%s]{2}==|[A-Za-z0-9%s]{3}=)?"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P({_DURATION_DATE}({_DURATION_TIME})?|{_DURATION_TIME}|[0-9]{{1,6}}W)",
    "uuid": _UUID % "[0-9a-fA-F]",
    **{f"uuid{version}": _UUID % version for version in (1, 3, 4, 5, 6, 7, 8)},
    "ipv4": rf"({_OCTET}\.){{3}}{_OCTET}",
    "ipv6": "|".join(
        [
            f"({_GROUP}:){{7}}{_GROUP}",
            f"({_GROUP}:){{1,7}}:",
            *(f"({_GROUP}:){{1,{7 - n}}}(:{_GROUP}){{1,{n}}}" for n in range(1, 7)),
            f":(:{_GROUP}){{1,7}}",
            "::",
        ]
    ),
    "base64": _BASE64.replace("%s", "+/"),
    "base64url": _BASE64.replace("%s", "_-"),
    "hostname": _HOST,
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
    "uri": (
        rf"[a-z][a-z0-9+.-]{{0,9}}{_AT_A_HOST}(/{_PART}*)?(#{_PART}*)?"
        rf"|(mailto|urn|tel):[A-Za-z0-9]{_PART}*"
    ),
}
FORMATS |= {
    "byte": FORMATS["base64"],  # OpenAPI's name
    "ipvanyaddress": f"{FORMATS['ipv4']}|{FORMATS['ipv6']}",  # pydantic's
}
"""The formats that are enforced."""
