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
    """

    def __init__(self, at: str, yours: Any, expected: Any, state: dict[str, Any]) -> None:
        self.at, self.yours, self.expected, self.state = at, yours, expected, state
        lines = [at, *(f"  {name}: {value!r}" for name, value in state.items())]
        lines += [f"  yours:    {yours!r}", f"  expected: {expected!r}"]
        if type(yours) is not type(expected):
            lines.append(f"  ({type(yours).__name__} instead of {type(expected).__name__})")
        super().__init__("\n".join(lines))


def same(yours: Any, expected: Any) -> bool:
    """Equal, and of a type that may stand for the expected one: True is not 1, "3" is not 3, and
    3.0 tokens are not 3. An int may stand wherever a float is asked for."""
    if isinstance(yours, bool) != isinstance(expected, bool):
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
