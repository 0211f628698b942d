# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 18: layers that remember differently
#
# You count what four kinds of layers hold, watch hits come and go, starve a prompt, round a state, shrink windows, count experts, find
# where one form of latent attention overtakes the other, and turn a sink off. Before each experiment you write down a guess.
# The tables are those of the engine's own managers, with your files in them; no model runs, so every machine shows the same numbers.
#
# | word | meaning |
# |---|---|
# | window of W | a token reads the last W tokens, itself included |
# | state | a matrix that every token changes |
# | latent | a short vector from which keys and values are made |
# | hit | tokens of a prompt that need not be computed again |

# %% tags=["setup"]
import math

import matplotlib.pyplot as plt
import torch

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.model.mixers.gated_delta import recurrent_gated_delta_rule
from mini_vllm.model.mixers.sinks import add_sink
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

torch.set_num_threads(1)
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}

FULL, STATE = GroupSpec("full", 4), GroupSpec("mamba", 4, mode="align")


def window(size):
    return GroupSpec("sliding_window", 4, window=size)


def engine(*groups, blocks=400, budget=64, longest=2048, seqs=64):
    limits = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seqs, max_model_len=longest)
    return make_scheduler(limits, CacheConfig(block_size=groups[0].block_size, num_gpu_blocks=blocks), groups=groups)


def ask(scheduler, name, tokens, answer=1):
    scheduler.add_request(Request(name, list(tokens), SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)))


def step(scheduler):
    """One step, in which every request that can make a token makes the token 7: {id: tokens computed}."""
    plan = scheduler.schedule()
    can = [n for n in plan.num_scheduled_tokens if scheduler.requests[n].num_computed_tokens >= scheduler.requests[n].num_tokens]
    finish_step(scheduler, plan, ModelRunnerOutput({n: [7] for n in can}))
    return dict(plan.num_scheduled_tokens)

# %% [markdown]
# ## 1. What four kinds of layers hold
#
# A request makes tokens one by one. How many blocks does a window hold in the step that computes token n?

# %% tags=["todo"] task="N1" title="Blocks of a window"
def window_blocks(n, size, block):
    """Blocks with a token that token `n` reads, if it reads the last `size` tokens, itself included; `block` tokens a block."""
    # BEGIN SOLUTION
    first = max(0, n - size + 1)
    return n // block - first // block + 1
    # END SOLUTION

# %% tags=["check"] task="N1"
check(window_blocks(15, 16, 4), 4, "tokens 0 to 15")
check(window_blocks(16, 16, 4), 5, "tokens 1 to 16: the first block is still read")
check(window_blocks(19, 16, 4), 4, "tokens 4 to 19")
check(window_blocks(3, 16, 4), 1, "the text is shorter than the window")
check(window_blocks(3, 16, 1), 4, "blocks of one token: tokens 0 to 3")
check(window_blocks(20, 16, 1), 16, "blocks of one token: tokens 5 to 20")

# %% tags=["predict"] task="P1" title="Bytes after 1,000 tokens" why="A full layer has 4,096 bytes for each of 1,000 tokens, 4.1 MB. The state has 2.1 MB, however long the text. So it is about half; below 524 tokens the state is the larger one."
guess = predict("P1", 0.1, "A full layer keeps 4,096 bytes a token, a state 2,146,304 bytes. After 1,000 tokens the state has how many times the bytes of the full layer?")  # SOLUTION: guess = predict("P1", ..., "A full layer keeps 4,096 bytes a token, a state 2,146,304 bytes. After 1,000 tokens the state has how many times the bytes of the full layer?")

# %%
kinds = {"full": FULL, "window 16": window(16), "state": STATE, "latent": FULL}
scheduler = engine(*kinds.values(), blocks=1200)
ask(scheduler, "r", range(8), answer=1000)
held = {name: [] for name in kinds}
lengths = []
while len(lengths) < 1000 - 8:
    plan = step(scheduler)
    tables = scheduler.kv_cache_manager.get_group_block_ids("r")
    lengths.append(scheduler.requests["r"].num_computed_tokens)
    for name, table in zip(kinds, tables, strict=True):
        held[name].append(sum(map(bool, table)))
for length in (10, 100, 990):
    at = lengths.index(length)
    print(f"{length:4} tokens:", ", ".join(f"{name} {held[name][at]}" for name in kinds))
score("P1", 2_146_304 / (1000 * 4096))

