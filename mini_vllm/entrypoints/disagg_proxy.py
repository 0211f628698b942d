"""``python -m mini_vllm.entrypoints.disagg_proxy``: one address for prefill and decode servers.

::

    client ──► proxy ──► prefill server: max_tokens 1, and "keep the KV for another server"
                 │  ◄── where the KV is
                 └─────► decode server: the client's request, and where the KV is
    client ◄────────────  its answer, forwarded as it arrives

The token of the prefill server is dropped: the decode server computes the prompt's last token again
and samples the first token itself. If a prefill server fails, the decode server gets the request
without KV and computes the whole prompt: the client gets its answer later.

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py#L586-L674
(NixlConnectorScheduler.request_finished) @ v0.22.1
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.extras import from_extra
from mini_vllm.json_files import read_json
from mini_vllm.kv_transfer.events import event_from_wire
from mini_vllm.kv_transfer.routing import ContentIndex, choose_worker
from mini_vllm.policies import load_fleet_policy
from mini_vllm.policies.fleet import FleetPolicy, Job, Prices, View

with from_extra("serve", "the proxy", program=__name__ == "__main__"):
    import aiohttp
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response, StreamingResponse
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

PATHS = ("/v1/completions", "/v1/chat/completions")
FAILURES = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError)
"""Errors of a request to a server; a ValueError is an answer that is not JSON."""
ASIDE = aiohttp.ClientTimeout(total=5)
"""The timeout of auxiliary requests, such as counting a prompt's tokens."""
DOWN_SECONDS = 10.0
"""After a failure, a server is used for this time only if all others have failed, too."""


@dataclass(slots=True)
class Worker:
    """A server behind the proxy.

    Attributes:
        url: without a path.
        events: the address of its KV events, if it publishes them.
        queued_tokens: of prompts that were sent to it and are not answered yet.
        computing_tokens: the part of these that it must compute before it can answer.
        running: requests that were sent to it and are not complete.
        down_until: on the monotonic clock: until then it counts as failed.
    """

    url: str
    events: str | None = None
    queued_tokens: int = 0
    computing_tokens: int = 0
    running: int = 0
    down_until: float = 0.0

    def has_failed(self) -> None:
        self.down_until = time.monotonic() + DOWN_SECONDS


