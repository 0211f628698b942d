"""The chapters' figures: drawn from the code, kept as files, and shown."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from labkit.course.root import ROOT
from labkit.kernels.measure.roofline import DATASHEETS
from labkit.reader import drawings
from labkit.reader.drawings import latent, roofline


def test_every_figure_is_what_would_be_drawn_today() -> None:
    """Else `python -m labkit docs figures` draws them again."""
    assert drawings.stale(ROOT) == []


@pytest.mark.parametrize("name", drawings.FIGURES)
def test_a_figure_is_svg_and_stands_in_a_chapter_of_its_phase(name: str) -> None:
    path = drawings.path_of(name, ROOT)
    ElementTree.parse(path)
    phase = path.parents[1]
    chapters = "".join(chapter.read_text("utf-8") for chapter in phase.glob("*.md"))
    assert f"](figures/{path.name})" in chapters


def test_no_figure_is_left_over() -> None:
    kept = set(ROOT.glob("phases/*/figures/*"))
    assert kept == {drawings.path_of(name, ROOT) for name in drawings.FIGURES}


def test_the_roofline_stands_on_the_same_data_sheets_as_the_kernel_checker() -> None:
    for name, machine in roofline.MACHINES.items():
        gpu = DATASHEETS[name]
        assert (machine.flops_per_s, machine.bytes_per_s) == (gpu.flops, gpu.bandwidth)


def test_the_guide_names_the_shortest_prompts_that_reach_the_ridge() -> None:
    guide = (ROOT / "phases" / "01-one-request" / "00-guide.md").read_text("utf-8")
    ridges = [100.0, *(roofline.ridge(roofline.MACHINES[name]) for name in ("H200", "H100"))]
    lengths = [roofline.critical_tokens(ridge) for ridge in ridges]
    assert "{}, {} and\n{} tokens".format(*lengths) in guide
    assert [f"{ridge:.0f}" for ridge in ridges[1:]] == re.findall(r"is at (2\d\d)", guide)


def test_the_page_on_mla_quotes_the_figure() -> None:
    page = (ROOT / "phases" / "04-attention-kernels" / "04-inside-a-gpu.md").read_text("utf-8")
    own, _, mla = (latent.tokens_in_memory(numbers) for _, numbers, _ in latent.KINDS)
    assert f"40 GB hold {own:,} tokens" in page
    assert f"With MLA they hold {mla:,}." in page
