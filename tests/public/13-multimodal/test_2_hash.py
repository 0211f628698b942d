"""13.2: what a picture is called."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from PIL import Image

from labkit.testing import expect
from mini_vllm.multimodal import hasher
from mini_vllm.multimodal.hasher import hash_image

PIXELS = bytes(range(24))


def grey(width: int, height: int) -> Image.Image:
    return Image.frombytes("L", (width, height), PIXELS)


def painted(shift: int) -> Image.Image:
    picture = Image.frombytes("P", (6, 4), PIXELS)
    picture.putpalette([(index + shift) % 256 for index in range(768)])
    return picture


def test_13_2_equal_pictures_have_one_name() -> None:
    """A name has 64 hexadecimal digits, and equal pictures have the same."""
    name = hash_image(grey(6, 4), {"size": 1})
    expect(bool(re.fullmatch("[0-9a-f]{64}", name)), True, at="64 hexadecimal digits", name=name)
    expect(hash_image(grey(6, 4).copy(), {"size": 1}), name, at="a copy of the picture")


def test_13_2_the_order_of_options_does_not_matter() -> None:
    """Options are equal if their keys and values are."""
    a, b = hash_image(grey(6, 4), {"x": 1, "y": 2}), hash_image(grey(6, 4), {"y": 2, "x": 1})
    expect(a, b, at="the same options in another order")


def transparent() -> Image.Image:
    picture = painted(0)
    picture.info["transparency"] = 3
    return picture


@pytest.mark.parametrize(
    ("what", "one", "other"),
    [
        ("shape: 6 x 4 and 4 x 6 with the same bytes", (grey(6, 4), {}), (grey(4, 6), {})),
        ("palette: other colors, the same indices", (painted(0), {}), (painted(9), {})),
        ("mode: grey values and indices", (grey(6, 4), {}), (painted(0), {})),
        ("transparency: one color is see-through", (painted(0), {}), (transparent(), {})),
        ("options: resized in another way", (grey(6, 4), {"size": 1}), (grey(6, 4), {"size": 2})),
    ],
)
def test_13_2_what_differs_has_another_name(what: str, one: tuple, other: tuple) -> None:
    """Shape, mode, palette, transparency and options count."""
    expect(hash_image(*one) != hash_image(*other), True, at=f"two names for two pictures ({what})")


def test_13_2_one_pixel_changes_the_name() -> None:
    """Pixels count."""
    changed = grey(6, 4)
    changed.putpixel((5, 3), 99)
    names = {hash_image(grey(6, 4), {}), hash_image(changed, {})}
    expect(len(names), 2, at="two names for two pictures (one pixel differs)")


def test_13_2_options_that_json_does_not_know() -> None:
    """A value of another type counts by its text, and not only by its type."""
    names = [hash_image(grey(6, 4), {"scale": Decimal(text)}) for text in ("1.5", "2.5", "1.5")]
    expect(names[0] != names[1], True, at="Decimal('1.5') and Decimal('2.5')")
    expect(names[0], names[2], at="Decimal('1.5'), made twice")


def test_13_2_pythons_hash_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hash()` is another one in every process. Here it says 7 to everything: names stay."""
    before = [hash_image(grey(6, 4), {"size": size}) for size in (1, 2)]
    monkeypatch.setattr(hasher, "hash", lambda _: 7, raising=False)
    after = [hash_image(grey(6, 4), {"size": size}) for size in (1, 2)]
    expect(after, before, at="names of two pictures while hash() says 7")


def test_13_2_where_a_picture_comes_from_does_not_count() -> None:
    """The same pixels out of two files, with notes beside them: the encoder sees one picture."""
    scanned = grey(6, 4)
    scanned.info |= {"dpi": (300, 300), "comment": "from the scanner"}
    expect(hash_image(scanned, {}), hash_image(grey(6, 4), {}), at="with notes and without")
