# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 09: fewer bytes a token
#
# You count what a weight costs, watch a loud number spoil its neighbours, see a metric praise a broken model, plant
# outliers and repair what they break, and follow GPTQ column by column. Small functions are yours to write; each is
# checked at once. Before each experiment you write down a guess.
#
# | word | meaning |
# |---|---|
# | group | neighbours of one row that share a scale |
# | KL | how far predictions are from the original's, in nats a token; 0 is the same |
# | outlier | a channel far louder than the others |
#
# Every number below repeats: nothing is timed. **Your** files of `labs/09-quantization/` do the work if you start the
# notebook with `make notebook-09`.

# %% tags=["setup"]
import os
import shutil
import tempfile
import warnings
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # the engine below computes as usual; only tests watch kernels

import matplotlib.pyplot as plt
import torch

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#DDDDDD"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3}
FOLDER = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1. What a weight costs
#
# A weight takes its own bits, and its share of the group's scale and zero.

# %% tags=["todo"] task="N1" title="Bits a weight"
def bits_a_weight(bits: int, group_size: int, scale_bits: int = 16, zero_bits: int = 0) -> float:
    """Bits of one weight, with its share of what the group keeps."""
    # BEGIN SOLUTION
    return bits + (scale_bits + zero_bits) / group_size
    # END SOLUTION

# %% tags=["check"] task="N1"
check(bits_a_weight(4, 128), 4.125, "int4 in groups of 128, scales of 16 bits")
check(bits_a_weight(4, 32, zero_bits=16), 5.0, "groups of 32, a scale and a zero of 16 bits")

# %% tags=["predict"] task="P1" title="Groups of 8" why="Each weight has its 4 bits and a share of its group's scale: 16 bits over 8 weights are 2 more. The smaller the group, the dearer the scale."
guess = predict("P1", 5, "int4 in groups of 8, with scales of 16 bits: bits a weight?")  # SOLUTION: guess = predict("P1", ..., "int4 in groups of 8, with scales of 16 bits: bits a weight?")

# %%
score("P1", bits_a_weight(4, 8))

# %% [markdown]
# ## 2. Which weights share a scale
#
# A random matrix, rounded to 2 to 8 bits in groups of several sizes. The error is relative: |W - Q| / |W|.

# %%
from mini_vllm.quantization.metrics import kl_divergence, perplexity, relative_error, top1_agreement
from mini_vllm.quantization.packing import choose_qparams, dequantize, quantize

W = torch.randn(64, 512, generator=torch.Generator().manual_seed(9))


def rounded(weight, bits: int, group_size: int, symmetric: bool = True):
    scale, zero = choose_qparams(weight, bits, group_size, symmetric)
    return dequantize(quantize(weight, scale, zero, bits), scale, zero)


for group_size, style, colour in ((16, "o-", BLUE), (64, "s--", ORANGE), (512, "^:", PINK)):
    counts = range(2, 9)
    cost = [bits_a_weight(n, group_size) for n in counts]
    plt.plot(cost, [relative_error(W, rounded(W, n, group_size)) for n in counts], style, color=colour, label=f"groups of {group_size}")
plt.yscale("log")
plt.xlabel("bits a weight, scales included")
plt.ylabel("relative error")
plt.title("One bit more halves the error")
plt.legend()
plt.show()

# %% [markdown]
# One bit more halves the error. A smaller group helps, too, but its scales cost bits: groups of 16 pay a whole bit, and at
# the same place on the x axis they are the worst of the three. What groups are really for is the next cell: one loud number.

# %%
loud = W.clone()
loud[:, 7] *= 30
for group_size in (16, 64, 512):
    others = [i for i in range(512) if i != 7]
    print(f"groups of {group_size:3}: error of the 511 quiet columns {relative_error(loud[:, others], rounded(loud, 4, group_size)[:, others]):.3f}")

# %% [markdown]
# ## 3. A metric that lies
#
# The bundled model, its weights rounded to fewer and fewer bits. You measure on two texts of its own kind: how surprised it
# is by them (perplexity), and how far it is from the original (KL).

