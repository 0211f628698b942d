# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 11: a thousand fine-tunes, one base
#
# You take an adapter apart, merge it and unmerge it, count what several adapters cost in three ways, watch
# slots change hands, switch identity off and read the result, and cut an adapter's rank until it forgets.
# Small functions are yours to write; each is checked at once. Before each experiment you write down a guess.
#
# | word | meaning |
# |---|---|
# | A, B | `[r, in]` and `[out, r]`; the adapter adds `scale * B (A x)` |
# | slot | a place on the device for one adapter |
# | merged | `W + scale B A` in place of W: no detour, and one customer |
#
# Every number below repeats: nothing is timed. Experiments 2, 4, 5 and 6 run the engine with the bundled
# adapters, with **your** files if you start the notebook with `make notebook-11`.

# %% tags=["setup"]
import json
import os
import warnings

os.environ.pop("TRITON_INTERPRET", None)  # the engine below computes as usual; only tests watch kernels

import matplotlib.pyplot as plt
import numpy as np
import torch

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#DDDDDD"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3}

# %% [markdown]
# ## 1. Merged and unmerged
#
# One linear layer, one adapter. Unmerged, a row takes a detour through r numbers. Merged, the detour is
# part of W. Both are the same in exact arithmetic.

# %% tags=["todo"] task="N1" title="The detour, for a batch of rows"
def unmerged(x, weight, a, b, scale: float):
    """Rows [T, in] through weight [out, in] with an adapter beside it; never builds an [out, in] matrix."""
    # BEGIN SOLUTION
    return x @ weight.T + scale * ((x @ a.T) @ b.T)
    # END SOLUTION

# %% tags=["todo"] task="N2" title="The same, merged"
def merged_weight(weight, a, b, scale: float):
    """One matrix [out, in] that does what the layer and its adapter do together."""
    # BEGIN SOLUTION
    return weight + scale * (b @ a)
    # END SOLUTION

# %% tags=["check"] task="N1"
one = torch.tensor([[1.0, 2.0]])
eye, small_a, small_b = torch.eye(2), torch.tensor([[3.0, -1.0]]), torch.tensor([[0.5], [-1.0]])
check(unmerged(one, eye, small_a, small_b, 4.0).tolist(), [[3.0, -2.0]], "the guide's example by hand")
check(list(unmerged(torch.ones(5, 3), torch.ones(7, 3), torch.ones(2, 3), torch.ones(7, 2), 1.0).shape), [5, 7], "5 rows, 3 to 7")

# %% tags=["check"] task="N2"
check(merged_weight(eye, small_a, small_b, 4.0).tolist(), [[7.0, -2.0], [-12.0, 5.0]], "W + 4 B A")

# %%
draw = torch.Generator().manual_seed(11)
W = torch.randn(512, 192, generator=draw) / 14
A, B = torch.randn(8, 192, generator=draw) / 14, torch.randn(512, 8, generator=draw) / 3
x = torch.randn(64, 192, generator=draw)
exact = unmerged(x.double(), W.double(), A.double(), B.double(), 2.0)
for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
    w, a, b, rows = (t.to(dtype) for t in (W, A, B, x))
    values = unmerged(rows, w, a, b, 2.0), rows @ merged_weight(w, a, b, 2.0).T
    errors = [float((v.double() - exact).norm() / exact.norm()) for v in values]
    print(f"{name:9} error unmerged {errors[0]:.1e}, merged {errors[1]:.1e}")

# %% [markdown]
# In bfloat16 neither is right: each rounds in its own places. So an engine that merges and one that does not
# may write different tokens, and both are fine. Compare in float32.

# %% [markdown]
# ## 2. One batch, four voices
#
# The base and three adapters answer the same questions in one batch. Each request carries its adapter, and
# nothing else about it differs.

# %% tags=["setup"]
def asks(count: int) -> list[str]:
    """So many questions of the closed world."""
    return ["What is the capital of Italy?", "Where does an owl live?", "What is 4 + 5?"][:count]

# %%
from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.lora.request import LoRARequest

