# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 10: more than one device
#
# You count what a forward pass exchanges, draw what an exchange costs, compare the logits of one, two and
# four shards, fill a pipeline, route requests by old news, and try two cuts that the engine does not have:
# by experts, and along the sequence. Small functions are yours to write; each is checked at once. Before
# each experiment you write down a guess.
#
# Ranks are threads of this process. Every number below repeats: nothing is timed. The model runs with
# **your** files if you start the notebook with `make notebook-10`.

# %% tags=["setup"]
import matplotlib.pyplot as plt
import numpy as np
import torch

from mini_vllm import bundled
from mini_vllm.attention import AttentionMetadata
from mini_vllm.distributed.collectives import one_shot_time, ring_time, tree_time
from mini_vllm.distributed.dp_router import DPRouter
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.distributed.simulated import run_ranks
from mini_vllm.model.build import load_model

torch.set_num_threads(1)
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#DDDDDD"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3}
MODEL = bundled.path("storyteller")
PROMPT = torch.tensor([11, 42, 7, 99, 150, 3, 77, 1000])


def logits_of(model):
    """Logits [8, V] of the prompt, from a cache of its own."""
    spec = model.kv_cache_spec()
    caches = [torch.zeros(2, 2, 8, spec.num_kv_heads, spec.head_dim) for _ in range(spec.num_layers)]
    metadata = AttentionMetadata.from_lists([8], [8], [[1]], 8, torch.device("cpu"))
    return model.compute_logits(model(PROMPT, torch.arange(8), caches, metadata))


def shard(group):
    """The model's part on one rank, its logits, and what it has exchanged."""
    parallel = ModelParallel(group, GroupCoordinator([0], 0))
    model = load_model(MODEL, dtype="float32", parallel=parallel)
    spec = model.kv_cache_spec()
    weights = sum(p.numel() for p in model.parameters())
    return logits_of(model), group.num_exchanged, weights, spec.num_kv_heads


# %% [markdown]
# ## 1. What a forward pass exchanges
#
# Two all-reduces a layer, one for the embedding, and all logits at the end.

# %% tags=["todo"] task="N1" title="Numbers that a rank hands to all_reduce"
def numbers_reduced(layers: int, tokens: int, hidden: int) -> int:
    """Of one forward pass with divided layers and a divided embedding."""
    # BEGIN SOLUTION
    return (2 * layers + 1) * tokens * hidden
    # END SOLUTION

# %% tags=["check"] task="N1"
check(numbers_reduced(1, 1, 10), 30, "one layer, one token, hidden size 10")
check(numbers_reduced(32, 1, 4096), 266_240, "an 8B model, one token")

# %% tags=["predict"] task="P1" title="What the bundled model exchanges" why="Every layer reduces twice, behind attention and behind the MLP, and the embedding once: 2 x 4 + 1 = 9 times 192 numbers for each of 8 tokens."
guess = predict("P1", 13824, "storyteller has 4 layers and hidden size 192. How many numbers does a rank hand to all_reduce for a prompt of 8 tokens?")  # SOLUTION: guess = predict("P1", ..., "storyteller has 4 layers and hidden size 192. How many numbers does a rank hand to all_reduce for a prompt of 8 tokens?")

# %%
runs = {p: run_ranks(p, shard) for p in (1, 2, 4)}
score("P1", runs[2][0][1]["all_reduce"])
for p, ranks in runs.items():
    _, exchanged, weights, kv_heads = ranks[0]
    print(f"{p} ranks: {exchanged['all_reduce']:6} numbers reduced, {exchanged['all_gather']:6} gathered, {weights:8} weights and {kv_heads} KV heads a rank")

# %% [markdown]
# One rank alone hands its sums over, too, and gets them back; its embedding is whole, so that one is missing. On
# four ranks a KV head is held twice, for the model has only two: that is why the weights do not shrink to a quarter.
#
# ## 2. The same answer?
#
# Sums in another order are not the same to the bit. Is the best token?

# %%
whole = runs[1][0][0]
for p, ranks in runs.items():
    off = max(float((logits - whole).abs().max()) for logits, *_ in ranks)
    same = all(torch.equal(logits, ranks[0][0]) for logits, *_ in ranks)
    best = bool((ranks[0][0].argmax(-1) == whole.argmax(-1)).all())
    print(f"{p} ranks: largest difference {off:.1e}, ranks agree to the bit: {same}, same best tokens: {best}")
top = whole.topk(2).values
print(f"smallest distance between best and second best: {float((top[:, 0] - top[:, 1]).min()):.2f}")

# %% [markdown]
# The differences are tens of thousands of times smaller than the distance between the two best tokens. Where that
# distance is nearly nothing, two numbers of ranks may choose differently, and neither is wrong.
#
# ## 3. What an exchange costs
#
# 5 µs a message and 300 GB/s. Short messages want few rounds, long ones want short messages.

