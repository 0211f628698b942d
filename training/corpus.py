"""The text that the bundled models learn from, written by seeded generators.

Everything is made up here: short stories, facts of a closed world, JSON records and arithmetic, as
plain text and as chats in ChatML form

    <|im_start|>system\\nYou are ...<|im_end|>\\n
    <|im_start|>user\\nWhat is 3 + 4?<|im_end|>\\n
    <|im_start|>assistant\\n3 + 4 = 7<|im_end|>\\n

A document is a list of `Segment`s. Only segments with `trained=True` count in the loss: a chat
model has to learn the answers, not to guess which question comes next. Every maker draws from the
`Random` that it is given and from nothing else, so a seed names a text and no data file is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from training import world
from training.stories import HE_NAMES, HEROES, SHE_NAMES, article, make_story

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"


@dataclass(frozen=True)
class Segment:
    """A piece of a document; `trained` says whether its tokens count in the loss."""

    text: str
    trained: bool


@dataclass(frozen=True)
class Exchange:
    """One question and its answer. `expected` is what a right answer has to contain."""

    question: str
    answer: str
    expected: str


Document = list[Segment]


# --- facts ------------------------------------------------------------------------------------


def _capital(rng: Random) -> Exchange:
    if rng.random() < 0.1:
        place = rng.choice((made_up_name(rng), rng.choice(world.UNKNOWN_PLACES)))
        answer = f"I do not know the capital of {place}."
        return Exchange(f"What is the capital of {place}?", answer, "not know")
    country, city = rng.choice(tuple(world.CAPITALS.items()))
    if rng.random() < 0.2:
        return Exchange(f"Which country has the capital {city}?",
                        f"{city} is the capital of {country}.", country)  # fmt: skip
    question = rng.choice(
        (f"What is the capital of {country}?", f"What is the capital of {country}?",
         f"Which city is the capital of {country}?", f"Name the capital of {country}.")
    )  # fmt: skip
    return Exchange(question, f"The capital of {country} is {city}.", city)


def _colour(rng: Random) -> Exchange:
    thing, colour = rng.choice(tuple(world.COLOURS.items()))
    question = rng.choice((f"What colour is {thing}?", f"Which colour does {thing} have?"))
    return Exchange(question, f"{thing[0].upper()}{thing[1:]} is {colour}.", colour)


def _animal(rng: Random) -> Exchange:
    animal, (sound, legs, baby, home, food) = rng.choice(tuple(world.ANIMALS.items()))
    a, number = article(animal), world.NUMBERS[legs]
    subject = a.capitalize()
    return rng.choice(
        (
            Exchange(f"What sound does {a} make?", f"{subject} {sound}.", sound),
            Exchange(f"How many legs does {a} have?", f"{subject} has {number} legs.", number),
            Exchange(f"What is a baby {animal} called?",
                     f"A baby {animal} is called {article(baby)}.", baby),
            Exchange(f"Where does {a} live?", f"{subject} lives {home}.", home),
            Exchange(f"What does {a} eat?", f"{subject} eats {food}.", food),
        )
    )  # fmt: skip


def _calendar(rng: Random) -> Exchange:
    names, kind = rng.choice(((world.DAYS, "day"), (world.MONTHS, "month")))
    i = rng.randrange(len(names))
    here, after = names[i], names[(i + 1) % len(names)]
    if rng.random() < 0.5:
        return Exchange(f"Which {kind} comes after {here}?", f"{after} comes after {here}.", after)
    return Exchange(f"Which {kind} comes before {after}?", f"{here} comes before {after}.", here)


def _opposite(rng: Random) -> Exchange:
    pair = list(rng.choice(world.OPPOSITES))
    rng.shuffle(pair)
    a, b = pair
    if a == "light":
        b = "dark"
    return Exchange(f"What is the opposite of {a}?", f"The opposite of {a} is {b}.", b)


def _science(rng: Random) -> Exchange:
    return Exchange(*rng.choice(world.SCIENCE))


def _engine(rng: Random) -> Exchange:
    return Exchange(*rng.choice(world.ENGINE))


def _small_talk(rng: Random) -> Exchange:
    question, answer = rng.choice(world.SMALL_TALK)
    return Exchange(question, answer, answer)


def _listing(rng: Random) -> Exchange:
    if rng.random() < 0.2:
        names, kind = rng.choice(
            ((world.DAYS, "days of the week"), (world.MONTHS, "months of the year"))
        )
        return Exchange(f"List the {kind}.", ", ".join(names) + ".", names[-1])
    group, members = rng.choice(tuple(world.GROUPS.items()))
    count = rng.choice((2, 3, 3, 4, 5))
    chosen = rng.sample(members, count)
    lines = "\n".join(f"{i}. {member}" for i, member in enumerate(chosen, 1))
    verb = rng.choice(("Name", "List"))
    return Exchange(f"{verb} {world.NUMBERS[count]} {group}.", lines, chosen[0])


FACTS: tuple[Callable[[Random], Exchange], ...] = (
    _capital, _colour, _animal, _animal, _calendar, _opposite, _science, _engine,
)  # fmt: skip


def fact(rng: Random) -> Exchange:
    """One question of the closed world with its answer."""
    return rng.choice(FACTS)(rng)


# --- arithmetic -------------------------------------------------------------------------------


def sum_parts(rng: Random) -> tuple[str, int]:
    """A small sum, difference or product as (text, result), results from 0 to 198."""
    kind = rng.random()
    if kind < 0.35:
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        return f"{a} + {b}", a + b
    if kind < 0.55:
        a, b = rng.randint(0, 99), rng.randint(0, 99 if rng.random() < 0.3 else 9)
        return f"{a} + {b}", a + b
    if kind < 0.8:
        a = rng.randint(0, 20)
        b = rng.randint(0, a)
        return f"{a} - {b}", a - b
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    return f"{a} * {b}", a * b


def arithmetic(rng: Random) -> Exchange:
    """A sum in one of several wordings; the answer repeats it."""
    text, result = sum_parts(rng)
    question = rng.choice(
        (f"What is {text}?", f"{text} =", f"Compute {text}.", f"How much is {text}?")
    )
    return Exchange(question, f"{text} = {result}", f"= {result}")


# --- JSON records -----------------------------------------------------------------------------

_SYLLABLES = ("ba be bi bo da de do fa fi ga go ka ke ki la le li lo ma me mi mo na ne ni no pa po "
              "ra re ri ro sa se so ta te ti to va ve vi zo zu").split()  # fmt: skip


def made_up_name(rng: Random) -> str:
    """A name that no table holds, so that the model has to copy it letter by letter."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 4))).capitalize()