@dataclass
class Router:
    """Decides which server computes a prompt, and which one generates the answer.

    Args:
        prefill: servers that compute prompts; none: the decode servers compute them.
        decode: servers that generate.
        block_size: of all servers.
        local_tokens: prompts shorter than this are computed by the decode server.
        policy: if given, it decides instead.
        promise: target seconds for the first token and for each further token, for the policy.
        kv_tokens: KV capacity of a server in tokens, for the policy.
    """

    prefill: list[Worker]
    decode: list[Worker]
    block_size: int = 16
    local_tokens: int = 0
    index: ContentIndex = field(default_factory=ContentIndex)
    policy: FleetPolicy | None = None
    promise: tuple[float, float] = (0.5, 0.05)
    kv_tokens: int = 16_384

    def place(self, token_ids: Sequence[int]) -> tuple[Worker | None, Worker | None]:
        """The workers that compute a prompt (None: the one that answers) and that answer it (None:
        call :meth:`choose_decode` when the prompt is computed)."""
        if self.policy is None:
            return self.choose_prefill(token_ids), None
        views = [
            [self._view(worker, token_ids) for worker in group]
            for group in (self.prefill, self.decode)
        ]
        found = self.policy.place(Job(max(len(token_ids), 1), *self.promise), *views)
        first = None if found.prefill is None else self.prefill[found.prefill]
        return first, self.decode[found.decode]

    def _view(self, worker: Worker, token_ids: Sequence[int]) -> View:
        """A server's state for a policy, from the requests sent to it and its KV events."""
        assert self.policy is not None
        cached = self.index.score(worker.url, token_ids, self.block_size) * self.block_size
        waiting = worker.computing_tokens
        seconds = self.policy.prices.compute(waiting, waiting) if waiting else 0.0
        held = worker.queued_tokens
        return View(cached, seconds, worker.running, self.kv_tokens - held, held)

    def choose_prefill(self, token_ids: Sequence[int]) -> Worker | None:
        """The server that will finish the prompt first; None: the decode server computes it."""
        if not self.prefill or len(token_ids) < self.local_tokens:
            return None
        return self._choose(self.prefill, token_ids)

    def choose_decode(self, token_ids: Sequence[int]) -> Worker:
        return self._choose(self.decode, token_ids)

    def _choose(self, workers: list[Worker], token_ids: Sequence[int]) -> Worker:
        now = time.monotonic()
        workers = [worker for worker in workers if worker.down_until <= now] or workers
        scores = [self.index.score(worker.url, token_ids, self.block_size) for worker in workers]
        queued = [worker.queued_tokens for worker in workers]
        return workers[choose_worker(scores, queued, len(token_ids), self.block_size)]


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """The request to a prefill server: one token, not streamed, with the KV kept for a transfer."""
    asked = {key: value for key, value in body.items() if key != "stream_options"}
    asked |= {"stream": False, "max_tokens": 1, "n": 1}
    asked["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False}
    if "max_completion_tokens" in asked:
        asked["max_completion_tokens"] = 1
    if asked.get("min_tokens"):
        asked["min_tokens"] = 1
    return asked


class Proxy:
    """Forwards requests.

    Args:
        timeout: most seconds of a prefill server for a prompt.
    """

    def __init__(self, router: Router, timeout: float = 60.0) -> None:
        self.router = router
        self.timeout = aiohttp.ClientTimeout(total=timeout)
        self.session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        endless = aiohttp.ClientTimeout(total=None, sock_connect=10)
        unlimited = aiohttp.TCPConnector(limit=0)  # open streams must not block other requests
        async with aiohttp.ClientSession(connector=unlimited, timeout=endless) as self.session:
            listeners = [
                asyncio.create_task(self._listen(worker))
                for worker in (*self.router.prefill, *self.router.decode)
                if worker.events is not None
            ]
            yield
            for listener in listeners:
                listener.cancel()

    async def _listen(self, worker: Worker) -> None:
        """Follow a server's KV events. After a gap its cache is treated as unknown."""
        import msgspec.msgpack
        import zmq.asyncio

        assert worker.events is not None
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.connect(worker.events)
            socket.subscribe(b"")
            expected: int | None = None
            while True:
                frames = await socket.recv_multipart()
                try:
                    _, number, content = frames
                    _, batch, *_ = msgspec.msgpack.decode(content)
                    events = [event_from_wire(event) for event in batch]
                except Exception as error:  # the change is unknown, so all is forgotten
                    logger.warning("%s sends events that cannot be read: %s", worker.events, error)
                    self.router.index.forget(worker.url)
                    continue
                sequence = int.from_bytes(number, "big")
                if expected is not None and sequence != expected:
                    self.router.index.forget(worker.url)
                expected = sequence + 1
                self.router.index.apply(worker.url, events)

    async def serve(self, path: str, request: Request) -> Response:
        """Handle one request of a client."""
        assert self.session is not None
        try:
            body = await request.json()
        except (ValueError, RecursionError) as error:
            return _refused(400, f"the body is not JSON: {error}")
        if not isinstance(body, dict):
            return _refused(400, f"the body is a {type(body).__name__}; it must be an object")
        headers = _passed_on(request)
        token_ids = await self._tokenize(body, headers)
        first, second = self.router.place(token_ids)
        is_for_one = body.get("kv_transfer_params") is None and not _has_many_prompts(body)
        if first is not None and is_for_one:
            first.queued_tokens += len(token_ids)
            first.computing_tokens += len(token_ids)
            try:
                answer = await self._prefill(first, path, body, headers)
            finally:
                first.queued_tokens -= len(token_ids)
                first.computing_tokens -= len(token_ids)
            if isinstance(answer, Response):
                return answer
            body = body | {"kv_transfer_params": answer} if answer else body
        second = second or self.router.choose_decode(token_ids)
        for _ in self.router.decode:
            try:
                return await self._decode(second, path, body, headers, token_ids)
            except aiohttp.ClientConnectorError as error:  # nothing was sent: try another server
                refusal = _refused(502, f"{second.url} cannot be reached: {error}")
                second.has_failed()
                second = self.router.choose_decode(token_ids)
        return refusal

    async def _prefill(
        self, worker: Worker, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> dict[str, Any] | Response | None:
        """Where the KV is; an error response for the client; or None if the server has failed."""
        assert self.session is not None
        try:
            async with self.session.post(
                worker.url + path, json=prefill_body(body), headers=headers, timeout=self.timeout
            ) as answer:
                if 400 <= answer.status < 500:
                    return Response(await answer.read(), answer.status, media_type=JSON)
                answer.raise_for_status()
                return _object(await answer.json()).get("kv_transfer_params")
        except FAILURES as error:
            worker.has_failed()
            logger.warning("%s has failed (%s); the decode server computes all", worker.url, error)
            return None

    async def _decode(
        self,
        worker: Worker,
        path: str,
        body: dict[str, Any],
        headers: dict[str, str],
        token_ids: Sequence[int],
    ) -> Response:
        """The decode server's answer, forwarded as it arrives.

        Raises:
            aiohttp.ClientConnectorError: if the server cannot be reached.
        """
        assert self.session is not None
        computes = 0 if body.get("kv_transfer_params") else len(token_ids)
        worker.queued_tokens += len(token_ids)
        worker.computing_tokens += computes
        worker.running += 1

        def done() -> None:
            worker.queued_tokens -= len(token_ids)
            worker.running -= 1

        try:
            answer = await self.session.post(worker.url + path, json=body, headers=headers)
        except BaseException as error:
            done()
            if not isinstance(error, FAILURES) or isinstance(error, aiohttp.ClientConnectorError):
                raise
            return _refused(502, f"{worker.url} has failed: {error or type(error).__name__}")
        finally:
            worker.computing_tokens -= computes
        return PassedOn(answer, done)

    async def _tokenize(self, body: dict[str, Any], headers: dict[str, str]) -> list[int]:
        """A prompt's tokens, for its length and its cached prefix; empty if they are unknown."""
        assert self.session is not None
        prompt = body.get("prompt")
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            return prompt
        asked = {key: body[key] for key in ("model", "prompt", "messages") if key in body}
        try:
            url = self.router.decode[0].url + "/tokenize"
            async with self.session.post(url, json=asked, headers=headers, timeout=ASIDE) as answer:
                return _object(await answer.json()).get("tokens", [])
        except FAILURES:
            return []


class PassedOn(StreamingResponse):
    """A server's answer, piece by piece; ``done`` is always called at its end.

    It is also called if the client disconnects before the first piece.
    """

    def __init__(self, answer: aiohttp.ClientResponse, done: Callable[[], None]) -> None:
        kind = answer.headers.get("Content-Type", JSON)
        super().__init__(answer.content.iter_any(), answer.status, media_type=kind)
        self.answer, self.done = answer, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.done()
            self.answer.close()  # ends the server's request if the client has disconnected


JSON = "application/json"


def _object(answer: Any) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {}


def _refused(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "proxy_error"}}, status)