# %% tags=["todo"] task="N2" title="How far from the original, by hand"
def divergence(p: list[float], q: list[float]) -> float:
    """KL of two distributions over the same tokens: the sum of p * log(p / q), where p is not 0."""
    # BEGIN SOLUTION
    import math
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)
    # END SOLUTION

# %% tags=["check"] task="N2"
check(divergence([0.5, 0.5], [0.5, 0.5]), 0.0, "the same")
check(round(divergence([1.0, 0.0], [0.5, 0.5]), 4), 0.6931, "sure of one, half sure: log 2")

# %%
from safetensors.torch import load_file, save_file

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.model.build import load_model
from mini_vllm.quantization import get_quantization_config, oneshot
from mini_vllm.quantization.oneshot.calibrate import run_prompt

llm = LLM("storyteller", dtype="float32", max_model_len=256, num_gpu_blocks=256)
TOLD = SamplingParams(temperature=1.0, seed=0, n=8, max_tokens=100)
stories = [list(o.token_ids) for o in llm.generate(["Once upon a time"], TOLD, use_tqdm=False)[0].outputs]
calibration, held_out = stories[:6], stories[6] + stories[7]  # never measure on what you calibrate with
QUESTION = llm.tokenizer.encode("Why is the sky green on Mondays? Nobody has ever asked the seven kings about soup, and rain costs 12.")


def logits_of(folder, tokens):
    return run_prompt(load_model(folder, dtype="float32", quant=get_quantization_config(folder)), tokens)


def at_bits(bits: int, tokens):
    """Logits with every linear layer of the decoder rounded to so many bits, in groups of 32."""
    folder = FOLDER / f"{bits}-bits"
    shutil.copytree(bundled.path("storyteller"), folder, dirs_exist_ok=True)
    weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    for name, weight in weights.items():
        if name.startswith("model.layers.") and weight.dim() == 2:
            weights[name] = rounded(weight, bits, 32)
    save_file(weights, folder / "model.safetensors")
    return logits_of(folder, tokens)


ORIGINAL = {name: logits_of(bundled.path("storyteller"), tokens) for name, tokens in (("its own story", held_out), ("a strange text", QUESTION))}
TEXTS = {"its own story": held_out, "a strange text": QUESTION}

# %% tags=["predict"] task="P2" title="Two bits"
guess = predict("P2", 0, "At 2 bits: does the perplexity of the strange text go up (1) or down (0)?")  # SOLUTION: guess = predict("P2", ..., "At 2 bits: does the perplexity of the strange text go up (1) or down (0)?")

# %%
surprise = {}
for name, tokens in TEXTS.items():
    targets = torch.tensor(tokens[1:])
    for bits in (16, 8, 4, 3, 2):
        logits = ORIGINAL[name] if bits == 16 else at_bits(bits, tokens)
        surprise[name, bits] = perplexity(logits[:-1], targets)
        far = float(kl_divergence(ORIGINAL[name], logits).mean())
        print(f"{name:15} {bits:2} bits  perplexity {surprise[name, bits]:9.2f}  KL {far:8.5f}  same next token {top1_agreement(ORIGINAL[name], logits):.0%}")
assert len(set(surprise.values())) == len(surprise), "rounding has changed nothing"
score("P2", float(surprise["a strange text", 2] > surprise["a strange text", 16]))

# %% [markdown]
# On its own stories perplexity hardly moves until the model is broken; KL tells much earlier. On a text that the model never learned, noise makes an over-confident model
# less sure, so it is less surprised: it looks better while it breaks. Ask for KL first.

# %% [markdown]
# ## 4. Loud channels
#
# The bundled model has no outliers, so you plant some: every 24th channel of each norm becomes louder, and the columns that
# read it quieter. In float32 no logit changes. W8A8 rounds activations, W4A16 rounds weights: both suffer.

# %% tags=["todo"] task="N3" title="The largest error of a rounded token"
def worst_error(x: list[float]) -> float:
    """Half a step of int8, if the largest magnitude of the token becomes 127."""
    # BEGIN SOLUTION
    return max(abs(value) for value in x) / 127 / 2
    # END SOLUTION