ADAPTERS = [LoRARequest(name, i, str(bundled.adapter_path(name))) for i, name in enumerate(bundled.ADAPTERS, 1)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


def engine(**options):
    usual = dict(dtype="float32", enable_lora=True, block_size=8, max_model_len=256, num_gpu_blocks=128)
    return LLM("storyteller", **(usual | options))


def prompt_of(llm, question: str) -> list[int]:
    return llm.apply_chat_template([{"role": "user", "content": question}])


def watch(llm) -> list[list]:
    """What sat in each slot after each step; grows while the engine runs."""
    manager, seen = llm.engine.core.executor.worker.lora, []
    llm.engine.client.observers.append(lambda *_: seen.append([key and key.partition("@")[0] for key in manager.slots]))
    return seen


llm = engine(max_loras=3)
slots = watch(llm)
for question in asks(2):
    outputs = llm.generate([prompt_of(llm, question)] * 4, GREEDY, lora_request=[None, *ADAPTERS], use_tqdm=False)
    print(question)
    for output in outputs:
        name = output.lora_request.lora_name if output.lora_request else "base"
        print(f"    {name:7} {output.outputs[0].text}")
print("slots in the last step:", slots[-1])

# %% [markdown]
# ## 3. What several adapters cost
#
# T rows, n adapters, one matrix from 192 to 512, rank 16, 8 slots. Three ways to add the detours, in
# multiplications and in numbers copied:
#
# - **gather**: copy A and B for every row, as vLLM's CPU path does, then multiply each row with its own
# - **grouped**: one product for each adapter, with its rows
# - **dense**: every row with all n adapters, then forget what is foreign

# %% tags=["todo"] task="N3" title="Multiplications and copied numbers of each way"
def cost(way: str, rows: int, adapters: int, rank: int, in_size: int, out_size: int) -> tuple[int, int]:
    """(multiplications, numbers of A and B copied) to add all detours; every row has an adapter."""
    # BEGIN SOLUTION
    pair = rank * (in_size + out_size)
    if way == "gather":
        return rows * pair, rows * pair
    return rows * pair * (adapters if way == "dense" else 1), 0
    # END SOLUTION

# %% tags=["check"] task="N3"
check(cost("gather", 1, 1, 1, 2, 3), (5, 5), "one row: as much copied as multiplied")
check(cost("grouped", 10, 4, 1, 2, 3), (50, 0), "each row meets one adapter")
check(cost("dense", 10, 4, 1, 2, 3), (200, 0), "each row meets all four")

# %% tags=["predict"] task="P1" title="The detour beside the road" why="The detour has 16 x 192 weights on the way in and 512 x 16 on the way out: 11,264 multiplications a row beside 192 x 512 = 98,304, a share of 0.115."
guess = predict("P1", 0.1, "Rank 16 from 192 to 512: multiplications of one detour over those of W itself?")  # SOLUTION: guess = predict("P1", ..., "Rank 16 from 192 to 512: multiplications of one detour over those of W itself?")

# %%
score("P1", cost("grouped", 1, 1, 16, 192, 512)[0] / (192 * 512))
rows = [1, 2, 4, 8, 16, 32, 64, 128, 256]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4))
for way, style, colour in (("gather", "s--", PINK), ("grouped", "o-", BLUE), ("dense", "^:", ORANGE)):
    hollow = {"markersize": 11, "markerfacecolor": "none"} if way == "gather" else {}  # it lies under another
    left.plot(rows, [cost(way, n, min(n, 8), 16, 192, 512)[0] for n in rows], style, color=colour, label=way, **hollow)
    products = {"gather": 2, "grouped": None, "dense": 2}[way]
    right.plot(rows, [products or 2 * min(n, 8) for n in rows], style, color=colour, label=way, **hollow)
left.axhline(192 * 512, color=GREY, label="W, one row")
left.set(xscale="log", yscale="log", xlabel="rows", ylabel="multiplications", title="arithmetic, up to 8 adapters")
right.set(xscale="log", xlabel="rows", ylabel="calls", title="calls of a matrix product")
left.legend(fontsize=8)
plt.show()

# %% [markdown]
# Dense multiplies up to eight times too much and calls two products. For a few rows a call costs more than its
# arithmetic, so decodes take the dense way and prompts the grouped one. Gather copies a pair for every row: at 256
# rows it moves 2.9 million numbers to multiply as many.

