"""Small wrong changes of a kernel, made by rule: what the checker must notice.

The rules are the mistakes that kernels are prone to: a mask that is missing, a bound that is off by
one, a stride or a tile that belongs to another axis, a cast that is forgotten, a sum in half
precision, a softmax without its maximum, a store or a rescaling left out, work done twice; and what
holds for the shapes that one has in mind only: an argument that is ignored, be it in one branch, a
length or a size that has a limit, few heads, offsets of 32 bits at any place, positions and slots
that float32 or 16 bits do not tell apart, a finite number for infinity, a number that is rounded
early, or goes by way of float16. The places are not chosen by hand, so the survivors
say what a checker misses that no author thought of.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

COMPARE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is not": "is"}
OPERATOR = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "%", "%": "//", "&": "|",
            "<<": ">>", ">>": "<<"}  # fmt: skip
SYMBOL: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.LShift: "<<", ast.RShift: ">>", ast.IsNot: "is not",
}  # fmt: skip
FUNCTION = {
    "tl.sum": "tl.max", "tl.max": "tl.min", "tl.maximum": "tl.minimum", "tl.minimum": "tl.maximum",
    "tl.exp": "tl.exp2", "tl.log": "tl.log2", "tl.rsqrt": "tl.sqrt",
}  # fmt: skip
PARTNERS = {
    "key": "value", "cos": "sin", "first": "second", "gate": "up", "row_max": "row_sum",
    "begin": "end", "heads": "group", "x": "residual", "first_ptr": "second_ptr",
}  # fmt: skip
NARROW = ".to(tl.float16).to(tl.float32)"
FORMULAS = {"scale": ("HEAD_DIM", "HEAD_DIM ** -0.5")}
"""What a parameter usually is, if another one is known."""
CAPS = (256, 1024)  # lengths behind which one may forget that there is more
LARGE_SIZE = 64  # no head, block, group or rank is larger, one may think
LARGER = dict.fromkeys(("SIZE", "IN_SIZE", "OUT_SIZE", "K"), 2**14) | {
    "ROW": 2**13, "HEAD_DIM": 128, "NUM_HEADS": 128, "BLOCK_SIZE": 512, "N": 2**16,
    "vocab_size": 2**17,
}  # fmt: skip
"""Nor is any row, weight or vocabulary larger than this, if one knows the usual models."""
FLAGS = ("HAS_", "NO_")  # how constants begin that choose a branch
LONG = ("slot_mapping_ptr", "recovered_token_ids_ptr", "bonus_token_ids_ptr")
"""What holds numbers beyond 2^24."""
FEW = (4, 64)  # programs; along the first axis there may be many
ROUNDED = frozenset({"acc", "row_sum"})  # sums that go through a loop
DATA = ("output_ptr", "x_ptr", "y_ptr")
FLOATS = ("query_ptr", "key_ptr", "target_probs_ptr", "logits_ptr", "y_ptr", "x_ptr")
"""What holds the numbers whose dtype a kernel may have a way of its own for."""
NUMBERS = frozenset(
    "acc row_sum row_sum_or_1 partial x32 normalised first second gate up share".split()
)
AXES = {":, None": "None, :", "None, :": ":, None"}
NEIGHBOURS = {0: ("1",), 1: ("0", "2"), 2: ("1", "3")}


@dataclass(frozen=True)
class Mutation:
    """One change of one kernel.

    Attributes:
        kernel: the function that it is in.
        rule: the kind of mistake.
        name: kernel, line and change; stays the same when lines move.
        text: the whole file with it.
    """

    kernel: str
    rule: str
    name: str
    text: str


def mutations(text: str, usual: Mapping[str, Usual] = {}) -> Iterator[Mutation]:
    """All changes of all kernels of a file, in its order.

    `usual`: of each kernel, what its parameters are in most of its cases.
    """
    seen: Counter[str] = Counter()
    source = _Text(text)
    for function in ast.parse(text).body:
        if isinstance(function, ast.FunctionDef):
            texts = set[str]()  # two rules may make the same change
            known = usual.get(function.name, {})
            for node, rule, new in _Changes(source, function, known):
                changed = source.with_change(node, new)
                if changed in texts:
                    continue
                texts.add(changed)
                line, old = source.line(node), " ".join(source.of(node).split())
                name = f"{function.name}: {line}: {rule}: `{old}` -> `{' '.join(new.split())}`"
                seen[name] += 1
                if seen[name] > 1:
                    name += f" ({seen[name]})"
                yield Mutation(function.name, rule, name, changed)


Located = ast.expr | ast.stmt
Usual = Mapping[str, Sequence[int | float]]


class _Text:
    """Source text by the places of nodes. Columns count bytes, as Python's parser does."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.lines = self.data.splitlines(keepends=True)
        self.starts = [0, *itertools.accumulate(map(len, self.lines))]

    def _span(self, node: Located) -> tuple[int, int]:
        begin = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return begin, end

    def of(self, node: Located) -> str:
        begin, end = self._span(node)
        return self.data[begin:end].decode()

    def line(self, node: Located) -> str:
        return self.lines[node.lineno - 1].decode().strip()

    def with_change(self, node: Located, new: str) -> str:
        """The text with another one in a node's place."""
        begin, end = self._span(node)
        return (self.data[:begin] + new.encode() + self.data[end:]).decode()


