"""The notebook for Colab and Kaggle, run from an empty folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from labkit.course.root import ROOT

NOTEBOOK = ROOT / "docs" / "colab.ipynb"
LAB = "labs/02-kv-cache/block_hash.py"


def cells() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_its_answer_is_the_reference_and_nothing_was_run() -> None:
    sources = [cell.source for cell in cells().cells]
    reference = (ROOT / "mini_vllm" / "core" / "block_hash.py").read_text(encoding="utf-8")
    assert f"%%writefile {LAB}\n{reference}".rstrip("\n") in sources
    assert not [cell for cell in cells().cells if cell.get("outputs")]
    nbformat.validate(cells())


@pytest.mark.slow
@pytest.mark.serial
def test_it_reaches_the_first_green_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's Python has every package here, so set-up uses it as it is."""
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is no clone, so nothing can be cloned from it")
    monkeypatch.setenv("MINI_VLLM_REPOSITORY", str(ROOT))
    notebook = cells()
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()

    def said(command: str) -> list[str]:
        return [
            "".join(output.get("text", "") for output in cell.outputs)
            for cell in notebook.cells
            if cell.cell_type == "code" and command in cell.source
        ]

    red, green = said("labkit lab 02")
    assert "○ 02.1" in red and "✓ 02.1" in green, red + green
    assert "Environment:" in said("labkit setup")[0]
    assert "tokens/s" in said("labkit demo")[0]
    assert (tmp_path / "my-labs.tar.gz").is_file()
