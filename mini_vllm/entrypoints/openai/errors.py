"""One error object for everything that goes wrong, wherever it goes wrong.

::

    {"error": {"message": "...", "type": "BadRequestError", "param": "max_tokens", "code": 400}}

Source: vllm/entrypoints/openai/engine/protocol.py#L59-L67 (ErrorInfo) @ v0.22.1
"""

from __future__ import annotations

import dataclasses
import re
from http import HTTPStatus
from typing import Any

import orjson
from starlette.responses import Response

from mini_vllm.engine.exceptions import EngineDeadError, EngineGenerateError, QueueFullError
from mini_vllm.errors import VLLMValidationError
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.structured_output.backend_types import StructuredOutputOptions

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
_FIELDS = {field.name for field in dataclasses.fields(SamplingParams)} | {
    "prompt",
    "messages",
    "top_logprobs",
    "cache_salt",
    "mode",
    "level",
    "data_parallel_rank",
}
_CONSTRAINTS = tuple(f"{option.value} " for option in StructuredOutputOptions)
_BLAMED = (
    (_CONSTRAINTS, "structured_outputs"),
    ("kv_transfer_params ", "kv_transfer_params"),
    ("unknown repetition parameter ", "repetition_detection"),
)
OWN_FAULT = (*_CONSTRAINTS, "kv_transfer_params ", "no token is left to sample")
"""How the engine begins to say that a request cannot be served as it is, whoever asks again."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class APIError(Exception):
    """An answer that is an error. Raise it anywhere below a route.

    Args:
        message: what is wrong, and what to do about it.
        status: of the HTTP answer; also the error's code.
        param: the field of the request that is to blame.
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
    """What a client is told of an exception. Only mistakes of the client's are its fault.

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
    if isinstance(error, VLLMValidationError):
        return APIError(message, HTTPStatus.BAD_REQUEST, error.parameter)
    if isinstance(error, (ValueError, TypeError, OverflowError)):
        return APIError(message, HTTPStatus.BAD_REQUEST, _param_in(message) or _blamed(message))
    return APIError(message, HTTPStatus.INTERNAL_SERVER_ERROR)


def of_output(message: str) -> APIError:
    """What a client is told of a request that the engine has given up: its own constraints may be
    to blame, as is found out only when they are compiled or met, or KV of another prompt."""
    is_own = message.startswith(OWN_FAULT)
    status = HTTPStatus.BAD_REQUEST if is_own else HTTPStatus.INTERNAL_SERVER_ERROR
    return APIError(message, status, _blamed(message))


def _blamed(message: str) -> str | None:
    """The field whose own words begin a message: that of a constraint, or of KV."""
    return next((param for beginnings, param in _BLAMED if message.startswith(beginnings)), None)


def _param_in(message: str) -> str | None:
    """Our own messages begin with the field that they are about: "temperature is -1; ..."."""
    match = re.match(r"([a-z_]+)(?:\[\d+\]\S*)? (?:is|has|holds) ", message)
    return match.group(1) if match and match.group(1) in _FIELDS else None


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")
