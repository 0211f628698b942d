# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 05: how does a ragged batch become one forward pass?
#
# You replay the guide's three clients on your own code and draw what it does. Then you measure what the
# ideas are worth: no padding, rows that stay, one move for each hole, a head only for the rows that need it.
# At the end you load weights into the wrong rows and read what the model says. Small functions are yours
# to write; each is checked at once. Before each experiment you write down a guess.
#
# Counts and texts are the same on every machine. Times differ from run to run: read ratios.
#
# | word | meaning |
# |---|---|
# | R, T, B | requests in a step, their tokens in all, requests that get a token |
# | rectangle | R rows, each as long as the longest: what padding would compute |
# | row | a request's place in the persistent batch |
# | hole | a row whose owner has gone |

# %% tags=["setup"]
import random
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#999999"
plt.rcParams |= {"figure.figsize": (7.5, 3.6), "axes.grid": True, "grid.alpha": 0.3}
warnings.filterwarnings("ignore", message="IProgress not found")  # no progress bar is shown here

# %% [markdown]
# ## 1. Three clients, step by step
#
# The scheduler of phase 03 plans, your runner brings its rows in line and lays the tokens flat. There is
# no model: a request that is ready gets token 7. The printed lines are the guide's table.

# %%
import torch

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.model_runner import ModelRunner

torch.set_num_threads(1)
CPU = torch.device("cpu")


def three_clients() -> Scheduler:
    """Budget 8, six blocks of 4 tokens: the story of phase 03."""
    limits = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=3, max_model_len=20)
    scheduler = Scheduler(limits, CacheConfig(4, 7, enable_prefix_caching=False))
    for number, (name, prompt, tokens) in enumerate((("ana", 10, 7), ("ben", 7, 3), ("cleo", 3, 3))):
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        scheduler.add_request(Request(name, [100 * number + i for i in range(prompt)], params, 0, number))
    return scheduler


def replay(scheduler: Scheduler, runner: ModelRunner) -> list[dict]:
    """Run to the end, and note for each step what the runner's arrays show."""
    looks = []
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        runner._update_states(plan)
        inputs = runner._prepare_inputs(plan)
        batch = runner.batch
        rows = [
            (state.req_id, int(batch.num_computed_tokens[row]), int(batch.num_tokens[row]),
             batch.block_table[row, : batch.num_blocks[row]].tolist())
            for row, state in enumerate(batch.rows)
        ]
        sampled = [batch.rows[row].req_id for row in inputs.sample_rows]
        looks.append({
            "rows": rows,
            "owners": np.repeat(inputs.req_ids, inputs.metadata.query_lens_cpu).tolist(),
            "positions": inputs.positions.tolist(),
            "slots": inputs.metadata.slot_mapping.tolist(),
            "starts": inputs.metadata.query_start_loc.tolist(),
            "last": inputs.logits_indices.tolist(),
            "sampled": sampled,
        })
        batch.append_tokens(inputs.sample_rows, np.full(len(sampled), 7))
        scheduler.update_from_output(plan, {name: [7] for name in sampled})
    return looks


looks = replay(three_clients(), ModelRunner(None, None, 3, 20, 4, CPU))
for step, look in enumerate(looks):
    names = " ".join(name for name, *_ in look["rows"])
    print(f"step {step}  rows: {names:13} positions: {look['positions']!s:28} slots: {look['slots']}")
    print(f"{'':22}query_start_loc: {look['starts']}, sampled: {', '.join(look['sampled']) or 'none'}")

# %% [markdown]
# Now the same as pictures, for four of the steps. Left: the rows of the batch, one square for each known
# token. Pale ones are computed, dark ones are computed in this step, empty ones are still to come. In the
# middle: the flat batch with positions; a star marks the token whose hidden state is sampled. Right: the
# pool with its six blocks of four slots. A dark slot is written in this step, at the position it shows.

# %%
COLOURS = {"ana": BLUE, "ben": ORANGE, "cleo": GREEN}


