# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 03: who runs, with how many tokens?
#
# You measure what the scheduler's four knobs do: the token budget, the size of the pool, the
# threshold for long prompts, and the policy. Small functions are yours to write; each is checked
# at once. Before each experiment you write down a guess.
#
# The first experiment runs the real engine, so its times differ from run to run. The other three
# drive the scheduler alone. They need no model, because scheduling never looks at a token's meaning,
# and they give the same numbers on every machine. Where they speak of seconds, the seconds come from
# a **model of the cost of a step**, which is stated below. Read those as ratios.
#
# | word | meaning |
# |---|---|
# | TTFT | time to first token: from the arrival of a request to its first output token |
# | TPOT | time per output token: the mean gap between later tokens |
# | stall | the largest gap between two output tokens of one request |
# | budget | `max_num_batched_tokens`: tokens that one step may compute |

# %% tags=["setup"]
from collections import defaultdict
from itertools import pairwise
from zlib import crc32

import matplotlib.pyplot as plt

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.6), "axes.grid": True, "grid.alpha": 0.3}

# %% [markdown]
# ## 1. Three small measures
#
# A request arrives at `arrival`; `times` are the moments at which its output tokens came, in order.

# %% tags=["todo"] task="N1" title="TTFT, TPOT and the largest stall of one request"
def latencies(arrival: float, times: list[float]) -> tuple[float, float, float]:
    """(TTFT, TPOT, largest gap between two output tokens), all in the unit of the arguments.

    TPOT is the time from the first token to the last, divided by the number of gaps. There are
    at least two tokens.
    """
    # BEGIN SOLUTION
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return times[0] - arrival, (times[-1] - times[0]) / len(gaps), max(gaps)
    # END SOLUTION

# %% tags=["check"] task="N1"
check(latencies(2.0, [5.0, 6.0, 9.0]), (3.0, 2.0, 3.0), "first token 3 after the arrival; gaps 1 and 3")

# %% [markdown]
# A step with a budget of `budget` tokens serves the decoding requests first: one token for each.
# A prompt gets the rest.

