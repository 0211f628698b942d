"""The routes, and the middleware before them.

Source: vllm/entrypoints/openai/api_server.py#L157-L307 (build_app) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import runpy
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import mini_vllm
from mini_vllm.engine.exceptions import EngineDeadError, EngineGenerateError, QueueFullError
from mini_vllm.entrypoints.anthropic.errors import AnthropicErrors
from mini_vllm.entrypoints.anthropic.messages import count_tokens, create_messages
from mini_vllm.entrypoints.anthropic.protocol import CountTokensRequest, MessagesRequest
from mini_vllm.entrypoints.openai import dev, lora
from mini_vllm.entrypoints.openai.bodies import DropTheRest, read_body
from mini_vllm.entrypoints.openai.chat import create_chat_completion
from mini_vllm.entrypoints.openai.completion import create_completion
from mini_vllm.entrypoints.openai.errors import APIError, as_api_error, json_response
from mini_vllm.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    InputTokensRequest,
    LoadLoRARequest,
    ResponsesRequest,
    TokenizeRequest,
    UnloadLoRARequest,
)
from mini_vllm.entrypoints.openai.responses import (
    cancel_response,
    count_input_tokens,
    create_response,
    delete_response,
    list_input_items,
    retrieve_response,
)
from mini_vllm.entrypoints.openai.sse import ClientGoneError, with_cancellation
from mini_vllm.entrypoints.openai.state import ServerState, shutting_down
from mini_vllm.entrypoints.openai.tokenization import (
    create_detokenize,
    create_tokenize,
    tokenizer_info,
)
from mini_vllm.entrypoints.pooling.routes import GUARDED as OF_POOLING
from mini_vllm.entrypoints.pooling.routes import ROUTES, check_task
from mini_vllm.errors import show
from mini_vllm.lora.request import LoRARequest

logger = logging.getLogger(__name__)

GUARDED = ("/v1", "/tokenize", "/detokenize", "/tokenizer_info", *OF_POOLING, *dev.PATHS)
"""Paths that need a key, if the server has one. vLLM guards only the first."""
NOT_COUNTED = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")
"""Paths that a monitor requests often: most of the counted requests would be its own."""
CLIENT_GONE = 499
FORESEEN = (
    APIError, EngineDeadError, EngineGenerateError, QueueFullError,
    ValueError, TypeError, OverflowError, NotImplementedError, RecursionError,
)  # fmt: skip
"""Exceptions that routes raise on purpose, or that mistakes of clients cause."""
PERMISSION = {
    "id": "modelperm-mini_vllm", "object": "model_permission", "created": 0,
    "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
    "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False,
    "organization": "*", "group": None, "is_blocking": False,
}  # fmt: skip
"""A field of older versions of OpenAI's API, which old clients still read."""

R = TypeVar("R", bound=BaseModel)
Serve = Callable[[ServerState, Any, Headers], Awaitable[Response]]


def build_app(
    state: ServerState,
    api_keys: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    allowed_methods: Sequence[str] = ("*",),
    allowed_headers: Sequence[str] = ("*",),
    allow_credentials: bool = False,
    root_path: str = "",
) -> FastAPI:
    """The application of one server: its routes and middleware.

    Args:
        state: of the server.
        api_keys: a request to a guarded path must have one of them; without keys no path is
            guarded.
        allowed_origins: origins of web pages that may call the server. None by default: otherwise
            any page that a user visits could use the server on their machine.
    """
    app = FastAPI(title="mini_vllm", version=mini_vllm.__version__, root_path=root_path)
    app.state.server = state
    _add_generation(app, state)
    _add_answers(app, state)
    dev.add_dev_routes(app, state)
    _add_errors(app)
    # A request passes the middleware in reverse order: the last one added comes first.
    app.add_middleware(AnswerErrors)
    app.add_middleware(CountRequests, state=state)
    if api_keys:
        app.add_middleware(Authenticate, keys=api_keys, root_path=root_path)
    app.add_middleware(AnthropicErrors, root_path=root_path)
    if allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allowed_origins),
            allow_methods=list(allowed_methods),
            allow_headers=list(allowed_headers),
            allow_credentials=allow_credentials,
        )
    _count_http(app, state)  # here, so that refused keys are counted, too
    app.add_middleware(DropTheRest)
    if state.enable_request_id_headers:
        app.add_middleware(EchoRequestId)
    return app


