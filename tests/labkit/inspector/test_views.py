"""Page, terminal and Perfetto: they show what the recording says, and they are well formed."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from labkit import cli
from labkit.course.root import ROOT
from labkit.inspector.packing import pack, pack_run, queue_change
from labkit.inspector.page import build_page
from labkit.inspector.perfetto import MICROSECONDS, to_perfetto
from labkit.inspector.recording import Run
from labkit.inspector.sources import load as load_runs
from labkit.inspector.sources import of_trace
from labkit.inspector.terminal import show
from labkit.trace.format import parse_trace
from labkit.trace.golden import load
from labkit.trace.runner import run_reference

# ------------------------------------------------------------------ the page


class Page(HTMLParser):
    """Collects what would be fetched, and the recording."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.scripts: list[str] = []
        self.data = ""
        self._inside: dict[str, str | None] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.fetched += [str(found[k]) for k in ("src", "href") if found.get(k)]
        self._inside = found if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            return
        if self._inside.get("id") == "recording":
            self.data += data
        else:
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = None


def test_the_page_is_one_file_that_fetches_nothing(run: Run) -> None:
    text = build_page([run], "small")
    page = Page(text)
    assert page.fetched == ["data:,"]
    assert "url(" not in text and "@import" not in text and "fetch(" not in text
    assert json.loads(page.data) == json.loads(json.dumps(pack([run], "small")))
    assert len(page.scripts) == 1
    assert not re.search(r"^(import|export)\b", page.scripts[0], re.MULTILINE)
    assert "{{" not in re.sub(r"\$\{.*", "", text)


def test_names_cannot_leave_their_place(run: Run, lines: list[dict[str, Any]]) -> None:
    """Ids and file names may be any text."""
    evil = "</script><script>alert(1)</script>"
    changed = json.loads(json.dumps(lines).replace('"a"', json.dumps(evil)))
    page = Page(build_page([replace(run, lines=changed, name=evil)], evil))
    assert len(page.scripts) == 1
    assert json.loads(page.data)["runs"][0]["rows"][0]["id"] == evil


def test_cells_are_packed_by_run_lengths(run: Run) -> None:
    packed = pack_run(run)
    assert [row["cells"] for row in packed["rows"]] == ["pd4", "p2dq2r", "w3a"]
    assert [row["tokens"] for row in packed["rows"]] == [[4], [2, 1, 3], []]
    assert packed["rows"][1]["before"] == [[0, 2], [5, 4]]
    assert packed["queue"] == [[0, [], [[0, 2]]], [3, [2], [[0, 1]]], [5, [1], []]]


def test_preemptions_keep_their_order(run: Run) -> None:
    assert pack_run(run)["preempted"] == [[3, [1]]]
    storm = run.lines[3] | {"preempted": ["b", "a"], "scheduled": {}, "new_block_ids": {}}
    packed = pack_run(replace(run, lines=[*run.lines[:3], storm]))
    assert packed["preempted"] == [[3, [1, 0]]]


def test_a_queue_changes_by_requests_that_leave_and_come() -> None:
    assert queue_change([1, 2, 3], [2, 3, 4]) == ([1], [[2, 4]])
    assert queue_change([1, 2], [3, 1, 2]) == ([], [[0, 3]])
    assert queue_change([1, 2, 3], [3, 1]) == ([1, 2, 3], [[0, 3], [1, 1]]), "they swap places"


def test_the_waiting_queue_can_be_unpacked(run: Run) -> None:
    for golden in (load("priority")[0], load("pressure")[1], load("abort")[2]):
        made = of_trace(golden.name, golden.lines, golden.trace)
        packed = pack_run(made)
        names = [row["id"] for row in packed["rows"]]
        changes = {step: (set(left), come) for step, left, come in packed["queue"]}
        queue: list[int] = []
        for line in made.lines:
            left, come = changes.get(line["step"], (set(), []))
            queue = [index for index in queue if index not in left]
            for place, index in come:
                queue.insert(place, index)
            assert [names[index] for index in queue] == line["waiting"]


def test_the_first_difference_is_packed(run: Run) -> None:
    other = [*run.lines[:3], run.lines[3] | {"free_blocks": 9}, *run.lines[4:]]
    packed = pack([run, replace(run, lines=other)], "two")["difference"]
    assert packed == {"step": 3, "fields": [["free_blocks", "1", "9"]]}
    assert pack([run, run], "same")["difference"] is None
    shorter = replace(run, lines=run.lines[:2], error="ValueError: no")
    packed = pack([run, shorter], "ended")["difference"]
    assert packed["step"] == 2 and packed["fields"][0][0] == "error"


