# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 08: several tokens a step, the same text
#
# You add up by hand what a wrong replacement does to a distribution, look at how acceptance falls from
# place to place, let four proposers race on two kinds of text, and work out when guessing stops to pay.
# Small functions are yours to write; each is checked at once. Before each experiment you write down a
# guess. Nothing here is timed, so your numbers equal those printed here.
#
# | word | meaning |
# |---|---|
# | p, q | the target's distribution of a token, and the one its draft was drawn from |
# | acceptance length | tokens that a verified draft brings, the target's own included |
# | V, c | time of a verification, and of drafting one token, in plain decoding steps |

# %% tags=["setup"]
import warnings

import matplotlib.pyplot as plt

warnings.filterwarnings("ignore", message="IProgress")  # no progress bars needed here

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.6), "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}

# %% [markdown]
# ## 1. What replaces a rejected draft?
#
# A draft x is drawn from q and accepted with probability min(1, p(x) / q(x)). If it is rejected, a
# replacement is drawn from some distribution. Which law has the token that comes out?

# %% tags=["todo"] task="N1" title="The law of what comes out"
def law(p: list[float], q: list[float], replacement: list[float]) -> list[float]:
    """Of each token: accepted as a draft, or the replacement of a rejected one."""
    # BEGIN SOLUTION
    accepted = [min(a, b) for a, b in zip(p, q, strict=True)]
    rejected = 1 - sum(accepted)
    return [a + rejected * r for a, r in zip(accepted, replacement, strict=True)]
    # END SOLUTION

# %% tags=["check"] task="N1"
check_close(law([0.5, 0.5], [0.5, 0.5], [1.0, 0.0])[0], 0.5, "p = q: nothing is rejected")
check_close(law([0.3, 0.3, 0.4], [0.6, 0.3, 0.1], [0.0, 0.0, 1.0])[2], 0.4, "the example of the guide")

# %% tags=["predict"] task="P1" title="The replacement is drawn from p"
guess = predict("P1", 0.39, "p = 0.3 0.3 0.4, q = 0.6 0.3 0.1, replaced from p: how often does the first token come out?")  # SOLUTION: guess = predict("P1", ..., "p = 0.3 0.3 0.4, q = 0.6 0.3 0.1, replaced from p: how often does the first token come out?")

# %%
import torch

from mini_vllm.sample.rejection_sampler import recovered_probs

P, Q = [0.3, 0.3, 0.4], [0.6, 0.3, 0.1]
residual = recovered_probs(torch.tensor([0]), torch.tensor([Q]), torch.tensor([P]))[0].tolist()
laws = {"residual": law(P, Q, residual), "from p": law(P, Q, P), "keep the draft": Q}
for name, result in laws.items():
    print(f"{name:15}", " ".join(f"{share:.2f}" for share in result))
score("P1", laws["from p"][0])

# %%
figure, axes = plt.subplots()
for place, (name, colour) in enumerate(zip(laws, (BLUE, ORANGE, PINK), strict=True)):
    axes.bar([x + 0.25 * place for x in range(3)], laws[name], 0.22, color=colour, label=name)
axes.hlines(P, [-0.15, 0.85, 1.85], [0.65, 1.65, 2.65], color="k", label="p")
axes.set(xticks=[0.25, 1.25, 2.25], xticklabels="ABC", xlabel="token", ylabel="probability", ylim=(0, 0.75),
         title="Only the residual gives p")
axes.legend(ncols=4)
plt.show()

# %% [markdown]
# Whatever the drafter likes too much (A) comes out too often, unless the replacement makes up for
# exactly what the accepted drafts have not brought.

# %% [markdown]
# ## 2. How far are guesses right?
#
# The formula 1 + a + a² + ... + a^k takes every draft to be right with the same probability. Without
# that assumption the counters give the mean directly.

# %% tags=["todo"] task="N2" title="Tokens a draft from the rates by position"
def tokens_from_rates(rates: list[float]) -> float:
    """`rates[j]` is the share of drafts of which the first j + 1 tokens were accepted."""
    # BEGIN SOLUTION
    return 1 + sum(rates)
    # END SOLUTION

# %% tags=["check"] task="N2"
check_close(tokens_from_rates([0.0, 0.0]), 1.0, "never right: the target's own token")
check_close(tokens_from_rates([1.0, 0.5]), 2.5, "always one, half of the time two")

# %% tags=["predict"] task="P2" title="Tokens a draft, k = 4" why="The first place is right 84 times in 100, and each further one only where all before it were: 0.84 + 0.69 + 0.61 + 0.57, and the target's own token, make 3.70."
guess = predict("P2", 3.6, "A draft model a quarter of the storyteller's size, 4 drafts a step, ten chats: tokens a draft?")  # SOLUTION: guess = predict("P2", ..., "A draft model a quarter of the storyteller's size, 4 drafts a step, ten chats: tokens a draft?")

# %%
from mini_vllm import LLM, SamplingParams
from mini_vllm.spec_decode.metrics import expected_tokens_per_step

