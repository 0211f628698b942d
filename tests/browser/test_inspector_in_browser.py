"""The inspector in headless Chromium: what it draws, what keys do, and how long a frame takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.inspector.page import build_page
from labkit.inspector.recording import Run
from labkit.inspector.rows import Row, build_rows
from labkit.inspector.screenshots import large_run
from labkit.inspector.sources import load as load_runs
from labkit.inspector.sources import of_trace
from labkit.reader.browser import Browser
from labkit.trace.format import Add, Prompt, Step, Trace, TraceConfig
from labkit.trace.golden import FOLDER, load
from labkit.trace.runner import run_reference

DIFFERENCE = FOLDER.parent / "differences" / "unwritten-blocks.json"

STATE = """(() => {
  const { view, recording, panels } = inspector;
  return { step: view.step, selected: view.selected, cell: view.cell, left: view.left,
    summary: panels.map((p) => p.details.querySelector('.summary').textContent),
    slider: document.querySelector('#step').value,
    now: document.querySelector('#now').textContent };
})()"""
PAINTED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"

MILLISECONDS = 50
"""Bound for the processor time of a frame: script, layout and raster, without a GPU."""


def write(folder: Path, name: str, runs: list[Run]) -> Path:
    path = folder / f"{name}.html"
    path.write_text(build_page(runs, name), encoding="utf-8")
    return path


def golden(profile: str, number: int = 0) -> Run:
    found = load(profile)[number]
    return of_trace(found.name, found.lines, found.trace)


def open_page(browser: Browser, path: Path) -> Browser:
    browser.resize(1440, 900)
    browser.open(path.as_uri())
    browser.wait_for("window.inspector")
    browser.evaluate(PAINTED)
    assert browser.problems == []
    return browser


def press(browser: Browser, key: str, shift: bool = False) -> dict[str, Any]:
    """Press a key, wait for the frame, and read the state."""
    for kind in ("keyDown", "keyUp"):
        text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 if shift else 0, **text
        )
    browser.evaluate(PAINTED)
    return dict(browser.evaluate(STATE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inspector")


@pytest.fixture
def page(browser: Browser, folder: Path) -> Browser:
    """One run: golden pressure-0, 94 steps, 7 requests."""
    return open_page(browser, write(folder, "one", [golden("pressure")]))


@pytest.fixture
def two(browser: Browser, folder: Path) -> Browser:
    """Two runs, which differ first in step 3."""
    return open_page(browser, write(folder, "two", load_runs(DIFFERENCE)))


# ------------------------------------------------------------------ the data


def admissions_with_hits(row: Row) -> Iterator[list[int]]:
    """[step, tokens from the cache], where a row goes from waiting to computing."""
    for index, letter in enumerate(row.letters):
        step = row.first + index
        held = index > 0 and row.letters[index - 1] in "prds" and step not in row.preempted
        if letter in "prd" and not held and row.before[index] > 0:
            yield [step, row.before[index]]


@pytest.mark.parametrize("profile", ["mixed", "pressure", "prefix", "abort", "chunking-off"])
def test_the_page_unpacks_what_was_packed(browser: Browser, folder: Path, profile: str) -> None:
    """Rows, tokens, totals and queues in the page are those of the recording."""
    run = golden(profile, 2)
    open_page(browser, write(folder, profile, [run]))
    unpacked = browser.evaluate("""inspector.recording.runs[0].rows.map((row) => ({
      id: row.id, first: row.first, letters: row.letters, tokens: [...row.tokens],
      preempted: [...row.preempted] }))""")
    rows = build_rows(run).rows
    assert unpacked == [
        {"id": r.id, "first": r.first, "letters": "".join(r.letters), "tokens": r.tokens,
         "preempted": r.preempted} for r in rows
    ]  # fmt: skip
    before = browser.evaluate(
        "inspector.recording.runs[0].rows.map((row) => [...row.letters].map((letter, i) => "
        "'prd'.includes(letter) ? row.before[i] : null))"
    )
    assert before == [
        [b if letter in "prd" else None for letter, b in zip(r.letters, r.before, strict=True)]
        for r in rows
    ]
    hits = browser.evaluate("inspector.recording.runs[0].rows.map((row) => [...row.hits])")
    assert hits == [list(admissions_with_hits(row)) for row in rows]
    for expression, key in (("tokensAt(s)", "scheduled"), ("queueAt(s).length", "waiting")):
        values = browser.evaluate(
            "Array.from({ length: inspector.view.steps }, (_, s) => "
            f"inspector.recording.runs[0].{expression})"
        )
        wanted = [
            sum(line[key].values()) if key == "scheduled" else len(line[key]) for line in run.lines
        ]
        assert values == wanted, key


def test_the_pool_in_the_page_adds_up(browser: Browser, folder: Path) -> None:
    run = golden("prefix", 1)
    open_page(browser, write(folder, "pool", [run]))
    free = browser.evaluate("""Array.from({ length: inspector.view.steps }, (_, step) => {
      const { pool } = inspector.recording.runs[0];
      const blocks = [...Array(pool.size).keys()].slice(1);
      return blocks.filter((block) => !pool.blockAt(block, step).holders.length).length;
    })""")
    assert free == [line["free_blocks"] for line in run.lines]


# ------------------------------------------------------------------ keys and pointer


def test_arrows_home_and_end_move_through_the_steps(page: Browser) -> None:
    seen = [press(page, key)["step"] for key in ("ArrowRight", "ArrowRight", "ArrowLeft")]
    assert seen == [1, 2, 1]
    assert press(page, "ArrowRight", shift=True)["step"] == 11
    last = press(page, "End")
    assert (last["step"], last["slider"], last["now"]) == (93, "93", "93 / 93")
    assert last["summary"][0].startswith("Step 93: 1 of 16 tokens; 1 decode, 1 ended.")
    assert press(page, "ArrowRight")["step"] == 93
    assert press(page, "Home")["step"] == 0
    assert press(page, "ArrowLeft")["step"] == 0


def test_n_and_p_go_to_preemptions_and_ends(page: Browser) -> None:
    assert [press(page, "n")["step"] for _ in range(4)] == [3, 10, 20, 35]
    assert press(page, "p")["step"] == 20
    heading = "[...document.querySelectorAll('.details h3')].map((h) => h.textContent)"
    assert "Preempted, in this order · 1" in page.evaluate(heading)


def test_space_plays_and_pauses_and_plus_is_faster(page: Browser) -> None:
    for _ in range(3):
        press(page, "+")
    assert page.evaluate("document.querySelector('#speed').textContent") == "100 steps/s"
    press(page, " ")
    page.wait_for("inspector.view.step > 5")
    press(page, " ")
    stopped = page.evaluate("inspector.view.step")
    page.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert page.evaluate("inspector.view.step") == stopped > 5
    press(page, "-")
    assert page.evaluate("document.querySelector('#speed').textContent") == "50 steps/s"


def test_slash_finds_a_request_and_enter_goes_to_its_first_step(page: Browser) -> None:
    press(page, "/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.evaluate("""(() => { const input = document.querySelector('#search');
      input.value = 'r4'; input.dispatchEvent(new Event('input')); })()""")
    assert page.evaluate("inspector.view.selected") == "r4"
    assert press(page, "Enter")["step"] == 25
    assert press(page, "Escape")["selected"] is None


def test_keys_are_letters_while_typing(page: Browser) -> None:
    press(page, "/")
    assert press(page, "n")["step"] == 0
    assert page.evaluate("document.querySelector('#search').value") == "n"


def test_up_and_down_choose_a_request(page: Browser) -> None:
    assert [press(page, key)["selected"] for key in ("ArrowDown", "ArrowDown", "ArrowUp")] == [
        "r0", "r1", "r0"]  # fmt: skip


def test_zoom_keeps_the_step_in_view(page: Browser) -> None:
    page.evaluate("inspector.player.go(50)")
    near = [press(page, "]") for _ in range(6)][-1]
    assert near["cell"] == 48
    assert near["left"] <= 50 <= near["left"] + 900 / near["cell"]
    assert press(page, "0")["left"] == 0


def test_the_mouse_moves_scrubs_and_tells_numbers(page: Browser) -> None:
    box = page.evaluate("document.querySelector('.timeline').getBoundingClientRect().toJSON()")
    spot = page.evaluate("""(() => { const { timeline } = inspector.panels[0];
      return { x: timeline.x(36.5), y: timeline.gridTop + 3.5 * timeline.row }; })()""")
    x, y = box["x"] + spot["x"], box["y"] + spot["y"]
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    page.evaluate(PAINTED)
    state = page.evaluate(STATE)
    assert (state["step"], state["selected"]) == (36, "r3")
    tip = page.evaluate("document.querySelector('#tip').innerText").split("\n")
    assert tip[0] == "r3 · step 36"
    assert "computes again: 13 tokens" in tip
    assert "12 tokens came from the prefix cache" in tip


def test_a_block_under_the_pointer_names_the_request_that_holds_it(page: Browser) -> None:
    page.evaluate("inspector.player.go(36)")
    page.evaluate(PAINTED)
    said = page.evaluate("""(() => { const { pool } = inspector.panels[0];
      return pool.describe(pool.square * (11 % pool.columns) + 3,
        pool.square * Math.floor(11 / pool.columns) + 3); })()""")
    assert said == [
        "block 11 · step 36",
        "r3, block 0 of its table: tokens 0 to 3",
        "full: others can find it",
        "in this step: found in the cache",
    ]


# ------------------------------------------------------------------ two runs


def test_two_runs_open_at_their_first_difference(two: Browser) -> None:
    state = two.evaluate(STATE)
    assert state["step"] == 3 and len(state["summary"]) == 2
    assert state["summary"][0] != state["summary"][1]
    table = two.evaluate("document.querySelector('#difference').innerText")
    assert table.startswith("First difference: step 3") and '{"b": 3}' in table
    press(two, "Home")
    assert press(two, "d")["step"] == 3


def test_the_first_difference_is_marked_in_both_drawings(two: Browser) -> None:
    """A pixel of the mark's colour stands at the left edge of step 3 in each canvas."""
    colours = two.evaluate("""inspector.panels.map(({ timeline }) => {
      const ratio = devicePixelRatio, x = Math.round(timeline.x(3)), y = timeline.fillTop + 4;
      return [...timeline.context.getImageData(x * ratio, y * ratio, 1, 1).data];
    })""")
    assert colours == [[194, 24, 91, 255]] * 2


