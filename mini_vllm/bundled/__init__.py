"""The models that ship with the repository: folders in Hugging Face layout.

`storyteller` is a small Qwen3-architecture chat model, `storyteller-draft` a smaller one with the
same tokenizer that guesses tokens for it. Both were trained by `training/train.py`.
`storyteller-vision` is storyteller with eyes, trained by `training/vision.py`. `adapters/`
holds LoRA adapters for storyteller in PEFT's layout, trained by `training/lora.py`.
"""

from __future__ import annotations

from pathlib import Path

NAMES = ("storyteller", "storyteller-draft")
ADAPTERS = ("pirate", "json", "polite")
SEEING = ("storyteller-vision",)
"""Models that take images."""
HEADS = ("storyteller-medusa", "storyteller-eagle")
"""Small networks that guess tokens from the storyteller's hidden states; no models of their own."""


def path(name: str) -> Path:
    """Return the folder of a bundled model; ValueError for an unknown name."""
    if name not in (*NAMES, *SEEING, *HEADS):
        raise ValueError(
            f"there is no bundled model {name!r}; choose one of {', '.join((*NAMES, *SEEING))}"
        )
    return Path(__file__).parent / name


def adapter_path(name: str) -> Path:
    """Return the folder of a bundled LoRA adapter; ValueError for an unknown name."""
    if name not in ADAPTERS:
        raise ValueError(
            f"there is no bundled adapter {name!r}; choose one of {', '.join(ADAPTERS)}"
        )
    return Path(__file__).parent / "adapters" / name
