# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 17: models and experts
#
# You count how many experts a batch of real text hits, see what rounding does to a router, weigh what a group
# limit saves and costs, train a router until all its experts are busy, and spread hot experts over ranks.
# Before each experiment you write down a guess.
#
# The states come from the bundled model, the stories that it wrote, and routers that are drawn at random. So nothing is
# downloaded, and the numbers are nearly the same on every machine.
#
# | word | meaning |
# |---|---|
# | E, k | experts of a layer; experts that a token uses |
# | hit | chosen by at least one token of the step |
# | load | tokens that an expert has to compute |

# %% tags=["setup"]
import os
import warnings

os.environ["TRITON_INTERPRET"] = "0"  # no kernel is judged here: the engine at full speed

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

warnings.filterwarnings("ignore", message="IProgress")  # no progress bars needed here
torch.set_num_threads(1)
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed.eplb.policy import rebalance_experts
from mini_vllm.distributed.expert_parallel import at_first
from mini_vllm.model.moe.grouped import product_by_expert, sort_by_expert
from mini_vllm.model.moe.routers import fused_topk, grouped_topk

# %% [markdown]
# ## Text, and a state for each of its tokens
#
# Sixteen stories of the bundled model. Then the same model as a pooling model says what its last layer made of each token.

# %%
ANIMALS = "fox bear owl cat hen rabbit mouse duck wolf goat bee ant dog horse frog swan".split()
LENGTH = 128
writer = LLM("storyteller", dtype="float32", num_gpu_blocks=256, max_num_seqs=16)
params = [SamplingParams(temperature=0.8, seed=seed, max_tokens=LENGTH, ignore_eos=True) for seed in range(16)]
written = writer.generate([f"Once upon a time there was a {animal}" for animal in ANIMALS], params, use_tqdm=False)
texts = [(output.prompt_token_ids + list(output.outputs[0].token_ids))[:LENGTH] for output in written]

reader = LLM("storyteller", runner="pooling", dtype="float32", num_gpu_blocks=256)
encoded = reader.encode([{"prompt_token_ids": text} for text in texts], pooling_task="token_embed", use_tqdm=False)
states = torch.stack([torch.as_tensor(output.outputs.data) for output in encoded])
states = F.rms_norm(states, states.shape[-1:])  # [16 stories, 128 tokens, H], as a router reads them
print(states.shape)


