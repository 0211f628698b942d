"""The stretch task of phase 09: right answers pass, and each named mistake fails as it is named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from labkit.course.root import ROOT
from labkit.practice import dot_product

FOLDER = ROOT / "solutions/09-quantization/dot_int8"
SOLUTION = (FOLDER / "solution.cpp").read_text()
MISTAKES = tomllib.loads((FOLDER / "mistakes.toml").read_text())["mistakes"]
OTHER_SEED = 20_261
"""The hidden numbers: a file that knows the cases of seed 0 gains nothing."""


def judge(file: Path, *flags: str) -> list[dot_product.Verdict]:
    try:
        return dot_product.judge(file, OTHER_SEED, *flags)
    except dot_product.NotHere as reason:
        pytest.skip(str(reason))


def can_avx2() -> bool:
    path = Path("/proc/cpuinfo")
    return path.exists() and " avx2 " in path.read_text()


def mistaken(entry: dict[str, str]) -> str:
    """The solution with one mistake."""
    if "search" in entry:
        assert SOLUTION.count(entry["search"]) == 1
        return SOLUTION.replace(entry["search"], entry["replace"])
    head, vectors = SOLUTION.split("#if defined(__AVX512VNNI__)")
    rest = "    for (; i < n; ++i) sum += static_cast"
    return head.rstrip() + "\n" + entry["body"] + rest + vectors.split(rest)[1]


@pytest.mark.parametrize("name", ["solution.cpp", "alternative.cpp"])
@pytest.mark.parametrize("flags", [(), ("-mno-avx512f", "-mno-avxvnni")], ids=["native", "avx2"])
def test_right_answers_pass(name: str, flags: tuple[str, ...]) -> None:
    if flags and not can_avx2():
        pytest.skip("not a processor with AVX2")
    for verdict in judge(FOLDER / name, *flags):
        assert not verdict.problem, verdict
        assert verdict.num_cases > 150


def test_the_skeleton_fails_in_each_step() -> None:
    assert [verdict.kind for verdict in judge(dot_product.SKELETON)] == ["lengths"] * 3
    assert dot_product.untouched(dot_product.SKELETON) == set(dot_product.STEPS)
    assert not dot_product.untouched(FOLDER / "solution.cpp")


@pytest.mark.parametrize("entry", MISTAKES, ids=[entry["name"] for entry in MISTAKES])
def test_a_named_mistake_fails_as_it_is_named(entry: dict[str, str], tmp_path: Path) -> None:
    if entry.get("needs") == "__AVX2__" and not can_avx2():
        pytest.skip("its instructions need AVX2")
    file = tmp_path / "dot.cpp"
    file.write_text(mistaken(entry))
    verdicts = judge(file)
    if entry["fails"] == "count" and verdicts[0].per_64 is None and not verdicts[0].problem:
        pytest.skip("instructions cannot be counted here")
    assert entry["fails"] in [verdict.kind for verdict in verdicts], verdicts
    assert [verdict.kind for verdict in verdicts].count("") == 2, verdicts


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(dot_product, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(dot_product.NotHere, match="no C\\+\\+ compiler"):
        dot_product.judge(dot_product.SKELETON)


def test_an_error_of_the_compiler_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "dot.cpp"
    file.write_text(SOLUTION.replace("return sum;", "return summ;", 1))
    try:
        with pytest.raises(ValueError, match=r"error: .*summ"):
            dot_product.judge(file)
    except dot_product.NotHere as reason:
        pytest.skip(str(reason))
