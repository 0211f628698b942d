# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 00: what happens to one request?
#
# You drive the engine by hand, one step at a time, and watch a request move. Four small functions
# are yours to write, of one to three lines. Before each run you write down a guess.
#
# Do this after the five tasks: the engine below runs with **your** `Request` and **your** `step`.
# About ten minutes.
#
# | word | meaning |
# |---|---|
# | known | `num_tokens`: prompt and output so far |
# | computed | `num_computed_tokens`: those whose keys and values are in the cache |
# | budget | `max_num_batched_tokens`: tokens that one step may compute |

# %% tags=["setup"]
import warnings

import matplotlib.pyplot as plt

warnings.filterwarnings("ignore", message="IProgress")  # no progress bars needed here

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D9D9D9"
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3}

# %% [markdown]
# ## 1. The gap
#
# A request is one count that runs after another: `computed` after `known`. What lies between them is
# the work that is left for now.

# %% tags=["todo"] task="N1" title="The gap"
def gap(known: int, computed: int) -> int:
    """Tokens that still have to be computed."""
    # BEGIN SOLUTION
    return known - computed
    # END SOLUTION

# %% tags=["check"] task="N1"
check(gap(10, 0), 10, "a new request: its whole prompt is the gap")
check(gap(11, 10), 1, "decoding: the token sampled last is not computed yet")

# %% [markdown]
# The scheduler closes the gap as far as the budget goes. When it is closed, the model samples one
# token. That token opens the gap by one again.

# %% tags=["todo"] task="N2" title="Steps of one request"
def steps_needed(prompt: int, max_tokens: int, budget: int) -> int:
    """Steps of a lone request, from the first chunk of its prompt to its last token.

    The step that computes the end of the prompt samples the first token already.
    """
    # BEGIN SOLUTION
    return -(-prompt // budget) + max_tokens - 1
    # END SOLUTION

# %% tags=["check"] task="N2"
check(steps_needed(10, 1, 16), 1, "the prompt fits one step, which samples the only token")
check(steps_needed(10, 5, 16), 5, "one step for the prompt and its first token, then 4 more")
check(steps_needed(9, 4, 4), 6, "chunks of 4, 4 and 1; the third samples the first token; then 3 more")

# %% tags=["todo"] task="N3" title="Tokens computed at the end"
def computed_at_end(prompt: int, max_tokens: int) -> int:
    """Tokens that were computed when the request ends. Is the last output token among them?"""
    # BEGIN SOLUTION
    return prompt + max_tokens - 1
    # END SOLUTION

# %% tags=["check"] task="N3"
check(computed_at_end(10, 1), 10, "the only output token was sampled, never computed")
check(computed_at_end(10, 5), 14, "the last token is not computed: what would follow it is not needed")

# %% [markdown]
# ## 2. One request, step by step
#
# Now the real engine: a model, a cache of blocks, a scheduler. The budget is 4 tokens, much too small
# on purpose. The prompt is "Once upon a time there was a small fox who".

# %% tags=["predict"] task="P1" title="Steps of the fox" why="10 tokens of prompt at 4 a step are 3 steps, and the last of them samples the first token of the output, too. The other 4 cost a step each: 3 + 4 = 7."
guess = predict("P1", 7, "10 tokens of prompt, 5 of output, a budget of 4: after how many steps is it finished?")  # SOLUTION: guess = predict("P1", ..., "10 tokens of prompt, 5 of output, a budget of 4: after how many steps is it finished?")

# %%
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.request import Request

torch.set_num_threads(1)

def new_engine(**settings):
    """The bundled model with a tiny cache, and its tokenizer."""
    defaults = dict(block_size=4, num_gpu_blocks=64, max_model_len=64, dtype="float32")
    llm = LLM("storyteller", **(defaults | settings))
    return llm.engine.core, llm.engine.tokenizer

core, tokenizer = new_engine(max_num_batched_tokens=4, max_num_seqs=4)
prompt = tokenizer.encode("Once upon a time there was a small fox who")
request = Request("fox", prompt, SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))

core.add_request(request)
history = [(str(request.status), request.num_computed_tokens, request.num_tokens)]
print(f"{'':8}{'status':24}{'computed':>8}  {'known':>5}  sampled in this step")
print(f"{'added':8}{history[0][0]:24}{history[0][1]:8}  {history[0][2]:5}")
while not request.is_finished:
    before = request.num_output_tokens
    core.step()
    history.append((str(request.status), request.num_computed_tokens, request.num_tokens))
    sampled = tokenizer.decode(request.output_token_ids[before:])
    print(f"step {len(history) - 2:<3}{history[-1][0]:24}{history[-1][1]:8}  {history[-1][2]:5}  {sampled!r}")
print("the whole text:", tokenizer.decode(request.all_token_ids))

# %%
score("P1", len(history) - 1)

# %% [markdown]
# The same as a picture: blue is known, orange is computed. At the end the last token is known and
# not computed.

# %%
statuses, computed, known = zip(*history)
steps = range(len(history))
fig, ax = plt.subplots()
ax.fill_between(steps, computed, known, color=GREY, label="gap: still to compute")
ax.plot(steps, known, "o-", color=BLUE, label="known (num_tokens)")
ax.plot(steps, computed, "s--", color=ORANGE, label="computed (num_computed_tokens)")
for step, (status, value) in enumerate(zip(statuses, known)):
    if step == 0 or status != statuses[step - 1]:
        ax.annotate(status.replace("_", "_\n", 1), (step, value), xytext=(0, 9),
                    textcoords="offset points", ha="center", fontsize=8)
