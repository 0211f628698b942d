# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 07: where do the microseconds go?
#
# You take one decode step apart: which part takes its time, how many launches it is made of, when a launch
# costs more than its work, what padding to buckets wastes, and how many bytes fusion saves. Small
# functions are yours to write; each is checked at once. Before each experiment you write down a guess.
#
# Times differ from machine to machine and from run to run. Read ratios.
#
# | word | meaning |
# |---|---|
# | launch | starting one operation on the device; on a CPU, calling it |
# | step | one turn of the engine: schedule, prepare, forward pass, sample, update |
# | bucket | a batch size for which a graph was recorded |
# | padding | rows of a bucket that belong to no request |
# | trip | reading or writing a tensor once in memory |

# %% tags=["setup"]
import os

os.environ["TRITON_INTERPRET"] = "0"  # this notebook measures: nothing may be interpreted

import time
import warnings
from collections import Counter
from operator import attrgetter

import matplotlib.pyplot as plt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mini_vllm.worker.cuda_graphs import choose_bucket, make_buckets

warnings.filterwarnings("ignore", message="IProgress")  # no progress bars needed here
torch.set_num_threads(1)

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#999999"
plt.rcParams |= {"figure.figsize": (7.5, 3.8), "axes.grid": True, "grid.alpha": 0.3}

# %% [markdown]
# ## 1. Which part takes the time of a step?
#
# The bundled model in the real engine. We put a clock around the parts of a step, let a batch decode,
# and add up. What is left of the whole step has no name of its own: bookkeeping of rows, lists,
# the loop itself.

# %% tags=["todo"] task="N1" title="Shares of a step"
def shares(whole: float, parts: dict[str, float]) -> dict[str, float]:
    """Each part's share of the whole step's seconds, and what is left as "rest"."""
    # BEGIN SOLUTION
    result = {name: seconds / whole for name, seconds in parts.items()}
    return result | {"rest": 1 - sum(result.values())}
    # END SOLUTION

# %% tags=["check"] task="N1"
answer = shares(10.0, {"schedule": 1.0, "forward": 6.0})
check(sorted(answer), ["forward", "rest", "schedule"], "all parts and the rest")
check_close(answer["rest"], 0.3, "10 - 1 - 6 = 3 seconds of 10")

# %% tags=["predict"] task="P1" title="The forward pass of one request"
guess = predict("P1", 60, "One request decodes: what percentage of a step is the forward pass with its logits?")  # SOLUTION: guess = predict("P1", ..., "One request decodes: what percentage of a step is the forward pass with its logits?")

# %%
from mini_vllm import LLM, SamplingParams

PARTS = {  # what we call it: where it lives
    "schedule": ("scheduler", "schedule"),
    "prepare": ("model_runner", "_prepare_inputs"),
    "forward": ("model_runner", "_forward"),
    "logits": ("model", "compute_logits"),
    "sample": ("model_runner.sample_step", "draw"),
    "update": ("scheduler", "update_from_output"),
}


def clocked(core) -> Counter:
    """Wrap the parts of an engine's step so that each adds its seconds to the counter returned."""
    seconds: Counter = Counter()

    def wrap(owner, method: str, name: str) -> None:
        inner = getattr(owner, method)

        def timed(*args, **kwargs):
            start = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                seconds[name] += time.perf_counter() - start

        setattr(owner, method, timed)

    for name, (owner, method) in PARTS.items():
        wrap(attrgetter(owner)(core), method, name)
    wrap(core, "step", "whole")
    return seconds


def decode_steps(batch: int, tokens: int = 48) -> Counter:
    """Seconds of each part over a run in which `batch` requests decode together."""
    llm = LLM("storyteller", dtype="float32", max_model_len=128, max_num_seqs=64, num_gpu_blocks=64 * 8 + 1)
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    llm.generate([[5, 6, 7]], params, use_tqdm=False)  # warm up
    seconds = clocked(llm.engine.core)
    llm.generate([[10 + i, 20, 30] for i in range(batch)], params, use_tqdm=False)
    return seconds


BATCHES = (1, 4, 16, 64)
measured = {batch: decode_steps(batch) for batch in BATCHES}
split = {b: shares(m["whole"], {name: m[name] for name in PARTS}) for b, m in measured.items()}
for batch in BATCHES:
    print(f"batch {batch:2}: " + ", ".join(f"{name} {100 * s:.0f} %" for name, s in split[batch].items()))