# %% tags=["check"] task="N3"
check(round(worst_error([1.0, -0.5, 0.25]), 5), 0.00394, "a quiet token")
check(round(worst_error([1.0, -0.5, -64.0]), 5), 0.25197, "one loud channel: 0.25 is rounded away")

# %%
from mini_vllm.quantization.oneshot.outliers import plant_outliers

WAYS = {
    "W8A8": dict(scheme="W8A8"),
    "W8A8, SmoothQuant": dict(scheme="W8A8", algorithm="smoothquant", dataset=calibration),
    "W4A16": dict(scheme="W4A16", group_size=32),
    "W4A16, AWQ": dict(scheme="W4A16", group_size=32, algorithm="awq", dataset=calibration),
}
FACTORS = (1, 4, 16, 64)
found = {way: [] for way in WAYS}
for factor in FACTORS:
    planted = plant_outliers("storyteller", FOLDER / f"planted-{factor}", factor)
    same = float((logits_of(planted, held_out) - ORIGINAL["its own story"]).abs().max())
    for way, how in WAYS.items():
        logits = logits_of(oneshot(planted, FOLDER / f"{factor}-{way}", **how), held_out)
        found[way].append(float(kl_divergence(ORIGINAL["its own story"], logits).mean()))
    print(f"factor {factor:2}: float32 differs by {same:.1e};  " + ";  ".join(f"{way} {values[-1]:.5f}" for way, values in found.items()))
for (way, values), style, colour in zip(found.items(), ("o-", "o--", "s-", "s--"), (BLUE, BLUE, ORANGE, ORANGE), strict=True):
    plt.plot(FACTORS, values, style, color=colour, label=way)
plt.xscale("log", base=2)
plt.yscale("log")
plt.xlabel("how much louder every 24th channel is")
plt.ylabel("KL to the original (nats a token)")
plt.title("Loud channels, with and without a remedy")
plt.legend(fontsize=8, handlelength=4)
plt.show()

# %% [markdown]
# Both remedies find the factor and divide by it again. SmoothQuant does not mind how loud the channels are; with AWQ the KL
# doubles, where that of plain W4A16 grows sevenfold.

# %% [markdown]
# ## 5. GPTQ, column by column
#
# Correlated inputs, one matrix, 3 bits. GPTQ rounds a column and lets the ones behind make up for it.

# %%
from mini_vllm.quantization.oneshot.gptq import gptq_quantize

draw = torch.Generator().manual_seed(5)
X = torch.randn(400, 64, generator=draw) @ torch.randn(64, 64, generator=draw)
V = torch.randn(32, 64, generator=draw)


def output_error(hessian) -> float:
    stored, scale, zero, group = gptq_quantize(V, hessian, 3, 64, True)
    columns = group.long()
    return relative_error(X @ V.T, X @ ((stored - zero[:, columns]) * scale[:, columns]).T)


# %% tags=["predict"] task="P3" title="A Hessian that knows nothing" why="The Hessian says which inputs move together, so that later columns can repair an earlier column's error. The identity says that none do: no column repairs another, and what is left is plain rounding."
guess = predict("P3", 1.0, "With H = identity, GPTQ's output error over plain rounding's?")  # SOLUTION: guess = predict("P3", ..., "With H = identity, GPTQ's output error over plain rounding's?")

# %%
plain = relative_error(X @ V.T, X @ rounded(V, 3, 64).T)
score("P3", output_error(torch.eye(64)) / plain)
print(f"rounding {plain:.3f}, GPTQ with the inputs' Hessian {output_error(X.T @ X):.3f}")

# %% [markdown]
# ## 6. A cache of bytes
#
# Keys of one head, stored and read back: int8 with a scale a head, fp8 with one scale for the layer.

# %% tags=["todo"] task="N4" title="Blocks that fit"
def blocks_that_fit(memory: int, block_size: int, heads: int, head_dim: int, bytes_a_number: int, pad: int) -> int:
    """KV blocks of one layer in `memory` bytes; a block has keys and values, `pad` bytes lie behind each head."""
    # BEGIN SOLUTION
    return memory // (2 * block_size * heads * (head_dim * bytes_a_number + pad))
    # END SOLUTION

