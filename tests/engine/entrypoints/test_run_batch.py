"""``run-batch``: one line in, one line out, whatever is wrong with the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.entrypoints.cli import main
from tests.engine.entrypoints import server

CHAT = "/v1/chat/completions"


def line(custom_id: str, url: str, /, **body: Any) -> bytes:
    fields = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(fields).encode()


GREEDY = {"max_tokens": 4, "temperature": 0}
HI = [{"role": "user", "content": "Hi"}]
DEEP = b'{"a":' * 300 + b"1" + b"}" * 300
LINES = {
    line("chat", CHAT, messages=HI, **GREEDY): None,
    b"": ...,
    line(
        "long", "/v1/completions", prompt="Once", ignore_eos=True, **GREEDY | {"max_tokens": 60}
    ): (None),
    b"no JSON": "line 4 is not valid JSON",
    b"[1]": "line 5 is [1]; it must be a JSON object",
    b'{"custom_id": 7, "method": "POST", "url": "/score", "body": {}}': "custom_id is 7",
    b'{"custom_id": "get", "method": "GET", "url": "/score", "body": {}}': "method is 'GET'",
    line("where", "/sleep"): "url is '/sleep'; it must be one of /v1/completions,",
    b'{"custom_id": "bare", "method": "POST", "url": "/score"}': "body is None; it must be an",
    line("stream", CHAT, messages=HI, stream=True): "stream is True; an answer here is whole",
    line("name", CHAT, model="other", messages=HI): "the model 'other' does not exist",
    line("hot", "/v1/completions", prompt="Once", temperature=-1): "temperature is -1",
    line("kind", "/v1/embeddings", input="Once"): "The model does not support Embeddings API",
    line("deep", CHAT)[:-2] + b'"x": ' + DEEP + b"}}": "ecursion",
    b"\xff\xfe": "line 15 is not valid JSON",
    b"\xef\xbb\xbf" + line("last", "/v1/completions", prompt="Once", **GREEDY): None,
}
"""Lines, and what their errors say."""


def run(tmp_path: Path, lines: bytes, *words: str) -> list[Any]:
    (tmp_path / "in.jsonl").write_bytes(lines)
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    assert main(["run-batch", *files, *server.SMALL, *words]) == 0
    return [json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines()]


def test_every_line_is_answered_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_vllm.entrypoints.run_batch.WINDOW", 3)
    found = run(tmp_path, b"\n".join(LINES), "storyteller")
    expected = [error for error in LINES.values() if error is not ...]
    assert len(found) == len(expected)
    for answer, error in zip(found, expected, strict=True):
        assert answer.keys() == {"id", "custom_id", "response", "error"}
        response = answer["response"]
        assert response.keys() == {"status_code", "request_id", "body"}
        if error is None:
            assert (response["status_code"], answer["error"]) == (200, None)
            assert response["body"]["choices"]
        else:
            assert response["status_code"] in (400, 404) and response["body"] is None
            assert error in answer["error"]["error"]["message"]
    ids = [answer["custom_id"] for answer in found]
    assert ids[:5] == ["chat", "long", None, None, None] and ids[-1] == "last"
    assert found[1]["response"]["body"]["usage"]["completion_tokens"] == 60
    assert "out.jsonl: 15 answers, 12 of them errors" in capsys.readouterr().err


def test_a_batch_says_what_a_server_says(tmp_path: Path) -> None:
    body = {"prompt": ["Once", "The sun"], "n": 2, "logprobs": 2, "seed": 5, "max_tokens": 6}
    [answer] = run(tmp_path, line("one", "/v1/completions", **body))
    with server.running() as serving:
        expected = serving.post("/v1/completions", **body).json()
    found = answer["response"]["body"]
    assert [found["choices"], found["usage"]] == [expected["choices"], expected["usage"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-i {0}/no -o {0}/out", "No such file"),
        ("-i {0}/in -o {0}/no/out", "no/out; name a file in a folder that exists"),
        ("-i {0}/in -o {0}", "name a file in a folder that exists"),
        ("-i {0}/in -o {0}/in", "the file of -i; give another, or the requests are lost"),
        ("-i http://127.0.0.1/in -o {0}/out", "give a file of this machine"),
        ("-i {0}/in -o https://127.0.0.1/out", "give a file of this machine"),
        ("-i {0}/in -o {0}/out --default-chat-template-kwargs [1]", "kwargs is [1]; it must be"),
        ("-i {0}/in -o {0}/out --enable-auto-tool-choice", "needs --tool-call-parser"),
    ],
)
def test_what_cannot_be_is_said_before_a_model_is_loaded(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text("{}\n")
    assert main(["run-batch", *words.format(tmp_path).split(), "--model", "/no/such/model"]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "in").read_text() == "{}\n"
