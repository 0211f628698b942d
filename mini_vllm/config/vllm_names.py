"""Names of vLLM's `LLM` and `serve` that have no counterpart here, and why: `vllm_names.toml`.

A script written for vLLM should need only another import. So an argument without effect here is
accepted and ignored. One that is not supported is refused with the reason, and not as an unknown
name. `docs/api.md` shows all lists.
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from mini_vllm.errors import show

_TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)

ALIASES: dict[str, str] = _TABLE["aliases"]
"""vLLM's names of arguments that have other names here; both are accepted."""
IGNORED: dict[str, str] = _TABLE["ignored"]
"""Arguments that are accepted without effect, and why."""
AS_IT_IS: dict[str, tuple[Any, ...]] = {
    name: tuple(values) for name, values in _TABLE["as_it_is"].items()
}
"""Values that have no effect; other values of these arguments are refused."""
DEFAULTS: dict[str, tuple[Any, ...]] = {
    name: tuple(values) for name, values in _TABLE["defaults"].items()
}
"""Values that vLLM has without being told, of arguments that are not supported."""
SPELLINGS: dict[str, dict[str, str]] = _TABLE["spellings"]
"""vLLM's names of values that have other names here."""
SECTION_KEYS: dict[str, dict[str, tuple[str, tuple[Any, ...]]]] = {
    section: {key: (why, tuple(values)) for key, (why, *values) in keys.items()}
    for section, keys in _TABLE["section_keys"].items()
}
"""Keys of vLLM's sections that are not supported: why, and the values that have no effect."""
ARGUMENTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    name: (why, tuple(values)) for name, (why, *values) in _TABLE["arguments"].items()
}
"""Arguments of vLLM's methods that are not supported: what to do instead, and the values that have
no effect."""
ROUTES: dict[str, str] = _TABLE["routes"]
"""Paths of vLLM's server that are not supported: what to do instead."""
REFUSED: dict[str, str] = _TABLE["refused"]
"""Names that are not supported; what to do instead."""
GROUPS: dict[str, str] = _TABLE["refused_patterns"]
"""More names that are not supported, by pattern; what to do instead, or why not."""
DIFFERS: dict[str, str] = _TABLE["differs"]
"""Names that are supported with another range or meaning."""


def asks_for_nothing(value: Any, as_it_is: Collection[Any] = ()) -> bool:
    """Whether a value of an argument that is not supported has no effect."""
    is_empty = isinstance(value, Collection) and not value
    return is_empty or value in (None, False, 0, "auto", *as_it_is)


def spelled(name: str, value: Any) -> Any:
    """A value by its name here: our name for vLLM's, and "bfloat16" for `torch.bfloat16` or its
    text."""
    if name.endswith("dtype") and str(value).startswith("torch."):
        value = str(value).removeprefix("torch.")
    return SPELLINGS.get(name, {}).get(value, value) if isinstance(value, str) else value


def why_not(name: str) -> str | None:
    """Why an argument, parameter or method of vLLM is not supported; None for an unknown name."""
    if name in REFUSED:
        return REFUSED[name]
    return next((why for pattern, why in GROUPS.items() if fnmatchcase(name, pattern)), None)


F = TypeVar("F", bound=Callable[..., Any])


def with_arguments(*names: str) -> Callable[[F], F]:
    """For a method that has not all arguments of vLLM's: these may be given all the same, by name,
    or by position behind those that the method has, in this order.

    One that asks for nothing is dropped; another is refused with what to do instead. Type checkers
    see the method's own arguments only, so they tell of both; `inspect.signature` shows them all.
    """

    def decorate(method: F) -> F:
        signature = inspect.signature(method)
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        num_own = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name, value in zip(names, args[num_own:], strict=False):
                refuse_argument(method.__qualname__, name, value)
            for name in kwargs.keys() & set(names):
                refuse_argument(method.__qualname__, name, kwargs.pop(name))
            return method(*args[:num_own], *args[num_own + len(names) :], **kwargs)

        vars(call)["__signature__"] = _with_parameters(signature, num_own, names)
        return cast(F, call)

    return decorate


def _with_parameters(
    signature: inspect.Signature, place: int, names: Sequence[str]
) -> inspect.Signature:
    more = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        for name in names
    ]
    own = list(signature.parameters.values())
    return signature.replace(parameters=[*own[:place], *more, *own[place:]])


def refuse_argument(method: str, name: str, value: Any) -> None:
    """Raises TypeError for a value that asks for something, of an argument that is vLLM's only."""
    why, as_it_is = ARGUMENTS[name]
    if not asks_for_nothing(value, as_it_is):
        raise TypeError(
            f"{method}() got {name}={show(value)}, which is vLLM's and not supported: {why}"
        )


def refuse(owner: object, name: str) -> NoReturn:
    """Raises AttributeError for a missing attribute; if vLLM has it, with what to do instead.

    For the ``__getattr__`` of `owner`.
    """
    if hasattr(type(owner), name):  # a property that has failed: raise its own error
        object.__getattribute__(owner, name)
    why = None if name.startswith("_") else why_not(name)
    said = f"{type(owner).__name__} has no {name!r}" + (f": {why}" if why else "")
    raise AttributeError(said, name=name, obj=owner)
