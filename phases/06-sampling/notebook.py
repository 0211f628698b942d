# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 06: from logits to text, reproducibly
#
# You walk one row of logits through every step, hold sampled counts against theory, look at what
# temperature and top-p do to a real model, show that a seeded request does not depend on its
# neighbours, and watch text come out of tokens that cut characters and stop strings in half. Small functions
# are yours to write; each is checked at once. Before each experiment you write down a guess.
#
# Every seed is fixed, so your numbers equal those printed here.
#
# | word | meaning |
# |---|---|
# | logit | the model's raw score of a token; only differences of logits matter |
# | entropy | how many bits a draw from a distribution tells; n equally likely tokens have log2(n) |
# | batch invariance | a request's tokens do not depend on the rest of the batch |
# | hold back | not give text out yet, because a later token may decide about it |

# %% tags=["setup"]
import math
import warnings

import matplotlib.pyplot as plt

warnings.filterwarnings("ignore", message="IProgress")  # no progress bars needed here

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.6), "axes.grid": True, "grid.alpha": 0.3}

# %% [markdown]
# ## 1. One row, step by step
#
# A vocabulary of six words. The prompt was "the", the output so far is "fox". The request bans END
# before three tokens, likes "ran", dislikes what was used, and then samples with everything on.

# %%
import torch

from mini_vllm import SamplingParams
from mini_vllm.bundled import path as bundled_path
from mini_vllm.sample import Sampler, make_sampling_metadata
from mini_vllm.sample.logits_processors import (
    apply_logit_bias,
    apply_min_p,
    apply_min_tokens,
    apply_penalties,
    apply_temperature,
    apply_top_k,
    apply_top_p,
)
from mini_vllm.sample.sampler import sample_from_logits, uniform_numbers

torch.set_num_threads(1)
WORDS = ["the", "fox", "dog", "sat", "ran", "END"]
request = SamplingParams(
    temperature=0.8, min_p=0.27, top_k=3, top_p=0.8, seed=7, min_tokens=3,
    logit_bias={4: 1.0}, repetition_penalty=1.25, frequency_penalty=0.5,
)
m = make_sampling_metadata([(request, [0], [1], [5])], len(WORDS))
steps = {"model": torch.tensor([[2.0, 3.0, 2.5, 1.5, 0.4, 3.2]])}
steps["ban"] = apply_min_tokens(steps["model"], *m.stop_token_ban, m.num_output_tokens)
steps["bias"] = apply_logit_bias(steps["ban"], *m.logit_bias)
steps["penalties"] = apply_penalties(steps["bias"], *m.penalties)
steps["temperature"] = apply_temperature(steps["penalties"], m.temperature)
steps["min_p"] = apply_min_p(steps["temperature"], m.min_p)
steps["top_k"] = apply_top_k(steps["min_p"], m.top_k)
steps["top_p"] = apply_top_p(steps["top_k"], m.top_p)

print(f"{'logits':12}", *(f"{word:>6}" for word in WORDS))
for name, logits in steps.items():
    print(f"{name:12}", *("   out" if x == -math.inf else f"{x:6.2f}" for x in logits[0].tolist()))
print(f"{'probability':12}", *(f"{p:6.3f}" for p in steps["top_p"].softmax(-1)[0].tolist()))
u = uniform_numbers(m.seeds, m.num_output_tokens)
print(f"seed 7, token 1 -> {u.item():.4f} -> {WORDS[sample_from_logits(steps['top_p'], u)]!r}")

# %% [markdown]
# ## 2. Do the counts follow the probabilities?
#
# The chi-square statistic of n draws: for each token, (count - expected)² / expected, summed. It is 0 if
# the counts are exactly as expected, and no honest sampler does that: chance moves every count a little.

# %% tags=["todo"] task="N1" title="The chi-square statistic"
def chi_square(counts: list[int], probabilities: list[float]) -> float:
    """Sum of (count - expected)**2 / expected; expected is the number of draws times p."""
    # BEGIN SOLUTION
    draws = sum(counts)
    expected = [draws * p for p in probabilities]
    return sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    # END SOLUTION

# %% tags=["check"] task="N1"
check_close(chi_square([50, 30, 20], [0.5, 0.25, 0.25]), 2.0, "expected 50, 25, 25: 0 + 1 + 1")
check_close(chi_square([25, 75], [0.25, 0.75]), 0.0, "counts that are exactly as expected")

# %% tags=["predict"] task="P1" title="The mean chi-square of a correct sampler"
guess = predict("P1", 6, "Six tokens, 2,000 draws, 400 seeds: what is the mean statistic?")  # SOLUTION: guess = predict("P1", ..., "Six tokens, 2,000 draws, 400 seeds: what is the mean statistic?")

