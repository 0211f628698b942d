# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 19: the performance engineer
#
# You count requests by Little's law, find a knee, see a mend that brings nothing, let noise pass for a result, count what a search measures, and
# hear what a client does not say. Before each experiment you write down a guess. The load runs on the arena's clock: no machine's noise is in
# it, and every machine shows the same numbers.
#
# | word | meaning |
# |---|---|
# | rate | requests a second that leave |
# | stay | seconds from a request's arrival to its end |
# | knee | the number of requests from which on more of them only wait |
# | pair | one run of the old and one of the new, one after the other |

# %% tags=["setup"]
import math
import random
from collections import Counter
from dataclasses import replace

import matplotlib.pyplot as plt

from labkit.arena.cost import DEFAULT, load_model
from labkit.arena.simulator import simulate
from labkit.arena.workloads import WORKLOADS
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.observability.bottleneck import amdahl
from mini_vllm.observability.capacity import little, percentile, with_omitted
from mini_vllm.observability.experiments import Promise, compare_pairs, successive_halving

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}
WORLD, COST = WORKLOADS["documents"], load_model(DEFAULT)


def serve(speed, requests=64):
    """The load "documents", its arrivals `speed` times as fast, on the arena's clock."""
    arrivals = [replace(one, time=one.time / speed) for one in WORLD.arrivals(0, requests)]
    return simulate(Scheduler, WORLD, arrivals, COST, check_every=0)

# %% [markdown]
# ## 1. How many are there at once?
#
# The law needs two numbers that have nothing to do with memory, and says how much of it is needed.

# %% tags=["todo"] task="N1" title="Blocks for a load"
def blocks_needed(rate, stay, tokens, block):
    """Blocks that requests hold at a time, on average, if `rate` come a second and stay `stay` seconds with `tokens` tokens, which fill their blocks: a float."""
    # BEGIN SOLUTION
    return rate * stay * tokens / block
    # END SOLUTION

# %% tags=["check"] task="N1"
check_close(blocks_needed(8, 6, 1200, 16), 3600, "48 requests of 75 blocks")
check_close(blocks_needed(0.5, 2.75, 32, 16), 2.75, "1.375 requests of 2 blocks")
check_close(blocks_needed(10, 0, 100, 16), 0, "requests that do not stay hold nothing")

# %%
for speed in (0.5, 1, 2, 4):
    run = serve(speed)
    stays = [(one.arrived, one.finished) for one in run.served]
    flow = little(stays, run.seconds)
    moments = [run.seconds * (i + 0.5) / 1000 for i in range(1000)]
    seen = sum(sum(came <= at < left for came, left in stays) for at in moments) / len(moments)
    print(f"speed {speed:3}: {flow.rate:5.2f} a second x {flow.seconds:.2f} s = {flow.number:5.2f} at a time; counted at 1,000 moments: {seen:5.2f}")

# %% [markdown]
# ## 2. The knee
#
# The same 64 requests come faster and faster. Each of them needs what it needs when it is alone; from some load on the engine is full.

# %% tags=["predict"] task="P1" title="Four times as many come" why="At speed 1 there leave 17.5 a second, and the engine is full at about 28.5. So four times as many cannot leave: 28 do. The others wait, and each stays longer, just as long as Little's law says."
guess = predict("P1", 28, "At speed 1, 17.5 requests leave a second; from about 28 on, the engine is full. How many leave a second at speed 4?")  # SOLUTION: guess = predict("P1", ..., "At speed 1, 17.5 requests leave a second; from about 28 on, the engine is full. How many leave a second at speed 4?")

# %%
numbers, rates, stays_of = [], [], []
for speed in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 8, 16):
    run = serve(speed)
    flow = little([(one.arrived, one.finished) for one in run.served], run.seconds)
    numbers.append(flow.number)
    rates.append(flow.rate)
    stays_of.append(flow.seconds)
    if speed == 4:
        score("P1", flow.rate)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
left.plot(numbers, rates, "o-", color=BLUE)
left.set_xlabel("requests at a time")
left.set_ylabel("requests a second")
left.set_title("The rate stops to grow")
right.plot(numbers, stays_of, "s--", color=ORANGE)
right.set_xlabel("requests at a time")
right.set_ylabel("seconds that each stays")
right.set_title("The stay goes on growing")
plt.tight_layout()
plt.show()

# %% [markdown]
# ## 3. A mend that brings nothing
#
# A step of an H100 with 256 requests: the host takes 4.2 ms, the device 3.6. In turns that is 7.8 ms; side by side it is the longer of the two.

