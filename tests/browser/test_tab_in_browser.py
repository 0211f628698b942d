"""The book's tasks in a real Chromium and a real Firefox: from a cold page to a green task, work
that is kept, no network, endless loops, two tabs, and the way to a machine.

    python -m pytest tests/browser/test_tab_in_browser.py -m slow -s

prints how many seconds each step took. It needs Chromium and Firefox, and Pyodide: a network, or
an earlier `make book`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    BrowserType,
    Error,
    Page,
    Playwright,
    sync_playwright,
)

from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.reader.book import OUTPUT, build_one
from labkit.reader.browser import FLAGS, find_browser
from labkit.tab import bundle, pyodide, site, taking
from tests.browser.test_contrast_in_browser import FAINT

pytestmark = [pytest.mark.slow, pytest.mark.serial]
COURSE = Course(ROOT)
ZERO, THREE = COURSE.phase("00"), COURSE.phase("03")
RIGHT = "return status > RequestStatus.PREEMPTED"
WAIT = 300_000
"""Milliseconds: a machine that is busy with other tests takes long to start Python."""
EDIT = """([old, text]) => {
  const { box } = document.querySelector(".editor").closest(".try");
  if (!box.editor.text().includes(old)) throw new Error(`the editor does not hold ${old}`);
  box.editor.replace(box.editor.text().replace(old, () => text));
  box.changed();
}"""
"""An edit, without the time that keys take."""
CONTROLLED = "navigator.serviceWorker.controller !== null"
TEXT = "document.querySelector('.editor').closest('.try').box.editor.text()"


class Quiet(SimpleHTTPRequestHandler):
    """As `python -m http.server`: no header says anything of isolation."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book of phases 00 and 03, two folders below a root."""
    if find_browser() is None:
        pytest.skip("NOT RUN: Chromium is not installed (set CHROMIUM to its path)")
    output = ROOT / OUTPUT
    try:
        tab = site.write(COURSE, output)
    except pyodide.Unavailable as why:
        pytest.skip(f"NOT RUN: {why}")
    for phase in (ZERO, THREE):
        build_one(COURSE, phase, None, tab)
    site.write_worker(output)
    root = tmp_path_factory.mktemp("www")
    shutil.copytree(output, root / "some" / "where")
    return root / "some" / "where"


@pytest.fixture(scope="module")
def book(pages: Path) -> Iterator[str]:
    """Its address on a plain server."""
    server = serve(pages.parents[1])
    yield f"http://localhost:{server.server_port}/some/where/"
    stop(server)


def serve(root: Path, port: int = 0) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", port), partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def stop(server: ThreadingHTTPServer) -> None:
    """To the browser it is as if there were no network."""
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> BrowserType:
    return playwright.chromium


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Firefox puts what is downloaded: Playwright does not hear of it there."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def context(
    request: pytest.FixtureRequest, chromium: BrowserType, downloads: Path
) -> Iterator[BrowserContext]:
    """A browser of its own: what it stores outlives a page."""
    if request.param == "chromium":
        browser = chromium.launch(executable_path=find_browser(), args=list(FLAGS))
        made = browser.new_context(accept_downloads=True)
    else:
        browser, made = in_firefox(request.getfixturevalue("playwright"), downloads)
    made.set_default_timeout(WAIT)
    yield made
    browser.close()


def in_firefox(playwright: Playwright, downloads: Path) -> tuple[Browser, BrowserContext]:
    """The system's Firefox, as far as this Playwright knows it."""
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("NOT RUN: Firefox is not installed")
    try:
        browser = playwright.firefox.launch(
            channel="moz-firefox", executable_path=program, downloads_path=downloads
        )
        return browser, browser.new_context()
    except Error as error:
        pytest.skip(f"NOT RUN: this Playwright cannot drive {program}: {error.message[:200]}")


def say(what: str, begin: float) -> None:
    print(f"\n  {what}: {time.monotonic() - begin:.1f} s", end="", flush=True)


