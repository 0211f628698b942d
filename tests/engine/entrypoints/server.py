"""A real server in a process of its own, for tests: started once, asked by real clients."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.engine.pace import PACED, PATIENCE, Brake, eventually

ROOT = Path(__file__).parents[3]
SMALL = ("--dtype", "float32", "--max-model-len", "256", "--num-gpu-blocks", "256")
SLOW = ("--scheduler", PACED)
"""For requests that must still run when a test looks: see :meth:`Server.slowly`."""


def free_port() -> int:
    """A port outside the range that the system gives out, so no other process takes it before it
    is bound."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


class Server:
    """``python -m mini_vllm serve`` and a client for it.

    The system chooses the port, and the server says which: one that a test had found free could be
    taken by another process before the server binds it.
    """

    def __init__(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        uds: str | None = None,
        model: str = "storyteller",
    ) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (an unread pipe blocks)
        self.brake = Brake()
        command = (sys.executable, "-m", "mini_vllm", "serve", model, *SMALL, *words)
        self.process = subprocess.Popen(
            [*command, "--port", "0"],
            cwd=ROOT, env={**os.environ, **dict([self.brake.variable]), **(env or {})},
            stdout=subprocess.DEVNULL, stderr=self.log, start_new_session=True,
        )  # fmt: skip
        transport = httpx.HTTPTransport(uds=uds, verify=False)
        self.client = httpx.Client(base_url="http://uds", timeout=PATIENCE, transport=transport)

    def wait(self, seconds: float = 180) -> None:
        eventually(self._is_up, "the server did not come up", seconds)

    def _is_up(self) -> bool:
        assert self.process.poll() is None, f"the server ended: {self.said()}"
        where = re.search(r"^mini_vllm: .* at (\w+):(.*)$", self.said(), re.MULTILINE)
        if where is None:
            return False
        if where[1] != "unix":
            self.client.base_url = httpx.URL(f"{where[1]}:{where[2]}")
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("/health").status_code == 200
        return False

    @property
    def url(self) -> str:
        return str(self.client.base_url).rstrip("/")

    @property
    def port(self) -> int:
        port = self.client.base_url.port
        assert port is not None, "it is known once the server is up"
        return port

    def said(self) -> str:
        """What it has written to stderr, whose place in the file is the server's, too."""
        return os.pread(self.log.fileno(), 2**24, 0).decode()

    def slowly(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile a server that was started with SLOW takes half a second for each step."""
        return self.brake.on()

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def metric(self, name: str, label: str = "") -> float:
        """The value of a metric, summed over all labels, or over those with one of them."""
        lines = self.client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(f"vllm:{name}{{") and label in line]
        assert found, f"there is no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def until(self, name: str, value: float, label: str = "") -> None:
        """Wait until a metric has a value."""
        eventually(lambda: self.metric(name, label) == value, f"{name} never is {value}")

    def until_idle(self) -> None:
        """Wait until the front end has answered, or dropped, all requests."""

        def is_idle() -> bool:
            return not self.client.get("/load").json()["server_load"]

        eventually(is_idle, "requests are still being served")

    def cpu_seconds(self) -> float:
        """What the front end has computed so far, whatever else the machine does (Linux)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """MiB that the server and its engine hold (Linux)."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        sizes = []
        for process in (str(pid), *children):
            status = Path(f"/proc/{process}/status").read_text()
            sizes.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
        return sum(sizes)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        return self.process.returncode


@contextlib.contextmanager
def running(*words: str, **more: Any) -> Iterator[Server]:
    server = Server(*words, **more)
    try:
        server.wait()
        yield server
    finally:
        server.client.close()
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
        server.log.close()
