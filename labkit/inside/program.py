"""Write down calls without running them, send them to a worker, and get plain observations back.

program = Program()
pool = program.new("mini_vllm.core.block_pool:BlockPool", 8, enable_caching=True)
blocks = pool.get_new_blocks(3)
program.see(pool.num_free_blocks)
program.see_each(blocks, "block_id")
subject.run(program)                        # [4, [1, 2, 3]]
"""

from __future__ import annotations

import importlib
from typing import Any

LIMIT_MESSAGE = 300


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


class Program:
    """A list of steps, recorded in order; each call is one step, done when it is written down."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._count = 0

    def new(self, target: str, *args: Any, **kwargs: Any) -> Ref:
        """Make an object of "package.module:Class"."""
        return self._step(["name", target], args, kwargs)

    def call(self, target: str, *args: Any, **kwargs: Any) -> Ref:
        """Call "package.module:function"."""
        return self._step(["name", target], args, kwargs)

    def name(self, target: str) -> Ref:
        """Something importable, such as an enum's member "package.module:RequestStatus.RUNNING"."""
        return Ref(self, ["name", target])

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


def do(step: dict[str, Any], values: dict[int, Any]) -> Any:
    """In the worker: one step; returns what is to be seen of it. `values`: those of the steps
    before."""
    if "call" in step:
        args = [_evaluate(arg, values) for arg in step["args"]]
        kwargs = {name: _evaluate(arg, values) for name, arg in step["kwargs"].items()}
        values[step["as"]] = _evaluate(step["call"], values)(*args, **kwargs)
        return None
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


def find_object(target: str) -> Any:
    """ "package.module:Class.attribute" """
    module, _, path = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
