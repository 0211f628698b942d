# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 04: how does attention read pages?
#
# You draw block tables, count the bytes that one decode step reads, watch where a kernel's reads go,
# take a softmax apart tile by tile, and look at what splitting a context buys and costs. Small
# functions are yours to write; each is checked at once. Before each experiment you write down a guess.
#
# The kernels run in Triton's interpreter, watched element by element. It counts bytes and operations
# exactly; it says nothing about time. No number below depends on the machine.
#
# | word | meaning |
# |---|---|
# | slot | a place for one token's key and value: block id × block size + offset |
# | group | the query heads that share one key/value head |
# | tile | a stretch of keys that a program reads at once |
# | split | the part of a context that one of several programs reads |
# | lse | log of the sum of exp(score): how much softmax mass a split stands for |
#
# Experiments 3 and 6 run **your** kernels of tasks 04.4 and 04.6. The rest needs none of them.

# %% tags=["setup"]
import math

import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#DDDDDD"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.6), "axes.grid": True, "grid.alpha": 0.3}

# %% [markdown]
# ## 1. A cache and three block tables
#
# Ana, ben and cleo share one cache of 12 blocks with 4 slots each. Their tokens lie where blocks were
# free at the time. What a kernel gets is the table; what it needs is slots.

# %%
TABLES = {"ana": ([7, 2, 5], 10), "ben": ([3, 9], 6), "cleo": ([8], 3)}  # blocks, tokens

# %% tags=["todo"] task="N1" title="The slots of one request, in the order of its tokens"
def slots_of(table: list[int], num_tokens: int, block_size: int) -> list[int]:
    """The slot of each of the request's tokens, from position 0 on."""
    # BEGIN SOLUTION
    return [
        table[position // block_size] * block_size + position % block_size
        for position in range(num_tokens)
    ]
    # END SOLUTION

# %% tags=["check"] task="N1"
check(slots_of([7, 2], 6, 4), [28, 29, 30, 31, 8, 9], "the second page lies before the first")
check(slots_of([3, 0, 6], 3, 1), [3, 0, 6], "blocks of one token")

# %%
owner = np.full(48, -1)
label = [""] * 48
for row, (name, (table, tokens)) in enumerate(TABLES.items()):
    for position, slot in enumerate(slots_of(table, tokens, 4)):
        owner[slot], label[slot] = row, f"{name[0]}{position}"

COLOURS = {"ana": BLUE, "ben": ORANGE, "cleo": GREEN}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 2.8), width_ratios=(1, 3))


def box(axis, x: float, y: float, colour: str, text: str) -> None:
    axis.add_patch(plt.Rectangle((x, y), 0.92, 0.92, color=colour))
    axis.text(x + 0.46, y + 0.46, text, ha="center", va="center", fontsize=8, fontweight="bold", color="black" if colour == ORANGE else "white")


for row, (name, (table, _)) in enumerate(TABLES.items()):
    for column in range(3):
        used = column < len(table)
        box(left, column, 2 - row, COLOURS[name] if used else GREY, str(table[column]) if used else "")
left.set(xlim=(-0.1, 3), ylim=(-0.1, 3), xlabel="position // 4", title="The block tables")
left.set_xticks([0.46, 1.46, 2.46], ["0", "1", "2"])
left.set_yticks([2.46, 1.46, 0.46], list(TABLES))
for slot in range(48):
    block, offset = divmod(slot, 4)
    colour = list(COLOURS.values())[owner[slot]] if owner[slot] >= 0 else GREY
    box(right, block, 3 - offset, colour, label[slot])
right.set(xlim=(-0.1, 12), ylim=(-0.1, 4), xlabel="block", ylabel="offset", title="The cache: a0 is ana's first token; grey slots are empty")
right.set_xticks([i + 0.46 for i in range(12)], [str(i) for i in range(12)])
right.set_yticks([3.46, 2.46, 1.46, 0.46], ["0", "1", "2", "3"])
for axis in (left, right):
    axis.grid(False)
figure.tight_layout()
plt.show()

