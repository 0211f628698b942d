"""``chat --url`` and ``complete``: a running server at the other end."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mini_vllm.entrypoints.cli import main
from tests.engine.entrypoints import server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server.running("--api-key", "secret") as serving:
        yield serving.url


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")


def say(words: str, url: str, monkeypatch: pytest.MonkeyPatch, lines: str = "") -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return main(words.format(url=url).split())


def test_a_chat_keeps_its_turns(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say("chat --url {url}/v1 -q Hello", url, monkeypatch) == 0
    assert capsys.readouterr().out.strip()
    assert say("chat --url={url} --system-prompt Short.", url, monkeypatch, "Hi\nAnd you?\n") == 0
    captured = capsys.readouterr()
    assert captured.err == "model: storyteller\n" and captured.out.count("\n") >= 2


def test_completions_of_lines(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "complete --url {url}/v1 --model-name storyteller --max-tokens 3"
    assert say(words, url, monkeypatch, "Once upon\nThe sun\n") == 0
    assert capsys.readouterr().out.count("\n") >= 2
    assert say(words + " -q Once", url, monkeypatch) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("chat --url {url} --api-key wrong -q x", "answers 401: the API key is missing or wrong"),
        ("chat --url {url} --model-name other -q x", "404: the model 'other' does not exist"),
        ("complete --url {url} --max-tokens 0 -q x", "400: max_tokens is 0"),
        ("complete --url http://127.0.0.1:9 -q x", "no server answers at http://127.0.0.1:9"),
        ("chat --url localhost:8000 -q x", "it must be like http://localhost:8000/v1"),
        ("chat --url {url} --dtype float32", "--dtype"),
    ],
)
def test_what_goes_wrong_is_a_sentence(
    words: str,
    message: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        assert say(words, url, monkeypatch) == 2
    except SystemExit as left:  # argparse
        assert left.code == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err


CARD = b'{"data": [{"id": "one"}]}'
PART = b'data: {"choices": [{"index": 0, "delta": {"content": "Hal"}}]}\n\n'


@pytest.mark.parametrize(
    ("card", "events", "message"),
    [
        (b"{}", b"", "does not list models as OpenAI's does"),
        (CARD, PART, "ended the answer before its end"),
        (
            CARD,
            PART + b'data: {"error": {"message": "lost"}}\n\n',
            "the server ended the answer: lost",
        ),
        (
            CARD,
            b': a comment\n\ndata: {"choices": [], "usage": {}}\n\n' + PART + b"data: [DONE]\n\n",
            "",
        ),
    ],
)
def test_another_server(
    card: bytes,
    events: bytes,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST(card)

        def do_POST(self, body: bytes = events) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        where = f"http://127.0.0.1:{other.server_port}"
        code = say("chat --url {url} -q x", where, monkeypatch)
        other.shutdown()
    captured = capsys.readouterr()
    assert code == (2 if message else 0) and message in captured.err
    assert ("Hal" in captured.out) == (events != b"")