def _has_many_prompts(body: dict[str, Any]) -> bool:
    """Whether the request has several prompts; `kv_transfer_params` can describe only one."""
    prompt = body.get("prompt")
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def _passed_on(request: Request) -> dict[str, str]:
    names = ("authorization", "x-request-id")
    return {name: request.headers[name] for name in names if name in request.headers}


def make_app(proxy: Proxy) -> FastAPI:
    """The proxy as a web application."""
    app = FastAPI(lifespan=proxy.lifespan)
    for path in PATHS:

        async def serve(request: Request, path: str = path) -> Response:
            return await proxy.serve(path, request)

        app.post(path)(serve)

    @app.get("/health")
    async def health() -> Response:
        return Response()

    @app.get("/v1/models")
    async def models() -> Response:
        assert proxy.session is not None
        url = proxy.router.decode[0].url
        try:
            async with proxy.session.get(f"{url}/v1/models", timeout=ASIDE) as answer:
                return Response(await answer.read(), answer.status, media_type=JSON)
        except FAILURES as error:
            return _refused(502, f"{url} cannot be reached: {error}")

    return app


def parse_worker(text: str) -> Worker:
    """Parse ``URL`` or ``URL,EVENTS``. Raises ArgumentTypeError for anything else."""
    url, _, events = text.partition(",")
    if not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the address of a server; write http://HOST:PORT, or http://...,tcp://..."
        )
    if events and not events.startswith(("tcp://", "ipc://")):
        raise argparse.ArgumentTypeError(
            f"{events!r} is not an address of KV events; write tcp://HOST:PORT or ipc://PATH"
        )
    return Worker(url.rstrip("/"), events or None)


