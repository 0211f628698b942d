"""Pictures as users send them, through the engine's own checks."""

from __future__ import annotations

import base64
import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mini_vllm import bundled
from mini_vllm.config import MultiModalConfig
from mini_vllm.model.config import load_config
from mini_vllm.multimodal.media import MediaURL
from mini_vllm.multimodal.processing import MultiModalProcessor


@cache
def _processor() -> MultiModalProcessor:
    folder = Path(bundled.path("storyteller-vision"))
    vision = load_config(folder).vision
    assert vision is not None
    return MultiModalProcessor(folder, vision, MultiModalConfig(), 512)


def pixels_of(given: dict[str, Any]) -> Any:
    """The RGB pixels that the model sees, row by row; or the words that refuse the picture.

    Given are the numbers that the file holds (`pixels`), its `dtype` and `mode`, perhaps its
    EXIF `orientation`, and the `door` it comes through: "url", or "object" for one of Pillow's.
    """
    image = Image.fromarray(np.array(given["pixels"], given.get("dtype", "uint8")))
    if "palette" in given:
        image.putpalette(given["palette"])  # makes it mode P
    options = {"transparency": bytes(given["alpha"])} if "alpha" in given else {}
    if "orientation" in given:
        exif = Image.Exif()
        exif[0x0112] = given["orientation"]
        options["exif"] = exif.tobytes()
    if "exif" in given:
        options["exif"] = given["exif"].encode()
    file = io.BytesIO()
    image.save(file, given.get("format", "PNG"), **options)
    sent: Any = Image.open(io.BytesIO(file.getvalue()))
    if given["door"] == "url":
        sent = MediaURL("data:image/png;base64," + base64.b64encode(file.getvalue()).decode())
    try:
        (seen,) = _processor().check({"image": sent})
    except ValueError as error:
        return str(error)
    assert seen.mode == "RGB"
    return np.asarray(seen).tolist()
