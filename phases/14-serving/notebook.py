# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 14: from a loop to a service
#
# You watch unread tokens merge, see what a blocked loop does to strangers, send loads that wait and loads that do not, and compare a percentile with
# what is left of it in a histogram. Nothing here needs a network. The first two experiments run by the clock, so your
# numbers differ from those printed here; the others repeat. Before each experiment you write down a guess.
#
# | word | meaning |
# |---|---|
# | TTFT | time to first token |
# | open loop | all times are fixed beforehand, whatever the server does |
# | closed loop | the next request is sent when an answer has come |

# %% tags=["setup"]
import asyncio
import heapq
import math
import threading
import time

import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}

from mini_vllm.engine.collector import RequestOutputCollector
from mini_vllm.entrypoints.load import arrival_times
from mini_vllm.observability.metrics import percentile_from_buckets
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import RequestOutputKind


def run(work):
    """Run a coroutine to its end in a thread of its own: the notebook has a loop already."""
    box = []
    thread = threading.Thread(target=lambda: box.append(asyncio.run(work)))
    thread.start()
    thread.join()
    return box[0]

# %% [markdown]
# ## 1. Merging
#
# A producer puts a token into a collector every millisecond, 200 of them. The reader sleeps after each output.

# %% tags=["todo"] task="N1" title="How many outputs does a slow reader get?"
def outputs_read(tokens, gap, pause):
    """Outputs that a reader gets that comes every `pause` seconds, of `tokens` made every `gap` seconds."""
    # BEGIN SOLUTION
    if pause <= gap:
        return tokens
    return math.ceil(tokens * gap / pause)
    # END SOLUTION

# %% tags=["check"] task="N1"
check(outputs_read(200, 0.001, 0.0), 200, "a reader that reads at once gets each token alone")
check(outputs_read(200, 0.005, 0.050), 20, "one second, every 50 ms")

# %% tags=["predict"] task="P1" title="Outputs at 20 ms" why="The first token is read at once. The others take 200 ms, and a reader who sleeps 20 ms comes about ten times for them: about 11 outputs, fewer if a sleep lasts longer than it was asked to."
guess = predict("P1", 8, "200 tokens, one a millisecond; the reader sleeps 20 ms. How many outputs?")  # SOLUTION: guess = predict("P1", ..., "200 tokens, one a millisecond; the reader sleeps 20 ms. How many outputs?")

# %%
async def read_slowly(pause, tokens=200, gap=0.001):
    collector, sizes = RequestOutputCollector(RequestOutputKind.DELTA), []

    async def produce():
        start = time.perf_counter()
        for number in range(tokens):
            collector.put(RequestOutput("r", None, [1], outputs=[CompletionOutput(0, "x", [number])], finished=number == tokens - 1))
            await asyncio.sleep(max(start + (number + 1) * gap - time.perf_counter(), 0))

    producer, finished = asyncio.ensure_future(produce()), False
    while not finished:
        output = await collector.get()
        finished = output.finished
        sizes.append(len(output.outputs[0].token_ids))
        await asyncio.sleep(pause)
    await producer
    return sizes


pauses = (0.0, 0.005, 0.020, 0.100)
sizes = {pause: run(read_slowly(pause)) for pause in pauses}
for pause in pauses:
    print(f"sleeps {pause * 1000:4.0f} ms: {len(sizes[pause]):4d} outputs, {sum(sizes[pause])} tokens, the largest holds {max(sizes[pause])}")
score("P1", len(sizes[0.020]))

# %% [markdown]
# Every reader has all 200 tokens. What grows is the size of an output, and never the number of those that wait.
#
# ## 2. A loop that is held
#
# Ten streams each get an output every 5 ms. Somewhere else in the program a handler calls `time.sleep(0.1)`, four times.

# %% tags=["predict"] task="P2" title="Gaps of strangers" why="One thread runs all coroutines. While a handler sleeps in it, no other output is sent: the 100 ms of the sleep come on top of the 5 ms that a stream waits anyway."
guess = predict("P2", 105, "What is the longest gap, in ms, that the *other* streams see?")  # SOLUTION: guess = predict("P2", ..., "What is the longest gap, in ms, that the *other* streams see?")

# %%
async def ten_streams(hold):
    gaps = []

    async def stream():
        last = time.perf_counter()
        for _ in range(100):
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            gaps.append((now - last) * 1000)
            last = now

    async def rude():
        for _ in range(4):
            await asyncio.sleep(0.08)
            if hold:
                time.sleep(hold)

    await asyncio.gather(*(stream() for _ in range(10)), rude())
    return gaps


fine, held = run(ten_streams(0)), run(ten_streams(0.1))
plt.hist([fine, held], bins=np.arange(0, 130, 5), color=[BLUE, ORANGE], label=["no handler holds the loop", "one handler does"])
plt.yscale("log")
plt.ylim(bottom=0.7)
plt.xlabel("gap between two outputs (ms)")
plt.ylabel("number of gaps")
plt.legend()
plt.title("One handler that sleeps makes all streams stutter")
score("P2", round(max(held)))

# %% [markdown]
# ## 3. Loads
#
# A server with one place serves a request in 100 ms, so it can serve 10 a second. What does a client see at 5, 9 and 11 a second?