# %%
SIX = [0.35, 0.25, 0.2, 0.1, 0.07, 0.03]


def draw(seed: int, draws: int) -> list[int]:
    """Counts of the first `draws` tokens of one seeded request that always sees the same logits."""
    params = SamplingParams(seed=seed)
    metadata = make_sampling_metadata([(params, [], [], [])] * draws, len(SIX))
    metadata.num_output_tokens = torch.arange(draws)
    logits = torch.tensor([SIX]).log().expand(draws, -1)
    return torch.bincount(Sampler()(logits, metadata).sampled_token_ids, minlength=len(SIX)).tolist()


statistics = [chi_square(draw(seed, 2000), SIX) for seed in range(400)]
mean = sum(statistics) / len(statistics)
print(f"mean {mean:.2f}, largest {max(statistics):.1f}")
score("P1", mean)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
counts = draw(0, 2000)
left.bar(range(6), [c / 2000 for c in counts], color=BLUE, label="2,000 draws, seed 0")
left.plot(range(6), SIX, "o", color=ORANGE, label="theory")
left.set(xlabel="token", ylabel="share", title="One request")
left.legend()
right.hist(statistics, bins=30, density=True, color=BLUE, label="400 seeds")
xs = [0.1 * i for i in range(1, 220)]
density = [x**1.5 * math.exp(-x / 2) / (2**2.5 * math.gamma(2.5)) for x in xs]
right.plot(xs, density, color=ORANGE, label="theory, 5 degrees of freedom")
right.set(xlabel="chi-square statistic", ylabel="density", title="Many requests")
right.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# If the sampler is right, the mean is the number of tokens minus 1, whatever the probabilities are: the last
# count follows from the others. Too large a statistic means a wrong distribution. Too *small* a one would be as
# bad: draws that are more even than chance are not independent. A hash of a counter has to pass both.

# %% [markdown]
# ## 3. Temperature and top-p on a real model
#
# How undecided is the model? Entropy says it in bits.

# %% tags=["todo"] task="N2" title="The entropy of a distribution"
def entropy_bits(probabilities: list[float]) -> float:
    """Minus the sum of p * log2(p); a token of probability 0 adds nothing."""
    # BEGIN SOLUTION
    return -sum(p * math.log2(p) for p in probabilities if p > 0)
    # END SOLUTION

# %% tags=["check"] task="N2"
check_close(entropy_bits([0.25] * 4), 2.0, "four equal tokens: two bits")
check_close(entropy_bits([0.5, 0.25, 0.25, 0.0]), 1.5, "0 * log(0) counts as 0")

# %%
from mini_vllm import LLM
from mini_vllm.engine.naive import ContiguousKVCache, next_token_logits
from mini_vllm.model.build import load_model

llm = LLM("storyteller", max_num_seqs=8, num_gpu_blocks=256, max_model_len=256, dtype="float32")
model = load_model(bundled_path("storyteller"), dtype="float32")
story = llm.generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)[0]
token_ids = story.prompt_token_ids + story.outputs[0].token_ids
cache = ContiguousKVCache(model, len(token_ids))
rows = torch.stack([next_token_logits(model, cache, [token], i) for i, token in enumerate(token_ids)])
print(story.outputs[0].text[:120].replace("\n", " "), "…")

# %% tags=["predict"] task="P2" title="How many tokens top-p keeps"
guess = predict("P2", 10, "top_p 0.9 at 64 places of a story, 2,048 tokens to choose from: how many are kept on average?")  # SOLUTION: guess = predict("P2", ..., "top_p 0.9 at 64 places of a story, 2,048 tokens to choose from: how many are kept on average?")

# %%
TEMPERATURES = (0.3, 0.5, 0.7, 1.0, 1.3, 1.6, 2.0)
places = rows[-64:]
kept = {}
for t in TEMPERATURES:
    warm = apply_temperature(places, torch.full((64,), t))
    kept[t] = apply_top_p(warm, torch.full((64,), 0.9)).isfinite().sum(-1)
bits = {t: [entropy_bits(p) for p in (places / t).softmax(-1).tolist()] for t in TEMPERATURES}
for t in TEMPERATURES:
    print(f"temperature {t}: {sum(bits[t]) / 64:5.2f} bits, top_p 0.9 keeps {kept[t].float().mean():6.1f}"
          f" tokens on average, from {kept[t].min()} to {kept[t].max()}")
score("P2", kept[1.0].float().mean().item())

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
for t, style, colour in ((0.5, "o-", BLUE), (1.0, "s--", ORANGE), (2.0, "^:", GREEN)):
    best = (rows[len(story.prompt_token_ids) - 1] / t).softmax(-1).sort(descending=True).values[:12]
    left.plot(range(1, 13), best.tolist(), style, color=colour, label=f"temperature {t}")
