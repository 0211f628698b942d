"""Kernels compiled for GPUs that are not here, in a child, and children that give no answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from labkit.inside.child import Limits
from labkit.kernels.cases import SPECS, build, large
from labkit.kernels.requests import branch_requests, launch_requests, requests_of
from labkit.kernels.watch.crosscompile import (
    CompileReport,
    CompileRequest,
    as_decorated,
    compile_request,
    load_widths,
)
from labkit.kernels.watch.extract import Submission, extract, reference_source
from labkit.kernels.watch.findings import Finding
from labkit.kernels.watch.observation import Observation, Traffic
from labkit.kernels.workers import Sandbox, finding_from
from labkit.process.worker import WorkerError
from mini_vllm.kernels.attention import PAGED_DECODE, PAGED_PREFILL, STORE_KV
from mini_vllm.kernels.launch import KernelSpec, Launch
from mini_vllm.kernels.pointwise import RMS_NORM, SILU_MUL
from mini_vllm.kernels.quantization import W8A8_GEMM

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(ROOT) as box:
        yield box


def kernels(spec: KernelSpec, **changes: str) -> Submission:
    """The engine's kernels with some text changed."""
    source = reference_source(spec)
    for old, new in changes.values():
        assert source.count(old) == 1, f"{old!r} stands there {source.count(old)} times"
        source = source.replace(old, new)
    result = extract(source, spec, "learner.py")
    assert isinstance(result, Submission), result
    return result


def silu(body: str) -> Submission:
    """The kernel silu_mul with one more line before its store, and helpers around it."""
    source = (
        "import triton\nimport triton.language as tl\n\n\n"
        "@triton.jit\ndef helper(x):\n    return tl.dot(x, x)\n\n\n"
        "@triton.jit\n"
        "def silu_mul_kernel(output_ptr, gate_up_ptr, SIZE: tl.constexpr, TILE: tl.constexpr):\n"
        "    column = tl.arange(0, TILE)\n"
        f"    {body}\n"
        "    tl.store(output_ptr + column, x)\n\n\n"
        "@triton.jit\ndef silent(x):\n    x += 1\n"
    )
    result = extract(source, SILU_MUL, "learner.py")
    assert isinstance(result, Submission), result
    return result


def silu_request(capability: int = 90) -> CompileRequest:
    gate_up, output = torch.zeros(2, 32), torch.zeros(2, 16)
    (launch,) = SILU_MUL.plan(gate_up=gate_up, output=output)
    return compile_request(launch, capability)


# ---------------------------------------------------------------- what Triton specialises on
def test_a_request_specialises_as_triton_does() -> None:
    wide = torch.zeros(8, 8, dtype=torch.bfloat16)
    args = {"a_ptr": wide, "b_ptr": wide[:, 1:], "n": 32, "m": 33, "one": 1, "far": 2**31, "f": 1.0}
    request = compile_request(Launch("k", (1,), args, {"TILE": 8}, num_warps=8), 80)
    assert request.types == {
        "TILE": "constexpr", "a_ptr": "*bf16", "b_ptr": "*bf16", "n": "i32", "m": "i32",
        "one": "constexpr", "far": "i64", "f": "fp32",
    }  # fmt: skip
    assert request.values == {"TILE": 8, "one": 1}
    assert request.aligned == ("a_ptr", "n", "far")
    assert (request.num_warps, request.capability) == (8, 80)
    assert CompileRequest.parse(request.plain()) == request


def test_a_decorator_keeps_numbers_from_being_specialised() -> None:
    args = {"a_ptr": torch.zeros(8), "n": 32, "m": 16, "one": 1, "two": 1}
    params = [SimpleNamespace(name=name, do_not_specialize=name in ("n", "one")) for name in args]
    request = compile_request(Launch("k", (1,), args, {"TILE": 8}), 80)
    request = as_decorated(request, SimpleNamespace(params=params))
    assert (request.types["n"], request.types["one"]) == ("i32", "i32")
    assert request.types["two"] == request.types["TILE"] == "constexpr"
    assert request.values == {"TILE": 8, "two": 1} and request.aligned == ("a_ptr", "m")


