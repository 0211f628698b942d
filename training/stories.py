"""Short stories from templates: characters, a small problem, a helper, an end that fits.

A plot is a list of beats; a beat is a few wordings of the same event, one of which is told. Names,
pronouns, places and things are drawn once per story (`_fields`), so what happens stays consistent
while the same plot is hardly ever told twice in the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

Beat = tuple[str, ...]  # wordings of one event; an empty wording leaves the event out


@dataclass(frozen=True)
class Being:
    """A character: what it is ("fox"), its name ("Pip") and the pronouns that fit."""

    kind: str
    name: str
    she: str
    her: str
    hers: str

    @property
    def full(self) -> str:
        return f"{self.name} the {self.kind}"

    @property
    def She(self) -> str:
        return self.she.capitalize()

    @property
    def Hers(self) -> str:
        return self.hers.capitalize()


@dataclass(frozen=True)
class Story:
    """A finished story: who and what it is about, its text, and the text in one sentence."""

    hero: Being
    topic: str
    text: str
    summary: str


HEROES = (
    "fox", "rabbit", "bear", "mouse", "owl", "frog", "duck", "cat", "dog", "goat", "lion", "hen",
    "pig", "horse", "wolf", "girl", "boy", "robot", "dragon", "hedgehog",
)  # fmt: skip
SHE_NAMES = tuple(
    "Mina Lulu Tilly Hazel Daisy Olive Nora Poppy Ivy Willa Coco Penny Luna Ruby Rosie Bella Nina "
    "Ella Zoe Ada Mia Clara Lena".split()
)
HE_NAMES = tuple(
    "Pip Otto Bruno Rusty Benny Finn Max Toby Gus Rufus Jasper Milo Felix Oscar Leo Sam Tom Hugo "
    "Ben Momo Theo Emil Karl".split()
)
PLACES = (
    "in a quiet forest", "in a green valley", "in a small village", "in a house by the sea",
    "on an old farm", "in a town on a hill", "in a cottage near the river", "in a warm meadow",
    "in a tall tower", "in a busy harbour", "at the edge of the desert", "on a little island",
)  # fmt: skip
THINGS = (
    "ball", "kite", "hat", "drum", "lamp", "boat", "book", "key", "bell", "scarf", "basket",
    "mirror", "flute", "map", "coat", "clock", "ring", "spoon",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "golden", "white", "purple", "silver")
WEATHERS: dict[str, Beat] = {
    "sunny": ("The sun was bright.", "It was a sunny day.", ""),
    "windy": ("The wind was strong.", "It was a windy day.", ""),
    "rainy": ("Rain fell on the roofs.", "It was a rainy day.", ""),
    "snowy": ("Snow lay on the ground.", "It was a snowy day.", ""),
    "foggy": ("Fog lay over the fields.", "It was a foggy day.", ""),
    "warm": ("The air was soft and warm.", "It was a warm day.", ""),
}
SPOTS = (
    "under a big tree", "behind the old mill", "next to the well", "under the bridge",
    "on top of the hill", "in the tall grass", "beside the pond", "inside a hollow log",
    "near the stone wall", "behind the barn", "at the bottom of the garden", "in an old boot",
)  # fmt: skip
FOODS = (
    "apple pie", "warm soup", "fresh bread", "honey cake", "sweet berries", "hot chocolate",
    "cheese and nuts", "pancakes", "plum jam", "roasted corn",
)  # fmt: skip

OPENING: tuple[Beat, ...] = (
    (
        "Once upon a time there was {a_hero} named {h.name}. {h.She} lived {place}.",
        "Once there was {a_hero} called {h.name}, who lived {place}.",
        "{h.full} lived {place}.",
        "{h.name} was {a_hero}. {h.Hers} home was {place}.",
        "One {weather} morning, {h.full} woke up early. {h.She} lived {place}.",
    ),
    (
        "", "", "{h.She} was small but very clever.", "Everyone liked {h.name}.",
        "{h.Hers} best friend was {f.full}.", "{h.She} was always curious.",
    ),
)  # fmt: skip

# fmt: off
# plot: (topic, summary, beats, variants); a variant adds fields of its own to the plot's templates
PLOTS: dict[str, tuple[str, str, tuple[Beat, ...], tuple[dict[str, str], ...]]] = {
    "lost": (
        "a lost {thing}",
        "{h.full} lost {h.hers} {colour} {thing}, and {f.full} helped to find it.",
        (
            ("{h.name} had {a_colour} {thing} and loved it very much.",
             "{h.Hers} best treasure was {a_colour} {thing}."),
            ("But one day the {thing} was gone.",
             "One {weather} day {h.she} could not find the {thing}.",
             "Then, one morning, {h.she} saw that the {thing} was gone."),
            ("{h.name} was very sad.", "{h.name} began to cry.",
             "{h.She} looked in every corner of the house.", "{h.She} looked high and low."),
            ("{f.full} came by and asked what was wrong.", '"What is wrong?" asked {f.full}.',
             "{f.full} heard this and came to help."),
            ('"I lost my {colour} {thing}," said {h.name}.',
             '"My {thing} is gone," said {h.name}.'),
            ('"Let us look together," said {f.name}.', '"I will help you," said {f.name}.',
             '"Where did you see it last?" asked {f.name}.'),
            ("They looked and looked, and at last they found it {spot}.",
             "They walked for an hour and found the {thing} {spot}.",
             "{f.name} looked {spot}, and there it was."),
            ("{h.name} was so happy that {h.she} danced.", '"Thank you, {f.name}!" said {h.name}.',
             "{h.name} hugged {f.name}."),
            ("Then they went home and ate {food}.", "In the evening they shared {food}.",
             "From that day on, they always played together."),
            ("", "A good friend helps you look.", "Two find more than one."),
        ),
        ({},),
    ),
    "brave": (
        "a brave {h.kind}",
        "{h.full} was afraid of {fear}, but with {f.full} {h.she} became brave.",
        (
            ("{h.name} was kind, but {h.she} was afraid of {fear}.",
             "{h.name} had one problem: {h.she} was afraid of {fear}."),
            ("The others laughed at {h.her}.", "{h.She} never told anyone.", ""),
            ('One day {f.full} said, "I was afraid of {fear} too."',
             "One {weather} day {h.she} told {f.full} about it."),
            ('"Take my hand," said {f.name}.', '"We can do it together," said {f.name}.',
             '"I will stay with you," said {f.name}.'),
            ("Slowly, very slowly, they {act}.", "{h.name} took a deep breath, and they {act}.",
             "So the two of them {act}."),
            ("{wonder}.",),
            ("{h.name} began to laugh.", '"It is beautiful!" said {h.name}.',
             "{h.name} was not afraid any more."),
            ("That night {h.she} slept very well.", "At home {h.she} told everyone about it.",
             "Afterwards they ate {food} and were proud."),
            ("", "To be brave is to try.", "Fear gets small when a friend is near."),
        ),
        (
            {"fear": "the dark", "act": "walked into the dark cave",
             "wonder": "The cave was full of shining stones"},
            {"fear": "deep water", "act": "stepped into the cool lake",
             "wonder": "The water was soft and clear"},
            {"fear": "high places", "act": "climbed the tall tower",
             "wonder": "From the top they could see the whole valley"},
            {"fear": "thunder", "act": "sat down and listened to the storm",
             "wonder": "The thunder was only a big drum in the sky"},
            {"fear": "strangers", "act": "said hello to the new neighbour",
             "wonder": "The neighbour gave them a warm smile"},
            {"fear": "the old bridge", "act": "walked over the old bridge",
             "wonder": "On the other side there were a thousand flowers"},
        ),
    ),
    "share": (
        "sharing",
        "{h.full} shared {food} with {f.full} and later got {a_colour} {thing} as a gift.",
        (
            ("One {weather} day {h.name} made {food}.",
             "One evening {h.she} sat down to eat {food}."),
            ("It smelled wonderful.", "{h.She} wanted to eat it all alone.", ""),
            ("Then {f.full} knocked at the door.", "Then {f.full} came along the road."),
            ('"I am so hungry," said {f.name}.', "{f.name} had not eaten all day."),
            ("{h.name} thought for a moment.", "{h.name} looked at the food and then at {f.name}.",
             ""),
            ('"Come in and eat with me," said {h.name}.',
             '"There is enough for two," said {h.name}.'),
            ("They ate together and told stories until night.", "They ate and laughed together."),
            ("The next day {f.name} came back with {a_colour} {thing} as a gift.",
             "A week later {f.name} brought {h.her} {a_colour} {thing}."),
            ('"This is for my good friend," said {f.name}.',
             "{h.name} had never had such a fine {thing}."),
            ("", "What you share comes back to you.", "Food tastes better with a friend."),
        ),
        ({},),
    ),
    "build": (
        "{work}",
        "{h.full} wanted to build {work}; it broke, but {f.full} had the idea that made it work.",
        (
            ("One day {h.she} wanted to build {work}.",
             "{h.name} had a big plan: {h.she} would build {work}."),
            ("{h.She} worked all day.", "{h.She} worked from morning to night.",
             "{h.She} did not rest for three days."),
            ("But {fail}.", "It was almost done, but then {fail}."),
            ('"I will never do it," said {h.name}.', "{h.name} sat down and was sad.",
             '"Oh no!" said {h.name}.'),
            ("{f.full} had watched it all.", "{f.full} was passing by."),
            ('"You could {idea}," said {f.name}.', '"Why do you not {idea}?" asked {f.name}.'),
            ("{h.name} tried again, and {f.name} helped.", "So they began again, together."),
            ("This time it worked, and they {end}.", "Soon it was done, and they {end}."),
            ("{h.name} was very proud.", "In the evening they ate {food}.", ""),
            ("", "If it breaks, try again.", "A good idea is worth a lot of work."),
        ),
        (
            {"work": "a bridge", "fail": "the bridge fell into the river",
             "idea": "use stones and not sticks", "end": "walked over the river"},
            {"work": "a boat", "fail": "water came in through a hole",
             "idea": "close the hole with wax", "end": "sailed across the lake"},
            {"work": "a tree house", "fail": "the wind blew the tree house away",
             "idea": "build it with wood", "end": "slept high above the ground"},
            {"work": "a snow castle", "fail": "the castle melted in the sun",
             "idea": "build it in the shade", "end": "played in the castle all week"},
            {"work": "a flying machine", "fail": "the machine dropped into the hay",
             "idea": "make the wings longer", "end": "flew over the fields"},
            {"work": "a clock", "fail": "the clock went backwards",
             "idea": "turn the wheels around", "end": "were never late again"},
        ),
    ),
    "race": (
        "a race",
        "{h.full} stopped in a race to help {f.full}.",
        (
            ("Every year there was a race to the {goal}.",
             'One day {f.full} said, "Let us have a race to the {goal}!"'),
            ("{weather_line}",),
            ("{h.name} was fast and wanted to win.",
             "{h.name} wanted the prize, {a_colour} {thing}."),
            ("They ran over fields and stones.", "Off they went, over the fields.",
             "Three, two, one, and off they ran."),
            ("Then {f.full} fell and hurt a leg.", "Suddenly {f.full} slipped {spot}."),
            ("{h.name} could have won, but {h.she} stopped.",
             "The {goal} was near, but {h.name} stopped."),
            ("{h.She} turned back and helped {f.name} up.", "{h.She} ran back to help {f.her}."),
            ("They came in last, arm in arm.", "They walked to the {goal} together."),
            ("Everyone cheered for them.", "And yet everyone called {h.name} the winner."),
            ("", "A friend is worth more than a prize.",
             "It is better to be kind than to be first."),
        ),
        ({"goal": "mill"}, {"goal": "lake"}, {"goal": "hill"}, {"goal": "bridge"}),
    ),
    "honest": (
        "an honest {h.kind}",
        "{h.full} found the {colour} {thing} of {f.full} and gave it back.",
        (
            ("One day {h.name} found {a_colour} {thing} {spot}.",
             "On a walk {h.she} saw {a_colour} {thing} {spot}."),
            ('"How pretty it is," said {h.name}.', "It was the finest {thing} in the world."),
            ("{h.name} wanted to keep it.", "{h.She} took it home and hid it.", ""),
            ("But then {h.she} met {f.full}, who was crying.",
             "The next day {f.full} came by and looked very sad."),
            ('"I lost my {colour} {thing}," said {f.name}.',
             '"Have you seen my {colour} {thing}?" asked {f.name}.'),
            ("{h.name} felt bad and gave it back.", "{h.name} ran home and brought the {thing}.",
             '"Here it is," said {h.name}.'),
            ('"You are honest," said {f.name}.', "{f.name} jumped for joy."),
            ("They sat down and shared {food}.",
             "From that day on, they played with the {thing} together."),
            ("", "Honest hands make good friends.",
             "It feels good to give back what is not yours."),
        ),
        ({},),
    ),
    "garden": (
        "a garden",
        "{h.full} planted a seed and waited, and at last it became {plant}.",
        (
            ("One spring day {f.full} gave {h.her} a tiny seed.",
             "{h.name} found a tiny seed {spot}."),
            ("{h.She} put it into the ground and gave it water.",
             "{h.She} planted it in the garden."),
            ("Every morning {h.she} looked, but nothing came up.",
             "A week went by, and nothing happened."),
            ('"It will never grow," said {h.name}.', "{h.name} wanted to give up."),
            ('"Be patient," said {f.full}.', '"Seeds need time," said {f.full}.'),
            ("So {h.she} gave it water and waited.", "So {h.she} waited through sun and rain.",
             "So {h.she} sang to it every evening."),
            ("And one morning there was a small green leaf.", "At last a green leaf came up."),
            ("In summer it had become {plant}.", "It grew and grew, until it was {plant}."),
            ("{h.name} and {f.name} sat in its shade and ate {food}.",
             "Everyone came to see it.", "{h.name} was glad that {h.she} had waited."),
            ("", "Good things take time.", "Who waits will see the flower."),
        ),
        ({"plant": "a tall sunflower"}, {"plant": "a cherry tree"}, {"plant": "a rose bush"},
         {"plant": "the largest pumpkin of all"}),
    ),
    "way": (
        "the way home",
        "{h.full} lost the way home, and {f.full} showed {h.her} how to get back.",
        (
            ("One {weather} day {h.name} walked too far from home.",
             "One {weather} day {h.she} followed a butterfly for a long time."),
            ("Soon {h.she} did not know the way back.",
             "When {h.she} looked around, all the trees looked the same."),
            ("It grew dark, and {h.name} was cold.", "Night came, and {h.name} was alone.",
             "{h.name} called, but nobody answered."),
            ("Then {h.she} saw a light {spot}.", "Then {h.she} heard a voice."),
            ("It was {f.full} with {a_colour} lamp.", "There sat {f.full} with a small fire."),
            ('"I am lost," said {h.name}.', '"Can you help me?" asked {h.name}.'),
            ('"{advice}," said {f.name}.',),
            ("They walked together until they saw the house.",
             "So they did, and soon they were home."),
            ("{h.name} gave {f.name} {food} and a warm bed.", "{h.Hers} mother was very happy.",
             "That night they drank tea and laughed."),
            ("", "It is good to ask for help.", "A light is brightest in the dark."),
        ),
        ({"advice": "We will follow the river"}, {"advice": "We will follow the stars"},
         {"advice": "Your feet left marks in the mud"}, {"advice": "I know every path here"}),
    ),
    "party": (
        "a birthday",
        "{h.full} thought that everyone had forgotten {h.hers} birthday, "
        "but {f.full} had made a party.",
        (
            ("It was {h.hers} birthday.", "Today {h.name} was one year older."),
            ("{weather_line}",),
            ("But nobody said a word about it.", "But nobody came to see {h.her}."),
            ("{h.name} went for a walk alone.", "{h.name} sat {spot} and felt lonely."),
            ('"Everyone has forgotten me," {h.she} said.', '"Nobody thinks of me," {h.she} said.'),
            ("Then {f.full} came running.", "Then {h.she} met {f.full}."),
            ('"Come quickly, I need your help," said {f.name}.',
             '"You must see this," said {f.name}.'),
            ("They ran to the old barn.", "They ran home."),
            ("When the door opened, all the friends began to sing.",
             '"Surprise!" cried all the friends.'),
            ("There was {food}, and {f.name} gave {h.her} {a_colour} {thing}.",
             "{h.She} got {a_colour} {thing}, and there was {food} for all."),
            ("It was the best birthday of all.", "{h.name} had never been so happy."),
        ),
        ({},),
    ),
}
# fmt: on


def article(word: str) -> str:
    """The word with "a" or "an" before it."""
    return f"an {word}" if word[0].lower() in "aeiou" else f"a {word}"


def make_being(rng: Random, avoid: Being | None = None, kind: str = "", name: str = "") -> Being:
    """A character that differs from `avoid` in kind and name; `kind` and `name` may be given."""
    kind = kind or rng.choice([k for k in HEROES if avoid is None or k != avoid.kind])
    is_she = rng.random() < 0.5
    if kind in ("girl", "boy"):
        is_she = kind == "girl"
    if name in SHE_NAMES or name in HE_NAMES:
        is_she = name in SHE_NAMES
    names = [n for n in (SHE_NAMES if is_she else HE_NAMES) if avoid is None or n != avoid.name]
    pronouns = ("she", "her", "her") if is_she else ("he", "him", "his")
    return Being(kind, name or rng.choice(names), *pronouns)


def _fields(rng: Random, kind: str, name: str) -> dict[str, object]:
    """Everything that a plot's templates may mention, drawn once per story."""
    hero = make_being(rng, kind=kind, name=name)
    colour, weather = rng.choice(COLOURS), rng.choice(tuple(WEATHERS))
    return {
        "h": hero,
        "f": make_being(rng, avoid=hero),
        "a_hero": article(hero.kind),
        "place": rng.choice(PLACES),
        "thing": rng.choice(THINGS),
        "colour": colour,
        "a_colour": article(colour),
        "weather": weather,
        "weather_line": rng.choice(WEATHERS[weather]),
        "spot": rng.choice(SPOTS),
        "food": rng.choice(FOODS),
    }


def make_story(rng: Random, kind: str = "", name: str = "") -> Story:
    """Write one story; `kind` and `name` of the hero are drawn when they are empty."""
    topic, summary, beats, variants = PLOTS[rng.choice(tuple(PLOTS))]
    fields = _fields(rng, kind, name) | rng.choice(variants)
    told = [rng.choice(beat).format(**fields) for beat in (*OPENING, *beats)]
    hero = fields["h"]
    assert isinstance(hero, Being)
    text = " ".join(sentence for sentence in told if sentence)
    return Story(hero, topic.format(**fields), text, summary.format(**fields))
