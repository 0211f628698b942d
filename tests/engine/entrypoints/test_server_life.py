"""A server's life: keys, a full queue, clients that leave, SIGTERM, and an engine that dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from mini_vllm.engine.chat_template import read_template
from mini_vllm.entrypoints import serve
from mini_vllm.entrypoints.cli import build_parser
from mini_vllm.entrypoints.launcher import SocketFile, bind
from tests.engine.entrypoints.server import ROOT, SLOW, SMALL, Server, running
from tests.engine.pace import PATIENCE, eventually

LONG: dict[str, Any] = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}


def ask_all(server: Server, bodies: list[dict[str, Any]]) -> tuple[list[Any], threading.Thread]:
    """Send requests side by side, in the background; answers come into the list."""
    answers: list[Any] = []

    async def one(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        try:
            answer = await http.post("/v1/completions", json=body)
            answers.append((answer.status_code, answer.text))
        except httpx.TransportError as error:
            answers.append((None, repr(error)))

    async def go() -> None:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(
            base_url=server.url,
            timeout=5 * PATIENCE,
            limits=limits,
            trust_env=False,
            headers=server.client.headers,
        ) as http:
            await asyncio.gather(*(one(http, body) for body in bodies))

    thread = threading.Thread(target=lambda: asyncio.run(go()))
    thread.start()
    return answers, thread


def children(server: Server) -> list[int]:
    """Its engine, and multiprocessing's own helper."""
    return [child.pid for child in psutil.Process(server.process.pid).children()]


def is_paused(server: Server) -> bool:
    return server.client.get("/is_paused").json()["is_paused"]


def test_keys_and_a_full_queue() -> None:
    words = ("--api-key", "secret", "--max-num-queued-reqs", "3", "--served-model-name", "m", "n")
    with running(*words) as server:
        assert server.post("/v1/completions", prompt="a").status_code == 401
        assert server.post("/tokenize", prompt="a").json()["error"]["code"] == 401
        assert server.client.get("/health").status_code == 200
        server.client.headers["authorization"] = "Bearer secret"
        assert server.post("/pause").status_code == 404, "not without VLLM_SERVER_DEV_MODE"
        for name in ("n", "m", "", None):  # answers call it by its first name, as vLLM's do
            answer = server.post("/v1/completions", prompt="a", model=name, max_tokens=2)
            assert answer.status_code == 200 and answer.json()["model"] == "m"
        refused = server.post("/v1/completions", prompt="a", n=4)
        assert refused.status_code == 503 and "max_num_queued_reqs=3" in refused.text
        refused = server.post("/v1/completions", prompt="a", n=4, stream=True)
        assert refused.status_code == 503


def test_a_server_is_paused_and_goes_on(tmp_path: Path) -> None:
    """Held requests go on where they were; while some run to their end, no new one begins."""
    profile = ("--profiler-config", json.dumps({"torch_profiler_dir": str(tmp_path)}))
    words = ("--api-key", "k", "--max-num-seqs", "2", *profile, *SLOW)
    with running(*words, env={"VLLM_SERVER_DEV_MODE": "1"}) as server:
        assert server.post("/pause").status_code == 401
        server.client.headers["authorization"] = "Bearer k"
        refused = server.client.post("/pause?mode=now").json()["error"]
        assert "mode is 'now'; it must be one of abort, wait, keep" in refused["message"]
        refused = server.client.post("/pause?clear_cache=perhaps").json()["error"]
        assert (refused["code"], refused["param"]) == (400, "clear_cache")

        with server.slowly():
            answers, thread = ask_all(server, [LONG] * 3)
            server.until("num_requests_running", 2)
            held = server.client.post("/pause?mode=keep&clear_cache=false").json()
        assert held == {"status": "paused"}
        assert server.client.get("/is_paused").json() == {"is_paused": True}
        assert server.client.post("/reset_prefix_cache").status_code == 409, "it is in use"
        started_anew = server.client.post("/reset_prefix_cache?reset_running_requests=true")
        assert started_anew.status_code == 200
        time.sleep(1)
        assert answers == [], "no request gets a token"
        assert server.client.post("/resume").json() == {"status": "resumed"}
        thread.join()
        assert [status for status, _ in answers] == [200] * 3

        with ThreadPoolExecutor(1) as pool, server.slowly():
            answers, thread = ask_all(server, [LONG] * 4)
            server.until("num_requests_running", 2)
            early = pool.submit(server.client.post, "/pause?mode=wait")
            eventually(lambda: is_paused(server), "it is not paused")
            server.client.post("/resume")
            assert early.result().json()["error"]["type"] == "ConflictError", "it was not complete"
            pool.submit(server.client.post, "/pause?wait_for_inflight_requests=true")
            eventually(lambda: is_paused(server), "it is not paused")
        server.until("num_requests_running", 0)
        assert len(answers) <= 2, "waiting requests wait on"
        server.client.post("/pause?mode=abort")
        thread.join()
        assert sorted("abort" in text for _, text in answers) == [False, False, True, True]
        for name in ("prefix", "mm", "encoder"):
            assert server.client.post(f"/reset_{name}_cache").status_code == 200
        server.client.post("/resume")
        assert server.client.get("/is_paused").json() == {"is_paused": False}
        assert server.post("/v1/completions", prompt="a", max_tokens=2).status_code == 200

        assert server.client.post("/sleep?mode=keep").json()["error"]["param"] == "mode"
        assert server.client.post("/sleep?level=1").status_code == 200
        assert server.client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert server.metric("engine_sleep_state", 'sleep_state="awake"') == 0
        assert "call wake_up" in server.client.post("/resume").json()["error"]["message"]
        assert server.client.post("/wake_up?tags=all").json()["error"]["param"] == "tags"
        assert server.client.post("/wake_up?tags=weights").status_code == 200
        assert server.client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert server.client.post("/wake_up?tags=weights&tags=kv_cache").status_code == 200
        assert server.client.get("/is_sleeping").json() == {"is_sleeping": False}
        assert server.client.post("/start_profile").status_code == 200
        assert server.post("/v1/completions", prompt="a", max_tokens=2).status_code == 200
        assert server.client.post("/stop_profile").status_code == 200
        assert len(list(tmp_path.iterdir())) == 1