def test_load_widths_are_read_from_ptx() -> None:
    ptx = """
        @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        @%p1 ld.global.b16 { %rs1 }, [ %rd2 + 0 ];
        ld.global.L1::evict_last.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];
        ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];
        st.global.v4.b32 [ %rd1 + 0 ], { %r1, %r2, %r3, %r4 };
        cp.async.cg.shared.global [ %r1 + 0 ], [ %rd2 + 0 ], 0x10, %r3;
        ld.param.b64 %rd1, [k_param_0];
    """
    assert load_widths(ptx) == {2: 1, 8: 1, 16: 2}


# ---------------------------------------------------------------- compiled
@pytest.mark.parametrize("capability", [80, 90])
def test_a_kernel_compiles_and_its_needs_are_known(sandbox: Sandbox, capability: int) -> None:
    problem = dict(x=torch.zeros(4, 1024), weight=torch.zeros(1024), output=torch.zeros(4, 1024))
    (launch,) = RMS_NORM.plan(**problem, eps=1e-6)
    report = sandbox.compile(kernels(RMS_NORM), compile_request(launch, capability))
    assert isinstance(report, CompileReport), report
    assert 16 <= report.registers <= 64 and report.spill_stores == report.spill_loads == 0
    assert set(report.load_widths) == {16} and not report.uses_tensor_cores
    assert 0 < report.shared_bytes < 1024 and report.capability == capability
    assert CompileReport.parse(report.plain()) == report


MODEL_SHAPES: dict[str, tuple[Callable[..., dict[str, Any]], ...]] = {
    "qk_norm_rope_store": (large.qkv(2),),
    "decode_inputs": (large.replay(3, 4, 16), large.replay(16, 16, 1)),
    "gemv": (large.few(1, 6144, 1024), large.few(2, 1024, 3072), large.few(4, 6144, 1024)),
    "paged_decode": (large.decode(2, 40), large.ragged(large.decode(2, 40), order=True)),
    "paged_decode_int8": (
        large.decode_int8(2, 40),
        large.ragged(large.decode_int8(2, 40), order=True),
    ),
    "mla_decode": tuple(
        problem
        for heads in (16, 128)
        for problem in (
            large.mla(2, 40, heads),
            large.ragged(large.mla(2, 40, heads), order=True),
        )
    ),
    "tiled_prefill": (large.prefill(1, 20),),
    "draw_tokens": (large.drawn(2),),
    "gdn_decode": (large.gdn(2),),
}
"""Problems in bfloat16 with the sides that models have; what they hold is not read."""


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", MODEL_SHAPES)
def test_no_number_of_a_kernel_of_the_engine_is_spilled(
    sandbox: Sandbox, name: str, capability: int
) -> None:
    spec, generator = SPECS[name], torch.Generator().manual_seed(1)
    problems = [make(generator, torch.device("cpu")) for make in MODEL_SHAPES[name]]
    for launch in (launch for problem in problems for launch in spec.plan(**problem)):
        report = sandbox.compile(kernels(spec), compile_request(launch, capability))
        assert isinstance(report, CompileReport), report
        assert report.spill_stores == report.spill_loads == 0, report


def test_a_kernel_without_an_optional_parameter_is_compiled_for_the_others(
    sandbox: Sandbox,
) -> None:
    """With the parameter both ways are compiled, and without an order nothing is left of it."""
    path = ROOT / "tests/corpora/kernel_corpus/honest/a/triton_paged.py"
    older = extract(path.read_text(encoding="utf-8"), PAGED_DECODE, "older.py")
    assert isinstance(older, Submission) and older.optional == ()
    newer, found = kernels(PAGED_DECODE), {}
    for name, submission in (("older", older), ("newer", newer)):
        requests = requests_of(PAGED_DECODE, submission)
        found[name] = {request.types.get("order_ptr") for *_, request in requests}
    assert found == {"older": {None}, "newer": {None, "*i64"}}
    read = (
        "    if order_ptr is not None:\n"
        "        place = kv_head * tl.num_programs(0) + tl.program_id(0)\n"
        "        request = tl.load(order_ptr + place // num_kv_heads)\n"
        "        kv_head = place % num_kv_heads\n"
    )
    plain = kernels(PAGED_DECODE, read=(read, ""), taken=("    order_ptr=None,", "    #"))
    problem, _ = build("paged_decode", "ragged", 1)
    (launch,) = PAGED_DECODE.plan(**problem)
    request = compile_request(launch, 90)
    first, second = (sandbox.compile(submission, request) for submission in (newer, plain))
    assert isinstance(first, CompileReport) and isinstance(second, CompileReport), (first, second)
    assert dataclasses.replace(first, seconds=0.0) == dataclasses.replace(second, seconds=0.0)