# %% tags=["todo"] task="N2" title="A step"
def step_ms(host, device, side_by_side):
    """Milliseconds of a step whose host and device take so long, in turns or side by side."""
    # BEGIN SOLUTION
    return max(host, device) if side_by_side else host + device
    # END SOLUTION

# %% tags=["check"] task="N2"
check_close(step_ms(4.2, 3.6, False), 7.8, "in turns")
check_close(step_ms(4.2, 3.6, True), 4.2, "the device waits for the host")
check_close(step_ms(0.66, 1.57, True), 1.57, "one request: the host waits for the device")

# %% tags=["predict"] task="P2" title="Kernels twice as fast" why="Side by side the step takes the host's 4.2 ms, with kernels of 3.6 ms and with kernels of 1.8. In turns the same mend would bring 7.8 / 6.0 = 1.3. Look for the bottleneck again after every mend."
guess = predict("P2", 1.0, "Side by side, host 4.2 ms, device 3.6. The kernels become twice as fast. How many times as fast is the step?")  # SOLUTION: guess = predict("P2", ..., "Side by side, host 4.2 ms, device 3.6. The kernels become twice as fast. How many times as fast is the step?")

# %%
for side_by_side, words in ((False, "in turns    "), (True, "side by side")):
    before = step_ms(4.2, 3.6, side_by_side)
    kernels, host = (before / step_ms(h, d, side_by_side) for h, d in ((4.2, 1.8), (2.1, 3.6)))
    print(f"{words} {before:.1f} ms; kernels twice as fast: {kernels:.2f} times; host twice as fast: {host:.2f} times")
print(f"Amdahl's law says of the kernels in turns: {amdahl(3.6 / 7.8, 2):.2f}")
score("P2", step_ms(4.2, 3.6, True) / step_ms(4.2, 1.8, True))

# %% [markdown]
# ## 4. Noise that passes for a result
#
# Two equal versions are compared. Each run is off by 2 %, and neighbours share the machine's mood, which is off by 10 %.

# %% tags=["todo"] task="N3" title="The ratio of pairs"
def ratio_of_pairs(old, new):
    """How many times as long the new takes: the geometric mean of the ratios of neighbours."""
    # BEGIN SOLUTION
    return (math.prod(new) / math.prod(old)) ** (1 / len(old))
    # END SOLUTION

# %% tags=["check"] task="N3"
check_close(ratio_of_pairs([10, 10], [5, 20]), 1.0, "half and twice cancel out")
check_close(ratio_of_pairs([10, 12, 11], [9.7, 11.64, 10.67]), 0.97, "each pair says 0.97")
check_close(ratio_of_pairs([1, 100], [2, 50]), 1.0, "a slow pair counts as much as a fast one")

# %% tags=["predict"] task="P3" title="Three pairs of equals" why="With three pairs the bootstrap can draw few different samples, and three ratios that happen to lie on one side of 1 are enough: which happens in a quarter of all cases, and about as many experiments call it a result. With twenty pairs about one in fourteen does."
guess = predict("P3", 25, "Both versions are the same. Of 100 experiments with 3 pairs each, how many show a difference with an interval of 95 %?")  # SOLUTION: guess = predict("P3", ..., "Both versions are the same. Of 100 experiments with 3 pairs each, how many show a difference with an interval of 95 %?")

# %%
def results(pairs, gain, trials=200):
    """Of 100 experiments, how many show a difference, if the new takes `gain` times as long."""
    rng, found = random.Random(0), 0
    for _ in range(trials):
        moods = [rng.lognormvariate(0, 0.1) for _ in range(pairs)]
        old = [mood * rng.lognormvariate(0, 0.02) for mood in moods]
        new = [gain * mood * rng.lognormvariate(0, 0.02) for mood in moods]
        found += compare_pairs(old, new, draws=300).is_result
    return 100 * found / trials


for pairs in (3, 5, 10, 20):
    print(f"{pairs:2} pairs: equal versions differ in {results(pairs, 1.0):4.1f} of 100 experiments, 3 % less is found in {results(pairs, 0.97):5.1f}")
score("P3", results(3, 1.0))

# %% [markdown]
# ## 5. What a search measures
#
# Successive halving measures all configurations a little, and the better half twice as long, again and again.

# %% tags=["todo"] task="N4" title="Requests in all"
def measured_requests(configs, least, most):
    """Requests that successive halving measures: all configurations with `least`, the better half (rounded up) with twice as many, at most `most`. One that is left alone goes on with `most`."""
    # BEGIN SOLUTION
    total, requests = 0, least
    while True:
        requests = most if configs == 1 else requests
        total += configs * requests
        if requests >= most:
            return total
        configs, requests = math.ceil(configs / 2), min(2 * requests, most)
    # END SOLUTION