def open_task(context: BrowserContext, book: str, phase: str, number: int) -> Page:
    page = context.new_page()
    page.goto(f"{book}{phase}.html#build")
    page.click(f".try >> nth={number - 1} >> .begin")
    page.wait_for_selector(".cm-content")
    return page


def edit(page: Page, old: str, new: str) -> None:
    page.evaluate(EDIT, [old, new])


def hole(phase: Phase, task: str) -> str:
    """The text that a task's first hole has in the skeleton, from its TODO to its bracket."""
    text = (ROOT / phase.lab_path(phase.exercise(task).module)).read_text("utf-8")
    begin = text.index(f"        # TODO {task}\n")
    return text[begin : text.index("        )\n", begin) + len("        )\n")]


def open_solved(context: BrowserContext, book: str) -> Page:
    """Task 00.1 with its right answer, whether or not an earlier test has written it."""
    page = open_task(context, book, ZERO.slug, 1)
    todo = hole(ZERO, "00.1")
    if todo in page.evaluate(TEXT):
        edit(page, todo, f"        {RIGHT}\n")
    return page


def run(page: Page) -> str:
    """Press Ctrl-Enter; the words that come."""
    page.evaluate("document.querySelector('.status').textContent = ''")
    page.click(".cm-content")
    page.keyboard.press("Control+Enter")
    page.wait_for_function(
        "/green|stopped/.test(document.querySelector('.try .status')?.textContent)"
    )
    return str(page.text_content(".words"))


def test_cold_to_red_to_green_and_kept(book: str, context: BrowserContext) -> None:
    begin = time.monotonic()
    page = open_task(context, book, ZERO.slug, 1)
    say("a cold page with its editor", begin)
    red = run(page)
    say("to the first red", begin)
    assert "○ 00.1" in red and "not written yet" in red
    again = time.monotonic()
    edit(page, hole(ZERO, "00.1"), "        return status >= RequestStatus.PREEMPTED\n")
    wrong = run(page)
    say("warm, to a red that is explained", again)
    assert "first difference" in wrong and "expected" in wrong
    edit(page, ">= RequestStatus.PREEMPTED", "> RequestStatus.PREEMPTED")
    green = run(page)
    say("to the first green", begin)
    assert "✓ 00.1" in green
    page.close()
    begin = time.monotonic()
    page = open_task(context, book, ZERO.slug, 1)
    assert "return status > RequestStatus.PREEMPTED" in str(page.text_content(".cm-content"))
    assert page.locator(".try.green").count() == 1
    assert page.evaluate("crossOriginIsolated"), "sw.js is at work"
    assert "✓ 00.1" in run(page)
    say("a second visit, to green", begin)
    page.close()


def test_an_endless_loop_is_shown_with_its_line(book: str, context: BrowserContext) -> None:
    page = open_solved(context, book)
    edit(page, RIGHT, "while True: status = status")
    begin = time.monotonic()
    words = run(page)
    say("an endless loop, interrupted", begin)
    assert "endless loop?" in words
    assert "It was at labs/00-orientation/request.py" in words
    edit(page, "while True: status = status", RIGHT)
    assert "✓ 00.1" in run(page), "the same Python goes on"
    page.close()


def test_without_isolation_python_is_thrown_away(book: str, chromium: BrowserType) -> None:
    """The first page of a first visit, as long as no service worker is at work."""
    browser = chromium.launch(executable_path=find_browser(), args=list(FLAGS))
    context = browser.new_context(service_workers="block")
    context.set_default_timeout(WAIT)
    page = open_task(context, book, ZERO.slug, 1)
    assert not page.evaluate("crossOriginIsolated")
    edit(page, hole(ZERO, "00.1"), "        while True: status = status\n")
    begin = time.monotonic()
    words = run(page)
    say("an endless loop, thrown away", begin)
    assert "Still running, so it was stopped (endless loop?)" in words
    edit(page, "while True: status = status", RIGHT)
    assert "✓ 00.1" in run(page)
    browser.close()


