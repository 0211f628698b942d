"""The reader in headless Chromium: every citation is clicked, every key pressed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from labkit.citations.symbols import Upstream
from labkit.course.manifest import Course
from labkit.course.root import upstream_root
from labkit.practice import portfolio, portfolio_page
from labkit.reader.book import OUTPUT, build_all, build_one
from labkit.reader.browser import Browser
from tests.labkit.reading_course import CLOSE, STEP_3, STEP_40, make_reading_course, make_upstream

PROJECT = Path(__file__).parents[2]
PHASES = [phase.slug for phase in Course(PROJECT).ready]

HIGHLIGHTED = """(() => {
  const lines = [...document.querySelectorAll('#pane-upstream .l.on')];
  const box = document.querySelector('#pane-upstream .scroll').getBoundingClientRect();
  const first = lines[0]?.getBoundingClientRect();
  return {
    numbers: lines.map((l) => +l.dataset.n),
    text: lines.map((l) => l.textContent),
    file: lines[0]?.closest('.file').dataset.path,
    shown: lines.every((l) => l.offsetParent !== null),
    visible: !!first && first.top >= box.top - 1 && first.bottom <= box.bottom + 1,
    crumbs: document.querySelector('#crumbs').textContent,
    marks: document.querySelectorAll('#pane-upstream mark').length,
    active: document.querySelectorAll('.cite.active').length,
  };
})()"""


def click_citation(browser: Browser, index: int) -> dict[str, Any]:
    """Click citation `index` of the page and read what the right side shows."""
    browser.evaluate(f"""(() => {{
      const cite = document.querySelectorAll('.cite')[{index}];
      location.hash = cite.closest('article').id;
    }})()""")
    browser.wait_for(
        f"document.querySelectorAll('.cite')[{index}].closest('article').classList.contains('current')"
    )
    browser.evaluate(f"document.querySelectorAll('.cite')[{index}].click()")
    return dict(browser.evaluate(HIGHLIGHTED))


def citations_of(browser: Browser) -> list[dict[str, Any]]:
    return list(
        browser.evaluate(
            "[...document.querySelectorAll('.cite')].map((c) => "
            "({...c.dataset, symbol: c.querySelector('code').textContent}))"
        )
    )


def check_every_citation(browser: Browser, upstream: Upstream) -> int:
    """Click all citations of the open page; returns how many there were."""
    cites = citations_of(browser)
    for index, cite in enumerate(cites):
        first, last = int(cite["first"]), int(cite["last"])
        seen = click_citation(browser, index)
        what = f"citation {index} ({cite['symbol']} {first}-{last}): {json.dumps(seen)[:300]}"
        source = upstream.file(cite["path"])
        assert source is not None
        assert seen["file"] == cite["path"], what
        assert seen["numbers"] == list(range(first, last + 1)), what
        assert seen["text"] == source.region(first, last), what
        assert seen["shown"] and seen["visible"], what
        assert seen["active"] == 1, what
        name = cite["symbol"].removesuffix("()").rpartition(".")[2]
        spans = source.resolve(cite["symbol"].removesuffix("()"))
        inside = any(a <= first and last <= b for a, b in spans)
        assert inside or name in "\n".join(seen["text"]), what
        assert seen["marks"] > 0, f"{name} is marked nowhere: {what}"
    return len(cites)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Course, Upstream]:
    root = tmp_path_factory.mktemp("reading")
    course, upstream = make_reading_course(root / "course"), make_upstream(root / "upstream")
    build_all(course, upstream)
    return course, upstream


@pytest.fixture
def page(browser: Browser, small: tuple[Course, Upstream]) -> Browser:
    """A browser with the small course's phase open."""
    browser.resize(1440, 900)
    browser.open((small[0].root / OUTPUT / "03-queue.html").as_uri())
    return browser


def current_chapter(browser: Browser) -> str:
    return str(browser.evaluate("document.querySelector('article.current').id"))


def test_every_citation_of_the_small_course(page: Browser, small: tuple[Course, Upstream]) -> None:
    assert check_every_citation(page, small[1]) == 5
    assert page.problems == []


def test_j_and_k_walk_through_the_citations(page: Browser) -> None:
    page.evaluate("location.hash = 'deep-dive'")
    page.wait_for("document.querySelector('#deep-dive.current')")
    walked = []
    for key in "jjkj":
        page.press(key)
        walked.append(page.evaluate(HIGHLIGHTED)["numbers"][0])
    assert walked == [STEP_40 + 2, CLOSE + 1, STEP_40 + 2, CLOSE + 1]


