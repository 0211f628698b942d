"""Inputs that a weak hash takes for one another: for hidden tests of functions that build a key.

A key that is a checksum, or Python's `hash()`, looks right until an attacker wants two contents to
have one name.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.inside.program import Program

WEAK = ("builtins:hash", "zlib:crc32", "zlib:adler32", "binascii:crc32")

MD5_TWIN = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89"
    "55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b"
    "d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
)
"""128 bytes that have the MD5 of others. Source: Wang, Yu: "How to Break MD5 and Other Hash
Functions", EUROCRYPT 2005."""


def md5_twins() -> tuple[bytes, bytes]:
    """Two texts of 128 bytes with one MD5: they differ in one bit of six bytes."""
    other = bytearray(MD5_TWIN)
    for place in (19, 45, 59, 83, 109, 123):
        other[place] ^= 0x80
    return MD5_TWIN, bytes(other)


def crc_twins(seed: int) -> tuple[bytes, bytes]:
    """Two texts of 12 bytes with one CRC-32, whatever stands before and behind them.

    Of 200,000 texts, as many as five pairs are to be expected: 200,000**2 / 2 / 2**32.
    """
    draw = random.Random(seed)
    seen: dict[int, bytes] = {}
    while True:
        text = bytes(draw.choices(b"ABCDEFGHIJKLMNOP", k=12))
        if seen.setdefault(zlib.crc32(text), text) != text:
            return seen[zlib.crc32(text)], text


@contextmanager
def weak_hashes_say_7(p: Program) -> Iterator[None]:
    """Steps between which `hash()` and the checksums of the standard library say 7 to everything.

    A hash may: equal objects have equal hashes, and nothing else is promised. So what is told apart
    in between does not rely on it.
    """
    before = []
    for target in WEAK:
        module, name = target.split(":")
        owner = p.call("importlib:import_module", module)
        before.append((owner, name, p.call("operator:attrgetter", name)(owner)))
        p.call("builtins:setattr", owner, name, p.new("unittest.mock:Mock", return_value=7))
    yield
    for owner, name, function in before:
        p.call("builtins:setattr", owner, name, function)