def test_without_a_network(book: str, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{book}{ZERO.slug}.html")
    page.wait_for_function(CONTROLLED)
    page.close()
    page = open_solved(context, book)
    assert "✓ 00.1" in run(page), "what Python needs is kept now"
    page.close()
    try:
        context.set_offline(True)
    except Error as error:
        pytest.skip(f"NOT RUN: this browser cannot be taken off the network: {error.message[:80]}")
    try:
        begin = time.monotonic()
        page = open_task(context, book, ZERO.slug, 1)
        assert "✓ 00.1" in run(page)
        say("without a network, to green", begin)
        page.goto(f"{book}{THREE.slug}.html")
        assert page.title() == "03 The scheduler · mini_vllm", "a page that was not open yet"
        page.close()
    finally:
        context.set_offline(False)


def test_memory_and_output_are_bounded(book: str, context: BrowserContext) -> None:
    """What grows without end meets a MemoryError, megabytes of output are cut; Python goes on."""
    page = open_solved(context, book)
    edit(page, RIGHT, "grown = bytearray(1 << 30); " + RIGHT)
    assert "MemoryError" in run(page)
    edit(page, "grown = bytearray(1 << 30); ", "print('x' * 5_000_000); ")
    words = run(page)
    assert "✓ 00.1" in words and len(words) < 300_000
    edit(page, "print('x' * 5_000_000); ", "")
    assert "✓ 00.1" in run(page)
    page.close()


def test_what_is_not_python_and_what_cannot_be_imported_is_said(
    book: str, context: BrowserContext
) -> None:
    page = open_solved(context, book)
    edit(page, "import enum\n", "import enum\nimport torch\n")
    assert "torch cannot be imported in a browser's tab" in run(page)
    edit(page, "import enum\nimport torch\n", "import enum)\n")
    words = run(page)
    assert "is not Python" in words and "\n" in words and "^" in words
    assert page.locator(".cm-wrong").count() == 1
    edit(page, "import enum)\n", "import enum\n")
    assert "✓ 00.1" in run(page)
    page.close()


def test_a_run_is_stepped_through_and_the_quiz_asks(book: str, context: BrowserContext) -> None:
    page = open_task(context, book, THREE.slug, 2)
    page.click("text=Watch it run")
    page.wait_for_selector(".steps:not([hidden])")
    steps = page.frame_locator(".steps")
    steps.locator("#now").wait_for()
    page.locator(".steps").scroll_into_view_if_needed()
    steps.locator("[data-do=forward]").click()
    assert steps.locator("#now").text_content() == "1 / 33"
    assert steps.locator("section.run").count() == 2
    page.click(".chapters a:last-child")
    page.click("text=Questions of 03")
    page.wait_for_selector(".quiz .question")
    page.click(".quiz >> text=Skip")
    page.wait_for_selector(".quiz >> text=Next")
    assert str(page.text_content(".quiz .said")).startswith("… it is ")
    page.close()


NO_STORAGE = {
    "full": "IDBObjectStore.prototype.put = () => {"
    " throw new DOMException('full', 'QuotaExceededError'); };",
    "forbidden": "IDBFactory.prototype.open = () => {"
    " throw new DOMException('not here', 'SecurityError'); };",
}
LEAVES = """() => {
  const leaving = new Event("beforeunload", { cancelable: true });
  return window.dispatchEvent(leaving);
}"""
"""Whether the browser leaves the page without asking."""


@pytest.mark.parametrize("fault", NO_STORAGE)
def test_without_storage_and_without_new_webassembly(
    book: str, context: BrowserContext, fault: str, downloads: Path, tmp_path: Path
) -> None:
    """Both are said in a sentence, and what was written is not lost: it stands on the page, in each
    editor of its file, and in an export."""
    page = context.new_page()
    page.add_init_script(NO_STORAGE[fault] + " delete WebAssembly.Tag;")
    page.goto(f"{book}{ZERO.slug}.html#build")
    page.click(".try >> nth=1 >> .begin")
    page.wait_for_selector(".cm-content")
    edit(page, "from __future__", "# mine\nfrom __future__")
    page.wait_for_function("/not kept/.test(document.querySelector('.try .status').textContent)")
    assert "export it under “Your work”" in str(page.text_content(".try .status"))
    page.click(".cm-content")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".words:not([hidden])")
    assert "it has no WebAssembly exceptions" in str(page.text_content(".words"))
    assert "# mine" in page.evaluate(TEXT)
    assert not page.evaluate(LEAVES)
    page.click(".try >> nth=2 >> .begin")
    page.wait_for_selector(".try >> nth=2 >> .cm-content")
    assert "# mine" in page.evaluate(TEXT)
    with zipfile.ZipFile(exported(page, downloads, tmp_path / "work.zip")) as archive:
        assert b"# mine" in archive.read(ZERO.lab_path(ZERO.modules[0]))
    forbidden = "does not let the page store anything" in str(page.text_content(".work-dialog"))
    assert forbidden == (fault == "forbidden")
    page.close()