def test_enter_on_a_focused_citation_opens_it(page: Browser) -> None:
    page.evaluate("document.querySelector('#guide .cite').focus()")
    for kind in ("keyDown", "keyUp"):
        page.call(
            "Input.dispatchKeyEvent", type=kind, key="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    page.wait_for("document.querySelectorAll('.l.on').length > 0")
    assert page.evaluate(HIGHLIGHTED)["numbers"][0] == STEP_3


def test_brackets_change_the_chapter(page: Browser) -> None:
    seen = []
    for key in "]]][":
        before = current_chapter(page)
        page.press(key)
        page.wait_for(f"document.querySelector('article.current').id !== '{before}'")
        seen.append(current_chapter(page))
    assert seen == ["deep-dive", "build", "labs", "build"]


def test_number_keys_change_the_tab_and_show_the_todo(page: Browser) -> None:
    page.press("2")
    assert page.evaluate("!document.querySelector('#pane-mine').hidden")
    assert page.evaluate("document.querySelector('#pane-upstream').hidden")
    page.press("1")
    page.evaluate("document.querySelector('#build a.task').click()")
    assert page.evaluate("!document.querySelector('#pane-mine').hidden")
    line = page.evaluate("document.querySelector('#pane-mine .flash').textContent")
    assert line.strip().startswith("def push")
    assert "TODO 03.1" in page.evaluate("document.querySelector('.l.todo').textContent")
    page.press("1")
    assert page.evaluate("document.querySelector('#pane-mine').hidden")


def test_search_finds_text_in_every_chapter_and_other_pages(page: Browser) -> None:
    page.press("/")
    assert page.evaluate("document.querySelector('#search').open")
    for word, where in (("Forty-two", "#guide"), ("close", ""), ("maintainers' note", None)):
        page.evaluate(f"""(() => {{
          const input = document.querySelector('#search input');
          input.value = {json.dumps(word)};
          input.dispatchEvent(new Event('input'));
        }})()""")
        links = page.evaluate(
            "[...document.querySelectorAll('#search li a')].map((a) => a.getAttribute('href'))"
        )
        if where is None:
            assert links == []
            assert "Nothing found" in page.evaluate("document.querySelector('#search').textContent")
        else:
            assert links and links[0].startswith(where)
    page.press("Escape")
    page.wait_for("!document.querySelector('#search').open")


def type_in_search(browser: Browser, words: str) -> list[dict[str, str]]:
    """Open the search, type, and read what it lists."""
    if not browser.evaluate("document.querySelector('#search').open"):
        browser.press("/")
    browser.evaluate(f"""(() => {{
      const input = document.querySelector('#search input');
      input.value = {json.dumps(words)};
      input.dispatchEvent(new Event('input'));
    }})()""")
    return list(
        browser.evaluate("""[...document.querySelectorAll('#search li')].map((item) => ({
          text: item.textContent, where: item.querySelector('small')?.textContent ?? '',
          href: item.querySelector('a')?.getAttribute('href') ?? '' }))""")
    )


def test_a_hit_names_phase_chapter_and_heading(page: Browser) -> None:
    where = {hit["where"] for hit in type_in_search(page, "the body of")}
    assert where == {"03 The <queue> · Deep dive › Inside it"}
    assert {hit["where"] for hit in type_in_search(page, "push")} >= {"03 The <queue> · Your files"}
    page.press("Escape")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("invarients", "invariants"), ("invariatns", "invariants"), ("carful", "careful")],
)
def test_a_typo_finds_what_was_meant_and_says_so(page: Browser, typed: str, meant: str) -> None:
    first, *hits = type_in_search(page, typed)
    assert first["text"] == f"“{typed}” stands nowhere. Shown: “{meant}”."
    assert hits and all(meant in hit["text"].lower() for hit in hits)
    page.press("Escape")


def test_a_word_like_no_other_is_not_found(page: Browser) -> None:
    assert [hit["text"] for hit in type_in_search(page, "zygomorphic")] == ["Nothing found."]
    page.press("Escape")


def test_the_start_page_searches_the_whole_book(
    browser: Browser, small: tuple[Course, Upstream]
) -> None:
    browser.open((small[0].root / OUTPUT / "index.html").as_uri())
    [hit] = type_in_search(browser, "forty-two")
    assert (hit["where"], hit["href"]) == ("03 The <queue> · Guide", "03-queue.html#guide")
    browser.press("Enter")
    browser.wait_for("location.pathname.endsWith('03-queue.html')")
    assert browser.problems == []


