"""What reaches the checker from a learner's file: kernels, and nothing else."""

from __future__ import annotations

import dataclasses
import linecache
import traceback

import pytest

from labkit.kernels.watch.extract import Submission, extract, reference_source
from labkit.kernels.watch.findings import Finding, Findings
from mini_vllm.kernels import attention, pointwise
from mini_vllm.kernels.launch import KernelSpec, Work

SPECS = {spec.name: spec for spec in attention.SPECS + pointwise.SPECS}

COPY = '''"""A file with one kernel."""

import triton
import triton.language as tl

TILE = tl.constexpr(4)


@triton.jit
def twice(x):
    return x + x


@triton.jit
def copy_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    """Copy.

    def is a word of this docstring
    def copy_kernel(x_ptr, y_ptr, SIZE): would confuse a search for it.
    """
    lane = tl.arange(0, TILE)
    inside = lane < SIZE
    tl.store(y_ptr + lane, tl.load(x_ptr + lane, mask=inside, other=0.0), mask=inside)
'''
SPEC = KernelSpec(
    name="copy",
    module="none",
    kernels=("copy_kernel",),
    plan=lambda **problem: [],
    work=lambda **problem: Work(0, 0, 0),
    outputs=("y",),
)
BODY = COPY[COPY.index("    lane =") :]


def lint(source: str) -> list[Finding]:
    result = extract(source, SPEC, "learner.py", reference=COPY)
    assert isinstance(result, list), "the lint let it pass"
    return result


def with_line(line: str) -> str:
    """The file with one more line in the kernel, which is its line 22."""
    return COPY.replace("    lane = tl.arange", f"    {line}\n    lane = tl.arange")


@pytest.mark.parametrize("name", SPECS)
def test_the_engines_kernels_pass_the_lint(name: str) -> None:
    spec = SPECS[name]
    result = extract(reference_source(spec), spec, "engine.py")
    assert isinstance(result, Submission), result
    assert set(result.lines) == set(spec.kernels)


def test_only_what_is_launched_and_called_is_kept() -> None:
    result = extract(COPY, SPEC, "learner.py", reference=COPY)
    assert isinstance(result, Submission)
    assert result.lines == {"copy_kernel": 15}, "`twice` is not called"
    called = COPY.replace("tl.load(", "twice(tl.load(").replace("other=0.0)", "other=0.0))")
    result = extract(called, SPEC, "learner.py", reference=COPY)
    assert isinstance(result, Submission)
    assert result.lines == {"twice": 10, "copy_kernel": 15}


def test_a_type_may_be_noted() -> None:
    noted = with_line("base: tl.int64 = SIZE").replace("def twice(x)", "def twice(x: tl.float32)")
    result = extract(noted, SPEC, "learner.py", reference=COPY)
    assert isinstance(result, Submission), result