def test_a_task_is_done_with_keys_alone(book: str, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{book}{ZERO.slug}.html#build")
    page.wait_for_selector(".try .begin")
    page.focus(".try >> nth=0 >> .begin")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cm-content")
    page.wait_for_function("document.activeElement.classList.contains('cm-content')")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("/green/.test(document.querySelector('.try .status').textContent)")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Run"
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_of_a_box_and_of_the_quiz_can_be_read(
    book: str, context: BrowserContext, scheme: Literal["light", "dark"]
) -> None:
    """On a desktop and on a telephone; nothing is wider than its screen."""
    page = context.new_page()
    page.add_init_script(f"localStorage.setItem('theme', '{scheme}')")  # Firefox ignores a wish
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto("about:blank")  # else the same address loads nothing anew
        page.goto(f"{book}{ZERO.slug}.html#build")
        page.click(".try >> nth=1 >> .begin")
        page.wait_for_selector(".cm-content")
        run(page)
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == scheme
        assert page.evaluate(FAINT) == []
        page.click("text=Your work…")
        assert page.evaluate(FAINT) == []
        page.click("text=Progress and portfolio")
        page.wait_for_selector(".work-dialog iframe:not([hidden])")
        assert page.evaluate(FAINT) == []
        page.click(".work-dialog >> text=Close")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click(".chapters a:last-child")
    page.click("text=Questions of 00")
    page.wait_for_selector(".quiz .question")
    assert page.evaluate(FAINT) == []
    page.close()


def test_two_tabs_do_not_overwrite_each_other(book: str, context: BrowserContext) -> None:
    """What one saves, the other shows; where both have edited, one is asked."""
    one, other = (open_task(context, book, ZERO.slug, 2) for _ in range(2))
    edit(one, "from __future__", "# of one\nfrom __future__")
    other.wait_for_selector(".cm-content >> text=# of one")
    for page, word in ((one, "first"), (other, "second")):  # before either of them is saved
        edit(page, "# of one", f"# of the {word}")
    asked = next(page for page in looked_at(one, other) if page.locator(".asked p").count())
    asked.click(".try >> nth=2 >> .begin")  # the same file, in another editor
    asked.wait_for_selector(".try >> nth=2 >> .asked p")
    asked.click("text=Keep this one")
    asked.click("text=Your work…")
    asked.click("text=Earlier texts")
    assert "another tab's text" in str(asked.text_content(".work-dialog"))
    one.close()
    other.close()


def looked_at(*pages: Page) -> Iterator[Page]:
    """The pages, again and again, for as long as a question may take to come."""
    for _ in range(200):
        yield from pages
        time.sleep(0.1)


def exported(page: Page, downloads: Path, file: Path) -> Path:
    """The zip file that "Your work" hands out."""
    for earlier in downloads.glob("*.zip"):
        earlier.unlink()
    page.click("text=Your work…")
    browser = page.context.browser
    assert browser
    if browser.browser_type.name == "chromium":
        with page.expect_download() as download:
            page.click("text=Export as zip")
        download.value.save_as(file)
        return file
    page.click("text=Export as zip")
    page.wait_for_selector(".work-dialog >> text=files in mini_vllm-work.zip")
    for _ in range(100):
        for found in downloads.glob("*.zip"):
            return found
        time.sleep(0.1)
    raise AssertionError(f"no zip file has come to {downloads}")


def test_what_is_written_here_gets_the_same_verdict_on_a_machine(
    book: str,
    context: BrowserContext,
    downloads: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Export, `labkit import`, `make lab-03`; and the way back into a browser."""
    page = open_task(context, book, THREE.slug, 2)
    edit(page, hole(THREE, "03.2"), "        return min(num_new_tokens, token_budget)\n")
    here = run(page)
    assert "✗ 03.2" in here
    file = exported(page, downloads, tmp_path / "work.zip")
    page.close()
    root = tmp_path / "course"
    shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(
        ".git", "build", ".upstream", ".labkit", "*.safetensors", "results"))  # fmt: skip
    monkeypatch.setenv("LABKIT_ROOT", str(root))
    taking.take(file)
    words = [sys.executable, "-m", "labkit", "lab", "03", "--task", "2"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, env=dict(os.environ))
    assert [line.rstrip() for line in here.splitlines()] == done.stdout.splitlines()


# ---------------------------------------------------------------- the way back into a browser
def imported(page: Page, file: Path) -> str:
    """What "Your work", which is open, says of a file."""
    page.evaluate("document.querySelector('.work-dialog .said').textContent = ''")
    page.set_input_files(".work-dialog input[type=file]", str(file))
    page.wait_for_function("document.querySelector('.work-dialog .said').textContent")
    return str(page.text_content(".work-dialog .said"))


def test_an_export_comes_back_into_the_page(
    book: str, context: BrowserContext, downloads: Path, tmp_path: Path
) -> None:
    """All of the work is deleted in between; the editor that is open shows what has come."""
    page = open_solved(context, book)
    page.on("dialog", lambda dialog: dialog.accept())
    edit(page, "from __future__", "# mine\nfrom __future__")
    assert "✓ 00.1" in run(page)
    file = exported(page, downloads, tmp_path / "work.zip")
    page.click("text=Delete all of it…")
    page.wait_for_selector(".work-dialog", state="hidden")
    assert page.locator(".try.green").count() == 0
    page.click(".try >> nth=0 >> .begin")
    page.wait_for_selector(".cm-content")
    text = page.evaluate(TEXT)
    assert "# mine" not in text and hole(ZERO, "00.1") in text
    page.click("text=Your work…")
    assert imported(page, file) == "1 files taken in"
    page.click(".work-dialog >> text=Close")
    text = page.evaluate(TEXT)
    assert "# mine" in text and RIGHT in text
    assert page.locator(".try.green").count() == 1, "which task had passed comes along"
    assert "✓ 00.1" in run(page)
    page.close()


def test_what_is_no_export_changes_nothing_in_the_page(
    book: str, context: BrowserContext, tmp_path: Path
) -> None:
    """A sentence says what is wrong with the file; of one that holds more, the labs are taken."""
    page = open_task(context, book, ZERO.slug, 2)
    edit(page, "from __future__", "# stays\nfrom __future__")
    before = page.evaluate(TEXT)
    path = ZERO.lab_path(ZERO.modules[0])
    named = {"foreign": {"photo.jpg": b"x"}, "huge": {path: b"a" * (5 << 20)},
             "picture": {path: b"\xff\xfe"}, "whole": {path: b"x = 1\n" * 99, "../evil.py": b"y",
             f"../{path}": b"y", "film.mp4": b"z" * (9 << 20)}}  # fmt: skip
    files = {}
    for name, entries in named.items():
        files[name] = tmp_path / f"{name}.zip"
        with zipfile.ZipFile(files[name], "w", zipfile.ZIP_DEFLATED) as archive:
            for entry, data in entries.items():
                archive.writestr(entry, data)
    whole = files["whole"].read_bytes()
    broken = {"text": b"no zip at all", "empty": b"", "half": whole[: len(whole) // 2],
              "rotten": whole[:60] + bytes(20) + whole[80:], "large": bytes(33 << 20)}  # fmt: skip
    for name, data in broken.items():
        files[name] = tmp_path / f"{name}.zip"
        files[name].write_bytes(data)
    says = dict.fromkeys(("text", "empty", "half", "rotten"), "it is damaged, or is no zip file")
    says["foreign"] = "it holds no labs/NN-name/file.py"
    says["huge"] = f"{path} in it has 5242880 bytes; the limit is 4194304"
    says["picture"] = f"{path} in it is no text in UTF-8"
    says["large"] = "it has 34603008 bytes; the limit is 33554432"
    page.click("text=Your work…")
    for name, why in says.items():
        said = imported(page, files[name])
        assert said == f"{name}.zip was not taken in: {why}. Nothing has changed."
        assert page.evaluate(TEXT) == before
    left = f"../evil.py, ../{path}, film.mp4"
    assert imported(page, files["whole"]) == f"1 files taken in; left out: {left}"
    assert str(page.evaluate(TEXT)).startswith("x = 1\n")
    page.click("text=Earlier texts")
    earlier = page.locator(".work-dialog details li", has_text="before an import")
    earlier.first.locator("text=Bring it back").click()
    assert page.evaluate(TEXT) == before
    page.wait_for_function("document.querySelector('.try .status').textContent === 'kept'")
    page.close()


def test_progress_and_the_portfolio_are_shown(book: str, context: BrowserContext) -> None:
    """Of the work that lies in this browser, by the course's own Python."""
    page = open_solved(context, book)
    assert "✓ 00.1" in run(page)
    page.click("text=Your work…")
    page.click("text=Progress and portfolio")
    portfolio = page.frame_locator(".work-dialog iframe")
    portfolio.locator("h1").wait_for()
    lines = str(page.text_content(".work-dialog .words")).splitlines()
    assert lines[0].startswith("  00 ") and len(lines) == len(COURSE.phases) + 2
    assert "points in public tests" in lines[-1]
    assert "RequestStatus.is_finished" in str(portfolio.locator("main").text_content())
    page.click(".work-dialog >> text=Your work…")
    assert page.locator(".work-dialog >> text=Export as zip").is_visible()
    page.close()


# ---------------------------------------------------------------- a new release


def release(pages: Path, root: Path, name: str, age: int) -> Path:
    """The site as another release: a public test, a script and a page bear its name.

    Args:
        age: of its files, in days. A server that says nothing of caches lets a browser keep old
            files without asking again, for a tenth of their age.
    """
    shutil.copytree(pages, root)
    with zipfile.ZipFile(root / "try" / "course.zip") as archive:
        files = {entry: archive.read(entry) for entry in archive.namelist()}
    [test] = [e for e in files if e.startswith("tests/public/00-orientation/test_1_")]
    begin = files[test].index(b'    """') + len(b'    """')
    files[test] = files[test][:begin] + f"Of release {name}: ".encode() + files[test][begin:]
    (root / "try" / "course.zip").write_bytes(bundle.packed(files))
    for file, old, new in (
        (root / "try" / "tab.js", "`Try ${this.task} here`", f"`Try ${{this.task}} here, {name}`"),
        (root / f"{ZERO.slug}.html", "<title>", f"<title>{name}: "),
    ):
        text = file.read_text("utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")
    site.write_worker(root)
    then = time.time() - age * 86400
    for file in root.rglob("*"):
        os.utime(file, (then, then))
    return root


BYTES = """async () => {
  const bytes = await (await fetch("try/course.zip")).arrayBuffer();
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}"""
"""What a page gets when its worker asks for the tests."""


def parts(page: Page, sites: dict[str, Path]) -> str:
    """Of which release the page is, its script, and the tests that it gets: "AAA"; "-" where it
    gets none."""
    label = str(page.locator(".try >> nth=0").text_content()).strip()
    digests = {name: digest(root / "try" / "course.zip") for name, root in sites.items()}
    try:
        found = page.evaluate(BYTES)
    except Error:
        found = ""
    tests = next((name for name, known in digests.items() if known == found), "-")
    return page.title()[0] + label[-1] + tests


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tested(page: Page) -> str:
    """Of which release the tests are that Ctrl-Enter runs."""
    page.click(".try >> nth=0 >> .begin")
    page.wait_for_selector(".cm-content")
    run(page)
    title = str(page.locator(".checks span").first.get_attribute("title"))
    return title.removeprefix("Of release ")[:1]


def visit(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.goto(f"{address}{ZERO.slug}.html#build")
    page.wait_for_selector(".try .begin")
    return page


@pytest.fixture(scope="module")
def sites(pages: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three releases, each newer than the one before; files of all of them are old."""
    folder = tmp_path_factory.mktemp("sites")
    ages = {"A": 900, "B": 600, "C": 300}
    return {name: release(pages, folder / name, name, age) for name, age in ages.items()}


def test_a_new_release_replaces_the_old_one_whole(
    sites: dict[str, Path], context: BrowserContext
) -> None:
    """B when the reader asks for it, C on a later visit; until then all of it is the old one. Work
    is kept, and each of them works without a network."""
    server = serve(sites["A"])
    port = server.server_port
    address = f"http://localhost:{port}/"
    page = visit(context, address)
    page.wait_for_function(CONTROLLED)
    assert parts(page, sites) == "AAA"
    page.reload()
    assert tested(page) == "A"
    edit(page, hole(ZERO, "00.1"), f"        {RIGHT}\n")
    page.wait_for_function("document.querySelector('.try .status').textContent === 'kept'")
    page.close()
    stop(server)
    page = visit(context, address)
    assert parts(page, sites) == "AAA", "without a network"
    assert tested(page) == "A"
    page.close()
    server = serve(sites["B"], port)
    page = visit(context, address)
    page.wait_for_selector(".newer >> text=Load it")
    assert parts(page, sites) == "AAA", "until the reader asks for the new one"
    page.click(".try >> nth=0 >> .begin")
    page.wait_for_selector(".cm-content")
    edit(page, "from __future__", "# not saved yet\nfrom __future__")
    page.click("text=Load it")
    page.wait_for_function("document.title.startsWith('B')")
    page.wait_for_selector(".try .begin")
    assert parts(page, sites) == "BBB"
    assert tested(page) == "B"
    assert "# not saved yet" in page.evaluate(TEXT) and RIGHT in page.evaluate(TEXT)
    page.close()
    stop(server)
    page = visit(context, address)
    assert parts(page, sites) == "BBB", "without a network, as A did"
    page.close()
    server = serve(sites["C"], port)
    page = visit(context, address)
    page.wait_for_selector(".newer")
    assert parts(page, sites) == "BBB"
    page.close()
    for _ in range(5):  # a page that was closed lives on for a moment
        page = visit(context, address)
        found = parts(page, sites)
        assert found in ("BBB", "CCC")
        if found == "CCC":
            break
        page.close()
        time.sleep(1)
    assert found == "CCC" and tested(page) == "C"
    assert RIGHT in page.evaluate(TEXT)
    assert len(page.evaluate("caches.keys()")) == 1
    page.close()
    stop(server)


def test_an_old_page_takes_nothing_of_a_new_release(
    sites: dict[str, Path], context: BrowserContext
) -> None:
    """Python was not asked for before the release changed: it is not loaded into the old page."""
    server = serve(sites["A"])
    port = server.server_port
    address = f"http://localhost:{port}/"
    page = visit(context, address)
    page.wait_for_function(CONTROLLED)
    stop(server)
    server = serve(sites["B"], port)
    assert parts(page, sites) == "AA-"
    page.click(".try >> nth=0 >> .begin")
    page.wait_for_selector(".cm-content")
    assert "If a newer book has come out, load this page anew" in run(page)
    page.close()
    page = visit(context, address)
    if page.title().startswith("A"):
        page.click("text=Load it")
        page.wait_for_function("document.title.startsWith('B')")
        page.wait_for_selector(".try .begin")
    assert parts(page, sites) == "BBB"
    page.close()
    stop(server)
