"""The whole check: the engine's kernels pass, wrong ones fail where they should, screens say so."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit import cli
from labkit.course.console import Screen
from labkit.course.manifest import Course
from labkit.course.root import find_root
from labkit.kernels import check
from labkit.kernels.cases import SPECS, build, cases_of, find_case
from labkit.kernels.cases.draw import Case
from labkit.kernels.check import Checker, default_file, sampled
from labkit.kernels.measure.roofline import DATASHEETS, draw, points_of
from labkit.kernels.screen import conclusion, show_result, tiers
from labkit.kernels.verdict import controls, oracles, tolerances
from labkit.kernels.verdict import numbers as verdict
from labkit.kernels.verdict.report import CheckResult, Stage
from labkit.kernels.watch.extract import extract, reference_source
from labkit.kernels.watch.findings import Finding

ROOT = find_root()
H200 = DATASHEETS["H200"]


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker(ROOT) as running:
        yield running


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "reference")


def screen_of(result: CheckResult) -> str:
    """What the learner reads, as one text."""
    screen = Screen()
    with screen.console.capture() as captured:
        show_result(screen, result, Course(ROOT), H200)
    return captured.get()


def edited(folder: Path, spec: str, old: str, new: str) -> Path:
    """The engine's file with one edit."""
    source = reference_source(SPECS[spec])
    assert old in source
    file = folder / "mine.py"
    file.write_text(source.replace(old, new))
    return file


SUMS = {"lora_shrink": ("IN_SIZE", "IN_TILE"), "w4a16_gemm": ("K", "COLUMN_TILE")}
"""Products whose sum is in float32: its length, and how much of it a tile is."""

TILED = ("paged_decode", "paged_prefill", "tiled_prefill")
LARGE_LOGITS = {"high-logits": 110.0, "low-logits": 110.0}
"""Where `tiled_prefill` takes powers of two, log2(e) times the logit is rounded: by u of it."""


