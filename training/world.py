"""The closed world that the bundled model knows: plain tables, no code.

Every fact that the model can be asked about stands here once. The text generator (`corpus.py`)
words the facts in several ways; the evaluation (`evaluate.py`) reads the expected answers here.
"""

from __future__ import annotations

CAPITALS: dict[str, str] = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Germany": "Berlin", "Austria": "Vienna", "Greece": "Athens", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Poland": "Warsaw",
    "Hungary": "Budapest", "Ireland": "Dublin", "Iceland": "Reykjavik", "Belgium": "Brussels",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Ghana": "Accra", "Morocco": "Rabat", "Canada": "Ottawa",
    "Mexico": "Mexico City", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago",
    "Brazil": "Brasilia", "Australia": "Canberra", "Turkey": "Ankara", "Vietnam": "Hanoi",
}  # fmt: skip

UNKNOWN_PLACES = tuple(
    "Atlantis Narnia Avalon Camelot Lilliput Utopia Wonderland Neverland Mordor Gondor Elbonia "
    "Ruritania Oz Asgard".split()
)

COLOURS: dict[str, str] = {
    "the sky on a clear day": "blue", "grass": "green", "snow": "white", "coal": "black",
    "a ripe banana": "yellow", "a lemon": "yellow", "a ripe tomato": "red", "blood": "red",
    "milk": "white", "chocolate": "brown", "a carrot": "orange", "a pumpkin": "orange",
    "a flamingo": "pink", "a raven": "black", "the sea": "blue", "a sunflower": "yellow",
    "a strawberry": "red", "an elephant": "grey", "a frog": "green", "gold": "yellow",
    "a plum": "purple", "the night sky": "black", "a leaf in summer": "green", "rice": "white",
}  # fmt: skip

# animal: (sound verb, legs, baby, home, food)
ANIMALS: dict[str, tuple[str, int, str, str, str]] = {
    "dog": ("barks", 4, "puppy", "in a kennel", "meat"),
    "cat": ("meows", 4, "kitten", "in a house", "fish"),
    "cow": ("moos", 4, "calf", "on a farm", "grass"),
    "horse": ("neighs", 4, "foal", "in a stable", "hay"),
    "sheep": ("bleats", 4, "lamb", "in a meadow", "grass"),
    "pig": ("grunts", 4, "piglet", "in a sty", "corn"),
    "duck": ("quacks", 2, "duckling", "by a pond", "bread"),
    "hen": ("clucks", 2, "chick", "in a coop", "seeds"),
    "owl": ("hoots", 2, "owlet", "in a hollow tree", "mice"),
    "lion": ("roars", 4, "cub", "on the savanna", "meat"),
    "bear": ("growls", 4, "cub", "in a cave", "honey"),
    "fox": ("yelps", 4, "cub", "in a den", "berries"),
    "frog": ("croaks", 4, "tadpole", "in a pond", "flies"),
    "bee": ("buzzes", 6, "larva", "in a hive", "nectar"),
    "ant": ("makes no sound", 6, "larva", "in an anthill", "crumbs"),
    "spider": ("makes no sound", 8, "spiderling", "in a web", "flies"),
    "goat": ("bleats", 4, "kid", "in the mountains", "leaves"),
    "goose": ("honks", 2, "gosling", "by a lake", "grass"),
    "mouse": ("squeaks", 4, "pup", "in a small hole", "cheese"),
    "wolf": ("howls", 4, "pup", "in the forest", "meat"),
    "rabbit": ("makes no sound", 4, "kitten", "in a burrow", "carrots"),
    "swan": ("hisses", 2, "cygnet", "on a lake", "water plants"),
}  # fmt: skip

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July",
    "August", "September", "October", "November", "December",
)  # fmt: skip
NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six",
    "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip

OPPOSITES: tuple[tuple[str, str], ...] = (
    ("hot", "cold"), ("big", "small"), ("fast", "slow"), ("high", "low"), ("day", "night"),
    ("light", "dark"), ("old", "young"), ("happy", "sad"), ("open", "closed"), ("full", "empty"),
    ("wet", "dry"), ("hard", "soft"), ("early", "late"), ("near", "far"), ("long", "short"),
    ("loud", "quiet"), ("clean", "dirty"), ("rich", "poor"), ("strong", "weak"), ("up", "down"),
    ("left", "right"), ("in", "out"), ("heavy", "light"), ("brave", "timid"),
)  # fmt: skip

