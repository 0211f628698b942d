"""The pictures in docs/inspector.md: `python -m labkit docs pictures`; needs Chromium."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.course.root import ROOT
from labkit.inspector.page import build_page
from labkit.inspector.recording import Run
from labkit.inspector.sources import Replay, load, of_trace
from labkit.reader.browser import Browser
from labkit.trace.format import Add, Event, Prompt, Step, Trace, TraceConfig
from labkit.trace.runner import run_reference

WIDTH, HEIGHT = 1360, 850
RUSH = ROOT / "docs" / "traces" / "rush.json"
DRAFTS = ROOT / "docs" / "traces" / "drafts.json"
DIFFERENCE = ROOT / "tests" / "conformance" / "differences" / "unwritten-blocks.json"


@dataclass(frozen=True)
class Picture:
    """What to show, in which colours, and what to do before the shot."""

    name: str
    runs: list[Run]
    scheme: str
    script: str
    title: str


def large_run(steps: int = 2000, requests: int = 200) -> Run:
    """Many requests that arrive faster than 1,100 blocks can serve them."""
    events: list[Event] = []
    for number in range(requests):
        length = 40 + number * 37 % 800
        prompt = Prompt(length, seed=number, share=min(length, 64 * (number % 3)))
        events.append(Add(f"r{number}", prompt, 100 + number * 53 % 400, 0, float(number)))
        events.append(Step(1 + number % 9))
    events.append(Step(steps - sum(e.n for e in events if isinstance(e, Step))))
    config = TraceConfig(max_num_batched_tokens=512, max_num_seqs=48, num_gpu_blocks=1100)
    trace = Trace(config, tuple(events))
    return of_trace(f"{steps} steps of {requests} requests", list(run_reference(trace)), trace)


def pictures() -> Iterator[Picture]:
    go = "inspector.player.go({})"
    v1, v0 = load(RUSH), load(RUSH, against="vllm-v1", replay=Replay(scheduler="vllm-v0"))
    yield Picture("inspector-light", v1, "light", go.format(14), "rush.json: reference")
    yield Picture("inspector-v0-v1", v0, "light", go.format(8), "rush.json: vllm-v0 beside vllm-v1")
    yield Picture("inspector-difference", load(DIFFERENCE), "dark", go.format(3), DIFFERENCE.name)
    drafts = load(DRAFTS)
    yield Picture("inspector-drafts", drafts, "light", go.format(9), f"{DRAFTS.name}: reference")
    large = [large_run()]
    select = go.format(900) + "; inspector.actions.select('r80')"
    yield Picture("inspector-large", large, "light", select, large[0].name)
    yield Picture(
        "inspector-overview",
        large,
        "dark",
        f"inspector.actions.fit(); {go.format(900)}",
        "overview",
    )


def take(folder: Path) -> Iterator[Path]:
    """Save all pictures below `folder`; yields each path."""
    with Browser(WIDTH, HEIGHT) as browser, tempfile.TemporaryDirectory() as pages:
        for picture in pictures():
            page = Path(pages, "page.html")
            page.write_text(build_page(picture.runs, picture.title), encoding="utf-8")
            browser.prefer(picture.scheme)
            browser.open(page.as_uri())
            browser.wait_for("window.inspector")
            browser.evaluate(picture.script)
            browser.evaluate("new Promise((done) => setTimeout(done, 200))")
            path = folder / f"{picture.name}.png"
            browser.screenshot(path)
            yield path
