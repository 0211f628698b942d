"""The catalogue of the maintainer's track.

`tests/corpora/upstream_bugs/reports.toml` is public: what a user reports.
`tests/hidden/upstream_bugs/` is sealed as the hidden suites are: `NN.toml` tells the cause,
upstream's number, our fix and wrong fixes; `bug_NN.py` tests.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPORTS = Path("tests") / "corpora" / "upstream_bugs" / "reports.toml"
SEALED = Path("tests") / "hidden" / "upstream_bugs"
KEYS = {"id", "name", "title", "report", "phase", "difficulty"}
BUG, NEIGHBOUR, SIBLING = "the_bug", "neighbour_", "the_sibling"
"""How the functions of `bug_NN.py` are called: `the_bug(draw)`, each `neighbour_...()`, and for a
bug of the exam `the_sibling(draw)`."""

Edits = Mapping[str, str]
"""Path below the tree, such as "vllm/v1/request.py" -> the whole edited text."""


class CatalogueError(ValueError):
    """The catalogue, or a name that is looked up in it, is wrong; the message says what to do."""


@dataclass(frozen=True)
class Bug:
    """What is public of one bug.

    Attributes:
        id: "22".
        name: "same-picture-twice".
        phase: the phase that teaches what must be understood, "13".
        difficulty: 1 (one line, one thought) to 5.
        report: what a user writes.
    """

    root: Path
    id: str
    name: str
    title: str
    report: str
    phase: str
    difficulty: int

    @property
    def tests(self) -> Path:
        return self.root / SEALED / f"bug_{self.id}.py"

    def sealed(self) -> Sealed:
        """Raises CatalogueError where it is not there, or incomplete."""
        return load_sealed(self)


@dataclass(frozen=True)
class Wrong:
    """A fix that looks right, why it is wrong, and its replacements."""

    why: str
    fix: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Sibling:
    """The same mistake at another place of the tree, where an exam's copy has it and vLLM has not.

    Attributes:
        where: what an exam says of the place, such as "below vllm/v1/core".
        plant: what makes the mistake: (path, vLLM's text, the mistake).
    """

    where: str
    plant: tuple[tuple[str, str, str], ...]

    def undone(self, edits: Edits) -> dict[str, str]:
        """The files of an exam's copy without the mistake, where it still stands."""
        texts = dict(edits)
        for path, old, new in self.plant:
            if texts.get(path, "").count(new) == 1:
                texts[path] = texts[path].replace(new, old)
        return texts


@dataclass(frozen=True)
class Sealed:
    """What is told after the fix.

    Attributes:
        cause: what is wrong, and where.
        upstream: numbers of upstream's issues and pull requests, or that none is known.
        fix: our own: (path, old text, new text).
        wrong: fixes that must be refused.
        may_differ: golden traces that a right fix decides otherwise, such as "stop-3".
        answers: our answers to the three questions: size, place, open.
        exam: whether an exam may ask for it: nothing in this repository answers it.
        sibling: what an exam plants beside it; None where it is no exam's.
    """

    cause: str
    upstream: str
    fix: tuple[tuple[str, str, str], ...]
    wrong: tuple[Wrong, ...]
    may_differ: tuple[str, ...]
    answers: Mapping[str, str]
    exam: bool
    sibling: Sibling | None = None


def load(root: Path) -> list[Bug]:
    """All bugs, in the order of their numbers.

    Raises:
        CatalogueError: an entry is incomplete.
    """
    entries = tomllib.loads((root / REPORTS).read_text(encoding="utf-8"))["bugs"]
    for entry in entries:
        if set(entry) != KEYS:
            raise CatalogueError(
                f"{REPORTS}: bug {entry.get('id')} has the keys {', '.join(sorted(entry))}; they"
                f" must be {', '.join(sorted(KEYS))}"
            )
    return [Bug(root, **{k: _text(v) for k, v in entry.items()}) for entry in entries]


def _text(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def find(root: Path, word: str) -> Bug:
    """The bug called by its number ("22", "7") or its name."""
    known = load(root)
    for bug in known:
        if word in (bug.name, bug.id) or word.zfill(2) == bug.id:
            return bug
    raise CatalogueError(
        f"there is no bug {word!r}; `make maintain` lists the {len(known)} that there are"
    )


def load_sealed(bug: Bug) -> Sealed:
    path = bug.root / SEALED / f"{bug.id}.toml"
    if not path.is_file():
        raise CatalogueError(
            "fixes are judged by tests that are sealed here: ask your instructor for the key, then"
            " `python -m labkit unseal KEY`"
        )
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        return Sealed(
            cause=found["cause"].strip(),
            upstream=found["upstream"].strip(),
            fix=_replacements(found["fix"]),
            wrong=tuple(
                Wrong(entry["why"].strip(), _replacements(entry["fix"]))
                for entry in found.get("wrong", [])
            ),
            may_differ=tuple(found.get("may_differ", [])),
            answers={key: found["answers"][key].strip() for key in ("size", "place", "open")},
            exam=found.get("exam", False),
            sibling=(
                Sibling(found["sibling"]["where"], _replacements(found["sibling"]["plant"]))
                if "sibling" in found
                else None
            ),
        )
    except KeyError as error:
        raise CatalogueError(f"{path.name} lacks {error.args[0]}") from None


def _replacements(entries: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str, str], ...]:
    return tuple((entry["file"], entry["old"], entry["new"]) for entry in entries)


def edits(tree: Path, fix: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    """The files of a tree as a fix leaves them.

    Raises:
        CatalogueError: a text that is to be replaced does not stand in its file exactly once.
    """
    texts: dict[str, str] = {}
    for path, old, new in fix:
        text = texts.get(path) or (tree / path).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise CatalogueError(
                f"{path} holds {old[:60]!r} {text.count(old)} times; it must, once"
            )
        texts[path] = text.replace(old, new)
    return texts


def neighbours(tests: Path) -> list[str]:
    """The names of the neighbour tests in a file of tests."""
    tree = ast.parse(tests.read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name.startswith(NEIGHBOUR)]