QUESTIONS = [
    "Tell me a story about a fox named Pip.", "What is the capital of Italy?", "What is 12 + 7?",
    "Write a JSON record for a person named Ada.", "Name three animals that live on a farm.",
    "Write a story about a dog called Rex.", "What is paged attention?", "What does a cat eat?",
    "Tell me a short story about Nina the owl.", "Which month comes after May?",
]
GREEDY = SamplingParams(temperature=0, max_tokens=96)
METHODS = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "medusa": {"method": "medusa", "model": "storyteller-medusa"},
    "eagle": {"method": "eagle", "model": "storyteller-eagle"},
    "draft_model": {"method": "draft_model", "model": "storyteller-draft"},
}


def engine(method: str | None = None, k: int = 4, **more) -> LLM:
    """The storyteller in float32, with drafts if a method is named."""
    drafts = METHODS[method] | {"num_speculative_tokens": k} | more if method else None
    return LLM("storyteller", max_model_len=512, num_gpu_blocks=400, dtype="float32", speculative_config=drafts)


plain = engine()
CHATS = [plain.apply_chat_template([{"role": "user", "content": q}]) for q in QUESTIONS]
rates = {}
for k in (1, 2, 3, 4, 5):
    drafted = engine("draft_model", k)
    drafted.generate(CHATS, GREEDY, use_tqdm=False)
    rates[k] = drafted.engine.stats.spec_decode.acceptance_rates
first = rates[1][0]
for k, by_place in rates.items():
    print(f"k = {k}: {tokens_from_rates(by_place):.2f} tokens a draft; the formula with a = {first:.2f} says"
          f" {expected_tokens_per_step(first, k):.2f}; by place " + " ".join(f"{r:.2f}" for r in by_place))
score("P2", tokens_from_rates(rates[4]))

# %%
figure, axes = plt.subplots()
axes.plot(range(1, 6), rates[5], "o-", color=BLUE, label="measured, k = 5")
axes.plot(range(1, 6), [first**j for j in range(1, 6)], "s--", color=ORANGE, label="formula")
axes.set(xlabel="place of the draft", ylabel="share accepted up to here", ylim=(0, 1.05), xticks=range(1, 6),
         title="A single number promises a little too much")
axes.legend()
plt.show()

# %% [markdown]
# The formula throws the same coin at every place, and its curve lies a little above what was counted. One
# reason is the end of a text: a draft that reaches beyond it cannot be right to its last place, and here
# about one draft in ten lies there. Long texts suffer less, short answers more. So choose k by the rates of
# your own texts, place by place, and not by one number.

# %% [markdown]
# ## 3. Four proposers, two kinds of text

# %% tags=["todo"] task="N3" title="Steps saved"
def saved(plain_steps: int, drafted_steps: int) -> float:
    """Share of the steps that speculation has made needless."""
    # BEGIN SOLUTION
    return 1 - drafted_steps / plain_steps
    # END SOLUTION

# %% tags=["check"] task="N3"
check_close(saved(100, 25), 0.75, "a quarter of the steps is left")
check_close(saved(100, 100), 0.0, "nothing saved")

# %% tags=["predict"] task="P3" title="n-grams on stories"
guess = predict("P3", 0.05, "n-grams of 2 to 4 tokens on ten chats: which share of the steps do they save?")  # SOLUTION: guess = predict("P3", ..., "n-grams of 2 to 4 tokens on ten chats: which share of the steps do they save?")

# %%
LOOP = plain.tokenizer.encode(", ".join(["1, 2, 3"] * 12) + ",")
LOOPING = SamplingParams(temperature=0, max_tokens=96, ignore_eos=True)
texts = {"chats": (CHATS, GREEDY), "a loop": ([LOOP], LOOPING)}
steps, outputs = {}, {}
for text, (prompts, params) in texts.items():
    for method in (None, *METHODS):
        llm = engine(method)
        outputs[text, method] = [
            o.outputs[0].token_ids
            for prompt in prompts for o in llm.generate(prompt, params, use_tqdm=False)
        ]
        steps[text, method] = llm.engine.stats.num_steps
    same = all(outputs[text, method] == outputs[text, None] for method in METHODS)
    print(f"{text}: {steps[text, None]} steps without drafts; all texts the same: {same}")
    for method in METHODS:
        print(f"  {method:12} {steps[text, method]:4} steps, {saved(steps[text, None], steps[text, method]):.0%} saved")
score("P3", saved(steps["chats", None], steps["chats", "ngram"]))

# %%
figure, axes = plt.subplots()
for place, (text, colour) in enumerate(zip(texts, (BLUE, ORANGE), strict=True)):
    share = [steps[text, None] / steps[text, method] for method in METHODS]
    axes.bar([x + 0.4 * place for x in range(4)], share, 0.36, color=colour, label=text)
axes.set(xticks=[x + 0.2 for x in range(4)], xticklabels=METHODS, ylabel="steps without / with drafts",
         title="Who guesses what")
axes.legend()
plt.show()