# %% tags=["check"] task="N4"
check(blocks_that_fit(2**20, 16, 8, 128, 2, 0), 16, "bfloat16: 64 KiB a block")
check(blocks_that_fit(2**20, 16, 8, 128, 1, 4), 31, "int8 with a scale a head")

# %%
from mini_vllm.attention.quantized import FORMATS, dequantize_kv, quantize_kv

keys = torch.randn(200, 2, 64, generator=torch.Generator().manual_seed(6))
for loudness in (0.01, 1.0, 100.0):
    x = keys * loudness
    told = []
    for name, scale in (("int8_per_token_head", 1.0), ("fp8", 1.0), ("fp8", float(x.abs().max()) / 448)):
        back = dequantize_kv(quantize_kv(x, FORMATS[name], scale), FORMATS[name], torch.float32, scale)
        told.append(f"{name} {'with its scale ' if scale != 1.0 else ''}{relative_error(x, back):.4f}")
    print(f"keys of about {loudness:6}: " + "; ".join(told))

# %% [markdown]
# fp8 has an exponent, so it forgives a wrong scale: until numbers fall below 2^-9 or above 448. int8 has none, and needs the scale
# that lies behind every head.

# %% [markdown]
# ## 7. When fewer bytes are faster
#
# A step reads every weight once, however many requests it serves, and multiplies each with every token.

# %% tags=["todo"] task="N5" title="Seconds of a step"
def step_seconds(weights: float, bits: float, tokens: int, bytes_a_second: float, flops: float, unpack: float = 0.0) -> float:
    """The longer of reading all weights and computing with them (2 operations a weight and token, and `unpack` a weight)."""
    # BEGIN SOLUTION
    return max(weights * bits / 8 / bytes_a_second, weights * (2 * tokens + unpack) / flops)
    # END SOLUTION

# %% tags=["check"] task="N5"
check(step_seconds(1e9, 16, 1, 1e11, 1e12), 0.02, "one token: 2 GB at 100 GB a second")
check(step_seconds(1e9, 4, 64, 1e11, 1e12), 0.128, "64 tokens: the products take longer than the bytes")
check_close(step_seconds(1e9, 4, 1, 1e13, 1e12, 8.0), 0.01, "2 operations for the token and 8 to unpack, a weight")

# %% tags=["predict"] task="P4" title="Where int4 stops helping" why="A step takes the longer of reading the weights and multiplying by them. Reading 1e9 weights of 16 bits takes 20 ms. The products take 2 ms a token, 2 operations a weight. From 10 tokens on they take longer than reading, even of 16 bits, so fewer bits save nothing."
guess = predict("P4", 60, "100 GB/s, 1e12 operations/s: from how many tokens on do 4 bits save nothing beside 16?")  # SOLUTION: guess = predict("P4", ..., "100 GB/s, 1e12 operations/s: from how many tokens on do 4 bits save nothing beside 16?")

# %%
tokens = list(range(1, 129))
ratio = [step_seconds(1e9, 16, n, 1e11, 1e12) / step_seconds(1e9, 4.125, n, 1e11, 1e12) for n in tokens]
score("P4", next(n for n, r in zip(tokens, ratio, strict=True) if r <= 1.0))
plt.plot(tokens, ratio, color=BLUE, label="a kernel that unpacks for nothing")
plt.plot(tokens, [step_seconds(1e9, 16, n, 1e11, 1e12) / step_seconds(1e9, 4.125, n, 1e11, 1e12, unpack=16.0) for n in tokens], "--", color=ORANGE, label="16 operations to unpack a weight")
plt.axhline(1.0, color=GREY)
plt.xscale("log", base=2)
plt.xlabel("tokens in a step")
plt.ylabel("times as fast as 16 bits")
plt.title("int4, by the bytes and the products of a step")
plt.legend(fontsize=8)
plt.show()

# %% [markdown]
# `python -m benchmarks.bench_quantization` measures the same curve on your machine.
