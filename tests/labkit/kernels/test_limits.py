"""Kernels that would compile for ever, or fill the memory, are refused at the line that does it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.kernels.check import Checker
from labkit.kernels.watch import limits
from labkit.kernels.watch.extract import reference_source
from mini_vllm.kernels.pointwise import SILU_MUL

ROOT = Path(__file__).parents[3]
HEAD = "@triton.jit\ndef silu_mul_kernel("
FIRST = "    column = tl.program_id(1) * TILE"
FAN = "".join(
    f"@triton.jit\ndef fan{n}(x):\n    y = fan{n + 1}(x + 1) + fan{n + 1}(x + 2)\n"
    f"    return y + fan{n + 1}(x + 3 * x)\n\n\n"
    for n in range(14)
)
"""Each asks the next for three numbers, for which it is compiled anew."""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker(ROOT, capabilities=(90,)) as running:
        yield running


def doubled(first: str, new: str) -> str:
    return f"x = {first}\n    for _ in tl.static_range(60):\n        x = {new}"


@pytest.mark.parametrize(
    ("line", "helpers", "stage", "words"),
    [
        ("x = 10 ** 10 ** 8", "", "compile", "400,000,000 bits"),
        ("x = 3 << SIZE * 10000", "", "compile", "bits, and a kernel's numbers have 64"),
        (doubled("3", "x * x"), "", "interpreter", "does not fit into 32 bits"),
        ("x = 'a' * 10000000000", "", "compile", "10,000,000,000 long"),
        (doubled("(1, 2)", "x + x"), "", "compile", "long"),
        ("x = '%1000000000d' % 5", "", "compile", "formats no texts"),
        ("x = fan0(1)", FAN + "@triton.jit\ndef fan14(x):\n    return x\n\n\n", "compile",
         "expressions long"),
        (f"x = {'-' * 900}1", "", "lint", "nested more than"),
        ("x = again(1)", "@triton.jit\ndef again(x):\n    return again(x + 1)\n\n\n", "lint",
         "again calls itself: a kernel cannot"),
        ("x = ping(1)", "@triton.jit\ndef ping(x):\n    return pong(x)\n\n\n"
         "@triton.jit\ndef pong(x):\n    return ping(x + 1)\n\n\n", "lint",
         "ping calls itself by way of pong"),
        ("for x in range(1000000000):\n        y = x", "", "interpreter",
         "has gone on for 1,000,000 steps"),
    ],
)  # fmt: skip
def test_what_would_not_end_is_refused_at_its_line(
    checker: Checker, tmp_path: Path, line: str, helpers: str, stage: str, words: str
) -> None:
    source = reference_source(SILU_MUL)
    assert source.count(HEAD) == source.count(FIRST) == 1
    source = source.replace(HEAD, helpers + HEAD).replace(FIRST, f"    {line}\n{FIRST}")
    file = tmp_path / "endless.py"
    file.write_text(source)
    result = checker.check("silu_mul", file, seed=1, sample=1)
    failed = result.stage(stage)
    assert failed.status == "failed", result.findings
    finding = failed.findings[0]
    assert words in finding.message and finding.line is not None
    if not helpers:
        own = source[: source.index(f"    {line}\n{FIRST}")].count("\n") + 1
        assert own <= finding.line <= own + line.count("\n")


@pytest.mark.parametrize(
    "line", ["x = 2 ** 62 - 1", "x = 16 ** 0.5", "x = 0.0 ** -SIZE if SIZE < 0 else 1 << 40"]
)
def test_what_a_kernel_needs_is_left_alone(checker: Checker, tmp_path: Path, line: str) -> None:
    source = reference_source(SILU_MUL).replace(FIRST, f"    {line}\n{FIRST}")
    file = tmp_path / "usual.py"
    file.write_text(source)
    assert checker.check("silu_mul", file, seed=1, sample=1).passed


def test_the_size_of_a_result_is_known_before_it_is_computed() -> None:
    for name, left, right in (
        ("pow", 10, 10**8), ("lshift", 1, 10**10), ("mul", 2**4000, 2**4000),
        ("mul", "a", 10**10), ("mul", 10**10, (1, 2)), ("add", "a" * 3000, "b" * 3000),
        ("mod", "%d", 5),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"bits|long|formats"):
            limits.complain_if_large(name, left, right)
    for name, left, right in (
        ("pow", 2, 64), ("pow", 10.0, 300), ("pow", 2, -3), ("lshift", 1, 63), ("mul", "ab", 3),
        ("mul", (0,), 8), ("add", "a", "b"), ("mod", 7, 5), ("sub", 2.5, 10**9),
    ):  # fmt: skip
        limits.complain_if_large(name, left, right)
