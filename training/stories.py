"""Short stories from templates: characters, a small problem, a helper, an end that fits.

A story is made of a `Cast` (who, where, what was lost) and a plot. A plot is a function that turns
a cast into a list of sentences; every sentence is picked among a few wordings, so the same plot
is rarely told twice in the same words, and what happens stays consistent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Being:
    """A character: `kind` ("fox"), `name` ("Pip") and the pronouns that fit."""

    kind: str
    name: str
    she: str
    her: str
    possessive: str

    @property
    def full(self) -> str:
        return f"{self.name} the {self.kind}"

    @property
    def She(self) -> str:
        return self.she.capitalize()

    @property
    def Possessive(self) -> str:
        return self.possessive.capitalize()


@dataclass(frozen=True)
class Cast:
    """Everything a plot needs, chosen once so that the story stays consistent."""

    hero: Being
    friend: Being
    place: str
    thing: str
    colour: str
    weather: str
    spot: str
    food: str


HEROES = (
    "fox", "rabbit", "bear", "mouse", "owl", "frog", "duck", "cat", "dog", "goat", "lion", "hen",
    "pig", "horse", "wolf", "girl", "boy", "robot", "dragon", "hedgehog",
)  # fmt: skip
STORY_NAMES = tuple(
    "Pip Mina Otto Lulu Bruno Tilly Momo Rusty Hazel Benny Daisy Finn Olive Max Nora Poppy Toby Ivy "
    "Gus Willa Coco Rufus Penny Jasper Luna Milo Ruby Felix Rosie Oscar Bella Leo Nina Sam Ella Tom "
    "Zoe Hugo Ada Ben".split()
)
PLACES = (
    "a quiet forest", "a green valley", "a small village", "a house by the sea", "an old farm",
    "a town on a hill", "a cottage near the river", "a warm meadow", "a tall tower",
    "a busy harbour",
)  # fmt: skip
THINGS = (
    "ball", "kite", "hat", "drum", "lamp", "boat", "book", "key", "bell", "scarf", "basket",
    "mirror", "flute", "map", "coat",
)  # fmt: skip
THING_COLOURS = ("red", "blue", "green", "yellow", "golden", "white", "purple", "orange")
WEATHERS = (
    ("sunny", "The sun was bright."), ("windy", "The wind was strong."),
    ("rainy", "Rain fell on the roofs."), ("snowy", "Snow lay on the ground."),
    ("foggy", "Fog lay over the fields."), ("warm", "The air was soft and warm."),
)  # fmt: skip
SPOTS = (
    "under a big tree", "behind the old mill", "next to the well", "under the bridge",
    "on top of the hill", "in the tall grass", "beside the pond", "inside a hollow log",
    "near the stone wall", "under the bed",
)  # fmt: skip
FOODS = (
    "apple pie", "warm soup", "fresh bread", "honey cake", "a bowl of berries", "hot tea",
    "cheese and nuts", "pancakes",
)  # fmt: skip

PRONOUNS = (("she", "her", "her"), ("he", "him", "his"))


def make_being(rng: Random, avoid: Being | None = None, kind: str = "", name: str = "") -> Being:
    """A character that differs from `avoid` in kind and in name; `kind` and `name` may be given."""
    kinds = [k for k in HEROES if avoid is None or k != avoid.kind]
    names = [n for n in STORY_NAMES if avoid is None or n != avoid.name]
    she, her, possessive = rng.choice(PRONOUNS)
    kind = kind or rng.choice(kinds)
    if kind == "girl":
        she, her, possessive = PRONOUNS[0]
    if kind == "boy":
        she, her, possessive = PRONOUNS[1]
    return Being(kind, name or rng.choice(names), she, her, possessive)


def make_cast(rng: Random, kind: str = "", name: str = "") -> Cast:
    """Choose hero, friend, place and things of one story."""
    hero = make_being(rng, kind=kind, name=name)
    return Cast(
        hero=hero,
        friend=make_being(rng, avoid=hero),
        place=rng.choice(PLACES),
        thing=rng.choice(THINGS),
        colour=rng.choice(THING_COLOURS),
        weather=rng.choice(WEATHERS)[0],
        spot=rng.choice(SPOTS),
        food=rng.choice(FOODS),
    )


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _opening(rng: Random, c: Cast) -> list[str]:
    h = c.hero
    first = rng.choice(
        (
            f"Once upon a time there was {_article(h.kind)} named {h.name}.",
            f"Once there was {_article(h.kind)} called {h.name}.",
            f"{h.full} lived in {c.place}.",
            f"In {c.place} lived {_article(h.kind)} named {h.name}.",
            f"One {c.weather} morning, {h.full} woke up early.",
        )
    )
    if c.place in first:
        return [first]
    home = rng.choice(
        (f"{h.She} lived in {c.place}.", f"{h.Possessive} home was in {c.place}.")
    )
    return [first, home]


def _weather(rng: Random, c: Cast) -> str:
    line = dict(WEATHERS)[c.weather]
    return rng.choice((f"It was a {c.weather} day.", line, f"That day it was {c.weather}."))


def _moral(rng: Random, choices: tuple[str, ...]) -> list[str]:
    return [rng.choice(choices)] if rng.random() < 0.7 else []


def plot_lost(rng: Random, c: Cast) -> list[str]:
    """The hero loses a thing; the friend helps to find it."""
    h, f, t = c.hero, c.friend, f"{c.colour} {c.thing}"
    return [
        *_opening(rng, c),
        rng.choice((f"{h.name} had {_article(t)} and loved it very much.",
                    f"{h.Possessive} best treasure was {_article(t)}.")),
        _weather(rng, c),
        rng.choice((f"But when {h.name} looked for the {c.thing}, it was gone.",
                    f"Then {h.she} saw that the {c.thing} was gone.",
                    f"But that day {h.she} could not find the {c.thing}.")),
        rng.choice((f"{h.name} was very sad.", f"{h.name} began to cry.",
                    f"{h.name} looked in every corner.")),
        rng.choice((f"{f.full} came by and asked what was wrong.",
                    f'"What is wrong?" asked {f.full}.',
                    f"{f.full} heard this and came to help.")),
        rng.choice((f'"I lost my {t}," said {h.name}.', f'"My {t} is gone," said {h.name}.')),
        rng.choice((f'"Let us look together," said {f.name}.', f'"I will help you," said {f.name}.')),
        rng.choice((f"They looked and looked, and at last they found it {c.spot}.",
                    f"They walked for an hour and found the {c.thing} {c.spot}.",
                    f"{f.name} looked {c.spot}, and there it was.")),
        rng.choice((f"{h.name} was so happy that {h.she} danced.",
                    f'"Thank you, {f.name}!" said {h.name}.',
                    f"{h.name} hugged {f.name}.")),
        rng.choice((f"Then they went home and ate {c.food}.",
                    f"In the evening they shared {c.food}.",
                    "From that day on they were best friends.")),
        *_moral(rng, ("A good friend helps you look.", "Two find more than one.")),
    ]  # fmt: skip


def plot_afraid(rng: Random, c: Cast) -> list[str]:
    """The hero fears something, tries it with the friend, and is brave."""
    h, f = c.hero, c.friend
    fear, act, proud = rng.choice(
        (
            ("the dark", "walked into the dark cave", "The cave was full of shining stones"),
            ("the water", "stepped into the cool lake", "The water was soft and clear"),
            ("high places", "climbed the tall tree", "From the top they could see the whole valley"),
            ("thunder", "listened to the storm", "The thunder was only a big drum in the sky"),
            ("strangers", "said hello to the new neighbour", "The neighbour gave them a warm smile"),
        )
    )
    return [
        *_opening(rng, c),
        rng.choice((f"{h.name} was kind, but {h.she} was afraid of {fear}.",
                    f"{h.name} had one problem: {h.she} was afraid of {fear}.")),
        rng.choice((f"All the others laughed at {h.her}.", f"{h.She} never told anyone.")),
        rng.choice((f"One day {f.full} said, \"I was afraid of {fear} too.\"",
                    f"One {c.weather} day {h.she} told {f.full} about it.")),
        rng.choice((f'"Take my hand," said {f.name}.', f'"We can do it together," said {f.name}.')),
        rng.choice((f"Slowly, very slowly, they {act}.", f"{h.name} took a deep breath, and they {act}.")),
        f"{proud}.",
        rng.choice((f"{h.name} began to laugh.", f'"It is beautiful!" said {h.name}.',
                    f"{h.name} was not afraid any more.")),
        rng.choice((f"That night {h.she} slept very well.",
                    f"At home {h.she} told everyone what {h.she} had done.",
                    f"Afterwards they ate {c.food} and were proud.")),
        *_moral(rng, ("To be brave is to try.", "Fear gets small when friends are near.")),
    ]  # fmt: skip


def plot_share(rng: Random, c: Cast) -> list[str]:
    """The hero has food, the friend is hungry; sharing comes back."""
    h, f = c.hero, c.friend
    return [
        *_opening(rng, c),
        rng.choice((f"One day {h.name} made {c.food}.", f"{h.name} was cooking {c.food}.")),
        rng.choice(("It smelled wonderful.", f"{h.She} wanted to eat it all alone.")),
        rng.choice((f"Then {f.full} knocked at the door.", f"Then {f.full} came along the road.")),
        rng.choice((f'"I am so hungry," said {f.name}.', f"{f.name} had not eaten all day.")),
        rng.choice((f"{h.name} thought for a moment.", f"{h.name} looked at the food and then at {f.name}.")),
        rng.choice((f'"Come in and eat with me," said {h.name}.', f'"There is enough for two," said {h.name}.')),
        rng.choice((f"They ate together and told stories until night.", f"They ate and laughed together.")),
        rng.choice((f"The next day {f.name} came back with {_article(c.colour)} {c.thing} as a gift.",
                    f"A week later {f.name} brought {h.her} {_article(c.colour)} {c.thing}.")),
        rng.choice((f'"This is for my good friend," said {f.name}.', f"{h.name} had never had such a fine {c.thing}.")),
        *_moral(rng, ("What you share comes back to you.", "Food tastes better with a friend.")),
    ]  # fmt: skip


def plot_build(rng: Random, c: Cast) -> list[str]:
    """The hero builds something, it breaks, the friend has an idea, it works."""
    h, f = c.hero, c.friend
    work, fail, idea, end = rng.choice(
        (
            ("a bridge over the river", "the bridge fell into the water", "use stones, not sticks", "walked over the river"),
            ("a small boat", "water came in through a hole", "close the hole with wax", "sailed across the lake"),
            ("a house of leaves", "the wind blew the house away", "build it with wood", "slept in a warm house"),
            ("a snow castle", "the castle melted in the sun", "build it in the shade", "played in the castle all week"),
            ("a flying machine", "the machine dropped into the hay", "make the wings longer", "flew over the fields"),
        )
    )
    return [
        *_opening(rng, c),
        rng.choice((f"One day {h.she} wanted to build {work}.", f"{h.name} had a big plan: {h.she} would build {work}.")),
        rng.choice((f"{h.She} worked all day.", f"{h.name} worked from morning to night.")),
        f"But {fail}.",
        rng.choice((f'"I will never do it," said {h.name}.', f"{h.name} sat down and was sad.")),
        rng.choice((f"{f.full} had watched it all.", f"{f.full} was passing by.")),
        f'"You could {idea}," said {f.name}.',
        rng.choice((f"{h.name} tried again, and {f.name} helped.", "So they began again, together.")),
        rng.choice((f"This time it worked, and they {end}.", f"Soon it was done, and they {end}.")),
        rng.choice((f"{h.name} was very proud.", f"In the evening they ate {c.food}.")),
        *_moral(rng, ("If it breaks, try again.", "A good idea is worth a lot of work.")),
    ]  # fmt: skip


def plot_race(rng: Random, c: Cast) -> list[str]:
    """Two race; the hero stops to help the friend; both win something."""
    h, f = c.hero, c.friend
    return [
        *_opening(rng, c),
        rng.choice((f"Every year there was a race to the {rng.choice(('old mill', 'lake', 'hill'))}.",
                    f"One day {f.full} said, \"Let us have a race!\"")),
        _weather(rng, c),
        rng.choice((f"{h.name} was fast and wanted to win.", f"{h.name} wanted the prize, {_article(c.colour)} {c.thing}.")),
        rng.choice(("They ran over fields and stones.", "Off they went, over the fields.")),
        rng.choice((f"Then {f.name} fell and hurt a leg.", f"Suddenly {f.name} slipped {c.spot}.")),
        rng.choice((f"{h.name} could have won.", f"The end of the road was near, but {h.name} stopped.")),
        rng.choice((f"{h.She} turned back and helped {f.name} up.", f"{h.name} ran back to help {f.her}.")),
        rng.choice(("They came in last, arm in arm.", "They walked to the end together.")),
        rng.choice(("Everyone cheered for them.", f"And yet everyone called {h.name} the winner.")),
        *_moral(rng, ("A friend is worth more than a prize.", "It is better to be kind than to be first.")),
    ]  # fmt: skip


def plot_secret(rng: Random, c: Cast) -> list[str]:
    """The hero finds a thing that belongs to the friend and gives it back."""
    h, f, t = c.hero, c.friend, f"{c.colour} {c.thing}"
    return [
        *_opening(rng, c),
        rng.choice((f"One day {h.name} found {_article(t)} {c.spot}.", f"On a walk {h.she} saw {_article(t)} {c.spot}.")),
        rng.choice((f'"How pretty it is," said {h.name}.', "It was the finest one in the world.")),
        rng.choice((f"{h.name} wanted to keep it.", f"{h.She} took it home and hid it.")),
        rng.choice((f"But then {h.she} met {f.full}, who was crying.", f"The next day {f.full} came and looked very sad.")),
        rng.choice((f'"I lost my {t}," said {f.name}.', f'"Have you seen my {t}?" asked {f.name}.')),
        rng.choice((f"{h.name} felt bad and gave it back.", f"{h.name} ran home and brought the {c.thing}.")),
        rng.choice((f'"You are honest," said {f.name}.', f"{f.name} jumped for joy.")),
        rng.choice((f"They sat down and shared {c.food}.", f"From that day on, they played with the {c.thing} together.")),
        *_moral(rng, ("Honest hands make good friends.", "It feels good to give back what is not yours.")),
    ]  # fmt: skip


Plot = Callable[[Random, Cast], list[str]]
PLOTS: dict[str, Plot] = {
    "lost": plot_lost,
    "afraid": plot_afraid,
    "share": plot_share,
    "build": plot_build,
    "race": plot_race,
    "secret": plot_secret,
}
SUMMARIES: dict[str, str] = {
    "lost": "{hero} lost a {thing}, and {friend} helped to find it.",
    "afraid": "{hero} was afraid, but with {friend} {she} became brave.",
    "share": "{hero} shared {food} with {friend} and got a {thing} as a gift.",
    "build": "{hero} built something that broke, and {friend} had the idea that made it work.",
    "race": "{hero} stopped in a race to help {friend}.",
    "secret": "{hero} found the {thing} of {friend} and gave it back.",
}


@dataclass(frozen=True)
class Story:
    """A finished story: who it is about, its text and its summary in one sentence."""

    hero: Being
    text: str
    summary: str


def make_story(rng: Random, kind: str = "", name: str = "", plot: str = "") -> Story:
    """Write one story; `kind`, `name` and `plot` are chosen when they are empty."""
    cast = make_cast(rng, kind, name)
    plot = plot or rng.choice(tuple(PLOTS))
    text = " ".join(PLOTS[plot](rng, cast))
    summary = SUMMARIES[plot].format(
        hero=cast.hero.full, friend=cast.friend.full, thing=cast.thing,
        food=cast.food, she=cast.hero.she,
    )  # fmt: skip
    return Story(cast.hero, text, summary)