def test_rows_that_are_not_aligned_are_loaded_in_small_pieces(sandbox: Sandbox) -> None:
    problem = dict(x=torch.zeros(4, 1027)[:, 1:1025], weight=torch.zeros(1024))
    (launch,) = RMS_NORM.plan(**problem, output=torch.zeros(4, 1024), eps=1e-6)
    report = sandbox.compile(kernels(RMS_NORM), compile_request(launch, 90))
    assert isinstance(report, CompileReport), report
    assert set(report.load_widths) == {4, 16}, "x in single floats, the weight in fours"


def test_a_dot_of_bfloat16_uses_tensor_cores(sandbox: Sandbox) -> None:
    problem, _ = build("paged_prefill", "traffic", seed=0)
    (launch,) = PAGED_PREFILL.plan(**problem)
    report = sandbox.compile(kernels(PAGED_PREFILL), compile_request(launch, 90))
    assert isinstance(report, CompileReport), report
    assert report.uses_tensor_cores and report.shared_bytes > 10_000


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("x = [1, 2][column]", 13, ""),
        ("x = column.to(tl.float32); y = tl.dot(x[:, None], x[None, :])", 13, "K >= "),
        ("x = helper(column)", 7, ""),
        ("x = column\n    for i in range(3):\n        x = tl.sum(x)", 14, "x"),
        ("x = tl.arange(0, 3)", 13, "power of 2"),
        ("x = gate_up_ptr + column / 2", 13, "an offset is a whole number, and / gives none: //"),
        ("x = gate_up_ptr[column]", 13, "no index picks elements: tl.load(pointer + offsets)"),
        ("x = column[0]", 13, "x[:, None] adds an axis"),
        ("x = column + silent(column)", 13, "a function without `return` gives nothing"),
    ],
)  # fmt: skip
def test_what_only_the_interpreter_accepts_is_rejected(
    sandbox: Sandbox, body: str, line: int, words: str
) -> None:
    finding = sandbox.compile(silu(body), silu_request())
    assert isinstance(finding, Finding), finding
    assert finding.kind == "compile" and finding.line == line, finding
    assert "does not compile for sm_90: " in finding.message and words in finding.message


def test_an_argument_that_is_1_is_a_constant(sandbox: Sandbox) -> None:
    """One token has one row: the argument is a constant then, which has no `.to`."""
    total = "    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.int32)\n"
    bare, safe = (
        kernels(W8A8_GEMM, cast=(total, f"    is_token = token < {count}\n{total}"))
        for count in ("num_tokens.to(tl.int64)", "tl.cast(num_tokens, tl.int64)")
    )
    (request,) = (each for case, each in launch_requests(W8A8_GEMM) if case == "one")
    assert request.types["num_tokens"] == "constexpr"
    found = sandbox.compile(bare, request)
    assert isinstance(found, Finding) and found.line is not None
    assert "num_tokens can be 1, and then Triton makes a constant of it" in found.message
    assert isinstance(sandbox.compile(safe, request), CompileReport)