def test_a_module_holds_the_kernels_alone_and_keeps_their_lines() -> None:
    result = extract(COPY, SPEC, "learner.py", reference=COPY)
    assert isinstance(result, Submission)
    module = result.module()
    names = {name for name in vars(module) if not name.startswith("__")}
    assert names == {"triton", "tl", "TILE", "copy_kernel"}
    assert module is not result.module()
    function = module.copy_kernel.fn
    assert function.__code__.co_filename == "learner.py"
    assert function.__code__.co_firstlineno == 14
    with pytest.raises(Exception) as raised:  # tl.arange outside of a kernel
        function(1, 2, 3)
    frames = [f for f in traceback.extract_tb(raised.tb) if f.filename == "learner.py"]
    assert (frames[0].lineno, frames[0].line) == (21, "lane = tl.arange(0, TILE)")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("y = [i for i in range(4)]", "comprehension"),
        ("import os", "import"),
        ("f = lambda: 1", "lambda"),
        ('name = f"{SIZE}"', "f-string"),
        ("assert SIZE", "assert"),
        ("global TILE", "global"),
        ("y = print", "`print` is not known"),
        ("y = np", "`np` is not known"),
        ("y = np.arange(4)", "`np` is not known"),
        ("y = lan + 1", "`lan` is not known in a kernel: did you mean `lane`?"),
        ("y = tl.loa(x_ptr)", "a kernel may use: did you mean `tl.load`?"),
        ("y = x_ptr.handle", "`.handle`"),
        ("y = x_ptr.__class__", "`.__class__`"),
        ("y = SIZE.bit_length", "`.bit_length`"),
        ("y = tl.core", "`tl.core`"),
        ("y = tl.inline_asm_elementwise", "`tl.inline_asm_elementwise`"),
        ("y = tl.math.libdevice", "`tl.math.libdevice`"),
        ("y = tl.PropagateNan.name", "tl.PropagateNan has ALL and NONE"),
        ("y = triton.runtime", "`triton.runtime`"),
        ("y = tl", "`tl` may be used only as in"),
        ("tl.load(x_ptr, _semantic=1)", "_semantic"),
        ("tl.load(**x_ptr)", "`**`"),
        ("tl.load(*x_ptr)", "`*`"),
        ("x_ptr.shape = 1", "cannot be assigned"),
        ("x_ptr[0] = 1", "tl.where or tl.store"),
        ("tl.load = 1", "cannot be assigned"),
        ("TILE = 3", "`TILE` is taken"),
        ("twice = 3", "`twice` is taken"),
        ("y: int = 3", "annotated with tl.constexpr or a type of tl only"),
        ('y = """a\ndef b(): """', "on one line"),
        ("for i in x_ptr: pass", "`for` runs over range"),
        ("print('x', n)", "write tl.device_print"),
        ("(y := 1)", "`:=`"),
    ],
)
def test_the_body_holds_only_what_a_kernel_may(line: str, word: str) -> None:
    findings = lint(with_line(line))
    assert [finding.kind for finding in findings] == ["lint"] * len(findings)
    assert any(word in finding.message for finding in findings), findings
    if "taken" not in word:
        assert findings[0].line == 21
    assert findings[0].kernel == "copy_kernel"


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("import os", "`import os` would run outside"),
        ("import triton.language as language", "would run outside"),
        ("SIZE = 3", "would run outside"),
        ("LIMIT = tl.constexpr(open('x'))", "would run outside"),
        ("print(1)", "would run outside"),
        ("class A: pass", "would run outside"),
        ("def free(): pass", "no decorator"),
        ("@triton.jit(debug=True)\ndef free(): pass", "@triton.jit(debug=True)"),
        ("@triton.jit(do_not_specialize=[print('x')])\ndef free(): pass", "one decorator"),
        ("@triton.jit(do_not_specialize=['x'], debug=True)\ndef free(): pass", "one decorator"),
        ("@triton.jit(['x'])\ndef free(): pass", "one decorator"),
        ("@triton.jit\n@print\ndef free(): pass", "@triton.jit @print"),
        ("@triton.jit\ndef free(x=print(1)): pass", "only literals as defaults"),
        ("@triton.jit\ndef free(x: print(1)): pass", "annotated with tl.constexpr or a type of tl"),
        ("@triton.jit\ndef free() -> print(1): pass", "annotation of the result"),
        ("@triton.jit\ndef free(*x): pass", "no `*`"),
    ],
)
def test_nothing_else_stands_at_the_top(statement: str, word: str) -> None:
    findings = lint(COPY + "\n\n" + statement + "\n")
    assert word in findings[0].message, findings
    assert findings[0].line in (26, 27, 28)


def test_a_decorator_may_keep_numbers_from_being_specialised() -> None:
    source = COPY.replace("@triton.jit\n", '@triton.jit(do_not_specialize=["x", "y"])\n')
    result = extract(source, SPEC, "learner.py", reference=COPY)
    assert source != COPY and isinstance(result, Submission)
    result.module()


@pytest.mark.parametrize("end", ["\x0c", "\x0b", "\x1c", "\u2028", "\x85", "\r"])
def test_a_comment_cannot_turn_into_code(end: str) -> None:
    hidden = f"# note{end}def copy_kernel(x_ptr, y_ptr, SIZE): import os"
    result = extract(with_line(hidden), SPEC, "learner.py", reference=COPY)
    if end == "\r":
        assert isinstance(result, list), "to Python, too, this is a line of its own"
        return
    assert isinstance(result, Submission)
    result.module()
    lines = linecache.getlines("learner.py")
    assert [line for line in lines if line.strip().startswith("def copy")] == [lines[14]]


def test_a_docstring_may_share_its_line() -> None:
    body = '    """Copy."""; lane = tl.arange(0, TILE)'
    source = COPY[: COPY.index('    """Copy.\n')] + body + BODY[BODY.index("\n") :]
    result = extract(source, SPEC, "learner.py", reference=COPY)
    assert isinstance(result, Submission)
    result.module()
    assert linecache.getline("learner.py", 16) == '    ""; lane = tl.arange(0, TILE)\n'


def test_constants_are_literals() -> None:
    constants = 'A = tl.constexpr(-1)\nB = tl.constexpr(float("-inf"))\nC = tl.constexpr("ieee")\n'
    constants += "D = tl.constexpr(-(1.0 / 4) * 3)\n"
    result = extract(COPY + constants, SPEC, "learner.py", reference=COPY)
    assert isinstance(result, Submission)
    module = result.module()
    assert (module.A.value, module.D.value) == (-1, -0.75)


