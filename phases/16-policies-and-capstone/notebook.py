# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 16: schedulers side by side
#
# You draw what three schedulers do with the same clients, find the load at which four of them break, weigh
# swapping against computing again, and split a fleet of eight machines in two. Small functions are yours to
# write; each is checked at once. Before each experiment you write down a guess.
#
# No model runs. The schedulers are the real classes; the clock is a model of what a step costs, with prices that
# were measured on the engine (`benchmarks/results/arena/cost_model.json`). So the numbers are the same on
# every machine. Read them as ratios.
#
# | word | meaning |
# |---|---|
# | TTFT | time to first token, from the arrival of a request |
# | TPOT | time per output token after the first |
# | goodput | requests per second that kept their promise, for both times |
# | stall | a step in which a request that has begun computes nothing |

# %% tags=["setup"]
from dataclasses import replace

import matplotlib.pyplot as plt

from labkit.arena.cost import StepLoad, load_model
from labkit.arena.fleet.contest import evaluate, fleet_of, load_link
from labkit.arena.fleet.simulator import prices_of, serve
from labkit.arena.fleet.traces import TRACES
from labkit.arena.simulator import simulate
from labkit.arena.workloads import WORKLOADS
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.policies import POLICIES
from mini_vllm.policies.fleet import LeastLoaded
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.6), "axes.grid": True, "grid.alpha": 0.3}

# %% [markdown]
# ## 1. Four clients, drawn
#
# The clients of the guide: ana and ben are there at the start, cleo and dan come after two steps. `replay` runs
# a policy and returns what it scheduled, step by step: `{id: tokens}`.

# %%
CLIENTS = [("ana", 6, 9, 0), ("ben", 5, 3, 0), ("cleo", 14, 2, 2), ("dan", 11, 4, 2)]  # id, prompt, wants, comes


def replay(policy: str, clients=CLIENTS) -> list[dict[str, int]]:
    # 11 blocks are the guide's 10 and block 0, which never holds tokens.
    limits = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=3, max_model_len=16)
    scheduler = POLICIES[policy](limits, CacheConfig(block_size=4, num_gpu_blocks=11, enable_prefix_caching=False))
    steps, requests = [], {}
    while len(requests) < len(clients) or scheduler.has_unfinished_requests():
        for name, prompt, wants, comes in clients:
            if comes == len(steps):
                requests[name] = Request(name, list(range(prompt)), SamplingParams(max_tokens=wants))
                scheduler.add_request(requests[name])
        plan = scheduler.schedule()
        steps.append(dict(plan.num_scheduled_tokens))
        done = [name for name in plan.num_scheduled_tokens if requests[name].num_computed_tokens >= requests[name].num_tokens]
        scheduler.update_from_output(plan, {name: [1] for name in done})
    return steps


replay("vllm-v1")

# %% tags=["todo"] task="N1" title="Stalls of one request"
def stalls(steps: list[dict[str, int]], name: str) -> int:
    """Steps between a request's first and its last one in which it computes nothing."""
    # BEGIN SOLUTION
    present = [index for index, step in enumerate(steps) if name in step]
    return present[-1] - present[0] + 1 - len(present)
    # END SOLUTION

# %% tags=["check"] task="N1"
check(stalls([{"a": 3}, {"b": 5}, {"a": 1}], "a"), 1, "step 1 is b's alone")
check(stalls([{"a": 3}, {}, {"a": 1}, {}, {}, {"a": 1}], "a"), 3, "steps 1, 3 and 4")
check(stalls([{"b": 5}, {"a": 3}, {"a": 1}], "a"), 0, "waiting before the first step is no stall")

# %% tags=["predict"] task="P1" title="ana's stalls under prefill-first"
guess = predict("P1", 2, "How often does ana stall under 'minivllm'?")  # SOLUTION: guess = predict("P1", ..., "How often does ana stall under 'minivllm'?")

# %%
SHOWN = ("static", "minivllm", "vllm-v1")
drawn = {policy: replay(policy) for policy in SHOWN}
score("P1", stalls(drawn["minivllm"], "ana"))