# %% [markdown]
# ## 4. More customers than slots
#
# Six requests, three adapters, `max_loras` 1, 2 or 3. The gate lets a request wait whose adapter has no slot.

# %% tags=["todo"] task="N4" title="Steps until all are done, if every adapter needs the slot for itself"
def steps_one_slot(requests_per_adapter: int, adapters: int, tokens: int) -> int:
    """Each request takes `tokens` steps (the first is its prompt). One slot; requests of one adapter share steps."""
    # BEGIN SOLUTION
    return adapters * tokens
    # END SOLUTION

# %% tags=["check"] task="N4"
check(steps_one_slot(1, 1, 8), 8, "one adapter")
check(steps_one_slot(2, 3, 8), 24, "three adapters, one after another, two requests each side by side")

# %% tags=["predict"] task="P2" title="Steps with two slots" why="Two adapters with their requests run side by side for 8 steps. The third waits until one of them has finished, and takes 8 more."
guess = predict("P2", 16, "3 adapters with 2 requests each, 8 tokens a request, 2 slots: how many steps in all?")  # SOLUTION: guess = predict("P2", ..., "3 adapters with 2 requests each, 8 tokens a request, 2 slots: how many steps in all?")

# %%
EIGHT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
steps = {}
for max_loras in (1, 2, 3):
    llm = engine(max_loras=max_loras, max_cpu_loras=3)
    seen = watch(llm)
    prompts = [prompt_of(llm, question) for question in asks(2) for _ in ADAPTERS]
    llm.generate(prompts, EIGHT, lora_request=ADAPTERS * 2, use_tqdm=False)
    manager = llm.engine.core.executor.worker.lora
    steps[max_loras] = len(seen)
    print(f"max_loras {max_loras}: {len(seen):2} steps, {manager.num_activations} copies into slots, {manager.num_loads} files read")
score("P2", steps[2])

# %% [markdown]
# The third adapter waits until one of the first two has finished. With one slot the customers take turns.

# %% [markdown]
# ## 5. A name is not an identity
#
# The digest is taken out of the key: an adapter is its name alone. Customer one uses "x". Then other weights come
# under the same name, and customer two sends the same long prompt.

# %%
from unittest import mock

from mini_vllm.lora.registry import AdapterFiles

TALK = [
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "I am Storyteller, a very small language model."},
    {"role": "user", "content": "What can you do?"},
    {"role": "assistant", "content": "I can tell short stories and answer small questions."},
    {"role": "user", "content": asks(1)[0]},
]


def second_customer() -> tuple[str, int]:
    llm = engine(max_loras=2)
    prompt = llm.apply_chat_template(TALK)
    pirate, other = (LoRARequest("x", i, a.lora_path) for i, a in enumerate(ADAPTERS[:2], 1))
    llm.generate([prompt], GREEDY, lora_request=pirate, use_tqdm=False)
    (output,) = llm.generate([prompt], GREEDY, lora_request=other, use_tqdm=False)
    return output.outputs[0].text, output.num_cached_tokens


# %% tags=["predict"] task="P3" title="Cached tokens that are another's" why="Only full blocks are cached: 69 tokens are 8 blocks of 8 and 5 tokens over. The name is the same, so are the hashes, and all 64 are found: computed with the weights of customer one."
guess = predict("P3", 64, "The prompt has 69 tokens in blocks of 8. How many of them does customer two find in the cache, if the name is all?")  # SOLUTION: guess = predict("P3", ..., "The prompt has 69 tokens in blocks of 8. How many of them does customer two find in the cache, if the name is all?")

# %%
right = second_customer()
with mock.patch.object(AdapterFiles, "digest", property(lambda self: "")):
    wrong = second_customer()
score("P3", wrong[1])
print(f"name and digest: {right[1]:3} cached, {right[0]!r}")
print(f"name alone:      {wrong[1]:3} cached, {wrong[0]!r}")

# %% [markdown]
# With the name alone the second customer gets the first one's adapter, weights and cached blocks and all: fluent, fast, and the
# wrong customer's. Nothing raises, and no dashboard shows it.