BYTES = {"full": 4 * 4096, "window 16": 4 * 4096, "latent": 4 * 1152}
for (name, counts), style, colour in zip(held.items(), ("-", "--", "-.", ":"), (BLUE, ORANGE, GREEN, PINK), strict=True):
    size = [2_146_304] * len(lengths) if name == "state" else [BYTES[name] * count for count in counts]
    plt.plot(lengths, size, style, color=colour, label=name)
plt.yscale("log")
plt.xlabel("computed tokens")
plt.ylabel("bytes of one layer")
plt.title("Full grows, a latent grows thinly, a window stops, a state is flat")
plt.legend()
plt.show()

# %% [markdown]
# ## 2. What hits
#
# With states a prompt is computed up to its last whole block, and the rest in a step of its own. A state is kept where a step ended.

# %% tags=["todo"] task="N2" title="What hits when a prompt is sent again"
def hit_again(length, block):
    """Tokens that hit when a prompt of `length` tokens is sent a second time, to a model with states. One token must be computed."""
    # BEGIN SOLUTION
    kept = length // block * block
    return kept if kept <= length - 1 else 0
    # END SOLUTION

# %% tags=["check"] task="N2"
check(hit_again(22, 4), 20, "a step ended after 20 tokens")
check(hit_again(24, 4), 0, "the only state is behind token 24, and at most 23 may hit")
check(hit_again(25, 4), 24, "24 of 25")
check(hit_again(3, 4), 0, "no whole block")

# %% tags=["predict"] task="P2" title="A shared beginning" why="The first prompt was computed in two steps, up to 40 and the rest. No step ended after 24, so no state is there, and the whole prompt is computed. A full layer alone would have found 24."
guess = predict("P2", 24, "A prompt of 42 tokens was served. The next has 42 tokens, too, and the first 24 are the same. How many hit?")  # SOLUTION: guess = predict("P2", ..., "A prompt of 42 tokens was served. The next has 42 tokens, too, and the first 24 are the same. How many hit?")

# %%
def hits(first, second, budget=64):
    """Tokens of the second prompt that hit, after the first was served."""
    scheduler = engine(FULL, window(16), STATE, budget=budget)
    ask(scheduler, "first", first)
    while scheduler.has_unfinished_requests():
        step(scheduler)
    ask(scheduler, "second", second)
    return scheduler.kv_cache_manager.get_computed_blocks(scheduler.requests["second"])[1]


for length in (22, 24, 25, 40):
    print(f"{length} tokens sent again: {hits(range(length), range(length))} hit")
parted = [*range(24), *range(900, 918)]
score("P2", hits(range(42), parted))
print(f"24 shared of 42: {hits(range(42), parted)} hit; with a budget of 24, so that a step ends there: {hits(range(42), parted, 24)}")

scheduler = engine(FULL, STATE)
ask(scheduler, "ana", range(22), 4)
ask(scheduler, "twin", range(22), 4)
print("twins:", [step(scheduler) for _ in range(3)])

# %% [markdown]
# The twin waits one step: what it could find is planned, and not computed.

# %% [markdown]
# ## 3. The starved prompt
#
# One request makes a token in each step. A prompt comes. Blocks have 4 tokens, and a chunk of a prompt ends with a block.

# %% tags=["predict"] task="P3" title="Budget 4" why="The request that makes tokens takes 1 of 4, and 3 are less than a block. So the prompt gets nothing in any step, until the other has ended: 27 steps. A budget of block + 1 is enough."
guess = predict("P3", 2, "The budget is 4, the other request makes 28 tokens. How many steps does the prompt wait?")  # SOLUTION: guess = predict("P3", ..., "The budget is 4, the other request makes 28 tokens. How many steps does the prompt wait?")

# %%
def waits(budget):
    """Steps in which the prompt gets nothing."""
    scheduler = engine(FULL, STATE, budget=budget)
    ask(scheduler, "talks", range(3), 28)
    step(scheduler)
    ask(scheduler, "prompt", range(100, 122))
    count = 0
    while "prompt" not in step(scheduler):
        count += 1
    return count


for budget in (4, 5, 6, 8):
    print(f"budget {budget}: the prompt waits {waits(budget)} steps")
score("P3", waits(4))

# %% [markdown]
# ## 4. A state in fewer bits
#
# The same tokens twice: once with the state in float32, once rounded to bfloat16 after every token. It forgets little: half of what it knows is
# left after about 140 tokens.

