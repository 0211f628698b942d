"""Procedurally drawn pictures with questions about them: all that storyteller-vision has ever seen.

A picture has 32 x 32 pixels and is white. One to three of its quadrants hold a shape, whose place
and size vary a little. What a picture shows follows from its seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from PIL import Image, ImageDraw

from training.corpus import Exchange

SIZE = 32
SHAPES = ("circle", "square", "triangle", "cross")
COLORS = {
    "red": (220, 40, 40),
    "blue": (50, 80, 220),
    "green": (40, 160, 60),
    "yellow": (235, 205, 50),
    "black": (20, 20, 20),
    "orange": (245, 140, 30),
}
COUNTS = ("no", "one", "two", "three")


@dataclass(frozen=True)
class Item:
    """One shape; quadrants are 0 1 above 2 3."""

    shape: str
    color: str
    quadrant: int

    def __str__(self) -> str:
        return f"{self.color} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """A picture and what is in it, by quadrant."""

    image: Image.Image
    items: tuple[Item, ...]


def article(text: str) -> str:
    """`text` with "a" or "an" before it."""
    return f"{'an' if text[0] in 'aeiou' else 'a'} {text}"


def draw_scene(rng: Random) -> Scene:
    """A picture with one to three shapes."""
    quadrants = sorted(rng.sample(range(4), rng.randint(1, 3)))
    items = tuple(Item(rng.choice(SHAPES), rng.choice(list(COLORS)), q) for q in quadrants)
    image = Image.new("RGB", (SIZE, SIZE), "white")
    for item in items:
        _draw(ImageDraw.Draw(image), item, rng)
    return Scene(image, items)


def _draw(draw: ImageDraw.ImageDraw, item: Item, rng: Random) -> None:
    row, column = divmod(item.quadrant, 2)
    x, y = (16 * place + 8 + rng.randint(-1, 1) for place in (column, row))
    radius = rng.randint(5, 7)
    box = (x - radius, y - radius, x + radius, y + radius)
    color = COLORS[item.color]
    if item.shape == "circle":
        draw.ellipse(box, fill=color)
    elif item.shape == "square":
        draw.rectangle(box, fill=color)
    elif item.shape == "triangle":
        draw.polygon([(x, box[1]), (box[0], box[3]), (box[2], box[3])], fill=color)
    else:
        draw.rectangle((x - 2, box[1], x + 2, box[3]), fill=color)
        draw.rectangle((box[0], y - 2, box[2], y + 2), fill=color)


def describe(scene: Scene) -> str:
    """A sentence that says everything: "A yellow square above a black circle."."""
    names = [article(str(item)) for item in scene.items]
    if len(names) == 2:
        (row, column), (other_row, other_column) = (
            divmod(item.quadrant, 2) for item in scene.items
        )
        link = "and"
        if row == other_row:
            link = "left of"
        elif column == other_column:
            link = "above"
        text = f"{names[0]} {link} {names[1]}"
    else:
        text = ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1]
    return text[0].upper() + text[1:] + "."


def what(scene: Scene, rng: Random) -> Exchange:
    answer = describe(scene)
    return Exchange("What is in the picture?", answer, answer)


def how_many(scene: Scene, rng: Random) -> Exchange:
    count = COUNTS[len(scene.items)]
    answer = "There is one shape." if count == "one" else f"There are {count} shapes."
    return Exchange("How many shapes are there?", answer, answer)


def which_color(scene: Scene, rng: Random) -> Exchange:
    """About a shape that is there once; else how many there are."""
    shapes = [item.shape for item in scene.items]
    known = [item for item in scene.items if shapes.count(item.shape) == 1]
    if not known:
        return how_many(scene, rng)
    item = rng.choice(known)
    answer = f"The {item.shape} is {item.color}."
    return Exchange(f"What color is the {item.shape}?", answer, answer)


def which_shape(scene: Scene, rng: Random) -> Exchange:
    """About a color that is there once; else how many there are."""
    colors = [item.color for item in scene.items]
    known = [item for item in scene.items if colors.count(item.color) == 1]
    if not known:
        return how_many(scene, rng)
    item = rng.choice(known)
    answer = f"The {item.color} shape is a {item.shape}."
    return Exchange(f"Which shape is {item.color}?", answer, answer)


QUESTIONS = (what, how_many, which_color, which_shape)
WEIGHTS = (40, 15, 25, 20)


def exchange(scene: Scene, rng: Random) -> Exchange:
    """A question about a picture, with its answer."""
    return rng.choices(QUESTIONS, WEIGHTS)[0](scene, rng)
