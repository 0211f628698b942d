"""A small Qwen3-VL with random weights, in a folder as Hugging Face writes it, and pictures for it.

Random weights of the usual size make a model that repeats its last token whatever it sees; any
wrong engine would pass. So they are large, and `tests/engine/multimodal/test_parity.py` asks first
whether the answer depends on the pictures, on their positions and on DeepStack.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

PAD, START, END = 120, 121, 122
"""Token ids: a picture's placeholder, and what stands around it."""
VOCAB_SIZE = 128
STD = 0.25
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 64, "longest_edge": 8192},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def config() -> Any:
    from transformers import Qwen3VLConfig

    return Qwen3VLConfig(
        text_config={
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 1024,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": False,
            "dtype": "float32",
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 36,
            "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=PAD,
        vision_start_token_id=START,
        vision_end_token_id=END,
        tie_word_embeddings=False,
        dtype="float32",
    )


@cache
def reference() -> Any:
    """Hugging Face's model."""
    from transformers import Qwen3VLForConditionalGeneration

    torch.manual_seed(7)
    model = Qwen3VLForConditionalGeneration(config()).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if "embed_tokens" in name:
            weight.normal_(0, 1)
        elif "norm" not in name or name.endswith("bias"):
            weight.normal_(0, STD)
    return model


def save(folder: Path) -> Path:
    """Write the model; a folder that `LLM` can load."""
    reference().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def picture(seed: int, width: int = 24, height: int = 16) -> Image.Image:
    """Random blocks of color."""
    colors = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(colors).resize((width, height), Image.Resampling.NEAREST)


def words(seed: int, count: int) -> list[int]:
    """Tokens of text."""
    return np.random.default_rng(1000 + seed).integers(1, 100, count).tolist()


def prompt(*parts: int | list[int] | Image.Image) -> dict[str, Any]:
    """Text as token ids, and pictures between the tokens that stand around them."""
    token_ids: list[int] = []
    images: list[Image.Image] = []
    for part in parts:
        if isinstance(part, Image.Image):
            token_ids += [START, PAD, END]
            images.append(part)
        else:
            token_ids += [part] if isinstance(part, int) else part
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"image": images}}


@cache
def _processor() -> Any:
    from transformers import Qwen2VLImageProcessorPil

    options = {key: value for key, value in PROCESSOR.items() if key != "image_processor_type"}
    return Qwen2VLImageProcessorPil(**options)


def expected(request: dict[str, Any], max_tokens: int, **changes: Any) -> tuple[list[int], float]:
    """Greedy tokens of Hugging Face's model, and how near the second-best token ever came.

    Args:
        changes: replace inputs of the model, to ask whether they matter.
    """
    images = request["multi_modal_data"]["image"]
    made = _processor()(images=images, return_tensors="pt") if images else {}
    counts = [int(grid.prod()) // 4 for grid in made.get("image_grid_thw", ())]
    ids: list[int] = []
    for token in request["prompt_token_ids"]:
        ids += [PAD] * counts.pop(0) if token == PAD else [token]
    token_ids = torch.tensor([ids])
    inputs: dict[str, Any] = {
        "input_ids": token_ids,
        "attention_mask": torch.ones_like(token_ids),
        "mm_token_type_ids": (token_ids == PAD).int(),
        **made,
    }
    out = reference().generate(
        **(inputs | changes),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    scores = torch.stack(out.scores)[:, 0].topk(2).values
    gap = float((scores[:, 0] - scores[:, 1]).min())
    return out.sequences[0, len(ids) :].tolist(), gap
