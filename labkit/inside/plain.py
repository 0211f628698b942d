"""Values on their way between two processes: exact builtins as JSON, nothing else.

No pickle, no files, and no class of the other side: an object whose `__eq__` always says yes
arrives as `{"!type": "ItsName"}` and equals nothing but that. An array travels as its type, shape
and bytes.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from typing import Any

MAX_DEPTH = 40
MAX_COLLISIONS = 200
MAX_NAME = 100
MAX_PART = 64 << 20
"""Characters, items or bytes of one value. Asked before it is written down, which would take many
times its memory."""
SIZED = (str, bytes, list, tuple, set, frozenset, dict)
TYPE_NAME = type.__dict__["__name__"]
NUMBERS = re.compile(r"[<>|][biufc]\d{1,2}")
"""Types of arrays that may travel: byte order, kind, width. No objects, no records."""


class PlainError(ValueError):
    """Data that this format cannot hold, or that is no such data."""


class TooLarge(PlainError):
    """A value that is larger than anybody reads."""


def encode(value: Any, depth: int = 0) -> Any:
    """Turn a value into JSON data.

    Raises:
        PlainError: nested deeper than 40 (or a list that holds itself).
        TooLarge: one part of it is larger than anybody reads.
    """
    _check(depth)
    kind = type(value)
    if kind in SIZED and len(value) > MAX_PART:
        raise TooLarge(f"a {kind.__name__} of {len(value)} parts; at most {MAX_PART} are read")
    if kind in (int, float, bool, str) or value is None:
        return value
    if kind is list:
        return [encode(item, depth + 1) for item in value]
    if kind is tuple:
        return {"!tuple": [encode(item, depth + 1) for item in value]}
    if kind in (set, frozenset):
        return {"!set": sorted((encode(item, depth + 1) for item in value), key=repr)}
    if kind is dict:
        if all(type(key) is str and not key.startswith("!") for key in value):
            return {key: encode(item, depth + 1) for key, item in value.items()}
        return {"!dict": [[encode(part, depth + 1) for part in pair] for pair in value.items()]}
    if kind is bytes:
        return {"!bytes": value.hex()}
    array = _as_array(value)
    if array is None:
        return {"!type": class_name(kind)}
    if array.nbytes > MAX_PART:
        raise TooLarge(f"an array of {array.nbytes} bytes; at most {MAX_PART} are read")
    data = base64.b64encode(array.tobytes()).decode()
    return {"!array": [array.dtype.str, list(array.shape), data]}


def class_name(kind: type) -> str:
    """The name that `class` gave; a metaclass may lie about it or refuse, and it may be long."""
    return str(TYPE_NAME.__get__(kind))[:MAX_NAME]


def _check(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise PlainError(f"nested deeper than {MAX_DEPTH}")


def _as_array(value: Any) -> Any:
    """A numpy array for an array or a tensor of numbers, else None."""
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("torch", "Tensor"):
        tensor = value.detach().cpu()
        value = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    elif (kind.__module__, kind.__name__) != ("numpy", "ndarray"):
        return None
    return value if NUMBERS.fullmatch(value.dtype.str) else None


def decode(data: Any, depth: int = 0) -> Any:
    """The value that `encode` wrote; an unknown mark stays as it is.

    Raises:
        PlainError: a mark without its data, or deeper than `encode` writes.
    """
    if depth > 3 * MAX_DEPTH:
        raise PlainError(f"nested deeper than {3 * MAX_DEPTH}")
    if isinstance(data, list):
        return _spread([decode(item, depth + 1) for item in data], hashed=False)
    if not isinstance(data, dict):
        return data
    if len(data) != 1 or not next(iter(data)).startswith("!"):
        return {key: decode(item, depth + 1) for key, item in data.items()}
    ((mark, inner),) = data.items()
    try:
        if mark == "!tuple":
            return tuple(_spread([decode(item, depth + 1) for item in inner], hashed=False))
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


def _spread(keys: list[Any], hashed: bool = True) -> list[Any]:
    """The keys of a set or dict, if their hashes differ. Those of many numbers can be made equal,
    and then a set of a hundred thousand takes minutes to build. A list is none yet (not `hashed`),
    but a test may make a set of its numbers."""
    if not hashed:
        if len(keys) > MAX_COLLISIONS:
            _spread(list({str(key): key for key in keys if type(key) is int}.values()))
        return keys
    most = max(Counter(map(hash, keys)).values(), default=0)
    if most > MAX_COLLISIONS:
        raise PlainError(f"{most} keys of one hash")
    return keys


def _array(dtype: str, shape: list[int], data: str) -> Any:
    """An array of its own from type, shape and bytes; the three must fit each other."""
    import numpy as np

    if not NUMBERS.fullmatch(dtype):
        raise PlainError(f"an array of {dtype!r}; numbers only")
    return np.frombuffer(base64.b64decode(data), dtype=dtype).reshape(shape).copy()
