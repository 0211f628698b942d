"""Values on their way between two processes: exact builtins as JSON, arrays as npz, nothing else.

No pickle, and no class of the other side: an object whose `__eq__` always says yes arrives as
`{"!type": "ItsName"}` and equals nothing but that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

MAX_DEPTH = 40


class PlainError(ValueError):
    """Data that this format cannot hold, or that is no such data."""


def encode(value: Any, arrays: dict[str, Any], depth: int = 0) -> Any:
    """Turn a value into JSON data; arrays and tensors are put into `arrays` under a new name.

    Raises:
        PlainError: nested deeper than 40 (or a list that holds itself).
    """
    if depth > MAX_DEPTH:
        raise PlainError(f"nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if kind in (int, float, bool, str) or value is None:
        return value
    if kind is list:
        return [encode(item, arrays, depth + 1) for item in value]
    if kind is tuple:
        return {"!tuple": [encode(item, arrays, depth + 1) for item in value]}
    if kind in (set, frozenset):
        return {"!set": sorted((encode(item, arrays, depth + 1) for item in value), key=repr)}
    if kind is dict:
        if all(type(key) is str and not key.startswith("!") for key in value):
            return {key: encode(item, arrays, depth + 1) for key, item in value.items()}
        pairs = [[encode(part, arrays, depth + 1) for part in pair] for pair in value.items()]
        return {"!dict": pairs}
    if kind is bytes:
        return {"!bytes": value.hex()}
    array = _as_array(value)
    if array is None:
        return {"!type": kind.__name__}
    name = f"a{len(arrays)}"
    arrays[name] = array
    return {"!array": name}


def _as_array(value: Any) -> Any:
    """A numpy array for an array or a tensor, else None."""
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("numpy", "ndarray"):
        return value if value.dtype.kind in "biufc" else None
    if (kind.__module__, kind.__name__) == ("torch", "Tensor"):
        tensor = value.detach().cpu()
        return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return None


def decode(data: Any, arrays: Any) -> Any:
    """The value that `encode` wrote; an unknown mark stays as it is.

    Raises:
        PlainError: a mark without its data.
    """
    if isinstance(data, list):
        return [decode(item, arrays) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1 or not next(iter(data)).startswith("!"):
        return {key: decode(item, arrays) for key, item in data.items()}
    ((mark, inner),) = data.items()
    try:
        if mark == "!tuple":
            return tuple(decode(item, arrays) for item in inner)
        if mark == "!set":
            return {decode(item, arrays) for item in inner}
        if mark == "!dict":
            return {decode(key, arrays): decode(item, arrays) for key, item in inner}
        if mark == "!bytes":
            return bytes.fromhex(inner)
        if mark == "!array":
            return arrays[inner]
    except (TypeError, ValueError, KeyError) as error:
        raise PlainError(f"{mark} with wrong data: {error}") from None
    return data


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    with open(path, "wb") as file:
        np.savez(file, **arrays)


def load_arrays(path: Path) -> dict[str, Any]:
    """Read an npz without unpickling anything.

    Raises:
        PlainError: it is no npz, or holds objects.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:
        raise PlainError(f"not a plain npz: {type(error).__name__}: {error}") from None