def test_a_way_that_few_launches_take_is_compiled_too(sandbox: Sandbox) -> None:
    """The interpreter takes an exponential in half precision; the compiler must see it."""
    line = "    inside = column < SIZE\n    gate_ptr"
    rare = (
        "    if SIZE == 12:\n        column += (tl.exp(column.to(tl.float16)) * 0).to(tl.int32)\n"
    )
    found = kernels(SILU_MUL, rare=(line, rare + line))
    assert branch_requests(SILU_MUL, kernels(SILU_MUL)) == []
    ((case, request),) = branch_requests(SILU_MUL, found)
    assert (case, request.values["SIZE"]) == ("hundreds", 12)
    refused = sandbox.compile(found, request)
    assert isinstance(refused, Finding) and "fp16" in refused.message


def test_more_shared_memory_than_there_is(sandbox: Sandbox) -> None:
    problem, _ = build("paged_decode", "traffic-8", seed=0)
    (launch,) = PAGED_DECODE.plan(**problem)
    large = launch.constexprs | {"KEY_TILE": 256}
    request = compile_request(dataclasses.replace(launch, constexprs=large, num_stages=7), 80)
    finding = sandbox.compile(kernels(PAGED_DECODE), request)
    assert isinstance(finding, Finding) and finding.kind == "compile", finding
    assert "bytes of shared memory on sm_80, where a block has 166,912" in finding.message


# ---------------------------------------------------------------- observed
def test_a_case_is_observed_in_a_child(sandbox: Sandbox) -> None:
    seen = sandbox.observe(kernels(SILU_MUL), "silu_mul", "tile", seed=3)
    assert isinstance(seen, Observation), seen
    assert seen.findings == () and seen.traffic.bytes_written > 0
    problem, _ = build("silu_mul", "tile", seed=3)
    output = seen.outputs["output"]
    assert output.dtype == torch.bfloat16 and output.shape == problem["output"].shape
    gate, up = problem["gate_up"].double().chunk(2, dim=-1)
    want = torch.nn.functional.silu(gate) * up
    assert float((output.double() - want).norm() / want.norm()) < 3e-3
    assert Traffic.parse(seen.traffic.plain()) == seen.traffic


def test_a_huge_output_comes_as_the_elements_that_must_be_written(sandbox: Sandbox) -> None:
    seen = sandbox.observe(kernels(STORE_KV), "store_kv", "big-cache", seed=3)
    assert isinstance(seen, Observation), seen
    problem, _ = build("store_kv", "big-cache", seed=3)
    assert problem["key_cache"].numel() > 2**31
    slots = problem["slot_mapping"]
    order = slots[slots >= 0].sort().indices
    kept = problem["key"][slots >= 0][order]
    # bit by bit, since the case stores a NaN too
    stored = seen.outputs["key_cache"]
    assert torch.equal(stored.view(torch.int16), kept.flatten().view(torch.int16))


def test_a_kernel_that_does_not_end(sandbox: Sandbox) -> None:
    endless = silu("x = column\n    while tl.sum(x) > -1:\n        x = x * 1")
    worker = sandbox._interpreter
    assert isinstance(sandbox.observe(kernels(SILU_MUL), "silu_mul", "one", seed=0), Observation)
    before = worker.limits
    worker.limits = Limits(seconds=8, memory_mb=before.memory_mb)
    finding = sandbox.observe(endless, "silu_mul", "one", seed=0)
    worker.limits = before
    assert isinstance(finding, Finding) and finding.kind == "timeout"
    assert finding.line in (14, 15) and "does not end within 8 s" in finding.message


@pytest.mark.parametrize(
    ("kind", "detail", "expected", "words"),
    [
        ("died", "exit code -11\nFatal", "crash", "signal 11: an illegal memory access"),
        ("died", "exit code -9\n", "crash", "out of memory"),
        ("died", "exit code 3\n", "crash", "exit code 3"),
        ("error", {"type": "KeyError", "message": "x", "frames": []}, "broken", "KeyError: x"),
        ("garbage", "{", "broken", "the checker itself failed"),
    ],
)
def test_a_child_without_an_answer_is_a_finding(
    kind: str, detail: object, expected: str, words: str
) -> None:
    finding = finding_from(WorkerError(kind, detail, "child"), kernels(SILU_MUL), "k", "running")
    assert finding.kind == expected and words in finding.message
