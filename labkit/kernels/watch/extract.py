"""From a learner's file to its kernels and nothing else.

A submission is source text, never an imported module. It is parsed, held against a list of what a
kernel may consist of, and cut down to its `@triton.jit` functions and `NAME = tl.constexpr(1)`
constants: no line of the learner's Python ever runs outside of a kernel. The list names what is
allowed, since a list of what is forbidden is never complete.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import mini_vllm
from labkit.kernels.watch.findings import Finding
from mini_vllm.kernels.launch import KernelSpec

BUILTINS = frozenset({"abs", "float", "int", "max", "min", "range"})
TRITON = frozenset({"cdiv", "next_power_of_2"})
TL = frozenset(
    # the grid, ranges and shapes
    "program_id num_programs arange range static_range zeros zeros_like full broadcast "
    "broadcast_to expand_dims permute trans reshape view ravel interleave join split cat "
    "squeeze unsqueeze "
    # memory
    "load store make_block_ptr advance atomic_add atomic_and atomic_cas atomic_max atomic_min "
    "atomic_or atomic_xchg atomic_xor debug_barrier "
    # arithmetic
    "abs cdiv ceil clamp cos div_rn dot erf exp exp2 fdiv floor fma log log2 maximum minimum "
    "rsqrt sigmoid sin softmax sqrt sqrt_rn umulhi where cast "
    # over an axis
    "sum max min argmax argmin xor_sum reduce_or reduce associative_scan cumsum cumprod sort topk "
    "flip gather histogram "
    # hints and messages
    "assume multiple_of max_contiguous max_constancy swizzle2d static_assert static_print "
    "device_assert device_print "
    # types
    "constexpr int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 "
    "float64".split()
)
VALUE = frozenset(
    "to dtype shape T element_ty abs argmax argmin associative_scan broadcast_to cast cdiv ceil "
    "cos cumprod cumsum erf exp exp2 expand_dims flip floor gather histogram log log2 max min "
    "permute ravel reduce reshape rsqrt sigmoid sin softmax sort split sqrt sqrt_rn sum trans view "
    "xor_sum logical_and logical_or "
    # what upstream's kernels ask of a type
    "type scalar primitive_bitwidth is_floating is_fp8 is_fp16 is_bf16 is_fp32 is_int "
    "is_int8".split()
)
ANNOTATIONS = frozenset(
    f"tl.{name}"
    for name in "constexpr int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 "
    "bfloat16 float32 float64".split()
)
"""Of these Triton obeys constexpr, and takes the others for notes; what it launches has none."""
JIT = re.compile(r"triton\.jit(\(do_not_specialize=\['\w+'(, '\w+')*\]\))?")
"""Decorators of kernels: one may keep Triton from compiling again for some values of numbers."""
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
ALLOWED = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.While, ast.Return,
    ast.Pass, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword,
    ast.Attribute, ast.Name, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.List,
    ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
MAX_DEPTH = 150  # of a statement's parts in each other; what reads them has a stack of 1,000
SPOKEN = {
    ast.AsyncFunctionDef: "an async function",
    ast.ClassDef: "a class",
    ast.Dict: "a dict",
    ast.DictComp: "a comprehension",
    ast.FunctionDef: "a function inside a function",
    ast.GeneratorExp: "a comprehension",
    ast.Import: "an import",
    ast.ImportFrom: "an import",
    ast.JoinedStr: "an f-string",
    ast.ListComp: "a comprehension",
    ast.NamedExpr: "`:=`",
    ast.SetComp: "a comprehension",
    ast.Starred: "`*`",
}


@dataclass(frozen=True)
class Submission:
    """The kernels of one file.

    Attributes:
        source: the whole file.
        filename: as findings and tracebacks show it.
        lines: kernel -> line of its `def`.
        optional: those parameters of launched kernels that have a default.
    """

    source: str
    filename: str
    lines: dict[str, int]
    optional: tuple[str, ...] = ()

    def module(self) -> ModuleType:
        """A new module that holds these kernels, `triton` and `tl` only.

        Line numbers and `filename` are the file's. Whether the kernels are interpreted or
        compiled is decided by how Triton was imported in this process.
        """
        import triton
        import triton.language as tl

        tree = ast.parse(self.source)
        kept = [node for node in tree.body if _name_of(node) in self.lines or _is_constant(node)]
        text = _without_docstrings(self.source, tree)
        # Triton reads a function's source through linecache; without a time the entry stays. The
        # lines must be Python's own: `splitlines` would also begin one at a form feed, and let a
        # comment turn into code that the lint has not seen.
        lines = [f"{line}\n" for line in text.split("\n")]
        linecache.cache[self.filename] = (len(text), None, lines, self.filename)
        module = ModuleType("submission")
        module.__dict__.update(triton=triton, tl=tl)
        cut = ast.Module(body=kept, type_ignores=[])
        exec(compile(cut, self.filename, "exec", dont_inherit=True), module.__dict__)
        return module


def extract(
    source: str, spec: KernelSpec, filename: str, reference: str | None = None
) -> Submission | list[Finding]:
    """The kernels that `spec` launches, with the functions they call, or why not.

    What else the file holds must be kernels too, but may be unfinished. `reference` is the source
    whose kernels have the parameters that the launcher passes; by default the engine's.
    """
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        return [Finding("lint", f"not Python: {error}", spec.name, line)]
    deep = _too_deep(tree)
    if deep:
        message = f"operators and brackets are nested more than {MAX_DEPTH} deep"
        return [Finding("lint", message, spec.name, deep)]
    findings = list(_lint_module(tree))
    functions = functions_of(tree)
    expected = functions_of(ast.parse(reference_source(spec) if reference is None else reference))
    launched = [name for name in spec.kernels if not _is_called(name, expected)]
    for name in launched:
        if name not in functions:
            findings.append(_missing(name, functions, expected))
        else:
            findings += _compare_parameters(functions[name], expected[name])
    reached = _reachable([name for name in launched if name in functions], functions)
    todo = [finding for name in reached if (finding := _todo(functions[name]))]
    if todo:
        return todo
    findings += _recursion(reached, functions)[:1]
    constants = {_name_of(node) for node in tree.body if _is_constant(node)}
    known = set(functions) | constants | BUILTINS
    for name in reached:
        findings += _FunctionLint(functions[name], known).findings()
    if findings:
        return findings
    lines = {name: functions[name].lineno for name in reached}
    optional = [name for kernel in launched for name in _optional(functions[kernel])]
    return Submission(source, filename, lines, tuple(optional))


def reference_source(spec: KernelSpec) -> str:
    """The engine's file with the kernels of `spec`, whatever stands in for its module here."""
    root = Path(mini_vllm.__file__).parents[1]
    return root.joinpath(*spec.module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


# ---------------------------------------------------------------- the module
def functions_of(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions at the top of a file, by their names."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _name_of(node: ast.stmt) -> str:
    """The name that a function or `NAME = ...` defines, else ""."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        return target.id if isinstance(target, ast.Name) else ""
    return ""


def _is_constant(node: ast.stmt) -> bool:
    """`NAME = tl.constexpr(<a number, a string, float("-inf"), or arithmetic of numbers>)`."""
    if not isinstance(node, ast.Assign) or not _name_of(node):
        return False
    call = node.value
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "tl.constexpr":
        return False
    if len(call.args) != 1 or call.keywords:
        return False
    return _is_literal(call.args[0]) or _is_number(call.args[0])


def _is_number(node: ast.expr) -> bool:
    """Sums, products and quotients of numbers; a power could take for ever."""
    if isinstance(node, ast.BinOp):
        parts = (node.left, node.right)
        return isinstance(node.op, ARITHMETIC) and all(map(_is_number, parts))
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    if isinstance(node, ast.Call):
        return ast.unparse(node) in ("float('inf')", "float('-inf')", "float('nan')")
    return isinstance(node, ast.Constant)


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _too_deep(tree: ast.Module) -> int | None:
    """The line of the first part that is nested too deep to be read by recursion."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
    return next((line for node in level if (line := getattr(node, "lineno", None))), None)


def _lint_module(tree: ast.Module) -> Iterator[Finding]:
    """Findings about everything at the top of the file that is no kernel."""
    imports = ("import triton", "import triton.language as tl")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from _lint_header(node)
        elif not (_is_docstring(node) or _is_constant(node) or ast.unparse(node) in imports):
            text = ast.unparse(node).splitlines()[0]
            message = (
                f"`{text}` would run outside of a kernel. A kernel file holds @triton.jit "
                "functions and constants such as `TILE = tl.constexpr(64)`, and imports only "
                "triton and triton.language as tl; copy a helper of another file into this one"
            )
            yield Finding("lint", message, "", node.lineno)


def _lint_header(node: ast.FunctionDef) -> Iterator[Finding]:
    """Decorators, annotations and defaults run when the file is loaded: none may be arbitrary."""

    def finding(message: str) -> Finding:
        return Finding("lint", f"{node.name}: {message}", node.name, node.lineno)

    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if len(decorators) != 1 or not JIT.fullmatch(decorators[0]):
        found = " ".join(f"@{text}" for text in decorators) or "no decorator"
        yield finding(f"a kernel has the one decorator @triton.jit; this has {found}")
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs or arguments.kwonlyargs:
        yield finding("a kernel's parameters are plain: no `*` and no `/`")
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        annotation = argument.annotation
        if annotation is not None and ast.unparse(annotation) not in ANNOTATIONS:
            yield finding(f"{argument.arg} may be annotated with tl.constexpr or a type of tl only")
    defaults = [default for default in (*arguments.defaults, *arguments.kw_defaults) if default]
    if node.returns is not None or not all(map(_is_literal, defaults)):
        yield finding("no annotation of the result, and only literals as defaults")


def _optional(kernel: ast.FunctionDef) -> list[str]:
    """The parameters that have a default: the last ones."""
    names = [each.arg for each in kernel.args.args]
    return names[len(names) - len(kernel.args.defaults) :]


def _compare_parameters(yours: ast.FunctionDef, expected: ast.FunctionDef) -> list[Finding]:
    """A finding if a launched kernel has not the parameters that its launcher passes. Those with a
    default may be missing: a kernel that was written before there were any is as right."""
    left, right = (ast.unparse(node.args) for node in (yours, expected))
    always = ast.arguments([], [], None, [], [], None, [])
    always.args = [each for each in expected.args.args if each.arg not in _optional(expected)]
    if left in (right, ast.unparse(always)):
        return []
    message = f"parameters differ from what the launcher passes.\nyours:  {left}\npassed: {right}"
    return [Finding("lint", message, yours.name, yours.lineno)]


def _missing(
    name: str, functions: dict[str, ast.FunctionDef], expected: dict[str, ast.FunctionDef]
) -> Finding:
    """That a launched kernel is not there, and whether it is there under another name."""
    message = f"the file has no @triton.jit function {name}, which the launcher starts"
    wanted = ast.unparse(expected[name].args)
    for other, node in functions.items():
        if other not in expected and ast.unparse(node.args) == wanted:
            message += f". {other} has its parameters: is it that one, under another name?"
            return Finding("lint", message, name, node.lineno)
    return Finding("lint", message, name)


def _called(node: ast.FunctionDef) -> set[str]:
    """Names that a function mentions: what it may call, directly or as a combine function."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _is_called(name: str, functions: dict[str, ast.FunctionDef]) -> bool:
    return any(name in _called(node) for other, node in functions.items() if other != name)


def _reachable(names: list[str], functions: dict[str, ast.FunctionDef]) -> list[str]:
    """`names` and what they call, in the file's order."""
    reached, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [other for other in _called(functions[name]) if other in functions]
    return [name for name in functions if name in reached]


def _recursion(names: list[str], functions: dict[str, ast.FunctionDef]) -> list[Finding]:
    """Calls that lead back to the function that they stand in, which Triton follows for ever."""
    return [
        Finding(
            "lint",
            f"{name} calls itself{'' if call.id == name else f' by way of {call.id}'}: a kernel"
            " cannot. Write a loop",
            name,
            call.lineno,
        )
        for name in names
        for call in ast.walk(functions[name])
        if isinstance(call, ast.Name)
        and call.id in functions
        and name in _reachable([call.id], functions)
    ]


def _todo(node: ast.FunctionDef) -> Finding | None:
    """A hole says `tl.static_assert(False, "TODO 04.3 ...")`, and says so too where a learner has
    left it below their code."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "tl.static_assert":
            continue
        text = next((a.value for a in call.args[1:] if isinstance(a, ast.Constant)), "")
        if isinstance(text, str) and text.startswith("TODO"):
            return Finding("todo", text, node.name, call.lineno)
    return None


def _without_docstrings(source: str, tree: ast.Module) -> str:
    """The source with empty docstrings, since Triton searches a kernel's text for `def`."""
    lines = source.split("\n")
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for first in [*tree.body[:1], *(node.body[0] for node in functions)]:
        if _is_docstring(first) and first.end_lineno is not None:
            begin, end = first.lineno - 1, first.end_lineno - 1
            head = lines[begin].encode()[: first.col_offset].decode()
            tail = lines[end].encode()[first.end_col_offset :].decode()
            lines[begin : end + 1] = [f'{head}""{tail}', *[""] * (end - begin)]
    return "\n".join(lines)


# ---------------------------------------------------------------- a function
class _FunctionLint:
    """Holds the body of one function against `ALLOWED` and the lists of names."""

    def __init__(self, node: ast.FunctionDef, known: set[str]) -> None:
        self.node = node
        stored = {
            inner.id
            for inner in ast.walk(node)
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
        }
        self.shadowed = stored & (known | {"tl", "triton"})
        self.names = known | stored | {argument.arg for argument in node.args.args}
        self._findings: list[Finding] = []

    def findings(self) -> list[Finding]:
        for name in sorted(self.shadowed):
            self._add(self.node, f"`{name}` is taken: give the variable another name")
        for statement in self.node.body:
            if not (_is_docstring(statement) and statement is self.node.body[0]):
                self._visit(statement)
        return self._findings

    def _add(self, node: ast.AST, message: str) -> None:
        line = getattr(node, "lineno", self.node.lineno)
        self._findings.append(Finding("lint", message, self.node.name, line))

    def _visit(self, node: ast.AST) -> None:
        if not isinstance(node, ALLOWED):
            what = SPOKEN.get(type(node), f"`{type(node).__name__.lower()}`")
            self._add(
                node,
                f"{what} has no counterpart in a kernel. A kernel consists of assignments, if, "
                "for, while, return, arithmetic and calls",
            )
            return
        if isinstance(node, ast.Attribute):
            self._attribute(node)
            return
        self._rules(node)
        for inner in ast.iter_child_nodes(node):
            self._visit(inner)

    def _rules(self, node: ast.AST) -> None:
        """What a node of an allowed kind must not be."""
        if isinstance(node, ast.Name):
            self._name(node)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            self._add(node, "elements of a tile cannot be assigned: use tl.where or tl.store")
        elif isinstance(node, ast.keyword) and (node.arg is None or node.arg.startswith("_")):
            self._add(node, f"an argument cannot be passed as `{node.arg or '**'}`")
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) not in ANNOTATIONS:
            self._add(node, "a variable may be annotated with tl.constexpr or a type of tl only")
        elif isinstance(node, ast.Constant) and node.lineno != node.end_lineno:
            self._add(node, "a string inside a kernel must stand on one line")
        elif isinstance(node, (ast.For, ast.While)) and node.orelse:
            self._add(node, "a loop has no `else` in a kernel")
        elif isinstance(node, ast.For) and not _is_range(node.iter):
            self._add(node, "`for` runs over range, tl.range or tl.static_range")

    def _name(self, node: ast.Name) -> None:
        if node.id in ("tl", "triton"):
            self._add(node, f"`{node.id}` may be used only as in `{node.id}.cdiv`")
        elif node.id == "print" and "print" not in self.names:
            self._add(node, '`print` is not known in a kernel: write tl.device_print("name", tile)')
        elif isinstance(node.ctx, ast.Load) and node.id not in self.names:
            known = (
                "its parameters, its own variables, other @triton.jit functions, tl and "
                f"{', '.join(sorted(BUILTINS))} are"
            )
            meant = _meant(node.id, [*self.names, "tl"])
            self._add(node, f"`{node.id}` is not known in a kernel: {meant or known}")

    def _attribute(self, node: ast.Attribute) -> None:
        text = ast.unparse(node)
        if not isinstance(node.ctx, ast.Load):
            self._add(node, f"`{text}` cannot be assigned")
        elif isinstance(node.value, ast.Name) and node.value.id in ("tl", "triton"):
            known = TL if node.value.id == "tl" else TRITON
            if node.attr not in known:
                meant = _meant(text, [f"{node.value.id}.{name}" for name in known])
                said = f"`{text}` is not among the functions that a kernel may use"
                self._add(node, f"{said}: {meant}".removesuffix(": "))
        elif ast.unparse(node.value) == "tl.math":
            if node.attr not in TL:
                self._add(node, f"`{text}` is not among the functions that a kernel may use")
        elif ast.unparse(node.value) == "tl.PropagateNan":
            if node.attr not in ("ALL", "NONE"):
                self._add(node, f"`{text}` is not known: tl.PropagateNan has ALL and NONE")
        elif isinstance(node.value, ast.Name) and node.value.id not in self.names:
            self._name(node.value)
        elif node.attr not in VALUE:
            self._add(node, f"`.{node.attr}` is not among the attributes of a tile or a number")
        else:
            self._visit(node.value)


def _meant(name: str, known: Iterable[str]) -> str:
    """The nearest of some names as a question; "" if none is near."""
    near = get_close_matches(name, known, 1, 0.75)
    return f"did you mean `{near[0]}`?" if near else ""


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "range", "tl.range", "tl.static_range",
    )  # fmt: skip