# %% tags=["check"] task="N4"
check(measured_requests(11, 8, 64), 408, "88 + 96 + 96 + 128")
check(measured_requests(4, 8, 32), 32 + 32 + 32, "4 x 8, 2 x 16, 1 x 32")
check(measured_requests(1, 8, 64), 64, "alone from the beginning")
check(measured_requests(6, 64, 64), 384, "one round, nothing is dropped")

# %%
asked = Counter()


def measure(budget, requests):
    """TTFT p99 and TPOT p50 of the documents with this budget."""
    asked[requests] += requests
    limits = replace(WORLD.scheduler, max_num_batched_tokens=budget, long_prefill_token_threshold=0)
    arrivals = WORLD.arrivals(0, requests)
    served = simulate(Scheduler, replace(WORLD, scheduler=limits), arrivals, COST, check_every=0).served
    return percentile([one.ttft for one in served], 99), percentile([one.tpot for one in served], 50)


budgets = [64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096]
for ttft, tpot in ((0.25, 0.005), (0.05, 0.001)):
    asked.clear()
    found = successive_halving(budgets, measure, Promise(ttft, tpot), least=8, most=64)
    last = found.measured[-1] if found.best is None else next(one for one in found.measured[::-1] if one.config == found.best)
    print(f"TTFT p99 {ttft} s, TPOT p50 {1000 * tpot:g} ms: best {found.best}, nearest {found.nearest} with {last.strain:.0%}; requests measured: {asked.total()} of {11 * 64}")

# %% [markdown]
# ## 6. What a client does not say
#
# A service answers in 10 ms and hangs from second 5 to second 6. One client sends every 0.1 s, if its last answer has come. Another sends every 0.1 s.

# %% tags=["todo"] task="N5" title="Missing latencies"
def num_omitted(latency, interval):
    """How many requests a client did not send while it waited `latency` seconds, in whole hundredths of a second as `interval` is."""
    # BEGIN SOLUTION
    return max(latency // interval - 1, 0)
    # END SOLUTION

# %% tags=["check"] task="N5"
check(num_omitted(100, 10), 9, "1 s, every 0.1 s")
check(num_omitted(25, 10), 1, "0.25 s hides one of 0.15 s")
check(num_omitted(10, 10), 0, "one interval hides nothing")
check(num_omitted(3, 10), 0, "answered before the next was due")

# %% tags=["predict"] task="P4" title="The p95 of both" why="The first client meets the hanging second once: one latency of 92. So its p95 is 0.01 s. The other sends ten requests in that second, which wait up to 0.92 s, and 5 of its 100 latencies are above 0.5 s."
guess = predict("P4", 50, "The client that waits sees a p95 of 0.01 s. How many times as long is the p95 of the one that sends on its schedule?")  # SOLUTION: guess = predict("P4", ..., "The client that waits sees a p95 of 0.01 s. How many times as long is the p95 of the one that sends on its schedule?")

# %%
def latencies(waits, interval=0.1, until=10.0):
    """What a client measures in `until` seconds; one that waits sends after its last answer."""
    number = free = sent = 0.0
    found = []
    while sent < until:
        begin = max(sent, free)
        free = (6.0 if 5.0 <= begin < 6.0 else begin) + 0.01
        found.append(free - sent)
        number += 1
        sent = max(sent + interval, free) if waits else number * interval
    return found


closed, scheduled = latencies(True), latencies(False)
for words, values in (("waits", closed), ("on schedule", scheduled), ("waits, with what it omitted", with_omitted(closed, 0.1))):
    print(f"{words:27} {len(values):3} latencies, p50 {percentile(values, 50):.2f} s, p95 {percentile(values, 95):.2f} s, p99 {percentile(values, 99):.2f} s")
score("P4", percentile(scheduled, 95) / percentile(closed, 95))
for values, words, style, colour in ((closed, "waits for its answer", "-", ORANGE), (scheduled, "sends on its schedule", "--", BLUE)):
    plt.plot([100 * (i + 1) / len(values) for i in range(len(values))], sorted(values), style, color=colour, label=words)
plt.xlim(80, 100.5)
plt.xlabel("percentile")
plt.ylabel("latency in seconds")
plt.title("The same service, measured by two clients")
plt.legend()
plt.show()

# %% [markdown]
# **What you should be able to say now:** how many requests are there at a time; what is left to gain behind a knee; why a mend is to be judged after the one
# before it; how many pairs a result of 3 % needs; what a search may drop; and when a latency begins.
