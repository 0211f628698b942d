"""Identifies an image by a hash of everything that changes its embeddings.

Requests whose images have the same hash share embeddings and KV blocks. So different images must
have different hashes: otherwise an answer would be about the image of another request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image


def hash_image(image: Image.Image, options: Mapping[str, Any]) -> str:
    """64 hexadecimal digits of SHA-256 over a picture and how it will be processed.

    The bytes of the pixels alone are not enough: 30 x 100 pixels and 100 x 30 may have the same
    ones, and so may two pictures whose palettes give them other colors. So a header goes before
    them: mode ("RGB", "L", "P", ...), size, palette, transparency and ``options``, with keys in
    sorted order so that equal options are equal text. An option of a type that JSON lacks counts by
    its ``str()``.

    Source: vllm/multimodal/hasher.py#L50-L162 (MultiModalHasher) @ v0.22.1
    """
    header = {
        "mode": image.mode,
        "size": image.size,
        "palette": image.getpalette(),
        "transparency": repr(image.info.get("transparency")),
        "options": options,
    }
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, default=str).encode())
    digest.update(image.tobytes())
    return digest.hexdigest()
