# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 01: why does decoding starve the GPU?
#
# You measure what your two loops cost, place prefill and decode on the roofline of *this* machine,
# hold prediction against measurement, and see what a contiguous cache wastes. Small functions are
# yours to write; each is checked at once. Before each experiment you write down a guess.
#
# Times differ from machine to machine and from run to run. Read ratios.
#
# | word | meaning |
# |---|---|
# | prefill | the pass that computes a prompt |
# | decode | a pass that computes one token per request |
# | FLOP | one floating-point operation; a multiply-add is two |
# | intensity | FLOPs per byte moved |
# | ridge | the intensity at which a machine's two limits meet: its FLOPs/s divided by its bytes/s |

# %% tags=["setup"]
import math
import time
import warnings

import matplotlib.pyplot as plt

from mini_vllm.bundled import path as bundled_path
from mini_vllm.model.config import ModelArgs, load_config

warnings.filterwarnings("ignore", message="IProgress")  # no progress bars needed here

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.8), "axes.grid": True, "grid.alpha": 0.3}

storyteller = load_config(bundled_path("storyteller"))
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "dtype": "bfloat16",
}
qwen3 = ModelArgs.from_dict(QWEN3)  # the shape of Qwen3-0.6B

# %% [markdown]
# ## 1. How many tokens are computed?
#
# A prompt of `prompt` tokens, an answer of `output` tokens. Without a cache, every pass computes the
# whole sequence so far. With one, every token is computed once, and the last one never.

# %% tags=["todo"] task="N1" title="Tokens that each loop computes"
def tokens_computed(prompt: int, output: int, cached: bool) -> int:
    """Tokens that go through the model until `output` tokens are sampled (at least 1)."""
    # BEGIN SOLUTION
    if cached:
        return prompt + output - 1
    return sum(prompt + step for step in range(output))
    # END SOLUTION

# %% tags=["check"] task="N1"
check(tokens_computed(5, 1, True), 5, "the prefill alone gives the first token")
check(tokens_computed(5, 4, True), 8, "5, then 1 + 1 + 1")
check(tokens_computed(5, 4, False), 26, "5 + 6 + 7 + 8")

# %% [markdown]
# Now time both loops: the bundled model, a prompt of 16 tokens, answers of 8 to 256 tokens.

# %%
OUTPUTS = (8, 16, 32, 64, 128, 256)
for output in OUTPUTS:
    ratio = tokens_computed(16, output, False) / tokens_computed(16, output, True)
    print(f"{output:3} tokens out: {ratio:5.1f} times as many tokens computed without a cache")

# %% tags=["predict"] task="P1" title="What the cache saves at 256 tokens"
guess = predict("P1", 10, "256 tokens out: how many times as long does it take without a cache?")  # SOLUTION: guess = predict("P1", ..., "256 tokens out: how many times as long does it take without a cache?")

# %%
import torch

from mini_vllm.engine.naive import ContiguousKVCache, greedy_with_cache, greedy_without_cache
from mini_vllm.model.build import load_model

torch.set_num_threads(1)
model = load_model(bundled_path("storyteller"), dtype="float32")
PROMPT = list(range(100, 116))


