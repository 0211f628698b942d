"""`docs/api.md` knows every name of vLLM's front door, and says of each what is so."""

from __future__ import annotations

import pytest

from labkit.course import blocks
from labkit.course.root import ROOT, upstream_root
from labkit.quality import api
from mini_vllm.config.vllm_names import ALIASES, DIFFERS, IGNORED, REFUSED


def test_nobody_is_forgotten() -> None:
    ours = api.our_names()
    for part, names in api.saved_names().items():
        silent = [name for name in names if not api.verdict(name, ours[part])[0]]
        assert not silent, f"{part}: say in mini_vllm/config/vllm_names.py what becomes of {silent}"


def test_the_page_is_what_the_engine_says() -> None:
    wrong = blocks.differences(api.PAGE, {"names": api.table()})
    assert not wrong, "run `python -m labkit docs figures`:\n" + "\n".join(wrong)


def test_no_reason_is_left_over() -> None:
    """What is there has no reason to be refused, and what differs is there."""
    ours, theirs = api.our_names(), api.saved_names()
    everything = set().union(*ours.values())
    both = {*ALIASES, "disable_log_stats"}  # of LLM; the command line drops the latter
    assert not {*IGNORED, *REFUSED} & (ours["arguments"] - both)
    assert set(DIFFERS) <= everything
    assert set(ALIASES.values()) <= everything
    names = {name for part in theirs.values() for name in part}
    known_before = {"max_seq_len_to_capture", "swap_space", "rope_scaling", "rope_theta"}
    assert not {*DIFFERS} - names - {"profiler_config"}
    assert known_before <= {*IGNORED, *REFUSED}


@pytest.mark.upstream
def test_the_names_are_those_of_the_pinned_source() -> None:
    source = upstream_root(ROOT)
    if source is None:
        pytest.skip("vLLM's source is not unpacked; `make upstream` does it")
    assert api.read_names(source) == api.saved_names()