# %% tags=["todo"] task="N2" title="Steps that a prompt takes beside decoding requests"
def prefill_steps(prompt: int, budget: int, decoding: int) -> int:
    """Steps until a prompt of `prompt` tokens is computed, while `decoding` others decode."""
    # BEGIN SOLUTION
    return -(-prompt // (budget - decoding))
    # END SOLUTION

# %% tags=["check"] task="N2"
check(prefill_steps(420, 64, 4), 7, "60 tokens of each step are left for the prompt")
check(prefill_steps(421, 64, 4), 8, "one token more than 7 steps of 60 hold")
check(prefill_steps(420, 512, 4), 1, "the whole prompt fits one step")

# %% [markdown]
# ## 2. The budget: TTFT of one against the stalls of the others
#
# Four stories are being told (four requests decode) when a fifth client sends a prompt of 420 tokens.
# The real engine runs this with five budgets. A small budget cuts the prompt into many chunks.

# %% tags=["predict"] task="P1" title="Steps of the long prompt"
guess = predict("P1", 27, "Budget 20, 4 decoding: after how many steps has the 420-token prompt its first token?")  # SOLUTION: guess = predict("P1", ..., "Budget 20, 4 decoding: after how many steps has the 420-token prompt its first token?")

# %%
import time
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # no progress bar is shown here

import torch

from mini_vllm import LLM, SamplingParams

torch.set_num_threads(1)
STORY = "Once upon a time there was a small fox who lived at the edge of a big forest. "
BUDGETS = (20, 36, 68, 132, 516)


def run_once(engine, prompt: list[int]) -> tuple[int, float, float, float]:
    """(steps, TTFT of the long prompt, TPOT of the four, their largest stall); seconds."""
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    two = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    for name in "abcd":
        engine.add_request(name, STORY, params)
    times, arrival, steps = defaultdict(list), None, 0
    while engine.has_unfinished_requests():
        if arrival is None and len(times["d"]) >= 8:
            engine.add_request("long", {"prompt_token_ids": prompt}, two)
            arrival = time.perf_counter()
        outputs = engine.step()
        now = time.perf_counter()
        steps += arrival is not None and not times["long"]
        for output in outputs:
            if len(output.outputs[0].token_ids) > len(times[output.request_id]):
                times[output.request_id].append(now)
    tpots, stalls = zip(*(latencies(0.0, times[name])[1:] for name in "abcd"), strict=True)
    return steps, times["long"][0] - arrival, sum(tpots) / 4, max(stalls)


def run_budget(budget: int) -> list[float]:
    """The smallest of four runs in each measure: whatever else the machine does only adds."""
    llm = LLM(
        "storyteller", block_size=16, num_gpu_blocks=80, max_num_batched_tokens=budget,
        max_num_seqs=8, max_model_len=512, dtype="float32", enable_prefix_caching=False,
    )
    prompt = (llm.tokenizer.encode(STORY) * 40)[:420]
    return [min(column) for column in zip(*(run_once(llm.engine, prompt) for _ in range(4)), strict=True)]


measured = {budget: run_budget(budget) for budget in BUDGETS}
for budget, (steps, ttft, tpot, stall) in measured.items():
    print(f"budget {budget:3}: {steps:2} steps, TTFT {ttft * 1e3:6.0f} ms, "
          f"TPOT {tpot * 1e3:5.1f} ms, largest stall {stall * 1e3:5.0f} ms")

# %%
score("P1", measured[20][0])

figure, axis = plt.subplots()
for index, label, style, colour in (
    (1, "TTFT of the long prompt", "o-", BLUE),
    (3, "largest stall of the four", "s--", ORANGE),
    (2, "TPOT of the four", "^:", GREEN),
):
    milliseconds = [measured[budget][index] * 1e3 for budget in BUDGETS]
    axis.plot(BUDGETS, milliseconds, style, color=colour, label=label)
axis.set(xscale="log", yscale="log", xlabel="token budget of a step", ylabel="milliseconds")
axis.set_title("A long prompt arrives while four requests decode")
axis.set_xticks(BUDGETS, [str(budget) for budget in BUDGETS])
ticks = (5, 10, 20, 50, 100, 200, 500)
axis.set_yticks(ticks, [str(tick) for tick in ticks])
axis.minorticks_off()
axis.legend()
plt.show()

# %% [markdown]
# The two upper curves meet on the right. A large budget finishes the prompt in one long step, in which
# all other requests wait: that step is the stall. A small budget spreads the prompt over many short
# steps. The mean, TPOT, hides all of this. Chunked prefill makes no work disappear; it decides who
# waits for it.

# %% [markdown]
# ## 3. A model of the cost of a step
#
# The other experiments need a clock that is the same everywhere. The model: a step costs a fixed part
# (weights are read once, whatever the batch), and a part for each token. The numbers below are chosen,
# not measured; only ratios of the results mean anything.
#
# seconds = 0.010 + 0.0001 × tokens; a step without tokens costs nothing.

# %% tags=["todo"] task="N3" title="The modelled cost of one step"
def step_seconds(num_tokens: int) -> float:
    """Modelled duration of a step that computes `num_tokens` tokens."""
    # BEGIN SOLUTION
    return 0.010 + 0.0001 * num_tokens if num_tokens else 0.0
    # END SOLUTION

# %% tags=["check"] task="N3"
check_close(step_seconds(4), 0.0104, "a fixed part and four tokens")
check_close(step_seconds(2048), 0.2148, "a long prompt costs about 20 steps of a few tokens")
check(step_seconds(0), 0.0, "nothing is computed, nothing is read")

# %%
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request


def simulate(arrivals, blocks=400, caching=False, **config):
    """Run the scheduler with a pretended model.

    arrivals: (seconds, name, prompt tokens, output tokens, priority), by time.
    Returns {name: [moments of its tokens]} and the plan of every step.
    """
    limits = {"max_num_batched_tokens": 512, "max_num_seqs": 64, "max_model_len": 4096} | config
    scheduler = Scheduler(SchedulerConfig(**limits), CacheConfig(16, blocks + 1, caching))
    todo, now, times, plans = list(arrivals), 0.0, defaultdict(list), []
    while todo or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, todo[0][0])
        while todo and todo[0][0] <= now:
            at, name, prompt, output, priority = todo.pop(0)
            tokens = [crc32(f"{name}:{i}".encode()) % 30000 for i in range(prompt)]
            params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
            scheduler.add_request(Request(name, tokens, params, priority, at))
        plan = scheduler.schedule()
        now += step_seconds(plan.total_num_scheduled_tokens)
        ready = [scheduler.requests[i] for i in plan.num_scheduled_tokens]
        ready = [r for r in ready if r.num_computed_tokens >= r.num_tokens]
        scheduler.update_from_output(plan, {r.request_id: [7] for r in ready})
        for request in ready:
            times[request.request_id].append(now)
        plans.append(plan)
    return times, plans