def test_a_disconnect_aborts_the_request_and_frees_its_blocks() -> None:
    with running(*SLOW) as server, server.slowly():
        for number, stream in enumerate((True, False), start=1):
            payload = json.dumps(LONG | {"stream": stream}).encode()
            lines = ("POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json")
            head = "\r\n".join((*lines, f"content-length: {len(payload)}", "", ""))
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                sock.sendall(head.encode() + payload)
                server.until("num_requests_running", 1)
            server.until("num_requests_running", 0)
            server.until("kv_cache_usage_perc", 0)
            assert server.metric("request_success_total", 'finished_reason="abort"') == number


@pytest.mark.serial
def test_sigterm_finishes_running_requests_and_admits_no_new_ones() -> None:
    with running("--shutdown-timeout", "600", "--max-num-seqs", "4", *SLOW) as server:
        bodies = [LONG | {"stream": index % 2 == 0} for index in range(12)]
        with server.slowly():
            answers, thread = ask_all(server, bodies)
            server.until("num_requests_running", 4)
            server.until("num_requests_waiting", 8)
            for process in (*children(server), server.process.pid):  # as systemd does
                os.kill(process, signal.SIGTERM)
            eventually(lambda: server.client.get("/health").status_code == 503, "it is healthy")
            late = server.post("/v1/completions", prompt="late")
            assert late.status_code == 503 and late.json()["error"]["code"] == 503
        thread.join()
        assert [status for status, _ in answers] == [200] * 12
        assert all("error" not in text for _, text in answers)
        assert all("length" in text for _, text in answers)
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.serial
def test_sigterm_without_a_timeout_answers_every_request() -> None:
    with running(*SLOW) as server, server.slowly():
        bodies = [LONG | {"stream": index % 2 == 0} for index in range(6)]
        answers, thread = ask_all(server, bodies)
        server.until("num_requests_running", 6)
        os.killpg(server.process.pid, signal.SIGTERM)
        thread.join()
        for status, text in answers:
            assert '"code":503' in text and status in (200, 503)
            assert status == 503 or text.endswith("data: [DONE]\n\n")
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.serial
def test_a_second_sigterm_ends_at_once_and_answers_every_request() -> None:
    with running("--shutdown-timeout", "600", *SLOW) as server, server.slowly():
        body = json.dumps({"prompt": "Once"}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        answers, thread = ask_all(server, [LONG | {"stream": index % 2 == 0} for index in range(4)])
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as sock:
            sock.sendall(head.encode() + body[:-1])  # a body that never comes whole
            server.until("num_requests_running", 4)
            server.process.send_signal(signal.SIGTERM)
            said = b""
            while (more := sock.recv(4096)) and b'"code":503' not in said + more:
                said += more  # head and body may come apart
            assert b"503 Service Unavailable" in said + more and b'"code":503' in said + more
        assert answers == [], "running requests go on"
        server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert all('"code":503' in text for _, text in answers) and len(answers) == 4
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.serial
def test_a_dead_engine_ends_every_request_and_the_server() -> None:
    with running(*SLOW) as server, server.slowly():
        processes = children(server)
        bodies = [LONG | {"stream": index % 2 == 0} for index in range(6)]
        answers, thread = ask_all(server, bodies)
        server.until("num_requests_running", 6)
        for process in processes:
            os.kill(process, signal.SIGKILL)
        thread.join()
        assert len(answers) == 6
        for status, text in answers:
            assert '"code":500' in text and status in (200, 500)
        assert server.process.wait(PATIENCE) == 1


def test_a_taken_port_is_known_before_the_model_is_loaded() -> None:
    with running() as server:
        second = subprocess.run(
            [sys.executable, "-m", "mini_vllm", "serve", *SMALL, "--port", str(server.port)],
            cwd=ROOT, capture_output=True, text=True, timeout=3 * PATIENCE,
        )  # fmt: skip
        assert second.returncode == 2
        assert str(server.port) in second.stderr and "--port" in second.stderr


def test_sigterm_while_the_model_loads_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = Server("--uds", str(path), uds=str(path))
    try:
        eventually(path.exists, "it does not listen before it loads")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) in (0, 128 + signal.SIGTERM)  # 0: it has just come up
        assert not path.exists()
    finally:
        server.process.kill()
        server.client.close()
        server.log.close()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--ssl-keyfile", "x"], "--ssl-certfile"),
        (["--ssl-keyfile", "x", "--ssl-certfile", "y"], "--ssl-keyfile: there is no file x"),
        (["--ssl-keyfile", "Makefile", "--ssl-certfile", "Makefile"], "no certificate and its key"),
        (["--middleware", "m"], "--middleware is vLLM's, and not supported: put a proxy in front"),
        (["--api-key", ""], "--api-key is empty"),
        (["--enable-auto-tool-choice"], "--tool-call-parser"),
        (["--chat-template", "/no/such/file"], "/no/such/file"),
        (["--port", "70000"], "65535"),
        (["--shutdown-timeout", "nan"], "--shutdown-timeout is nan"),
        (["--h11-max-incomplete-event-size", "0"], "at least 1 byte"),
        (["--max-num-queued-reqs", "0"], "max_num_queued_reqs"),
        (["--max-model-len", "99999"], "max_model_len"),
    ],
)
def test_options_that_cannot_be(words: list[str], part: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mini_vllm", "serve", "--port", "0", *words],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 2 and part in result.stderr, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"{% for m in messages %}\n{{ m.content }\n{% endfor %}", "line 2: unexpected '}'; mend"),
        (b"{{ messages | shout }}", "line 1: No filter named 'shout'"),
        (b"\xff{{ messages }}", "cannot be read: 'utf-8' codec"),
        (b"{{ no_such_name.field }}{{ raise_exception('none') }}", None),
    ],
)
def test_a_template_is_read_before_the_first_chat(
    tmp_path: Path, text: bytes, part: str | None
) -> None:
    file = tmp_path / "chat.jinja"
    file.write_bytes(text)
    if part is None:  # what is missing here may be there in a chat
        assert read_template(str(file), "--chat-template") == text.decode()
        return
    with pytest.raises(ValueError, match=re.escape(part)) as error:
        read_template(str(file), "--chat-template")
    assert str(error.value).startswith(f"--chat-template: {file}")
    if b"\xff" not in text:
        with pytest.raises(ValueError, match="--chat-template: the template, line"):
            read_template(text.decode(), "--chat-template")


