"""The error object of all error answers.

::

    {"error": {"message": "...", "type": "BadRequestError", "param": "max_tokens", "code": 400}}

Source: vllm/entrypoints/openai/engine/protocol.py#L59-L67 (ErrorInfo) @ v0.22.1
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import orjson
from starlette.responses import Response

from mini_vllm.engine.exceptions import EngineDeadError, EngineGenerateError, QueueFullError
from mini_vllm.errors import Fault, RequestError, RequestFailure

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    431: "RequestTooLargeError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
STATUS = {
    Fault.REQUEST: HTTPStatus.BAD_REQUEST,
    Fault.ENGINE: HTTPStatus.INTERNAL_SERVER_ERROR,
}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class APIError(Exception):
    """An error that a route, or code that it calls, raises to be sent as the answer.

    Args:
        message: what is wrong, and what to do about it.
        status: of the HTTP answer; also the error's code.
        param: the field of the request that has the fault.
    """

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param = message, status, param

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "InternalServerError"),
                "param": self.param,
                "code": self.status,
            }
        }

    def response(self) -> Response:
        return json_response(self.body(), self.status)


def as_api_error(error: BaseException) -> APIError:
    """The error that a client gets for an exception. Only the exception's type decides, not its
    message.

    Source: vllm/entrypoints/utils.py#L347-L403 (create_error_response) @ v0.22.1
    """
    if isinstance(error, APIError):
        return error
    message = _ADDRESS.sub("", str(error)) or type(error).__name__
    if isinstance(error, QueueFullError):
        return APIError(message, HTTPStatus.SERVICE_UNAVAILABLE)
    if isinstance(error, RecursionError):
        return APIError("the request nests lists and objects too deeply; use fewer levels")
    if isinstance(error, NotImplementedError):
        return APIError(message, HTTPStatus.NOT_IMPLEMENTED)
    if isinstance(error, (EngineDeadError, EngineGenerateError)):
        return APIError(message, HTTPStatus.INTERNAL_SERVER_ERROR)
    if isinstance(error, RequestError):
        return APIError(message, STATUS[error.fault], error.param)
    if isinstance(error, (ValueError, TypeError, OverflowError)):
        return APIError(message, HTTPStatus.BAD_REQUEST)
    return APIError(message, HTTPStatus.INTERNAL_SERVER_ERROR)


def of_output(failure: RequestFailure) -> APIError:
    """The error for a request that the engine has ended. The request itself may have the fault: a
    constraint that cannot be compiled or satisfied, or KV of another prompt."""
    return APIError(failure.message, STATUS[failure.fault], failure.param)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")
