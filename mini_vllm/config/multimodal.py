"""Images in prompts: their number, size and sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.config.checks import require_at_least, require_one_of
from mini_vllm.errors import show

MODALITIES = ("image",)


@dataclass(frozen=True)
class MultiModalConfig:
    """Images in prompts.

    Source: vllm/config/multimodal.py#L74-L200 (MultiModalConfig) @ v0.22.1
    """

    limit_mm_per_prompt: Mapping[str, int] = field(default_factory=dict)
    """Most images of a prompt, as `{"image": 3}`. Default: limited only by the prompt's length.
    (vLLM's field is `limit_per_prompt`; its argument has this name.)"""
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Options of the model's image processor, such as `{"max_pixels": 200704}`: fewer pixels are
    fewer tokens."""
    allowed_media_domains: list[str] = field(default_factory=list)
    """Hosts from which images of a chat may be fetched; default: none."""
    allowed_local_media_path: str = ""
    """A folder whose files a chat may use as images, as `file:///folder/picture.png`; "": none."""

    def __post_init__(self) -> None:
        if not isinstance(self.limit_mm_per_prompt, Mapping):
            raise ValueError(
                f"limit_mm_per_prompt is {self.limit_mm_per_prompt!r}; it must be an object such "
                'as {"image": 3}'
            )
        if not isinstance(self.mm_processor_kwargs, Mapping):
            raise ValueError(
                f"mm_processor_kwargs is {self.mm_processor_kwargs!r}; it must be an object such "
                'as {"max_pixels": 200704}'
            )
        if isinstance(self.allowed_media_domains, str):
            raise ValueError(
                f"allowed_media_domains is {self.allowed_media_domains!r}; it must be a list of "
                "host names"
            )
        folder = self.allowed_local_media_path
        if not isinstance(folder, str) or (folder and not Path(folder).is_dir()):
            raise ValueError(
                f"allowed_local_media_path is {show(folder)}; it must be an existing folder; "
                "leave it out if images are not read from files"
            )
        for modality, limit in self.limit_mm_per_prompt.items():
            require_one_of("a key of limit_mm_per_prompt", modality, MODALITIES)
            require_at_least(f"limit_mm_per_prompt[{modality!r}]", limit, 0, "0 allows none")
