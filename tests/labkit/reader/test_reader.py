"""The reader's pages, without a browser: what they hold and where their links lead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from labkit.citations.symbols import Upstream
from labkit.cli import call_typer
from labkit.course.manifest import Course
from labkit.course.state import State, fingerprint
from labkit.reader import page
from labkit.reader.book import OUTPUT, all_pages, build_all, build_one, targets
from labkit.reader.code import highlight_lines
from labkit.reader.diagrams import draw
from labkit.tab.cli import book, read
from tests.labkit.reading_course import (
    CLOSE,
    STEP_3,
    STEP_40,
    UPSTREAM,
    make_reading_course,
    make_upstream,
)

Capture = pytest.CaptureFixture[str]
VOID = {"area", "br", "hr", "img", "input", "link", "meta", "wbr"}


class Elements(HTMLParser):
    """Collects elements and checks that every one is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.stack, f"never closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self.stack and self.stack[-1] == "p" and tag != "p":  # its end tag may be left out
            self.stack.pop()
        assert self.stack and self.stack[-1] == tag, f"</{tag}> closes {self.stack[-3:]}"
        self.stack.pop()

    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.found if "id" in attrs]

    def links(self) -> list[str]:
        return [str(attrs["href"]) for tag, attrs in self.found if tag == "a" and "href" in attrs]


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_reading_course(tmp_path / "course")


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return make_upstream(tmp_path / "upstream")


def page_of(course: Course, upstream: Upstream | None) -> str:
    return build_one(course, course.phase("03"), upstream).read_text("utf-8")


