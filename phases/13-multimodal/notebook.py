# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 13: images in the token budget
#
# You count what a picture costs, watch it being encoded once and consumed in parts, turn it around, and make the cache too small for three of them.
# The bundled model `storyteller-vision` looks at pictures of 32 x 32 pixels: 16 tokens each. Before each experiment you write down a guess.
#
# | word | meaning |
# |---|---|
# | patch | 4 x 4 pixels here |
# | token | 2 x 2 patches |
# | row | what the encoder makes for a token |

# %% tags=["setup"]
import warnings

import matplotlib.pyplot as plt
from PIL import Image, ImageDraw

warnings.filterwarnings("ignore", message="IProgress")  # no progress bars needed here
plt.rcParams |= {"figure.figsize": (7.5, 3.0), "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}

from mini_vllm import LLM, SamplingParams
from mini_vllm.multimodal.hasher import hash_image

GREEDY = SamplingParams(temperature=0, max_tokens=24)


def draw(*shapes):
    """A picture with shapes: (kind, color, x, y)."""
    image = Image.new("RGB", (32, 32), "white")
    pen = ImageDraw.Draw(image)
    for kind, color, x, y in shapes:
        box = (x - 6, y - 6, x + 6, y + 6)
        (pen.ellipse if kind == "circle" else pen.rectangle)(box, fill=color)
    return image


RED, BLUE, BLACK = (220, 40, 40), (50, 80, 220), (20, 20, 20)
SUN = draw(("circle", RED, 8, 8))
BOX = draw(("square", BLUE, 24, 24))
BOTH = draw(("square", BLACK, 8, 8), ("circle", BLUE, 8, 24))


def chat(image, question):
    parts = [{"type": "image_pil", "image_pil": image}, {"type": "text", "text": question}]
    return [{"role": "user", "content": parts}]


# %% [markdown]
# ## 1. What does a picture cost?
#
# A picture is cut into patches of `patch` pixels, and `merge` x `merge` patches become one token. Sides are multiples of both.

# %% tags=["todo"] task="N1" title="Tokens of a picture"
def tokens_of(width, height, patch=16, merge=2):
    """How many tokens a picture of width x height pixels has."""
    # BEGIN SOLUTION
    return (width // (patch * merge)) * (height // (patch * merge))
    # END SOLUTION

# %% tags=["check"] task="N1"
check(tokens_of(32, 32, patch=4), 16, "the bundled model's pictures")
check(tokens_of(1024, 1024), 1024, "a large one, with patches of 16")
check(tokens_of(64, 32), 2, "twice as wide")

# %%
sizes = range(32, 2049, 96)
plt.plot(sizes, [tokens_of(size // 32 * 32, size // 32 * 32) for size in sizes], marker=".")
plt.xlabel("side of a square picture, pixels")
plt.ylabel("tokens")
plt.title("A picture costs by its area")
plt.show()

# %% [markdown]
# ## 2. Five questions about one picture

# %% tags=["predict"] task="P1" title="Encodings" why="The encoder runs once for a picture, not for a question: its rows are kept under the picture's hash. The prefix cache supplies two full blocks, the first 16 tokens; the picture's last tokens lie behind them, and their rows come from the encoder's cache."
guess = predict("P1", 5, "Five questions about one picture: how often does the encoder run?")  # SOLUTION: guess = predict("P1", ..., "Five questions about one picture: how often does the encoder run?")

# %%
def encoded(llm):
    """Pictures that an engine has encoded so far."""
    return llm.engine.core.model_runner.images.num_encoded


llm = LLM("storyteller-vision", dtype="float32", max_model_len=256, block_size=8)
QUESTIONS = ["What is in the picture?", "How many shapes are there?", "What color is the square?", "What color is the circle?", "Which shape is blue?"]
for question in QUESTIONS:
    (output,) = llm.chat(chat(BOTH, question), GREEDY, use_tqdm=False)
    print(f"{question:28} {output.outputs[0].text.strip():38} {output.num_cached_tokens:3} of {len(output.prompt_token_ids)} tokens from the cache")
score("P1", encoded(llm))

# %% [markdown]
# ## 3. One pixel

# %% tags=["todo"] task="N2" title="Names that differ"
def different_names(pictures, options):
    """How many different names these pictures have under these options."""
    # BEGIN SOLUTION
    return len({hash_image(picture, options) for picture in pictures})
    # END SOLUTION

# %% tags=["check"] task="N2"
dotted = SUN.copy()
dotted.putpixel((31, 31), (0, 0, 0))
check(different_names([SUN, SUN.copy(), dotted], {}), 2, "the same twice, and one with another pixel")
check(different_names([SUN, SUN.transpose(Image.Transpose.ROTATE_90)], {}), 2, "turned around")

# %%
before = encoded(llm)
llm.chat(chat(dotted, QUESTIONS[0]), GREEDY, use_tqdm=False)
print(f"one pixel: {encoded(llm) - before} encoding more")

# %% [markdown]
# ## 4. Encoded once, consumed in parts
#
# A step may compute 7 tokens. The picture has 16.

# %% tags=["todo"] task="N3" title="What a chunk takes"
def taken(offset, length, computed, scheduled):
    """How many of an image's tokens a step computes that computes `scheduled` tokens after `computed`."""
    # BEGIN SOLUTION
    return max(0, min(computed + scheduled, offset + length) - max(computed, offset))
    # END SOLUTION

# %% tags=["check"] task="N3"
check(taken(4, 16, 0, 7), 3, "tokens 0 .. 7 of a prompt whose picture begins at 4")
check(taken(4, 16, 14, 7), 6, "its end")
check(taken(4, 16, 21, 7), 0, "behind it")

# %% tags=["predict"] task="P2" title="Steps that compute a part of the picture" why="A chunk ends where the budget ends, also in the middle of a picture. The encoder computes the whole picture once, when its first token is due, and each step takes the part of the embeddings that it needs."
guess = predict("P2", 1, "The picture begins at token 4 and has 16. Steps have 7 tokens. How many steps compute a part of it?")  # SOLUTION: guess = predict("P2", ..., "The picture begins at token 4 and has 16. Steps have 7 tokens. How many steps compute a part of it?")

# %%
small = LLM("storyteller-vision", dtype="float32", max_model_len=256, max_num_batched_tokens=7)
parts, encodings = [], []


def watch(plan, outputs, seconds, stats):
    for request in plan.scheduled_new_reqs:
        watch.place = request.mm_features[0].mm_position
        watch.computed = 0
    for count in plan.num_scheduled_tokens.values():
        parts.append(taken(watch.place.offset, watch.place.length, watch.computed, count))
        watch.computed += count
    encodings.append(sum(map(len, plan.scheduled_encoder_inputs.values())))


small.engine.core.observers.append(watch)
small.chat(chat(BOTH, QUESTIONS[0]), GREEDY, use_tqdm=False)
plt.bar(range(8), parts[:8])
for step, count in enumerate(encodings[:8]):
    if count:
        plt.annotate("encoded", (step, parts[step]), ha="center", va="bottom")
plt.xlabel("step")
plt.ylabel("tokens of the picture")
plt.title("One encoding, several chunks")
print(f"the picture begins at token {watch.place.offset}")
score("P2", sum(part > 0 for part in parts))

# %% [markdown]
# ## 5. Room for embeddings
#
# Three pictures take turns, twelve questions in all, without a prefix cache. The largest picture has 64 tokens, so the engine allows no smaller cache; here we shrink it by hand.

# %% tags=["predict"] task="P3" title="Encodings with room for two" why="The oldest of two kept pictures goes out for the third, and it is the very one that is asked for next. So each of the 12 questions finds its picture gone: in a rotation, least recently used keeps all or nothing."
guess = predict("P3", 3, "Three pictures in rotation, 12 questions, room for two of them. How many encodings?")  # SOLUTION: guess = predict("P3", ..., "Three pictures in rotation, 12 questions, room for two of them. How many encodings?")

# %%
def encodings_with_room(rows):
    """Encodings of 12 questions about three pictures in turn."""
    llm = LLM("storyteller-vision", dtype="float32", max_model_len=256, enable_prefix_caching=False)
    manager = llm.engine.core.scheduler.encoder_cache_manager
    manager.cache_size = manager.num_free_slots = manager.num_freeable_slots = rows
    for number in range(12):
        llm.chat(chat((SUN, BOX, BOTH)[number % 3], QUESTIONS[1]), GREEDY, use_tqdm=False)
    return encoded(llm)


rooms = [16, 32, 48, 64]
counts = [encodings_with_room(rows) for rows in rooms]
plt.bar([str(rows) for rows in rooms], counts)
plt.xlabel("rows that are kept; a picture has 16")
plt.ylabel("encodings")
plt.title("Least recently used, in rotation: all or nothing")
score("P3", counts[1])

# %% [markdown]
# ## 6. Does it look?
#
# The same question about other pictures. A model that only guesses well would answer the same.

# %% tags=["todo"] task="N4" title="Does the answer follow the picture?"
def looks(answers):
    """True if no two of the answers, one for each picture, are equal."""
    # BEGIN SOLUTION
    return len(set(answers)) == len(answers)
    # END SOLUTION

# %% tags=["check"] task="N4"
check(looks(["a", "b", "c"]), True, "three answers")
check(looks(["a", "b", "a"]), False, "two are equal")

# %%
outputs = llm.chat([chat(image, QUESTIONS[0]) for image in (SUN, BOX, BOTH)], GREEDY, use_tqdm=False)
answers = [output.outputs[0].text.strip() for output in outputs]
fig, axes = plt.subplots(1, 3)
for axis, image, answer in zip(axes, (SUN, BOX, BOTH), answers, strict=True):
    axis.imshow(image)
    axis.set_title(answer, fontsize=7)
    axis.set(xticks=[], yticks=[])
print(answers, looks(answers))
