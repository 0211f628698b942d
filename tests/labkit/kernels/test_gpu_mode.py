"""The parts of GPU mode that need no GPU: guard bands, the protocol of timing, and its numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from labkit.course.root import find_root
from labkit.kernels.cases import SPECS, build, cases_of, large
from labkit.kernels.cases.large import LARGE
from labkit.kernels.measure import gpu, gpu_timing, on_gpu, timing
from labkit.kernels.measure.guard import BAND_BYTES, Guarded, guard_all
from labkit.kernels.verdict import oracles
from labkit.kernels.verdict.controls import BUGS
from labkit.kernels.watch.extract import extract, reference_source


def around(guarded: Guarded) -> torch.Tensor:
    """The memory of a guarded tensor as elements, with one band on either side."""
    return guarded._memory.view(guarded.view.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32])
def test_a_guarded_tensor_is_the_same_tensor(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).view(4, 6).to(dtype)[:, 1:4]
    guarded = Guarded(tensor, "cpu")
    assert torch.equal(guarded.view, tensor) and guarded.view.stride() == tensor.stride()
    assert guarded.damage(False) == ""


@pytest.mark.parametrize(
    ("offset", "where"), [(-1, "before the start"), (3, "between the rows"), (21, "behind the end")]
)
def test_a_write_outside_is_found(offset: int, where: str) -> None:
    """A slice [:, 0:3] of [4, 6] spans 21 elements."""
    guarded = Guarded(torch.zeros(4, 6)[:, :3], "cpu")
    around(guarded)[BAND_BYTES // 4 + offset] = 1.0
    assert where in guarded.damage(True) and "4 bytes" in guarded.damage(True)


def test_what_lies_around_is_nan_for_floats() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert around(Guarded(torch.zeros(8, dtype=dtype), "cpu"))[0].isnan()


def test_an_input_must_stay_and_an_output_may_change() -> None:
    guarded = Guarded(torch.zeros(3, 2), "cpu")
    guarded.view[2, 1] = 5.0
    assert guarded.damage(True) == ""
    assert "[2, 1]" in guarded.damage(False)
    only_last_row = torch.tensor([[False], [False], [True]])
    assert guarded.damage(only_last_row) == ""
    guarded.reset()
    assert guarded.damage(False) == ""
    guarded.reset(output=True)
    assert guarded.view.isnan().all() and guarded.damage(False) == ""


def test_a_whole_problem_is_guarded() -> None:
    problem, _ = build("paged_decode", "ragged", 1)
    guarded = guard_all(problem, "cpu")
    assert set(guarded) == {k for k, v in problem.items() if isinstance(v, torch.Tensor)}
    assert all(each.damage(False) == "" for each in guarded.values())


class FakeClock:
    """A clock on which launch n takes as long as a script says, and wall time follows."""

    def __init__(self, script: Callable[[int], float]) -> None:
        self.script, self.now, self.launched = script, 0.0, list[str]()

    def time(self, launch: Callable[[], None]) -> float:
        launch()
        microseconds = self.script(len(self.launched))
        self.now += microseconds / 1e6
        return microseconds

    def wall(self) -> float:
        return self.now

    def candidate(self, name: str, sets: int = 3) -> list[Callable[[], None]]:
        return [lambda i=i: self.launched.append(f"{name}{i}") for i in range(sets)]  # type: ignore[misc]


def test_candidates_take_turns_on_changing_inputs() -> None:
    clock = FakeClock(lambda n: 10_000.0)
    samples = timing.interleave(clock, {"a": clock.candidate("a"), "b": clock.candidate("b")})
    assert clock.launched[:8] == ["a0", "b0", "a1", "b1", "a2", "b2", "a0", "b0"]
    assert len(samples["a"]) == len(samples["b"]) == timing.MIN_SAMPLES


def test_short_kernels_are_repeated_and_long_ones_end() -> None:
    fast = FakeClock(lambda n: 50.0)
    samples = timing.interleave(fast, {"a": fast.candidate("a")})
    assert sum(samples["a"]) >= timing.MIN_MICROSECONDS
    slow = FakeClock(lambda n: 500_000.0)
    samples = timing.interleave(slow, {"a": slow.candidate("a"), "b": slow.candidate("b")})
    assert len(samples["a"]) == 4  # 2 s for each of the two, in turns


def test_pairs_cancel_a_drift_that_the_medians_do_not_see() -> None:
    """Clocks fall while two equal kernels are timed: each pair still has the ratio 1."""
    drift = [100.0 * 1.05**i for i in range(20)]
    assert timing.paired_ratio(drift, drift) == 1.0
    assert timing.paired_ratio([2 * t for t in drift], drift) == pytest.approx(2.0)
    assert timing.summarise(drift).noisy


def test_quantiles() -> None:
    times = timing.summarise([5.0, 1.0, 2.0, 3.0, 4.0, 100.0])
    assert (times.p20, times.median, times.p80) == pytest.approx((2.0, 3.5, 5.0))
    assert times.samples == 6 and times.noisy
    assert not timing.summarise([10.0] * 30).noisy
    with pytest.raises(ValueError, match="no samples"):
        timing.summarise([])


def test_a_time_below_the_floor_or_with_work_elsewhere_is_not_believed() -> None:
    honest = timing.summarise([100.0] * 30)
    assert timing.suspicion(honest, 90.0, 100.0, 140.0) == ""
    assert "less than 90%" in timing.suspicion(honest, 120.0, 100.0, 100.0)
    assert "elsewhere" in timing.suspicion(honest, 90.0, 100.0, 200.0)


CASE_ON_CPU = """
import json, sys
from labkit.kernels.measure import on_gpu
from labkit.kernels.cases import SPECS, find_case
from labkit.kernels.watch.extract import extract
on_gpu.DEVICE, on_gpu.WARPS, on_gpu.STAGES, on_gpu.REPEATS = "cpu", (1, 4), (2,), 3
on_gpu.torch.cuda.synchronize = lambda: None
spec, case = SPECS[sys.argv[1]], find_case(*sys.argv[1:3])
kernels = extract(sys.stdin.read(), spec, "kernels.py").module()
item = on_gpu.run_case(kernels, spec, case, 5, True)
sent = item["outputs"].items()
outputs = {name: [dtype, tensor.float().tolist()] for name, (dtype, tensor) in sent}
print(json.dumps(item | {"outputs": outputs}))
"""


def run_case_on_cpu(spec: str, case: str, source: str) -> dict[str, object]:
    """`on_gpu.run_case` as it is, with the interpreter in the GPU's place."""
    env = dict(os.environ) | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(find_root())}
    words = [sys.executable, "-c", CASE_ON_CPU, spec, case]
    done = subprocess.run(words, input=source, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_a_case_in_all_configurations_between_guard_bands() -> None:
    item = run_case_on_cpu("silu_mul", "row", reference_source(SPECS["silu_mul"]))
    assert item["findings"] == [] and item["skipped"] == []
    assert gpu._judge(item, SPECS["silu_mul"], 5) == []


def test_wrong_values_and_a_changed_input_are_found_on_a_gpu_too() -> None:
    known = {(bug.spec, bug.kind): bug for bug in BUGS if bug.case == "row"}
    spec, source = SPECS["silu_mul"], reference_source(SPECS["silu_mul"])
    wrong = run_case_on_cpu("silu_mul", "row", known["silu_mul", "values"].apply(source))
    assert [finding.kind for finding in gpu._judge(wrong, spec, 5)] == ["values"]
    changed = run_case_on_cpu("silu_mul", "row", known["silu_mul", "input_changed"].apply(source))
    kinds = {finding.kind for finding in gpu._judge(changed, spec, 5)}
    assert "input_changed" in kinds


def test_the_profiler_must_have_seen_these_kernels_and_no_others() -> None:
    seen = ["rope_kernel", "Memset (Device)", "void at::native::elementwise_kernel<4>"]
    assert on_gpu.check_names(seen, ["rope_kernel"]) == []
    assert "did not see" in on_gpu.check_names(["Memset"], ["rope_kernel"])[0][1]
    assert "ampere_gemm" in on_gpu.check_names([*seen, "ampere_gemm"], ["rope_kernel"])[0][1]


def test_configurations_may_differ_by_rounding_only() -> None:
    first = {"output": torch.ones(4, 4)}
    assert on_gpu.moved(first, {"output": first["output"] * (1 + 1e-6)}, "float32", "") == []
    assert on_gpu.moved(first, {"output": first["output"] * 1.001}, "float32", "")[0][0] == "race"
    holes = first["output"].clone()
    holes[0, 0] = float("nan")
    assert on_gpu.moved(first, {"output": holes}, "float32", "")


def test_every_configuration_comes_once_and_the_launchers_own_first() -> None:
    problem, _ = build("rope", "head", 1)
    known = on_gpu.configurations(SPECS["rope"], problem)
    launch = SPECS["rope"].plan(**problem)[0]
    assert known[0] == (launch.num_warps, launch.num_stages)
    assert len(known) == len(set(known)) == len(on_gpu.WARPS) * len(on_gpu.STAGES)


LARGE_CASES: dict[str, set[str]] = {
    "store_kv": {"big-cache", "deep", "far", "many-slots"},
    "paged_decode": {"big-cache", "far", "far-table", "many-blocks", "order-far", "thousand"},
    "paged_prefill": {"big-cache", "far", "far-output", "far-table", "many-blocks"},
    "tiled_prefill": {"big-cache", "far", "far-output", "far-table", "many-blocks"},
    "reduce_splits": {"long", "long-masses", "long-output"},
    "split_decode": {"many-blocks"},
    "rms_norm": {"far", "long"},
    "rope": {"apart", "long"},
    "qk_norm_rope_store": {"big-cache", "far", "many-slots"},
    "decode_inputs": {"far", "far-step"},
    "silu_mul": {"long"},
    "apply_token_bitmask": {"far", "far-masks", "large-vocab", "many-masks"},
    "per_token_quant_int8": {"far", "long", "quotients"},
    "gemm": {"far", "long-output", "long-weight"},
    "gemv": {"far", "long-weight"},
    "w8a8_gemm": {"far", "long-output", "long-weight"},
    "w4a16_gemm": {"far", "long-output", "long-weight"},
    "store_kv_int8": {"big-cache", "deep", "far", "quotients"},
    "paged_decode_int8": {"big-cache", "far", "many-blocks", "order-far", "thousand"},
    "rejection_random_sample": {"deep", "far", "far-drafts"},
    "draw_tokens": {"far"},
    "lora_shrink": {"far-rows", "far-slots", "many-slices"},
    "lora_expand": {"far-rows", "far-slots", "late-slices", "long-hidden"},
    "grouped_gemm": {"far", "far-experts", "long-output"},
    "gdn_decode": {"far", "far-states"},
    "mla_decode": {"big-cache", "far", "far-table", "many-blocks", "order-far"},
}


@pytest.mark.parametrize("spec", SPECS)
def test_large_tensors_and_parts_of_launches_are_left_to_cpu_mode(spec: str) -> None:
    cases = on_gpu.small_cases(spec)
    small = {case.name for case in cases}
    names = {case.name for case in cases_of(spec)} - small
    assert len(on_gpu.swept(cases)) == 3  # one of each dtype runs in all configurations
    assert names == LARGE_CASES[spec]


def test_a_row_of_the_roofline_table() -> None:
    problem, _ = build("rope", "traffic", 1)
    work = SPECS["rope"].work(**problem)
    ceilings = {"bandwidth": work.num_bytes * 1e6, "flops": 1e15}  # the bytes take 1 µs
    row = gpu_timing.timing_row({"yours": [2.0] * 3, "reference": [4.0] * 3}, work, ceilings)
    assert row["floor_us"] == pytest.approx(1.0) and row["bound"] == "memory"
    assert row["share"] == pytest.approx(0.5) and row["ratio"] == {"reference": 0.5}


class FakeKernels:
    """A module whose silu_mul_kernel is a Python function; it does nothing for `limit` rows."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    @property
    def silu_mul_kernel(self) -> FakeKernels:
        return self

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(output_ptr: torch.Tensor, gate_up_ptr: torch.Tensor, **_: object) -> None:
            if grid[0] < self.limit:
                gate, up = gate_up_ptr.chunk(2, dim=-1)
                output_ptr.copy_(torch.nn.functional.silu(gate) * up)

        return run


def test_what_is_timed_is_compared_too() -> None:
    """A kernel that is right for few rows and idle for many, as a benchmark has."""
    spec, right, idle = SPECS["silu_mul"], FakeKernels(100), FakeKernels(8)
    for rows, expected in ((4, 0), (8, 1)):
        problem = large.silu(rows)(torch.Generator().manual_seed(1), torch.device("cpu"))
        assert gpu_timing.same_answer(right, right, spec, problem, "8 rows") == []
        found = gpu_timing.same_answer(idle, right, spec, problem, "8 rows")
        assert len(found) == expected
    assert found[0][0] == "values" and "8 rows: output differs" in found[0][1]
    assert "the engine's kernel" in found[0][1]


def test_what_is_timed_is_made_of_random_numbers() -> None:
    """Zeros keep a GPU cool, and a cool one is faster."""
    for make in (large.silu(3), large.norm(3), large.reduce(2, 4), large.decode(2, 40)):
        problem = make(torch.Generator().manual_seed(1), torch.device("cpu"))
        inputs = [t for k, t in problem.items() if k not in ("output", "seq_lens", "block_table")]
        for tensor in (t for t in inputs if isinstance(t, torch.Tensor)):
            assert (tensor == 0).float().mean() < 0.01 and tensor.float().std() > 0.5


def test_each_kernel_has_a_large_problem_that_its_launcher_takes() -> None:
    """On a small scale on the CPU: the launcher and the oracle accept what `large.py` draws."""
    assert {known.spec for known in LARGE} == set(SPECS)
    small = {
        "store_kv": large.store_kv(32), "paged_decode": large.decode(2, 40),
        "split_decode": large.decode(1, 70, 2), "reduce_splits": large.reduce(2, 4),
        "paged_prefill": large.prefill(2, 20), "tiled_prefill": large.prefill(2, 20),
        "rms_norm": large.norm(3), "rope": large.rope(3),
        "qk_norm_rope_store": large.qkv(3), "silu_mul": large.silu(3),
        "decode_inputs": large.replay(3, 4, 5),
        "per_token_quant_int8": large.per_token(3),
        "gemm": large.dense(2), "gemv": large.few(3, 40, 50),
        "w8a8_gemm": large.w8a8(2), "w4a16_gemm": large.w4a16(2),
        "store_kv_int8": large.store_int8(32), "paged_decode_int8": large.decode_int8(2, 40),
        "gdn_decode": large.gdn(2, 2, 16), "mla_decode": large.mla(2, 40, 2, 2),
    }  # fmt: skip
    for name, make in small.items():
        problem = make(torch.Generator().manual_seed(1), torch.device("cpu"))
        assert SPECS[name].plan(**problem) and SPECS[name].work(**problem).num_bytes > 0
        full = {"window": None, "residual": None} | problem
        assert all(t.isfinite().all() for t in oracles.expected(name, full).values())


def test_a_graphs_inputs_are_timed_beside_what_fills_them_without_kernels() -> None:
    problem = large.replay(3, 4, 5)(torch.Generator().manual_seed(1), torch.device("cpu"))
    right = oracles.expected("decode_inputs", problem)
    gpu_timing.baselines(SPECS["decode_inputs"], [problem])["torch"][0]()
    assert all(torch.equal(problem[name], tensor) for name, tensor in right.items())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: gpu-report runs it")
def test_without_a_gpu_it_says_so() -> None:
    spec = SPECS["rope"]
    submission = extract(reference_source(spec), spec, "rope")
    assert not isinstance(submission, list)
    with pytest.raises(ValueError, match="no CUDA device"):
        gpu.measure_kernel(submission, spec, 1)
    assert gpu.sanitize(submission, spec, 1)["status"] == "not run" or gpu.sanitizer_command()