# %% [markdown]
# On the loop n-grams work best: 4 % of the steps saved on chats, 62 % here, and no model was asked. The heads were
# trained on the storyteller's chats, and a list of numbers is none. The draft model was, too, but it is a whole
# language model: it sees the list, and goes on with it. And the texts are the same, whichever proposer guesses, and however badly.

# %% [markdown]
# ## 4. When does it stop to pay?

# %% tags=["todo"] task="N4" title="The best k"
def best_k(acceptance: float, draft_cost: float, verify_cost_of_one_more: float) -> int:
    """The k from 0 to 12 with the largest speed-up; verifying k + 1 tokens costs 1 + k * that."""
    # BEGIN SOLUTION
    from mini_vllm.spec_decode.metrics import speedup

    def gain(k: int) -> float:
        return speedup(acceptance, k, draft_cost, 1 + k * verify_cost_of_one_more)

    return max(range(13), key=gain)
    # END SOLUTION

# %% tags=["check"] task="N4"
check(best_k(0.0, 0.1, 0.0), 0, "guesses are never right: do not guess")
check(best_k(1.0, 0.1, 0.0), 12, "always right, and verifying is free: as many as there are")
check(best_k(0.9, 0.3, 1.0), 0, "every token verified costs as much as a step")

# %% tags=["predict"] task="P4" title="The best k of the bundled pair" why="A draft too few wastes a cheap guess, a draft too many costs 0.33 of a step and is right only if all before it were: 0.89 to the power of k. The best k is where one more costs more than it brings."
guess = predict("P4", 4, "acceptance 0.89, a draft costs 0.33 of a step, verifying is free: the best k?")  # SOLUTION: guess = predict("P4", ..., "acceptance 0.89, a draft costs 0.33 of a step, verifying is free: the best k?")

# %%
from mini_vllm.spec_decode.metrics import speedup

print("best k with acceptance 0.89 and c = 0.33:")
for more in (0.0, 0.05, 0.1, 0.2, 0.4, 0.8):
    k = best_k(0.89, 0.33, more)
    print(f"  one token more to verify costs {more:4}: k = {k:2}, {speedup(0.89, k, 0.33, 1 + k * more):.2f} times as fast")
score("P4", best_k(0.89, 0.33, 0.0))

# %%
figure, axes = plt.subplots()
for more, colour, style in ((0.0, BLUE, "o-"), (0.1, GREEN, "s-"), (0.4, ORANGE, "^-"), (0.8, PINK, "v-")):
    axes.plot(range(9), [speedup(0.89, k, 0.33, 1 + k * more) for k in range(9)], style, color=colour,
              label=f"{more} of a step")
axes.axhline(1, color="k", linewidth=1)
axes.set(xlabel="drafts a step, k", ylabel="times as fast", title="Free verification is a matter of one request")
axes.legend(title="one token more\nto verify costs", loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# `python -m benchmarks.bench_spec_decode` measures c and V on your machine, predicts, and then measures
# the speed-up itself, for batches of 1, 4, 16 and 64.

# %% [markdown]
# ## 5. Seeds, and drafts that are drawn

# %% tags=["todo"] task="N5" title="How often a draft is accepted"
def acceptance(p: list[float], q: list[float]) -> float:
    """Probability that a draft drawn from q is accepted."""
    # BEGIN SOLUTION
    return sum(min(a, b) for a, b in zip(p, q, strict=True))
    # END SOLUTION

# %% tags=["check"] task="N5"
check_close(acceptance([0.3, 0.3, 0.4], [0.6, 0.3, 0.1]), 0.7, "the example of the guide")
check_close(acceptance([0.2, 0.8], [1.0, 0.0]), 0.2, "a chosen draft: p of it")

# %%
TEMPERATURES = (0.0, 0.4, 0.8, 1.2)
shares = {"greedy": [], "probabilistic": []}
for kind in shares:
    llm = engine("draft_model", 3, draft_sample_method=kind)
    for temperature in TEMPERATURES:
        params = [SamplingParams(temperature=temperature, seed=seed, max_tokens=64) for seed in range(len(CHATS))]
        llm.engine.reset_stats()
        outputs = llm.generate(CHATS, params, use_tqdm=False)
        wanted = plain.generate(CHATS, params, use_tqdm=False)
        same = sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(outputs, wanted, strict=True))
        shares[kind].append(llm.engine.stats.spec_decode.acceptance_rates[0])
        print(f"{kind:14} temperature {temperature}: first draft accepted {shares[kind][-1]:.2f},"
              f" {same:2} of {len(CHATS)} texts as without drafts")

# %%
figure, axes = plt.subplots()
for (kind, values), colour, style in zip(shares.items(), (BLUE, ORANGE), ("o-", "s--"), strict=True):
    axes.plot(TEMPERATURES, values, style, color=colour, label=kind)
axes.set(xlabel="temperature", ylabel="share of first drafts accepted", ylim=(0, 1), title="Chosen drafts suffer from heat")
axes.legend()
plt.show()

# %% [markdown]
# A chosen draft is right with probability p(x), and p flattens as it gets warmer. A drawn draft follows:
# the sum of min(p, q) stays high where both models are unsure about the same things. The price is the
# seed: the law is the same, the text is another.
