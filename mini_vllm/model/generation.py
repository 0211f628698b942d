"""The sampling parameters that a model's authors recommend, from its `generation_config.json`.

A caller's own entries, `override_generation_config`, replace the file's. There, an entry that the
engine does not read is refused by its name, because the caller expects an effect. In a file it is
accepted, as in vLLM, and `without_effect` lists it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.errors import show
from mini_vllm.gguf import is_gguf
from mini_vllm.model.config import read_generation
from mini_vllm.model.config_rules import check_entries
from mini_vllm.model.config_schema import GENERATION_CONFIG
from mini_vllm.sampling_params import SamplingParams

OURS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}
"""The entries of a file that are read, and our names for them."""
OVERRIDES = OURS | {
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "min_new_tokens": "min_tokens",
}
"""The same for a caller's own entries. vLLM accepts the last three, but they have no effect."""
AS_IT_IS: dict[str, tuple[Any, ...]] = {
    "do_sample": (True,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "use_cache": (True,),
    "length_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "encoder_repetition_penalty": (1.0,),
    "diversity_penalty": (0.0,),
    "num_beam_groups": (1,),
    "renormalize_logits": (False,),
    "output_scores": (False,),
    "output_logits": (False,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "return_dict_in_generate": (False,),
    "remove_invalid_values": (False,),
    "early_stopping": (False,),
    "guidance_scale": (1.0,),
}
"""Entries of other engines, and the values that ask for what this engine does anyway."""
SAY_NOTHING = ("bos_token_id", "pad_token_id", "transformers_version", "_from_model_config")
"""Entries that describe the model or the file; the generated text does not depend on them."""


def default_sampling_params(
    folder: str | Path, generation_config: str = "auto", override: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Fields of `SamplingParams` for requests that do not set them.

    Args:
        folder: of the model.
        generation_config: "auto": use the model's file; "vllm": do not use it; or another folder
            that has such a file.
        override: entries that replace the file's.

    Raises:
        FileNotFoundError: if another folder has no such file.
        ValueError: that names the file, for a value out of range; or an entry of `override` without
            effect.

    Source: vllm/config/model.py#L1465-L1518 (ModelConfig.get_diff_sampling_param) @ v0.22.1
    """
    override = override or {}
    check_override(override)
    path = generation_file(folder, generation_config)
    given = read_generation(path) if generation_config != "vllm" and path.is_file() else {}
    entries = {name: given.get(name) for name in OURS}
    entries |= {name: override[name] for name in OVERRIDES if name in override}
    params = {}
    for name, value in entries.items():
        if value is None:
            continue
        ours = OVERRIDES[name]
        try:
            SamplingParams(**{ours: value})
        except ValueError as error:
            where = "override_generation_config" if name in override else path
            said = str(error).replace(ours, name, 1)  # the name in the file
            raise ValueError(f"{where}: {said}; or pass generation_config='vllm'") from error
        params[ours] = value
    return params


def generation_file(folder: str | Path, generation_config: str = "auto") -> Path:
    """The `generation_config.json` to use: the model's own, which may be missing, or another
    folder's, which must exist. For a GGUF file it is the file itself.

    Raises FileNotFoundError if another folder has none.
    """
    is_own = generation_config in ("auto", "vllm")
    if is_own and is_gguf(folder):
        return Path(folder)
    path = Path(folder if is_own else generation_config) / "generation_config.json"
    if not is_own and not path.is_file():
        raise FileNotFoundError(
            f"generation_config is {generation_config!r}, which has no generation_config.json; "
            "give a folder that has one, 'auto' or 'vllm'"
        )
    return path


def check_override(override: Mapping[str, Any]) -> None:
    """Raise ValueError for the first entry that the engine does not read; it names the nearest."""
    check_entries(override, GENERATION_CONFIG, "override_generation_config")
    known = (*OVERRIDES, "eos_token_id")
    for name in without_effect({k: v for k, v in override.items() if k not in known}):
        nearest = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"it may have {', '.join(known)}"
        raise ValueError(
            f"override_generation_config has {name}={show(override[name])}, which has no effect "
            f"in this engine; leave it out; {hint}"
        )


def without_effect(entries: Mapping[str, Any]) -> list[str]:
    """The entries of a file that ask for an effect but are not read by the engine."""
    return [
        name
        for name, value in entries.items()
        if name not in (*OURS, "eos_token_id", *SAY_NOTHING)
        and not (value is None or value in AS_IT_IS.get(name, ()))
    ]
