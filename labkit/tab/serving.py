"""Serve built pages on this machine: `labkit book --serve`."""

from __future__ import annotations

import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"


class Handler(SimpleHTTPRequestHandler):
    """A folder's files, asked for anew each time, and isolated from other sites, so that a page may
    interrupt its worker from the first visit on."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a page asks for dozens of files."""


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server of a folder; port 0 = any that is free.

    Raises:
        OSError: another program has the port.
    """
    return ThreadingHTTPServer((HOST, port), partial(Handler, directory=str(folder)))


def serve(page: Path, port: int, show: bool) -> None:
    """Serve the folder of a page until Ctrl-C."""
    with server(page.parent, port) as running:
        address = f"http://localhost:{running.server_port}/{page.name}"
        print(f"{address}  (Ctrl-C ends)", flush=True)
        if show:
            webbrowser.open(address)
        running.serve_forever()