def make_policy(name: str | None, prices: Path | None) -> FleetPolicy | None:
    """The policy of that name or file, with these prices.

    Raises:
        ValueError: if there is no such policy, or the file is not a file of prices.
    """
    if name is None:
        return None
    if prices is None:
        raise ValueError(
            "--policy needs --prices FILE; `python -m labkit arena prices` of the course writes one"
        )
    try:
        known = Prices(**read_json(prices))
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"{prices} is not a file of prices: {error}; `python -m labkit arena prices` writes one"
        ) from None
    return load_fleet_policy(name)(known)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mini_vllm.entrypoints.disagg_proxy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--prefill", nargs="*", default=[], type=parse_worker, metavar="URL[,EVENTS]")
    add("--decode", nargs="+", required=True, type=parse_worker, metavar="URL[,EVENTS]")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8100)
    add("--block-size", type=int, default=16, help="tokens per block of the servers")
    add("--local-tokens", type=int, default=0, help="shorter prompts are not worth a transfer")
    add("--prefill-timeout", type=float, default=60.0, metavar="SECONDS")
    add("--policy", help="the policy: earliest-first-token, or path/to/file.py:Class of your own")
    add("--prices", type=Path, metavar="FILE", help="for --policy: what work costs, as JSON")
    add("--promise", type=float, nargs=2, default=(0.5, 0.05), metavar=("TTFT", "TPOT"))
    add("--kv-tokens", type=int, default=16_384, help="for --policy: tokens whose KV fits a server")
    args = parser.parse_args(arguments)
    if not 0 < args.port < 65536:
        parser.error(f"--port is {args.port}; it must be above 0 and below 65536")
    for name, least in (("block_size", 1), ("local_tokens", 0), ("kv_tokens", 1)):
        if (number := getattr(args, name)) < least:
            option = "--" + name.replace("_", "-")
            parser.error(f"{option} is {number}; it must be at least {least}")
    if not 0 < args.prefill_timeout < math.inf:
        parser.error(f"--prefill-timeout is {args.prefill_timeout}; it must be seconds, above 0")
    if not all(0 < seconds < math.inf for seconds in args.promise):
        parser.error(f"--promise is {args.promise}; it must be two times in seconds, above 0")
    try:
        policy = make_policy(args.policy, args.prices)
    except ValueError as error:
        parser.error(str(error))
    router = Router(
        args.prefill, args.decode, args.block_size, args.local_tokens,
        policy=policy, promise=tuple(args.promise), kv_tokens=args.kv_tokens,
    )  # fmt: skip
    app = make_app(Proxy(router, args.prefill_timeout))
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
