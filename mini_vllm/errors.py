"""Errors of a request, as types. Callers distinguish errors by type, never by message.

::

    RequestError      raised: the request is refused        -> Fault.REQUEST   HTTP 400
    RequestFailure    plain data: the request was accepted  -> Fault.REQUEST   HTTP 400
                      and has ended with an error           -> Fault.ENGINE    HTTP 500
    EngineDeadError   raised: the engine is dead                               HTTP 500
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


class VLLMValidationError(ValueError):
    """An invalid value of a request's parameter.

    Attributes:
        parameter: the parameter's name in vLLM; over HTTP it is the error's ``param``.
        value: the parameter's value.

    Source: vllm/exceptions.py#L9-L36 (VLLMValidationError) @ v0.22.1
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter, self.value = parameter, value


class Fault(StrEnum):
    """The cause of a request's error: the request or the engine."""

    REQUEST = "request"
    """The request cannot be served as it is, however often it is sent."""
    ENGINE = "engine"
    """The same request may succeed later, or with another engine."""


class RequestError(VLLMValidationError):
    """A refused request. Every check of a caller's parameters raises it.

    Args:
        message: what is wrong, with the value and the limit.
        param: the parameter's name in vLLM, where this argument is called ``parameter``.
        value: the parameter's value.
        fault: the cause; the status of an HTTP answer follows from it.
        fix: what the caller can do; the end of the message.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        value: Any = None,
        fault: Fault = Fault.REQUEST,
        fix: str = "",
    ) -> None:
        super().__init__(f"{message}; {fix}" if fix else message, parameter=param, value=value)
        self.fault, self.fix = fault, fix

    @property
    def param(self) -> str | None:
        return self.parameter


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why an accepted request has ended with an error. Plain data, which other processes get.

    Attributes:
        message: what went wrong.
        param: the parameter of the request that has the fault, if any.
        fault: the cause.
    """

    message: str
    param: str | None = None
    fault: Fault = Fault.ENGINE

    @classmethod
    def of(cls, reason: RequestFailure | Exception | str) -> RequestFailure:
        """From an exception or a text. Only a :class:`RequestError` is the request's fault; all
        others are the engine's."""
        if isinstance(reason, cls):
            return reason
        if isinstance(reason, RequestError):
            return cls(str(reason), reason.param, reason.fault)
        return cls(str(reason) or type(reason).__name__)

    def __str__(self) -> str:
        return self.message


class EngineDeadError(Exception):
    """The engine is dead, and so are all its requests. It must be started again.

    Source: vllm/v1/engine/exceptions.py#L10-L18 (EngineDeadError) @ v0.22.1
    """


def show(value: Any) -> str:
    """``repr(value)``, shortened if it is long. Never raises.

    Example: ``show([0] * 1000)`` is ``[0, 0, 0, 0, 0, 0, ...]``.
    """
    if isinstance(value, int) and value.bit_length() > 512:
        return f"an integer of {value.bit_length()} bits"  # Python may refuse to print it
    return _SHORT.repr(value)


def bad_value(
    name: str, value: Any, rule: str, *, param: str | None = None, fix: str = ""
) -> RequestError:
    """The error for an invalid value: ``top_p is 2; it must be at most 1``.

    Args:
        name: of the value.
        rule: what the value must be, and what to do.
        param: the parameter that ``name`` is a part of; None: ``name`` is the parameter.
        fix: see :class:`RequestError`.
    """
    return RequestError(
        f"{name} is {show(value)}; {rule}", param=param or name, value=value, fix=fix
    )
