"""Structured output from the command line."""

from __future__ import annotations

import json

import pytest

from mini_vllm.entrypoints.cli import main

PROMPT = "Write a JSON record for a person named Ada."


def test_a_constraint_is_json_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    constraint = json.dumps({"json": {"enum": ["red", "blue"]}})
    config = json.dumps({"backend": "native", "disable_any_whitespace": True})
    arguments = ["generate", PROMPT, "--json", "--structured-outputs", constraint]
    assert main([*arguments, "--structured-outputs-config", config]) == 0
    text = json.loads(capsys.readouterr().out)["outputs"][0]["text"]
    assert json.loads(text) in ("red", "blue")


@pytest.mark.parametrize("option, value, message", [
    ("--structured-outputs", '{"regx": "a"}', "did you mean regex?"),
    ("--structured-outputs", '{"regex": "(a"}', "missing )"),
    ("--structured-outputs", '{"regex": "a", "json": {}}', "give exactly one"),
    ("--structured-outputs-config", '{"backend": "outlines"}', "auto, native, xgrammar"),
])  # fmt: skip
def test_mistakes_are_one_line(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", PROMPT, option, value]) == 2
    assert message in capsys.readouterr().err
