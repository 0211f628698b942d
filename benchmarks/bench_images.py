"""What pictures cost: encodings, time to the first token, and text on a model that sees.

A Qwen3-VL with random weights, six layers in the encoder and six in the decoder; a picture is over
80 % of the prompt. CPU time of the process counts, and of several rounds the best.

    python -m benchmarks.bench_images                   448 x 448 pixels, float32, one thread
    python -m benchmarks.bench_images --side 896 --rounds 5 --save

Five figures: the first token of a new picture (cold), of a known picture behind new text (encoder
cache), of a known prompt (prefix cache); encodings of ten questions about one picture; and a text
request on the model that sees against the same decoder alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm import LLM, SamplingParams

PAD, START, END = 1000, 1001, 1002
TEXT: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "dtype": "float32",
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [12, 10, 10]}
VISION = {
    "depth": 6,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_heads": 4,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 384,
    "num_position_embeddings": 1024,
    "deepstack_visual_indexes": [1, 3],
}
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 784, "longest_edge": 2**20},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}


def write_models(folder: Path) -> tuple[Path, Path]:
    """Folders of the model that sees and of its decoder alone; only shapes, no weights."""
    seeing, blind = folder / "seeing", folder / "blind"
    for each in (seeing, blind):
        each.mkdir()
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": TEXT | {"rope_parameters": ROPE},
        "vision_config": VISION,
        "image_token_id": PAD,
    }
    (seeing / "config.json").write_text(json.dumps(config), "utf-8")
    (seeing / "preprocessor_config.json").write_text(json.dumps(PROCESSOR), "utf-8")
    plain = TEXT | {"architectures": ["Qwen3ForCausalLM"], "rope_theta": 1e4}
    (blind / "config.json").write_text(json.dumps(plain), "utf-8")
    return seeing, blind


def load(folder: Path) -> LLM:
    return LLM(
        folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="float32",
        max_model_len=4096,
        max_num_batched_tokens=4096,
        num_gpu_blocks=1024,
        num_threads=1,
    )


def picture(seed: int, side: int) -> Image.Image:
    colors = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(colors)


def ask(image: Image.Image, question: int) -> dict[str, Any]:
    """A question of 16 tokens behind a picture."""
    words = [(31 * question + index) % 900 + 1 for index in range(16)]
    return {"prompt_token_ids": [START, PAD, END, *words], "multi_modal_data": {"image": image}}


def seconds_of(run: Callable[[], Any]) -> float:
    """CPU time of one call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def measure(side: int, rounds: int) -> dict[str, Any]:
    """All five figures."""
    with tempfile.TemporaryDirectory() as temporary:
        seeing, blind = (load(folder) for folder in write_models(Path(temporary)))
    first = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    best: dict[str, float] = {}

    def note(name: str, llm: LLM, prompt: Any, params: SamplingParams = first) -> None:
        took = seconds_of(lambda: llm.generate(prompt, params, use_tqdm=False))
        best[name] = min(best.get(name, took), took)

    text = [(7 * index) % 900 + 1 for index in range(256)]
    answer = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    images = seeing.engine.core.model_runner.images
    for number in range(rounds + 1):
        if number == 1:
            best.clear()  # the first round warms up
        image = picture(number, side)
        note("cold", seeing, ask(image, 0))
        note("known prompt", seeing, ask(image, 0))
        seeing.engine.core.reset_prefix_cache()
        note("known picture", seeing, ask(image, 1))
        for name, llm in (("text, seeing", seeing), ("text, blind", blind)):
            llm.engine.core.reset_prefix_cache()
            note(name, llm, text, answer)
    before = images.num_encoded
    for question in range(10):
        seeing.generate(ask(picture(99, side), question), first, use_tqdm=False)
    tokens = (side // 28) ** 2
    return {
        "picture_tokens": tokens,
        "share_of_prompt": round(tokens / (tokens + 18), 3),
        "seconds": {name: round(value, 4) for name, value in best.items()},
        "known_prompt_to_cold": round(best["known prompt"] / best["cold"], 3),
        "known_picture_to_cold": round(best["known picture"] / best["cold"], 3),
        "text_seeing_to_blind": round(best["text, seeing"] / best["text, blind"], 3),
        "encodings_of_ten_questions": images.num_encoded - before,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=448, help="pixels, a multiple of 28")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/images.json")
    options = parser.parse_args(argv)
    if options.side % 28 or not 28 <= options.side <= 1008:
        parser.error(f"--side is {options.side}; it must be a multiple of 28, at most 1008")
    figures = measure(options.side, options.rounds)
    figures |= {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    print(json.dumps(figures, indent=2))
    if options.save:
        write_text(ROOT / "benchmarks/results/images.json", json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