def test_a_page_alone_leads_nowhere_that_is_not_there(browser: Browser, tmp_path: Path) -> None:
    """`make read-03` without the book: a page stands in for each that is not built."""
    course, upstream = make_reading_course(tmp_path / "a"), make_upstream(tmp_path / "b")
    path = build_one(course, course.phase("03"), upstream)
    browser.open(path.as_uri())
    assert browser.problems == []
    assert type_in_search(browser, "forty")[-1]["text"].startswith("Only this page was searched.")
    links = browser.evaluate("[...document.querySelectorAll('a')].map((a) => a.href)")
    files = {link.partition("#")[0] for link in links if link.startswith("file:")}
    assert files and all(Path(unquote(urlsplit(file).path)).exists() for file in files)
    browser.press("Escape")
    browser.evaluate("document.querySelector('.home').click()")
    browser.wait_for("document.body.textContent.includes('make book')")


def test_choosing_a_result_shows_its_chapter_and_opens_the_box(page: Browser) -> None:
    page.evaluate("location.hash = 'labs'")
    page.press("/")
    page.evaluate("""(() => {
      const input = document.querySelector('#search input');
      input.value = 'Forty-two';
      input.dispatchEvent(new Event('input'));
    })()""")
    page.press("Enter")
    page.wait_for("document.querySelector('#guide.current')")
    assert page.evaluate("document.querySelector('#guide details').open")


