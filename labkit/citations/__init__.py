"""Citations of upstream vLLM: found, verified, locked, and followed as upstream changes.

`python -m labkit cite-check` and `python -m labkit cite-drift` are the commands; see `cli.py`.
"""

from labkit.citations.cli import drift, main

__all__ = ["drift", "main"]