def places_of(text: str) -> list[dict]:
    found = re.search(r'id="places">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_page_is_sound_html_with_unique_ids(course: Course, upstream: Upstream) -> None:
    elements = Elements(page_of(course, upstream))
    ids = elements.ids()
    assert len(ids) == len(set(ids))
    for link in elements.links():
        if link.startswith("#") and link != "#":
            assert link[1:] in ids, f"{link} leads nowhere"


def test_page_needs_no_network(course: Course, upstream: Upstream) -> None:
    for tag, attrs in Elements(page_of(course, upstream)).found:
        assert tag not in ("link", "iframe"), tag
        assert not str(attrs.get("src", "")).startswith("http"), attrs


def test_cited_lines_are_in_the_page_with_context(course: Course, upstream: Upstream) -> None:
    text = page_of(course, upstream)
    for number in (STEP_3, STEP_3 + 14, STEP_40 + 2, CLOSE + 1, 4):
        assert f'id="u1-{number}"' in text
    assert f'id="u1-{STEP_40 - 30}"' not in text, "far lines are left out"
    assert "class=&quot;" not in text


def test_upstream_text_is_escaped_and_unchanged(course: Course, upstream: Upstream) -> None:
    text = page_of(course, upstream)
    shown = re.search(r'id="u1-1" data-n="1"><code>(.*?)</code>', text)
    assert shown
    plain = re.sub(r"<[^>]+>", "", shown[1])
    assert plain == '"""A queue with &lt;tags&gt; &amp; entities."""'


def test_places_name_the_definitions_around_them(course: Course, upstream: Upstream) -> None:
    places = {p["symbol"]: p for p in places_of(page_of(course, upstream))}
    step = places["Queue.step_40"]
    assert [line for _, line in step["owners"]] == [4, STEP_40]
    assert places["Queue.step_1"]["owners"][-1][0].startswith("async def close")


def test_repeated_headings_get_their_own_anchors(course: Course, upstream: Upstream) -> None:
    ids = Elements(page_of(course, upstream)).ids()
    assert "deep-dive--inside-it" in ids
    assert "deep-dive--inside-it-1" in ids


def test_links_between_chapters_stay_in_the_page(course: Course, upstream: Upstream) -> None:
    links = Elements(page_of(course, upstream)).links()
    assert "#deep-dive--inside-it" in links
    assert "../../toy/queue.py" in links
    assert "note-queue.html" in links, "a note named in code"
    assert links.count("#deep-dive") == 2, "the tab, and the chapter named in code"
    assert "https://docs.vllm.ai/" in links


def test_todo_lines_and_tasks_of_the_lab_file(course: Course, upstream: Upstream) -> None:
    text = page_of(course, upstream)
    assert re.search(r'<li class="open"><a href="#m1-\d+">03\.1</a> <code>Queue\.push', text)
    assert 'class="l todo"' in text
    lab = course.phase("03").lab_file("toy.queue")
    lab.write_text(lab.read_text("utf-8").split("        # TODO")[0] + "        return item + 1\n")
    assert '<li class="not">' in page_of(course, upstream), "it is not judged yet"


def test_your_files_say_what_the_last_run_found(course: Course, upstream: Upstream) -> None:
    """Until the function changes: then it says that it is not judged yet."""
    phase = course.phase("03")
    lab = phase.lab_file("toy.queue")
    todo, solved = lab.read_text("utf-8").split("        # TODO")[0], "        return item + 1\n"
    for passed, said in ([["03.1"], "passed"], [[], "failed"]):
        lab.write_text(todo + solved)
        judged = {"03.1": fingerprint(phase, phase.exercises[0])}
        State(course.root).put("phases", phase.slug, {"passed": passed, "judged": judged})
        assert f'<li class="{said}">' in page_of(course, upstream)
        lab.write_text(todo + "        return item + 2\n")
        assert "<span>not judged yet</span>" in page_of(course, upstream)


def test_broken_or_missing_lab_file_is_no_obstacle(course: Course, upstream: Upstream) -> None:
    lab = course.phase("03").lab_file("toy.queue")
    lab.write_text("def broken(:\n")
    assert "broken" in page_of(course, upstream)
    lab.unlink()
    assert "make reset-03" in page_of(course, upstream)


def test_without_the_source_places_are_links(course: Course) -> None:
    text = page_of(course, None)
    assert "make upstream" in text
    assert f"#L{STEP_3}-L{STEP_3 + 2}" in text
    Elements(text)


def test_boxes_diagrams_and_what_is_not_drawn(course: Course, upstream: Upstream) -> None:
    text = page_of(course, upstream)
    assert '<blockquote class="box">' in text
    assert '<blockquote class="warning">' in text
    assert "[!WARNING]" not in text
    assert text.count("<svg") - text.count('<svg class="icon') == 1
    assert "shown as its Mermaid text" in text
    assert "&lt;not a tag&gt;" in text


def test_book_has_an_index_a_search_and_pages_that_link(course: Course, upstream: Upstream) -> None:
    index = build_all(course, upstream)
    output = course.root / OUTPUT
    assert "1.5 hours" in index.read_text("utf-8")
    assert "The &lt;queue&gt;" in index.read_text("utf-8")
    data = (output / "search-index.js").read_text("utf-8")
    found = json.loads(data.removeprefix("window.BOOK=").removesuffix(";\n"))
    where = ["03 The <queue> · Deep dive › Inside it", "03-queue.html#deep-dive--inside-it"]
    assert ["Inside it", found["sections"].index(where), True] in found["entries"]
    for file in output.glob("*.html"):
        elements = Elements(file.read_text("utf-8"))
        for link in elements.links():
            target, _, anchor = link.partition("#")
            if target.endswith(".html"):
                assert (output / target).is_file(), f"{file.name} links to {target}"
                if anchor:
                    assert f'id="{anchor}"' in (output / target).read_text("utf-8")


def test_pages_stay_small(course: Course, upstream: Upstream) -> None:
    assert len(page_of(course, upstream)) < 150_000


@pytest.mark.parametrize("language", ["python", "toml", "bash", "no-such-language", ""])
def test_highlighting_keeps_every_character(language: str) -> None:
    lines = highlight_lines(UPSTREAM, language)
    plain = [re.sub(r"<[^>]+>", "", line) for line in lines]
    unescaped = [p.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for p in plain]
    assert unescaped == UPSTREAM.splitlines()


PROJECT = Course(Path(__file__).parents[3])


@pytest.mark.parametrize("slug", [phase.slug for phase in PROJECT.ready])
def test_links_of_the_real_chapters_lead_somewhere(slug: str, tmp_path: Path) -> None:
    one = page.phase_page(PROJECT.phase(slug[:2]))
    elements = Elements(page.build(one, PROJECT.root / OUTPUT, None, targets(all_pages(PROJECT))))
    ids = elements.ids()
    built = {p.name for p in all_pages(PROJECT)} | {"index"}
    for link in elements.links():
        path, _, anchor = link.partition("#")
        if not path and anchor:
            assert any(i.startswith(anchor) for i in ids), f"{slug}: {link} leads nowhere"
        elif path.endswith(".html") and "://" not in path:
            assert path.removesuffix(".html") in built, f"{slug}: {link} is no page of the book"
        elif path and ":" not in path:
            assert (PROJECT.root / OUTPUT / path).resolve().exists(), f"{slug}: no file {path}"


# ---------------------------------------------------------------- the commands


def run(function: Callable[..., None], course: Course, *words: str) -> int:
    return call_typer("reader", function, [*words, "--project", str(course.root)])


def test_read_builds_the_page_and_says_where_it_is(
    course: Course, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("MINI_VLLM_UPSTREAM", str(upstream.root))
    assert run(read, course, "3", "--no-open") == 0
    assert "build/book/03-queue.html" in capsys.readouterr().out
    assert places_of((course.root / OUTPUT / "03-queue.html").read_text("utf-8"))


def test_read_without_the_source_says_how_to_get_it(
    course: Course, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.delenv("MINI_VLLM_UPSTREAM", raising=False)
    assert run(read, course, "03", "--no-open") == 0
    assert "make upstream" in capsys.readouterr().out


def test_read_of_what_is_not_there(course: Course, capsys: Capture) -> None:
    assert run(read, course, "99", "--no-open") == 2
    assert "03-queue" in capsys.readouterr().out
    for chapter in (course.root / "phases" / "03-queue").glob("*.md"):
        chapter.unlink()
    assert run(read, course, "03", "--no-open") == 1
    assert "no chapters yet" in capsys.readouterr().out


def test_book_command_prints_the_index(course: Course, capsys: Capture) -> None:
    assert run(book, course, "--no-open", "--no-tab") == 0
    assert "build/book/index.html" in capsys.readouterr().out


# ---------------------------------------------------------------- diagrams

STATES = """stateDiagram-v2
    [*] --> WAITING : add
    WAITING --> RUNNING
    RUNNING --> WAITING : preempt
    RUNNING --> RUNNING : token
    RUNNING --> [*]
    note right of WAITING : keeps its output
"""
SEQUENCE = """sequenceDiagram
    participant E as Engine
    E->>S: schedule()
    loop every step
    S->>S: count
    S-->>E: plan
    end
    Note over E,S: one step
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (STATES, ["WAITING", "RUNNING", "add", "preempt", "token", "keeps its output"]),
        (SEQUENCE, ["Engine", "schedule()", "loop  every step", "count", "plan", "one step"]),
        (
            'graph TD\n a["x<br/>y & z"] --> b{ok?}\n b -- yes --> c((end))',
            ["x", "y &amp; z", "yes"],
        ),
        ("flowchart LR\n subgraph one [A step]\n a --> b & c\n end\n b -.-> d", ["A step", "d"]),
        (
            "flowchart TB\n a --- b\n a ==> c:::hot\n %% a comment\n classDef hot fill:red",
            ["a", "c"],
        ),
    ],
)
def test_diagrams_are_drawn_with_all_their_words(text: str, words: list[str]) -> None:
    picture = draw(text)
    assert picture
    Elements(picture)
    for word in words:
        assert f">{word}<" in picture


@pytest.mark.parametrize("text", ["", "gantt\n title x", "flowchart LR\n a -->", "pie\n a: 1"])
def test_what_cannot_be_drawn_gives_none(text: str) -> None:
    assert draw(text) is None


def test_boxes_of_a_diagram_do_not_overlap() -> None:
    picture = draw("graph TD\n" + "\n".join(f" a --> n{i}\n n{i} --> z" for i in range(7)))
    assert picture
    boxes = [
        tuple(float(v) for v in found)
        for found in re.findall(
            r'class="node" x="([-\d.]+)" y="([-\d.]+)" width="([\d.]+)" height="([\d.]+)"', picture
        )
    ]
    assert len(boxes) == 9
    for i, (x, y, w, h) in enumerate(boxes):
        for a, b, c, d in boxes[i + 1 :]:
            assert x + w <= a or a + c <= x or y + h <= b or b + d <= y


def test_every_diagram_of_the_course_is_drawn() -> None:
    root = Path(__file__).parents[3]
    for chapter in sorted(root.glob("phases/*/*.md")):
        for text in re.findall(r"^```mermaid\n(.*?)^```", chapter.read_text("utf-8"), re.M | re.S):
            assert draw(text), f"{chapter.parent.name}/{chapter.name}: cannot draw\n{text}"