# %% [markdown]
# ## 4. A preemption storm
#
# Twelve clients arrive at once, each with a prompt of 100 tokens, each to get 150 tokens of output.
# How many blocks does the pool need? At its longest a request holds 249 computed tokens, the last
# token being sampled but never computed: 16 blocks. Twelve of them want 192. With fewer blocks,
# requests are admitted that later have to go. A victim computes everything again.
#
# Count the price. `plans` is what `schedule()` returned, step by step; without preemption a request of
# `prompt` and `output` tokens computes exactly `prompt + output - 1` tokens.

# %% tags=["todo"] task="N4" title="Tokens that were computed again"
def recomputed_tokens(scheduled: list[int], requests: list[tuple[int, int]]) -> int:
    """Tokens computed more than once.

    Args:
        scheduled: tokens of every step.
        requests: (prompt tokens, output tokens) of every request; all have finished.
    """
    # BEGIN SOLUTION
    return sum(scheduled) - sum(prompt + output - 1 for prompt, output in requests)
    # END SOLUTION

# %% tags=["check"] task="N4"
check(recomputed_tokens([8, 2, 2], [(4, 3), (4, 3)]), 0, "4 + 3 - 1 tokens each, computed once")
check(recomputed_tokens([8, 2, 5, 1], [(4, 3), (4, 3)]), 4, "one of them lost 4 tokens and began again")

# %% tags=["predict"] task="P2" title="Waste in a pool of half the size"
guess = predict("P2", 0.3, "Pool of 96 blocks instead of 192: recomputed tokens as a share of the necessary 2988?")  # SOLUTION: guess = predict("P2", ..., "Pool of 96 blocks instead of 192: recomputed tokens as a share of the necessary 2988?")

# %%
CLIENTS = [(0.0, f"client{i}", 100, 150, 0) for i in range(12)]
POOLS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192)


def storm(blocks: int, caching: bool) -> tuple[int, int, float]:
    """(preemptions, recomputed tokens, modelled seconds until the last client is served)."""
    times, plans = simulate(CLIENTS, blocks=blocks, caching=caching)
    scheduled = [plan.total_num_scheduled_tokens for plan in plans]
    wasted = recomputed_tokens(scheduled, [(100, 150)] * 12)
    preempted = sum(len(plan.preempted_req_ids) for plan in plans)
    return preempted, wasted, max(moments[-1] for moments in times.values())


cold = {blocks: storm(blocks, caching=False) for blocks in POOLS}
warm = {blocks: storm(blocks, caching=True) for blocks in POOLS}
for blocks in POOLS:
    print(f"{blocks:3} blocks: {cold[blocks][0]:3} preemptions, {cold[blocks][1]:5} tokens again, "
          f"{cold[blocks][2]:5.2f} s;  with prefix caching {warm[blocks][1]:5} tokens again")

