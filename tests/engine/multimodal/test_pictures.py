"""A picture reaches the model as a viewer shows it: upright, and in RGB of 8 bits."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image

from mini_vllm.config import MultiModalConfig
from mini_vllm.multimodal.media import MediaURL
from mini_vllm.multimodal.processing import MultiModalProcessor
from tests.engine.reports import pictures

ORIENTATION = 0x0112
COLORS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), "uint8")


@pytest.fixture(scope="module")
def processor() -> MultiModalProcessor:
    return pictures._processor()


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def sent(processor: MultiModalProcessor, data: bytes) -> Any:
    (seen,) = processor.check({"image": MediaURL(url_of(data))})
    assert seen.mode == "RGB"
    return np.asarray(seen)


def given(processor: MultiModalProcessor, data: bytes) -> Any:
    (seen,) = processor.check({"image": Image.open(io.BytesIO(data))})
    assert seen.mode == "RGB"
    return np.asarray(seen)


def shown(data: bytes) -> Any:
    return np.asarray(load_image(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_what_transformers_shows(
    processor: MultiModalProcessor, orientation: int, kind: str
) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = file_of(Image.fromarray(COLORS), kind, exif=exif)
    for door in (sent, given):
        np.testing.assert_array_equal(door(processor, data), shown(data))
    assert shown(data).shape == ((4, 6, 3) if orientation < 5 else (6, 4, 3))


def test_two_orientations_are_two_pictures_with_two_names(processor: MultiModalProcessor) -> None:
    big = Image.fromarray(COLORS).resize((64, 64))
    names = []
    for orientation in (1, 3):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        image = MediaURL(url_of(file_of(big, exif=exif)))
        token = processor.vision.image_token_id
        names.append(processor.process([token], {"image": image})[1][0].identifier)
    assert len(set(names)) == 2


@pytest.mark.parametrize("orientation", [0, 9, "6"])
def test_an_orientation_that_is_none_counts_as_upright(
    processor: MultiModalProcessor, orientation: Any
) -> None:
    image = Image.fromarray(COLORS)
    image.getexif()[ORIENTATION] = orientation
    np.testing.assert_array_equal(np.asarray(processor.check({"image": image})[0]), COLORS)


@pytest.mark.parametrize("exif", [b"Exif\x00\x00XX*\x00garbage", b"Exif\x00\x00", b"II*\x00\xff"])
def test_broken_metadata_does_not_cost_the_picture(
    processor: MultiModalProcessor, exif: bytes
) -> None:
    data = file_of(Image.fromarray(COLORS), exif=exif)
    for door in (sent, given):
        np.testing.assert_array_equal(door(processor, data), COLORS)


@pytest.mark.parametrize(("mode", "kind"), [
    ("1", "PNG"), ("L", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"), ("YCbCr", "JPEG"), ("RGBX", "TIFF"),
])  # fmt: skip
def test_other_modes_are_what_transformers_shows(
    processor: MultiModalProcessor, mode: str, kind: str
) -> None:
    data = file_of(Image.fromarray(COLORS).convert(mode), kind)
    for door in (sent, given):
        np.testing.assert_array_equal(door(processor, data), shown(data))


def test_an_animation_is_its_first_picture(processor: MultiModalProcessor) -> None:
    first, second = (Image.fromarray(pixels).convert("P") for pixels in (COLORS, 255 - COLORS))
    for kind in ("GIF", "PNG"):
        data = file_of(first, kind, save_all=True, append_images=[second], duration=100)
        np.testing.assert_array_equal(sent(processor, data), np.asarray(first.convert("RGB")))


@pytest.mark.parametrize(("kind", "dtype"), [
    ("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2"), ("PPM", "<u2"),
])  # fmt: skip
def test_sixteen_bits_are_scaled_in_every_format(
    processor: MultiModalProcessor, kind: str, dtype: str
) -> None:
    shades = np.linspace(0, 65535, 256).reshape(16, 16).astype(dtype)
    image = Image.fromarray(shades)
    data = file_of(image, kind)
    eight = np.arange(256).reshape(16, 16, 1).repeat(3, axis=2)
    for door in (sent, given):
        np.testing.assert_array_equal(door(processor, data), eight)


def transparent(mode: str) -> tuple[Image.Image, dict[str, Any]]:
    """The same grey picture, whose left half lets all through, in another mode."""
    grey = Image.fromarray(np.full((4, 6), 70, "uint8"))
    grey.paste(20, (0, 0, 3, 4))
    alpha = Image.new("L", (6, 4), 255)
    alpha.paste(0, (0, 0, 3, 4))
    match mode:
        case "LA":
            return Image.merge("LA", (grey, alpha)), {}
        case "RGBA":
            return Image.merge("RGBA", (grey, grey, grey, alpha)), {}
        case "P":
            palette = grey.copy()
            palette.putpalette([value for shade in range(256) for value in (shade,) * 3])
            return palette, {"transparency": 20}
        case "I;16":
            wide = Image.fromarray(np.asarray(grey).astype("<u2") * 257)
            return wide, {"transparency": 20 * 257}
    return grey.convert(mode), {"transparency": 20 if mode == "L" else (20, 20, 20)}


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB", "I;16"])
def test_what_is_transparent_lies_on_white_whatever_holds_its_alpha(
    processor: MultiModalProcessor, mode: str
) -> None:
    image, options = transparent(mode)
    data = file_of(image, **options)
    expected = np.full((4, 6, 3), 70)
    expected[:, :3] = 255
    np.testing.assert_array_equal(sent(processor, data), expected)
    expected[:, :3] = 20  # a picture of the caller's own: the color that is stored
    np.testing.assert_array_equal(given(processor, data), expected)


@pytest.mark.parametrize("mode", ["I", "F", "La"])
def test_numbers_without_a_scale_are_refused_by_their_mode(
    processor: MultiModalProcessor, mode: str
) -> None:
    with pytest.raises(ValueError, match=f"image 0 has mode '{mode}'"):
        processor.check({"image": Image.new(mode, (4, 4))})


def test_files_of_the_folder_that_was_named_and_no_others(tmp_path: Path) -> None:
    inside, outside = tmp_path / "pictures", tmp_path / "secret"
    for folder in (inside, outside):
        folder.mkdir()
        exif = Image.Exif()
        exif[ORIENTATION] = 6
        (folder / "a b.png").write_bytes(file_of(Image.fromarray(COLORS), exif=exif))
    (inside / "link.png").symlink_to(outside / "a b.png")
    config = MultiModalConfig(allowed_local_media_path=str(inside))
    whole = pictures._processor()
    processor = MultiModalProcessor(whole.folder, whole.vision, config, 512)

    def seen(url: str) -> Any:
        return np.asarray(processor.check({"image": MediaURL(url)})[0])

    upright = np.rot90(COLORS, -1)
    np.testing.assert_array_equal(seen((inside / "a b.png").as_uri()), upright)
    for url in (
        (outside / "a b.png").as_uri(),
        (inside / "link.png").as_uri(),
        f"file://{inside}/../secret/a%20b.png",
        f"file://{inside}2/a.png",
    ):
        with pytest.raises(ValueError, match=r"image 0: .* is not in .*allowed-local-media-path"):
            seen(url)
    for name in ("missing.png", "."):
        with pytest.raises(ValueError, match=r"image 0: .* cannot be read"):
            seen(f"file://{inside}/{name}")
    with pytest.raises(ValueError, match="it must be an existing folder"):
        MultiModalConfig(allowed_local_media_path=str(inside / "a b.png"))