def test_equal_runs_say_so(browser: Browser, folder: Path) -> None:
    open_page(browser, write(folder, "equal", [golden("stop"), golden("stop")]))
    said = browser.evaluate("document.querySelector('#difference').innerText")
    assert said == "The two runs are equal, step for step."
    assert browser.evaluate("document.querySelector('[data-do=difference]').hidden")


# ------------------------------------------------------------------ themes, access, small windows


def test_theme_follows_the_system_and_the_key(page: Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    pixel = """(() => { const { timeline } = inspector.panels[0];
      const data = timeline.context.getImageData((timeline.x(0) + 3) * devicePixelRatio,
        (timeline.gridTop + timeline.row / 2) * devicePixelRatio, 1, 1).data;
      return [...data].join(); })()"""
    light, drawn = page.evaluate(paper), page.evaluate(pixel)
    page.prefer("dark")
    page.evaluate(PAINTED)
    dark = page.evaluate(paper)
    assert page.evaluate(pixel) != drawn, "the canvas is drawn anew"
    page.prefer("light")
    page.evaluate(PAINTED)
    press(page, "t")
    assert page.evaluate(paper) == dark != light
    press(page, "t")
    assert page.evaluate(paper) == light


def test_everything_has_a_name_and_the_step_is_said(page: Browser) -> None:
    press(page, "ArrowRight")
    assert page.evaluate("document.querySelector('#said').textContent").startswith("Step 1: ")
    unnamed = page.evaluate("""[...document.querySelectorAll('button, input, canvas')].filter((e) =>
      !(e.getAttribute('aria-label') || e.textContent.trim())).map((e) => e.outerHTML)""")
    assert unnamed == []
    assert page.evaluate("document.querySelector('#step').ariaValueText").startswith("Step 1: ")


def test_help_opens_and_closes(page: Browser) -> None:
    press(page, "?")
    assert page.evaluate("document.querySelector('#help').open")
    page.evaluate("document.querySelector('#help').close()")
    assert press(page, "ArrowRight")["step"] == 1


@pytest.mark.parametrize("width", [1440, 1000, 800, 390])
def test_nothing_is_wider_than_the_window_or_squeezed(two: Browser, width: int) -> None:
    two.resize(width, 900)
    two.evaluate(PAINTED)
    assert two.evaluate("document.documentElement.scrollWidth <= innerWidth")
    squeezed = two.evaluate("""['.bar', '.player', '#difference', '.timeline'].filter((name) => {
      const { scrollHeight, clientHeight } = document.querySelector(name);
      const least = { '#difference': 100, '.timeline': 200 }[name] || scrollHeight - 1;
      return clientHeight < least;
    })""")
    assert squeezed == []
    stacked = two.evaluate("""(() => { const [a, b] = inspector.panels.map(({ root }) =>
      root.getBoundingClientRect()); return b.top >= a.bottom - 1; })()""")
    assert stacked == (width < 900)
    bottom = "Math.round(document.querySelector('.player').getBoundingClientRect().bottom)"
    assert two.evaluate(f"{bottom} === innerHeight"), "the buttons lie at the window's lower edge"


def small_run(requests: int = 2) -> Run:
    """Few short requests in a large pool, far below every limit."""
    adds = [
        Add(f"r{number}", Prompt(6, number, 0), 4, 0, float(number)) for number in range(requests)
    ]
    trace = Trace(TraceConfig(max_num_batched_tokens=2048, num_gpu_blocks=1024), (*adds, Step(5)))
    return of_trace("small", list(run_reference(trace)), trace)


def test_axes_end_at_what_a_small_run_needs(browser: Browser, folder: Path) -> None:
    """12 tokens of 2,048 and 2 blocks of 1,023 fill their axes, and 5 steps the width."""
    open_page(browser, write(folder, "small", [small_run()]))
    seen = browser.evaluate("""(() => { const { timeline, pool } = inspector.panels[0];
      return { most: timeline.most, tokens: timeline.tokenTop, blocks: timeline.blockTop,
        shown: pool.count,
        used: 5 * inspector.view.cell / timeline.width, row: timeline.row,
        said: document.querySelector('.unused').textContent }; })()""")
    assert (seen["most"], seen["tokens"], seen["blocks"]) == (12, 12, 2)
    assert seen["used"] > 0.7 and seen["row"] > 40
    assert seen["said"] == f"Blocks {seen['shown']} to 1023: never used in this run."


def test_the_axes_of_a_full_run_end_at_its_limits(page: Browser) -> None:
    seen = page.evaluate("""(() => { const { timeline, pool, run } = inspector.panels[0];
      return [timeline.tokenTop - run.budget, timeline.blockTop - timeline.usable,
        pool.count - run.pool.size]; })()""")
    assert seen == [0, 0, 0]


@pytest.mark.parametrize("width", [390, 800])
def test_every_button_can_be_hit_with_a_finger(page: Browser, width: int) -> None:
    """All are drawn, in the window, and beside each other."""
    page.resize(width, 844)
    page.evaluate(PAINTED)
    boxes = page.evaluate("""[...document.querySelectorAll('.player button, .tools button')]
      .filter((e) => !e.hidden).map((e) => {
        const { left, right, width, height } = e.getBoundingClientRect();
        return { name: e.dataset.do, left, right, width, height,
          drawn: !!e.querySelector('svg') || !!e.textContent.trim() }; })""")
    for box in boxes:
        assert box["left"] >= 0 and box["right"] <= width and box["drawn"], box
        assert min(box["width"], box["height"]) >= (30 if width == 390 else 26), box


def test_a_recording_that_does_not_say_things_says_that(browser: Browser, folder: Path) -> None:
    lines = [line | {"free_blocks": 0} for line in golden("mixed").lines]
    open_page(browser, write(folder, "bare", [Run("bare", lines)]))
    press(browser, "End")
    notes = browser.evaluate("document.querySelector('.notes').innerText")
    assert "does not determine who holds which block" in notes
    assert "does not say the token budget" in notes


# ------------------------------------------------------------------ size


COUNT = 120
FRAMES = f"""(() => {{
  const times = [], {{ actions, draw, view, panels }} = inspector;
  for (let i = 0; i < {COUNT}; i++) {{
    actions.go((400 + i * 13) % view.steps);
    const begun = performance.now();
    draw();
    panels[0].timeline.context.getImageData(0, 0, 1, 1);
    times.push(performance.now() - begun);
  }}
  return times.sort((a, b) => a - b);
}})()"""


def test_2000_steps_of_200_requests_scrub_without_lag(browser: Browser, folder: Path) -> None:
    """Every frame is drawn anew, text included, and waited for, in detail and in overview.

    Time on the clock is printed; what is bounded is processor time, for the machine may be busy.
    """
    run = large_run()
    assert (len(run.lines), len(build_rows(run).rows)) == (2000, 200)
    path = write(folder, "large", [run])
    assert path.stat().st_size < 1_000_000
    open_page(browser, path)
    for name, begin in (("detail", "0"), ("overview", "inspector.actions.fit()")):
        browser.evaluate(begin)
        browser.evaluate(PAINTED)
        before = browser.cpu_seconds()
        times = browser.evaluate(FRAMES)
        used = (browser.cpu_seconds() - before) / COUNT * 1000
        print(f"{name}: {used:.1f} ms of CPU a frame; median {times[COUNT // 2]:.1f} ms")
        assert used < MILLISECONDS, name
