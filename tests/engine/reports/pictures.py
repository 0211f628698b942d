"""Pictures as users send them, through the engine's own checks."""

from __future__ import annotations

import base64
import io
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from mini_vllm import bundled
from mini_vllm.config import MultiModalConfig
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.config import load_config
from mini_vllm.multimodal.chat import encode_chat, take_images
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


def is_read(given: dict[str, Any]) -> str:
    """ "read", or the words that refuse a picture whose data URL is written as `change` says."""
    file = io.BytesIO()
    Image.fromarray(np.arange(12 * 13 * 3, dtype="uint8").reshape(12, 13, 3)).save(file, "PNG")
    text = {
        "": lambda data: base64.b64encode(data).decode(),
        "lines": lambda data: base64.encodebytes(data).decode(),
        "no padding": lambda data: base64.b64encode(data + b"\0").decode().rstrip("="),
        "for URLs": lambda data: base64.urlsafe_b64encode(data + b"\xfb\xff\xbf" * 2).decode(),
        "codes": lambda data: quote(base64.b64encode(data).decode(), safe=""),
    }[given["change"]](file.getvalue())
    try:
        MediaURL(given["head"] + text).load(0, ()).load()
    except ValueError as error:
        return str(error)
    return "read"


def places_in_chat(given: dict[str, Any]) -> dict[str, Any]:
    """How many pictures a user's message has for the model, and its text with # for each."""
    tokenizer = load_tokenizer(bundled.path("storyteller-vision"))
    messages, images = take_images([{"role": "user", "content": given["content"]}])
    ids = encode_chat(tokenizer, messages[0]["content"], sees=True)
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert ids.count(pad) == len(images)
    pieces = [list(group) for is_pad, group in groupby(ids, lambda i: i == pad) if not is_pad]
    texts = [tokenizer.decode(piece, skip_special_tokens=True) for piece in pieces]
    starts = [""] if ids and ids[0] == pad else []
    return {"pictures": len(images), "text": "#".join(starts + texts)}
