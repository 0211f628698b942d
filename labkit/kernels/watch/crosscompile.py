"""Compile a kernel for a GPU that is not there, and read what it would need.

The compiler is the judge of what is a kernel: much that Triton's interpreter accepts, from lists to
a variable that changes its type in a loop, it rejects. Triton brings ptxas along, so neither a GPU
nor a driver is needed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit.kernels.watch.extract import Submission
from labkit.kernels.watch.findings import Finding
from labkit.kernels.watch.limits import limit_compiler
from mini_vllm.kernels.launch import Launch

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024}  # bytes that one block can have
ALIGNMENT = 16
POINTERS = {
    "bool": "*i1", "uint8": "*u8", "int8": "*i8", "int16": "*i16", "int32": "*i32",
    "int64": "*i64", "float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32",
    "float64": "*fp64",
}  # fmt: skip
LOAD = re.compile(r"\bld\.global[\w.:]*?(?:\.v(\d))?\.[bsuf](\d+)\b")
COPY = re.compile(r"\bcp\.async\.\w+\.shared\.global[^;]*?\], (?:0x)?([0-9a-f]+)")
USED = re.compile(r"Used (\d+) registers")
HINTS = (
    (r"operands of type pointer<\w+> and triton\.language\.(b?float|fp)",
     "an offset is a whole number, and / gives none: // does"),
    (r"'NoneType' object has no attribute", "a function without `return` gives nothing"),
    (r"_semantic. argument must be provided|unsupported tensor index",
     "no index picks elements: tl.load(pointer + offsets) reads them, and x[:, None] adds an axis"),
)  # fmt: skip
"""What a message of Triton's means, where it does not say so."""
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class CompileRequest:
    """What Triton specialises a kernel on, as plain data.

    Attributes:
        types: parameter -> Triton's name of its type, "constexpr" if it is known when compiling.
        values: the parameters that are.
        aligned: pointers and integers that are multiples of 16.
        capability: of the GPU: 80 or 90.
    """

    kernel: str
    types: dict[str, str]
    values: dict[str, int | float | bool]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int
    capability: int

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> CompileRequest:
        return cls(**{**data, "aligned": tuple(data["aligned"])})


@dataclass(frozen=True)
class CompileReport:
    """What the compiled kernel needs.

    Attributes:
        registers: of one thread.
        spill_stores, spill_loads: bytes for which there were not enough registers.
        shared_bytes: of one block.
        load_widths: bytes that one load instruction fetches a thread -> how many instructions.
        uses_tensor_cores: whether it holds an instruction for them.
        seconds: what it took; next to nothing if Triton's cache knew it.
    """

    kernel: str
    capability: int
    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    load_widths: dict[int, int]
    uses_tensor_cores: bool
    seconds: float

    def plain(self) -> dict[str, Any]:
        widths = {str(width): count for width, count in self.load_widths.items()}
        return asdict(self) | {"load_widths": widths}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> CompileReport:
        widths = {int(width): count for width, count in data["load_widths"].items()}
        return cls(**{**data, "load_widths": widths})


def compile_request(launch: Launch, capability: int) -> CompileRequest:
    """Specialise a launch as Triton does: types, multiples of 16, and the integer 1."""
    types = dict.fromkeys(launch.constexprs, "constexpr")
    values = dict(launch.constexprs)
    aligned = []
    for name, value in launch.args.items():
        if isinstance(value, Tensor):
            types[name] = POINTERS[str(value.dtype).removeprefix("torch.")]
            # A GPU's allocator aligns to more than 16, so the offset in the storage decides.
            number = value.storage_offset() * value.itemsize
        elif isinstance(value, float):
            types[name] = "fp32"
            continue
        elif value == 1:
            types[name], values[name] = "constexpr", 1
            continue
        else:
            types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            number = value
        if number % ALIGNMENT == 0:
            aligned.append(name)
    return CompileRequest(
        launch.kernel, types, values, tuple(aligned), launch.num_warps, launch.num_stages,
        capability,
    )  # fmt: skip