def test_what_is_not_known_is_listed(run: Run) -> None:
    notes = " ".join(pack_run(Run("bare", run.lines, error="it fell over"))["notes"])
    for said in ("how long the prompts are", "token budget", "how large the pool", "block size",
                 "after step 5: it fell over"):  # fmt: skip
        assert said in notes
    assert pack_run(run)["notes"] == []


# ------------------------------------------------------------------ drafts


@pytest.fixture(scope="module")
def drafts() -> Run:
    """Four requests with four drafts a step; three quarters of them are right."""
    return load_runs(ROOT / "docs" / "traces" / "drafts.json")[0]


def test_accepted_drafts_are_the_tokens_that_a_step_brings_beyond_one(drafts: Run) -> None:
    rows = {row["id"]: row for row in pack_run(drafts)["rows"]}
    found = {(i, step): counts for i, row in rows.items() for step, *counts in row["drafts"]}
    for line in drafts.lines:
        for request_id, spec in line["spec"].items():
            offered, accepted = found.pop((request_id, line["step"]))
            sampled = line["sampled"][request_id]
            assert offered == len(spec) and spec[:accepted] == sampled[:accepted]
            ended = any(entry[0] == request_id for entry in line["finished"])
            assert accepted == len(sampled) - 1 or (ended and accepted == len(sampled))
    assert not found


def test_drafts_are_shown_in_the_terminal_and_to_perfetto(drafts: Run) -> None:
    text = shown([drafts], step=9, width=160)
    assert "chat-2  P40200034■" in text and "0-9 decode, drafts accepted" in text
    assert "chat-2 decode 5 (30→33, 2 of 4 drafts accepted)" in text
    args = [event["args"] for event in to_perfetto([drafts])["traceEvents"]]
    counted = [(a["drafts"], a["accepted drafts"]) for a in args if "drafts" in a]
    wanted = [counts for row in pack_run(drafts)["rows"] for _, *counts in row["drafts"]]
    assert [sum(column) for column in zip(*counted, strict=True)] == [
        sum(column) for column in zip(*wanted, strict=True)
    ]


# ------------------------------------------------------------------ Perfetto


def test_perfetto_events_are_well_formed(run: Run) -> None:
    """The fields that each kind of event must have, and no others' times overlap in a track."""
    trace = json.loads(json.dumps(to_perfetto([run, replace(run, name="other")])))
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "i", "C"}
    for event in events:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["name"]
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] > 0
        assert event["ph"] != "i" or event["s"] in "gpt"
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    for track in {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}:
        mine = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == track]
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in mine]
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), track
    named = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert named == ["small", "other"]