left.set(yscale="log", xlabel="rank of the token", ylabel="probability", title="After “Once upon a time”")
left.legend(loc=(0.5, 0.17))
right.step(range(64), kept[1.0].tolist(), color=BLUE, where="mid", label="top_p 0.9")
right.axhline(8, color=ORANGE, linestyle="--", label="top_k 8")
right.set(yscale="log", xlabel="place in the story", ylabel="tokens kept", title="Top-p adapts, top-k does not")
right.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# On a log scale a temperature is a change of slope: it scales the gaps between logits. Top-p keeps one
# token where the model is sure and many where it is not. Top-k keeps as many in both, so it is too
# wide in one place and too narrow in the other.

# %% [markdown]
# ## 4. Does a seeded request depend on its neighbours?

# %% tags=["todo"] task="N3" title="Where two outputs part"
def first_difference(a: list[int], b: list[int]) -> int:
    """Index of the first token that differs; the shorter length if one begins the other."""
    # BEGIN SOLUTION
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
    # END SOLUTION

# %% tags=["check"] task="N3"
check(first_difference([5, 6, 7], [5, 9, 7]), 1, "they differ at index 1")
check(first_difference([5, 6, 7], [5, 6, 7]), 3, "they never differ")
check(first_difference([5, 6], [5, 6, 7]), 2, "one begins the other")

# %% [markdown]
# The request has seed 42. It runs alone, in company, in chunks of 16 tokens, and in a pool so small
# that requests are preempted. For comparison: a sampler that draws all rows of a step from one common
# generator, as a simple engine does.

# %%
PROMPT, SEEDED = "One day, a small fox found", SamplingParams(temperature=1.0, seed=42, max_tokens=40, ignore_eos=True)


preemptions = []  # of each run


def run(neighbours: int, before: bool, **config) -> list[int]:
    """Tokens of the seeded request, with some unseeded neighbours before or after it."""
    small = {"max_num_seqs": 8, "num_gpu_blocks": 256, "max_model_len": 128, "dtype": "float32"} | config
    engine = LLM("storyteller", enable_prefix_caching=False, **small)
    others = [SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True)] * neighbours
    params = [*others, SEEDED] if before else [SEEDED, *others]
    outputs = engine.generate([PROMPT] * len(params), params, use_tqdm=False)
    preemptions.append(sum(output.metrics.num_preemptions for output in outputs))
    return outputs[-1 if before else 0].outputs[0].token_ids


def common_generator(neighbours: int, before: bool, steps: int = 40) -> list[int]:
    """The same with one torch.Generator for the whole batch; the neighbours' logits do not matter."""
    generator = torch.Generator().manual_seed(42)
    place, tokens = (neighbours if before else 0), llm.tokenizer.encode(PROMPT)
    cache, start, output = ContiguousKVCache(model, len(tokens) + steps), 0, []
    for _ in range(steps):
        logits = next_token_logits(model, cache, tokens, start)
        batch = logits.softmax(-1).expand(neighbours + 1, -1)
        start, tokens = start + len(tokens), [int(torch.multinomial(batch, 1, generator=generator)[place])]
        output += tokens
    return output


settings = {
    "7 behind": {"neighbours": 7, "before": False},
    "7 in front": {"neighbours": 7, "before": True},
    "chunks of 16": {"neighbours": 7, "before": True, "max_num_batched_tokens": 16},
    "preemptions": {"neighbours": 7, "before": True, "num_gpu_blocks": 14},
}
alone = run(0, False)
print("seeded:", llm.tokenizer.decode(alone)[:60].strip().replace("\n", " "), "…")

# %% tags=["predict"] task="P3" title="Different texts of one seeded request"
guess = predict("P3", 1, "Alone and in four kinds of company: how many different texts does seed 42 write?")  # SOLUTION: guess = predict("P3", ..., "Alone and in four kinds of company: how many different texts does seed 42 write?")

# %%
texts = {"alone": alone} | {name: run(**setting) for name, setting in settings.items()}
for name, tokens in texts.items():
    print(f"our sampler,      {name:13}: the same for {first_difference(alone, tokens):2} of 40 tokens")
print(f"the small pool preempted {preemptions[-1]} times")
single = common_generator(0, False)
for name, neighbours, before in (("7 behind", 7, False), ("7 in front", 7, True)):
    same = first_difference(single, common_generator(neighbours, before))
    print(f"common generator, {name:13}: the same for {same:2} of 40 tokens")
score("P3", len({tuple(tokens) for tokens in texts.values()}))

# %% [markdown]
# A generator has a state, and each draw moves it. Our number has none: it is a hash
# of the seed and of the index of the token. What remains is the model itself. On a GPU, kernels may
# add in another order in another batch, so logits can differ in their last bits, and now and then a
# draw falls on the other side of a border. The sampler cannot repair that.

