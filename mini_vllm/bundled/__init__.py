"""The models that ship with the repository: folders in Hugging Face layout.

`storyteller` is a small Qwen3-architecture chat model, `storyteller-draft` a smaller one with the
same tokenizer that guesses tokens for it. Both were trained by `training/train.py`.
"""

from __future__ import annotations

from pathlib import Path

NAMES = ("storyteller", "storyteller-draft")


def path(name: str) -> Path:
    """Return the folder of a bundled model; ValueError for an unknown name."""
    if name not in NAMES:
        raise ValueError(f"there is no bundled model {name!r}; choose one of {', '.join(NAMES)}")
    return Path(__file__).parent / name