@pytest.mark.parametrize("value", ["2 ** 9", "'a' * 9", "[1] * 9", "A * 2", "1 << 9", "SIZE"])
def test_a_constant_takes_no_time(value: str) -> None:
    (finding,) = lint(COPY + f"BIG = tl.constexpr({value})\n")
    assert "would run outside of a kernel" in finding.message


@pytest.mark.parametrize(
    "line",
    [
        "y = lane.to(x_ptr.type.element_ty)",
        "y = lane.to(tl.float32) if x_ptr.dtype.element_ty.is_fp8() else lane",
        "y = x_ptr.dtype.element_ty.primitive_bitwidth // 8",
        "y = (lane > 1).logical_and(lane < 9)",
        "y = tl.math.exp2(lane.to(tl.float32))",
        "y = tl.maximum(lane, 0, propagate_nan=tl.PropagateNan.ALL)",
        "y = tl.squeeze(tl.unsqueeze(lane, 0), 0)",
    ],
)
def test_what_upstreams_kernels_say_is_known(line: str) -> None:
    result = extract(with_line(line), SPEC, "learner.py", reference=COPY)
    assert isinstance(result, Submission), result


def test_parameters_are_the_launchers() -> None:
    wrong = COPY.replace("x_ptr, y_ptr, SIZE: tl.constexpr", "y_ptr, x_ptr, SIZE")
    (finding,) = lint(wrong)
    assert "yours:  y_ptr, x_ptr, SIZE\n" in finding.message
    assert "passed: x_ptr, y_ptr, SIZE: tl.constexpr" in finding.message
    assert finding.line == 15


def test_a_parameter_with_a_default_may_be_missing() -> None:
    """A kernel that was written before the launcher had something more to pass is as right."""
    newer = COPY.replace("SIZE: tl.constexpr)", "SIZE: tl.constexpr, order_ptr=None)")
    for yours, optional in ((COPY, ()), (newer, ("order_ptr",))):
        result = extract(yours, SPEC, "learner.py", reference=newer)
        assert isinstance(result, Submission), result
        assert result.optional == optional
    for wrong in (newer.replace("=None", ""), newer.replace("order_ptr", "other_ptr")):
        result = extract(wrong, SPEC, "learner.py", reference=newer)
        assert isinstance(result, list) and "parameters differ" in result[0].message
    assert "parameters differ" in lint(newer)[0].message, "the launcher knows of no such parameter"


def test_a_missing_kernel_and_a_syntax_error_are_findings() -> None:
    (finding,) = lint(COPY.replace("def copy_kernel(x", "def kernel(x"))
    assert "no @triton.jit function copy_kernel" in finding.message
    assert "kernel has its parameters: is it that one" in finding.message and finding.line == 15
    (finding,) = lint(COPY.replace("def copy_kernel(x_ptr", "def kernel(a_ptr"))
    assert finding.message.endswith("which the launcher starts") and finding.line is None
    (finding,) = lint(COPY.replace("SIZE: tl", "SIZE: : tl"))
    assert finding.line == 15 and finding.message.startswith("not Python")
    (finding,) = lint(COPY + "\0")
    assert finding.message.startswith("not Python")


def test_a_hole_is_not_started_rather_than_wrong() -> None:
    hole = COPY[: -len(BODY)] + '    tl.static_assert(False, "TODO 04.1 Copy.")\n'
    (finding,) = lint(hole)
    assert (finding.kind, finding.kernel) == ("todo", "copy_kernel")
    assert (finding.message, finding.line) == ("TODO 04.1 Copy.", 21)
    (finding,) = lint(COPY + '    tl.static_assert(False, "TODO 04.1 Copy.")\n')
    assert (finding.kind, finding.line) == ("todo", COPY.count("\n") + 1)  # left below the code
    elsewhere = COPY.replace("return x + x", 'tl.static_assert(False, "TODO 04.2 Twice.")')
    assert isinstance(extract(elsewhere, SPEC, "learner.py", reference=COPY), Submission)


def test_a_finding_is_plain_data_and_back() -> None:
    finding = Finding("oob", "far away", "k", 3, (1, 0, 0), "x", (2, 5), count=4)
    assert Finding.parse(finding.plain()) == finding
    bare = Finding("todo", "TODO", "k")
    assert Finding.parse(bare.plain()) == bare
    with pytest.raises(ValueError, match="unknown kind of finding 'odd'"):
        Finding.parse(bare.plain() | {"kind": "odd"})


def test_alike_findings_become_one_with_a_count() -> None:
    findings = Findings()
    first = Finding("oob", "first", "k", 3, (0, 0, 0), "x", (0,), count=2)
    findings.add(first)
    findings.add(dataclasses.replace(first, message="second", program=(1, 0, 0), count=3))
    findings.add(dataclasses.replace(first, line=4))
    assert [(f.message, f.line, f.count) for f in findings] == [("first", 3, 5), ("first", 4, 2)]
