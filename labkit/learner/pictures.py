"""`make run-13`: three small pictures, questions about them, and what the engine did for each."""

from __future__ import annotations

import time
from typing import Any

PICTURE_TOKENS = 24
PICTURES: dict[str, list[tuple[str, str, tuple[int, int]]]] = {
    "a sun": [("circle", "#ebcd32", (8, 8))],
    "a house": [("triangle", "#dc2828", (8, 8)), ("square", "#3250dc", (8, 24))],
    "a game": [("circle", "#141414", (8, 8)), ("square", "#28a03c", (24, 24))],
}
"""Shapes with color and center, in 32 x 32 pixels; colors as in `training/pictures.py`."""
PICTURE_QUESTIONS = ("What is in the picture?", "How many shapes are there?")
PICTURE_ENGINES: dict[str, dict[str, Any]] = {
    "roomy": {},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "no prefix cache": {"enable_prefix_caching": False, "max_num_seqs": 1},
}


def measure_pictures() -> dict[str, Any]:
    """Questions about three small pictures: with room for all, in chunks, and without a memory."""
    from mini_vllm import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=PICTURE_TOKENS)
    asked = [(name, question) for name in PICTURES for question in PICTURE_QUESTIONS]
    chats = [[{"role": "user", "content": picture_parts(*each)}] for each in asked]
    result: dict[str, Any] = {"tokens": [], "names": [], "errors": [], "said": [], "rows": []}
    begin = time.perf_counter()
    for title, options in PICTURE_ENGINES.items():
        llm = LLM("storyteller-vision", dtype="float32", max_model_len=128, **options)
        outputs = llm.chat(chats, params, use_tqdm=False)
        result["tokens"] += [list(output.outputs[0].token_ids) for output in outputs]
        result["names"] += [f"{name}, {question!r}, {title}" for name, question in asked]
        result["errors"] += [str(output.error) for output in outputs if output.error]
        if not result["said"]:
            texts = [output.outputs[0].text.strip() for output in outputs]
            for (name, question), text in zip(asked, texts, strict=True):
                if question == PICTURE_QUESTIONS[0]:
                    result["said"] += draw_in_text(name)
                result["said"].append(f"{question} {text}")
        stats = llm.engine.stats.summary()
        images = llm.engine.core.model_runner.images
        assert images is not None
        num_encoded = images.num_encoded
        cached = sum(output.num_cached_tokens for output in outputs)
        result["rows"] += [
            [f"{title}: steps", f"{stats['steps']:.0f}"],
            [f"{title}: encoded", f"{num_encoded}"],
            [f"{title}: cached tokens", f"{cached}"],
        ]
    return result | {"seconds": time.perf_counter() - begin}


def picture_of(name: str) -> Any:
    """One of :data:`PICTURES`, drawn."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (32, 32), "white")
    draw = ImageDraw.Draw(image)
    for shape, color, (x, y) in PICTURES[name]:
        box = (x - 6, y - 6, x + 6, y + 6)
        if shape == "circle":
            draw.ellipse(box, fill=color)
        elif shape == "square":
            draw.rectangle(box, fill=color)
        else:
            draw.polygon([(x, y - 6), (x - 6, y + 6), (x + 6, y + 6)], fill=color)
    return image


def picture_parts(name: str, question: str) -> list[dict[str, Any]]:
    """A question about a picture, as the parts of a message."""
    return [
        {"type": "image_pil", "image_pil": picture_of(name)},
        {"type": "text", "text": question},
    ]


def draw_in_text(name: str) -> list[str]:
    """A picture in letters: each shape by the first of its name, 16 to a line."""
    letters = {_rgb(color): shape[0] for shape, color, _ in PICTURES[name]}
    image = picture_of(name)
    return [f"{name}:"] + [
        "".join(letters.get(image.getpixel((x, y)), ".") for x in range(1, 32, 2))
        for y in range(2, 32, 4)
    ]


def _rgb(word: str) -> tuple[int, ...]:
    from PIL import ImageColor

    return ImageColor.getrgb(word)
