"""`docs/api.md` knows every name of vLLM's front door, and says of each what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.course import blocks
from labkit.course.root import ROOT, upstream_root
from labkit.quality import api
from mini_vllm.config.profiles import RELEASES
from mini_vllm.config.vllm_names import ALIASES, DIFFERS, IGNORED, REFUSED


def test_every_name_of_vllm_has_a_verdict() -> None:
    ours = api.our_names()
    for part, names in api.saved_names().items():
        silent = [name for name in names if not api.verdict(name, ours[part])[0]]
        assert not silent, f"{part}: say in mini_vllm/config/vllm_names.py what becomes of {silent}"


def test_the_page_is_what_the_engine_says() -> None:
    wrong = blocks.differences(api.PAGE, {"names": api.table()})
    assert not wrong, "run `python -m labkit docs figures`:\n" + "\n".join(wrong)


def imports_of_the_page() -> list[tuple[str, str]]:
    """Pairs of an import of vLLM's and ours."""
    return re.findall(
        r"^\| `(from vllm[^`]*)` \| `([^`]*)` \|$", api.PAGE.read_text(), re.MULTILINE
    )


def test_what_the_page_imports_is_there() -> None:
    pairs = imports_of_the_page()
    assert len(pairs) > 5
    for theirs, ours in pairs:
        exec(ours, {})
        assert theirs.partition(" import ")[2] == ours.partition(" import ")[2]


@pytest.mark.upstream
def test_what_the_page_imports_is_there_upstream() -> None:
    source = upstream_root(ROOT)
    if source is None:
        pytest.skip("vLLM's source is not unpacked; `make upstream` does it")
    for theirs, _ in imports_of_the_page():
        module, _, names = theirs.removeprefix("from ").partition(" import ")
        folder = source / module.replace(".", "/")
        files = [
            file for file in (folder.with_suffix(".py"), folder / "__init__.py") if file.is_file()
        ]
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        star = "from .parallel_state import *" if module == "vllm.distributed" else None
        assert files and all(name in text or (star and star in text) for name in names.split(", "))


def test_no_reason_is_left_over() -> None:
    """What is there has no reason to be refused, and what differs is there."""
    ours, theirs = api.our_names(), api.saved_names()
    everything = set().union(*ours.values())
    # The command line has them, or drops them; LLM does otherwise.
    both = {*ALIASES, "disable_log_stats", "stream_interval", "enable_log_requests"}
    both |= {"served_model_name", "shutdown_timeout", "chat_template"}
    assert not {*IGNORED, *REFUSED} & (ours["arguments"] - both)
    assert set(DIFFERS) <= everything
    assert set(ALIASES.values()) <= everything
    names = {name for part in theirs.values() for name in part}
    known_before = {"max_seq_len_to_capture", "swap_space", "rope_scaling", "rope_theta"}
    assert not {*DIFFERS} - names - {"profiler_config"}
    assert known_before <= {*IGNORED, *REFUSED}


def test_what_a_newer_release_has_is_told_behind_each_table() -> None:
    release, newer = api.newer_names()
    assert release == RELEASES["current"]
    page = api.table()
    old = {name for names in api.saved_names().values() for name in names}
    for names in newer.values():
        assert all(f"`{name}`" in page for name in names if name not in old)
    assert "New in vLLM 0.32.0, and here: `long_prefill_token_threshold_adaptive`" in page
    assert "Gone in vLLM 0.32.0, 1: `reward`." in page


def test_a_class_that_has_moved_is_found(tmp_path: Path) -> None:
    place = tmp_path / "entrypoints" / "launchers" / "cli_args.py"
    place.parent.mkdir(parents=True)
    place.write_text("class FrontendArgs(Base):\n    port: int = 8000\n")
    found = api._class(tmp_path, "entrypoints/openai/cli_args.py", "FrontendArgs")
    assert found is not None and found.name == "FrontendArgs"
    assert api._class(tmp_path, "entrypoints/llm.py", "RLOfflineMixin") is None


@pytest.mark.upstream
def test_the_names_are_those_of_the_pinned_source() -> None:
    source = upstream_root(ROOT)
    if source is None:
        pytest.skip("vLLM's source is not unpacked; `make upstream` does it")
    assert api.read_names(source) == api.saved_names()