# %%
score("P2", cold[96][1] / 2988)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
left.plot(POOLS, [cold[b][0] for b in POOLS], "o-", color=BLUE)
left.set(xlabel="blocks in the pool", ylabel="preemptions", title="How often a request is preempted")
right.plot(POOLS, [cold[b][1] for b in POOLS], "o-", color=ORANGE, label="without prefix caching")
right.plot(POOLS, [warm[b][1] for b in POOLS], "s--", color=GREEN, label="with prefix caching")
right.set(xlabel="blocks in the pool", ylabel="tokens computed again", title="What it costs")
right.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# Preemption is **recompute**: the victim's blocks are freed, its output is kept, and its tokens are
# computed once more. Nothing is copied to the host. With prefix caching a victim often finds its own
# blocks again, as long as no other request has taken them. Note that the smallest pools do not waste most: they
# admit so few that these have room to grow.

# %% [markdown]
# ## 5. The threshold: protect the short ones
#
# A long prompt of 4,000 tokens arrives every second, and ten short requests a second (40 tokens in,
# 20 out). Budget 512. `long_prefill_token_threshold` caps what one request may take of a step.

# %% tags=["todo"] task="N5" title="The p95 of a list"
def p95(values: list[float]) -> float:
    """The smallest value that at least 95 % of the values do not exceed."""
    # BEGIN SOLUTION
    ordered = sorted(values)
    return ordered[-(-95 * len(ordered) // 100) - 1]
    # END SOLUTION

# %% tags=["check"] task="N5"
check(p95([float(i) for i in range(1, 101)]), 95.0, "95 of 100 values are at most 95")
check(p95([3.0, 1.0]), 3.0, "1 of 2 values is only 50 %")

# %% tags=["predict"] task="P3" title="TTFT of short requests with a threshold"
guess = predict("P3", 2, "Threshold 128 instead of none: by which factor falls the p95 TTFT of the short requests?")  # SOLUTION: guess = predict("P3", ..., "Threshold 128 instead of none: by which factor falls the p95 TTFT of the short requests?")

# %%
LOAD = [(0.1 * i, f"short{i}", 40, 20, 0) for i in range(60)]
LOAD += [(1.0 * i + 0.05, f"long{i}", 4000, 20, 0) for i in range(6)]
LOAD.sort()
ARRIVAL = {name: at for at, name, *_ in LOAD}
THRESHOLDS = (0, 384, 256, 192, 128, 96, 64)


def two_classes(threshold: int) -> tuple[float, float]:
    """p95 TTFT of the short and of the long requests, in modelled milliseconds."""
    times, _ = simulate(LOAD, blocks=2000, long_prefill_token_threshold=threshold)
    ttft = {name: latencies(ARRIVAL[name], t)[0] * 1e3 for name, t in times.items()}
    short, long = ([ms for n, ms in ttft.items() if n.startswith(k)] for k in ("short", "long"))
    return p95(short), p95(long)


split = {threshold: two_classes(threshold) for threshold in THRESHOLDS}
for threshold, (short, long) in split.items():
    name = threshold or "off"
    print(f"threshold {name:>3}: p95 TTFT short {short:4.0f} ms, long {long:5.0f} ms (modelled)")

# %%
score("P3", split[0][0] / split[128][0])

names = [str(t) if t else "off" for t in THRESHOLDS]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
left.bar(names, [split[t][0] for t in THRESHOLDS], color=BLUE)
left.set(xlabel="long_prefill_token_threshold", ylabel="p95 TTFT, modelled ms", title="Short requests")
right.bar(names, [split[t][1] for t in THRESHOLDS], color=ORANGE)
right.set(xlabel="long_prefill_token_threshold", ylabel="p95 TTFT, modelled ms", title="Long requests")
figure.tight_layout()
plt.show()

# %% [markdown]
# Without a threshold a long prompt fills whole steps, for `running` is served first: a newcomer finds
# no budget left. A threshold leaves room in every step. The long prompts pay, and below some point
# they pay more than the short ones win.

# %% [markdown]
# ## 6. Priority against first come, first served
#
# Thirty requests of a batch job (priority 10) fill a pool of 300 blocks. From half a second on, forty
# people ask something, twenty a second (priority 0). Smaller is more urgent.

# %% tags=["todo"] task="N6" title="The mean TTFT of one class"
def mean_ttft(arrival: dict[str, float], times: dict[str, list[float]], prefix: str) -> float:
    """Mean TTFT of the requests whose names begin with `prefix`."""
    # BEGIN SOLUTION
    ttft = [t[0] - arrival[name] for name, t in times.items() if name.startswith(prefix)]
    return sum(ttft) / len(ttft)
    # END SOLUTION

# %% tags=["check"] task="N6"
came = {"ana": 1.0, "bob": 2.0, "abe": 0.0}
tokens_at = {"ana": [2.0, 9.0], "bob": [9.0], "abe": [3.0]}
check(mean_ttft(came, tokens_at, "a"), 2.0, "ana waits 1, abe 3; bob is of another class")

# %% tags=["predict"] task="P4" title="Does priority preempt to admit?"
guess = predict("P4", 0, "Priority policy: how many batch requests are preempted in the step in which a person arrives?")  # SOLUTION: guess = predict("P4", ..., "Priority policy: how many batch requests are preempted in the step in which a person arrives?")

# %%
PEOPLE = [(0.0, f"batch{i}", 200, 100, 10) for i in range(30)]
PEOPLE += [(0.5 + 0.05 * i, f"person{i}", 60, 40, 0) for i in range(40)]
WHEN = {name: at for at, name, *_ in PEOPLE}
results = {}
for policy in ("fcfs", "priority"):
    times, plans = simulate(PEOPLE, blocks=300, policy=policy)
    ends = {name: [moments[-1]] for name, moments in times.items()}
    people, batch = mean_ttft(WHEN, times, "person"), mean_ttft(WHEN, times, "batch")
    last = mean_ttft(WHEN, ends, "batch")
    results[policy] = [people, batch, last]
    preempted = sum(len(plan.preempted_req_ids) for plan in plans)
    print(f"{policy:8}: mean TTFT of people {people:.2f} s, of the batch {batch:.2f} s; "
          f"the batch is served after {last:.2f} s (modelled); {preempted} preemptions")

# %%
# A request of priority arrives while the batch fills the pool to the last block: is another preempted for it?
full = Scheduler(SchedulerConfig(max_num_batched_tokens=512, policy="priority"), CacheConfig(16, 21))
full.add_request(Request("batch", range(320), SamplingParams(max_tokens=8), priority=10))
full.schedule()  # computes 320 tokens: all 20 blocks are taken
full.add_request(Request("person", range(1000, 1060), SamplingParams(max_tokens=8), priority=0))
plan = full.schedule()
print("free blocks:", full.kv_cache_manager.num_free_blocks)
print("preempted for the person:", plan.preempted_req_ids)
score("P4", len(plan.preempted_req_ids))

figure, axis = plt.subplots(figsize=(6, 3.4))
for shift, policy, colour in ((-0.2, "fcfs", BLUE), (0.2, "priority", ORANGE)):
    axis.bar([i + shift for i in range(3)], results[policy], width=0.4, color=colour, label=policy)
axis.set_xticks(range(3), ["people:\nfirst token", "batch:\nfirst token", "batch:\nlast token"])
axis.set(ylabel="mean time since arrival, modelled s", title="Who waits under which policy")
axis.legend()
plt.show()

# %% [markdown]
# Priority does two things: it orders the waiting line, and it picks the victim when a *running* request
# needs a block. It never preempts a request to admit another. An urgent request still waits until the
# blocks for its whole prompt are free.
#
# ## What to take away
#
# - The budget trades the TTFT of long prompts against the stalls of those who decode.
# - A pool that is too small costs tokens, not only time; the price is visible in the plans.
# - The threshold protects short requests at the expense of long ones.
# - Priority moves waiting time from one class to another. It creates no capacity.
