"""``chat --url`` and ``complete``: talk to a running server that has OpenAI's interface.

Source: vllm/entrypoints/cli/openai.py#L121-L256 (ChatCommand, CompleteCommand) @ v0.22.1
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from mini_vllm.json_files import parse_json

SECONDS = 600
"""How long the server may be silent, as with OpenAI's client."""


def _add_server_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--url", default="http://localhost:8000/v1", help="the server (default: %(default)s)")
    add("--model-name", metavar="NAME", help="default: the first of the server's models")
    add("--api-key", metavar="KEY", help="or OPENAI_API_KEY")


def add_chat_options(command: argparse.ArgumentParser) -> None:
    """Options of `chat --url`."""
    _add_server_options(command)
    add = command.add_argument
    add("--system-prompt", "--system", help="the system message")
    add("-q", "--quick", metavar="MESSAGE", help="print the answer to one message, and end")


def add_complete_options(command: argparse.ArgumentParser) -> None:
    """Options of `complete`."""
    _add_server_options(command)
    add = command.add_argument
    add("--max-tokens", type=int, metavar="INT", help="most tokens (default: the server's)")
    add("-q", "--quick", metavar="PROMPT", help="print the completion of one prompt, and end")


def run_chat(args: argparse.Namespace) -> int:
    """A conversation; each answer is streamed. Ctrl-D ends it."""
    server = Server(args)
    messages: list[dict[str, str]] = []
    if args.system_prompt is not None:
        messages.append({"role": "system", "content": args.system_prompt})
    for text in _texts(args):
        messages.append({"role": "user", "content": text})
        answer = ""
        for choice in server.choices("/v1/chat/completions", messages=messages):
            answer += _print_part(choice["delta"].get("content"))
        print()
        messages.append({"role": "assistant", "content": answer})
    return 0


def run_complete(args: argparse.Namespace) -> int:
    """Complete prompt after prompt; each text is streamed. Ctrl-D ends it."""
    server = Server(args)
    more = {"max_tokens": args.max_tokens} if args.max_tokens is not None else {}
    for text in _texts(args):
        for choice in server.choices("/v1/completions", prompt=text, **more):
            _print_part(choice["text"])
        print()
    return 0


def _texts(args: argparse.Namespace) -> Iterator[str]:
    """What the user says: the text of --quick alone, or lines until stdin ends."""
    if args.quick is not None:
        yield args.quick
        return
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            yield input(prompt)
        except EOFError:
            return


def _print_part(text: str | None) -> str:
    print(text or "", end="", flush=True)
    return text or ""


class Server:
    """A running server, and the model of it that is talked to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.base = args.url.rstrip("/").removesuffix("/v1")
        if not self.base.startswith(("http://", "https://")):
            raise ValueError(f"--url is {args.url!r}; it must be like http://localhost:8000/v1")
        key = args.api_key or os.environ.get("OPENAI_API_KEY", "EMPTY")
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self.model = args.model_name or self._first_model()
        print(f"model: {self.model}", file=sys.stderr)

    def _first_model(self) -> str:
        with self._open("/v1/models") as answer:
            text = answer.read()
        try:
            return str(parse_json(text)["data"][0]["id"])
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(
                f"{self.base}/v1/models does not list models as OpenAI's does; name one with "
                "--model-name"
            ) from error

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The open answer to a GET, or to a POST of ``body``. Raises ValueError with the server's
        message if there is none."""
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        data = None if body is None else json.dumps(body).encode()
        try:
            return urlopen(Request(self.base + path, data, self.headers), timeout=SECONDS)
        except HTTPError as error:
            said = error.read().decode("utf-8", "replace")
            raise ValueError(f"{self.base}{path} answers {error.code}: {_message(said)}") from error
        except URLError as error:
            raise ValueError(
                f"no server answers at {self.base}: {error.reason}; is it running?"
            ) from error

    def choices(self, path: str, **body: Any) -> Iterator[dict[str, Any]]:
        """The choices of a streamed answer, as they come. Raises ValueError for an event that is an
        error, and for a stream that ends early."""
        body |= {"model": self.model, "stream": True}
        with self._open(path, body) as stream:
            for line in stream:
                if not line.startswith(b"data:"):
                    continue
                text = line.removeprefix(b"data:").strip()
                if text == b"[DONE]":
                    return
                event = parse_json(text)
                if "error" in event:
                    raise ValueError(f"the server ended the answer: {_message(text.decode())}")
                yield from event.get("choices", ())
        raise ValueError(f"{self.base} ended the answer before its end; is the server running?")


def _message(said: str) -> str:
    """The message of an error object; the text itself if it is none."""
    try:
        return str(parse_json(said)["error"]["message"])
    except (ValueError, TypeError, LookupError):
        return said[:500]
