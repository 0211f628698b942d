"""What `make run-18` shows: four rows of squares, drawn while one request is served, and three
small models with random weights whose layers remember differently.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

SHOWN = (24, 26, 27, 33, 48)
"""Computed tokens at which the rows are drawn."""
PROMPTS = (3, 41, 70, 26)
TOKENS = 12
SETTINGS: dict[str, Any] = {
    "block_size": 16,
    "max_model_len": 128,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "dtype": "float32",
    "load_format": "dummy",
    "skip_tokenizer_init": True,
}
BASE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "head_dim": 32,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MODELS: dict[str, dict[str, Any]] = {
    "states (Qwen3.5)": BASE
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "rope_parameters": ROPE | {"partial_rotary_factor": 0.25},
    },
    "windows and sinks (gpt-oss)": BASE
    | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "intermediate_size": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "swiglu_limit": 7.0,
        "rope_parameters": ROPE,
    },
    "latents (DeepSeek-V3)": BASE
    | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 4,
        "rope_parameters": ROPE,
    },
}
"""Configs made up here: what such models say means nothing, and is the same each time."""
ABOUT_HYBRIDS = (
    f"one request under four kinds of layers, drawn; then {len(PROMPTS)} prompts, {TOKENS} tokens"
    " each, through three small models with random weights"
)


def measure_hybrids() -> dict[str, Any]:
    """The picture, and every block table behind it; then the models' tokens."""
    begin = time.perf_counter()
    result: dict[str, Any] = {"tokens": [], "names": [], "errors": [], "rows": [], "said": []}
    draw_rows(result)
    for title, config in MODELS.items():
        run_model(title, config, result)
    silence_a_head(result)
    return result | {"seconds": time.perf_counter() - begin}


def draw_rows(result: dict[str, Any]) -> None:
    """Serve the guide's request, and draw the four tables as it grows."""
    from labkit.reader.drawings import hybrid

    tables: list[int] = []
    for _, manager, request in hybrid.serve(
        list(hybrid.ROWS.values()), hybrid.PROMPT, hybrid.LENGTH, hybrid.POOL
    ):
        done = request.num_computed_tokens
        tables += [block for table in manager.get_group_block_ids("r") for block in table]
        if done in SHOWN:
            result["said"].append(f"after {done} tokens")
            rows = zip(hybrid.ROWS, hybrid.squares(manager, request), strict=True)
            for name, row in rows:
                drawn = row.replace(hybrid.USED, "▪") if name == "latent" else row
                result["said"].append(f"  {name:<10} {' '.join(drawn)}")
    result["said"].append("■ held  □ given back, still findable  · null")
    result["tokens"].append(tables)
    result["names"].append("the block tables of the picture, of all steps")


def run_model(title: str, config: dict[str, Any], result: dict[str, Any]) -> None:
    """One model, greedy; the last prompt is sent again, so that it may hit."""
    from mini_vllm import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    prompts = [
        {"prompt_token_ids": [(7 * i + 11 * number) % 500 + 1 for i in range(length)]}
        for number, length in enumerate(PROMPTS)
    ]
    with tempfile.TemporaryDirectory() as name:
        Path(name, "config.json").write_text(json.dumps(config), "utf-8")
        llm = LLM(name, **SETTINGS)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        outputs += llm.generate(prompts[-1:], params, use_tqdm=False)
    result["tokens"] += [list(output.outputs[0].token_ids) for output in outputs]
    result["names"] += [f"{title}, request {number}" for number in range(len(outputs))]
    result["errors"] += [str(output.error) for output in outputs if output.error]
    stats = llm.engine.stats.summary()
    result["rows"].append([f"{title}: steps", f"{stats['steps']:.0f}"])
    result["rows"].append([f"{title}: hit, sent again", f"{outputs[-1].num_cached_tokens} tokens"])


def silence_a_head(result: dict[str, Any]) -> None:
    """Two keys that fit badly, each in a split of its own: what a sink of 0 leaves of them."""
    import torch

    from mini_vllm.model.mixers.sinks import add_sink, merge_splits

    ones, scores = torch.ones(1, 1, 2, 4), torch.full((1, 1, 2), -2.0)
    left = add_sink(*merge_splits(ones, scores), torch.zeros(1))[0, 0, 0].item()
    result["rows"].append(["two poor keys and a sink: what is left", f"{left:.1%}"])
    result["tokens"].append([round(1000 * left)])
    result["names"].append("the head with a sink")