Change = tuple[Located, str, str]  # where, rule, what stands there instead


class _Changes:
    """The changes of one function."""

    def __init__(self, text: _Text, function: ast.FunctionDef, usual: Usual) -> None:
        self._source, self.function, self.usual = text.of, function, usual
        self.parameters = [argument.arg for argument in function.args.args]
        self.names = set(self.parameters)
        self.wide: set[str] = set()  # variables of 64 bits
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.names.add(node.id)
            if isinstance(node, ast.Assign):
                self._widen(node)

    def _widen(self, node: ast.Assign) -> None:
        """Remember whom an assignment, in the order of the file, makes 64 bits wide."""
        read = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        value = self._source(node.value)
        is_load = value.startswith("tl.load")
        if "tl.int64" in value or (read & set(LONG) if is_load else read & self.wide):
            self.wide |= {n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)}

    def __iter__(self) -> Iterator[Change]:
        yield from self._ignored()
        for statement in self.function.body:
            if not _is_docstring(statement):
                yield from self._statement(statement)

    def _ignored(self) -> Iterator[Change]:
        """Parameters that have their usual value, whatever is passed."""
        body = [node for node in self.function.body if not _is_docstring(node)]
        for name in self.parameters:
            values = [repr(value) for value in self.usual.get(name, ())]
            if name in FORMULAS and FORMULAS[name][0] in self.parameters:
                values.append(FORMULAS[name][1])
            for value in values:
                yield body[0], "ignored", f"{name} = {value}; {self._source(body[0])}"
            for new in self._limited(name):
                yield body[0], "limited", f"{new}; {self._source(body[0])}"

    def _limited(self, name: str) -> Iterator[str]:
        """A size that has a limit; a parameter that counts in one branch only."""
        [value, *_] = self.usual.get(name, [0.5])
        is_flag = name.startswith(FLAGS)
        if name.isupper() and isinstance(value, int) and not is_flag:
            yield f"{name} = {name} if {name} < {LARGE_SIZE} else {LARGE_SIZE}"
        if name in LARGER:
            yield f"{name} = {name} if {name} < {LARGER[name]} else {LARGER[name]}"
        if name.islower() and name in self.usual:
            for condition in self._branches():
                yield f"{name} = {value!r} if {condition} else {name}"
                yield f"{name} = {name} if {condition} else {value!r}"

    def _branches(self) -> Iterator[str]:
        """What may have a way of its own: a flag, a dtype, heads that share nothing."""
        yield from (parameter for parameter in self.parameters if parameter.startswith(FLAGS))
        for tensor in [name for name in FLOATS if name in self.parameters][:1]:
            yield f"{tensor}.dtype.element_ty == tl.float32"
        if "GROUP" in self.parameters:
            yield "GROUP == 1"

    def _operand(self, node: ast.expr) -> str:
        """As it may stand beside any operator; the source of a node has no parentheses around."""
        simple = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)
        return self._source(node) if isinstance(node, simple) else f"({self._source(node)})"

    # ------------------------------------------------------------ statements
    def _statement(self, node: ast.stmt) -> Iterator[Change]:
        if isinstance(node, ast.If):
            yield node.test, "always", "True"
            yield node.test, "never", "False"
        elif isinstance(node, ast.Expr) and self._called(node.value) == "tl.store":
            yield node, "no store", "pass"
        elif isinstance(node, ast.Assign):
            yield from self._assignment(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from self._statement(child)
            elif isinstance(child, ast.expr) and not _is_target(child):
                yield from self._expression(child)

    def _assignment(self, node: ast.Assign) -> Iterator[Change]:
        """An update left out or rounded; a load done twice."""
        target = node.targets[0]
        read = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if isinstance(target, ast.Name) and target.id in read:
            yield node, "no update", "pass"
            if target.id in ROUNDED:
                yield node, "early rounding", f"{target.id} = {self._rounded(node.value)}"
        if any(self._called(inner) == "tl.load" for inner in ast.walk(node.value)):
            yield node, "load twice", f"{self._source(node)}; {self._source(node)}"

    # ------------------------------------------------------------ expressions
    def _expression(self, node: ast.expr) -> Iterator[Change]:
        for rule, new in self._variants(node):
            yield node, rule, new
        if self._called(node) in ("tl.arange", "tl.program_id", "tl.num_programs", "float"):
            return  # their arguments are not numbers that one is off by
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword) and child.arg != "axis":
                yield from self._expression(child.value)
            elif isinstance(child, ast.expr) and not isinstance(child, (ast.List, ast.Slice)):
                yield from self._expression(child)

    def _variants(self, node: ast.expr) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.BinOp):
            yield from self._operation(node)
        elif isinstance(node, ast.Compare):
            left, right = self._operand(node.left), self._operand(node.comparators[0])
            symbol = SYMBOL[type(node.ops[0])]
            yield "bound", f"{left} {COMPARE[symbol]} {right}"
        elif isinstance(node, ast.Name):
            yield from (("wrong name", other) for other in self._partners(node.id))
        elif isinstance(node, ast.Subscript):
            axes = AXES.get(ast.unparse(node.slice).strip("()"))
            if axes:
                yield "axis", f"{self._operand(node.value)}[{axes}]"
        elif isinstance(node, ast.Constant):
            yield from (("constant", other) for other in _other_numbers(node.value))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield "sign", self._source(node.operand)

    def _operation(self, node: ast.BinOp) -> Iterator[tuple[str, str]]:
        left, right = self._operand(node.left), self._operand(node.right)
        symbol = SYMBOL[type(node.op)]
        yield "operator", f"({left} {OPERATOR[symbol]} {right})"
        if symbol in ("//", "%") and right.isupper():
            yield "power of two", f"({left} {symbol} triton.next_power_of_2({right}))"
        if symbol in ("//", "%") and "position" in left:
            for kind in ("tl.int16", "tl.float32"):
                yield "narrow cast", f"({left}.to({kind}).to(tl.int32) {symbol} {right})"
        if symbol == "*" and self._is_offset(node):
            yield "narrow offset", f"({left}).to(tl.uint32) {symbol} {right}"
        if symbol in ("*", "/") and self._has_numbers(node):
            yield "early rounding", self._rounded(node)
        yield "left out", left
        if "_ptr" not in left:  # without its tensor an address is no mistake that is made
            yield "left out", right

    def _is_offset(self, node: ast.BinOp) -> bool:
        """Whether a product counts elements in 64 bits: a row's number times its length."""
        length = self._source(node.right)
        found = {n.id for n in ast.walk(node.left) if isinstance(n, ast.Name)}
        return bool(found & self.wide) and (length.isupper() or length.endswith("_stride"))

    def _has_numbers(self, node: ast.expr) -> bool:
        """Whether a product is one of floats, as far as the names of its parts tell."""
        found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return bool(found & NUMBERS)

    def _partners(self, name: str) -> Iterator[str]:
        """Names that could stand here by mistake: the other tensor, the other stride, the tile."""
        pairs = [*PARTNERS.items(), *((b, a) for a, b in PARTNERS.items())]
        swapped = [name.replace(a, b) for a, b in pairs if a == name or f"{a}_" in name]
        yield from (other for other in dict.fromkeys(swapped) if other in self.names)
        if name.endswith("_stride"):
            others = [p for p in self.parameters if p.endswith("_stride") and p != name]
            yield from others or [p for p in self.parameters if p in ("SIZE", "HEAD_DIM")]
        for tile in self.parameters:
            stem = tile.removesuffix("_TILE")
            sizes = [p for p in self.parameters if p != tile and p.split("_")[-1].startswith(stem)]
            if tile.endswith("_TILE") and name in sizes:
                yield tile

    # ------------------------------------------------------------ calls
    def _rounded(self, node: ast.expr) -> str:
        """The value, rounded to the dtype of what the kernel works on, but kept in float32."""
        tensors = [name for name in self.parameters if name in DATA]
        kind = f"{tensors[0]}.dtype.element_ty" if tensors else "tl.bfloat16"
        return f"({self._source(node)}).to({kind}).to(tl.float32)"

    def _called(self, node: ast.AST) -> str:
        return ast.unparse(node.func) if isinstance(node, ast.Call) else ""

    def _without(self, node: ast.Call, *keywords: str) -> str:
        """A call without some of its keywords."""
        words = [self._source(argument) for argument in node.args]
        words += [
            f"{keyword.arg}={self._source(keyword.value)}"
            for keyword in node.keywords
            if keyword.arg not in keywords
        ]
        return f"{self._source(node.func)}({', '.join(words)})"

    def _call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        name, whole = self._called(node), self._source(node)
        arguments = [self._source(argument) for argument in node.args]
        if name in FUNCTION:
            yield "other function", whole.replace(name, FUNCTION[name], 1)
        if name in ("tl.dot", "tl.sum"):
            yield "half sum", whole + NARROW
        if name in ("tl.dot", "tl.sum", "tl.exp", "tl.rsqrt"):
            yield "early rounding", self._rounded(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            yield from self._cast(node.func.value, arguments[0])
        rule = getattr(self, f"_{name.replace('.', '_')}", None)
        if rule is not None:
            yield from rule(node, arguments)
        for keyword in node.keywords:
            if keyword.arg == "axis":
                new = whole.replace(f"axis={self._source(keyword.value)}", "axis={}")
                yield "axis", new.format(1 - int(self._source(keyword.value)))

    def _cast(self, value: ast.expr, kind: str) -> Iterator[tuple[str, str]]:
        yield "no cast", f"({self._source(value)})"
        if kind.endswith(".dtype"):
            half = f"tl.float16 if {kind} == tl.bfloat16 else {kind}"
            yield "narrow range", f"({self._source(value)}).to({half}).to({kind})"
        narrower = {"tl.float32": "tl.float16", "tl.int64": "tl.int32"}.get(kind)
        if narrower == "tl.float16":
            yield "narrow cast", f"({self._source(value)}){NARROW}"
        elif narrower:
            yield "narrow cast", f"({self._source(value)}).to({narrower})"
            yield "narrow cast", f"({self._source(value)}).to(tl.uint32)"

    def _tl_load(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        given = {keyword.arg: self._source(keyword.value) for keyword in node.keywords}
        if "mask" in given:
            yield "no mask", self._without(node, "mask", "other")
        if any(name in arguments[0] for name in LONG):
            yield "narrow cast", f"{self._source(node)}.to(tl.float32).to(tl.int64)"
        if "other" in given:
            yield "no other", self._without(node, "other")

    def _tl_store(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        if node.keywords:
            yield "no mask", self._without(node, "mask")

    def _tl_dot(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        yield "precision", self._without(node, "input_precision")
        if len(arguments) == 3:
            yield (
                "no accumulator",
                f"tl.dot({arguments[0]}, {arguments[1]}, input_precision='ieee')",
            )

    def _tl_trans(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        yield "axis", arguments[0]

    def _tl_where(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        yield "left out", self._operand(node.args[1])
        yield "left out", self._operand(node.args[2])

    def _tl_cdiv(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        yield "rounded down", f"(({arguments[0]}) // ({arguments[1]}))"

    def _tl_maximum(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        yield "left out", self._operand(node.args[0])
        yield "left out", self._operand(node.args[1])

    _tl_minimum = _tl_maximum

    def _tl_program_id(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        axis = int(arguments[0])
        yield "grid", f"tl.program_id({(axis + 1) % 3})"
        yield "grid", f"(tl.program_id({axis}) * 0)"
        for few in FEW if axis == 0 else FEW[:1]:
            yield "few", f"(tl.program_id({axis}) % {few})"

    def _tl_num_programs(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        yield "grid", f"tl.num_programs({(int(arguments[0]) + 1) % 3})"
        yield "grid", "1"
        yield "few", f"tl.minimum({self._source(node)}, {FEW[0]})"

    def _tl_arange(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        yield "shifted", f"({self._source(node)} + 1)"

    def _tl_zeros(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        yield "start", f"tl.full({arguments[0]}, 1.0, {arguments[1]})"

    def _tl_full(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        by_name = [self._source(word.value) for word in node.keywords if word.arg == "dtype"]
        [dtype] = arguments[2:] or by_name
        yield "start", f"tl.zeros({arguments[0]}, {dtype})"

    def _float(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        yield "constant", "0.0"
        yield "finite", "-1e6" if "-" in arguments[0] else "1e6"

    def _range(self, node: ast.Call, arguments: list[str]) -> Iterator[tuple[str, str]]:
        begin, end, step = arguments
        yield "one tile less", f"range({begin} + {step}, {end}, {step})"
        yield "one tile less", f"range({begin}, {end} - {step}, {step})"
        yield "one tile more", f"range({begin}, {end} + {step}, {step})"
        yield "one tile more", f"range({begin} - {step}, {end}, {step})"
        yield "every other tile", f"range({begin}, {end}, 2 * {step})"
        for length in CAPS:
            yield "capped", f"range({begin}, tl.minimum({end}, {begin} + {length}), {step})"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_target(node: ast.expr) -> bool:
    return any(isinstance(getattr(inner, "ctx", None), ast.Store) for inner in ast.walk(node))


def _other_numbers(value: object) -> tuple[str, ...]:
    """Numbers that one could have meant; none for text and None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ()
    if isinstance(value, float):
        return ("1.0",) if value == 0.0 else ("0.0",)
    return NEIGHBOURS.get(value, (str(value - 1),))
