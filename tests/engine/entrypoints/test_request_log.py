"""``--enable-log-requests``: a line for each request, and its prompt where more is logged."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mini_vllm.entrypoints.cli import build_parser
from mini_vllm.entrypoints.openai.request_log import RequestLogger, parts_of
from mini_vllm.entrypoints.serve import check
from tests.engine.entrypoints.scripted import scripted

NAME = "mini_vllm.entrypoints.openai.request_log"


@pytest.mark.parametrize("level, num_lines", [("INFO", 1), ("DEBUG", 2), ("WARNING", 0)])
def test_requests_are_logged(level: str, num_lines: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(level, NAME)
    client, _ = scripted("a", "b", request_logger=RequestLogger(max_log_len=4))
    is_warned = [record.levelname for record in caplog.records] == ["WARNING"]
    assert is_warned is (level == "WARNING")
    caplog.clear()
    ask: Any = {"model": "m", "messages": [{"role": "user", "content": "Rain?"}], "top_k": 7}
    assert client.post("/v1/chat/completions", json=ask | {"request_id": "r"}).status_code == 200
    lines = [record.getMessage() for record in caplog.records if record.name == NAME]
    assert len(lines) == num_lines
    if level == "DEBUG":
        ids = [256, *b"use"]  # the template's first tokens
        assert lines[0] == (f"Request chatcmpl-r details: prompt: None, prompt_token_ids: {ids}.")
    if num_lines:
        assert lines[-1].startswith("Received request chatcmpl-r: params: SamplingParams(")
        assert "top_k=7" in lines[-1] and lines[-1].endswith("lora_request: None.")


def test_none_is_logged_unless_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(NAME).setLevel("DEBUG")
    client, _ = scripted("a")
    client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
    assert not [record for record in caplog.records if record.name == NAME]


def test_prompts_of_every_kind() -> None:
    assert parts_of("a") == parts_of({"prompt": "a"}) == ("a", None)
    assert parts_of([1]) == parts_of({"prompt_token_ids": [1]}) == (None, [1])


def test_the_options() -> None:
    words = ["serve", "storyteller", "--enable-log-requests", "--max-log-len", "9"]
    args = build_parser().parse_args(words)
    assert args.enable_log_requests and args.max_log_len == 9
    assert not build_parser().parse_args(["serve", "--disable-log-requests"]).enable_log_requests
    args.max_log_len = -1
    with pytest.raises(ValueError, match="--max-log-len is -1"):
        check(args)
