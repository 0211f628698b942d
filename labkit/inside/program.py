"""Write down calls without running them, send them to a worker, and get plain observations back.

program = Program()
pool = program.new("mini_vllm.core.block_pool:BlockPool", 8, enable_caching=True)
blocks = pool.get_new_blocks(3)
program.see(pool.num_free_blocks)
program.see_each(blocks, "block_id")
program.refuse("ValueError", pool.get_new_blocks, 9)
subject.run(program)                        # [4, [1, 2, 3]]
"""

from __future__ import annotations

import importlib
import re
from typing import Any

RAISED, RETURNED = "raised", "returned"
VERDICTS = re.compile(
    r"unittest:|(torch\.testing|numpy\.testing|pytest)[.:]"
    r"|.*:(.*\.)?(equal|allclose|isclose|array_equal|array_equiv|eq|__eq__)$"
)
"""Names that would compare in the worker, where a submission may have replaced them."""


class Ref:
    """A value that will exist in the worker. Attributes, items and calls make further ones."""

    def __init__(self, program: Program, expression: list[Any]) -> None:
        self._program, self._expression = program, expression

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("__"):
            raise AttributeError(name)
        return Ref(self._program, ["attr", self._expression, name])

    def __getitem__(self, key: Any) -> Ref:
        return Ref(self._program, ["item", self._expression, _express(key)])

    def __call__(self, *args: Any, **kwargs: Any) -> Ref:
        return self._program._step(self._expression, args, kwargs)

    def __iter__(self) -> Any:
        raise TypeError("a handle has no values here; use program.see_each, or an index")

    def __eq__(self, _: object) -> Any:
        raise TypeError("a handle has no value here; let it come back with program.see")

    __bool__ = __len__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__  # type: ignore[assignment]
    __hash__ = object.__hash__