# %% tags=["todo"] task="N3" title="One token of the rule"
def delta_step(state, k, v, decay, strength):
    """The state [Dk, Dv] after one token: it decays (a factor), then the answer for `k` is corrected towards `v` by `strength`."""
    # BEGIN SOLUTION
    state = decay * state
    return state + torch.outer(k, strength * (v - state.T @ k))
    # END SOLUTION

# %% tags=["check"] task="N3"
one = torch.ones(1)
check(delta_step(torch.zeros(1, 1), one, 4 * one, 1.0, 0.5).item(), 2.0, "half of what is missing")
check(delta_step(torch.full((1, 1), 2.0), one, 4 * one, 0.5, 0.5).item(), 2.5, "2 decays to 1; 3 are missing, half of them is written")

# %%
def drift(tokens=512, heads=4, size=32):
    """The relative distance of the rounded state's outputs from the exact one's, token by token."""
    torch.manual_seed(0)
    exact, rounded, distance = torch.zeros(1, heads, size, size), torch.zeros(1, heads, size, size), []
    for _ in range(tokens):
        q, k, v = (torch.nn.functional.normalize(torch.randn(1, heads, size), dim=-1) for _ in range(3))
        g, beta = torch.full((1, heads), -0.005), torch.rand(1, heads)
        out, exact = recurrent_gated_delta_rule(q, k, v, g, beta, exact)
        other, rounded = recurrent_gated_delta_rule(q, k, v, g, beta, rounded)
        rounded = rounded.bfloat16().float()
        distance.append(((out - other).norm() / out.norm()).item())
    return distance


distance = drift()
plt.plot(distance, color=BLUE)
plt.yscale("log")
plt.xlabel("token")
plt.ylabel("relative error of the output")
plt.title("A state in bfloat16")
plt.show()
print(f"after 16 tokens {distance[15]:.4f}, after 64 {distance[63]:.4f}, after 512 {distance[511]:.4f}; a number in bfloat16 is off by up to 0.004")

# %% [markdown]
# ## 5. More requests as windows shrink
#
# Six groups, one full and five windows, over one pool. Prompts of 128 tokens, answers of 100. How many run side by side?

# %% tags=["predict"] task="P4" title="Windows of 8" why="As full layers, each of the six groups holds 32 blocks for a prompt of 128. Windows of 8 hold 2 or 3 blocks, in five of the six groups. Beside the full group's 32 to 57 that is a quarter to a fifth of the blocks, so nearly four times as many requests run."
guess = predict("P4", 2, "Five of six groups are windows of 8 tokens instead of full layers: how many times as many requests run at once?")  # SOLUTION: guess = predict("P4", ..., "Five of six groups are windows of 8 tokens instead of full layers: how many times as many requests run at once?")

# %%
def side_by_side(other):
    """The most requests that run at once."""
    scheduler = engine(FULL, *[other] * 5, blocks=900, budget=32, longest=256)
    for number in range(32):
        ask(scheduler, f"r{number}", range(1000 * number, 1000 * number + 128), 100)
    most = 0
    for _ in range(160):
        step(scheduler)
        most = max(most, len(scheduler.running))
    return most


sizes = (8, 16, 32, 64)
counts = [side_by_side(window(size)) for size in sizes]
full = side_by_side(FULL)
score("P4", counts[0] / full)
plt.bar([str(size) for size in sizes] + ["full"], [*counts, full], color=[BLUE] * 4 + [ORANGE])
plt.xlabel("window of five of the six groups")
plt.ylabel("requests side by side")
plt.title("The same pool")
plt.show()
print(dict(zip(sizes, counts, strict=True)), "full:", full)

# %% [markdown]
# ## 6. Which experts are read
#
# Many of these models have experts as well (phase 17). A step reads the weights of every expert that one of its tokens has chosen.

# %% tags=["todo"] task="N4" title="Experts that a step reads"
def experts_read(tokens, experts, chosen):
    """How many of the experts at least one token chooses on average, if each token takes `chosen` of them at random."""
    # BEGIN SOLUTION
    return experts * (1 - (1 - chosen / experts) ** tokens)
    # END SOLUTION

# %% tags=["check"] task="N4"
check_close(experts_read(1, 128, 8), 8.0, "one token reads its own")
check_close(experts_read(2, 4, 2), 3.0, "half of the rest is new")
check_close(experts_read(8, 128, 8), 51.6199, "8 tokens read 52 of 128")

# %%
tokens = range(1, 129)
plt.plot(tokens, [experts_read(n, 128, 8) for n in tokens], color=BLUE)
plt.xlabel("tokens of a step")
plt.ylabel("of 128 experts, 8 a token")
plt.title("A batch of 32 reads nearly all of them")
plt.show()

