"""`make real-vllm`: its screen, and what it says where vLLM is not there or does not run."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from labkit.citations.symbols import Upstream
from labkit.course.console import Screen
from labkit.trace import real_vllm, real_vllm_child
from labkit.trace.real_vllm import RealVllmError, Run

SOURCE = 'class Loader:\n    def load(self):\n        logger.info("Loading weights took")\n'


def screen() -> tuple[Screen, io.StringIO]:
    paper = io.StringIO()
    return Screen(Console(file=paper, highlight=False, soft_wrap=True)), paper


def entry(message: str, line: int, process: int = 1, level: str = "INFO") -> dict[str, Any]:
    path = "/home/x/site-packages/vllm/loader.py"
    return {"process": process, "level": level, "path": path, "line": line, "message": message}


@pytest.fixture
def source(tmp_path: Path) -> Upstream:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "loader.py").write_text(SOURCE)
    return Upstream(tmp_path)


def step(tokens: int, blocks: list[int], free: int, computed: int) -> dict[str, Any]:
    return {"tokens": tokens, "blocks": blocks, "free": free, "computed": computed}


STEPS = [step(8, [1], 18, 8), step(7, [], 18, 15), step(1, [], 18, 16), step(1, [2], 17, 17)]
RUN = Run(STEPS, [5, 6, 7], " one two three")


def test_a_line_of_the_log_has_its_place_and_is_shown_once(source: Upstream) -> None:
    log = [entry("A start", 1), entry("Loading\nweights took 1 s", 3, 2), entry("again", 3, 2)]
    rows = real_vllm.spoken([*log, entry("no malloc", 2, 1, "WARNING")], source)
    assert rows == [
        "engine  A start",
        "        vllm/loader.py#L1 (Loader)",
        "worker  Loading weights took 1 s",
        "        vllm/loader.py#L3 (Loader.load)",
        "(1 more are warnings about this machine)",
    ]


def test_plans_that_are_alike_are_one_row_and_a_difference_is_named() -> None:
    long = [*STEPS, step(1, [], 17, 18), step(1, [], 17, 19)]
    rows = real_vllm.beside(long, long)
    assert rows[2].split() == ["0", "8", "1", "18", "8", "1", "18", "equal"]
    assert rows[-1].split()[:2] == ["4-5", "1"] and max(map(len, rows)) <= 79
    other = [*STEPS[:3], step(1, [3], 17, 17)]
    assert real_vllm.beside(STEPS, other)[-1].endswith("DIFFERENT")
    assert real_vllm.beside(STEPS, STEPS[:3])[-1].split()[-2:] == ["-", "DIFFERENT"]
    assert real_vllm.verdict(RUN, RUN) == (
        "All 4 plans are equal, block ids included; so are all 3 tokens."
    )
    assert real_vllm.verdict(RUN, Run(other, [5], "")) == (
        "3 of 4 plans are equal, block ids included; the tokens differ."
    )


def test_three_questions_come_before_their_answers(
    source: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = [entry("A start", 1), entry("Loading weights took 1 s", 3, 2)]
    asked = real_vllm.questions(log, RUN)
    assert [right for _, right in asked] == ["worker", "1", "3"]
    assert real_vllm.prompt_of(RUN) == 15
    monkeypatch.setattr(sys, "stdin", io.StringIO("Worker\n2\n"))
    out, paper = screen()
    real_vllm.show(out, log, RUN, RUN, source)
    text = paper.getvalue()
    assert text.index("right: worker") < text.index("Loading weights took")
    assert text.index("it is 1") < text.index("it is 3") < text.index("mini_vllm")


def test_our_own_run_plans_what_the_page_says() -> None:
    ours = real_vllm.run_ours()
    assert [s["tokens"] for s in ours.steps] == [8, 7] + [1] * 19
    assert [s["blocks"] for s in ours.steps if s["blocks"]] == [[1], [2], [3]]
    page = (real_vllm.ROOT / "docs" / "real-vllm.md").read_text(encoding="utf-8")
    assert "\n".join(real_vllm.beside(ours.steps, ours.steps)) in page
    assert real_vllm.verdict(ours, ours) in page


def test_nothing_is_installed_without_a_yes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(real_vllm, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    out, paper = screen()
    with pytest.raises(RealVllmError, match="nothing was installed"):
        real_vllm.ready(out, install=False)
    assert "102 MB" in paper.getvalue() and not (tmp_path / "none").exists()
    assert max(map(len, paper.getvalue().splitlines())) <= 79
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RealVllmError, match="wheels for Linux only"):
        real_vllm.ready(out, install=True)


def fake(path: Path, body: str) -> Path:
    """An interpreter that runs this instead of vLLM; `$3` is the folder of the task."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_what_vllm_wrote_is_read_and_a_failure_is_shown(tmp_path: Path) -> None:
    answer = {"version": "0", "prompt": [], "tokens": [5], "text": "x", "steps": STEPS[:1]}
    line = json.dumps(entry("A start", 1))
    body = f"echo '{line}' > $3/log.jsonl; echo '{json.dumps(answer)}' > $3/answer.json"
    log, theirs = real_vllm.run_theirs(fake(tmp_path / "python", body))
    assert log[0]["message"] == "A start" and theirs == Run(STEPS[:1], [5], "x")
    broken = fake(tmp_path / "broken", "echo no AVX2 here >&2; exit 3")
    with pytest.raises(RealVllmError, match=r"exit code 3.*\n  no AVX2 here\n.*conformance"):
        real_vllm.run_theirs(broken)
    with pytest.raises(RealVllmError, match="cannot be started: No such file"):
        real_vllm.run_theirs(tmp_path / "absent")


def test_a_record_becomes_a_line_that_names_its_place() -> None:
    record = logging.LogRecord("vllm", logging.INFO, "/x/vllm/a.py", 7, "%s tokens", (3,), None)
    row = json.loads(real_vllm_child.JsonLine().format(record))
    assert (row["path"], row["line"], row["message"]) == ("/x/vllm/a.py", 7, "3 tokens")
    config = real_vllm_child.logging_config(Path("log"))
    assert config["formatters"]["json"]["class"] == "labkit.trace.real_vllm_child.JsonLine"