def test_an_address_that_cannot_be_bound_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for host, uds, part in (
        ("", str(tmp_path / "no" / "s"), "No such file or directory; make the folder first"),
        ("", str(tmp_path / ("x" * 200)), "path too long; a path may have about 100 bytes"),
        ("", str(file), f"--uds: {file} is there, and no socket; remove it, or choose another"),
        ("192.0.2.1", None, "--host must be an address of this machine"),
        ("no such host", None, "--host must be an address of this machine"),
    ):
        with pytest.raises(ValueError, match=re.escape(part)):
            bind(host, 0, uds)
    assert file.read_text() == "mine"


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with running("--uds", path, uds=path) as server:
        answer = server.post("/v1/completions", prompt="Once", max_tokens=2)
        assert answer.status_code == 200
        assert server.stop() == 0
    assert not Path(path).exists()


def test_a_socket_file_is_removed_by_its_own_server_only(tmp_path: Path) -> None:
    """One that ended late took away the address of the server that had come after it."""
    path = str(tmp_path / "s")
    old, old_file = bind("", 0, path), SocketFile(path)
    with pytest.raises(ValueError, match="in use; is another server there"):
        bind("", 0, path)
    os.unlink(path)  # by hand, for a new server
    new, new_file = bind("", 0, path), SocketFile(path)
    old_file.remove()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    new_file.remove()
    assert not Path(path).exists()
    new.close()
    last = bind("", 0, path)
    new_file.remove()
    assert Path(path).is_socket(), "the system may give a new file the number of the old one"
    last.close()
    old.close()