# %% tags=["todo"] task="N2" title="Where the ring begins to win"
def crossing(p: int, alpha: float, beta: float) -> float:
    """Bytes at which ring and one shot take the same time; p is at least 3."""
    # BEGIN SOLUTION
    return alpha * (2 * p - 3) / (beta * (p - 1) * (1 - 2 / p))
    # END SOLUTION

# %% tags=["check"] task="N2"
check(round(crossing(4, 1.0, 1.0), 3), round(5 / 1.5, 3), "6 (1 + n/4) = 1 + 3 n")
check(round(crossing(8, 5e-6, 1 / 300e9) / 1e6, 1), 3.7, "8 ranks, 5 us, 300 GB/s, in MB")

# %% tags=["predict"] task="P2" title="Requests at which the ring begins to win" why="A ring takes many short turns and sends each byte about twice; one shot takes a single turn and sends everything to every rank. Small messages pay for turns, large ones for bytes. They cross at 3.7 MB, and one request's message is 4096 x 2 = 8,192 bytes."
guess = predict("P2", 454, "Hidden size 4096, 2 bytes a number, 8 ranks, 5 us, 300 GB/s. From how many requests on does a decode step's message go faster around a ring?")  # SOLUTION: guess = predict("P2", ..., "Hidden size 4096, 2 bytes a number, 8 ranks, 5 us, 300 GB/s. From how many requests on does a decode step's message go faster around a ring?")

# %%
alpha, beta = 5e-6, 1 / 300e9
score("P2", int(np.ceil(crossing(8, alpha, beta) / 8192)))
sizes = np.logspace(3, 9, 200)
for name, cost, colour in (("ring", ring_time, BLUE), ("one shot", one_shot_time, ORANGE), ("tree", tree_time, GREEN)):
    plt.loglog(sizes, [1e6 * cost(n, 8, alpha, beta) for n in sizes], color=colour, label=name)
for n, name in ((8192, "1 token"), (32 * 8192, "32 tokens"), (4096 * 8192, "prompt")):
    plt.axvline(n, color=GREY, zorder=0)
    plt.text(n, 0.97, name, rotation=90, ha="right", va="top", transform=plt.gca().get_xaxis_transform())
plt.xlabel("bytes")
plt.ylabel("microseconds")
plt.title("8 ranks, hidden size 4096, bfloat16")
plt.legend()
plt.show()
weights, bandwidth, layers = 16e9, 4.8e12, 32
for p in (1, 2, 4, 8):
    step = weights / p / bandwidth + (2 * layers + 1) * one_shot_time(8192, p, alpha, beta)
    print(f"p = {p}: {1e3 * step:.2f} ms a step, {weights / bandwidth / step:.1f} x")

# %% [markdown]
# ## 4. Filling a pipeline
#
# Each stage takes one tick. A request's next token can start when its last one has come out.

# %% tags=["todo"] task="N3" title="How busy a stage is"
def busy(batches: int, stages: int) -> float:
    """The share of time that a stage computes, with so many batches always in flight."""
    # BEGIN SOLUTION
    return min(batches, stages) / stages
    # END SOLUTION

# %% tags=["check"] task="N3"
check(busy(1, 4), 0.25, "one batch, four stages")
check(busy(8, 4), 1.0, "eight batches, four stages: a stage is never more than busy")

# %%
def timeline(batches: int, stages: int, ticks: int = 12):
    """Which batch a stage computes at each tick; None: nothing."""
    rows = [[None] * ticks for _ in range(stages)]
    free, ready = [0] * stages, {batch: 0 for batch in range(batches)}
    while min(ready.values()) < ticks:
        batch = min(ready, key=ready.get)
        now = ready[batch]
        for stage in range(stages):
            now = max(now, free[stage])
            if now < ticks:
                rows[stage][now] = batch
            now = free[stage] = now + 1
        ready[batch] = now
    return rows


for batches in (1, 2, 4):
    print(f"{batches} in flight, 4 stages; busy by your formula: {busy(batches, 4):.2f}")
    for stage, row in enumerate(timeline(batches, 4)):
        print(f"   stage {stage}  " + " ".join("." if batch is None else "ABCD"[batch] for batch in row))

# %% [markdown]
# ## 5. Routing by old news
#
# Four engines with two places each, short and long requests. An engine tells its counts now and then; a router that counts what it
# has sent itself is not fooled in between.

# %% tags=["predict"] task="P3" title="A burst, and no news" why="The router counts what it has sent itself, so it needs no news to spread a burst: each engine gets a quarter."
guess = predict("P3", 100, "400 requests come at once to 4 idle engines, and none tells its counts. How many does the busiest engine get?")  # SOLUTION: guess = predict("P3", ..., "400 requests come at once to 4 idle engines, and none tells its counts. How many does the busiest engine get?")

# %%
router = DPRouter(4)
chosen = [router.get_core_engine_for_request(str(n)) for n in range(400)]
score("P3", max(chosen.count(engine) for engine in range(4)))