def summed(spec: str, case: Case, seed: int) -> float:
    """How much larger than usual the honest error of a case is."""
    problem, rules = build(spec, case.name, seed)
    if spec in SUMS:
        launch = SPECS[spec].plan(**problem)[0].constexprs
        length, tile = SUMS[spec]
        return tolerances.long_sum(int(launch[length]) // int(launch[tile]) // 4)
    if spec not in TILED or case.dtype != "float32":
        return 1.0
    constants = SPECS[spec].plan(**problem)[0].constexprs | dict(rules.constants)
    keys = min(int(problem["seq_lens"].max()), problem["window"] or 2**31)
    condition = oracles.condition(spec, problem) if case.cancels else 1.0
    if spec == "tiled_prefill":
        condition *= max(1.0, LARGE_LOGITS.get(case.name, 0.0) / tolerances.ROUNDINGS)
    return tolerances.long_sum(-(-keys // int(constants["KEY_TILE"])), condition)


@pytest.mark.parametrize("spec", ["paged_decode", "paged_prefill", "tiled_prefill", *SUMS])
def test_the_honest_error_of_a_long_sum_stays_far_from_the_limit(spec: str) -> None:
    most = {case.name: summed(spec, case, 20) for case in cases_of(spec)}
    sums = {"lora_shrink": {"wide-input"}, "w4a16_gemm": {"longer"}}
    long = sums.get(spec, {"creeping", "uneven", "thousands"})
    assert {name for name, more in most.items() if more > 1.0} >= long
    assert 1.9 * tolerances.FLOAT32.honest * max(most.values()) <= tolerances.FLOAT32.limit


def test_advice_for_what_takes_long_fits_what_it_is() -> None:
    for stage, words in (("compile", "written out"), ("interpreter", "variable reach its end")):
        late = Finding("timeout", "it does not end within 90 s", "silu_mul_kernel", 3)
        result = CheckResult("silu_mul", "cpu", "labs/07-going-fast/fused.py", 1)
        result.stages.append(Stage(stage, "failed", "", (late,)))
        advice = [text for text in ("written out", "variable reach its end")
                  if text in screen_of(result)]  # fmt: skip
        assert advice == [words]


def test_one_wait_for_an_endless_loop_is_enough(checker: Checker) -> None:
    """A loop that the monitor stops is as endless in the next case: that is not run."""
    source = reference_source(SPECS["silu_mul"])
    line = "    up = tl.load(gate_ptr + SIZE"
    endless = source.replace(
        line, f"    for _ in tl.static_range(2000000000):\n        pass\n{line}"
    )
    submission = extract(endless, SPECS["silu_mul"], "endless.py")
    names = [case.name for case in cases_of("silu_mul")][:6]
    nan = float("nan")
    seen = checker.observe([(submission, "silu_mul", name, 1, "natural", nan) for name in names])
    found = [getattr(each, "findings", (each,)) for each in seen if each is not None]
    kinds = {finding.kind for findings in found for finding in findings}
    assert "timeout" in kinds and seen[-1] is None


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_the_engines_kernels_pass(checker: Checker, spec: str) -> None:
    result = checker.check(spec, seed=20)
    assert result.passed and result.score == 1.0, screen_of(result)
    assert len(result.cases) == result.planned == len(cases_of(spec))
    for case in result.cases:
        bounds = {name: tolerances.bound(spec, case.dtype, name) for name in case.errors}
        more = summed(spec, find_case(spec, case.name), 20)
        honest = {name: bound.honest * more for name, bound in bounds.items()}
        assert all(e <= honest[name] for name, e in case.errors.items()), (case, honest)
        if case.graded:
            known = tolerances.REFERENCE[spec, case.name]
            assert case.traffic_ratio == pytest.approx(known.traffic, abs=0.01)
            assert case.flops_ratio == pytest.approx(known.flops or None, abs=0.02)


@pytest.mark.parametrize("spec", SPECS)
def test_a_sample_of_the_engines_kernels_passes(checker: Checker, spec: str) -> None:
    result = checker.check(spec, seed=11, sample=2)
    assert result.passed, screen_of(result)
    assert len(result.cases) == 2 < result.planned
    assert f"of {result.planned} cases" in tiers(result) and "repeats not run" in tiers(result)


def test_decode_moves_little_more_than_it_must(checker: Checker) -> None:
    """The promise: at most 1.1 times the least bytes, however many heads share a key.

    `pytest -s -k decode_moves` shows the four ratios.
    """
    spec = SPECS["paged_decode"]
    submission = check.extract(reference_source(spec), spec, "reference")
    groups = {group: find_case(spec.name, f"traffic-{group}") for group in (1, 2, 4, 8)}
    jobs = [(submission, spec.name, c.name, 1, "natural", float("nan")) for c in groups.values()]
    for (group, case), seen in zip(groups.items(), checker.observe(jobs), strict=True):
        report = verdict.Judge(spec.name, case, 1).report(seen)
        assert not report.findings and report.traffic_ratio is not None
        print(f"{group} heads share a key: {report.traffic_ratio:.4f} times the least bytes")
        assert 1.0 <= report.traffic_ratio <= 1.1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spec", ["paged_decode", "paged_prefill"])
@pytest.mark.parametrize("half", ["tl.float16", "tl.bfloat16"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("weights.to(query.dtype), value", "weights.to({}).to(query.dtype), value"),
        ("acc = acc * rescale[:, None]", "acc = acc.to({}).to(tl.float32) * rescale[:, None]"),
        ("= online_softmax(scores, row_max, row_sum)",
         "= online_softmax(scores, row_max, row_sum.to({}).to(tl.float32))"),
    ],
    ids=["weights", "acc", "row_sum"],
)  # fmt: skip
def test_where_sums_cancel_what_rounds_early_is_refused(
    checker: Checker, spec: str, half: str, old: str, new: str
) -> None:
    """Its error there is far above the limit, which the sum's condition does not move."""
    source = reference_source(SPECS[spec])
    assert source.count(old) == 2  # one in each of decode and prefill
    submission = extract(source.replace(old, new.format(half)), SPECS[spec], "early.py")
    seen = checker.observe([(submission, spec, "uneven", 20, "natural", float("nan"))])[0]
    report = verdict.Judge(spec, find_case(spec, "uneven"), 20).report(seen)
    assert [finding.kind for finding in report.findings] == ["values"]
    assert report.errors["output"] > 5 * report.bounds["output"]


def test_a_hole_is_not_started_and_not_wrong(checker: Checker, tmp_path: Path) -> None:
    body = reference_source(SPECS["silu_mul"]).rsplit('"""', 1)[1]  # of the last kernel
    todo = '\n    tl.static_assert(False, "TODO 07.3: write silu_mul_kernel in labs/x.py")\n'
    result = checker.check("silu_mul", edited(tmp_path, "silu_mul", body, todo))
    assert result.status == "todo" and result.score == 0.0 and not result.correct
    assert [stage.name for stage in result.stages] == ["lint"]
    text = screen_of(result)
    assert "TODO 07.3" in text and "not started" in text and "✗" not in text


def test_python_in_a_kernel_stops_at_the_lint(checker: Checker, tmp_path: Path) -> None:
    file = edited(tmp_path, "rope", "pair = tl.arange", "import os\n    pair = tl.arange")
    result = checker.check("rope", file)
    assert result.status == "failed" and result.stage("lint").status == "failed"
    assert result.stage("compile").status == "not run" and not result.cases
    assert "an import" in screen_of(result)


def test_what_only_the_interpreter_accepts_stops_at_the_compiler(
    checker: Checker, tmp_path: Path
) -> None:
    """A variable that changes its type in a loop."""
    loop = "half = 0\n    for _ in range(0, x_stride):\n        half = half * 1.5\n"
    new = f"{loop}    pair = tl.arange"
    result = checker.check("rope", edited(tmp_path, "rope", "pair = tl.arange", new))
    stage = result.stage("compile")
    assert stage.status == "failed" and stage.findings[0].kind == "compile"
    assert stage.findings[0].line and "✗" in stage.text


def test_a_stale_read_names_line_program_tensor_and_element(
    checker: Checker, tmp_path: Path
) -> None:
    file = edited(tmp_path, "paged_decode", "visible = position < end", "visible = position <= end")
    result = checker.check("paged_decode", file, seed=3)
    finding = result.stage("interpreter").findings[0]
    assert finding.kind == "stale_read" and finding.tensor == "key_cache"
    assert finding.element and finding.program == (0, 0, 0)
    line = file.read_text().splitlines()[(finding.line or 0) - 1]
    assert "tl.load(key_cache_ptr" in line
    text = screen_of(result)
    assert line.strip() in text and "key_cache[block" in text and "request" not in tiers(result)
    assert "values not run" in tiers(result) and "GPU not run" in tiers(result)
    assert result.score == 0.0


def test_a_slow_kernel_is_right_but_has_not_all_points(checker: Checker, tmp_path: Path) -> None:
    bug = next(bug for bug in controls.BUGS if bug.kind == "traffic" and bug.spec == "silu_mul")
    result = checker.check("silu_mul", edited(tmp_path, "silu_mul", bug.old, bug.new))
    assert result.status == "slow" and result.correct and not result.passed
    assert check.CORRECT_POINTS < result.score < 1.0
    text = screen_of(result)
    assert "1.33 times the least possible bytes" in text and "moves or computes too much" in text


def test_a_result_that_depends_on_the_order_of_programs_is_a_race(checker: Checker) -> None:
    """The monitor is blind here on purpose: only the comparison of bits is left."""
    spec = SPECS["silu_mul"]
    case = cases_of("silu_mul")[1]
    submission = check.extract(reference_source(spec), spec, "reference")
    job = (submission, spec.name, case.name, 1, "natural", float("nan"))
    seen = checker.observe([job])[0]
    run = check._Run(checker, CheckResult("silu_mul", "cpu", "", 1), "", None)
    run.bits[case.name] = {"output": seen.outputs["output"] + 1}
    assert [finding.kind for finding in run._compare_bits(case, seen)] == ["race"]
    run.bits[case.name] = {"output": seen.outputs["output"].clone()}
    assert run._compare_bits(case, seen) == []


@pytest.mark.parametrize("what", ["kernel", "answer"])
def test_a_checker_that_misses_its_controls_gives_no_score(
    checker: Checker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "kernel":
        harmless = dataclasses.replace(controls.bugs_of("silu_mul")[0], new="gate * up")
        harmless = dataclasses.replace(harmless, old=harmless.new)
        source = reference_source(SPECS["silu_mul"])
        monkeypatch.setattr(controls.Bug, "apply", lambda bug, text: source)
        monkeypatch.setattr(controls, "bugs_of", lambda spec: (harmless,))
    else:
        monkeypatch.setattr(
            controls, "wrong_answers", lambda want, problem: {"the right answer": want}
        )
    result = checker.check("silu_mul", sample=2)
    assert result.status == "broken" and result.score == 0.0 and not result.correct
    assert result.stage("controls").findings[0].kind == "broken"
    assert "checker itself is broken" in conclusion(result)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bug", controls.BUGS, ids=lambda bug: f"{bug.spec}-{bug.kind}")
def test_every_seeded_bug_is_named(checker: Checker, bug: controls.Bug) -> None:
    assert bug.kind in {finding.kind for finding in check.run_bug(checker, bug, 20)}


def test_a_sample_holds_a_graded_case_and_depends_on_the_seed() -> None:
    known = cases_of("paged_decode")
    chosen = [sampled(known, 4, seed) for seed in range(6)]
    assert all(len(cases) == 4 and sum(case.graded for case in cases) == 1 for cases in chosen)
    assert len({tuple(case.name for case in cases) for cases in chosen}) > 1
    assert sampled(known, None, 0) == list(known)


def test_the_file_is_the_learners_where_a_phase_owns_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SPECS["silu_mul"]
    engine = ROOT / "mini_vllm/kernels/fused.py"
    assert default_file(ROOT, spec) == engine

    class Phase:
        modules = (spec.module,)

        def lab_file(self, module: str) -> Path:
            return tmp_path / "fused.py"

    monkeypatch.setattr(Course, "ready", (Phase(),))
    assert default_file(ROOT, spec) == engine  # LAB=reference
    monkeypatch.setenv("LAB", "labs")
    assert default_file(ROOT, spec) == tmp_path / "fused.py"


def test_a_result_is_json_of_one_schema(checker: Checker, tmp_path: Path) -> None:
    result = checker.check("silu_mul", seed=1, sample=2)
    data = json.loads(json.dumps(result.plain(), allow_nan=False))
    assert (data["schema"], data["status"]) == (1, "passed")
    assert data["seed"] == 1 and data["cases"][0]["traffic_ratio"]
    assert data["stages"][-1] == {"name": "gpu", "status": "not run", "text": "", "findings": []}
    draw(points_of(result), H200, tmp_path / "roof.png")
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")


def test_a_cpu_pass_says_that_no_gpu_ran() -> None:
    names = ("lint", "compile", "interpreter", "values", "repeat", "efficiency", "controls")
    result = CheckResult("rope", "cpu", "x.py", 1, [Stage(name, "passed") for name in names])
    assert result.passed and tiers(result).endswith("GPU not run")
    assert "no GPU has run it" in conclusion(result)


def test_the_command_names_the_kernels_and_fails_politely(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in ([], ["paged"], ["rope", "--file", "nowhere.py"], ["rope", "--mode", "tpu"]):
        assert cli.call("check-kernel", cli.COMMANDS["check-kernel"], words) == 2
    errors = capsys.readouterr().err
    assert "no kernel 'paged'" in errors and "paged_prefill" in errors
    assert "nowhere.py is not a file" in errors and "'tpu'" in errors


@pytest.mark.parametrize(
    "line, kernel, said",
    [
        (82, "w8a8_gemm_kernel", ":82 (w8a8_gemm_kernel)"),
        (16, "", ":16; read"),
        (None, "", "(w8a8_gemm_kernel)"),
    ],
)
def test_the_next_step_is_the_kernel_that_was_judged(
    line: int | None, kernel: str, said: str
) -> None:
    """Not the first kernel of its task; an import belongs to none."""
    file = "labs/09-quantization/quantized_kernels.py"
    finding = Finding("lint", "is wrong", kernel, line)
    result = CheckResult("w8a8_gemm", "cpu", file, 0, [Stage("lint", "failed", "", (finding,))])
    text = screen_of(result)
    assert "()" not in text
    assert said in text.split("next: edit ")[1]
