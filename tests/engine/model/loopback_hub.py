"""A hub on loopback, as small as `huggingface_hub` lets it be, and what goes wrong with it.

It answers three questions: which files a revision has, how long one of them is, and its bytes,
from any byte on. `gated`, `private` and `cut` are what a test wants to go wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class LoopbackHub:
    """Serves each folder of `repositories` under its name, as revision "main" and as commit SHA."""

    repositories: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    """By file name: no byte from this one on is sent; the connection breaks instead."""
    keeps_cutting: bool = True
    """Whether it breaks every time, or only the first."""
    broken: bool = False
    """Whether all answers are 503."""
    requests: list[str] = field(default_factory=list)
    bytes_sent: dict[str, int] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)

    def __enter__(self) -> LoopbackHub:
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Silence."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.broken:
            self._send(503, b"")
            return
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = api or file
        name, revision = (api[1], api[3]) if api else (file[1], file[2]) if file else ("", "")
        if match is None or name not in self.hub.repositories or name in self.hub.private:
            self._refuse(404, "RepoNotFound")
        elif revision not in ("main", SHA):
            self._refuse(404, "RevisionNotFound")
        elif name in self.hub.gated and self.headers.get("Authorization") != "Bearer let-me-in":
            self._refuse(403, "GatedRepo")
        elif api:
            self._list(self.hub.repositories[name], api[2])
        elif file:
            self._file(self.hub.repositories[name] / file[3], with_body)

    def _list(self, folder: Path, what: str) -> None:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = [(str(path.relative_to(folder)), path.stat().st_size) for path in files]
        if what == "tree":
            answer: Any = [
                {"type": "file", "path": name, "size": size, "oid": name} for name, size in names
            ]
        else:
            siblings = [{"rfilename": name, "size": size} for name, size in names]
            answer = {"id": "x/y", "sha": SHA, "siblings": siblings}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, path: Path, with_body: bool) -> None:
        if not path.is_file():
            self._refuse(404, "EntryNotFound")
            return
        data = path.read_bytes()
        headers = {"X-Repo-Commit": SHA, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        headers["Accept-Ranges"] = "bytes"
        start = 0
        if wanted := self.headers.get("Range"):
            self.hub.ranges.append(wanted)
            start = int(re.findall(r"\d+", wanted)[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        limit = self.hub.cut.get(path.name) if with_body else None
        if limit is not None and not self.hub.keeps_cutting:
            del self.hub.cut[path.name]
        sent = data[start:limit]
        if with_body:
            self.hub.bytes_sent[path.name] = self.hub.bytes_sent.get(path.name, 0) + len(sent)
        headers["Content-Length"] = str(len(data) - start)
        self._send(206 if wanted else 200, sent if with_body else b"", headers)
        if limit is not None:
            self.close_connection = True
            self.connection.close()

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
