"""Whether names outside a submission still mean what they meant before it was imported.

Steps of a program, and the helpers that they call, find `torch.zeros`, `random.random` or
`run_messages` by name, in the process in which graded code runs: such code could give the name to a
function of its own. `Watch` notices. It knows two sorts of modules:

- those that are imported before a submission is: their functions and classes, and the methods of
  these, must stay the same objects;
- the engine's and the course's, which may import what is graded and so come after it: what their
  files define must have the code that stands there, and stay the same from then on.

A function stays the same if its code and its defaults do, a module if `sys.modules` has it and its
class is the same. It looks behind each program, so a name is noticed that is given back later.
Graded code may not name what counts a call either (`COUNTERS`), or the frames that lead there.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from json import dumps
from operator import attrgetter, is_
from pathlib import Path
from typing import Any

from labkit.inside import plain, program, steps

globals()["__builtins__"] = dict(vars(builtins))  # what is done to theirs is not seen below
ALWAYS = (
    "base64", "builtins", "bisect", "collections", "contextlib", "copy", "dataclasses", "functools",
    "hashlib", "heapq", "importlib", "io", "itertools", "json", "math", "operator", "os", "os.path",
    "pathlib", "random", "re", "struct", "sys", "threading", "time", "types", "warnings", "zlib",
)  # fmt: skip
"""Modules of Python that are watched for every phase."""
COUNTERS = frozenset(
    {"settrace", "gettrace", "setprofile", "_getframe", "currentframe", "tb_frame", "f_back",
     "f_trace", "f_trace_opcodes", "f_trace_lines", "tracemalloc", "start_new_thread",
     "_disable_current_modes", "_DisableTorchDispatch", "DisableTorchFunction",
     "DisableTorchFunctionSubclass", "_ExcludeDispatchKeyGuard"}
)  # fmt: skip
"""What stops or forges a count of `labkit.inside.cost`. No exercise needs one of them."""
FREE = ("hook", "showwarn", "manual_seed", "__builtins__", "__warningregistry__")
"""Parts of names that are there to be given to something else, as `sys.excepthook` is; or that
their own library does give, as `torch._dynamo` does `torch.manual_seed` when it is imported."""
DESCRIPTORS = (property, staticmethod, classmethod, types.GetSetDescriptorType)
CONSTANTS = (int, float, str, bytes, tuple, frozenset)
IMMUTABLE, ON_HEAP = 1 << 8, 1 << 9
"""Flags of types: who may set an attribute of them."""
WRAPPERS = ("__wrapped__", "__func__", "fget", "fn", "func")
DEPTH = 4
"""How many decorators deep a function is looked for."""
INSIDES = attrgetter("__code__", "__defaults__", "__kwdefaults__")
Table = tuple[str, Callable[[str], Any], list[str], list[Any]]


class Watch:
    """Notices names that were given to something else.

    Args:
        modules: imported here, before any of the submission, and watched.
        graded: the submission's modules, whose names are its own.
        folders: where the packages of the engine and the course lie.
    """

    def __init__(
        self, modules: Iterable[str], graded: Iterable[str], folders: Iterable[str]
    ) -> None:
        self._graded, self._loaded = frozenset(graded), sys.modules
        self._tables: list[Table] = []
        self._classes: list[tuple[str, type, Mapping[str, Any]]] = []
        self._sizes: list[int] = []
        self._known: set[type] = set()
        self._set_by_steps: set[str] = set()
        self._modules: list[tuple[str, types.ModuleType, type]] = []
        self._functions: list[tuple[str, types.FunctionType]] = []
        self._codes: list[Any] = []
        self._unread, self._told = set(self._graded), ""
        self._files = {n: p for n, p in _files_of(folders) if n not in self._graded}
        for name in (*ALWAYS, *modules):
            self._keep(name, importlib.import_module(name))
            self._know(name, vars(self._loaded[name]))
        for own in (plain, program, steps):  # this side's copies, which nothing can import
            self._know(own.__name__, vars(own))

    def allow(self, program: list[dict[str, Any]]) -> None:
        """The names that a program itself sets are no work of the submission."""
        for step in program:
            if "set" in step:
                self._set_by_steps.add(step["attribute"])
            elif step.get("call") == ["name", "builtins:setattr"]:
                self._set_by_steps.add(step["args"][1][1])

    def names_in(self, expression: Any) -> list[str]:
        """The names of others in a program, but those that its steps set."""
        if isinstance(expression, dict):
            expression = list(expression.values())
        if not isinstance(expression, list):
            return []
        if expression[:1] == ["name"] and isinstance(expression[-1], str):
            module, _, path = expression[-1].partition(":")
            is_ours = module not in self._graded and path.split(".")[-1] not in self._set_by_steps
            return [expression[-1]] * is_ours
        return [name for part in expression for name in self.names_in(part)]

    def told(self) -> tuple[str, str]:
        """`replaced` as an answer of `labkit.inside.worker_child`. A name that was told is told
        again, whatever it means by now."""
        self._told = self._told or self.replaced()
        return "end", dumps(self._told)

    def replaced(self) -> str:
        """The first name that means something else now, as "torch.equal", or ""."""
        try:
            return (
                self._changed()
                or self._shadowed()
                or self._another_module()
                or self._other_insides()
                or self._wrong_from_the_start()
                or self._reaches_for_counters()
            )
        except Exception as error:  # what lies there is no module, or no class
            return f"a module ({type(error).__name__})"

    def _changed(self) -> str:
        for owner, get, names, values in self._tables:
            if not all(map(is_, map(get, names), values)):
                for name, value in zip(names, values, strict=True):
                    if get(name) is not value and name not in self._set_by_steps:
                        return f"{owner}.{name}"
        return ""

    def _another_module(self) -> str:
        """A module that is another one, or that looks its names up in another way."""
        for name, module, kind in self._modules:
            if self._loaded.get(name) is not module or type(module) is not kind:
                return name
        return ""

    def _other_insides(self) -> str:
        """A function that is the same object and does something else."""
        if [INSIDES(function) for _, function in self._functions] != self._codes:
            for (name, function), code in zip(self._functions, self._codes, strict=True):
                if not all(map(is_, INSIDES(function), code)):
                    return name
        return ""

    def _reaches_for_counters(self) -> str:
        """What a graded file names of `COUNTERS`."""
        for name in [name for name in self._unread if name in self._loaded]:
            self._unread.remove(name)
            if path := getattr(self._loaded[name], "__file__", None):
                whole = _compiled(path)
                for code in (whole, *_codes_in(whole)):
                    if found := COUNTERS.intersection(code.co_names):
                        return min(found)
        return ""

    def _shadowed(self) -> str:
        """A new name of a class that stands before one that it inherits."""
        sizes = [len(members) for _, _, members in self._classes]
        if sizes == self._sizes:
            return ""
        for (owner, kind, members), before in zip(self._classes, self._sizes, strict=True):
            if len(members) != before:
                kept = next(t[2] for t in self._tables if t[0] == owner)
                for name in members.keys() - set(kept) - self._set_by_steps:
                    inherited = (vars(base).get(name) for base in kind.__mro__[1:])
                    if _does_work(name, members[name]) and any(inherited):
                        return f"{owner}.{name}"
        self._sizes = sizes
        return ""

    def _wrong_from_the_start(self) -> str:
        """Look at modules of the engine and the course that have come since."""
        for name in [name for name in self._files if name in self._loaded]:
            members = vars(self._loaded[name])
            if wrong := _other_code(members, self._files.pop(name), self._graded):
                return f"{name}.{wrong}"
            self._keep(name, self._loaded[name])
            self._know(name, members)
            self._remember(name, members, _is_constant)
        return ""

    def _keep(self, name: str, module: types.ModuleType) -> None:
        self._modules.append((name, module, type(module)))

    def _know(self, module: str, members: Mapping[str, Any]) -> None:
        """Remember a module's functions and classes, and the methods of its classes."""
        self._remember(module, members, self._is_work)
        for name, kind in members.items():
            if isinstance(kind, type) and kind not in self._known:
                self._known.add(kind)
                if kind.__flags__ & ON_HEAP and not kind.__flags__ & IMMUTABLE:
                    self._know_class(f"{module}.{name}", kind)

    def _know_class(self, owner: str, kind: type) -> None:
        if kind.__module__ not in self._graded:
            self._remember(owner, vars(kind), self._is_work)
            if self._tables[-1][0] == owner:
                self._classes.append((owner, kind, vars(kind)))
                self._sizes.append(len(vars(kind)))

    def _is_work(self, name: str, value: Any) -> bool:
        """Whether it does something, and is no work of the submission."""
        return _does_work(name, value) and getattr(value, "__module__", "") not in self._graded

    def _remember(
        self, owner: str, members: Mapping[str, Any], wanted: Callable[[str, Any], bool]
    ) -> None:
        kept = {name: value for name, value in members.items() if wanted(name, value)}
        if kept:
            self._tables.append((owner, members.get, list(kept), list(kept.values())))
            for name, value in kept.items():
                function: Any = value
                if isinstance(value, staticmethod | classmethod):
                    function = value.__func__
                elif isinstance(value, property):
                    function = value.fget
                if isinstance(function, types.FunctionType):
                    self._functions.append((f"{owner}.{name}", function))
                    self._codes.append(INSIDES(function))


