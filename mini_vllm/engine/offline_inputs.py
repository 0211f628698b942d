"""What `LLM` is given for one prompt or for several, as lists with one for each.

Source: vllm/entrypoints/offline_utils.py#L60-L135 (OfflineInferenceMixin) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from mini_vllm.errors import bad_value, show
from mini_vllm.inputs import PromptType
from mini_vllm.lora.request import LoRARequest
from mini_vllm.sampling_params import SamplingParams

Prompts = PromptType | Sequence[int | PromptType]
"""One prompt or several; a flat list of integers is one. (A type checker would not look into a list
of dicts for `Sequence[int] | Sequence[PromptType]`.)"""
LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None
"""The adapter of all prompts, or of each; None: the base."""
Params = SamplingParams | Sequence[SamplingParams] | None
"""For all prompts, or one for each; the model's own defaults if left out."""
Progress = bool | Callable[..., Any]
"""Whether to show a bar, or what makes it, such as ``functools.partial(tqdm, leave=False)``."""


def progress_bar(total: int, use_tqdm: Progress, unit: str = "prompts") -> Any:
    """A bar that counts ``total`` prompts, or what `unit` says."""
    if callable(use_tqdm):
        return use_tqdm(total=total, desc=unit)
    return tqdm(total=total, desc=unit, disable=not use_tqdm)


def as_list(prompts: Prompts) -> list[PromptType]:
    """One prompt as a list of one. A flat list of integers is one prompt of token ids.

    What is no prompt at all is one, too: it will be refused as any other bad prompt.
    """
    is_one = isinstance(prompts, str) or not isinstance(prompts, Sequence)
    is_one = is_one or (len(prompts) > 0 and all(isinstance(item, int) for item in prompts))
    return [prompts] if is_one else list(prompts)  # type: ignore[list-item, arg-type]


def with_processor_options(
    prompts: Prompts, mm_processor_kwargs: Mapping[str, Any] | None
) -> Prompts:
    """Prompts with options of the image processor; a prompt's own options go first."""
    if not mm_processor_kwargs:
        return prompts
    if not isinstance(mm_processor_kwargs, Mapping):
        raise bad_value("mm_processor_kwargs", mm_processor_kwargs, "it must be a dict")
    found: list[PromptType] = []
    for prompt in as_list(prompts):
        own: dict[str, Any] = (
            dict(prompt)
            if isinstance(prompt, Mapping)
            else {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}
        )
        options = {**mm_processor_kwargs, **(own.get("mm_processor_kwargs") or {})}
        found.append({**own, "mm_processor_kwargs": options})
    return found


def loras_per_prompt(
    prompts: Sequence[PromptType], lora_request: LoRARequests
) -> list[LoRARequest | None]:
    if lora_request is None or isinstance(lora_request, LoRARequest):
        return [lora_request] * len(prompts)
    is_list = isinstance(lora_request, Sequence) and not isinstance(lora_request, str)
    if not is_list or not all(isinstance(one, LoRARequest | None) for one in lora_request):
        raise ValueError(
            f"lora_request is {show(lora_request)}; pass a LoRARequest, or a list with one (or "
            "None) for each prompt"
        )
    if len(lora_request) != len(prompts):
        raise ValueError(
            f"{len(prompts)} prompts but {len(lora_request)} lora_requests; pass one for all, or "
            "one for each (None: the base)"
        )
    return list(lora_request)