class Program:
    """A list of steps, recorded in order; each call is one step, done when it is written down."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._count = 0
        self._refusals: dict[int, tuple[str, str]] = {}

    def new(self, target: str, *args: Any, **kwargs: Any) -> Ref:
        """Make an object of "package.module:Class"."""
        return self.name(target)(*args, **kwargs)

    def call(self, target: str, *args: Any, **kwargs: Any) -> Ref:
        """Call "package.module:function"."""
        return self.name(target)(*args, **kwargs)

    def execute(self, code: str, **given: Any) -> Ref:
        """Run a piece of Python that finds the names ``given``; a dict with all that it leaves."""
        names = self.call("builtins:dict", **given)
        self.call("builtins:exec", code, names)
        return names

    def name(self, target: str) -> Ref:
        """Something importable, such as an enum's member "package.module:RequestStatus.RUNNING".

        Raises:
            ValueError: it compares. Let the data come back (`see`), and compare them here.
        """
        if VERDICTS.match(target):
            raise ValueError(
                f"{target} compares inside the worker, where a submission may have replaced it;"
                " observe the data with `see` and compare them in the test, or use `refuse`"
            )
        return Ref(self, ["name", target])

    def refuse(self, error: str, function: Ref, *args: Any, says: str = "", **kwargs: Any) -> None:
        """A call that must raise `error`, or a class below it. It adds nothing to the observations
        then; what it raises or returns instead is the last of them.

        The worker tells what happened, and is not told what should: `judge` compares.

        Args:
            error: a builtin's name, or "package.module:Class", from wherever it can be imported.
            says: a pattern that the message must hold.
        """
        self._refusals[len(self.steps)] = error if ":" in error else f"builtins:{error}", says
        step: dict[str, Any] = {"refuse": function._expression}
        step["args"] = [_express(arg) for arg in args]
        step["kwargs"] = {name: _express(value) for name, value in kwargs.items()}
        self.steps.append(step)

    @property
    def refusals(self) -> dict[int, str]:
        """Of each step that must raise, the error."""
        return {step: error for step, (error, _) in self._refusals.items()}

    def judge(self, seen: list[Any]) -> list[Any]:
        """What a worker has observed, without the refusals that are as they should be. The first
        that is not ends the list, as {"!raises": the class} or {"!returned": the value}."""
        looks = [i for i, step in enumerate(self.steps) if "see" in step or "refuse" in step]
        kept = []
        for index, value in zip(looks, seen, strict=False):
            is_end = isinstance(value, dict) and "!raises" in value
            if index not in self._refusals or is_end:
                kept.append(value)
                continue
            if (wrong := _other_than(*self._refusals[index], value)) is not None:
                return [*kept, wrong]
        return kept + seen[len(looks) :]

    def set(self, ref: Ref, attribute: str, value: Any) -> None:
        """Assign an attribute."""
        self.steps.append(
            {"set": ref._expression, "attribute": attribute, "value": _express(value)}
        )

    def see(self, value: Any) -> None:
        """Observe a value, as it is at this moment."""
        self.steps.append({"see": _express(value)})

    def see_each(self, ref: Ref, attribute: str) -> None:
        """Observe one attribute of every element."""
        self.steps.append({"see": _express(ref), "each": attribute})

    def _step(self, function: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ref:
        self._count += 1
        step: dict[str, Any] = {"call": function, "as": self._count}
        step["args"] = [_express(arg) for arg in args]
        step["kwargs"] = {name: _express(value) for name, value in kwargs.items()}
        self.steps.append(step)
        return Ref(self, ["value", self._count])


def _express(value: Any) -> list[Any]:
    """An expression: ["value", n], ["name", target], ["attr", e, name], ["item", e, key], or
    ["list" | "tuple" | "dict" | "plain", …]."""
    if isinstance(value, Ref):
        return value._expression
    if isinstance(value, list | tuple):
        return [type(value).__name__, [_express(item) for item in value]]
    if isinstance(value, dict):
        return ["dict", [[_express(key), _express(item)] for key, item in value.items()]]
    return ["plain", value]


def _other_than(error: str, says: str, told: Any) -> dict[str, Any] | None:
    """None if a worker tells of the expected exception, else what stands for the wrong end."""
    how, *rest = told if isinstance(told, tuple) and len(told) in (2, 3) else ("",)
    if how == RETURNED:
        return {"!returned": rest[0]}
    classes = [str(name) for name in rest[0]] if how == RAISED and rest[0] else [":?"]
    if not error.startswith("builtins:"):
        error, classes = error.partition(":")[2], [name.partition(":")[2] for name in classes]
    if error in classes and re.search(says, str(rest[1])):
        return None
    return {"!raises": classes[0].rpartition(":")[2]}


def do(step: dict[str, Any], values: dict[int, Any]) -> Any:
    """In the worker: one step; returns what is to be seen of it. `values`: those of the steps
    before."""
    if "call" in step:
        args = [_evaluate(arg, values) for arg in step["args"]]
        kwargs = {name: _evaluate(arg, values) for name, arg in step["kwargs"].items()}
        values[step["as"]] = _evaluate(step["call"], values)(*args, **kwargs)
        return None
    if "refuse" in step:
        args = [_evaluate(arg, values) for arg in step["args"]]
        kwargs = {name: _evaluate(arg, values) for name, arg in step["kwargs"].items()}
        return RETURNED, _evaluate(step["refuse"], values)(*args, **kwargs)
    if "set" in step:
        target = _evaluate(step["set"], values)
        return setattr(target, step["attribute"], _evaluate(step["value"], values))
    value = _evaluate(step["see"], values)
    return [getattr(item, step["each"]) for item in value] if "each" in step else value


def _evaluate(expression: list[Any], values: dict[int, Any]) -> Any:
    kind, first = expression[0], expression[1]
    if kind == "value":
        return values[first]
    if kind == "name":
        return find_object(first)
    if kind == "attr":
        return getattr(_evaluate(first, values), expression[2])
    if kind == "item":
        return _evaluate(first, values)[_evaluate(expression[2], values)]
    if kind == "list":
        return [_evaluate(item, values) for item in first]
    if kind == "tuple":
        return tuple(_evaluate(item, values) for item in first)
    if kind == "dict":
        return {_evaluate(key, values): _evaluate(item, values) for key, item in first}
    return first


FOUND: dict[str, Any] = {}
"""What names of this program meant before its first step, whatever they mean since."""


def find_object(target: str) -> Any:
    """ "package.module:Class.attribute" """
    if target in FOUND:
        return FOUND[target]
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
