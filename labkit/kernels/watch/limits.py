"""What Triton may do while it compiles: it computes with a kernel's constants as Python does,
writes loops out and follows calls, for as long as that takes. A kernel that asks for too much of it
is refused at the line that does, and not only by the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_UNROLLED = 5_000  # iterations of tl.static_range, in one kernel
MAX_BITS = 4_096  # of a constant that is computed
MAX_LENGTH = 4_096  # of a text or a tuple that is
MAX_VISITS = 100_000  # expressions and statements, each as often as it is written out
GROWING = ("add", "radd", "sub", "rsub", "mul", "rmul", "pow", "rpow", "lshift", "mod")


def limit_compiler() -> None:
    """Let the compiler count anew, and refuse what would fill its memory or never end."""
    _limit_unrolling()
    _limit_constants()
    _limit_visits()


def _stock(owner: Any, name: str) -> Callable[..., Any]:
    """A method as Triton has it, however often it has been replaced."""
    kept = owner.__dict__.get("stock_methods")
    if kept is None:
        kept = {}
        owner.stock_methods = kept
    return kept.setdefault(name, getattr(owner, name))


def _limit_unrolling() -> None:
    import triton.language as tl

    unrolled = 0
    stock = _stock(tl.static_range, "__init__")

    def limited(self: Any, *bounds: Any, **named: Any) -> None:
        nonlocal unrolled
        stock(self, *bounds, **named)
        unrolled += len(range(self.start.value, self.end.value, self.step.value))
        if unrolled > MAX_UNROLLED:
            raise ValueError(
                f"tl.static_range writes its loop out: that makes {unrolled:,} copies, and more"
                f" than {MAX_UNROLLED:,} are not compiled here. Use range for a loop that long"
            )

    tl.static_range.__init__ = limited


def _limit_constants() -> None:
    import triton.language as tl

    for owner, names in ((tl.constexpr, GROWING), (tl.tuple, ("add", "mul"))):
        for name in names:
            setattr(owner, f"__{name}__", _checked(name, _stock(owner, f"__{name}__")))


def _checked(name: str, stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An operator that looks first how large its result would be."""

    def operator(self: Any, other: Any) -> Any:
        left, right = (getattr(each, "value", each) for each in (self, other))
        if name.startswith("r"):
            left, right = right, left
        complain_if_large(name.removeprefix("r"), left, right)
        return stock(self, other)

    return operator


def complain_if_large(name: str, left: Any, right: Any) -> None:
    """Nothing, unless the result of an operator would be too large a number, text or tuple.

    Raises:
        ValueError: it would.
    """
    if isinstance(left, int) and isinstance(right, int):
        sizes = {
            "mul": left.bit_length() + right.bit_length(),
            "pow": left.bit_length() * max(right, 0),
            "lshift": left.bit_length() + max(right, 0),
        }
        bits = sizes.get(name, max(left.bit_length(), right.bit_length()))
        if bits > MAX_BITS:
            raise ValueError(
                f"this constant would have {count(bits)} bits, and a kernel's numbers have 64"
            )
        return
    lengths = [len(getattr(each, "values", each)) for each in (left, right) if is_long(each)]
    if not lengths:
        return
    if name == "mod":  # "%9999d" % 1
        raise ValueError("a kernel formats no texts")
    times = next((each for each in (left, right) if isinstance(each, int)), 1)
    length = sum(lengths) * max(times, 0)
    if length > MAX_LENGTH:
        raise ValueError(
            f"this would be {count(length)} long, and a kernel's texts and tuples are short"
        )


def is_long(value: Any) -> bool:
    return isinstance(value, (str, tuple, list)) or hasattr(value, "values")


def count(number: int) -> str:
    """A number as one reads it, or roughly if it has too many digits for that."""
    return f"{number:,}" if number < 10**15 else "more than 10^15"


def _limit_visits() -> None:
    """Count a function's expressions at each of its calls, since LLVM puts it in at each."""
    from triton.compiler.code_generator import CodeGenerator

    visits = 0
    sizes: dict[str, int] = {}  # of what has been translated: it is not visited again
    visit, call = _stock(CodeGenerator, "visit"), _stock(CodeGenerator, "call_JitFunction")

    def add(more: int) -> None:
        nonlocal visits
        visits += more
        if visits >= MAX_VISITS:
            raise ValueError(
                f"written out, with its loops of tl.static_range and its calls, the kernel is more"
                f" than {MAX_VISITS:,} expressions long. Use range for a long loop"
            )

    def limited_visit(self: Any, node: Any) -> Any:
        add(1)
        return visit(self, node)

    def limited_call(self: Any, fn: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> Any:
        types = [str(getattr(each, "type", each)) for each in (*args, *kwargs.values())]
        key, before = f"{id(fn)} {list(kwargs)} {types}", visits
        result = call(self, fn, args, kwargs, *rest, **more)
        if visits > before:
            sizes[key] = visits - before
        else:
            add(sizes.get(key, 0))
        return result

    CodeGenerator.visit, CodeGenerator.call_JitFunction = limited_visit, limited_call
