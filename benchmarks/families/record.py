"""Ask transformers for the tokens of the tiny checkpoints; `tokens.json` keeps the answers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from benchmarks.families.tiny import FAMILIES, NUM_TOKENS, SHAPE, prompts, write

TOKENS = Path(__file__).with_name("tokens.json")
NOT_KEPT = ("transformers_version", "_name_or_path")


def read() -> dict[str, Any]:
    """What is recorded, by family."""
    answers: dict[str, Any] = json.loads(TOKENS.read_text()) if TOKENS.is_file() else {}
    return answers


def record(names: Sequence[str]) -> None:
    """Ask for these families anew; the others' answers stay."""
    from transformers.utils import logging

    answers = read()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    for name in names:
        answers[name] = ask(name)
        print(name, "smallest gap", answers[name]["gap"], flush=True)
        keep(answers)


def keep(answers: dict[str, Any]) -> None:
    """Write the answers, a family a line."""
    lines = [f" {json.dumps(name)}: {json.dumps(answers[name])}" for name in sorted(answers)]
    TOKENS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@torch.inference_mode()
def ask(name: str) -> dict[str, Any]:
    """What `tokens.json` holds of one family: config, shapes of the tensors in the file, greedy
    tokens in float32 for each prompt, and the smallest distance between the best two logits."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, more = FAMILIES[name]
    eager = {"dtype": torch.float32, "attn_implementation": "eager"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = AutoConfig.for_model(kind, **(SHAPE | more))
        AutoModelForCausalLM.from_config(config, **eager).save_pretrained(folder)
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
        saved = json.loads((folder / "config.json").read_text())
        saved = {key: value for key, value in saved.items() if key not in NOT_KEPT}
        write(folder, saved, shapes)
        model = AutoModelForCausalLM.from_pretrained(folder, **eager).eval()
        if hasattr(model.config, "_experts_implementation"):
            model.set_experts_implementation("eager")
        found = [greedy(model, prompt) for prompt in prompts()]
    return {
        "config": saved,
        "shapes": shapes,
        "tokens": [tokens for tokens, _ in found],
        "gap": round(min(gap for _, gap in found), 5),
    }


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    """transformers' continuation, and the smallest gap between the best two logits.

    The whole text is computed for each token: models call their caches differently.
    """
    tokens: list[int] = []
    gap = float("inf")
    for _ in range(NUM_TOKENS):
        result = model(torch.tensor([prompt + tokens]), use_cache=False)
        best = result.logits[0, -1].float().topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
    return tokens, gap