# %% [markdown]
# ## 5. A token is not a character

# %% tags=["todo"] task="N4" title="What decoding each token alone prints"
def decode_alone(tokenizer, token_ids: list[int]) -> str:
    """The text that a client would see if each token were decoded alone and printed at once."""
    # BEGIN SOLUTION
    return "".join(tokenizer.decode([token_id]) for token_id in token_ids)
    # END SOLUTION


def count_broken(text: str) -> int:
    """How many replacement characters (U+FFFD) stand in a text."""
    # BEGIN SOLUTION
    return text.count("\ufffd")
    # END SOLUTION

# %% tags=["check"] task="N4"
class Bytes:
    """A tokenizer whose tokens are single bytes."""

    def decode(self, token_ids: list[int]) -> str:
        return bytes(token_ids).decode(errors="replace")


check(count_broken(decode_alone(Bytes(), list(b"a fox"))), 0, "plain letters are one byte each")
check(count_broken(decode_alone(Bytes(), list("5 €".encode()))), 3, "€ is three bytes, and none alone is text")

# %% tags=["predict"] task="P4" title="Broken characters of a short message" why="A token alone is broken if it holds a part of a character. The tokenizer works on bytes: ë has two, € three and the emoji four, and where no merged token holds them all, each byte prints a replacement character."
guess = predict("P4", 9, "Decoding each token of “Zoë: 30 € 😀” alone: how many broken characters?")  # SOLUTION: guess = predict("P4", ..., "Decoding each token of “Zoë: 30 € 😀” alone: how many broken characters?")

# %%
from tokenizers import Tokenizer

from mini_vllm.engine.detokenizer import IncrementalDetokenizer

tokenizer = Tokenizer.from_file(str(bundled_path("storyteller") / "tokenizer.json"))
message = "Zoë: 30 € 😀"
ids = tokenizer.encode(message).ids
detokenizer = IncrementalDetokenizer(tokenizer, [], SamplingParams())
print("token     alone   the client gets")
for token_id in ids:
    print(f"{token_id:5}  {tokenizer.decode([token_id])!r:>8}   {detokenizer.append([token_id])!r}")
score("P4", count_broken(decode_alone(tokenizer, ids)))

# %% [markdown]
# ## 6. A stop string over token borders
#
# vLLM holds back a fixed number of characters: those that the longest stop string could need. We hold
# back only what may really be the beginning of one.

# %% tags=["todo"] task="N5" title="Characters that a fixed buffer holds back"
def fixed_hold_back(text: str, stop: list[str]) -> int:
    """Characters of `text` that wait if always as many wait as the longest stop string minus 1."""
    # BEGIN SOLUTION
    return min(len(text), max(map(len, stop)) - 1)
    # END SOLUTION

# %% tags=["check"] task="N5"
check(fixed_hold_back("Once upon", ["stop here", "END"]), 8, "one less than the longest")
check(fixed_hold_back("On", ["stop here"]), 2, "no more than there is")

# %%
STOP = ["said goodbye", "The end"]
ids = tokenizer.encode("The fox sat there. The enemy of the fox said good day. The end of it.").ids
detokenizer = IncrementalDetokenizer(tokenizer, [], SamplingParams(stop=STOP))
full, released, ours, fixed = "", "", [], []
for token_id in ids:
    released += detokenizer.append([token_id])
    if detokenizer.stop_reason:
        break
    full += tokenizer.decode([token_id])
    ours.append(len(full) - len(released))
    fixed.append(fixed_hold_back(full, STOP))
print(f"the client reads {released!r}")
print(f"stop reason {detokenizer.stop_reason!r}; on average {sum(ours) / len(ours):.1f} characters "
      f"waited, with a fixed buffer {sum(fixed) / len(fixed):.1f}")

figure, axis = plt.subplots()
axis.step(range(len(ours)), fixed, where="mid", color=ORANGE, linestyle="--", label="fixed buffer")
axis.step(range(len(ours)), ours, where="mid", color=BLUE, label="only what may begin a stop string")
axis.set(xlabel="token", ylabel="characters held back", title=f"stop = {STOP}", ylim=(-0.5, 13.5))
axis.legend(loc="upper center", ncols=2)
plt.show()

# %% [markdown]
# The bumps are false alarms: "The en", "said good". Each is paid back as soon as a token decides.
#
# ## What to take away
#
# - Each step sees the distribution that the steps before it have left, so their order is part of the
#   meaning.
# - A sampler is tested by counting. Chi-square says how far counts may lie from theory.
# - A random number without a state makes a request independent of its batch.
# - Text is a promise: what was printed cannot be taken back, so what is not certain waits.
