"""The corpus that keeps the checker honest: complete, and a sample of it judged.

`python -m labkit kernel-corpus`, a part of `make test-full`, judges all of it.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from labkit.course.root import find_root
from labkit.kernels.cases import SPECS
from labkit.kernels.check import Checker
from labkit.kernels.proof import corpus, corpus_command, selftest
from labkit.kernels.proof.corpus import Bench, Cheat, Fault
from labkit.kernels.verdict.report import STAGES
from labkit.kernels.watch.extract import Submission, extract, reference_source

CHEATS = corpus.cheats()
FILES = {cheat.name: cheat for cheat in CHEATS if cheat.name}
QUICK = ("14_keep_the_warm_up", "45_a_little_garbage", "46_unknown_options")
SAMPLE = 97  # of about a thousand changes


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as running:
        yield running


# ---------------------------------------------------------------- honest files
def test_each_kernel_has_three_other_correct_versions() -> None:
    taught = set(SPECS) - corpus.UNTAUGHT
    by_spec = {spec: {e.name for e in corpus.honest() if e.spec == spec} for spec in taught}
    assert all(len(names) >= 3 for names in by_spec.values()), by_spec


@pytest.mark.parametrize("entry", corpus.honest(), ids=lambda e: f"{e.name}-{e.spec}")
def test_the_lint_accepts_an_honest_file(entry: corpus.Honest) -> None:
    found = extract(entry.path.read_text(encoding="utf-8"), SPECS[entry.spec], entry.name)
    assert isinstance(found, Submission), found


def test_an_honest_kernel_passes_a_sample_of_cases(checker: Checker) -> None:
    for entry in corpus.honest():
        if entry.spec == "silu_mul":
            result = checker.check(entry.spec, entry.path, seed=corpus.SEED, sample=2)
            assert result.passed, (entry, result.findings)


# ---------------------------------------------------------------- cheats
def test_every_known_cheat_is_in_the_table_and_every_file_too() -> None:
    assert {cheat.number for cheat in CHEATS} == set(range(1, 47))
    files = {path.stem for path in (corpus.folder() / "cheats").glob("*.py")}
    assert files == set(FILES)
    for cheat in CHEATS:
        if cheat.name:
            assert cheat.name.startswith(f"{cheat.number:02}_") and cheat.spec in SPECS
            assert cheat.stage in (*STAGES, "passed") and (cheat.kind or cheat.stage == "passed")
        if not cheat.name or cheat.stage == "passed":
            assert cheat.reason and cheat.covered, cheat


@pytest.mark.parametrize("cheat", [c for c in CHEATS if c.covered], ids=lambda c: str(c.number))
def test_what_covers_a_cheat_without_a_file_exists(cheat: Cheat) -> None:
    file, _, test = cheat.covered.partition("::")
    text = (find_root() / file).read_text(encoding="utf-8")
    assert not test or f"def {test}(" in text


@pytest.mark.parametrize("name", [name for name, cheat in FILES.items() if cheat.stage == "lint"])
def test_host_code_and_python_stop_at_the_lint(checker: Checker, name: str) -> None:
    assert corpus_command.accepted(checker, FILES[name]) == ""


@pytest.mark.parametrize("name", QUICK)
def test_a_cheat_is_stopped(checker: Checker, name: str) -> None:
    assert corpus_command.accepted(checker, FILES[name]) == ""


def test_a_cheat_that_passes_would_be_told(checker: Checker) -> None:
    other = Cheat(1, "46_unknown_options", "silu_mul", "values", "values")
    assert "expected values values, got compile" in corpus_command.accepted(checker, other)


# ---------------------------------------------------------------- changes of our kernels
def test_every_change_is_found_out_or_changes_nothing() -> None:
    """The results are of these kernels; `kernel-corpus changes --write` makes them anew."""
    known, harmless, faults = corpus.changes(), corpus.equivalent(), corpus.known_faults()
    assert set(harmless) <= set(known), sorted(set(harmless) - set(known))
    assert not set(harmless) & set(faults)
    assert set(known) == set(harmless) | set(faults), sorted(
        set(known) ^ (set(harmless) | set(faults))
    )
    text = (corpus.folder() / "equivalent.toml").read_text(encoding="utf-8")
    assert all(group["reason"].strip() for group in tomllib.loads(text)["equivalent"])


def test_a_sample_of_the_changes_is_found_out() -> None:
    count, wrong = corpus_command.judge_changes(SAMPLE)
    assert count >= 8 and wrong == []


def test_a_kernel_without_a_change_has_no_fault_in_a_case_and_one_with_a_change_has() -> None:
    good = (corpus.folder() / "honest" / "a" / "fused.py").read_text(encoding="utf-8")
    assert "+ eps" in good
    with Bench() as bench:
        bad = bench.fault(good.replace("+ eps", "- eps"), "rms_norm", "small")
    assert bad == Fault("values", "values", "rms_norm", "small")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as running:
        yield running


def planted() -> list[ParameterSet]:
    """What `planted.toml` holds: group, kernel, case, the text that stands there, and the other."""
    groups = tomllib.loads((corpus.folder() / "planted.toml").read_text(encoding="utf-8"))
    return [
        pytest.param(name, *change, id=f"{name}-{change[0]}-{change[1]}-{number}")
        for name, group in groups.items()
        for number, change in enumerate(group["changes"])
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("group", "spec", "case", "old", "new"), planted())
def test_a_planted_change_is_found_out_in_its_case(
    bench: Bench, group: str, spec: str, case: str, old: str, new: str
) -> None:
    text = reference_source(SPECS[spec])
    assert old in text
    fault = bench.fault(text.replace(old, new), spec, case)
    assert fault and (fault.spec, fault.case) == (spec, case), fault
    assert group != "memory" or fault.kind in ("race", "uninitialised"), fault


def test_no_atomic_writes_over_what_an_output_happens_to_hold(bench: Bench) -> None:
    """The larger of -7, which stands there, and of a token is the token; on a GPU it is luck."""
    text = reference_source(SPECS["rejection_random_sample"])
    changed = text.replace("tl.store(output_ptr", "tl.atomic_max(output_ptr")
    fault = bench.fault(changed, "rejection_random_sample", "one")
    assert changed != text and fault and fault.kind == "uninitialised"


# ---------------------------------------------------------------- the checker without a check
def test_each_check_that_can_be_taken_out_is_there() -> None:
    entries = corpus_command.weakened()
    asked = {probe.name for probe in selftest.probes()} | set(selftest.QUESTIONS)
    kinds = {bug.kind for bug in selftest.controls.BUGS}
    for entry in entries:
        text = (find_root() / "labkit" / "kernels" / entry.file).read_text(encoding="utf-8")
        assert text.count(entry.old) == 1, entry.about
        assert set(entry.words) <= asked | kinds, entry.about
    found = {word for entry in entries for word in entry.words}
    assert kinds <= found, "no check of the checker stands for this kind of bug"


def test_a_check_that_is_missed_and_one_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "phases").mkdir()
    for package in ("labkit", "mini_vllm"):
        shutil.copytree(find_root() / package, tmp_path / package)
    known = {entry.about: entry for entry in corpus_command.weakened()}
    assert corpus_command.unnoticed(tmp_path, known["NaN is accepted"]) == ""
    useless = corpus_command.Weakened(
        "nothing", "verdict/numbers.py", "BITS = {", "BITS = {", ("nan",)
    )
    assert "1 of 1 are found" in corpus_command.unnoticed(tmp_path, useless)
