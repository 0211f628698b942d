"""Converts an image to what a viewer shows: upright, in 8-bit RGB. Other images are refused.

Pillow returns an image as it is stored. A phone stores it unrotated, with its orientation in EXIF
data; a scanner stores 16-bit grey, which `convert("RGB")` would clip at 255. Images are converted
before anything else is done, so their size, hash and patches are those of the image that a person
sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.extras import from_extra

with from_extra(
    "vision", "a picture in a prompt"
):  # so others import this module where they use it
    from PIL import ExifTags, Image
    from PIL import UnidentifiedImageError as UnidentifiedImageError

TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientations, with the operation that makes each upright; 1 is upright already."""
SHADES_OF_16_BITS = 65535
UNSCALED = {"I": "32-bit integers", "F": "32-bit floats"}
"""Modes for which no values of black and white are defined."""


def upright(image: Image.Image) -> Image.Image:
    """The image, rotated by its EXIF orientation. One with broken metadata stays as it is.

    Like `load_image` of transformers. The image must be decoded before: some decoders rotate it
    themselves and remove the orientation.
    """
    try:
        orientation: Any = image.getexif().get(ExifTags.Base.Orientation)
        turn = TURN.get(orientation)
    except Exception:  # cameras write broken metadata, and a parser may raise anything
        return image
    return image if turn is None else image.transpose(turn)


def as_rgb(index: int, image: Image.Image, on_white: bool) -> Image.Image:
    """The image in 8-bit RGB.

    Args:
        index: of the image in its prompt, for error messages.
        on_white: draw it on a white background; otherwise transparent pixels get their stored
            color, as in image processors.

    Raises:
        ValueError: for a mode without a defined scale, or that Pillow cannot convert.

    Source: vllm/multimodal/image.py#L30-L36 (convert_image_mode) @ v0.22.1. Difference: there only
    the mode RGBA is drawn on white, and 16 bits are clipped.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        image = _from_16_bits(image)
    if image.mode in UNSCALED:
        raise ValueError(
            f"image {index} has mode {image.mode!r}, {UNSCALED[image.mode]}; its values "
            "for black and white are not defined; scale it to 0..255 and convert it to 'L' or 'RGB'"
        )
    try:
        if on_white and image.has_transparency_data:
            return _on_white(image.convert("RGBA"))
        return image if image.mode == "RGB" else image.convert("RGB")
    except ValueError as error:
        raise ValueError(
            f"image {index} has mode {image.mode!r}: {error}; convert it to 'RGB'"
        ) from error


def _from_16_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8-bit grey: 65535 becomes 255. A transparent color becomes alpha."""
    shades = np.asarray(image).astype(np.uint32)
    scaled = (shades * 255 + SHADES_OF_16_BITS // 2) // SHADES_OF_16_BITS
    grey = Image.fromarray(scaled.astype("u1"))
    key = image.info.get("transparency")
    if key is None:
        return grey
    return Image.merge("LA", (grey, Image.fromarray((shades != key).astype("u1") * 255)))


def _on_white(image: Image.Image) -> Image.Image:
    paper = Image.new("RGB", image.size, (255, 255, 255))
    paper.paste(image, mask=image.getchannel("A"))
    return paper