score("P1", 100 * (split[1]["forward"] + split[1]["logits"]))

# %%
figure, axis = plt.subplots()
bottom = [0.0] * len(BATCHES)
for (name, colour), hatch in zip(
    zip([*PARTS, "rest"], (PINK, ORANGE, BLUE, "#56B4E9", GREEN, "#F0E442", GREY), strict=True),
    ("", "//", "", "..", "\\\\", "xx", ""),
    strict=True,
):
    heights = [100 * split[batch][name] for batch in BATCHES]
    axis.bar([str(b) for b in BATCHES], heights, bottom=bottom, color=colour, hatch=hatch, label=name, width=0.6)
    bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
axis.set(xlabel="requests that decode together", ylabel="share of the step (%)", title="Where a step's time goes")
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.tight_layout()
plt.show()

# %% [markdown]
# On a CPU the forward pass is real work and grows with the batch. On a GPU it shrinks by orders of
# magnitude, and all the other bars stay. That is why the scheduler has to be cheap, and why the next
# question is what the forward pass itself consists of.

# %% [markdown]
# ## 2. How many launches is a step?

# %% tags=["todo"] task="N2" title="Count operations"
class CountLaunches(TorchDispatchMode):
    """Counts every operation that torch runs inside the `with` block, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # BEGIN SOLUTION
        self.counts[func._schema.name] += 1
        return func(*args, **(kwargs or {}))
        # END SOLUTION

# %% tags=["check"] task="N2"
with CountLaunches() as mode:
    total = torch.ones(3) + torch.ones(3)
check(mode.counts["aten::ones"], 2, "two tensors of ones")
check(mode.counts["aten::add"], 1, "one addition")
check(total.tolist(), [2.0, 2.0, 2.0], "the operations still ran")

# %% tags=["predict"] task="P2" title="Launches of one decode step"
guess = predict("P2", 100, "The bundled model has 4 layers: how many operations is its forward pass of one decode?")  # SOLUTION: guess = predict("P2", ..., "The bundled model has 4 layers: how many operations is its forward pass of one decode?")

# %%
VIEWS = {"view", "_unsafe_view", "split", "split_with_sizes", "chunk", "slice", "select", "unbind", "t", "transpose",
         "expand", "unsqueeze", "to", "as_strided", "detach", "alias", "flatten", "reshape", "permute", "squeeze", "unflatten"}  # fmt: skip


def launches(batch: int) -> Counter:
    """Operations of one forward pass of `batch` decodes that touch memory; views do not.

    In float32 nothing is converted, so a `to` does not either.
    """
    llm = LLM("storyteller", dtype="float32", max_model_len=64, max_num_seqs=64, num_gpu_blocks=64 * 4 + 1)
    core = llm.engine.core
    inner, seen = core.model_runner._forward, []

    def counted(*args, **kwargs):
        with CountLaunches() as mode:
            result = inner(*args, **kwargs)
        seen.append(Counter({k.split("::")[1]: n for k, n in mode.counts.items() if k.split("::")[1] not in VIEWS}))
        return result

    core.model_runner._forward = counted
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    llm.generate([[10 + i, 20, 30] for i in range(batch)], params, use_tqdm=False)
    return seen[-1]


counts = {batch: launches(batch) for batch in (1, 16, 64)}
for batch, counter in counts.items():
    print(f"batch {batch:2}: {sum(counter.values())} operations, {sum(counter.values()) / 4:.0f} a layer")
print("most frequent:", ", ".join(f"{name} x{n}" for name, n in counts[1].most_common(8)))
score("P2", sum(counts[1].values()))

# %% [markdown]
# The count does not depend on the batch. On a GPU each of these is at least one kernel launch. A model
# of 28 layers has seven times as many.

# %% [markdown]
# ## 3. When does a launch cost more than its work?

# %% tags=["todo"] task="N3" title="Time of a step whose launches and work overlap"
def step_seconds(num_launches: int, launch: float, work: float) -> float:
    """Python launches one operation after another while the device works off the queue.

    `launch` is the seconds of one launch, `work` the device's seconds for all of them. Both
    run at the same time; the slower side decides.
    """
    # BEGIN SOLUTION
    return max(num_launches * launch, work)
    # END SOLUTION

# %% tags=["check"] task="N3"
check_close(step_seconds(100, 5e-6, 2e-4), 5e-4, "launching 100 operations takes longer than 0.2 ms of work")
check_close(step_seconds(100, 5e-6, 2e-3), 2e-3, "2 ms of work hide 0.5 ms of launching")

# %%
SIZES = [4**i for i in range(1, 12)]


def seconds_of_add(size: int) -> float:
    """Best time of one addition of `size` numbers: of many short rounds, so that some are undisturbed."""
    x, y, out = torch.ones(size), torch.ones(size), torch.empty(size)
    repeats = max(1, min(50, 2**20 // size))
    best = float("inf")
    for _ in range(100):
        start = time.perf_counter()
        for _ in range(repeats):
            torch.add(x, y, out=out)
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


adds = [seconds_of_add(size) for size in SIZES]
floor = min(adds)
small = max(size for size, s in zip(SIZES, adds, strict=True) if s <= 2 * floor)
print(f"calling an operation here costs {1e6 * floor:.2f} us; above about {small} numbers, the work costs more")
figure, axis = plt.subplots()
axis.plot(SIZES, [1e6 * s for s in adds], "o-", color=BLUE, label="measured")
axis.axhline(1e6 * floor, color="black", linestyle=":", label="cost of the call")
axis.set(xscale="log", yscale="log", xlabel="numbers added", ylabel="microseconds", title="Small operations cost their call")
axis.legend()
plt.show()

# %% [markdown]
# The same shape on any device, with other numbers. A graph removes the flat part: it replays all
# launches of a step with one call. It cannot make the sloped part faster. So graphs help most where
# steps are short: small models, small batches, decodes.

# %% [markdown]
# ## 4. What does padding to buckets waste?
#
# A graph exists for some batch sizes only. A step is padded to the next one.

# %% tags=["todo"] task="N4" title="Share of rows that are padding"
def padded_share(batch_sizes: list[int], buckets: list[int]) -> float:
    """Rows of padding divided by all rows, over steps of these sizes (each fits a bucket)."""
    # BEGIN SOLUTION
    rows = sum(choose_bucket(size, buckets) for size in batch_sizes)
    return 1 - sum(batch_sizes) / rows
    # END SOLUTION

# %% tags=["check"] task="N4"
check_close(padded_share([3, 4], [1, 2, 4]), 1 / 8, "8 rows for 7 requests")
check_close(padded_share([1, 2, 4], [1, 2, 4]), 0.0, "every step fits exactly")

# %% [markdown]
# Batch sizes of a real run: the scheduler serves 200 requests that arrive at random, at most 64 at a
# time. No model runs, so it is quick; every request gets made-up tokens until its length is reached.

# %% tags=["predict"] task="P3" title="Padding with vLLM's buckets"
guess = predict("P3", 10, "Buckets 1, 2, 4, 8, 16, 24, ... 64: what percentage of the rows is padding?")  # SOLUTION: guess = predict("P3", ..., "Buckets 1, 2, 4, 8, 16, 24, ... 64: what percentage of the rows is padding?")

# %%
import random

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request

draw = random.Random(7)
scheduler = Scheduler(
    SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=1024),
    CacheConfig(num_gpu_blocks=4096),
)
arrivals, now = [], 0.0
for i in range(200):
    now += draw.expovariate(1 / 4)  # one request every 4 steps on average
    arrivals.append((now, i))
sizes, step = [], 0
while arrivals or scheduler.has_requests():
    while arrivals and arrivals[0][0] <= step:
        _, i = arrivals.pop(0)
        params = SamplingParams(max_tokens=draw.randint(20, 250), ignore_eos=True)
        scheduler.add_request(Request(f"r{i}", [i] * draw.randint(5, 200), params))
    plan = scheduler.schedule()
    if plan.num_scheduled_tokens and set(plan.num_scheduled_tokens.values()) == {1}:
        sizes.append(len(plan.num_scheduled_tokens))
    scheduler.update_from_output(plan, {r: [1] for r in plan.num_scheduled_tokens})
    step += 1
print(f"{step} steps, {len(sizes)} of them decodes alone; batch sizes {min(sizes)} to {max(sizes)}")

BUCKET_LISTS = {
    "only 64": [64],
    "powers of two": [1, 2, 4, 8, 16, 32, 64],
    "vLLM's": make_buckets(64),
    "every size": list(range(1, 65)),
}
for name, buckets in BUCKET_LISTS.items():
    print(f"{name:14} {len(buckets):3} graphs, {100 * padded_share(sizes, buckets):5.1f} % of the rows are padding")
score("P3", 100 * padded_share(sizes, BUCKET_LISTS["vLLM's"]))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
left.hist(sizes, bins=range(0, 66, 2), color=BLUE)
for bucket in BUCKET_LISTS["vLLM's"]:
    left.axvline(bucket, color="black", linewidth=0.7, linestyle=":")
left.set(xlabel="requests in the step (dotted: buckets)", ylabel="steps", title="Batch sizes of the run")
for (name, buckets), mark, colour in zip(BUCKET_LISTS.items(), "os^D", (ORANGE, GREEN, BLUE, PINK), strict=True):
    right.plot(len(buckets), 100 * padded_share(sizes, buckets), mark, color=colour, markersize=9, label=name)
right.set(xscale="log", xlabel="graphs to record", ylabel="rows that are padding (%)", title="Fewer graphs, more padding")
right.legend()
plt.tight_layout()
plt.show()

# %% [markdown]
# Every graph takes time to record when the engine starts, and memory. vLLM's list buys nearly all of
# the gain with few graphs.

# %% [markdown]
# ## 5. How many bytes does fusion save?
#
# Operations one by one write their results to memory, and the next one reads them back. A fused
# kernel keeps them in registers. Count trips: each is one read or write of a `[T, H]` tensor.
#
# | unfused | reads | writes |
# |---|---|---|
# | residual = residual + x | 2 | 1 |
# | square, mean (one number a row) | 1 | 0 |
# | x * scale * weight | 1 | 1 |

# %% tags=["todo"] task="N5" title="Trips of the norm with residual"
def norm_trips(fused: bool) -> int:
    """Trips of `[T, H]` tensors for "add to the residual, then normalise"."""
    # BEGIN SOLUTION
    if fused:
        return 4  # read x and the residual, write the residual and the output
    return 3 + 1 + 2
    # END SOLUTION

# %% tags=["check"] task="N5"
check(norm_trips(False), 6, "3 for the sum, 1 for the squares, 2 for the product")
check(norm_trips(True), 4, "two tensors in, two tensors out")

# %%
from mini_vllm.kernels.pointwise import RMS_NORM, SILU_MUL

T, H, FFN = 64, 1024, 3072  # 64 decodes of a model of Qwen3-0.6B's width, bfloat16
x = torch.empty(T, H, dtype=torch.bfloat16)
norm_work = RMS_NORM.work(x=x, weight=x[0], output=x, eps=1e-6, residual=x)
act_work = SILU_MUL.work(gate_up=torch.empty(T, 2 * FFN, dtype=torch.bfloat16), output=torch.empty(T, FFN, dtype=torch.bfloat16))
tensor = x.numel() * x.itemsize
print(f"norm:     fused {norm_work.num_bytes:9,} bytes, one by one {norm_trips(False) * tensor:9,}: {norm_trips(False) * tensor / norm_work.num_bytes:.2f} x")
silu_apart = act_work.num_bytes + 2 * T * FFN * 2  # silu(gate) is written and read once more
print(f"silu-mul: fused {act_work.num_bytes:9,} bytes, one by one {silu_apart:9,}: {silu_apart / act_work.num_bytes:.2f} x")
print(f"intensity of the fused norm: {norm_work.flops / norm_work.num_bytes:.2f} FLOPs per byte")

# %% [markdown]
# Less than one FLOP per byte: these operations are bound by memory on every device, so bytes are all
# that counts, besides launches. Of those, fusion saves more: the unfused norm is five or six launches,
# the fused one is one.
#
# Put it together for a machine of your choice: seconds of one decode step of a 28-layer model.

# %%
LAUNCH, BANDWIDTH = 5e-6, 4e12  # assumptions: 5 us a launch, 4 TB/s; change them
WEIGHT_BYTES = 2 * 595_984_384  # Qwen3-0.6B in bfloat16
per_layer = sum(counts[1].values()) / 4
for name, num in (("one by one", 28 * per_layer), ("fused, 11 a layer", 28 * 11), ("one graph", 1)):
    seconds = step_seconds(int(num), LAUNCH, WEIGHT_BYTES / BANDWIDTH)
    print(f"{name:18} {1e3 * seconds:6.2f} ms a step, {1 / seconds:6.0f} steps/s")

# %% [markdown]
# Under these assumptions launches alone decide until the graph takes them away; then the weights do,
# as phase 01 said they should.