# %% [markdown]
# Read ana's tokens in order: you go from block 7 to 2 to 5. A kernel does the same jump with one
# addition more per key. The grey slots in *ana's* blocks are the tail that the kernel must not read.

# %% [markdown]
# ## 2. The bytes of one decode step
#
# A decode step reads every weight once, and for each request the keys and values of its whole context.
# How many bytes is that? The shapes are those of Qwen3-0.6B in bfloat16.

# %% tags=["setup"]
QWEN = {"layers": 28, "kv_heads": 8, "head_dim": 128, "itemsize": 2}
WEIGHTS = 2 * 596_049_920  # bytes; the embedding is also the last matrix, and counted once

# %% tags=["todo"] task="N2" title="Bytes of keys and values that one new token reads"
def kv_bytes(seq_len: int, layers: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of all keys and values of a context of `seq_len` tokens, over all layers."""
    # BEGIN SOLUTION
    return 2 * seq_len * layers * kv_heads * head_dim * itemsize
    # END SOLUTION

# %% tags=["check"] task="N2"
check(kv_bytes(1, 1, 1, 1, 4), 8, "a key and a value of one number each")
check(kv_bytes(1, **QWEN), 114688, "112 KiB a token: 28 layers, 8 heads, 128 features, 2 bytes, key and value")

# %% tags=["predict"] task="P1" title="The context that weighs as much as the weights"
guess = predict("P1", 10000, "One request: from which context length on does a step read more keys and values than weights?")  # SOLUTION: guess = predict("P1", ..., "One request: from which context length on does a step read more keys and values than weights?")

# %%
score("P1", WEIGHTS / kv_bytes(1, **QWEN))

contexts = [2**i for i in range(6, 18)]
figure, axis = plt.subplots()
for kv_heads, style, colour in ((16, "^:", PINK), (8, "o-", BLUE), (2, "s--", GREEN)):
    shape = QWEN | {"kv_heads": kv_heads}
    gib = [kv_bytes(n, **shape) / 2**30 for n in contexts]
    axis.plot(contexts, gib, style, color=colour, label=f"{16 // kv_heads} query heads share one ({kv_heads} key/value heads)")
axis.axhline(WEIGHTS / 2**30, color=ORANGE, label="all weights, read once a step")
axis.set(xscale="log", yscale="log", xlabel="tokens of context", ylabel="GiB a step", title="What one decode step reads for one request")
axis.set_xticks(contexts[::2], [f"{n:,}" for n in contexts[::2]])
axis.minorticks_off()
axis.legend(fontsize=8)
plt.show()
print(f"32 requests of 2,048 tokens: {32 * kv_bytes(2048, **QWEN) / 2**30:.1f} GiB of keys and values, {WEIGHTS / 2**30:.1f} GiB of weights")

# %% [markdown]
# Weights are shared by the batch, contexts are not. So the more requests decode together, the more a step
# is about reading pages. Grouping query heads divides that part, and only that part.

# %% [markdown]
# ## 3. Where the reads go
#
# 16 query heads, 128 tokens of context, one layer. With 16, 8, 4 and 2 key/value heads the groups are 1, 2, 4
# and 8. Your decode kernel runs on all four, and every byte that it asks for is counted by tensor.

# %% tags=["predict"] task="P2" title="Groups of 8 instead of 1"
guess = predict("P2", 8, "By which factor fall the bytes of keys read when 8 query heads share one instead of each having its own?")  # SOLUTION: guess = predict("P2", ..., "By which factor fall the bytes of keys read when 8 query heads share one instead of each having its own?")

# %%
import torch

from labkit.kernels.cases.draw import Draw
from labkit.kernels.cases.decode import decode
from labkit.kernels.cases.prefill import prefill
from labkit.kernels.direct import solve
from mini_vllm.kernels.attention import PAGED_DECODE, PAGED_PREFILL

traffic = {}
for group in (1, 2, 4, 8):
    make = decode([128], group, 16 // group, 64, 16)
    problem, rules = make(Draw(4, "notebook", str(group)), torch.bfloat16)
    traffic[group] = solve(PAGED_DECODE, problem, rules).traffic
    least = PAGED_DECODE.work(**problem)
    print(f"group {group}: {traffic[group].num_bytes:7,} bytes moved, {traffic[group].num_bytes / least.num_bytes:.3f} x the least possible")

# %%
score("P2", traffic[1].read_by_tensor["key_cache"] / traffic[8].read_by_tensor["key_cache"])

figure, axis = plt.subplots()
names = {"key_cache": BLUE, "value_cache": ORANGE, "query": GREEN, "block_table": PINK}
groups = [str(group) for group in traffic]
bottom = np.zeros(4)
for name, colour in names.items():
    kib = np.array([t.read_by_tensor[name] / 1024 for t in traffic.values()])
    axis.bar(groups, kib, bottom=bottom, color=colour, label=name, width=0.6)
    bottom += kib
axis.set(xlabel="query heads that share one key/value head", ylabel="KiB read", title="What one decode step asks for, by tensor")
axis.legend()
plt.show()

# %% [markdown]
# The block table costs nothing that you could see. The query is small. All else is keys and values, read once
# for the whole group, because one program serves it. With a program for each query head all four bars
# would be as high as the first.

# %% [markdown]
# ## 4. A softmax that sees its row in tiles
#
# The running maximum, the running sum, and the factor by which earlier work shrinks when the maximum
# moves. Write one step in numpy; task 04.4 is the same with rows.

# %% tags=["todo"] task="N3" title="One step of the online softmax"
def step(scores: list[float], row_max: float, row_sum: float) -> tuple[float, float, float]:
    """(factor for earlier work, new maximum, new sum) after one more tile of scores.

    At first row_max is -inf and row_sum 0. The tile holds at least one score that is not -inf.
    """
    # BEGIN SOLUTION
    new_max = max(row_max, max(scores))
    factor = math.exp(row_max - new_max)
    return factor, new_max, row_sum * factor + sum(math.exp(s - new_max) for s in scores)
    # END SOLUTION

# %% tags=["check"] task="N3"
check(step([2.0], -math.inf, 0.0), (0.0, 2.0, 1.0), "the first tile: nothing earlier counts")
check(step([0.0, 1000.0], -math.inf, 0.0), (0.0, 1000.0, 1.0), "nothing overflows below the largest score")
check_close(step([1.0, 1.0], 3.0, 1.0)[2], 1.2706705664732254, "smaller scores add exp(-2) each")
check_close(step([5.0], 3.0, 2.0)[2], 1.2706705664732254, "a larger one shrinks the 2 to 2 exp(-2)")

# %% tags=["predict"] task="P3" title="How often the accumulator shrinks"
guess = predict("P3", 3, "1,024 random scores in 32 tiles: in how many tiles after the first is there a new maximum, on average?")  # SOLUTION: guess = predict("P3", ..., "1,024 random scores in 32 tiles: in how many tiles after the first is there a new maximum, on average?")

# %%
random = np.random.default_rng(4)
counts = []
for _ in range(400):
    row_max, row_sum, moved = -math.inf, 0.0, 0
    for index, tile in enumerate(random.normal(size=(32, 32))):
        factor, row_max, row_sum = step(tile.tolist(), row_max, row_sum)
        moved += index > 0 and factor < 1
    counts.append(moved)
score("P3", float(np.mean(counts)))

scores = np.concatenate([random.normal(size=96), [6.0], random.normal(size=95)]).reshape(6, 32)
row_max, row_sum, history = -math.inf, 0.0, []
for tile in scores:
    factor, row_max, row_sum = step(tile.tolist(), row_max, row_sum)
    history.append((row_max, row_sum, factor))
print("after the last tile:", f"max {row_max:.3f}, sum {row_sum:.4f};", "all at once:", f"sum {np.exp(scores - scores.max()).sum():.4f}")

figure, axes = plt.subplots(1, 3, figsize=(10, 3))
for axis, values, title, colour in zip(axes, zip(*history, strict=True), ("row_max", "row_sum", "factor for earlier work"), (BLUE, ORANGE, GREEN), strict=True):
    axis.step(range(6), values, where="mid", color=colour, marker="o")
    axis.set(title=title, xlabel="tile")
figure.suptitle("A score of 6 in tile 3 makes everything before it small")
figure.tight_layout()
plt.show()

# %% [markdown]
# A new maximum is rare: of the first n tiles, the last holds the largest score with probability 1/n, so the
# expected number is 1/2 + 1/3 + … + 1/32. The multiplication by the factor happens in every tile all the same;
# it costs less than to ask.

# %% [markdown]
# ## 5. Splits: balance and weights
#
# One request on a GPU of 132 processors keeps 8 of them busy: one program for each key/value head. Splits
# give the others work. A split is a stretch of whole tiles, so not every number of splits is useful.

# %% tags=["todo"] task="N4" title="Tokens of each split"
def split_tokens(seq_len: int, num_splits: int, tile: int) -> list[int]:
    """How many tokens each split reads: stretches of whole tiles, as `paged_decode_kernel` cuts them.

    A stretch is ceil(seq_len / num_splits), rounded up to a multiple of `tile`; the last ones may be
    short or empty.
    """
    # BEGIN SOLUTION
    share = -(-seq_len // num_splits)  # rounded up
    stretch = -(-share // tile) * tile
    return [min(max(seq_len - split * stretch, 0), stretch) for split in range(num_splits)]
    # END SOLUTION

# %% tags=["check"] task="N4"
check(split_tokens(70, 2, 32), [64, 6], "35 tokens round up to two tiles of 32")
check(split_tokens(20, 4, 64), [20, 0, 0, 0], "one tile is all there is")
check(split_tokens(256, 4, 64), [64, 64, 64, 64], "four splits of one tile")

# %% tags=["predict"] task="P4" title="Splits without work"
guess = predict("P4", 3, "300 tokens, 8 splits, tiles of 64: how many splits are empty?")  # SOLUTION: guess = predict("P4", ..., "300 tokens, 8 splits, tiles of 64: how many splits are empty?")

# %%
score("P4", split_tokens(300, 8, 64).count(0))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
CONTEXTS = (300, 1000, 2048, 5000)
for row, tokens in enumerate(CONTEXTS):
    start = 0.0
    for index, part in enumerate(split_tokens(tokens, 8, 64)):
        left.barh(row, part / tokens, left=start, color=(BLUE, ORANGE)[index % 2], edgecolor="white")
        start += part / tokens
left.set_yticks(range(4), [f"{tokens:,}" for tokens in CONTEXTS])
left.set(xlabel="share of the context; the colour changes with the split", ylabel="tokens of context", title="8 splits, tiles of 64")
left.grid(False)
SPLITS = (1, 2, 4, 8, 16, 32, 64)
for requests, style, colour in ((1, "o-", BLUE), (8, "s--", ORANGE), (64, "^:", GREEN)):
    longest = [max(split_tokens(8192, s, 64)) * -(-requests * 8 * s // 132) / 8192 for s in SPLITS]
    right.plot(SPLITS, longest, style, color=colour, label=f"{requests} request{'s' * (requests > 1)}")
right.set(xscale="log", yscale="log", xlabel="splits", ylabel="tokens of the busiest / 8,192", title="132 processors, 8 key/value heads")
right.set_xticks(SPLITS, [str(s) for s in SPLITS])
right.minorticks_off()
right.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# The right picture is a model: programs run in waves of 132, and a wave lasts as long as its longest program.
# One request gains until its programs fill the GPU. 64 requests fill it nearly four times over without any split,
# and more splits only even out the last wave. What the model leaves out is the price: partial results are
# written and read once more, and a second kernel starts.
#
# Then the parts must become one. Each split has an average and an lse.

# %% tags=["todo"] task="N5" title="Weights of the splits"
def split_weights(lse: list[float]) -> list[float]:
    """The share of each split, from its log of summed exp(scores); they sum to 1.

    At least one lse is not -inf; exp of a large one overflows, so take the largest away first.
    """
    # BEGIN SOLUTION
    largest = max(lse)
    masses = [math.exp(x - largest) for x in lse]
    return [mass / sum(masses) for mass in masses]
    # END SOLUTION

# %% tags=["check"] task="N5"
check(split_weights([7.0, 7.0]), [0.5, 0.5], "equal masses")
check(split_weights([5000.0, -math.inf]), [1.0, 0.0], "an empty split has no share, and exp(5000) is not needed")
check_close(split_weights([math.log(3.0), 0.0])[0], 0.75, "three times the mass, three times the weight")

# %%
errors = {"weighed by exp(lse)": [], "plain mean of the splits": []}
SPREADS = (0.0, 0.5, 1.0, 2.0, 4.0)
for spread in SPREADS:
    s = random.normal(size=256) * spread
    v = random.normal(size=256)
    exact = np.exp(s - s.max()) @ v / np.exp(s - s.max()).sum()
    parts = [np.arange(i, i + 64) for i in range(0, 256, 64)]
    averages = [np.exp(s[p] - s.max()) @ v[p] / np.exp(s[p] - s.max()).sum() for p in parts]
    lse = [float(s.max() + np.log(np.exp(s[p] - s.max()).sum())) for p in parts]
    errors["weighed by exp(lse)"].append(abs(np.dot(split_weights(lse), averages) - exact))
    errors["plain mean of the splits"].append(abs(np.mean(averages) - exact))
for name, values in errors.items():
    print(f"{name:26}", "  ".join(f"{value:.1e}" for value in values), f"  at score spreads {SPREADS}")

# %% [markdown]
# With a spread of 0 all keys weigh the same and the plain mean is right by luck. That is why a test with small
# random scores hardly sees the mistake.

# %% [markdown]
# ## 6. What a causal tile computes for nothing
#
# Prefill multiplies whole tiles and masks what a row may not see. The pairs above the diagonal are
# computed and thrown away.

# %% tags=["todo"] task="N6" title="Visible pairs of a prefill"
def visible_pairs(query_len: int, computed: int) -> int:
    """Pairs (new token, token it sees): each new token sees all `computed` ones before, and the new
    ones up to itself."""
    # BEGIN SOLUTION
    return query_len * computed + query_len * (query_len + 1) // 2
    # END SOLUTION

# %% tags=["check"] task="N6"
check(visible_pairs(3, 0), 6, "1 + 2 + 3")
check(visible_pairs(2, 5), 13, "6 + 7")

# %% tags=["predict"] task="P5" title="Work that is masked away"
guess = predict("P5", 0.32, "A prompt of 64 tokens, tiles of 32 x 32: which share of the computed pairs is masked away?")  # SOLUTION: guess = predict("P5", ..., "A prompt of 64 tokens, tiles of 32 x 32: which share of the computed pairs is masked away?")

# %%
PROMPTS = (8, 16, 32, 48, 64, 96, 128)
wasted = {}
for tokens in PROMPTS:
    problem, rules = prefill([(tokens, 0)], 1, 1, 16, 16)(Draw(4, "notebook", str(tokens)), torch.float32)
    seen = solve(PAGED_PREFILL, problem, rules)
    pairs = seen.traffic.dot_flops / (4 * 16)  # 2 products of 2 * 16 operations a pair
    wasted[tokens] = 1 - visible_pairs(tokens, 0) / pairs
    print(f"{tokens:3} tokens: {pairs:6.0f} pairs multiplied, {visible_pairs(tokens, 0):5} visible, {wasted[tokens]:.0%} for nothing")

# %%
score("P5", wasted[64])

figure, axis = plt.subplots()
axis.plot(PROMPTS, [100 * share for share in wasted.values()], "o-", color=BLUE)
axis.set(xlabel="tokens of the prompt", ylabel="% of the pairs", ylim=(0, 100), title="Computed and masked away, tiles of 32 x 32")
plt.show()

# %% [markdown]
# Short prompts waste most, for a tile is never smaller than a tile. Long ones tend to half a tile per row. And a
# decode is a prompt of one token: in a prefill kernel 31 of its 32 rows would be empty. That is the reason
# for a decode kernel of its own, which puts query *heads* into the rows.
