"""What README and docs/models.md show of SmolLM2: its conversation and its program, run again."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from mini_vllm import hub
from mini_vllm.entrypoints.cli import main
from tests.engine.entrypoints.server import running

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def file() -> Path:
    try:
        return hub.folder("smollm2")
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_the_program_prints_what_its_comments_say() -> None:
    [program] = re.findall(r"```python\n(import json\n.*?)```", MODELS, re.DOTALL)
    shown = re.findall(r"print\(.*?\) +# (.+)", program)
    with running(model="smollm2") as server, contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program.replace("http://127.0.0.1:8000", server.url), {})
    assert len(shown) == 2
    assert printed.getvalue().splitlines() == shown


@pytest.mark.slow
def test_the_conversation_is_that_of_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = re.findall(r"(?m)^you> (.+)\n(.+)$", README)
    assert len(turns) == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(question for question, _ in turns)))
    assert main(["chat", "smollm2", "--temperature", "0", "--max-model-len", "512"]) == 0
    assert capsys.readouterr().out.splitlines() == [answer for _, answer in turns]