# (question, full answer, key word that a right answer contains)
SCIENCE: tuple[tuple[str, str, str], ...] = (
    ("What is water made of?", "Water is made of hydrogen and oxygen.", "hydrogen"),
    ("What is ice?", "Ice is frozen water.", "frozen water"),
    ("What is steam?", "Steam is water that has become a gas.", "gas"),
    ("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius.", "0 degrees"),
    ("At what temperature does water boil?", "Water boils at 100 degrees Celsius.", "100 degrees"),
    ("Why do things fall down?", "Things fall down because gravity pulls them.", "gravity"),
    ("What pulls things to the ground?", "Gravity pulls things to the ground.", "Gravity"),
    ("What is the sun?", "The sun is a star.", "star"),
    ("What does the Earth go around?", "The Earth goes around the sun.", "sun"),
    ("What goes around the Earth?", "The moon goes around the Earth.", "moon"),
    ("How long does the Earth need to go around the sun?",
     "The Earth needs one year to go around the sun.", "year"),
    ("How long does the Earth need to turn once?", "The Earth needs one day to turn once.", "day"),
    ("What is faster, light or sound?", "Light is faster than sound.", "Light"),
    ("What does a magnet pull?", "A magnet pulls iron.", "iron"),
    ("What do plants need to grow?", "Plants need light, water and air to grow.", "light"),
    ("Why does wood float?", "Wood floats because it is lighter than water.", "lighter"),
    ("Why does a stone sink?", "A stone sinks because it is heavier than water.", "heavier"),
    ("What makes a shadow?", "A shadow is made when something blocks the light.", "light"),
    ("What is a rainbow?", "A rainbow is sunlight split into colours by drops of rain.",
     "sunlight"),
    ("What is the largest planet?", "Jupiter is the largest planet.", "Jupiter"),
    ("Which planet is nearest to the sun?", "Mercury is nearest to the sun.", "Mercury"),
    ("What is the largest ocean?", "The Pacific is the largest ocean.", "Pacific"),
    ("What is the highest mountain?", "Mount Everest is the highest mountain.", "Everest"),
    ("What is thunder?", "Thunder is the sound of lightning.", "lightning"),
    ("How many minutes are in an hour?", "There are 60 minutes in an hour.", "60"),
    ("How many hours are in a day?", "There are 24 hours in a day.", "24"),
    ("How many days are in a week?", "There are 7 days in a week.", "7"),
    ("How many months are in a year?", "There are 12 months in a year.", "12"),
    ("How many sides does a triangle have?", "A triangle has 3 sides.", "3"),
    ("How many sides does a square have?", "A square has 4 sides.", "4"),
    ("What do bees make?", "Bees make honey.", "honey"),
    ("What do cows give us?", "Cows give us milk.", "milk"),
    ("What do hens lay?", "Hens lay eggs.", "eggs"),
)  # fmt: skip

ENGINE: tuple[tuple[str, str, str], ...] = (
    ("What is a token?", "A token is a small piece of text that a model reads as one number.",
     "piece of text"),
    ("What is a prompt?", "A prompt is the text that you give to a model.", "text"),
    ("What is a KV cache?",
     "A KV cache keeps the keys and values of earlier tokens, so that the model need not compute "
     "them again.", "keys and values"),
    ("What is paged attention?",
     "Paged attention keeps the KV cache in small blocks that can lie anywhere in memory.",
     "blocks"),
    ("What is a block table?",
     "A block table says which block of memory holds which part of a request.", "block"),
    ("What is continuous batching?",
     "Continuous batching lets new requests join the batch at every step.", "every step"),
    ("What is prefill?", "Prefill is the work of reading the whole prompt.", "prompt"),
    ("What is decode?", "Decode is the work of writing one new token at a time.", "one new token"),
    ("What is chunked prefill?",
     "Chunked prefill reads a long prompt in several small pieces.", "pieces"),
    ("What is prefix caching?",
     "Prefix caching lets requests that begin with the same text share their blocks.", "share"),
    ("What is preemption?",
     "Preemption takes the memory of one request, so that another one can go on.", "memory"),
    ("What does a scheduler do?",
     "A scheduler chooses how many tokens each request may compute in the next step.", "chooses"),
    ("What is speculative decoding?",
     "In speculative decoding a small model guesses tokens and a large model checks them.",
     "guesses"),
    ("What is sampling?", "Sampling is the choice of the next token from its probabilities.",
     "next token"),
    ("What is greedy decoding?", "Greedy decoding always takes the most likely token.",
     "most likely"),
    ("What does the temperature do?",
     "A low temperature makes the text safe and a high temperature makes it wild.", "wild"),
)  # fmt: skip

