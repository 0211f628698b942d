"""The sampling parameters that a model's authors recommend, from its `generation_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.model.config import read_json
from mini_vllm.sampling_params import SamplingParams

OURS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}
"""Names in the file, and ours."""


def default_sampling_params(
    folder: str | Path, generation_config: str = "auto", override: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Fields of `SamplingParams` for requests that bring none of their own.

    Args:
        folder: the model's.
        generation_config: "auto": as the model's file says; "vllm": nothing of it; or another
            folder that has such a file.
        override: entries that count for more than the file's.

    Raises:
        FileNotFoundError: if another folder has no such file.
        ValueError: that names the file, for a value out of range.

    Source: vllm/config/model.py#L1465-L1518 (ModelConfig.get_diff_sampling_param) @ v0.22.1
    """
    given: dict[str, Any] = {}
    source = Path(folder if generation_config == "auto" else generation_config)
    path = source / "generation_config.json"
    if generation_config != "vllm":
        if path.is_file():
            given = read_json(path)
        elif generation_config != "auto":
            raise FileNotFoundError(
                f"generation_config is {generation_config!r}, which has no generation_config.json; "
                "give a folder that has one, 'auto' or 'vllm'"
            )
    given |= override or {}
    params = {}
    for name, ours in OURS.items():
        if (value := given.get(name)) is None:
            continue
        try:
            SamplingParams(**{ours: value})
        except ValueError as error:
            where = "override_generation_config" if name in (override or {}) else path
            said = str(error).replace(ours, name, 1)  # as it is called there
            raise ValueError(f"{where}: {said}; or pass generation_config='vllm'") from error
        params[ours] = value
    return params
