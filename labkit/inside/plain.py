"""Values on their way between two processes: exact builtins as JSON, nothing else.

No pickle, no files, and no class of the other side: an object whose `__eq__` always says yes
arrives as `{"!type": "ItsName"}` and equals nothing but that. An array travels as its type, shape
and bytes, a Counter, defaultdict or OrderedDict as the dict that it equals.
"""

from __future__ import annotations

import base64
import re
from collections import Counter, OrderedDict, defaultdict
from typing import Any

MAX_DEPTH = 40
MAX_COLLISIONS = 200
MAX_NAME = 100
MAX_BASES = 30
MAX_VALUE = 64 << 20
"""Bytes of one value with all that it holds: eight for an item, one for a character. Asked before
anything is written down, which would take many times its memory."""
ITEM = 8
DICTS = (dict, Counter, OrderedDict, defaultdict)
SIZED = (str, bytes, list, tuple, set, frozenset, *DICTS)
TYPE_NAME, TYPE_ORDER = type.__dict__["__name__"], type.__dict__["__mro__"]
TYPE_MODULE = type.__dict__["__module__"]
NUMBERS = re.compile(r"[<>|][biufc]\d{1,2}")
"""Types of arrays that may travel: byte order, kind, width. No objects, no records."""


class PlainError(ValueError):
    """Data that this format cannot hold, or that is no such data."""


class TooLarge(PlainError):
    """A value that is too large to be read."""


class Room:
    """What is left of `MAX_VALUE` for a value and all that it holds."""

    def __init__(self) -> None:
        self.left = MAX_VALUE

    def take(self, size: int, kind: type) -> None:
        """
        Raises:
            TooLarge: so many bytes are not left.
        """
        self.left -= size
        if self.left < 0:
            raise TooLarge(
                f"{size} bytes of a {class_name(kind)}; {MAX_VALUE} are read of one value"
            )


def encode(value: Any, depth: int = 0, room: Room | None = None) -> Any:
    """Turn a value into JSON data.

    Args:
        room: of the value that this one is a part of.

    Raises:
        PlainError: nested deeper than 40 (or a list that holds itself).
        TooLarge: it is too large to be read.
    """
    _check(depth)
    kind, room = type(value), room or Room()
    if kind in SIZED:
        room.take(len(value) * (1 if kind in (str, bytes) else ITEM), kind)
    if kind in (int, float, bool, str) or value is None:
        return value
    if kind is list:
        return [encode(item, depth + 1, room) for item in value]
    if kind is tuple:
        return {"!tuple": [encode(item, depth + 1, room) for item in value]}
    if kind in (set, frozenset):
        return {"!set": sorted((encode(item, depth + 1, room) for item in value), key=repr)}
    if kind in DICTS:
        pairs = [[encode(part, depth + 1, room) for part in pair] for pair in dict.items(value)]
        plain = all(type(key) is str and not key.startswith("!") for key in value)
        return dict(pairs) if plain else {"!dict": pairs}
    if kind is bytes:
        return {"!bytes": value.hex()}
    array = _as_array(value, room)
    if array is None:
        return {"!type": class_name(kind)}
    data = base64.b64encode(array.tobytes()).decode()
    return {"!array": [array.dtype.str, list(array.shape), data]}


def check_size(error: BaseException) -> None:
    """What an exception says is not compared, but one that is too large costs each answer seconds.

    Raises:
        TooLarge: it says more than is read of a value.
    """
    room = Room()
    for part in BaseException.args.__get__(error):  # type: ignore[attr-defined]
        if type(part) in SIZED:
            room.take(len(part), type(part))


def class_name(kind: type) -> str:
    """The name that `class` gave; a metaclass may lie about it or refuse, and it may be long."""
    return str(TYPE_NAME.__get__(kind))[:MAX_NAME]


def class_names(kind: type) -> list[str]:
    """Of a class and all that it inherits from, "module:Name" each, as `class` gave them."""
    return [
        f"{_module_of(base)}:{class_name(base)}" for base in TYPE_ORDER.__get__(kind)[:MAX_BASES]
    ]


def _module_of(kind: type) -> str:
    found = TYPE_MODULE.__get__(kind)
    return found[:MAX_NAME] if type(found) is str else ""


def _check(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise PlainError(f"nested deeper than {MAX_DEPTH}")


def _as_array(value: Any, room: Room) -> Any:
    """A numpy array for an array or a tensor of numbers, else None."""
    kind = type(value)
    if (kind.__module__, kind.__name__) not in (("torch", "Tensor"), ("numpy", "ndarray")):
        return None
    room.take(value.nbytes, kind)  # before a copy is made: its elements may all lie in one place
    if kind.__name__ == "Tensor":
        tensor = value.detach().cpu()
        value = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return value if NUMBERS.fullmatch(value.dtype.str) else None


def decode(data: Any, depth: int = 0) -> Any:
    """The value that `encode` wrote; an unknown mark stays as it is.

    Raises:
        PlainError: a mark without its data, or deeper than `encode` writes.
    """
    if depth > 3 * MAX_DEPTH:
        raise PlainError(f"nested deeper than {3 * MAX_DEPTH}")
    if isinstance(data, list):
        return _in_order(data, depth)
    if not isinstance(data, dict):
        return data
    if len(data) != 1 or not next(iter(data)).startswith("!"):
        return {key: decode(item, depth + 1) for key, item in data.items()}
    ((mark, inner),) = data.items()
    try:
        if mark == "!tuple":
            return tuple(_in_order(inner, depth))
        if mark == "!set":
            return set(_spread([decode(item, depth + 1) for item in inner]))
        if mark == "!dict":
            keys = _spread([decode(key, depth + 1) for key, _ in inner])
            return dict(zip(keys, [decode(item, depth + 1) for _, item in inner], strict=True))
        if mark == "!bytes":
            return bytes.fromhex(inner)
        if mark == "!array":
            return _array(*inner)
    except PlainError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise PlainError(f"{mark} with wrong data: {error}") from None
    return data


def _in_order(inner: list[Any], depth: int) -> list[Any]:
    """The items of a list or tuple. A test may make a set of them, or of tuples of lists."""
    items = [decode(item, depth + 1) for item in inner]
    if len(items) > MAX_COLLISIONS:
        _spread(list({repr(i): i for i in items if type(i) in (int, tuple, list)}.values()))
    return items


def _spread(keys: list[Any]) -> list[Any]:
    """The keys of a set or dict, if their hashes differ. Those of many numbers can be made equal,
    as those of tuples of -1 and -2 are, and then a set of a hundred thousand takes minutes."""
    most = max(Counter(map(_hash, keys)).values(), default=0)
    if most > MAX_COLLISIONS:
        raise PlainError(f"{most} keys of one hash")
    return keys


def _hash(key: Any) -> int:
    """Of a list, that of the tuple that a test may make of it."""
    if type(key) in (list, tuple):
        return hash(tuple(map(_hash, key)))
    return hash(key) if type(key) is int else hash(repr(key))


def _array(dtype: str, shape: list[int], data: str) -> Any:
    """An array of its own from type, shape and bytes; the three must fit each other."""
    import numpy as np

    if not NUMBERS.fullmatch(dtype):
        raise PlainError(f"an array of {dtype!r}; numbers only")
    return np.frombuffer(base64.b64decode(data), dtype=dtype).reshape(shape).copy()
