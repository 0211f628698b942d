"""How a bad value is shown in an error message, and the error of an engine that is gone."""

from __future__ import annotations

import reprlib
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


class VLLMValidationError(ValueError):
    """A value of a request that cannot be served, and the parameter that holds it.

    Attributes:
        parameter: its name, as vLLM calls it; over HTTP it is the error's ``param``.
        value: what it is.

    Source: vllm/exceptions.py#L9-L36 (VLLMValidationError) @ v0.22.1
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter, self.value = parameter, value


class EngineDeadError(Exception):
    """The engine is gone, and every request with it. There is no way back: start it anew.

    Source: vllm/v1/engine/exceptions.py#L10-L18 (EngineDeadError) @ v0.22.1
    """


def show(value: Any) -> str:
    """``repr(value)``: all of it if it is short, never a megabyte. Never fails.

    Example: ``show([0] * 1000)`` is ``[0, 0, 0, 0, 0, 0, ...]``.
    """
    if isinstance(value, int) and value.bit_length() > 512:
        return f"an integer of {value.bit_length()} bits"  # Python may refuse to print it
    return _SHORT.repr(value)