def random_router(num_experts, seed=0):
    """A router that was never trained: `[E, H]`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_experts, states.shape[-1], generator=generator) / states.shape[-1] ** 0.5

# %% [markdown]
# ## 1. How many experts does a step hit?
#
# If each token chooses k of E experts independently of all others, and all experts equally often, an expert is missed by one token with
# probability 1 - k/E.

# %% tags=["predict"] task="P1" title="Experts that eight tokens hit" why="A token misses an expert with probability 1 - 8/128, all eight do with that to the power of 8, which is 0.60. So 128 x 0.40 = 52 are hit: 6.5 times as many as by one token, for few are chosen twice."
guess = predict("P1", 40, "128 experts, 8 for a token: how many are hit by 8 tokens?")  # SOLUTION: guess = predict("P1", ..., "128 experts, 8 for a token: how many are hit by 8 tokens?")

# %% tags=["todo"] task="N1" title="Experts that are hit, on average"
def experts_hit(num_tokens, num_experts, k):
    """How many of `num_experts` are chosen by at least one of `num_tokens` tokens, on average."""
    # BEGIN SOLUTION
    return num_experts * (1 - (1 - k / num_experts) ** num_tokens)
    # END SOLUTION

# %% tags=["check"] task="N1"
check(experts_hit(1, 128, 8), 8.0, "one token hits its own k")
check(experts_hit(2, 4, 1), 1.75, "the second token chooses the same one with probability 1/4")
check(experts_hit(1000, 8, 2), 8.0, "many tokens hit all")

# %%
score("P1", experts_hit(8, 128, 8))
E, K = 128, 8
_, ids = fused_topk(states.flatten(0, 1) @ random_router(E).T, K, True)
ids = ids.view(*states.shape[:2], K)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def mean(numbers):
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def measured(choose):
    return [mean(len(choose(size, turn).unique()) for turn in range(40)) for size in SIZES]


generator = torch.Generator().manual_seed(1)
prompt = measured(lambda size, turn: ids[turn % 16, : size])
mixed = measured(lambda size, turn: ids.flatten(0, 1)[torch.randperm(16 * LENGTH, generator=generator)[:size]])
plt.plot(SIZES, [experts_hit(size, E, K) for size in SIZES], color=BLUE, label="the formula")
plt.plot(SIZES, mixed, "o", color=GREEN, label="tokens from all stories")
plt.plot(SIZES, prompt, "s", color=ORANGE, label="the first tokens of one story")
plt.xscale("log", base=2)
plt.xlabel("tokens in the step")
plt.ylabel(f"experts hit, of {E}")
plt.legend()
plt.show()
for size, formula, one, many in zip(SIZES, (experts_hit(s, E, K) for s in SIZES), prompt, mixed):
    print(f"{size:4} tokens: formula {formula:5.1f}, one story {one:5.1f}, all stories {many:5.1f}")

# %% [markdown]
# Real tokens hit fewer experts than the formula says: tokens that are alike choose alike. A chunk of one prompt reads fewer weights than a decode step of as many
# requests.

# %% [markdown]
# ## 2. A router in bfloat16
#
# The 8th and the 9th best of 128 scores are often close together. What if the logits are rounded to bfloat16, which has 8 bits of precision?

# %% tags=["predict"] task="P2" title="Tokens that change their experts" why="A logit near 1 is rounded by up to 0.004, and between the 8th and the 9th of 128 logits lies 0.06 on average, and often much less. About four tokens in a hundred get another expert. In a model with 48 layers, if each does so by itself, only one token in six has the same experts in all of them (0.963 to the power of 48)."
guess = predict("P2", 1, "Of 100 tokens, how many choose another set of 8 of 128 experts if the router's product is in bfloat16?")  # SOLUTION: guess = predict("P2", ..., "Of 100 tokens, how many choose another set of 8 of 128 experts if the router's product is in bfloat16?")

# %% tags=["todo"] task="N2" title="Share of tokens with other experts"
def share_changed(ids, other_ids):
    """The share of tokens whose set of experts differs; both are `[T, k]`, each row in any order."""
    # BEGIN SOLUTION
    pairs = zip(ids.tolist(), other_ids.tolist())
    return sum(set(own) != set(other) for own, other in pairs) / len(ids)
    # END SOLUTION

# %% tags=["check"] task="N2"
check(share_changed(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[2, 1], [3, 5]])), 0.5, "another order is no other set")
check(share_changed(torch.tensor([[1, 2]]), torch.tensor([[1, 3]])), 1.0, "one other expert is another set")

# %%
flat = states.flatten(0, 1)


def changed(num_experts, k):
    router = random_router(num_experts)
    exact = fused_topk(flat @ router.T, k, True)[1]
    rounded = fused_topk(flat.bfloat16() @ router.bfloat16().T, k, True)[1]
    return share_changed(exact, rounded)


for num_experts, k in ((8, 2), (64, 6), (128, 8), (256, 8)):
    print(f"{num_experts:4} experts, {k} chosen: {changed(num_experts, k):6.1%} of the tokens change")
score("P2", 100 * changed(128, 8))

# %% [markdown]
# ## 3. What a group limit saves, and what it costs
#
# 64 experts lie in 8 groups, a machine each; a token uses 6. Its row travels once to each machine that has one of its experts. A limit lets it use the best few groups only.

# %% tags=["todo"] task="N3" title="Machines that a token's row travels to"
def machines(ids, experts_per_machine):
    """On how many machines the experts of a token lie, averaged over tokens; `ids` is `[T, k]`, and machine m has
    experts m * experts_per_machine and up."""
    # BEGIN SOLUTION
    return sum(len((row // experts_per_machine).unique()) for row in ids) / len(ids)
    # END SOLUTION

# %% tags=["check"] task="N3"
check(machines(torch.tensor([[0, 1, 9]]), 8), 2.0, "0 and 1 are on one machine, 9 on the next")
check(machines(torch.tensor([[0, 1], [0, 8]]), 8), 1.5, "one machine for the first token, two for the second")

# %% tags=["predict"] task="P3" title="Experts that stay" why="The limit forbids the experts of five groups of eight, and three of ten choices fall on them. But those are mostly the weaker ones of the six, and what takes their place is nearly as good: the scores lose 2 %, while the traffic falls by a third."
guess = predict("P3", 80, "Limited to 3 of 8 groups, what percentage of the experts are those that the token would have chosen freely?")  # SOLUTION: guess = predict("P3", ..., "Limited to 3 of 8 groups, what percentage of the experts are those that the token would have chosen freely?")

# %%
logits = flat @ random_router(64, seed=2).T
bias = torch.zeros(64)
free_weights, free = grouped_topk(logits, 6, False, 1, 1, "sigmoid", 1.0, bias)
print("groups   machines   same experts   sum of the scores")
for limit in (8, 4, 3, 2, 1):
    weights, chosen = grouped_topk(logits, 6, False, 8, limit, "sigmoid", 1.0, bias)
    same = (chosen[:, :, None] == free[:, None]).any(-1).float().mean().item()
    kept = (weights.sum(-1) / free_weights.sum(-1)).mean().item()
    print(f"{limit:6}{machines(chosen, 8):11.2f}{same:15.0%}{kept:20.1%}")
    if limit == 3:
        score("P3", 100 * same)

# %% [markdown]
# ## 4. Busy experts, by a bias
#
# A tiny model learns the stories: an embedding, one layer of 16 experts of which a token uses 2, a head. Nothing tells its router to be fair. Then the same with
# DeepSeek V3's rule: after each step the bias of an expert that had more than its share falls by a little, that of any other rises.

# %% tags=["todo"] task="N4" title="Move the bias"
def moved_bias(bias, load, rate):
    """`bias` `[E]` after a step in which the experts had `load` `[E]` tokens: lower by `rate` for those above the
    mean, higher by `rate` for those below, as it was at the mean."""
    # BEGIN SOLUTION
    return bias + rate * torch.sign(load.float().mean() - load.float())
    # END SOLUTION

# %% tags=["check"] task="N4"
check(moved_bias(torch.zeros(3), torch.tensor([9, 0, 0]), 0.5).tolist(), [-0.5, 0.5, 0.5], "the first is above the mean of 3")
check(moved_bias(torch.ones(2), torch.tensor([4, 4]), 0.5).tolist(), [1.0, 1.0], "both are at the mean")

# %% tags=["predict"] task="P4" title="The hottest expert without a bias" why="Whatever is chosen a little more often learns a little faster, and is chosen more often. After 200 steps the hottest expert has about twice its share, the coldest a third of it. With the bias all are near 1, and the loss is the same: which expert learns a token matters little."
guess = predict("P4", 1.5, "Trained without a bias: how many times its even share has the hottest of 16 experts?")  # SOLUTION: guess = predict("P4", ..., "Trained without a bias: how many times its even share has the hottest of 16 experts?")

# %%
inputs = torch.cat([torch.tensor(text[:-1]) for text in texts])
targets = torch.cat([torch.tensor(text[1:]) for text in texts])


def train(rate, steps=200, experts=16, k=2, hidden=48, inner=24, vocabulary=2048):
    """Returns the loads `[E]` of all text after training, and the last losses' mean."""
    torch.manual_seed(0)
    shapes = [(vocabulary, hidden), (experts, hidden), (experts, inner, hidden), (experts, hidden, inner), (vocabulary, hidden)]
    weights = [(torch.randn(shape) / shape[-1] ** (0.5 if index else 0)).requires_grad_() for index, shape in enumerate(shapes)]
    embedding, router, up, down, head = weights
    optimizer = torch.optim.AdamW(weights, 3e-3, weight_decay=0.0)
    bias, losses = torch.zeros(experts), []

    def route(x):
        return grouped_topk(x @ router.T, k, True, 1, 1, "sigmoid", 1.0, bias)

    for _ in range(steps):
        picked = torch.randint(len(inputs), (256,))
        x = F.rms_norm(embedding[inputs[picked]], (hidden,))
        scale, ids = route(x)
        pairs, counts = sort_by_expert(ids, experts)
        results = product_by_expert(F.silu(product_by_expert(x[pairs // k], up, counts)), down, counts)
        mixed = torch.zeros_like(x).index_add(0, pairs // k, results * scale.flatten()[pairs, None])
        loss = F.cross_entropy((x + mixed) @ head.T, targets[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bias = moved_bias(bias, counts, rate)
        losses.append(loss.item())
    with torch.no_grad():
        _, ids = route(F.rms_norm(embedding[inputs], (hidden,)))
    return ids.flatten().bincount(minlength=experts), sum(losses[-20:]) / 20


loads, figure = {}, plt.figure()
for rate, colour in ((0.0, ORANGE), (0.002, BLUE)):
    loads[rate], loss = train(rate)
    shares = (loads[rate] / loads[rate].float().mean()).sort(descending=True).values
    plt.plot(shares, "o-", color=colour, label=f"bias moves by {rate:g}: loss {loss:.2f}")
    print(f"bias moves by {rate:g}: loss {loss:.3f}, hottest {shares[0]:.2f}, coldest {shares[-1]:.2f} of the even share")
plt.xlabel("experts, the hottest first")
plt.ylabel("load, even is 1")
plt.legend()
plt.show()
score("P4", (loads[0.0].max() / loads[0.0].float().mean()).item())

# %% [markdown]
# ## 5. Hot experts on four ranks
#
# The loads of the router without a bias, on four ranks. All wait for the busiest.

# %% tags=["todo"] task="N5" title="The busiest rank"
def busiest(loads, places, num_ranks):
    """What the busiest rank has to do, as a multiple of the average. `loads` `[E]`; `places` `[P]` is the expert of each
    place, P / num_ranks neighbours are a rank; the copies of an expert share its load evenly."""
    # BEGIN SOLUTION
    each = loads.float() / places.bincount()
    by_rank = each[places].view(num_ranks, -1).sum(1)
    return (by_rank.max() / by_rank.mean()).item()
    # END SOLUTION

# %% tags=["check"] task="N5"
check(round(busiest(torch.tensor([10, 20, 30, 90]), torch.tensor([0, 1, 2, 3]), 2), 3), 1.6, "30 and 120; the average is 75")
check(round(busiest(torch.tensor([10, 20, 30, 90]), torch.tensor([3, 3, 1, 2, 3, 0]), 2), 3), 1.067, "three copies of the hot one: 80 and 70")

# %% tags=["predict"] task="P5" title="After moving" why="With 16 experts there are many ways to fill four ranks, and no expert has more tokens than an average rank. So moving alone brings the busiest rank to the average, and copies hardly help: they do where one expert is hotter than a whole rank, as in the guide."
guess = predict("P5", 1.2, "Moved by these loads, without copies: the busiest of four ranks has how many times the average?")  # SOLUTION: guess = predict("P5", ..., "Moved by these loads, without copies: the busiest of four ranks has how many times the average?")

# %%
hot = loads[0.0]
for copies in (0, 4, 8):
    number = len(hot) + copies
    moved = rebalance_experts(hot[None], number, 1, 1, 4)[0]
    print(f"{copies} copies: as loaded {busiest(hot, at_first(len(hot), number), 4):.2f} x, moved {busiest(hot, moved, 4):.2f} x")
score("P5", busiest(hot, rebalance_experts(hot[None], len(hot), 1, 1, 4)[0], 4))

# %% [markdown]
# ## 6. Cut vectors
#
# A vector for each story, and how alike two of them are. What if only the first numbers are kept?

# %% tags=["todo"] task="N6" title="Cosines of cut vectors"
def cosines(vectors, dimensions):
    """The cosine of each pair, `[N, N]`, of the first `dimensions` numbers of `vectors` `[N, D]`."""
    # BEGIN SOLUTION
    cut = F.normalize(vectors[:, :dimensions])
    return cut @ cut.T
    # END SOLUTION

# %% tags=["check"] task="N6"
check(round(cosines(torch.tensor([[3.0, 4.0, 12.0], [4.0, 3.0, -12.0]]), 2)[0, 1].item(), 2), 0.96, "3 x 4 + 4 x 3 over 5 x 5")
check(round(cosines(torch.tensor([[3.0, 4.0, 12.0], [4.0, 3.0, -12.0]]), 3)[0, 1].item(), 2), -0.71, "of all three numbers")

# %%
vectors = states.mean(1)
whole = cosines(vectors, vectors.shape[1])
pairs = torch.triu_indices(len(vectors), len(vectors), 1)
for dimensions in (192, 96, 48, 24, 12):
    cut = cosines(vectors, dimensions)
    off = (cut - whole)[pairs[0], pairs[1]].abs().mean().item()
    nearest = cut.clone().fill_diagonal_(-1).argmax(1) == whole.clone().fill_diagonal_(-1).argmax(1)
    print(f"{dimensions:4} numbers: cosines off by {off:.3f}, the nearest story is the same for {int(nearest.sum())} of {len(vectors)}")

# %% [markdown]
# This model was not trained for it. With a quarter of the numbers many stories have another neighbour. A Matryoshka model is trained on cut vectors as well, and says so in its config: others
# refuse `dimensions`.