def square(axis, x: float, y: float, colour: str, alpha: float, text: str = "") -> None:
    face = (*plt.matplotlib.colors.to_rgb(colour), alpha)
    axis.add_patch(plt.Rectangle((x, y), 0.9, 0.9, facecolor=face, edgecolor=GREY, lw=0.5))
    axis.text(x + 0.45, y + 0.45, text, ha="center", va="center", fontsize=7,
              color="white" if alpha > 0.6 else "black")


def draw_rows(axis, look: dict) -> None:
    for row, (name, computed, known, table) in enumerate(look["rows"]):
        now = look["owners"].count(name)
        axis.text(-0.4, -row + 0.45, f"{row}  {name}", ha="right", va="center", fontsize=8)
        for i in range(known):
            alpha = 0.25 if i < computed else 0.9 if i < computed + now else 0.0
            square(axis, i, -row, COLOURS[name], alpha)
        axis.text(known + 0.4, -row + 0.45, str(table), va="center", fontsize=8)
    axis.set(xlim=(-4.5, 19.5), ylim=(-2.2, 1.2))


def draw_flat(axis, look: dict) -> None:
    for i, (name, position) in enumerate(zip(look["owners"], look["positions"], strict=True)):
        square(axis, i, 0, COLOURS[name], 0.9, str(position))
        if i in look["last"]:
            axis.text(i + 0.45, 1.0, "★", ha="center", fontsize=9, color=COLOURS[name])
    for start in look["starts"]:
        axis.text(start - 0.05, -0.6, str(start), ha="center", fontsize=8)
    axis.set(xlim=(-0.6, 8.6), ylim=(-1.4, 2.0))


