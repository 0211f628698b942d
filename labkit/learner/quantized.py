"""The bundled model in every scheme, side by side: bytes, divergence, greedy agreement, speed and a
text."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

TEXT = (
    "Once upon a time there was a small fox who lived at the edge of a big forest. One day the fox "
    "met a bear. The bear was hungry and sad, so the fox shared his bread with him. "
)
PROMPT = "One day the fox met a bear"
MAX_TOKENS = 32
SCHEMES: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "original": (None, {}),
    "int8 cache": (None, {"kv_cache_dtype": "int8_per_token_head"}),
    "fp8 cache": (None, {"kv_cache_dtype": "fp8_per_token_head"}),
    "W8A16": ({"scheme": "W8A16"}, {}),
    "W8A8": ({"scheme": "W8A8"}, {}),
    "W8A8, Smooth": ({"scheme": "W8A8", "algorithm": "smoothquant"}, {}),
    "FP8_DYNAMIC": ({"scheme": "FP8_DYNAMIC"}, {}),
    "FP8_BLOCK": ({"scheme": "FP8_BLOCK"}, {}),
    "W4A16": ({"scheme": "W4A16", "group_size": 32}, {}),
    "W4A16_ASYM": ({"scheme": "W4A16_ASYM", "group_size": 32}, {}),
    "W4A16, AWQ": ({"scheme": "W4A16", "group_size": 32, "algorithm": "awq"}, {}),
    "W4A16, GPTQ": ({"scheme": "W4A16", "group_size": 32, "algorithm": "gptq"}, {}),
}
"""By name: arguments of `oneshot` (None: the checkpoint as it is), and of `LLM`."""


def measure_schemes() -> dict[str, Any]:
    """Each scheme once, greedy, in float32, on one thread; what `make run-09` shows."""
    import torch

    from mini_vllm import LLM, SamplingParams, bundled
    from mini_vllm.quantization import oneshot
    from mini_vllm.quantization.metrics import kl_divergence, top1_agreement
    from mini_vllm.quantization.oneshot.calibrate import run_prompt

    torch.set_num_threads(1)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    told = SamplingParams(temperature=1.0, seed=0, n=16, max_tokens=128)
    llm = LLM("storyteller", dtype="float32", max_model_len=256, num_gpu_blocks=512)
    stories = llm.generate(["Once upon a time"], told, use_tqdm=False)[0].outputs
    calibration = [list(story.token_ids) for story in stories]  # not the text that is measured
    rows: list[list[str]] = [["scheme", "  MiB       KL    same  tok/s"]]
    tokens: list[list[int]] = []
    notes: list[str] = []
    original, seconds = None, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (how, options)) in enumerate(SCHEMES.items()):
            path = bundled.path("storyteller")
            if how is not None:
                dataset = calibration if "algorithm" in how else None
                path = oneshot("storyteller", Path(folder, str(number)), dataset=dataset, **how)
            llm = LLM(str(path), dtype="float32", max_model_len=256, num_gpu_blocks=64, **options)
            llm.generate([PROMPT], params, use_tqdm=False)  # once, to warm up
            begin = time.perf_counter()
            output = llm.generate([TEXT + PROMPT], params, use_tqdm=False)[0].outputs[0]
            took = time.perf_counter() - begin
            model = llm.engine.core.model
            logits = run_prompt(model, llm.tokenizer.encode(TEXT))
            original = logits if original is None else original
            divergence = kl_divergence(original, logits).mean().item()
            size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
            agreement, speed = top1_agreement(original, logits), MAX_TOKENS / took
            figures = f"{size / 2**20:5.2f}  {divergence:7.5f}  {agreement:6.1%}  {speed:5.0f}"
            rows.append([name, figures])
            notes.append(f"{name:12} {output.text!r}")
            tokens.append([int(token) for token in output.token_ids])
            seconds += took
    names = [f"the text of {name!r}" for name in SCHEMES]
    result = {"tokens": tokens, "names": names, "errors": [], "rows": rows, "notes": notes}
    return result | {"seconds": seconds}