def best_of(repeats: int, action) -> float:
    """The shortest of several runs: whatever else the machine does only adds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


seconds = {loop: [] for loop in (greedy_without_cache, greedy_with_cache)}
for output in OUTPUTS:
    answers = []
    for loop, row in seconds.items():
        repeats = 3 if output < 64 else 1
        row.append(best_of(repeats, lambda: answers.append(loop(model, PROMPT, output))))
    assert all(answer == answers[0] for answer in answers), "the cache changed a token"
saved = [a / b for a, b in zip(*seconds.values(), strict=True)]
for output, factor in zip(OUTPUTS, saved, strict=True):
    print(f"{output:3} tokens out: {factor:5.2f} times as long without a cache")
score("P1", saved[-1])

# %%
figure, axis = plt.subplots()
for (loop, row), style, colour in zip(seconds.items(), ("s--", "o-"), (ORANGE, BLUE), strict=True):
    rates = [output / s for output, s in zip(OUTPUTS, row, strict=True)]
    axis.plot(OUTPUTS, rates, style, color=colour, label=loop.__name__)
axis.set(xscale="log", xlabel="tokens generated", ylabel="tokens per second")
axis.set_ylim(bottom=0)
axis.set_xticks(OUTPUTS, [str(output) for output in OUTPUTS])
axis.minorticks_off()
axis.set_title("One request: the longer the answer, the more the cache saves")
axis.legend()
plt.show()

# %% [markdown]
# The time grows far more slowly than the number of tokens computed. A pass over 200 tokens is *not*
# 200 times as long as a pass over one. Why? The next part answers it.

# %% [markdown]
# ## 2. The roofline of this machine

# %% tags=["todo"] task="N2" title="Bytes of the cache for one token"
def kv_bytes_per_token(config: ModelArgs, itemsize: int) -> int:
    """Bytes of keys and values that one token leaves in the cache, over all layers."""
    # BEGIN SOLUTION
    numbers = config.num_key_value_heads * config.head_dim
    return itemsize * config.num_hidden_layers * (numbers + numbers)
    # END SOLUTION

# %% tags=["check"] task="N2"
check(kv_bytes_per_token(storyteller, 2), 2048, "4 layers, 2 KV heads of 64, keys and values, 2 bytes")
check(kv_bytes_per_token(qwen3, 2), 114_688, "28 layers, 8 KV heads of 128: 112 KiB a token")

# %% [markdown]
# The bundled model is so small that it fits a processor's caches, and much of its step is neither
# bytes nor FLOPs: part 3 measures how much. So this experiment uses a random model: a step reads 57
# million of its weights, 226 MB in float32, more than most caches hold. What the weights say does not
# matter for the time.

# %%
import json
import tempfile
from pathlib import Path

from mini_vllm.attention import AttentionMetadata
from mini_vllm.observability.roofline import (
    arithmetic_intensity,
    bound_of,
    least_seconds,
    measure_machine,
    step_cost,
)

MEDIUM = QWEN3 | {
    "vocab_size": 8192, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8,
    "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "dtype": "float32",
}
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "config.json").write_text(json.dumps(MEDIUM))
    medium = load_model(folder, load_format="dummy")


@torch.inference_mode()
def measure_step(model, query_lens: list[int], seq_lens: list[int], repeats: int = 3) -> float:
    """Seconds of one forward pass, logits included, with a cache full of zeros."""
    config, room = model.config, max(seq_lens)
    tables = [[i + 1] for i in range(len(seq_lens))]  # one long block a request: contiguous
    shape = (2, len(seq_lens) + 1, room, config.num_key_value_heads, config.head_dim)
    caches = [torch.zeros(shape) for _ in range(config.num_hidden_layers)]
    metadata = AttentionMetadata.from_lists(query_lens, seq_lens, tables, room)
    pairs = zip(query_lens, seq_lens, strict=True)
    positions = torch.tensor([p for n, length in pairs for p in range(length - n, length)])
    tokens = torch.zeros(len(positions), dtype=torch.long)
    last = torch.tensor(query_lens).cumsum(0) - 1
    step = lambda: model.compute_logits(model(tokens, positions, caches, metadata)[last])  # noqa: E731
    step()
    return best_of(repeats, step)


machine = measure_machine()
ridge = machine.flops_per_s / machine.bytes_per_s
print(f"This machine reaches {ridge:.1f} FLOPs for each byte: its ridge.")

# %% tags=["predict"] task="P2" title="A batch of 16 against a batch of 1"
guess = predict("P2", 3, "A decode step of 16 requests: how many times as long as one of a single request?")  # SOLUTION: guess = predict("P2", ..., "A decode step of 16 requests: how many times as long as one of a single request?")

# %%
CONTEXT = 64
BATCHES, PROMPTS = (1, 2, 4, 8, 16, 32, 64), (8, 16, 32, 64, 128, 256)
points = []  # (kind, size, cost, measured seconds)
for size in BATCHES:
    lens = [1] * size, [CONTEXT] * size
    points.append(("decode", size, step_cost(medium.config, *lens, 4), measure_step(medium, *lens)))
for size in PROMPTS:
    lens = [size], [size]
    points.append(("prefill", size, step_cost(medium.config, *lens, 4), measure_step(medium, *lens)))
decode_seconds = {size: s for kind, size, _, s in points if kind == "decode"}
score("P2", decode_seconds[16] / decode_seconds[1])

# %%
figure, axis = plt.subplots(figsize=(7.5, 4.4))
low, high = 0.2, 200
xs = [low * (high / low) ** (i / 200) for i in range(201)]
roof = [min(machine.flops_per_s, x * machine.bytes_per_s) / 1e9 for x in xs]
axis.plot(xs, roof, color="black", label="the roof")
axis.axvline(ridge, color="grey", linestyle=":", label=f"ridge: {ridge:.1f}")
for kind, style, colour, above in (("decode", "o", BLUE, 6), ("prefill", "s", ORANGE, -13)):
    mine = [(size, cost, s) for name, size, cost, s in points if name == kind]
    xs = [arithmetic_intensity(cost) for _, cost, _ in mine]
    ys = [cost.flops / s / 1e9 for _, cost, s in mine]
    axis.plot(xs, ys, style, color=colour, label=kind)
    for (size, _, _), x, y in zip(mine, xs, ys, strict=True):
        axis.annotate(str(size), (x, y), (0, above), textcoords="offset points", ha="center", fontsize=8)
axis.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOPs per byte)", ylabel="GFLOPs per second")
axis.set_title("Decode by batch size, prefill by prompt length (float32)")
axis.legend(loc="lower right")
plt.show()

# %% [markdown]
# A decode of one request stands far to the left: in float32 every weight is 4 bytes and brings 2
# FLOPs, so about 0.5 FLOPs per byte. (In bfloat16 it is 2 bytes: 1 FLOP per byte.) Each further
# request of the batch brings 2 more FLOPs to the same bytes, so the points walk to the right and up
# the slope. A prompt of n tokens stands where a batch of about n decodes stands: the weights do not
# care whose token it is.

# %% [markdown]
# ## 3. Predicted against measured

# %%
print("step            bound     measured / least possible")
for kind, size, cost, s in points:
    print(f"{kind:8}{size:4}    {bound_of(cost, machine):8}  {s / least_seconds(cost, machine):5.2f}")

tiny_cost = step_cost(model.config, [1], [CONTEXT], 4)
tiny_off = measure_step(model, [1], [CONTEXT], 20) / least_seconds(tiny_cost, machine)
print(f"storyteller, one decode: {tiny_off:.2f} times the least possible")

# %%
figure, axis = plt.subplots()
for kind, style, colour in (("decode", "o-", BLUE), ("prefill", "s--", ORANGE)):
    rows = [(size, s / least_seconds(cost, machine)) for name, size, cost, s in points if name == kind]
    axis.plot(*zip(*rows, strict=True), style, color=colour, label=kind)
axis.axhline(1, color="black", linewidth=1)
axis.set(xscale="log", xlabel="tokens computed in the step", ylabel="measured / least possible time")
axis.set_ylim(bottom=0)
axis.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
axis.minorticks_off()
axis.set_title("How far the roofline is off")
axis.legend()
plt.show()

# %% [markdown]
# **How far off?** Read your own table. A value near 1 means that the step runs as fast as the machine
# allows. Values below 1 happen: `measure_machine` measures one reduction and one square product, and
# another kernel may do a little better, or find some weights in a cache. Values of 2 and more have
# reasons that the formula leaves out: norms, rotations and softmax, Python between the operations,
# thin matrices that use the arithmetic units badly, other programs on the machine. Decode steps of a
# middle size are worst, because neither limit is fully reached. The roofline says the least time and
# its order of magnitude, not the time itself. What it tells well is which of two changes is worth trying.

# %% [markdown]
# ## 4. How large must a batch be?
#
# Leave the operations of attention aside. A step of `batch` decodes reads `weight_bytes` once and
# `kv_bytes` for each request, and computes `flops` for each request. From which batch size on does it
# compute for at least as long as it moves bytes?

# %% tags=["todo"] task="N3" title="The smallest batch that is not bound by memory"
def batch_at_ridge(weight_bytes: float, kv_bytes: float, flops: float, ridge: float) -> float:
    """Smallest whole batch with flops / bytes >= ridge; math.inf if there is none.

    `kv_bytes` and `flops` are per request. Every request brings `flops` and needs `kv_bytes * ridge`.
    """
    # BEGIN SOLUTION
    gain = flops - kv_bytes * ridge
    return math.ceil(weight_bytes * ridge / gain) if gain > 0 else math.inf
    # END SOLUTION

# %% tags=["check"] task="N3"
check(batch_at_ridge(1000, 0, 1000, 300), 300, "without KV, in bfloat16: the ridge itself")
check(batch_at_ridge(1000, 1, 1000, 300), 429, "each request brings 1000 and spends 300: 300,000 / 700")
check(batch_at_ridge(1000, 4, 1000, 300), math.inf, "each request spends more than it brings")
check(batch_at_ridge(1000, 3, 900, 300), math.inf, "each spends all that it brings: nothing is left for the weights")

# %%
WEIGHTS = 2 * 595_984_384  # Qwen3-0.6B in bfloat16: bytes, and FLOPs per token as well
RIDGE = 300  # the size of a data-centre GPU's ridge in bfloat16
for context in (0, 8, 16, 32, 64, 128):
    batch = batch_at_ridge(WEIGHTS, context * kv_bytes_per_token(qwen3, 2), WEIGHTS, RIDGE)
    print(f"context {context:4}: batch {batch}")

# %% [markdown]
# With a ridge of 300, there is a batch that reaches it for the shortest contexts only. Beyond some 30
# tokens, each request adds more bytes of KV than it adds work. So a decode of Qwen3-0.6B is bound by
# memory at *every* batch size. Batching still pays: it shares the weights. It cannot share the KV.

# %% tags=["todo"] task="N4" title="Time per token of a batch, relative to one request"
def time_per_token(batch: int, weight_bytes: float, kv_bytes: float) -> float:
    """Time per token of a memory-bound decode of `batch` requests; a single request has 1.0."""
    # BEGIN SOLUTION
    return (weight_bytes / batch + kv_bytes) / (weight_bytes + kv_bytes)
    # END SOLUTION

# %% tags=["check"] task="N4"
check_close(time_per_token(1, 900, 100), 1.0, "one request: the measure itself")
check_close(time_per_token(9, 900, 100), 0.2, "100 bytes of weights and 100 of KV, instead of 1000")

# %%
figure, axis = plt.subplots()
sizes = [2**i for i in range(10)]
for context, style, colour in ((256, "o-", BLUE), (2048, "s--", ORANGE), (16384, "^:", GREEN)):
    kv = context * kv_bytes_per_token(qwen3, 2)
    axis.plot(sizes, [1 / time_per_token(b, WEIGHTS, kv) for b in sizes], style, color=colour, label=f"context {context}")
axis.set(xscale="log", yscale="log", xlabel="requests in the batch", ylabel="times the tokens/s of one request")
axis.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
axis.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
axis.minorticks_off()
axis.set_title("What batching gains at most, Qwen3-0.6B, bound by memory")
axis.legend()
plt.show()

# %% [markdown]
# ## 5. What a contiguous cache wastes
#
# Batching needs many requests in memory at once. The contiguous cache reserves `max_len` tokens for
# each, because it is unknown when the model will say EOS.

# %% tags=["todo"] task="N5" title="Waste of contiguous and of paged caches"
def waste(lengths: list[int], reserved: list[int]) -> float:
    """Share of all reserved token slots that are never used, from 0.0 to 1.0."""
    # BEGIN SOLUTION
    return 1 - sum(lengths) / sum(reserved)
    # END SOLUTION


def contiguous(lengths: list[int], max_len: int) -> list[int]:
    """Slots reserved for each request when each gets room for `max_len` tokens."""
    # BEGIN SOLUTION
    return [max_len for _ in lengths]
    # END SOLUTION


def paged(lengths: list[int], block_size: int) -> list[int]:
    """Slots reserved for each request when each gets whole blocks, as it grows."""
    # BEGIN SOLUTION
    return [-(-length // block_size) * block_size for length in lengths]
    # END SOLUTION

# %% tags=["check"] task="N5"
check(contiguous([3, 17], 32), [32, 32], "the longest that is allowed, for each")
check(paged([3, 16, 17], 16), [16, 16, 32], "17 tokens need a second block; 16 do not")
check_close(waste([8, 24], [32, 32]), 0.5, "32 of 64 slots are used")

# %% [markdown]
# Real lengths: the bundled model tells 64 stories, sampled, each until its own EOS. The limit that it
# allows is 2048 tokens. Here we stop at 512, so that the run is short.

# %% tags=["predict"] task="P3" title="Waste of the contiguous cache"
guess = predict("P3", 85, "What percentage of the slots does a contiguous cache of 512 tokens a request waste?")  # SOLUTION: guess = predict("P3", ..., "What percentage of the slots does a contiguous cache of 512 tokens a request waste?")

# %%
from mini_vllm import LLM, SamplingParams

STARTS = ("Once upon a time", "A small fox", "Tell me a story about a boat.", "One day, a girl")
llm = LLM("storyteller", max_num_seqs=64, num_gpu_blocks=64 * 32 + 1, max_model_len=512, dtype="float32")
params = [SamplingParams(temperature=1.0, max_tokens=None, seed=i) for i in range(64)]
outputs = llm.generate([STARTS[i % 4] for i in range(64)], params, use_tqdm=False)
lengths = [len(o.prompt_token_ids) + len(o.outputs[0].token_ids) for o in outputs]
print(f"shortest {min(lengths)}, mean {sum(lengths) / 64:.0f}, longest {max(lengths)} tokens")
score("P3", 100 * waste(lengths, contiguous(lengths, 512)))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(1.2, 1))
left.hist(lengths, bins=range(0, 513, 32), color=BLUE)
left.axvline(512, color="black", linestyle="--", label="reserved by the contiguous cache")
left.set(xlabel="tokens of a request, prompt and story", ylabel="requests", title="64 stories")
left.legend(fontsize=8)
plans = {
    "contiguous\n2048": contiguous(lengths, 2048),
    "contiguous\n512": contiguous(lengths, 512),
    "paged\n64": paged(lengths, 64),
    "paged\n16": paged(lengths, 16),
}
shares = [100 * waste(lengths, reserved) for reserved in plans.values()]
bars = right.bar(plans.keys(), shares, color=(ORANGE, ORANGE, GREEN, GREEN))
right.bar_label(bars, fmt="%.0f %%")
right.set(ylabel="slots never used (%)", title="Waste", ylim=(0, 110))
right.tick_params(axis="x", labelsize=8)
right.grid(axis="x", visible=False)
plt.tight_layout()
plt.show()

# %%
memory = 64 * 2**20
print("Requests like these that fit 64 MiB of KV cache (storyteller, bfloat16):")
for name, reserved in plans.items():
    mean = sum(reserved) / len(reserved) * kv_bytes_per_token(storyteller, 2)
    print(f"  {name.replace(chr(10), ' '):16} {memory / mean:6.0f}")

# %% [markdown]
# More requests in the same memory are a larger batch, and a larger batch shares the weights among
# more. This is why paging, which looks like bookkeeping, makes a GPU faster. Phase 02 builds it.