def compile_kernel(submission: Submission, request: CompileRequest) -> CompileReport | Finding:
    """Compile one kernel of a submission, in a process that compiles.

    Raises:
        RuntimeError: Triton was imported with TRITON_INTERPRET=1.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = submission.module()
    function = getattr(module, request.kernel)
    if not hasattr(function, "cache_key"):
        raise RuntimeError("Triton was imported with TRITON_INTERPRET=1: it compiles nothing")
    begin = time.monotonic()
    request = as_decorated(request, function)
    names = function.arg_names
    left_out = {p.name: p.default for p in function.params if p.name not in request.types}
    source = ASTSource(
        function,
        signature={name: request.types.get(name, "constexpr") for name in names},
        constexprs=left_out | request.values,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in request.aligned},
    )
    limit_compiler()
    options = {"num_warps": request.num_warps, "num_stages": request.num_stages}
    try:
        target = GPUTarget("cuda", request.capability, 32)
        compiled = triton.compile(source, target=target, options=options)
    except Exception as error:
        return _rejected(submission, module, request, error)
    return _report(request, compiled, begin)


def as_decorated(request: CompileRequest, function: Any) -> CompileRequest:
    """The request without what the kernel's decorator forbids (`do_not_specialize`)."""
    plain = {param.name for param in function.params if param.do_not_specialize}
    ones = {name: "i32" for name in plain & request.values.keys()}
    values = {name: value for name, value in request.values.items() if name not in plain}
    aligned = tuple(name for name in request.aligned if name not in plain)
    return replace(request, types=request.types | ones, values=values, aligned=aligned)


def _report(request: CompileRequest, compiled: Any, begin: float) -> CompileReport | Finding:
    shared, limit = int(compiled.metadata.shared), SHARED_LIMIT[request.capability]
    if shared > limit:
        message = (
            f"needs {shared:,} bytes of shared memory on sm_{request.capability}, where a block "
            f"has {limit:,}: use smaller tiles or fewer stages"
        )
        return Finding("compile", message, request.kernel)
    ptx = compiled.asm["ptx"]
    registers, spill_stores, spill_loads = _resources(ptx, request.capability)
    return CompileReport(
        kernel=request.kernel,
        capability=request.capability,
        registers=registers,
        spill_stores=spill_stores,
        spill_loads=spill_loads,
        shared_bytes=shared,
        load_widths=load_widths(ptx),
        uses_tensor_cores="mma.sync" in ptx or "wgmma.mma_async" in ptx,
        seconds=time.monotonic() - begin,
    )


def load_widths(ptx: str) -> dict[int, int]:
    """Bytes a thread fetches with one instruction -> number of such instructions."""
    widths = Counter(
        int(match[1] or 1) * int(match[2]) // 8 for match in LOAD.finditer(ptx)
    ) + Counter(int(match[1], 16) for match in COPY.finditer(ptx))
    return dict(sorted(widths.items()))


def _resources(ptx: str, capability: int) -> tuple[int, int, int]:
    """Registers, spill stores and spill loads, as ptxas reports them: the one that Triton has for
    this GPU. It brings two along, and the older one does not read what 3.9 writes for the newer."""
    from triton.backends.nvidia.compiler import get_ptxas

    architecture = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert architecture is not None, "PTX names its target"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={architecture[1]}"]
        output = ["-o", str(path.with_suffix(".cubin")), str(path)]
        done = subprocess.run([*command, *output], capture_output=True, text=True, check=True)
    used, spilled = USED.search(done.stderr), SPILL.search(done.stderr)
    assert used is not None, done.stderr
    stores, loads = (int(spilled[1]), int(spilled[2])) if spilled else (0, 0)
    return int(used[1]), stores, loads


def _rejected(
    submission: Submission, module: Any, request: CompileRequest, error: Exception
) -> Finding:
    """A compile error, with the line of the learner's file that it is about.

    An error inside of a helper, or of a function of Triton's own, is the cause of an error at
    its call. The innermost one in a kernel of the submission names the line, the innermost of all
    says what is wrong.
    """
    line, reason, kernel = None, "", request.kernel
    chain: Any = error
    while chain is not None:
        node, text = getattr(chain, "node", None), getattr(chain, "src", None)
        for name, first in submission.lines.items():
            if node is not None and text == getattr(module, name).src:
                line, kernel = first + getattr(node, "lineno", 1) - 1, name
        reason = getattr(chain, "error_message", None) or str(chain) or reason
        chain = chain.__cause__ or chain.__context__
    message = f"does not compile for sm_{request.capability}: {reason.strip()}"
    message += next((f". {hint}" for words, hint in HINTS if re.search(words, reason)), "")
    ones = [name for name, value in request.values.items() if name.islower() and value == 1]
    if re.search("'(constexpr|int)' object has no attribute", reason) and ones:
        message += (
            f". {', '.join(ones)} can be 1, and then Triton makes a constant of it:"
            f" tl.cast({ones[0]}, tl.int64) takes a constant too"
        )
    return Finding("compile", message, kernel, line)