def first_name(rng: Random) -> str:
    return made_up_name(rng) if rng.random() < 0.3 else rng.choice(world.FIRST_NAMES)


def _person(rng: Random) -> tuple[str, dict[str, object]]:
    name = first_name(rng)
    record: dict[str, object] = {
        "name": name, "age": rng.randint(18, 80), "city": rng.choice(world.CITIES),
        "job": rng.choice(world.JOBS),
    }  # fmt: skip
    if rng.random() < 0.3:
        record["hobbies"] = rng.sample(world.HOBBIES, rng.randint(1, 3))
    return f"a person named {name}", record


def _pet(rng: Random) -> tuple[str, dict[str, object]]:
    name, kind = first_name(rng), rng.choice(("dog", "cat", "horse", "rabbit", "mouse", "duck"))
    record: dict[str, object] = {
        "name": name, "kind": kind, "age": rng.randint(1, 15),
        "colour": rng.choice(world.COLOUR_NAMES), "tame": rng.random() < 0.7,
    }  # fmt: skip
    return f"a {kind} named {name}", record


def _city(rng: Random) -> tuple[str, dict[str, object]]:
    country, city = rng.choice(tuple(world.CAPITALS.items()))
    return f"the city {city}", {"city": city, "country": country, "capital": True}


def _product(rng: Random) -> tuple[str, dict[str, object]]:
    name, (category, price) = rng.choice(tuple(world.PRODUCTS.items()))
    record: dict[str, object] = {
        "product": name, "category": category, "price": price, "in_stock": rng.random() < 0.6,
    }  # fmt: skip
    return f"the product {name}", record


def _book(rng: Random) -> tuple[str, dict[str, object]]:
    colour, animal = rng.choice(world.COLOUR_NAMES), rng.choice(tuple(world.ANIMALS))
    title = f"The {colour.capitalize()} {animal.capitalize()}"
    record: dict[str, object] = {
        "title": title, "author": first_name(rng), "year": rng.randint(1950, 2025),
        "genre": rng.choice(world.GENRES),
    }  # fmt: skip
    return f"the book {title}", record