# %% [markdown]
# ## 7. Expand or absorb?
#
# N heads, L latents of C + R numbers, n queries. Expanding makes keys and values of all L latents, once. Absorbing moves a weight to each
# query, and then compares in the wide space of latents. Count the products.

# %% tags=["todo"] task="N5" title="Products of both forms"
def products(n, length, heads=128, latent=512, rope=64, key=128, value=128):
    """Multiplications (expanded, absorbed) of attention for `n` queries over `length` latents; weights, scores and values counted."""
    # BEGIN SOLUTION
    expanded = length * latent * heads * (key + value) + n * length * heads * (key + rope + value)
    absorbed = n * heads * latent * (key + value) + n * length * heads * (latent + rope + latent)
    return expanded, absorbed
    # END SOLUTION

# %% tags=["check"] task="N5"
check(products(1, 1, 1, 4, 2, 3, 5), (4 * 8 + 10, 4 * 8 + 10), "one of each, small numbers")
check(products(2, 10, 1, 4, 2, 3, 5), (10 * 4 * 8 + 2 * 10 * 10, 2 * 4 * 8 + 2 * 10 * 10), "two queries, ten latents: the weights differ")

# %% tags=["predict"] task="P5" title="Where expanding wins" why="Expanding costs 131,072 products a head and latent, once; absorbing 131,072 a query, and 768 more for each pair of query and latent. Over 4,096 latents they meet at 164 queries, over very many at 171. A prompt has more queries, a decode has one."
guess = predict("P5", 16, "4,096 latents of DeepSeek-V3: from how many queries on has the expanded form fewer products?")  # SOLUTION: guess = predict("P5", ..., "4,096 latents of DeepSeek-V3: from how many queries on has the expanded form fewer products?")

# %%
queries = [2**power for power in range(11)]
for index, (name, style, colour) in enumerate((("expanded", "o-", BLUE), ("absorbed", "s--", ORANGE))):
    plt.plot(queries, [products(n, 4096)[index] for n in queries], style, color=colour, label=name)
plt.xscale("log", base=2)
plt.yscale("log")
plt.xlabel("queries over 4,096 latents")
plt.ylabel("products")
plt.legend()
plt.show()
crossing = next(n for n in range(1, 4096) if products(n, 4096)[0] < products(n, 4096)[1])
score("P5", crossing)
print(f"one query: expanding takes {products(1, 4096)[0] / products(1, 4096)[1]:.0f} times the products; they cross at {crossing} queries")

# %% [markdown]
# Both forms give the same numbers: the engine takes the first for prompts and the second for decodes.

# %% [markdown]
# ## 8. Turn a sink off
#
# A sink of -inf is none. As it falls, which heads change first: those that look at something, or those that find nothing?

# %% tags=["todo"] task="N6" title="What a sink leaves"
def left_by_sink(lse, sink):
    """The factor on the output: the keys' share of a softmax that also has the sink. `lse` is the log of the sum of exp of the scores."""
    # BEGIN SOLUTION
    return 1 / (1 + math.exp(sink - lse))
    # END SOLUTION

# %% tags=["check"] task="N6"
check_close(left_by_sink(0.0, 0.0), 0.5, "as heavy as all keys together")
check_close(left_by_sink(math.log(2) - 2, 0.0), 2 / (2 + math.exp(2)), "two keys with score -2")
check_close(left_by_sink(5.0, float("-inf")), 1.0, "no sink")

# %%
sinks = [x / 4 for x in range(-40, 21)]
for lse, style, colour in ((-4.0, "-", ORANGE), (0.0, "--", GREEN), (6.0, "-.", BLUE)):
    plt.plot(sinks, [left_by_sink(lse, sink) for sink in sinks], style, color=colour, label=f"lse {lse:g}")
plt.xlabel("the sink's logit")
plt.ylabel("what is left of the output")
plt.title("A sink silences the head that finds nothing (lse -4)")
plt.legend()
plt.show()
out, lse = torch.ones(1, 1, 2), torch.tensor([[math.log(2) - 2]])
print("the engine's add_sink:", add_sink(out, lse, torch.zeros(1))[0, 0].tolist(), "and without a sink:", add_sink(out, lse, torch.full((1,), -math.inf))[0, 0].tolist())

# %% [markdown]
# **What you should be able to say now:** what each kind holds after n tokens; why a prompt of whole blocks finds no state; how a budget can starve a
# prompt; why states are kept in float32; how windows make room; and which form of latent attention serves whom.