def _add_generation(app: FastAPI, state: ServerState) -> None:
    """Routes that take a JSON body."""

    def add(path: str, model: type[BaseModel], serve: Serve) -> None:
        async def route(request: Request) -> Response:
            try:
                body = await read_unless_draining(state, request)
            except ClientDisconnect:  # while it still sent its request
                return Response(status_code=CLIENT_GONE)
            try:
                check_task(state, path)
                work = serve(state, check_body(body, model), request.headers)
                return await with_cancellation(request.receive, work)  # type: ignore[arg-type]
            except BaseException as error:
                state.engine.request_refused(body.get("kv_transfer_params"))
                if isinstance(error, ClientGoneError):
                    return Response(status_code=CLIENT_GONE)
                if not isinstance(error, Exception):
                    raise
                # If an unforeseen error left this route, the connection would be closed, too.
                return answer_error(request, error)

        name = path.strip("/").replace("/", "_")
        app.add_api_route(
            path, route, methods=["POST"], name=name, response_model=None,
            openapi_extra={"requestBody": {"content": {"application/json": {
                "schema": model.model_json_schema()}}}},
        )  # fmt: skip

    add("/v1/completions", CompletionRequest, create_completion)
    add("/v1/chat/completions", ChatCompletionRequest, create_chat_completion)
    add("/v1/responses", ResponsesRequest, create_response)
    add("/v1/responses/input_tokens", InputTokensRequest, count_input_tokens)
    add("/v1/messages", MessagesRequest, create_messages)
    add("/v1/messages/count_tokens", CountTokensRequest, count_tokens)
    add("/tokenize", TokenizeRequest, create_tokenize)
    add("/detokenize", DetokenizeRequest, create_detokenize)
    add("/v1/load_lora_adapter", LoadLoRARequest, lora.load)
    add("/v1/unload_lora_adapter", UnloadLoRARequest, lora.unload)
    for path, (model, serve) in ROUTES.items():
        add(path, model, serve)


def _count_http(app: FastAPI, state: ServerState) -> None:
    """Add counts, sizes and times of HTTP requests, and the resources of this process, to the
    engine's metrics in `/metrics`.

    Source: vllm/entrypoints/serve/instrumentator/metrics.py#L19-L45 (attach_router) @ v0.22.1
    """
    from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
    from prometheus_fastapi_instrumentator import Instrumentator

    registry = state.metrics.registry
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    Instrumentator(excluded_handlers=list(NOT_COUNTED), registry=registry).add().instrument(app)


def _add_answers(app: FastAPI, state: ServerState) -> None:
    """Routes that only read the server's state, and those of stored responses."""

    @app.head("/health")  # what many monitors send
    @app.get("/health")
    @app.get("/ping")
    @app.post("/ping")
    async def health() -> Response:
        alive = not state.engine.errored and not state.draining
        return Response(status_code=200 if alive else HTTPStatus.SERVICE_UNAVAILABLE)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": mini_vllm.__version__}

    @app.get("/load")
    async def load() -> dict[str, int]:
        return {"server_load": state.num_in_flight}

    @app.get("/metrics")
    async def metrics() -> Response:
        text, kind = state.metrics.render()
        return Response(text, headers={"content-type": kind})

    @app.head("/v1/models")
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model_card(state, name) for name in _names(state)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if not name:
            return await models()
        state.check_model(name)
        return _model_card(state, name)

    if state.enable_tokenizer_info_endpoint:

        @app.get("/tokenizer_info")
        async def tokenizer() -> Response:
            return json_response(tokenizer_info(state))

    @app.get("/v1/responses/{response_id}")
    async def response(response_id: str, stream: bool = False) -> Response:
        return await retrieve_response(state, response_id, stream)

    @app.get("/v1/responses/{response_id}/input_items")
    async def before(
        response_id: str,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        return await list_input_items(state, response_id, after, limit, order)

    @app.delete("/v1/responses/{response_id}")
    async def no_response(response_id: str) -> Response:
        return await delete_response(state, response_id)

    @app.post("/v1/responses/{response_id}/cancel")
    async def cancelled(response_id: str) -> Response:
        return await cancel_response(state, response_id)

    @app.get("/dashboard")
    async def dashboard() -> HTMLResponse:
        page = Path(__file__).with_name("dashboard.html")
        return HTMLResponse(page.read_text(encoding="utf-8"))


def _names(state: ServerState) -> list[str]:
    return [*state.served_model_names, *state.loras]


def _model_card(state: ServerState, name: str) -> dict[str, Any]:
    """Source: vllm/entrypoints/openai/engine/protocol.py#L85-L95 (ModelCard) @ v0.22.1"""
    adapter = state.loras.get(name)
    root = state.engine.config.model.model if adapter is None else adapter.lora_path
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "mini_vllm",
        "root": str(root),
        "parent": None if adapter is None else _parent(state, adapter),
        "max_model_len": state.engine.limits.max_model_len,
        "permission": [PERMISSION | {"created": state.created}],
    }


def _parent(state: ServerState, adapter: LoRARequest) -> str:
    """The name of this server's model that an adapter names as its base; else the first name.

    Source: vllm/entrypoints/openai/models/serving.py#L142-L158
    (OpenAIServingModels.show_available_models) @ v0.22.1
    """
    named = adapter.base_model_name
    return named if named in state.served_model_names else state.model_name


