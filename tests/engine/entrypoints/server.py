"""A real server in a process of its own, for tests: started once, asked by real clients."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import torch

from mini_vllm.sample.custom import BatchUpdate, LogitsProcessor

ROOT = Path(__file__).parents[3]
SMALL = ("--dtype", "float32", "--max-model-len", "256", "--num-gpu-blocks", "256")
SLOW = ("--logits-processors", "tests.engine.entrypoints.server.Slow")
"""For requests that must still run when a test looks: a fast model answers before it does."""


class Slow(LogitsProcessor):
    """Changes nothing, and takes 10 ms a step for it."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return False  # greedy batches ask it, too

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return logits


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Server:
    """``python -m mini_vllm serve`` and a client for it."""

    def __init__(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        uds: str | None = None,
        scheme: str = "http",
    ) -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (a pipe that nobody reads blocks)
        command = (sys.executable, "-m", "mini_vllm", "serve", "storyteller", *SMALL, *words)
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)],
            cwd=ROOT, env=os.environ | (env or {}), stdout=subprocess.DEVNULL, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip
        transport = httpx.HTTPTransport(uds=uds, verify=False)
        self.client = httpx.Client(base_url=self.url, timeout=60, transport=transport)

    def wait(self, seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise AssertionError(f"the server ended: {self.log.read().decode()}")
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/health").status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError("the server did not come up")

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def metric(self, name: str, label: str = "") -> float:
        """The value of a metric, summed over all labels, or over those with one of them."""
        lines = self.client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(f"vllm:{name}{{") and label in line]
        assert found, f"there is no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def until(self, name: str, value: float, seconds: float = 60.0) -> None:
        """Wait until a metric has a value; the limit is for a server that never comes to it."""
        end = time.monotonic() + seconds
        while self.metric(name) != value:
            assert time.monotonic() < end, f"{name} is {self.metric(name)}, not {value}"
            time.sleep(0.02)

    def until_idle(self, seconds: float = 60.0) -> None:
        """Wait until the front end has answered, or dropped, all requests."""
        end = time.monotonic() + seconds
        while self.client.get("/load").json()["server_load"]:
            assert time.monotonic() < end, "requests are still being served"
            time.sleep(0.02)

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
        self.process.wait(timeout=30)
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