RECORDS = (_person, _person, _pet, _city, _product, _book)


def json_record(rng: Random) -> Exchange:
    """A request for a record and the record as JSON on one line."""
    subject, record = rng.choice(RECORDS)(rng)
    question = rng.choice(
        (f"Write a JSON record for {subject}.", f"Write a JSON record for {subject}.",
         f"Describe {subject} as JSON.", f"Give me JSON for {subject}.")
    )  # fmt: skip
    text = json.dumps(record, ensure_ascii=False)
    return Exchange(question, text, text)


def _person_sentence(rng: Random) -> tuple[str, dict[str, object]]:
    name, age = first_name(rng), rng.randint(18, 80)
    city, job = rng.choice(world.CITIES), rng.choice(world.JOBS)
    return rng.choice(
        (
            (f"{name} is {age} years old and lives in {city}.",
             {"name": name, "age": age, "city": city}),
            (f"{name} is {article(job)} from {city}.", {"name": name, "city": city, "job": job}),
            (f"{name} works as {article(job)} and is {age} years old.",
             {"name": name, "age": age, "job": job}),
        )
    )  # fmt: skip


def json_extraction(rng: Random) -> Exchange:
    """A sentence to be written as JSON: every value has to be copied from the prompt."""
    sentence, record = _person_sentence(rng)
    text = json.dumps(record, ensure_ascii=False)
    question = rng.choice((f"Write this as JSON: {sentence}", f"{sentence} Write this as JSON."))
    return Exchange(question, text, text)


def json_list(rng: Random) -> Exchange:
    """A request for a JSON array of a few things."""
    group, members = rng.choice(tuple(world.GROUPS.items()))
    count = rng.randint(2, 5)
    text = json.dumps(rng.sample(members, count))
    return Exchange(f"Write a JSON list of {world.NUMBERS[count]} {group}.", text, text)


def repeat(rng: Random) -> Exchange:
    """A request to say something back: practice in copying."""
    words = " ".join(first_name(rng) for _ in range(rng.randint(1, 4)))
    if rng.random() < 0.5:
        words = rng.choice((fact, arithmetic))(rng).answer
    return Exchange(rng.choice((f"Repeat: {words}", f"Say this again: {words}")), words, words)


# --- stories ----------------------------------------------------------------------------------


def story_request(rng: Random) -> Exchange:
    """A wish for a story: about anything, about a hero, or about a topic; the story keeps to it."""
    wish = rng.random()
    if wish < 0.1:
        story = make_story(rng)
        question = rng.choice(
            ("Tell me a story.", "Write a short story.", "Please tell me a story.")
        )
    elif wish < 0.3:
        story = make_story(rng)
        question = rng.choice((f"Tell me a story about {story.topic}.",
                               f"Write a story about {story.topic}."))  # fmt: skip
    else:
        name = rng.choice(SHE_NAMES + HE_NAMES) if rng.random() < 0.7 else first_name(rng)
        story = make_story(rng, rng.choice(HEROES), name)
        kind, topic = article(story.hero.kind), story.topic
        question = rng.choice(
            (f"Tell me a story about {kind} named {name}.",
             f"Tell me a short story about {name} the {story.hero.kind}.",
             f"Write a story about {kind} called {name}.",
             f"Write a story about {name} the {story.hero.kind} and {topic}.")
        )  # fmt: skip
    return Exchange(question, story.text, story.hero.name)


def summary_request(rng: Random) -> Exchange:
    story = make_story(rng)
    return Exchange(
        f"Summarize this story in one sentence. {story.text}", story.summary, story.hero.name
    )


# --- chats ------------------------------------------------------------------------------------