def test_no_socket_file_is_left_by_a_server_that_could_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_vllm.engine.async_llm.load_tokenizer", lambda _: pytest.fail("slow"))
    path, model = tmp_path / "s", tmp_path / "no-model"
    for text, part in ((None, "does not exist"), ("[]", "must be a JSON object")):
        if text is not None:
            model.mkdir()
            (model / "config.json").write_text(text)
        args = build_parser().parse_args(["serve", str(model), "--uds", str(path)])
        with pytest.raises((ValueError, FileNotFoundError), match=part):
            serve.run_serve(args, {})
        assert not path.exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["x"], "--lora-modules has 'x'; write NAME=PATH"),
        (["m=/no/such/adapter"], "--lora-modules has 'm', which is the model's own name"),
        (["x=/no/such/adapter"], "--lora-modules x: there is no adapter folder"),
    ],
)
def test_adapters_that_cannot_be_are_known_before_anything_is_loaded(
    words: list[str], part: str
) -> None:
    line = ["serve", "storyteller", "--served-model-name", "m", "--lora-modules", *words]
    with pytest.raises(ValueError, match=part):
        serve.make_state(build_parser().parse_args(line), {})


def test_an_adapter_that_cannot_be_served_stops_the_start() -> None:
    """It answered an error to each request for it, and the server seemed to be well."""
    server = Server("--lora-modules", "x=/no/such/adapter")
    try:
        assert server.process.wait(PATIENCE) == 2
        said = server.said().strip()
        assert said.splitlines()[-1].startswith("mini_vllm serve: --lora-modules x: ")
        assert "/no/such/adapter" in said and "Traceback" not in said
    finally:
        server.stop()


def test_tls(tmp_path: Path) -> None:
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    write_certificate(Path(key), Path(cert))
    with running("--ssl-keyfile", key, "--ssl-certfile", cert) as server:
        assert server.post("/v1/completions", prompt="Once", max_tokens=2).status_code == 200


def test_files_of_tls_that_cannot_be(tmp_path: Path) -> None:
    """All before the model is loaded, and without asking for a password at the terminal."""
    key, cert, secret, other = (str(tmp_path / name) for name in ("key", "cert", "secret", "other"))
    write_certificate(Path(key), Path(cert), Path(secret))
    write_certificate(Path(other), tmp_path / "rest")
    tls = ["--ssl-keyfile", key, "--ssl-certfile", cert]
    for words, part in (
        (["--ssl-keyfile", secret, "--ssl-certfile", cert], f"{secret} is encrypted"),
        (["--ssl-keyfile", other, "--ssl-certfile", cert], "no certificate and its key"),
        ([*tls, "--ssl-ca-certs", cert], "no client's certificate would be checked"),
        ([*tls, "--ssl-cert-reqs", "2"], "no client's certificate would be checked"),
        ([*tls, "--ssl-ca-certs", key, "--ssl-cert-reqs", "2"], f"{key} holds no certificates"),
        (["--ssl-ca-certs", cert, "--ssl-cert-reqs", "1"], "needs --ssl-keyfile"),
    ):
        with pytest.raises(ValueError, match=re.escape(part)):
            serve.check(build_parser().parse_args(["serve", *words]))


def test_clients_show_a_certificate(tmp_path: Path) -> None:
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    write_certificate(Path(key), Path(cert))
    tls = ("--ssl-keyfile", key, "--ssl-certfile", cert)
    with running(*tls, "--ssl-ca-certs", cert, "--ssl-cert-reqs", "1") as server:
        assert server.client.get("/health").status_code == 200, "not required"
        for trusted in (True, False):
            if not trusted:
                write_certificate(Path(key), Path(cert))
            context = ssl._create_unverified_context()
            context.load_cert_chain(cert, key)
            with httpx.Client(base_url=server.url, verify=context, trust_env=False) as client:
                if trusted:
                    assert client.get("/health").status_code == 200
                    continue
                with pytest.raises(httpx.TransportError):
                    client.get("/health")


def write_certificate(key_file: Path, cert_file: Path, secret_file: Path | None = None) -> None:
    """A certificate for this machine, signed by itself, and its key, once more with a password."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    if secret_file is not None:
        locked = serialization.BestAvailableEncryption(b"x")
        secret_file.write_bytes(key.private_bytes(pem, form, locked))
    cert_file.write_bytes(cert.public_bytes(pem))
