"""Who is judged: pytest typed by hand runs against the reference."""

from __future__ import annotations

import json
import os

import pytest

from labkit.process import overlay


def pytest_report_header(config: pytest.Config) -> str:
    """The first lines say whose file the tests are about to judge."""
    if json.loads(os.environ.get(overlay.VARIABLE, "{}")):
        return "judged: your files in labs/"
    return "judged: the reference in mini_vllm, not your files; `make lab-NN` judges those"
