"""A narrow model in bfloat16 is computed in float32, also on a CPU that could do it in bfloat16.

Only its products take bfloat16 there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.kernels import native
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model import layers

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")
PARAMS = SamplingParams(temperature=0, max_tokens=12)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adapter": {"enable_lora": True},
    "adapter in its own dtype": {"enable_lora": True, "lora_dtype": "bfloat16"},
    **{
        method: {"speculative_config": {"method": method, "num_speculative_tokens": 3, **more}}
        for method, more in {
            "draft_model": {"model": "storyteller-draft"},
            "medusa": {"model": "storyteller-medusa"},
            "eagle": {"model": "storyteller-eagle"},
        }.items()
    },
}


@pytest.fixture(params=[False, True], ids=["without", "with"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether the CPU says that it has bfloat16 arithmetic."""
    capabilities = {"avx512_bf16": request.param}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    layers.compute_dtype.cache_clear()
    yield request.param
    layers.compute_dtype.cache_clear()


SEEN: dict[str, list[int]] = {}
"""Tokens that the first kind of CPU gave, for the second."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_cpu_gives_the_same_tokens(kind: str, arithmetic: bool) -> None:
    llm = LLM("storyteller", dtype="bfloat16", num_gpu_blocks=64, max_model_len=128, **KINDS[kind])
    model = llm.engine.core.model
    assert model.kv_cache_spec().dtype == torch.bfloat16
    assert model.dtype == (torch.float32 if arithmetic else torch.bfloat16)
    assert all(layer.call for layer in model.model.layers), "each layer is one call"
    name = bundled.ADAPTERS[0]
    adapter = LoRARequest(name, 1, str(bundled.adapter_path(name)))
    [output] = llm.generate(
        "Tell me a story about a fox.",
        PARAMS,
        use_tqdm=False,
        lora_request=adapter if "enable_lora" in KINDS[kind] else None,
    )
    tokens = list(output.outputs[0].token_ids)
    assert SEEN.setdefault(kind, tokens) == tokens


def test_every_cpu_sees_the_same_picture(arithmetic: bool) -> None:
    llm = LLM("storyteller-vision", dtype="bfloat16", num_gpu_blocks=64, max_model_len=128)
    prompt = {"prompt": "<|image_pad|> What is this?", "multi_modal_data": {"image": RED}}
    [output] = llm.generate(prompt, PARAMS, use_tqdm=False)
    tokens = list(output.outputs[0].token_ids)
    assert SEEN.setdefault("picture", tokens) == tokens


RED = Image.new("RGB", (64, 64), "red")
