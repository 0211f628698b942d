"""``run-batch``: a file of requests in, a file of answers out, in OpenAI's batch format.

::

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}    a line in
    {"id": ..., "custom_id": "a", "response": {"status_code": 200, "request_id": ...,
     "body": {...}}, "error": null}                                                    its line out

Each line is a request to the server's own application, in this process and without a socket, so an
answer is the same as over HTTP.

Source: vllm/entrypoints/openai/run_batch.py#L801-L855 (run_batch) @ v0.22.1
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from mini_vllm.entrypoints.cli_options import process_options_of, say_start
from mini_vllm.entrypoints.serve import (
    add_frontend_options,
    check_frontend,
    leaving_tidily,
    make_state,
)
from mini_vllm.errors import show

WINDOW = 1024
"""Most lines that are being answered at once. Answers are written in the order of the lines, each
as soon as it and all before it are there, so a batch of any size takes the memory of so many."""
AT_ONCE = ("stream", "background")
"""Fields that ask for an answer in parts, or later: a line out is a whole answer."""
OF_HTTP: dict[str, Any] = {
    "enable_request_id_headers": False, "enable_force_include_usage": False,
    "enable_tokenizer_info_endpoint": False, "max_num_queued_reqs": None,
    "max_num_queued_tokens": None, "profiler_config": None, "stream_interval": 1,
}  # fmt: skip
"""Options of a server that have no meaning here."""


def add_run_batch_options(parser: argparse.ArgumentParser) -> None:
    """Source: vllm/entrypoints/openai/run_batch.py#L230-L272 (BatchFrontendArgs) @ v0.22.1"""
    add = add_frontend_options(parser)
    add("-i", "--input-file", required=True, metavar="FILE", help="requests, one a line")
    add("-o", "--output-file", required=True, metavar="FILE", help="answers, one a line")
    parser.set_defaults(**OF_HTTP)


def run_run_batch(args: argparse.Namespace) -> int:
    """Answer every line of the file. 0 if the engine has lived to the end; lines that failed say so
    themselves."""
    check_frontend(args)
    source, target = (_local(args, name) for name in ("input_file", "output_file"))
    if target.exists() and target.samefile(source):
        raise ValueError(f"-o is {target}, the file of -i; give another, or the requests are lost")
    say_start(args.model)
    with source.open("rb") as lines, leaving_tidily():
        state = make_state(args, process_options_of(args))
        try:
            with target.open("wb") as answers:
                counts = asyncio.run(_run(state, lines, answers))
            died = state.engine.errored
        finally:
            state.engine.shutdown()
    total, failed = counts
    print(f"mini_vllm: {target}: {total} answers, {failed} of them errors", file=sys.stderr)
    return 1 if died else 0


def _local(args: argparse.Namespace, name: str) -> Path:
    """The file of an option. Raises ValueError for a URL, or a folder that does not exist."""
    given = str(getattr(args, name))
    if given.startswith(("http://", "https://")):
        raise ValueError(
            f"--{name.replace('_', '-')} is {given}; give a file of this machine, and load it from "
            "or to the URL with curl"
        )
    path = Path(given)
    if name == "output_file" and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ValueError(f"--output-file is {given}; name a file in a folder that exists")
    return path


async def _run(state: Any, lines: BinaryIO, answers: BinaryIO) -> tuple[int, int]:
    """Write the answer of each line. The numbers of lines, and of those with an error."""
    from tqdm import tqdm

    from mini_vllm.entrypoints.launcher import load_adapters
    from mini_vllm.entrypoints.openai.api_server import build_app

    state.engine.start()
    await load_adapters(state)
    batch = Batch(build_app(state))
    total = failed = 0
    with tqdm(unit="req", desc="Running batch", disable=None) as bar:  # None: not in a log file
        async for answer, is_error in batch.answers(lines):
            total, failed = total + 1, failed + is_error
            answers.write(answer + b"\n")
            answers.flush()
            bar.update()
    return total, failed


class Batch:
    """Answers lines by a server's application."""

    def __init__(self, app: Any) -> None:
        from mini_vllm.entrypoints.pooling.routes import GENERATES, ROUTES

        self.app, self.urls = app, (*GENERATES, *ROUTES)

    async def answers(self, lines: Iterable[bytes]) -> AsyncIterator[tuple[bytes, bool]]:
        """For each line that is not blank, in order: its line out, and whether that is an error."""
        pending: deque[asyncio.Task[tuple[bytes, bool]]] = deque()
        try:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                pending.append(asyncio.create_task(self._answer(number, line)))
                if len(pending) == WINDOW:
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _answer(self, number: int, line: bytes) -> tuple[bytes, bool]:
        import orjson

        from mini_vllm.entrypoints.openai.errors import APIError, as_api_error

        given: Any = None
        try:
            try:
                given = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
            except orjson.JSONDecodeError as error:
                raise APIError(f"line {number} is not valid JSON: {error}") from error
            url, body = _checked(number, given, self.urls)
            status, answer = await post(self.app, url, orjson.dumps(body))
        except Exception as error:  # of this line; the others are answered all the same
            problem = as_api_error(error)
            status, answer = problem.status, orjson.dumps(problem.body())
        is_error = status != 200
        content = orjson.Fragment(answer)
        custom_id = given.get("custom_id") if isinstance(given, dict) else None
        out = {
            "id": f"vllm-{uuid.uuid4().hex}",
            "custom_id": custom_id if isinstance(custom_id, str) else None,
            "response": {
                "status_code": status,
                "request_id": f"vllm-batch-{uuid.uuid4().hex}",
                "body": None if is_error else content,
            },
            "error": content if is_error else None,
        }
        return orjson.dumps(out), is_error


def _checked(number: int, given: Any, urls: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The URL and the body of a line. Raises APIError that names the line and the fault."""
    from mini_vllm.entrypoints.openai.errors import APIError

    def check(is_right: bool, name: str, value: Any, wanted: str) -> None:
        if not is_right:
            message = f"line {number}: {name} is {show(value)}; {wanted}"
            raise APIError(message, param=name)

    if not isinstance(given, dict):
        raise APIError(f"line {number} is {show(given)}; it must be a JSON object")
    line: dict[str, Any] = given
    custom_id, method = line.get("custom_id"), line.get("method")
    url, body = line.get("url"), line.get("body")
    check(isinstance(custom_id, str), "custom_id", custom_id, "it must be a text")
    check(method == "POST", "method", method, "it must be POST")
    check(url in urls, "url", url, f"it must be one of {', '.join(urls)}")
    check(isinstance(body, dict), "body", body, "it must be an object")
    for name in AT_ONCE:
        check(
            not line["body"].get(name),
            name,
            line["body"].get(name),
            "an answer here is whole; leave it out",
        )
    return line["url"], line["body"]


async def post(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the body of an application's answer (ASGI) to a JSON request."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "client": None, "server": None,
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    requests = [{"type": "http.request", "body": body, "more_body": False}]
    status, parts = 500, []

    async def receive() -> dict[str, Any]:
        if not requests:
            await asyncio.Event().wait()  # the client stays until it is answered
        return requests.pop()

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts)
