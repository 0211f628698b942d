"""Task 12.1: ranges of characters as ranges of UTF-8 bytes."""

from __future__ import annotations

from labkit.inside.cost import steps
from labkit.testing import expect
from mini_vllm.structured_output.regex_automaton import utf8_ranges


def spelled(low: int, high: int, codes: list[int]) -> list[str]:
    """Those of `codes` that the answer spells, in hexadecimal."""
    runs = utf8_ranges(low, high)
    found = []
    for code in codes:
        data = chr(code).encode()
        for run in runs:
            if len(run) == len(data) and all(
                a <= b <= c for b, (a, c) in zip(data, run, strict=True)
            ):
                found.append(f"{code:X}")
    return found


def test_12_1_ascii_is_one_byte() -> None:
    """a to z are one byte each, in one range."""
    expect(utf8_ranges(0x61, 0x7A), [((0x61, 0x7A),)], at="U+0061 to U+007A")


def test_12_1_an_empty_interval() -> None:
    """From 5 to 4 there is nothing."""
    expect(utf8_ranges(5, 4), [], at="U+0005 to U+0004")


def test_12_1_the_number_of_bytes_changes() -> None:
    """U+007F has one byte, U+0080 two: no run can hold both."""
    found = utf8_ranges(0x7F, 0x80)
    expect(sorted(map(len, found)), [1, 2], at="lengths of the runs of U+007F to U+0080")
    codes = [0x7E, 0x7F, 0x80, 0x81]
    expect(spelled(0x7F, 0x80, codes), ["7F", "80"], at="U+007F to U+0080")


def test_12_1_not_the_product_of_first_and_last() -> None:
    """C2 BE to C4 81: the last byte may be 82 behind C3, but not behind C4."""
    codes = [0xBD, 0xBE, 0xBF, 0xC0, 0xC2, 0xFF, 0x100, 0x101, 0x102]
    wanted = ["BE", "BF", "C0", "C2", "FF", "100", "101"]
    expect(spelled(0xBE, 0x101, codes), wanted, at="U+00BE to U+0101")


def test_12_1_no_surrogates() -> None:
    """ED A0 80 is no UTF-8: D800 to DFFF stand for nothing."""
    runs = utf8_ranges(0xD7FE, 0xE001)
    bad = [run for run in runs if run[0][0] <= 0xED <= run[0][1] and run[1][1] > 0x9F]
    expect(bad, [], at="runs of U+D7FE to U+E001 that reach ED A0")
    codes = [0xD7FD, 0xD7FE, 0xD7FF, 0xE000, 0xE001, 0xE002]
    expect(spelled(0xD7FE, 0xE001, codes), ["D7FE", "D7FF", "E000", "E001"], at="around D800")


def test_12_1_every_character_once() -> None:
    """All of Unicode: each character is spelled by exactly one run."""
    codes = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF, 0x20AC]
    wanted = [f"{code:X}" for code in codes]
    expect(spelled(0, 0x10FFFF, codes), wanted, at="U+0000 to U+10FFFF")


def test_12_1_every_pair_of_ends() -> None:
    """Intervals with ends at all kinds of places spell what lies between, and nothing else."""
    ends = [0x3F, 0x7F, 0x80, 0xBF, 0x7FF, 0x800, 0x83F, 0xFFF, 0x1000, 0xFFFF, 0x10001, 0x4FFFF]
    codes = sorted({end + e for end in ends for e in (-1, 0, 1)})
    for low in ends:
        for high in ends:
            wanted = [f"{code:X}" for code in codes if low <= code <= high]
            expect(spelled(low, high, codes), wanted, at=f"U+{low:04X} to U+{high:04X}")


def test_12_1_the_interval_is_cut_and_not_walked() -> None:
    """20,990 characters of three bytes are a few runs, found in a few steps for each cut."""
    low, high = 0x4E01, 0x9FFE
    count = steps(utf8_ranges, low, high)
    at = f"U+{low:04X} to U+{high:04X}: {count:,} steps of Python, less than one a character"
    expect(count < high - low, True, at=at)
