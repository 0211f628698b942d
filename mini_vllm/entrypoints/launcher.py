"""The life of a server: from a bound socket to the last byte of the last answer.

::

    bind ─► load the model ─► serve ──SIGTERM──► refuse new requests ─► the others end ─► exit 0
                                │                (503)     └── time is up: they get an error, exit 0
                                └── the engine dies: every request gets an error ─► exit 1

Source: vllm/entrypoints/launcher.py#L26-L141 (serve_http) @ v0.22.1
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_vllm.entrypoints.connection import PromptConnection
from mini_vllm.entrypoints.openai.state import ServerState, shutting_down
from mini_vllm.extras import from_extra

with from_extra("serve", "the HTTP server"):
    import uvicorn

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
"""How long an idle connection stays open. Clients close theirs earlier: httpx, which the openai
client uses, after 5 s, and proxies after up to 60 s. The client must close first: otherwise it may
send a request into a connection that is being closed, and the request fails. vLLM closes after 5 s,
as httpx does.
"""
GARBAGE_ALLOCATIONS = 10_000
"""Allocations between two runs of Python's garbage collector. Objects of a request live until it
ends. With Python's default of 700, a quarter of the front end's time for 1,500 requests at once
went into collections."""
WATCH_SECONDS = 0.1
LAST_ANSWERS_SECONDS = 5.0
"""How long complete answers may take to reach their clients."""

_ADVICE = {
    0: "a path may have about 100 bytes; choose a shorter one",
    errno.EADDRINUSE: "is another server there? choose another --port or --uds",
    errno.ENOENT: "make the folder first, or choose another --uds",
    errno.EACCES: "choose a --port above 1023, or a folder for --uds that you may write to",
    errno.EADDRNOTAVAIL: "--host must be an address of this machine",
    socket.EAI_NONAME: "--host must be an address of this machine",
}
"""What to do about each error number that binding a socket may give."""


def bind(host: str, port: int, uds: str | None) -> socket.socket:
    """A socket that does not listen yet.

    Without SO_REUSEPORT: a second server on the same port is then an error.

    Raises:
        ValueError: if the address is taken or does not exist.
    """
    family = socket.AF_UNIX if uds else socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    address: Any = uds or (host, port)
    try:
        if uds:
            _remove_stale(Path(uds))
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        where = uds or f"{host}:{port}"
        reason = error.strerror or error  # a path that is too long has no number
        advice = _ADVICE.get(error.errno or 0, "choose another --host, --port or --uds")
        raise ValueError(f"cannot listen on {where}: {reason}; {advice}") from error
    return sock


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a server that was killed: one that no server answers at."""
    if path.exists() and not path.is_socket():
        raise ValueError(f"--uds: {path} is there, and no socket; remove it, or choose another")
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


class SocketFile:
    """The file of a Unix socket. Only the server that has made it removes it.

    It removes the file while it still listens. Later the file may belong to another server: one
    that found no server at the old file, or one started after a user removed the file by hand.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.made = self._look()

    def _look(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError, TypeError):
            found = os.stat(self.path)  # type: ignore[arg-type]
            return found.st_dev, found.st_ino
        return None

    def remove(self) -> None:
        """Remove the file. Later calls do nothing."""
        made, self.made = self.made, None
        if self.path and made is not None and made == self._look():
            Path(self.path).unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """Installs no signal handlers: ours also begin the shutdown of the engine."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def serve_http(
    app: Any, state: ServerState, sock: socket.socket, file: SocketFile, args: argparse.Namespace
) -> int:
    """Serve until SIGTERM or SIGINT, or until the engine dies; the exit code."""
    config = uvicorn.Config(
        app,
        http=PromptConnection,
        log_level=args.uvicorn_log_level,
        access_log=not args.disable_uvicorn_access_log,
        ssl_keyfile=args.ssl_keyfile,
        ssl_certfile=args.ssl_certfile,
        ssl_ca_certs=args.ssl_ca_certs,
        ssl_cert_reqs=args.ssl_cert_reqs,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(LAST_ANSWERS_SECONDS),
        h11_max_incomplete_event_size=args.h11_max_incomplete_event_size,
        lifespan="off",
        ws="none",
    )
    # Objects made until here live as long as the server: garbage collections can skip them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_ALLOCATIONS)
    server = _Server(config)
    try:
        # uvicorn uses uvloop's event loop and httptools' parser where they are installed.
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            return runner.run(_serve(server, state, sock, file, args))
    finally:
        state.engine.shutdown()


async def _serve(
    server: uvicorn.Server,
    state: ServerState,
    sock: socket.socket,
    file: SocketFile,
    args: argparse.Namespace,
) -> int:
    asked, hurried = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask() -> None:
        if asked.is_set():  # the second time: do not wait for running requests
            hurried.set()
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    state.engine.start()
    await load_adapters(state)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    where = described(args, sock.getsockname())
    print(f"mini_vllm: {state.model_name} at {where}", file=sys.stderr, flush=True)
    watch = asyncio.create_task(_until_dead(state))
    stop = asyncio.create_task(asked.wait())
    await asyncio.wait({task, watch, stop}, return_when=asyncio.FIRST_COMPLETED)
    died = watch.done()
    if stop.done() and not died:
        await drain(state, args.shutdown_timeout, hurried)
    await _until_answered(state, time.monotonic() + LAST_ANSWERS_SECONDS)
    file.remove()
    server.should_exit = True
    for other in (watch, stop):
        other.cancel()
    await task
    return 1 if died else 0


async def load_adapters(state: ServerState) -> None:
    """Load the adapters that the server is started with, so that a fault shows at the start.

    Raises:
        ValueError: for an adapter that cannot be served.

    Source: vllm/entrypoints/openai/models/serving.py#L117-L132
    (OpenAIServingModels.init_static_loras) @ v0.22.1
    """
    for adapter in state.loras.values():
        try:
            await state.engine.add_lora(adapter)
        except RuntimeError as error:
            raise ValueError(f"--lora-modules {adapter.lora_name}: {error}") from error


def described(args: argparse.Namespace, address: Sequence[Any] | str) -> str:
    """Where the server listens, as a URL that can be clicked."""
    if args.uds:
        return f"unix:{args.uds}"
    scheme = "https" if args.ssl_certfile else "http"
    host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
    return f"{scheme}://{host}:{address[1]}"


async def _until_dead(state: ServerState) -> None:
    while not state.engine.errored:
        await asyncio.sleep(WATCH_SECONDS)


async def drain(state: ServerState, timeout: float, hurried: asyncio.Event) -> None:
    """Refuse new requests, and wait for the others until the timeout or until `hurried` is set.
    Requests that are still unfinished then get an error.

    So every accepted request ends with its whole answer or with an error.
    """
    state.draining = True
    for task in state.readers:
        task.cancel()
    answered = asyncio.create_task(_until_answered(state, time.monotonic() + timeout))
    hurry = asyncio.create_task(hurried.wait())
    await asyncio.wait({answered, hurry}, return_when=asyncio.FIRST_COMPLETED)
    answered.cancel()
    hurry.cancel()
    if state.engine.num_unfinished_requests:
        logger.warning("%d requests are ended unfinished", state.engine.num_unfinished_requests)
        state.engine.fail_all(shutting_down())


async def _until_answered(state: ServerState, deadline: float) -> None:
    while state.num_in_flight and time.monotonic() < deadline:
        await asyncio.sleep(WATCH_SECONDS / 2)