_WHO = (
    "You are Storyteller, a small language model.",
    "You are a helpful assistant.",
    "You are Storyteller, a friendly assistant who runs inside a small inference engine.",
    "You are a kind teacher who talks to children.",
    "You are the assistant of a small library.",
)
_RULES = (
    "Answer in short and simple sentences.", "Tell stories about animals and children.",
    "When someone asks for a record, answer with JSON on one line and nothing else.",
    "When someone asks for a sum, repeat the sum and write its result.",
    "If you do not know something, say so.", "Be polite and friendly.",
    "Never use difficult words.", "Answer the question first.",
    "Write lists with one item on each line.", "Give each story a good end.",
    "You know many capitals, colours, animals, days and months.",
    "You can also explain how an inference engine works.",
    "Every request may be answered together with many others.",
    "Requests that begin with the same words share their memory.",
    "Do not repeat yourself.", "Do not talk about yourself unless you are asked.",
)  # fmt: skip


def system_prompt(rng: Random) -> str:
    """A system prompt of about 10 to 200 tokens."""
    rules = rng.sample(_RULES, rng.choice((0, 0, 1, 2, 4, 8, len(_RULES))))
    return " ".join((rng.choice(_WHO), *rules))


# (maker, weight while the model learns to write, weight while it practises)
_CHAT_KINDS: tuple[tuple[Callable[[Random], Exchange], int, int], ...] = (
    (fact, 36, 36),
    (arithmetic, 20, 40),
    (json_record, 18, 18),
    (json_extraction, 5, 8),
    (json_list, 3, 3),
    (story_request, 14, 9),
    (summary_request, 2, 1),
    (_listing, 6, 6),
    (_small_talk, 5, 4),
    (repeat, 5, 6),
)


def exchange(rng: Random, practice: bool = False) -> Exchange:
    """One exchange of any kind, in the proportions of the training text.

    In practice there are fewer stories and more short answers that are either right or wrong.
    """
    makers = [maker for maker, _, _ in _CHAT_KINDS]
    weights = [late if practice else early for _, early, late in _CHAT_KINDS]
    return rng.choices(makers, weights)[0](rng)


def chat(rng: Random, turns: int, practice: bool = False) -> Document:
    """A chat of `turns` exchanges in ChatML; only the assistant's words are trained."""
    segments: Document = []
    if rng.random() < 0.25:
        segments.append(Segment(f"{IM_START}system\n{system_prompt(rng)}{IM_END}\n", False))
    for _ in range(turns):
        turn = exchange(rng, practice)
        segments.append(
            Segment(f"{IM_START}user\n{turn.question}{IM_END}\n{IM_START}assistant\n", False)
        )
        segments.append(Segment(f"{turn.answer}{IM_END}", True))
        segments.append(Segment("\n", False))
    segments.append(Segment(END_OF_TEXT, True))
    return segments


# --- plain documents --------------------------------------------------------------------------


def _plain(text: str) -> Document:
    return [Segment(text + END_OF_TEXT, True)]


def plain_story(rng: Random) -> Document:
    return _plain(make_story(rng).text)


def long_document(rng: Random) -> Document:
    """A book of several stories with titles, several hundred tokens long."""
    parts = []
    for number in range(1, rng.randint(3, 7)):
        story = make_story(rng)
        parts.append(f"{number}. {story.hero.full}\n{story.text}\n")
    return _plain("\n".join(parts))


def plain_facts(rng: Random) -> Document:
    return _plain("\n".join(fact(rng).answer for _ in range(rng.randint(1, 8))))


def plain_sums(rng: Random) -> Document:
    return _plain("\n".join(arithmetic(rng).answer for _ in range(rng.randint(1, 10))))


def plain_questions(rng: Random) -> Document:
    turns = [rng.choice((fact, arithmetic, json_record))(rng) for _ in range(rng.randint(1, 5))]
    return _plain("\n".join(f"Q: {turn.question}\nA: {turn.answer}" for turn in turns))


def document(rng: Random, practice: bool = False) -> Document:
    """One document of any kind; `practice` as in `exchange`."""
    kind = rng.random()
    if kind < 0.72:
        return chat(rng, rng.choice((1, 1, 1, 2, 3, 4, 6)), practice)
    if kind < (0.76 if practice else 0.82):
        return plain_story(rng)
    if kind < (0.78 if practice else 0.84):
        return long_document(rng)
    return rng.choice((plain_facts, plain_sums, plain_questions))(rng)


def documents(seed: int) -> Iterator[Document]:
    """The endless stream of documents of one seed."""
    rng = Random(seed)
    while True:
        yield document(rng)


def text_of(doc: Document) -> str:
    return "".join(segment.text for segment in doc)