figure, axes = plt.subplots(len(SHOWN), 1, figsize=(7.5, 4.8), sharex=True, layout="constrained")
for axis, (policy, steps) in zip(axes, drawn.items(), strict=True):
    for row, (name, _, _, comes) in enumerate(CLIENTS):
        last = max(index for index, step in enumerate(steps) if name in step)
        axis.plot([comes, last + 1], [row, row], color="0.8", linewidth=1, zorder=1)
        for index, step in enumerate(steps):
            if name in step:
                axis.barh(row, 0.9, left=index, height=0.7, color=ORANGE if step[name] > 1 else BLUE, zorder=2)
                axis.text(index + 0.45, row, step[name], ha="center", va="center", color="black" if step[name] > 1 else "white", fontsize=8)
    axis.set_yticks(range(4), [client[0] for client in CLIENTS])
    axis.invert_yaxis()
    axis.set_title(f"{policy}: {len(steps)} steps", loc="left")
    axis.grid(False)
axes[-1].set_xlabel("step (orange: a prompt, blue: one token; the number is the tokens computed)")
plt.show()

# %% [markdown]
# Under `static` cleo and dan wait beside an empty row. Under `minivllm` ana stalls while strangers' prompts are
# computed. Under `vllm-v1` no request that has begun stands still, and none ends later than under the other two.

# %% [markdown]
# ## 2. Where each policy breaks
#
# The arena's workload `steady`: short questions at random times. `faster` makes the same people come sooner.

# %%
cost = load_model()
COUNT = 400


def faster(arrivals, factor: float):
    return [replace(arrival, time=arrival.time / factor) for arrival in arrivals]


def race(policy: str, name: str, factor: float = 1.0):
    workload = WORKLOADS[name]
    arrivals = faster(workload.arrivals(0, COUNT), factor)
    return simulate(POLICIES[policy], workload, arrivals, cost, check_every=0)

# %% tags=["todo"] task="N2" title="Which requests kept their promise?"
def kept(served, ttft: float, tpot: float) -> float:
    """Share of the `served` requests (each has `.ttft` and `.tpot`, seconds) within both limits."""
    # BEGIN SOLUTION
    return sum(request.ttft <= ttft and request.tpot <= tpot for request in served) / len(served)
    # END SOLUTION

# %% tags=["check"] task="N2"
from types import SimpleNamespace as Fake

check(kept([Fake(ttft=0.4, tpot=0.02), Fake(ttft=0.6, tpot=0.02), Fake(ttft=0.1, tpot=0.09)], 0.5, 0.05), 1 / 3, "the second is late, the third is slow")
check(kept([Fake(ttft=0.5, tpot=0.05)], 0.5, 0.05), 1.0, "a promise is kept at the limit itself")

# %% tags=["predict"] task="P2" title="Who breaks first?"
guess = predict("P2", 1.1, "As the load grows, 'static' keeps fewer than half of its promises from which multiple of the base load (0.5 to 1.25)?")  # SOLUTION: guess = predict("P2", ..., "As the load grows, 'static' keeps fewer than half of its promises from which multiple of the base load (0.5 to 1.25)?")

# %%
FACTORS = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25)
slo = WORKLOADS["steady"].slos[0]
curves = {
    policy: [kept(race(policy, "steady", factor).served, slo.ttft, slo.tpot) for factor in FACTORS]
    for policy in ("static", "minivllm", "vllm-v0", "vllm-v1")
}
broken = next((factor for factor, share in zip(FACTORS, curves["static"], strict=True) if share < 0.5), FACTORS[-1])
score("P2", broken)

figure, axis = plt.subplots()
for (policy, shares), style, colour in zip(curves.items(), ("o:", "s--", "^-.", "D-"), (GREEN, ORANGE, PINK, BLUE), strict=True):
    axis.plot(FACTORS, shares, style, color=colour, label=policy)
