"""`labkit docs` and `labkit prove`: what they hold together, and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from labkit.course import blocks
from labkit.course.manifest import Course
from labkit.course.root import ROOT
from labkit.quality import docs, prove, tour

COURSE = Course(ROOT)


def test_no_quick_page_is_old() -> None:
    """Else `python -m labkit docs figures` makes it again."""
    pages = docs.quick_pages()
    assert ROOT / "README.md" in pages
    for page, parts in pages.items():
        assert blocks.differences(page, parts) == [], page.name


def test_an_old_part_is_named_and_made_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[bool] = []

    def renew(check: bool):  # type: ignore[no-untyped-def]
        made.append(not check)
        yield "docs/tour.md"

    monkeypatch.setitem(docs.PARTS, "tour", renew)
    with pytest.raises(typer.Exit) as end:
        docs.main(["tour"], check=True)
    assert (end.value.exit_code, capsys.readouterr().out) == (1, "old: docs/tour.md\ntour: 1 old\n")
    with pytest.raises(typer.Exit) as end:
        docs.main(["tour"], check=False)
    assert end.value.exit_code == 0 and made == [False, True]
    with pytest.raises(typer.Exit) as end:
        docs.main(["tuor"], check=True)
    assert end.value.exit_code == 2
    assert "the parts are tour, pictures, figures" in capsys.readouterr().err


def test_a_tour_is_old_if_more_than_times_differ() -> None:
    assert tour.unmeasured("TTFT   1.25 ms  3 steps") == tour.unmeasured("TTFT  14.0 ms 3 steps")
    assert tour.unmeasured("TTFT 1.25 ms 3 steps") != tour.unmeasured("TTFT 1.25 ms 4 steps")
    assert tour.unmeasured("unchanged since 12:29") == tour.unmeasured("unchanged since 09:05")


@pytest.mark.parametrize(("number", "has_kernels"), [("02", False), ("04", True)])
def test_a_phase_has_five_proofs(number: str, has_kernels: bool) -> None:
    found = {proof.name: proof for proof in prove.proofs(COURSE.phase(number), quick=False)}
    names = ["matrix", "mutants", "history", "suite-quality", "kernel-corpus"]
    assert list(found) == names
    assert found["mutants"].words == (number, "--hidden")
    assert bool(found["kernel-corpus"].reason) != has_kernels
    assert "H44" not in found["history"].words and len(found["history"].words) > 2


def test_a_proof_that_fails_shows_all_it_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    phase = COURSE.phase("00")
    assert prove.prove(phase, prove.Proof("help"))
    assert not prove.prove(phase, prove.Proof("matrix", ("no-such-phase",)))
    assert prove.prove(phase, prove.Proof("history", reason="none lies here"))
    good, bad, *rest = capsys.readouterr().out.splitlines()
    assert good.startswith("ok   help") and good.endswith("list the targets")
    assert bad.startswith("FAIL matrix") and "there is no phase 'no-such-phase'" in rest[0]
    assert rest[-1].endswith("none lies here")
