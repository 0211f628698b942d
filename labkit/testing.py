"""What public tests use to speak the learner's language."""

from __future__ import annotations

from typing import Any


class Divergence(AssertionError):
    """The first point where a result differs from the expected one.

    Attributes:
        at: where and when, in the learner's terms: "step 3: r0 and r1 run, 24 tokens of budget
            left".
        yours: what the learner's code gave.
        expected: what it should have been.
        state: the state before, name -> value, shown as a small table.
        note: which part of `yours` is a number of NumPy's, see :func:`numpy_in`; "" if none is.
    """

    def __init__(self, at: str, yours: Any, expected: Any, state: dict[str, Any]) -> None:
        self.at, self.yours, self.expected, self.state = at, yours, expected, state
        self.note = numpy_in(yours, expected)
        lines = [at, *(f"  {name}: {value!r}" for name, value in state.items())]
        lines += [f"  yours:    {yours!r}", f"  expected: {expected!r}"]
        if self.note:
            lines.append(f"  {self.note}")
        if type(yours) is not type(expected):
            lines.append(f"  ({type(yours).__name__} instead of {type(expected).__name__})")
        super().__init__("\n".join(lines))


def numpy_in(yours: Any, expected: Any, where: str = "it") -> str:
    """ "its item 2 is a numpy.int64, not an int": where a number of NumPy's stands for one of
    Python's, also inside of lists, tuples and dicts; "" where none does. They are equal, but no
    JSON holds it, and hidden suites, which get all answers as plain data, see another type."""
    kind = type(yours)
    is_number = kind.__module__ == "numpy" and getattr(yours, "ndim", None) == 0
    if is_number and not hasattr(expected, "dtype"):
        plain = type(expected).__name__
        return f"{where} is a numpy.{kind.__name__}, not {one(plain)}; `{plain}(...)` makes it one"
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(yours, list | tuple) and isinstance(expected, list | tuple):
        pairs = [(f"item {n}", *both) for n, both in enumerate(zip(yours, expected, strict=False))]
    elif isinstance(yours, dict) and isinstance(expected, dict):
        keys = {key: key for key in expected}
        pairs = [(f"key {key!r}", key, keys[key]) for key in yours if key in keys]
        pairs += [(f"value of {key!r}", yours[key], expected[key]) for key in yours if key in keys]
    its = "its" if where == "it" else f"{where}, its"
    return next(filter(None, (numpy_in(a, b, f"{its} {name}") for name, a, b in pairs)), "")


def one(kind: str) -> str:
    """ "int" -> "an int"."""
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def same(yours: Any, expected: Any) -> bool:
    """Equal, and of a type that may stand for the expected one: True is not 1, "3" is not 3, and
    3.0 tokens are not 3; nor is `numpy.int64(3)`, alone or inside of a list. An int may stand
    wherever a float is asked for."""
    if isinstance(yours, bool) != isinstance(expected, bool) or numpy_in(yours, expected):
        return False
    kinds = (float, int) if isinstance(expected, float) else type(expected)
    return isinstance(yours, kinds) and bool(yours == expected)


def expect(yours: Any, expected: Any, /, *, at: str, **state: Any) -> None:
    """Fail unless `yours` equals `expected`, its type included.

    Args:
        yours: the value under test.
        expected: what it should be.
        at: where and when, in the learner's terms.
        state: what a learner needs to see to understand it, by name.

    Raises:
        Divergence: they differ; `make lab-NN` shows both sides and the state.
    """
    __tracebackhide__ = True
    if not same(yours, expected):
        raise Divergence(at, yours, expected, state)