axis.set(xlabel="load, as a multiple of the arena's", ylabel="share of promises kept", ylim=(-0.03, 1.03))
axis.set_title(f"{COUNT} short questions; first token within {slo.ttft} s, then {slo.tpot} s a token")
axis.legend()
plt.show()
for policy, shares in curves.items():
    print(f"{policy:9}", "  ".join(f"{factor}x {share:4.0%}" for factor, share in zip(FACTORS, shares, strict=True)))

# %% [markdown]
# A policy does not get slower bit by bit. It holds, and then it breaks: once requests wait, those who wait make
# others wait. What a better policy buys is load.

# %% [markdown]
# ## 3. Swap, or compute again?
#
# A preempted request of `n` tokens comes back. Swapping copied its blocks out and copies them in again: two
# copies for each block. Computing again is one prefill of `n` tokens.

# %% tags=["todo"] task="N3" title="Blocks that a swap moves"
def blocks_moved(num_tokens: int, block_size: int = 16) -> int:
    """Blocks copied in both directions together for a request of `num_tokens` computed tokens."""
    # BEGIN SOLUTION
    return 2 * -(-num_tokens // block_size)
    # END SOLUTION

# %% tags=["check"] task="N3"
check(blocks_moved(64), 8, "four full blocks, out and in")
check(blocks_moved(65), 10, "the fifth block holds one token and moves whole")

# %% tags=["predict"] task="P3" title="How much dearer is computing again?"
guess = predict("P3", 20, "By the arena's prices: for 512 tokens, how many times as long as swapping does computing again take?")  # SOLUTION: guess = predict("P3", ..., "By the arena's prices: for 512 tokens, how many times as long as swapping does computing again take?")

# %%
lengths = [16, 32, 64, 128, 256, 512, 1024]
none = StepLoad(step=0)
swap = [cost.seconds(none._replace(swapped_blocks=blocks_moved(n))) for n in lengths]
again = [cost.seconds(none._replace(prefills=1, prefill_tokens=n, prefill_pairs=n * n)) for n in lengths]
ratio = again[lengths.index(512)] / swap[lengths.index(512)]
score("P3", ratio)

figure, axis = plt.subplots()
axis.plot(lengths, [1e3 * s for s in again], "o-", color=BLUE, label="compute again")
axis.plot(lengths, [1e3 * s for s in swap], "s--", color=ORANGE, label="swap out and in")
axis.set(xscale="log", yscale="log", xlabel="computed tokens of the request", ylabel="milliseconds")
axis.set_title("One preemption, by prices measured on a CPU")
axis.set_xticks(lengths, [str(n) for n in lengths])
axis.minorticks_off()
axis.legend()
plt.show()
print(f"512 tokens: computing again takes {ratio:.1f} times as long")

# %% [markdown]
# Here swapping wins, and clearly. So was V1 wrong? These are the prices of a small model on a CPU, where "the
# host" is the same memory: a copy is nearly free, and computing is slow. On a GPU both are faster, and not by the same
# factor: a prefill runs at the speed of the tensor cores, and the copies go through the bus. So calculate.

# %% tags=["todo"] task="N4" title="When do both take the same time?"
def break_even(flops_per_token: float, flops: float, bytes_per_token: float, bus: float) -> float:
    """Seconds of computing one token again, divided by the seconds of moving its keys and values twice.

    Above 1 swapping is cheaper. `flops` and `bus` are what the machine does per second.
    """
    # BEGIN SOLUTION
    return (flops_per_token / flops) / (2 * bytes_per_token / bus)
    # END SOLUTION

# %% tags=["check"] task="N4"
check_close(break_even(2.0, 1.0, 1.0, 1.0), 1.0, "two seconds to compute, two bytes over a bus of one byte a second")
check_close(break_even(1.2e9, 4e14, 114688, 2.5e10), 0.3269741, "a model of 0.6 billion weights; 400 TFLOP/s; 114,688 bytes a token; a bus of 25 GB/s")
check_close(break_even(1.6e10, 4e14, 131072, 2.5e10), 3.8146973, "8 billion weights; 131,072 bytes a token")
check_close(break_even(1.4e11, 4e14, 327680, 2.5e10), 13.3514404, "70 billion weights; 327,680 bytes a token")

# %% [markdown]
# The last three checks have round numbers of a large GPU, assumed and not measured. With 0.6 billion weights computing again takes
# a third of the time of swapping; with 8 billion it takes 3.8 times as long, with 70 billion 13.4 times. It is the model's size against
# the size of its cache that decides. V1 gave swapping up because its code was complex, and not because it was slow.

# %% [markdown]
# ## 4. One prompt, many answers
#
# `n` completions of one prompt. Without sharing each has all of its blocks. With V1's prefix cache they share
# the prompt's *full* blocks. With V0's fork they share the last, partly filled one too, until each writes to it.

# %% tags=["todo"] task="N5" title="Blocks of n completions that share full blocks"
def blocks_shared(n: int, prompt: int, output: int, block_size: int = 16) -> int:
    """Blocks that `n` completions hold at the end, if they share the full blocks of the prompt.

    Each has computed `prompt + output` tokens.
    """
    # BEGIN SOLUTION
    full = prompt // block_size
    each = -(-(prompt + output) // block_size)
    return full + n * (each - full)
    # END SOLUTION

# %% tags=["check"] task="N5"
check(blocks_shared(1, 100, 28), 8, "one completion shares nothing")
check(blocks_shared(4, 100, 28), 14, "6 full blocks once, 2 more for each")
check(blocks_shared(4, 96, 16), 10, "a prompt that ends at a border")

# %%
counts = range(1, 17)
alone = [n * blocks_shared(1, 1000, 100) for n in counts]
together = [blocks_shared(n, 1000, 100) for n in counts]
figure, axis = plt.subplots()
axis.plot(counts, alone, "s--", color=ORANGE, label="each on its own")
axis.plot(counts, together, "o-", color=BLUE, label="full blocks shared")
axis.set(xlabel="completions of one prompt of 1,000 tokens, 100 tokens each", ylabel="blocks of 16 tokens")
axis.set_title("What sharing saves")
axis.legend()
plt.show()
print(f"16 completions: {alone[-1]} blocks alone, {together[-1]} shared; a fork saves at most 15 more for a while")

# %% [markdown]
# What the fork saves beyond that is one block for each completion but the first, until it writes. For this V0 kept groups, copies and
# reference counts above one on blocks that are still written to. V1's answer needs none of them.

# %% [markdown]
# ## 5. Prefill and decode pools
#
# Eight machines serve long documents among short questions (the arena's trace `documents`). Some of them may only
# compute prompts; the others make tokens. How many of which? A machine that only computes prompts is a queue
# with one server. If more work comes than it can do, the queue grows for ever.

# %% tags=["todo"] task="N6" title="Machines that a load of prompts needs"
def machines_for_prompts(rate: float, seconds: float) -> int:
    """The fewest machines that keep up with `rate` prompts a second of `seconds` each.

    Machines that are busy all the time do not keep up: they must have some time left.
    """
    # BEGIN SOLUTION
    return int(rate * seconds) + 1
    # END SOLUTION

# %% tags=["check"] task="N6"
check(machines_for_prompts(10, 0.25), 3, "2.5 seconds of work come in every second")
check(machines_for_prompts(10, 0.2), 3, "two machines would have to work all the time")
check(machines_for_prompts(10, 0.05), 1, "one is busy half of the time")

# %%
trace, link = TRACES["documents"], load_link()
prices = prices_of(cost, link)
arrivals = list(trace.arrivals(0))
rate = len(arrivals) / arrivals[-1].time
seconds = sum(prices.compute(a.prompt_len, a.prompt_len) for a in arrivals) / len(arrivals)
print(f"{rate:.0f} prompts a second, {1e3 * seconds:.0f} ms each: at least {machines_for_prompts(rate, seconds)} machines for prompts")

# %% [markdown]
# The promise of this trace: the first token within 0.8 s, and 12 ms for each further one. Now take
# a promise of 4 ms. With no prefill machines at all, each of the eight does both; a prompt is then computed in
# chunks, beside the tokens of those that run.

# %% tags=["predict"] task="P4" title="How many machines for prompts?"
guess = predict("P4", 3, "Under a promise of 4 ms a token: with how many of the eight for prompts (0 to 6) are most requests in time?")  # SOLUTION: guess = predict("P4", ..., "Under a promise of 4 ms a token: with how many of the eight for prompts (0 to 6) are most requests in time?")

# %%
def shares(prefill: int, promises, seeds=(0, 1)) -> list[float]:
    """Share of requests in time under each promise of seconds per token."""
    kept = [0.0] * len(promises)
    for seed in seeds:
        run = serve(LeastLoaded(prices), trace, trace.arrivals(seed), fleet_of(8, prefill), cost, link)
        for index, tpot in enumerate(promises):
            promised = replace(trace, slo=replace(trace.slo, tpot=tpot))
            kept[index] += evaluate(run, promised, 8).share / len(seeds)
    return kept


PROMISES, POOLS = (0.004, 0.012), range(7)
drawn = {prefill: shares(prefill, PROMISES) for prefill in POOLS}
score("P4", max(POOLS, key=lambda prefill: drawn[prefill][0]))

figure, axis = plt.subplots()
for index, (tpot, style, colour) in enumerate(zip(PROMISES, ("o-", "s--"), (BLUE, ORANGE), strict=True)):
    axis.plot(POOLS, [drawn[prefill][index] for prefill in POOLS], style, color=colour, label=f"{1e3 * tpot:.0f} ms a token")
axis.set(xlabel="machines that only compute prompts, of eight", ylabel="share of requests in time", ylim=(-0.03, 1.03))
axis.set_title("Documents among questions, promised more or less")
axis.legend()
plt.show()
for prefill in POOLS:
    print(f"{prefill} + {8 - prefill}:", "  ".join(f"{1e3 * tpot:.0f} ms {share:4.0%}" for tpot, share in zip(PROMISES, drawn[prefill], strict=True)))

# %% [markdown]
# With too few machines for prompts their queue breaks the promise of every first token. With too many, those that
# make tokens are too full. Between the two a split fleet keeps the short promise better than eight replicas do. Under the long
# promise there is little to win: the replicas keep it, too. And look at
# 3 + 5: the least number that keeps up is the best here, for every further one is missed where tokens are made.
#
# So is it a way to serve *more*? Let four times as many come, and ask only how long all of it takes.

# %% tags=["predict"] task="P5" title="Is it throughput?"
guess = predict("P5", 0.8, "Four times the load: the requests a second of 3 + 5 machines, as a share of those of 8 replicas?")  # SOLUTION: guess = predict("P5", ..., "Four times the load: the requests a second of 3 + 5 machines, as a share of those of 8 replicas?")

# %%
def requests_a_second(prefill: int, speed: float) -> float:
    """What the fleet serves, in time or not."""
    run = serve(LeastLoaded(prices), trace, trace.arrivals(0, 800, speed), fleet_of(8, prefill), cost, link)
    return len(run.served) / run.seconds


rates = {prefill: requests_a_second(prefill, 4.0) for prefill in (0, 2, 3, 4)}
score("P5", rates[3] / rates[0])
for prefill, per_second in rates.items():
    print(f"{prefill} + {8 - prefill}: {per_second:.0f} requests a second")

# %% [markdown]
# No split makes more than the replicas do. Work is not less because it is done elsewhere, and a machine that may do
# only one kind of it is sometimes idle beside the other kind. What the split buys is a time between tokens that
# no prompt makes longer. Ask what was promised before you pay for it.
#
# **What you should be able to say now:** which failure each scheduler answers; why a policy breaks all at once; when
# swapping is cheaper than computing; why sharing full blocks is nearly all of the gain; and what a split fleet is good for.