def draw_pool(axis, look: dict) -> None:
    held = {}
    for name, computed, _, table in look["rows"]:
        held |= {table[i // 4] * 4 + i % 4: name for i in range(computed)}
    written = {slot: (name, i) for slot, name, i in zip(look["slots"], look["owners"], look["positions"], strict=True)}
    for slot in range(4, 28):
        block, offset = divmod(slot, 4)
        name, text = written.get(slot, (held.get(slot), ""))
        square(axis, 5.3 * ((block - 1) % 3) + offset, -1.4 * ((block - 1) // 3), COLOURS.get(name, GREY),
               0.9 if slot in written else 0.25 if slot in held else 0.0, str(text))
    for block in range(1, 7):
        axis.text(5.3 * ((block - 1) % 3) - 0.15, -1.4 * ((block - 1) // 3) + 0.45, str(block), ha="right", va="center", fontsize=8)
    axis.set(xlim=(-0.9, 15), ylim=(-1.6, 1.2))


def draw(steps: list[int]) -> None:
    figure, axes = plt.subplots(len(steps), 3, figsize=(11, 1.25 * len(steps)), width_ratios=(24, 10, 16))
    for line, step in zip(axes, steps, strict=True):
        for axis, paint in zip(line, (draw_rows, draw_flat, draw_pool), strict=True):
            paint(axis, looks[step])
            axis.axis("off")
        line[0].set_title(f"step {step}: rows, and their block tables", fontsize=9, loc="left")
        line[1].set_title("flat; below: query_start_loc", fontsize=9, loc="left")
        line[2].set_title("blocks 1 to 6 of the pool", fontsize=9, loc="left")
    figure.tight_layout()
    plt.show()


draw([1, 2, 4, 8])

# %% [markdown]
# Look at step 4: ben and cleo have gone, ana has block 6, which was cleo's. In step 8 ben is back, in
# other blocks and in another order. His row is full again; his positions begin at 0.
#
# ## 2. What padding would cost

# %% tags=["todo"] task="N1" title="How much of the rectangle is empty"
def empty_share(num_scheduled: list[int]) -> float:
    """Share of the padded rectangle (R rows as long as the longest) that holds no token."""
    # BEGIN SOLUTION
    return 1 - sum(num_scheduled) / (len(num_scheduled) * max(num_scheduled))
    # END SOLUTION

# %% tags=["check"] task="N1"
check_close(empty_share([1, 1, 3]), 4 / 9, "3 rows of 3 places, 5 tokens")
check_close(empty_share([5, 5]), 0.0, "equal lengths need no padding")
check_close(empty_share([2000] + [1] * 31), 1 - 2031 / 64000, "one prompt beside 31 decodes")

# %% [markdown]
# The bundled model computes one step in two ways: flat, and as a rectangle. 15 requests decode, one has
# a prompt of 128 tokens. The rectangle has 16 x 128 tokens; the flat batch has 143.

# %% tags=["predict"] task="P1" title="The price of the rectangle" why="The rectangle computes 16 x 128 = 2,048 tokens where 143 are wanted, 14 times as many. Padding is multiplied by every weight like a token; what does not grow with the tokens keeps the measured factor away from 14."
guess = predict("P1", 14, "16 x 128 tokens instead of 143: by which factor is the step slower?")  # SOLUTION: guess = predict("P1", ..., "16 x 128 tokens instead of 143: by which factor is the step slower?")

# %%
from mini_vllm import bundled
from mini_vllm.attention import AttentionMetadata
from mini_vllm.model.build import load_model
from mini_vllm.worker.kv_cache import KVCache

model = load_model(bundled.path("storyteller"), dtype="float32")
cache = KVCache(model.kv_cache_spec(), 16 * 8 + 1, 16, CPU)
TABLES = [list(range(1 + 8 * r, 9 + 8 * r)) for r in range(16)]


def best_of(function, times: int = 5) -> float:
    """Seconds of the fastest run: whatever else the machine does only adds."""
    function()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@torch.inference_mode()
def forward(num_scheduled: list[int]) -> torch.Tensor:
    """One forward pass over requests that have nothing computed yet; hidden states [T, H]."""
    metadata = AttentionMetadata.from_lists(num_scheduled, num_scheduled, TABLES[: len(num_scheduled)], 16)
    tokens = torch.arange(sum(num_scheduled)) % 1000
    positions = torch.cat([torch.arange(n) for n in num_scheduled])
    return model(tokens, positions, cache.layers, metadata)


LONGEST = (8, 16, 32, 64, 128)
flat_ms, padded_ms = [], []
for longest in LONGEST:
    counts = [1] * 15 + [longest]
    flat_ms.append(1e3 * best_of(lambda: forward(counts)))
    padded_ms.append(1e3 * best_of(lambda: forward([longest] * 16)))
    print(f"15 decodes, {longest:3} tokens: {empty_share(counts):4.0%} of the rectangle is empty; "
          f"flat {flat_ms[-1]:6.1f} ms, padded {padded_ms[-1]:6.1f} ms")
score("P1", padded_ms[-1] / flat_ms[-1])

# %%
figure, axis = plt.subplots()
axis.plot(LONGEST, padded_ms, "s--", color=ORANGE, label="padded to a rectangle")
axis.plot(LONGEST, flat_ms, "o-", color=BLUE, label="flat")
axis.set(xscale="log", yscale="log", xlabel="tokens of the longest request; 15 others have one", ylabel="one step (ms)")
axis.set_xticks(LONGEST, [str(n) for n in LONGEST])
axis.minorticks_off()
axis.set_title("Sixteen requests in one step")
axis.legend()
plt.show()

# %% [markdown]
# ## 3. Rows that stay, against rows that are made anew
#
# R requests decode; each has a context of L tokens. Three ways to prepare the step: your persistent
# batch, which writes only what has changed; the same arrays, filled anew from what is known of each
# request; and plain lists, token by token, as small engines build them.

# %% tags=["todo"] task="N2" title="Numbers written for one decode step"
def numbers_written(context: int, num_reqs: int, block_size: int) -> tuple[int, int]:
    """Entries of `token_ids` and `block_table` that are written for one step: (rows that stay, rows
    made anew).

    Each of the `num_reqs` requests has `context` known tokens, the newest included, and decodes. Rows
    that stay get the newest token only; no request needs a new block in this step.
    """
    # BEGIN SOLUTION
    blocks = -(-context // block_size)
    return num_reqs, num_reqs * (context + blocks)
    # END SOLUTION

# %% tags=["check"] task="N2"
check(numbers_written(100, 1, 16), (1, 107), "100 tokens and 7 block ids, or just the newest token")
check(numbers_written(1024, 64, 16), (64, 64 * 1088), "64 tokens and 64 block ids for every request")

# %% tags=["predict"] task="P2" title="Microseconds, not numbers"
guess = predict("P2", 20, "64 requests with 1,024 tokens each: by which factor is filling the rows anew slower?")  # SOLUTION: guess = predict("P2", ..., "64 requests with 1,024 tokens each: by which factor is filling the rows anew slower?")

# %%
from mini_vllm.core.scheduler_output import CachedRequestData, NewRequestData, SchedulerOutput

BLOCK, WIDTH = 16, 4160
GREEDY = SamplingParams(temperature=0.0)


def make_plan(scheduled: dict[str, int], computed: dict[str, int], new: list[NewRequestData]) -> SchedulerOutput:
    blocks = {request.req_id: request.block_ids for request in new}
    known = CachedRequestData(list(computed), list(computed.values()), set(), {})
    return SchedulerOutput(new, known, scheduled, sum(scheduled.values()), {}, blocks, [], set())


def running(num_reqs: int, context: int) -> tuple[ModelRunner, SchedulerOutput]:
    """A runner whose requests all have `context` tokens but one computed, and the plan to decode."""
    runner = ModelRunner(None, None, num_reqs, WIDTH, BLOCK, CPU)
    names = [f"r{i}" for i in range(num_reqs)]
    table = list(range(1, -(-context // BLOCK) + 1))
    new = [NewRequestData(name, [1] * context, GREEDY, None, table, 0) for name in names]
    runner._update_states(make_plan(dict.fromkeys(names, context - 1), {}, new))
    return runner, make_plan(dict.fromkeys(names, 1), dict.fromkeys(names, context - 1), [])


def stay(runner: ModelRunner, plan: SchedulerOutput):
    """Write what has changed, then prepare; the newest token is in its row already."""
    runner._update_states(plan)
    return runner._prepare_inputs(plan)


def anew(runner: ModelRunner, plan: SchedulerOutput, tables: dict[str, list[int]]):
    """Forget all rows, fill them from the requests' states, then prepare."""
    batch = runner.batch
    for name in plan.num_scheduled_tokens:
        batch.remove_request(name)
    for name, computed in zip(plan.scheduled_cached_reqs.req_ids, plan.scheduled_cached_reqs.num_computed_tokens, strict=True):
        batch.add_request(runner.requests[name], tables[name], computed)
    return runner._prepare_inputs(plan)


def lists(runner: ModelRunner, plan: SchedulerOutput, tables: dict[str, list[int]]):
    """No arrays: look up each token of the step in Python."""
    ids, positions, known, contexts = [], [], [], []
    for name, computed in zip(plan.scheduled_cached_reqs.req_ids, plan.scheduled_cached_reqs.num_computed_tokens, strict=True):
        count = plan.num_scheduled_tokens[name]
        tokens = runner.requests[name].prompt_token_ids
        ids += tokens[computed : computed + count]
        positions += range(computed, computed + count)
        known.append(tables[name])
        contexts.append(computed + count)
    counts = list(plan.num_scheduled_tokens.values())
    return torch.tensor(ids), torch.tensor(positions), AttentionMetadata.from_lists(counts, contexts, known, BLOCK)


def prepare_microseconds(num_reqs: int, context: int) -> list[float]:
    """One step's preparation: rows that stay, rows made anew, lists."""
    runner, plan = running(num_reqs, context)
    batch = runner.batch
    tables = {name: batch.block_table[row, : batch.num_blocks[row]].tolist() for name, row in batch.req_id_to_row.items()}
    ways = (lambda: stay(runner, plan), lambda: anew(runner, plan, tables), lambda: lists(runner, plan, tables))
    return [1e6 * best_of(way, 7) for way in ways]


REQS, CONTEXTS = (1, 4, 16, 64, 256), (64, 256, 1024, 4096)
by_reqs = [prepare_microseconds(n, 1024) for n in REQS]
by_context = [prepare_microseconds(64, n) for n in CONTEXTS]
for title, values, found in (("requests", REQS, by_reqs), ("context", CONTEXTS, by_context)):
    for value, (kept, filled, listed) in zip(values, found, strict=True):
        print(f"{title} {value:5}: rows stay {kept:7.0f} µs, rows anew {filled:8.0f} µs, lists {listed:8.0f} µs")
score("P2", by_reqs[3][1] / by_reqs[3][0])

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
for axis, values, found, label in (
    (axes[0], REQS, by_reqs, "requests that decode, 1,024 tokens each"),
    (axes[1], CONTEXTS, by_context, "tokens of each of 64 requests"),
):
    for index, (name, style, colour) in enumerate((("rows stay", "o-", BLUE), ("rows made anew", "s--", ORANGE), ("lists", "^:", GREEN))):
        axis.plot(values, [times[index] for times in found], style, color=colour, label=name)
    axis.set(xscale="log", yscale="log", xlabel=label)
    axis.set_xticks(values, [f"{value:,}" for value in values])
    axis.minorticks_off()
axes[0].set_ylabel("preparing one step (µs)")
axes[0].legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# The left picture: all three grow with the number of requests. The right one shows the idea. A step of
# the persistent batch does not know how long its requests are, except for the width of the block table
# that it hands over. Made anew, each step costs what the whole history costs. Lists are in
# between: they copy no tokens, but each table once more. With one request alone, plain lists win: a
# dozen array operations have a fixed price, which many requests share.
#
# ## 4. Holes
#
# Requests come and go. One that goes leaves a hole; new ones fill the first holes; the rest are closed.

# %% tags=["todo"] task="N3" title="Rows that have to move"
def rows_moved(taken: list[bool]) -> tuple[int, int]:
    """How many rows move until the rows are dense: (the last ones into the holes, all behind a hole
    one after the other to the front).

    `taken[row]` says whether the row has an owner.
    """
    # BEGIN SOLUTION
    dense = sum(taken)
    first_hole = taken.index(False) if False in taken else len(taken)
    return taken[:dense].count(False), sum(taken[first_hole:])
    # END SOLUTION

# %% tags=["check"] task="N3"
check(rows_moved([True, False, True, False, True]), (1, 2), "a - c - e: only e moves; shifted, c and e move")
check(rows_moved([False, False, True, True, True]), (2, 3), "- - c d e becomes e d c")
check(rows_moved([True, True, False, False]), (0, 0), "holes at the end are only cut off")
check(rows_moved([True, True]), (0, 0), "no hole")

# %% tags=["predict"] task="P3" title="Moves in a busy service" why="Shifting moves every row behind the first hole, so it grows with the number of requests. condense moves at most one row for each hole, and newcomers have filled most holes before."
guess = predict("P3", 40, "Up to 256 rows, in each step 2 % of the requests end: how many times as many rows would shifting move?")  # SOLUTION: guess = predict("P3", ..., "Up to 256 rows, in each step 2 % of the requests end: how many times as many rows would shifting move?")

# %%
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch


def busy_service(steps: int, seed: int) -> list[tuple[int, int, int]]:
    """(rows that your `condense` moved, rows that shifting would move, requests), step by step."""
    rng = random.Random(seed)
    batch = InputBatch(256, 16, 16)
    moves, names, found = [], iter(range(10**6)), []
    move = batch._move_row
    batch._move_row = lambda source, target: (moves.append(1), move(source, target))
    for _ in range(steps):
        for name in list(batch.req_id_to_row):
            if rng.random() < 0.02:
                batch.remove_request(name)
        for _ in range(min(rng.randint(0, 8), 256 - batch.num_reqs)):
            batch.add_request(CachedRequestState(str(next(names)), [1], GREEDY, None), [1], 0)
        shifted = rows_moved([state is not None for state in batch.rows])[1]
        moves.clear()
        batch.condense()
        found.append((len(moves), shifted, batch.num_reqs))
    return found


story = busy_service(1000, seed=5)[200:]
condensed, shifted, requests = (np.array(column) for column in zip(*story, strict=True))
print(f"{requests.mean():.0f} requests on average; rows moved in a step: {condensed.mean():.2f} by condense, {shifted.mean():.1f} by shifting")
print(f"steps without any move: {np.mean(condensed == 0):.0%} and {np.mean(shifted == 0):.0%}; the most: {condensed.max()} and {shifted.max()}")
score("P3", shifted.mean() / condensed.mean())

# %%
figure, axis = plt.subplots()
axis.plot(shifted[:200], color=ORANGE, lw=1, label="shifting all behind a hole")
axis.plot(condensed[:200], color=BLUE, lw=1.5, label="condense: the last rows into the holes")
axis.set(xlabel="step", ylabel="rows moved", ylim=(-8, 280), title="About 200 requests, some of them go in every step")
axis.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## 5. A head for those who need it
#
# The layers run over T tokens, the head over the B that are sampled. The head is one wide product: hidden
# size times vocabulary. What would it cost to run it over all T?

# %% tags=["todo"] task="N4" title="The head's share of the work"
def head_share(num_tokens: int, num_logits: int, layer_params: int, head_params: int) -> float:
    """The head's share of a step's multiplications: each of `num_tokens` meets every parameter of the
    layers once, each of `num_logits` hidden states every parameter of the head. Attention is left out.
    """
    # BEGIN SOLUTION
    head = num_logits * head_params
    return head / (num_tokens * layer_params + head)
    # END SOLUTION

# %% tags=["check"] task="N4"
check_close(head_share(10, 10, 300, 100), 0.25, "each query meets both")
check_close(head_share(10, 1, 300, 100), 100 / 3100, "one of ten is sampled")

# %%
QWEN3_LAYERS, QWEN3_HEAD = 28 * (1024 * 4096 + 2048 * 1024 + 3 * 1024 * 3072), 1024 * 151_936  # Qwen3-0.6B
for num_logits in (1, 2048):
    share = head_share(2048, num_logits, QWEN3_LAYERS, QWEN3_HEAD)
    print(f"Qwen3-0.6B, a prompt of 2,048 tokens, {num_logits:4} rows of logits: the head is {share:6.2%} of the "
          f"work, and logits in float32 take {num_logits * 151_936 * 4 / 2**20:7.1f} MiB")

layer_params = sum(p.numel() for layer in model.model.layers for p in layer.parameters())
head_params = model.lm_head.weight.numel()
SPREAD = [16] * 7 + [128]
with torch.inference_mode():
    hidden = forward(SPREAD)
    last = np.cumsum(SPREAD) - 1
    layers_ms = 1e3 * best_of(lambda: forward(SPREAD))
    all_ms, few_ms = (1e3 * best_of(lambda: model.compute_logits(h)) for h in (hidden, hidden[last]))
print(f"storyteller, 8 requests, 240 tokens: layers {layers_ms:.1f} ms, head over 8 rows {few_ms:.2f} ms, over all {all_ms:.2f} ms "
      f"({all_ms / (layers_ms + all_ms):.0%} of the step; of the multiplications {head_share(240, 240, layer_params, head_params):.0%})")

# %% [markdown]
# The bundled model has 2,048 tokens in its vocabulary, so its head is small. In a real model the head is the
# largest matrix of all. Over a prompt it would be a quarter of the work, and its output more than a gigabyte,
# of which one row is read.
#
# ## 6. The right weights in the wrong rows
#
# q, k and v are one matrix. Which rows are whose?

# %% tags=["todo"] task="N5" title="The rows of q, k and v"
def rows_of(part: str, num_heads: int, num_kv_heads: int, head_dim: int) -> range:
    """The rows of `qkv_proj` that hold `part`, which is "q", "k" or "v"."""
    # BEGIN SOLUTION
    q, kv = num_heads * head_dim, num_kv_heads * head_dim
    start = {"q": 0, "k": q, "v": q + kv}[part]
    return range(start, start + (q if part == "q" else kv))
    # END SOLUTION

# %% tags=["check"] task="N5"
check(rows_of("q", 4, 2, 8), range(0, 32), "4 query heads of 8 come first")
check(rows_of("k", 4, 2, 8), range(32, 48), "2 key heads of 8 follow")
check(rows_of("v", 4, 2, 8), range(48, 64), "then the values")

# %% [markdown]
# The bundled model tells a story four times: as it is, and with one mistake of loading each. The mistake
# is made in a copy of the model's file, so that what is loaded is what a wrong loader would have made. No
# mistake raises an error. All shapes fit.

# %% tags=["predict"] task="P4" title="One tensor is missing"
guess = predict("P4", 1, "One of 46 tensors is missing: how many of 24 tokens are the right model's, at the same place?")  # SOLUTION: guess = predict("P4", ..., "One of 46 tensors is missing: how many of 24 tokens are the right model's, at the same place?")

# %%
import json
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file

from mini_vllm import LLM, bundled

SHAPE = json.loads((Path(bundled.path("storyteller")) / "config.json").read_text())
HEADS = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"], SHAPE["head_dim"]
LAYERS = [f"model.layers.{n}" for n in range(SHAPE["num_hidden_layers"])]


def as_it_is(tensors) -> None:
    """The right model."""


def swap_gate_and_up(tensors) -> None:
    for layer in LAYERS:
        gate, up = f"{layer}.mlp.gate_proj.weight", f"{layer}.mlp.up_proj.weight"
        tensors[gate], tensors[up] = tensors[up], tensors[gate]


def swap_keys_and_values(tensors) -> None:
    k, v = list(rows_of("k", *HEADS)), list(rows_of("v", *HEADS))
    for layer in LAYERS:
        names = [f"{layer}.self_attn.{part}_proj.weight" for part in "qkv"]
        stacked = torch.cat([tensors[name] for name in names])
        stacked[k + v] = stacked[v + k]
        for part, name in zip("qkv", names, strict=True):
            tensors[name] = stacked[list(rows_of(part, *HEADS))]


def lose_one_matrix(tensors) -> None:
    """One tensor of 46 is missing, and no check looks: the parameter stays empty."""
    tensors["model.layers.1.mlp.down_proj.weight"].zero_()


def loaded_with(mistake) -> LLM:
    """The bundled model, from a copy of its folder with that mistake in it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(bundled.path("storyteller"), folder, dirs_exist_ok=True)
        file = Path(folder, "model.safetensors")
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
        mistake(tensors)
        save_file(tensors, file)
        return LLM(folder, block_size=16, num_gpu_blocks=16, max_num_seqs=1, max_model_len=128, dtype="float32")


texts, tokens = {}, {}
for mistake in (as_it_is, swap_gate_and_up, swap_keys_and_values, lose_one_matrix):
    llm = loaded_with(mistake)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    (answer,) = llm.generate(["Once upon a time there was a small fox"], params, use_tqdm=False)
    tokens[mistake], texts[mistake] = answer.outputs[0].token_ids, answer.outputs[0].text
    equal = sum(a == b for a, b in zip(tokens[as_it_is], tokens[mistake], strict=True))
    print(f"{mistake.__name__.replace('_', ' '):21} {equal:2} of 24 tokens: …{texts[mistake]!r}")
assert len({tuple(ids) for ids in tokens.values()}) == 4, "a mistake has changed nothing"
score("P4", equal)

# %% [markdown]
# The last one is the worst. Its text is good enough to pass at a glance, and every benchmark of
# the model will be a little too low. A loader that compares names cannot let it happen.

# %% [markdown]
# ## What to take away
#
# - The layers compute what they are given. Padding is work like any other, and ragged batches need none.
# - A step should cost its changes. Rows that stay make its price independent of the contexts' length.
# - Order of rows means nothing, so a hole costs one move and not a shift.
# - The head runs over those who have caught up. For Qwen3-0.6B a prompt would cost a third more.
# - A wrong row raises nothing. Names, counts and shapes are all that a loader can check, so it checks all.