ax.set(xlabel="steps done", ylabel="tokens", xlim=(-0.5, len(history) + 0.1), ylim=(-0.5, max(known) + 4),
       xticks=steps, yticks=range(0, max(known) + 4, 5),
       title="One request: the computed tokens run after the known ones")
ax.legend(loc="lower right")
plt.show()

# %% [markdown]
# ## 3. Many requests
#
# Several requests share the steps. To draw them you need to know what each did in each step.

# %% tags=["todo"] task="N4" title="What did a request do in this step?"
def deed(scheduled: int, computed_before: int, prompt: int) -> str:
    """ "waits" if it got no token, "prompt" while it computes its prompt, else "decodes".

    `scheduled` tokens were computed for it in this step; `computed_before` stood in the cache already.
    """
    # BEGIN SOLUTION
    if scheduled == 0:
        return "waits"
    return "prompt" if computed_before < prompt else "decodes"
    # END SOLUTION

# %% tags=["check"] task="N4"
check(deed(0, 0, 10), "waits", "no token was scheduled")
check(deed(4, 0, 10), "prompt", "the first chunk of the prompt")
check(deed(2, 8, 10), "prompt", "the rest of the prompt: 8 of 10 were computed before")
check(deed(1, 9, 10), "prompt", "the last token of the prompt came alone")
check(deed(1, 10, 10), "decodes", "the prompt is computed: this is the first output token going in")
check(deed(1, 13, 10), "decodes", "the prompt and three output tokens are computed: the fourth goes in")
check(deed(15, 0, 10), "prompt", "it comes back after a preemption: prompt and answer so far at once")

# %% [markdown]
# Six clients ask at once, each for 12 tokens. The pool has 20 blocks of 4 tokens: enough for the
# prompts, not for all the answers. When it is full, the engine takes the blocks of the request that
# came last. That request is **preempted** (its status is `PREEMPTED`); it comes back later.

# %%
STORIES = ("The fox", "A small bear went out", "One day the rabbit saw a bird in a tree",
           "In the winter", "There was a girl who had a red ball", "The moon")

def run_together(core, tokenizer, stories, max_tokens):
    """Every step's deeds: a list of {request id: deed}, until all requests are finished."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    requests = [Request(f"r{i}", tokenizer.encode(text), params) for i, text in enumerate(stories)]
    rows = []

    def watch(plan, outputs, seconds, stats):
        row = {}
        for request in requests:
            scheduled = plan.num_scheduled_tokens.get(request.request_id, 0)
            before = request.num_computed_tokens - scheduled
            row[request.request_id] = deed(scheduled, before, request.num_prompt_tokens)
            if request.request_id in plan.preempted_req_ids:
                row[request.request_id] = "preempted"
            elif scheduled == 0 and request.is_finished:
                row[request.request_id] = ""
        rows.append(row)

    core.observers.append(watch)
    for request in requests:
        core.add_request(request)
    while not all(request.is_finished for request in requests):
        core.step()
    core.observers.remove(watch)
    return rows

small = new_engine(max_num_batched_tokens=16, max_num_seqs=6, num_gpu_blocks=21, enable_prefix_caching=False)
rows = run_together(*small, STORIES, 12)

COLOURS = {"waits": GREY, "prompt": ORANGE, "decodes": BLUE, "preempted": PINK}
fig, ax = plt.subplots(figsize=(7.5, 2.8))
for y, name in enumerate(rows[0]):
    for step, row in enumerate(rows):
        if row[name]:
            ax.barh(y, 0.9, left=step - 0.45, color=COLOURS[row[name]], hatch="//" if row[name] == "preempted" else None)
ax.set(yticks=range(len(rows[0])), yticklabels=list(rows[0]), xticks=range(0, len(rows), 2), xlabel="step", title="Six requests in one engine")
ax.invert_yaxis()
handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
ax.legend(handles, COLOURS, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)
plt.show()

# %% [markdown]
# Look along a row: a request waits, computes its prompt, decodes. A preempted one computes its prompt
# **and** its output so far again: it shows as prompt, then decodes on. Look down a column: a step serves
# many requests at once. That is the whole point of an engine, and the last experiment counts it.

# %% tags=["predict"] task="P2" title="Eight requests together"
guess = predict("P2", 12, "One request of 12 tokens takes 12 steps. The pool is large now: how many steps do 8 of them take together?")  # SOLUTION: guess = predict("P2", ..., "One request of 12 tokens takes 12 steps. The pool is large now: how many steps do 8 of them take together?")

# %%
large = new_engine(max_num_batched_tokens=64, max_num_seqs=8)
counts = (1, 2, 4, 8)
together = [len(run_together(*large, ["The small fox"] * n, 12)) for n in counts]
score("P2", together[-1])

fig, ax = plt.subplots()
ax.plot(counts, [n * together[0] for n in counts], "o--", color=ORANGE, label="one after the other")
ax.plot(counts, together, "s-", color=BLUE, label="together")
ax.set(xlabel="requests", ylabel="steps until all are finished", xticks=counts, ylim=(0, None),
       title="Steps are shared")
ax.legend()
plt.show()

# %% [markdown]
# Are the steps of eight requests as cheap as the steps of one? Nearly, as long as the hardware waits
# for memory rather than for arithmetic. Phase 01 measures that.
#
# **Go on:** change the pool (`num_gpu_blocks`) in section 3 until no request is preempted. How many blocks
# does it take? Compare with the sum over the requests of `computed_at_end`, in blocks.