def _does_work(name: str, value: Any) -> bool:
    """Whether it does something: a function, a class or a property, and no data."""
    works = callable(value) or isinstance(value, DESCRIPTORS)
    return works and not any(part in name for part in FREE)


def _is_constant(name: str, value: Any) -> bool:
    return name.isupper() and name[0] != "_" and isinstance(value, CONSTANTS)


def _files_of(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(module, file) of all that can be imported from some folders."""
    for folder in map(Path, folders):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), str(path)


def _other_code(members: Mapping[str, Any], path: str, graded: frozenset[str]) -> str:
    """The first function of a module, or method of its classes, whose code does not stand in the
    module's file; or ""."""
    compiled = _compiled(path)
    known = set(_codes_in(compiled))
    defined = {code.co_name for code in compiled.co_consts if isinstance(code, types.CodeType)}
    own = {*graded, members["__name__"]}
    for name in defined & members.keys():
        value = members[name]
        function = _function_in(value)
        if type(value).__module__ in graded or (function and function.__code__ not in known):
            return name
        for key, method in vars(value).items() if isinstance(value, type) else ():
            function = _function_in(method)
            if function and function.__module__ in own and _is_strange(function.__code__, known):
                return f"{name}.{key}"
    return ""


def _compiled(path: str) -> types.CodeType:
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _is_strange(code: types.CodeType, known: set[types.CodeType]) -> bool:
    """Whether code stands in no file that is known; what `dataclass` writes stands in none."""
    return code not in known and code.co_filename != "<string>"


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from _codes_in(each)


def _function_in(value: Any) -> types.FunctionType | None:
    """The function that decorators, a property or a method hold; None if they hold none."""
    for _ in range(DEPTH):
        inner = next((v for n in WRAPPERS if (v := getattr(value, n, None)) is not None), None)
        if inner is None:
            break
        value = inner
    return value if isinstance(value, types.FunctionType) else None