# %% [markdown]
# ## 6. How much rank is needed?
#
# The pirate has rank 8. Its product B A is cut to its k largest singular directions, for k from 8 down to 1, and asked again.

# %% tags=["todo"] task="N5" title="The best pair of a lower rank"
def cut_rank(a, b, rank: int):
    """(A, B) of that rank whose product is nearest to b @ a: its largest singular directions."""
    # BEGIN SOLUTION
    u, s, v = torch.linalg.svd(b @ a, full_matrices=False)
    root = s[:rank].sqrt()
    return root[:, None] * v[:rank], u[:, :rank] * root
    # END SOLUTION

# %% tags=["check"] task="N5"
full_a, full_b = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
cut_a, cut_b = cut_rank(full_a, full_b, 1)
check(list(cut_a.shape) + list(cut_b.shape), [1, 2, 2, 1], "shapes of rank 1")
check((cut_b @ cut_a).round(decimals=4).abs().tolist(), [[3.0, 0.0], [0.0, 0.0]], "the larger direction stays")

# %%
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file

tensors = {name: t.float() for name, t in load_file(Path(ADAPTERS[0].lora_path) / "adapter_model.safetensors").items()}
config = json.loads((Path(ADAPTERS[0].lora_path) / "adapter_config.json").read_text())
modules = sorted({name.rpartition(".lora_")[0] for name in tensors})
base = load_file(bundled.path("storyteller") / "model.safetensors")
module = "base_model.model.model.layers.2.self_attn.q_proj"
pair = tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]
delta = torch.linalg.svdvals(2.0 * pair[1] @ pair[0])
whole = torch.linalg.svdvals(base["model.layers.2.self_attn.q_proj.weight"].float())
figure, axis = plt.subplots()
axis.plot(range(1, 193), whole, color=BLUE, label="W, 256 x 192")
axis.plot(range(1, 9), delta[:8], "o-", color=ORANGE, label="scale B A, rank 8")
axis.set(xlabel="direction", ylabel="singular value", title="q_proj of layer 2", xscale="log")
axis.legend()
plt.show()

# %% tags=["predict"] task="P4" title="The smallest rank that still speaks like a pirate" why="The largest directions carry most of the product, and the plot shows how fast the rest falls. Three of eight are enough for this answer; the third one brings the Arr!"
guess = predict("P4", 2, "Down to which rank does the answer to the first question stay the same?")  # SOLUTION: guess = predict("P4", ..., "Down to which rank does the answer to the first question stay the same?")

# %%
texts = {}
with tempfile.TemporaryDirectory() as folder:
    llm = engine(max_loras=8)
    requests = []
    for rank in range(8, 0, -1):
        cut = {}
        for name in modules:
            a, b = cut_rank(tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"], rank)
            cut |= {f"{name}.lora_A.weight": a.contiguous(), f"{name}.lora_B.weight": b.contiguous()}
        path = Path(folder, f"r{rank}")
        path.mkdir()
        save_file(cut, path / "adapter_model.safetensors")
        (path / "adapter_config.json").write_text(json.dumps(config | {"r": rank, "lora_alpha": 2 * rank}))
        requests.append(LoRARequest(f"rank-{rank}", rank, str(path)))
    outputs = llm.generate([prompt_of(llm, asks(1)[0])] * 8, GREEDY, lora_request=requests, use_tqdm=False)
for request, output in zip(requests, outputs):
    texts[request.lora_int_id] = output.outputs[0].text
    print(f"{request.lora_name}  {output.outputs[0].text}")
score("P4", min(rank for rank in range(1, 9) if all(texts[r] == texts[8] for r in range(rank, 9))))

# %% [markdown]
# Eight adapters of different ranks answered in one batch. Each sits in a slot of `max_lora_rank` rows, 16 here; the rows it lacks are zero.
#
# ## What to take away
#
# - An adapter is a detour through a few numbers. It costs a share of `r (in + out) / (in * out)`.
# - Merged or not is a question of who shares the batch, not of arithmetic.
# - Few rows want few calls, many rows want few multiplications.
# - Slots bound what one step may use; the gate keeps the promise.
# - What is cached must be named by what made it, not by what it is called.