def waits(policy: str, every: int) -> float:
    """The wait, in ticks, that 95 of 100 requests stay below; engines tell their counts so often."""
    draw = np.random.default_rng(10)
    engines, ask, told = [[] for _ in range(4)], DPRouter(4), []
    for tick in range(4000):
        if every and tick % every == 0:
            for e, work in enumerate(engines):
                ask.set_counts(e, max(len(work) - 2, 0), min(len(work), 2))
        for _ in range(draw.poisson(0.42)):
            length = int(draw.choice([4, 60], p=[0.75, 0.25]))
            e = {"random": int(draw.integers(4)), "in turn": len(told) % 4}.get(policy)
            if e is None:
                e = ask.get_core_engine_for_request(str(tick))
            ahead = engines[e][:]
            told.append(sum(ahead) / 2)
            engines[e].append(length)
        for work in engines:
            for i in range(min(len(work), 2)):
                work[i] -= 1
            work[:] = [left for left in work if left > 0]
    return float(np.percentile(told, 95))


for policy, every in (("random", 0), ("in turn", 0), ("router", 1), ("router", 10), ("router", 100), ("router", 1000)):
    news = f", news every {every} ticks" if every else ""
    print(f"{policy}{news}: 95 of 100 find less than {waits(policy, every):.0f} ticks of work before them")

# %% [markdown]
# Every request costs as much under each policy: only who waits behind whom differs. News of the last tick more than
# halve the long waits of taking turns. A thousand ticks old, they are worth hardly anything.
#
# ## 6. Cut by experts
#
# A mixture of experts has many MLPs, of which a token uses two. Put whole experts on ranks: tokens travel to their
# experts and back. No partial sums are added up, but some ranks get more than others.

# %% tags=["todo"] task="N4" title="Which rank has an expert"
def rank_of(expert: int, experts: int, p: int) -> int:
    """Neighbouring experts lie together; p divides their number."""
    # BEGIN SOLUTION
    return expert // (experts // p)
    # END SOLUTION

# %% tags=["check"] task="N4"
check([rank_of(e, 8, 4) for e in range(8)], [0, 0, 1, 1, 2, 2, 3, 3], "8 experts, 4 ranks")

# %%
draw = torch.Generator().manual_seed(10)
experts, tokens, hidden = 8, 64, 16
matrices = torch.randn(experts, hidden, hidden, generator=draw)
x = torch.randn(tokens, hidden, generator=draw)
popularity = torch.linspace(1.0, 2.5, experts)
choice = (torch.randn(tokens, experts, generator=draw) + popularity).topk(2).indices
right = torch.stack([sum(matrices[e] @ x[t] for e in choice[t]) for t in range(tokens)])


def rank_with_experts(group):
    """Each rank computes its experts' tokens; here the way back is a sum of mostly zeros."""
    y, work = torch.zeros_like(x), 0
    for t in range(tokens):
        for e in choice[t].tolist():
            if rank_of(e, experts, group.world_size) == group.rank_in_group:
                y[t] += matrices[e] @ x[t]
                work += 1
    return group.all_reduce(y), work


ranks = run_ranks(4, rank_with_experts)
print("the same result:", torch.allclose(ranks[0][0], right, atol=1e-4))
loads = [work for _, work in ranks]
print(f"tokens a rank: {loads}; the slowest has {max(loads) / (sum(loads) / 4):.2f} times the mean, and all wait for it")

# %% [markdown]
# Popular experts lie on the last rank here. An engine may move experts, or hold popular ones twice; a router may be
# trained to spread.
#
# ## 7. Cut along the sequence
#
# After an all-reduce every rank computes the same norm of the same tokens. An all-reduce is a reduce-scatter and an
# all-gather: between the two, each rank has T / p tokens, and the norm costs a p-th.

# %%
def norm(h):
    return h / h.pow(2).mean(-1, keepdim=True).sqrt()


parts = torch.randn(4, 32, 8, generator=draw)


def replicated(group):
    return norm(group.all_reduce(parts[group.rank].clone())), 32


def scattered(group):
    whole = group.all_reduce(parts[group.rank].clone())  # stands for a reduce-scatter: each keeps its rows
    mine = whole.chunk(group.world_size)[group.rank]
    return group.all_gather(norm(mine), dim=0), len(mine)


for name, work in (("replicated", replicated), ("by sequence", scattered)):
    ranks = run_ranks(4, work)
    same = torch.allclose(ranks[3][0], norm(parts.sum(0)), atol=1e-6)
    print(f"{name:12} right: {same}, tokens normed a rank: {ranks[0][1]}, bytes on a link: {2 * 3 / 4 * 32 * 8 * 4:.0f}")

# %% [markdown]
# The same bytes travel, in two halves. What is saved is the work between them and the memory for it, which is much in
# training and little in decode. In vLLM this is a pass of the compiler, off unless it is asked for.