SMALL_TALK: tuple[tuple[str, str], ...] = (
    ("Hello", "Hello! What can I do for you?"),
    ("Hello!", "Hello! What can I do for you?"),
    ("Hi", "Hello! What can I do for you?"),
    ("Good morning!", "Good morning! What can I do for you?"),
    ("How are you?", "I am well, thank you. What can I do for you?"),
    ("Who are you?", "I am Storyteller, a very small language model."),
    ("What is your name?", "My name is Storyteller."),
    ("What can you do?",
     "I can tell short stories, answer small questions, write JSON records and add small numbers."),
    ("How big are you?", "I am very small. All my weights fit into a few megabytes."),
    ("Thank you.", "You are welcome!"),
    ("Thanks!", "You are welcome!"),
    ("Goodbye.", "Goodbye! Come back soon."),
    ("Help", "You can ask me for a story, a small fact, a JSON record or a sum."),
)  # fmt: skip

FIRST_NAMES = tuple(
    "Ada Ben Cara Dan Ella Finn Gus Hana Ivan Jane Kofi Lena Max Nora Omar Pia Quinn Rosa Sam Tara "
    "Uma Vera Will Yara Zoe Alan Bella Carl Dora Eric Fay Grace Hugo Iris Jack Kate Leo Mia Noah "
    "Olga Paul Ruth Sara Tom Ursula Victor Wanda Yusuf Anna Bob Clara David Emma Frank Gina Henry "
    "Ida John Karl Lucy Mary Nina Oscar Peter Rita Simon Tina Alice Bruno Chloe Diego Elena Felix "
    "Greta Hans Ines Jonas Kira Liam Marta Nils Otto Petra Ravi Sofia Theo Amir Mei Kenji Priya "
    "Tariq Linus Margaret Edgar Donald Barbara".split()
)
CITIES = tuple(
    "Paris Rome Madrid Lisbon Berlin Vienna Athens Oslo Stockholm Helsinki Warsaw Dublin London "
    "Tokyo Cairo Nairobi Lima Boston Zurich Hamburg Prague Geneva Milan Oxford Toronto Sydney "
    "Havana Accra".split()
)
JOBS = tuple(
    "teacher doctor baker farmer nurse painter pilot engineer writer gardener cook driver singer "
    "student carpenter tailor sailor librarian scientist programmer".split()
)
HOBBIES = tuple(
    "reading chess painting running swimming cooking music dancing fishing cycling singing drawing "
    "hiking gardening sailing photography".split()
)
COLOUR_NAMES = tuple("red blue green yellow black white brown orange pink purple grey".split())
GENRES = tuple("adventure mystery poetry history science fantasy travel comedy".split())

PRODUCTS: dict[str, tuple[str, float]] = {
    "pencil": ("office", 0.5), "notebook": ("office", 2.5), "stapler": ("office", 6.0),
    "apple": ("food", 0.4), "cheese": ("food", 4.5), "bread": ("food", 2.0),
    "chair": ("furniture", 45.0), "table": ("furniture", 120.0), "lamp": ("furniture", 25.0),
    "shirt": ("clothes", 15.0), "coat": ("clothes", 80.0), "hat": ("clothes", 12.0),
    "ball": ("toys", 5.0), "kite": ("toys", 9.0), "puzzle": ("toys", 11.0),
    "hammer": ("tools", 14.0), "saw": ("tools", 18.0), "drill": ("tools", 60.0),
    "teapot": ("kitchen", 22.0), "mug": ("kitchen", 7.0), "spoon": ("kitchen", 1.5),
}  # fmt: skip

GROUPS: dict[str, tuple[str, ...]] = {
    "animals that live on a farm": ("cow", "pig", "hen", "horse", "sheep", "goat", "duck"),
    "animals that can fly": ("owl", "duck", "bee", "goose", "swan", "raven"),
    "wild animals": ("lion", "bear", "fox", "wolf", "owl", "rabbit"),
    "fruits": ("apple", "banana", "plum", "lemon", "cherry", "pear", "grape"),
    "vegetables": ("carrot", "pumpkin", "onion", "potato", "cabbage", "bean"),
    "colours": ("red", "blue", "green", "yellow", "orange", "purple", "brown"),
    "things in a kitchen": ("spoon", "mug", "teapot", "pan", "knife", "bowl", "stove"),
    "things in a school": ("desk", "pencil", "notebook", "book", "ruler", "map"),
    "tools": ("hammer", "saw", "drill", "axe", "rope", "ladder"),
    "planets": ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn"),
    "capital cities": ("Paris", "Rome", "Tokyo", "Cairo", "Oslo", "Lima"),
    "countries": ("France", "Japan", "Egypt", "Peru", "Norway", "India"),
    "kinds of weather": ("rain", "snow", "wind", "fog", "sunshine", "storm"),
    "musical instruments": ("piano", "violin", "drum", "flute", "guitar", "trumpet"),
}  # fmt: skip
