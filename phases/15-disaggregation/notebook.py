# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 15: KV that travels
#
# You weigh a token's KV and draw where carrying beats computing, take a block apart and put it back with two
# heads swapped, give an engine a second tier, let two engines share a store and flip a bit of it, and route
# a popular prompt three ways. Small functions are yours to write; each is checked at once. Before each
# experiment you write down a guess.
#
# Every number below repeats: nothing is timed. Experiments 2, 3 and 4 run the engine, with **your** files if
# you start the notebook with `make notebook-15`.

# %% tags=["setup"]
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.kv_transfer.economics import LINKS, SHAPES, kv_bytes_per_token

warnings.filterwarnings("ignore", message="IProgress")  # no progress bars needed here
torch.set_num_threads(1)
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#777777"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3}
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def engine(connector=None, **options):
    """The bundled model with blocks of 8 tokens."""
    config = None
    if connector is not None:
        name, extra = connector
        config = {"kv_connector": name, "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}
    usual = {"dtype": "float32", "block_size": 8, "max_model_len": 128, "num_gpu_blocks": 64}
    return LLM("storyteller", kv_transfer_config=config, **(usual | options))


# %% [markdown]
# ## 1. What a token weighs, and who carries it
#
# A link pays only if it carries a token faster than the engine computes it.

# %% tags=["todo"] task="N1" title="The slowest link that pays"
def slowest_link(bytes_per_token: int, prefill_rate: float) -> float:
    """Bytes per second that a link must exceed, whatever the prompt's length."""
    # BEGIN SOLUTION
    return bytes_per_token * prefill_rate
    # END SOLUTION

# %% tags=["check"] task="N1"
check(slowest_link(1000, 2000), 2_000_000, "1,000 bytes a token, 2,000 tokens a second")
check(slowest_link(131_072, 20_000), 2_621_440_000, "Llama-3.1-8B at 20,000 tokens a second")

# %% tags=["predict"] task="P1" title="Links that pay" why="A link pays if it brings a token's keys and values sooner than they are computed: 131,072 bytes a token times 20,000 tokens a second are 2.6 GB/s. All links but the first are faster."
guess = predict("P1", 4, "Of 10 GbE (1.2 GB/s), NVMe (6), 100 GbE (12), PCIe 5 (55), NVLink (400): how many pay for Llama-3.1-8B at 20,000 tokens/s?")  # SOLUTION: guess = predict("P1", ..., "Of 10 GbE (1.2 GB/s), NVMe (6), 100 GbE (12), PCIe 5 (55), NVLink (400): how many pay for Llama-3.1-8B at 20,000 tokens/s?")

# %%
size = kv_bytes_per_token(SHAPES["Llama-3.1-8B"])
score("P1", sum(speed > slowest_link(size, 20_000) for speed in LINKS.values()))
n = np.arange(0, 2001, 50)
plt.plot(n, n / 20, color="black", label="compute")
for (link, speed), colour in zip(LINKS.items(), (PINK, ORANGE, GREEN, BLUE, GREY)):
    plt.plot(n, 5 + 1000 * n * size / speed, color=colour, label=link)
plt.ylim(0, 160)
plt.xlabel("tokens")
plt.ylabel("milliseconds")
plt.title("8B, 20,000 tokens/s, 5 ms a trip")
plt.legend()
plt.show()

# %% [markdown]
# ## 2. A block, there and back
#
# Gather a prompt's blocks, put them back, and nothing has changed. Put them back with two heads swapped, and
# every shape still fits. Only the text tells.

# %% tags=["todo"] task="N2" title="Swap two heads of every block"
def swap_heads(blocks):
    """Blocks [n, L, 2, B, H, D] with heads 0 and 1 in each other's place; a new tensor."""
    # BEGIN SOLUTION
    order = [1, 0, *range(2, blocks.shape[4])]
    return blocks[:, :, :, :, order]
    # END SOLUTION

# %% tags=["check"] task="N2"
tiny = torch.arange(8.0).view(1, 1, 1, 1, 2, 4)
check(swap_heads(tiny).flatten().tolist(), [4.0, 5.0, 6.0, 7.0, 0.0, 1.0, 2.0, 3.0], "two heads of four numbers")
check(tiny.flatten().tolist(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "what it was given is as before: the result is a new tensor")
check(swap_heads(torch.arange(3.0).view(1, 1, 1, 1, 3, 1)).flatten().tolist(), [1.0, 0.0, 2.0], "a third head stays")

# %%
from mini_vllm.kv_transfer.layout import gather_blocks, scatter_blocks

prompt = "Once upon a time there was a little girl who had a red ball. She"
llm = engine()
layers = llm.engine.core.model_runner.kv_cache.layers
texts = {}
for name, change in (("as it was", lambda blocks: blocks), ("heads swapped", swap_heads)):
    llm.engine.core.reset_prefix_cache()
    llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    pool = llm.engine.core.scheduler.kv_cache_manager.block_pool
    ids = [block for blocks in pool.cached_blocks.values() for block in blocks]
    scatter_blocks(change(gather_blocks(layers, ids)), layers, ids)
    texts[name] = llm.generate([prompt], GREEDY, use_tqdm=False)[0].outputs[0].text
    print(f"{name:14} {texts[name]!r}")
print("the same text:", texts["as it was"] == texts["heads swapped"])

# %% [markdown]
# No error, no warning: fluent text from the wrong keys and values. This is why the layout is part of the
# namespace.

# %% [markdown]
# ## 3. A second tier
#
# Six conversations of 8 blocks take turns. The device holds one of them, with room to work. How many tokens are computed again?

# %% tags=["todo"] task="N3" title="Tokens that had to be computed"
def computed_tokens(outputs) -> int:
    """Prompt tokens of these outputs that neither cache nor connector supplied."""
    # BEGIN SOLUTION
    return sum(len(output.prompt_token_ids) - output.num_cached_tokens for output in outputs)
    # END SOLUTION

# %% tags=["check"] task="N3"
class Told:
    def __init__(self, length, cached):
        self.prompt_token_ids, self.num_cached_tokens = [0] * length, cached


check(computed_tokens([Told(10, 8), Told(5, 0)]), 7, "2 of 10 and 5 of 5")

# %%
conversations = [list(range(100 * c, 100 * c + 64)) for c in range(1, 7)]
block = engine().engine.core.executor.call("kv_context", 64)[0].bytes_per_block


def play(connector, rounds=3):
    """Every conversation in turn, some rounds."""
    llm, outputs = engine(connector, num_gpu_blocks=14), []
    for _ in range(rounds):
        for prompt in conversations:
            outputs += llm.generate([prompt], SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    return computed_tokens(outputs)


# %% tags=["predict"] task="P2" title="With a tier that holds all" why="Each of the six conversations is computed once, in the first round: 6 x 64 = 384 tokens. In the two rounds behind it all of them come back from the host."
guess = predict("P2", 384, "6 conversations of 64 tokens, 3 rounds: 1152 prompt tokens. With a host that holds everything, how many are computed?")  # SOLUTION: guess = predict("P2", ..., "6 conversations of 64 tokens, 3 rounds: 1152 prompt tokens. With a host that holds everything, how many are computed?")

# %%
room = {"cpu_bytes_to_use": 80 * block}
results = {
    "no tier": play(None),
    "room for all": play(("OffloadingConnector", room)),
    "30 blocks, LRU": play(("OffloadingConnector", {"cpu_bytes_to_use": 30 * block})),
    "30 blocks, ARC": play(("OffloadingConnector", {"cpu_bytes_to_use": 30 * block, "eviction_policy": "arc"})),
}
for name, count in results.items():
    print(f"{name:14} {count:5} of 1152 tokens computed")
score("P2", results["room for all"])

# %% [markdown]
# A tier with 30 of the 48 blocks that go round always holds the wrong ones: what comes next is what was thrown
# out first. ARC cannot know better, for no prompt comes twice before it is thrown out. The surprise is how
# little a tier helps just below the size that it needs.

# %% [markdown]
# ## 4. Two engines, one store, one bit
#
# The second engine finds what the first has computed. Then you flip one bit of one file.

# %% tags=["predict"] task="P3" title="After one flipped bit" why="Each file has a checksum, and a block counts only if all before it are there: the third file is refused, so two blocks of 8 tokens are taken, 16 tokens, and the rest is computed."
guess = predict("P3", 16, "A prompt of 64 tokens lies in 8 files. A bit of the third is flipped. How many tokens does the next engine take from the store?")  # SOLUTION: guess = predict("P3", ..., "A prompt of 64 tokens lies in 8 files. A bit of the third is flipped. How many tokens does the next engine take from the store?")

# %%
with tempfile.TemporaryDirectory() as folder:
    shared = ("SharedStorageConnector", {"shared_storage_path": folder})
    first = engine(shared).generate([conversations[0]], GREEDY, use_tqdm=False)[0]
    second = engine(shared).generate([conversations[0]], GREEDY, use_tqdm=False)[0]
    one = engine(shared)
    store, hashes = one.engine.core.kv.connector.store, []
    from mini_vllm.request import Request

    named = Request("x", conversations[0])
    named.set_block_hasher(one.engine.core.scheduler.kv_cache_manager.block_hasher)
    path = store.path_of(named.block_hashes[2])
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    third = one.generate([conversations[0]], GREEDY, use_tqdm=False)[0]
for name, output in (("first", first), ("second", second), ("third", third)):
    print(f"{name:7} {output.num_cached_tokens:3} tokens from elsewhere, same text: {output.outputs[0].text == first.outputs[0].text}")
score("P3", third.num_cached_tokens)

# %% [markdown]
# ## 5. A popular prompt, routed three ways
#
# Three workers, 60 requests: half of them begin with the same 128 tokens. A worker computes 40 tokens
# between two arrivals.

# %% tags=["todo"] task="N4" title="Who is done first"
def cost(queued: int, prompt: int, known: int) -> int:
    """Tokens that a worker has to compute before this prompt is done; it has `known` of its tokens."""
    # BEGIN SOLUTION
    return queued + prompt - known
    # END SOLUTION

# %% tags=["check"] task="N4"
check(cost(63, 100, 64), 99, "63 queued, 36 to compute")
check(cost(0, 100, 0), 100, "idle, all to compute")

# %%
def simulate(route) -> tuple[int, int]:
    """Tokens computed in all, and the longest wait in tokens."""
    draw = np.random.default_rng(15)
    queues, has, total, longest = [0, 0, 0], [False] * 3, 0, 0
    for number in range(60):
        popular = bool(draw.integers(2))
        known = [128 if popular and has[w] else 0 for w in range(3)]
        w = route(number, queues, known)
        work = 160 - known[w]
        longest, total = max(longest, queues[w] + work), total + work
        queues[w] += work
        has[w] |= popular
        queues = [max(q - 40, 0) for q in queues]
    return total, longest


routes = {
    "round robin": lambda number, queues, known: number % 3,
    "prefix only": lambda number, queues, known: int(np.argmax(known)),
    "both": lambda number, queues, known: min(range(3), key=lambda w: cost(queues[w], 160, known[w])),
}
for name, route in routes.items():
    total, longest = simulate(route)
    print(f"{name:12} {total:5} tokens computed, longest wait {longest:5} tokens")

# %% [markdown]
# By prefix alone every request ends at the first worker: it has the popular prompt, and a request that shares nothing is sent
# there, too.
# That computes least and waits longest. With the queue counted in, a worker computes the prompt again where waiting for it
# would take longer.