def test_theme_follows_the_system_and_the_key(page: Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    page.prefer("light")  # another file's tests may have left it dark
    light = page.evaluate(paper)
    page.prefer("dark")
    dark = page.evaluate(paper)
    page.prefer("light")
    page.press("t")
    toggled = page.evaluate(paper)
    page.press("t")
    assert light == page.evaluate(paper)
    assert dark == toggled != light


def test_keys_do_nothing_while_typing(page: Browser) -> None:
    page.press("/")
    page.press("2")
    assert page.evaluate("document.querySelector('#search input').value") == "2"
    assert page.evaluate("document.querySelector('#pane-mine').hidden")
    page.press("Escape")


def test_a_narrow_window_shows_the_source_on_demand(page: Browser) -> None:
    page.resize(420, 800)
    page.evaluate("document.querySelector('#guide .cite').click()")
    page.wait_for("document.querySelector('.beside').classList.contains('up')")
    page.wait_for(
        "document.querySelector('.beside').getBoundingClientRect().top < innerHeight - 100"
    )
    assert page.evaluate("document.querySelector('.beside #pane-upstream').offsetWidth > 400")
    assert page.evaluate(
        "document.querySelector('.open-beside svg').getBoundingClientRect().top < 90"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.querySelector('.close').click()")
    assert not page.evaluate("document.querySelector('.beside').classList.contains('up')")


def test_print_shows_all_chapters_without_the_right_side(page: Browser) -> None:
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.call("Emulation.setEmulatedMedia", media="print", features=dark)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    shown = page.evaluate(
        "[...document.querySelectorAll('article')].filter((a) => a.offsetParent).length"
    )
    beside = page.evaluate("getComputedStyle(document.querySelector('.beside')).display")
    page.call("Emulation.setEmulatedMedia", media="")
    page.prefer("light")
    assert (shown, beside, paper) == (4, "none", "rgb(255, 255, 255)")


def test_without_scripts_every_chapter_is_there(
    browser: Browser, small: tuple[Course, Upstream]
) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.call("Page.navigate", url=(small[0].root / OUTPUT / "03-queue.html").as_uri())
        browser.wait_for("document.readyState === 'complete' && document.querySelector('#labs')")
        assert browser.evaluate(
            "[...document.querySelectorAll('article')].every((a) => a.offsetHeight > 0)"
        )
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_index_links_to_the_phase(browser: Browser, small: tuple[Course, Upstream]) -> None:
    browser.open((small[0].root / OUTPUT / "index.html").as_uri())
    browser.evaluate("document.querySelector('.phases a').click()")
    browser.wait_for("location.pathname.endsWith('03-queue.html')")


# ---------------------------------------------------------------- the course itself


@pytest.fixture(scope="module")
def book() -> tuple[Path, Upstream]:
    root = upstream_root(PROJECT)
    if root is None:
        pytest.skip("NOT RUN: vLLM's source is not here; `make upstream` fetches it")
    upstream = Upstream(root)
    return build_all(Course(PROJECT), upstream).parent, upstream


@pytest.mark.parametrize("slug", PHASES)
def test_every_citation_of_a_phase(
    browser: Browser, book: tuple[Path, Upstream], slug: str
) -> None:
    browser.resize(1440, 900)
    browser.open((book[0] / f"{slug}.html").as_uri())
    assert check_every_citation(browser, book[1]) >= 10
    assert browser.problems == []
    assert (book[0] / f"{slug}.html").stat().st_size < 2_000_000


def test_every_citation_of_the_notes(browser: Browser, book: tuple[Path, Upstream]) -> None:
    browser.resize(1440, 900)
    for note in sorted(book[0].glob("note-v1-*.html")):
        browser.open(note.as_uri())
        assert check_every_citation(browser, book[1]) > 0, note.name
        assert browser.problems == []


WIDTHS = (390, 800)
SIDEWAYS = """(() => {
  const found = [];
  for (const article of document.querySelectorAll('article')) {
    location.hash = article.id;
    for (const other of document.querySelectorAll('article'))
      other.classList.toggle('current', other === article);
    if (document.documentElement.scrollWidth > innerWidth) found.push(article.id);
    const boxes = [...article.querySelectorAll(
      'p, li, h1, h2, h3, h4, blockquote, details, figure, img')];
    const out = boxes.filter((box) => !box.closest('.table, .drawn, pre') &&
      box.getBoundingClientRect().right > innerWidth + 1);
    found.push(...out.slice(0, 3).map((box) => `${article.id}: ${box.textContent.slice(0, 60)}`));
  }
  return found;
})()"""
"""Chapters wider than the window, and what in them stands out of it."""


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways(
    browser: Browser, book: tuple[Path, Upstream], width: int
) -> None:
    """A table, a drawing or a listing that is too wide scrolls by itself."""
    browser.resize(width, 844)
    wide = {}
    for path in sorted(book[0].glob("*.html")):
        browser.open(path.as_uri())
        found = browser.evaluate(SIDEWAYS)
        if browser.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append("the page")
        if found:
            wide[path.name] = found
    browser.resize(1440, 900)
    assert wide == {}


def test_a_telephone_shows_the_title_of_every_phase_in_full(
    browser: Browser, book: tuple[Path, Upstream]
) -> None:
    browser.resize(390, 844)
    cut = []
    for path in sorted(book[0].glob("[0-9][0-9]-*.html")):
        browser.open(path.as_uri())
        if browser.evaluate("(({scrollWidth: w, clientWidth: c}) => w > c)"
                            "(document.querySelector('.bar .title'))"):  # fmt: skip
            cut.append(path.name)
    browser.resize(1440, 900)
    assert cut == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_portfolio_does_not_scroll_sideways(
    browser: Browser, tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [
        name for phase in Course(PROJECT).ready for e in phase.exercises for name in e.functions
    ]
    longest = [(name, 8) for name in sorted(every, key=len)[-9:]]
    monkeypatch.setattr(portfolio_page, "written", lambda phase, state: longest)
    shown = portfolio.Shown(
        runs=[("64 requests, tokens a second", "1,234.5", "1,250.1")], others=[("vLLM", "1,300")]
    )
    page = tmp_path / "portfolio.html"
    page.write_text(portfolio.page(Course(PROJECT), shown), encoding="utf-8")
    browser.resize(width, 844)
    browser.open(page.as_uri())
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    heights = browser.evaluate(
        "[...document.querySelectorAll('td.nb')].map((e) => e.firstChild && "
        "(() => { const r = document.createRange(); r.selectNodeContents(e);"
        " return r.getClientRects().length; })())"
    )
    assert heights and set(heights) == {1}, "a count stands in one line"
    assert browser.evaluate(
        "[...document.querySelectorAll('.table')].every((e) => e.scrollWidth <= e.clientWidth)"
    )
    browser.resize(1440, 900)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_buttons_of_the_bar_are_all_in_the_window(page: Browser, width: int) -> None:
    page.resize(width, 844)
    out = page.evaluate("""[...document.querySelectorAll('.bar :is(button, .title)')].filter((e) =>
    {
      const { left, right, width } = e.getBoundingClientRect();
      return left < 0 || right > innerWidth || width < 20; }).map((e) => e.outerHTML)""")
    assert out == []