def _add_errors(app: FastAPI) -> None:
    """Every error, wherever it arises, is answered with one error object."""

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status = error.status_code
        if status == HTTPStatus.NOT_FOUND:
            # A path with two slashes comes from a client whose base_url ends in a slash.
            path = request.scope["path"]
            why = dev.why_not(path.removeprefix(request.scope.get("root_path", "")))
            text = f"there is no {request.method} {path}; {why}"
        elif status == HTTPStatus.METHOD_NOT_ALLOWED:
            text = f"{request.url.path} does not take {request.method}"
        else:
            text = str(error.detail)
        return json_response(APIError(text, status).body(), status, dict(error.headers or {}))

    async def on_query(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return APIError(f"{name} is {first.get('input')!r}: {first['msg']}", param=name).response()

    async def on_error(request: Request, error: Exception) -> Response:
        return answer_error(request, error)

    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_query)
    for kind in FORESEEN:
        app.add_exception_handler(kind, on_error)


def answer_error(request: Request, error: Exception) -> Response:
    """The answer for an exception of a route. An unforeseen one is logged with its traceback."""
    problem = as_api_error(error)
    if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        trace = None if isinstance(error, FORESEEN) else error
        logger.error("%s failed: %s", request.url.path, problem.message, exc_info=trace)
    return problem.response()


async def read_unless_draining(state: ServerState, request: Request) -> dict[str, Any]:
    """The body (:func:`read_body`), unless a shutdown begins before it is complete.

    Raises:
        APIError: 503 during a shutdown.
    """
    task = asyncio.current_task()
    assert task is not None
    state.readers.add(task)
    try:
        return await read_body(request)
    except asyncio.CancelledError:
        if not state.draining:
            raise
        task.uncancel()
        raise shutting_down() from None
    finally:
        state.readers.discard(task)


def check_body(body: dict[str, Any], model: type[R]) -> R:
    """The body as ``model``. Raises APIError (400) that says what is wrong with it."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _validation_error(error) from error


def _validation_error(error: ValidationError) -> APIError:
    """The first error, with its field and its value.

    A field that may be of several types has one error for each type; all have the same location.
    """
    problems = error.errors(include_url=False)
    first = problems[0]
    field = str(first["loc"][0]) if first["loc"] else None
    names_of_types = ("str", "int", "list[")
    inner = [str(p) for p in first["loc"][1:] if not str(p).startswith(names_of_types)]
    path = ".".join([*([] if field is None else [field]), *inner])
    texts = [p["msg"] for p in problems if p["loc"][:1] == first["loc"][:1]]
    found = show(first.get("input"))
    reason = " or ".join(dict.fromkeys(texts[:3]))
    if first["type"] == "missing":
        return APIError(f"{path} is missing; add it", param=field)
    return APIError(f"{path} is {found}: {reason}", param=field)


# ---------------------------------------------------------------------- middleware
# Plain ASGI classes: behind Starlette's BaseHTTPMiddleware, a handler gets no disconnect event.


class AnswerErrors:
    """Answers unforeseen errors: inside the other middleware, so that the answer passes it, too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except Exception as error:
            if has_started or scope["type"] != "http":
                raise
            await answer_error(Request(scope), error)(scope, receive, send)


class CountRequests:
    """Counts requests whose answers are not complete; a shutdown waits for them."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        self.state.num_in_flight += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.state.num_in_flight -= 1


class Authenticate:
    """Refuses requests without a valid key.

    It compares digests of equal length, all of them and in constant time, so the time of an answer
    reveals nothing of a key.

    Source: vllm/entrypoints/openai/server_utils.py#L41-L89 (AuthenticationMiddleware) @ v0.22.1
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], root_path: str = "") -> None:
        self.app, self.root_path = app, root_path
        self.digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def knows(self, headers: Headers) -> bool:
        """Whether a valid key is sent, as by OpenAI's clients or by Anthropic's (``x-api-key``)."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = [token if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        digests = [hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() for key in sent]
        compare = secrets.compare_digest
        return any([compare(one, known) for one in digests for known in self.digests])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "OPTIONS":
            path = scope["path"].removeprefix(self.root_path)
            if path.startswith(GUARDED) and not self.knows(Headers(scope=scope)):
                error = APIError(
                    "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or "
                    "'x-api-key: KEY'",
                    HTTPStatus.UNAUTHORIZED,
                )
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


class EchoRequestId:
    """Answers have the X-Request-Id of their request, or a fresh one.

    Source: vllm/entrypoints/openai/server_utils.py#L92-L120 (XRequestIdMiddleware) @ v0.22.1
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id") or secrets.token_hex(16)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"])["x-request-id"] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


if __name__ == "__main__":  # the older form of `mini-vllm serve`, which many guides show
    sys.argv.insert(1, "serve")
    runpy.run_module("mini_vllm", run_name="__main__")  # an import here would be circular