def test_perfetto_holds_every_token_and_every_step(run: Run) -> None:
    events = to_perfetto([run])["traceEvents"]
    tokens = sum(e["args"].get("tokens", 0) for e in events if e["ph"] == "X")
    assert tokens == sum(sum(line["scheduled"].values()) for line in run.lines)
    free = [e["args"]["blocks"] for e in events if e["name"] == "free blocks"]
    assert free == [line["free_blocks"] for line in run.lines]
    at = [(e["ts"] // MICROSECONDS, e["name"]) for e in events if e["ph"] == "i"]
    assert sorted(at) == [(3, "preempted"), (4, "ended"), (5, "ended"), (6, "ended")]
    used = [sum(e["args"].values()) for e in events if e["name"] == "tokens"]
    assert used == [6, 2, 2, 1, 1, 3]


# ------------------------------------------------------------------ the terminal


def shown(runs: list[Run], step: int | None = None, width: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    show(runs, step, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_the_terminal_shows_the_same_grid(run: Run) -> None:
    text = shown([run], step=3)
    assert [line.split() for line in text.splitlines()[3:6]] == [
        ["a", "Pddd■"], ["b", "PPd▼:■"], ["c", "···x"]]  # fmt: skip
    assert "step 3: 1 token: a decode 1 (6→7), b preempted; waiting: b" in text
    assert "blocks: given out (evicts) 5; let go 1, 3, 5; free: 1" in text


def test_ids_are_no_markup(run: Run) -> None:
    lines = json.loads(json.dumps(run.lines).replace('"a"', '"[red]a[/red]"'))
    text = shown([Run("[bold]", lines)], 0, width=90)
    assert "6 tokens: [red]a[/red] prefill 4" in text and "[bold]: steps" in text


def test_the_window_follows_the_step_and_fits_the_width() -> None:
    golden = load("mixed")[0]
    run = of_trace("long", golden.lines, golden.trace)
    for step in (0, 90, len(run.lines) - 1):
        text = shown([run], step, width=50)
        first, last = map(int, re.findall(r"steps (\d+) to (\d+)", text)[0])
        assert first <= step <= last and last - first == 35
        grid = text.split("blocks", 1)[0].splitlines()
        assert all(len(line) <= 50 for line in grid[:-1])


def test_two_runs_name_their_first_difference(run: Run) -> None:
    other = replace(run, lines=[*run.lines[:4], run.lines[4] | {"waiting": []}, run.lines[5]])
    text = shown([run, other])
    assert "First difference: step 4, waiting" in text
    assert text.count("step 4: ") == 2, "both sides are described at that step"
    assert "No difference: 6 steps." in shown([run, run])


def test_the_pool_is_not_described_once_it_is_lost(run: Run) -> None:
    wrong = replace(run, lines=[run.lines[0] | {"free_blocks": 4}, *run.lines[1:]])
    assert "blocks: not determined by the recording; free: 0" in shown([wrong], 1)


def test_a_run_without_limits_draws_bars_up_to_its_most(run: Run) -> None:
    text = shown([Run("bare", run.lines)])
    assert "of 6 tokens  █▃▃▂▂▄" in text


def test_the_docs_show_what_the_terminal_shows() -> None:
    docs = (ROOT / "docs" / "inspector.md").read_text()
    fence = re.search(r"```\n(reference: steps.*?)```", docs, re.DOTALL)
    assert fence
    mine = shown(load_runs(ROOT / "docs" / "traces" / "rush.json"), 14, width=100)
    lines = [line.rstrip() for line in mine.splitlines()]
    wanted = fence[1].splitlines()
    assert wanted == lines[: len(wanted)]


# ------------------------------------------------------------------ the command


def inspect(*words: object) -> int:
    return cli.main(["inspect", *map(str, words)])


def test_the_command_writes_one_page(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sub" / "page.html"
    assert inspect(recording, "--out", out) == 0
    assert capsys.readouterr().out.startswith(f"{out}  ")
    assert Page(out.read_text()).data
    assert [path.name for path in out.parent.iterdir()] == ["page.html"], "no half-written file"


def test_terminal_and_perfetto_write_no_page(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.json"
    assert inspect(recording, "--terminal", "--step", 2, "--perfetto", out) == 0
    said = capsys.readouterr().out
    assert "small.jsonl: steps 0 to 5 of 6" in said and ".html" not in said
    assert json.loads(out.read_text())["displayTimeUnit"] == "ms"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say which run: make inspect TRACE=run.jsonl"),
        (["no.jsonl"], "no.jsonl: there is no such file"),
        (["{}", "--impl", "mine"], "--impl mine: it must be one of reference, labs, vllm"),
        (["{}", "--impl", "labs", "--scheduler", "x"], "--scheduler goes with --impl reference"),
        (["{}", "--out", "{}/page.html"], "cannot be written"),
    ],
)
def test_wrong_words_are_one_line_and_exit_1(
    recording: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert inspect(*(word.format(recording) for word in words)) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_what_the_encoder_does_is_shown() -> None:
    """Two requests with the same picture, one with another, and a cache that holds one."""
    trace = parse_trace(
        {
            "config": {
                "max_num_batched_tokens": 16, "max_num_seqs": 4, "block_size": 4,
                "num_gpu_blocks": 40, "max_model_len": 32, "vocab_size": 50,
                "encoder_cache_size": 6, "max_num_encoder_input_tokens": 6,
            },
            "events": [
                {"op": "add", "id": "a", "prompt": {"len": 12, "seed": 1}, "max_tokens": 2,
                 "images": [[2, 6, "cat"]]},
                {"op": "add", "id": "b", "prompt": {"len": 12, "seed": 2}, "max_tokens": 2,
                 "images": [[1, 6, "dog"]]},
                {"op": "drain"},
            ],
        }
    )  # fmt: skip
    run = of_trace("pictures", list(run_reference(trace)), trace)
    packed = pack_run(run)["images"]
    assert packed[0][:2] == [0, [[0, [0]]]]
    assert [row for _, rows, _ in packed for row, _ in rows] == [0, 1]
    assert sum(forgotten for *_, forgotten in packed) == 1
    out = io.StringIO()
    show([run], 0, Console(file=out, width=80))
    assert "encoder: a encodes image 0" in out.getvalue()