# %% tags=["todo"] task="N2" title="A server with one place"
def latencies(arrivals, service):
    """Seconds from each arrival to its end, when one request is served at a time, in order."""
    # BEGIN SOLUTION
    free, seen = 0.0, []
    for arrival in arrivals:
        free = max(free, arrival) + service
        seen.append(free - arrival)
    return seen
    # END SOLUTION

# %% tags=["check"] task="N2"
check([round(x, 6) for x in latencies([0.0, 0.0, 1.0], 0.1)], [0.1, 0.2, 0.1], "the second waits for the first, the third for none")

# %% tags=["predict"] task="P3" title="Overload" why="11 come in a second and 10 are served, so the line grows by one a second, a tenth of a second of waiting. The last of 400 comes after 36 s and finds about 36 before it, 3.6 s; arrivals that come in clumps add the rest."
guess = predict("P3", 4.7, "At 11 requests a second, 400 requests: the p99 of the latency in seconds?")  # SOLUTION: guess = predict("P3", ..., "At 11 requests a second, 400 requests: the p99 of the latency in seconds?")

# %%
def closed_loop(clients, requests, service):
    """Latencies when each of `clients` sends its next request as soon as it has an answer."""
    ready, free, seen = [(0.0, c) for c in range(clients)], 0.0, []
    for _ in range(requests):
        sent, client = heapq.heappop(ready)
        free = max(free, sent) + service
        seen.append(free - sent)
        heapq.heappush(ready, (free, client))
    return seen


open_p99 = {}
for rate, colour in ((5, BLUE), (9, ORANGE), (11, GREEN)):
    seen = latencies(arrival_times(400, rate, 1.0, np.random.default_rng(1)), 0.1)
    open_p99[rate] = float(np.percentile(seen, 99))
    print(f"open loop, {rate:2d} a second: p50 {np.percentile(seen, 50):6.2f} s, p99 {open_p99[rate]:6.2f} s")
    plt.plot(seen, color=colour, label=f"{rate} a second")
seen = closed_loop(4, 400, 0.1)
print(f"closed loop, 4 clients:  p50 {np.percentile(seen, 50):6.2f} s, p99 {np.percentile(seen, 99):6.2f} s")
plt.plot(seen, "k--", label="closed loop, 4 clients")
plt.xlabel("request")
plt.ylabel("latency (s)")
plt.title("One more than it can serve, and the line never ends")
plt.legend()
score("P3", round(open_p99[11], 2))

# %% [markdown]
# The closed loop never shows an overload: its clients wait, and the load shrinks just when it hurts. This mistake of a measurement is called *coordinated omission*.
#
# ## 4. Bursts
#
# The same number of requests a second can come in clumps or in step. `burstiness` 1 is pure chance (a Poisson
# process), below 1 they come in clumps, above 1 more evenly, and at infinity like a clock.

# %% tags=["todo"] task="N3" title="Goodput"
def share_in_time(seen, limit):
    """The share of latencies that are at most `limit`."""
    # BEGIN SOLUTION
    return sum(value <= limit for value in seen) / len(seen)
    # END SOLUTION

# %% tags=["check"] task="N3"
check(share_in_time([0.1, 0.5, 0.5, 2.0], 0.5), 0.75, "three of four; the limit itself is in time")

# %%
for burstiness in (0.25, 1.0, 4.0, math.inf):
    seen = latencies(arrival_times(2000, 7.0, burstiness, np.random.default_rng(2)), 0.1)
    print(f"burstiness {burstiness:5}: p50 {np.percentile(seen, 50):5.2f} s, p99 {np.percentile(seen, 99):5.2f} s, in time (0.5 s) {share_in_time(seen, 0.5):6.1%}")

# %% [markdown]
# The rate is 7 a second each time, and so is the throughput. What differs is which requests wait, and how long.
#
# ## 5. What is left of a percentile
#
# A server does not keep every latency. It counts how many lie below each of a few bounds, and a dashboard guesses the
# percentile from the counts: on a straight line between two bounds.

# %% tags=["todo"] task="N4" title="Count for a histogram"
def count_below(values, bounds):
    """How many values are at most each bound: the cumulative counts of a histogram."""
    # BEGIN SOLUTION
    return [float(sum(value <= bound for value in values)) for bound in bounds]
    # END SOLUTION

# %% tags=["check"] task="N4"
check(count_below([0.1, 0.2, 3.0], [0.1, 1.0, math.inf]), [1.0, 2.0, 3.0], "each count holds those before it")

# %%
BOUNDS = [0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, math.inf]
seen = latencies(arrival_times(2000, 9.0, 1.0, np.random.default_rng(3)), 0.1)
counts = count_below(seen, BOUNDS)
for quantile in (0.5, 0.9, 0.99):
    exact, estimate = np.percentile(seen, quantile * 100), percentile_from_buckets(BOUNDS, counts, quantile)
    print(f"p{quantile * 100:g}: exact {exact:.3f} s, from the buckets {estimate:.3f} s, {abs(estimate - exact) / exact:.0%} off")

# %% [markdown]
# The error is at most a bucket's width. So choose bounds where your promises are.
