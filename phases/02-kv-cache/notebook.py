# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 02: how is KV memory paged, shared, evicted?
#
# You measure what blocks are good for: how much memory they save, how often prompts share them,
# which of them to forget, and what a fast queue is worth. Small functions are yours to write; each
# is checked at once. Before each experiment you write down a guess.
#
# Nothing here needs a model. Whether two prompts share a block depends on their tokens only, so a
# seeded workload gives the same numbers on every machine. Only the last experiment measures time:
# read it as ratios.
#
# | word | meaning |
# |---|---|
# | slot | room for the keys and values of one token |
# | block | `block_size` slots that are given out together |
# | table | the blocks of one request, in the order of its tokens |
# | waste | slots that belong to a request and hold no token |
# | hit rate | prompt tokens found in the cache, divided by prompt tokens looked up |

# %% tags=["setup"]
import random
import statistics
import time
from collections import deque

import matplotlib.pyplot as plt

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # safe for colour-blind eyes
plt.rcParams |= {"figure.figsize": (7.5, 3.6), "axes.grid": True, "grid.alpha": 0.3}

# %% [markdown]
# ## 1. Fragmentation: what does a reservation cost?
#
# A contiguous cache must reserve the largest length that a request *might* reach. A paged cache gives
# out a block when a token needs it, so it wastes at most the rest of the last block.

# %% tags=["todo"] task="N1" title="Blocks of a sequence"
def blocks_needed(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    # BEGIN SOLUTION
    return -(-num_tokens // block_size)
    # END SOLUTION

# %% tags=["check"] task="N1"
check(blocks_needed(17, 16), 2, "the 17th token needs a second block")
check(blocks_needed(16, 16), 1, "16 tokens fill one block; there is no block for a token that is not there")
check(blocks_needed(0, 16), 0, "no token, no block")

# %% tags=["todo"] task="N2" title="Waste of a paged cache"
def paged_waste(lengths: list[int], block_size: int) -> float:
    """Share of the slots given out that hold no token, from 0.0 to 1.0, over all sequences."""
    # BEGIN SOLUTION
    slots = sum(-(-length // block_size) * block_size for length in lengths)
    return 1 - sum(lengths) / slots
    # END SOLUTION

# %% tags=["check"] task="N2"
check_close(paged_waste([16, 16], 16), 0.0, "full blocks waste nothing")
check_close(paged_waste([1, 31], 16), 1 - 32 / 48, "1 + 2 blocks of 16 slots hold 32 tokens")
check_close(paged_waste([5, 7, 9], 1), 0.0, "blocks of one slot have no rest")

# %% [markdown]
# The workload: 400 chats whose lengths follow a log-normal distribution, as real ones roughly do.
# Most are short, a few are very long. The model allows 2,048 tokens.

# %% tags=["predict"] task="P1" title="Waste of a contiguous cache"
guess = predict("P1", 75, "Each chat reserves 2,048 slots. How many percent of them stay empty?")  # SOLUTION: guess = predict("P1", ..., "Each chat reserves 2,048 slots. How many percent of them stay empty?")

# %%
MAX_LEN = 2048


def chat_lengths(number: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [max(2, min(MAX_LEN, round(rng.lognormvariate(5.6, 0.9)))) for _ in range(number)]


lengths = chat_lengths(400, seed=1)
contiguous = 100 * (1 - sum(lengths) / (MAX_LEN * len(lengths)))
sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
waste = [100 * paged_waste(lengths, size) for size in sizes]
half = [100 * (size - 1) / 2 / (statistics.mean(lengths) + (size - 1) / 2) for size in sizes]
print(f"lengths: median {statistics.median(lengths):.0f}, mean {statistics.mean(lengths):.0f}, largest {max(lengths)}")
print(f"contiguous: {contiguous:.1f} % waste")
for size, percent in zip(sizes, waste, strict=True):
    print(f"block size {size:5}: {percent:5.1f} % waste")
score("P1", contiguous)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
left.hist(lengths, bins=40, color=BLUE)
left.set(xlabel="length of a chat (tokens)", ylabel="chats", title="400 chats")
right.plot(sizes, waste, "o-", color=BLUE, label="paged, measured")
right.plot(sizes, half, "--", color=ORANGE, label="paged, half a block each")
right.axhline(contiguous, color=PINK, label="contiguous, 2,048 reserved")
right.axvline(16, color="black", lw=0.8, ls=":")
right.set_xscale("log", base=2)
right.set(xlabel="block size (tokens); dotted: 16", ylabel="slots without a token (%)", title="Waste", ylim=(0, 100))
right.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# Half a block for each sequence explains the blue curve. At 16 tokens the rest is small already; a
# smaller block would save little and make tables longer. At 2,048 a block *is* the reservation.
#
# ## 2. Where does a token live?
#
# A table makes a line of tokens out of scattered blocks. Phase 04 builds a kernel on this sum.

# %% tags=["todo"] task="N3" title="The slot of a token"
def slot_of(table: list[int], token: int, block_size: int) -> int:
    """The slot, counted over the whole pool, that holds token number `token` of a request."""
    # BEGIN SOLUTION
    return table[token // block_size] * block_size + token % block_size
    # END SOLUTION

# %% tags=["check"] task="N3"
check(slot_of([3, 7, 5], 0, 4), 12, "token 0 is the first of block 3: slots 12 to 15")
check(slot_of([3, 7, 5], 4, 4), 28, "token 4 is the first of the table's second block, which is block 7")
check(slot_of([3, 7, 5], 11, 4), 23, "token 11 is the last of block 5: slots 20 to 23")

# %% [markdown]
# ## 3. Sharing, drawn
#
# Three clients begin with the same 8 tokens; blocks hold 4. Then ana leaves, and cleo comes back with
# the end of her talk. Each row is a table. Colours count holders; a grey row is the free queue, with
# the next block to be given away on the left. Blocks in bold letters carry a hash: they can be found.

# %% tags=["todo"] task="N4" title="Blocks that sharing saves"
def blocks_saved(num_requests: int, common_tokens: int, block_size: int) -> int:
    """Blocks saved when so many running requests share a beginning of `common_tokens` tokens,
    each of them longer than that. Only full blocks are shared."""
    # BEGIN SOLUTION
    return (num_requests - 1) * (common_tokens // block_size)
    # END SOLUTION

# %% tags=["check"] task="N4"
check(blocks_saved(3, 8, 4), 4, "2 blocks are held once instead of three times")
check(blocks_saved(3, 7, 4), 2, "the second block is not full: each request fills its own")
check(blocks_saved(1, 8, 4), 0, "one request alone shares nothing")

# %%
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.request import Request


def admit(manager: KVCacheManager, name: str, prompt: list[int]) -> Request:
    """What the scheduler does with a new request, in one step: look up, allocate, count."""
    request = Request(name, prompt, arrival_time=0.0)
    request.set_block_hasher(manager.block_hasher)
    hits, num_hits = manager.get_computed_blocks(request)
    answer = manager.allocate_slots(request, request.num_tokens - num_hits, num_hits, hits)
    assert answer is not None, f"the pool is too small for {name}"
    request.num_computed_tokens = request.num_tokens
    return request


def state(manager: KVCacheManager) -> dict[str, list[int]]:
    """Tables and free queue, as block numbers."""
    tables = {name: manager.get_block_ids(name) for name in manager.req_to_blocks}
    return tables | {"free": [block.block_id for block in manager.block_pool.free_block_queue]}


def draw(axis, manager: KVCacheManager, title: str) -> None:
    """Each table as a row of squares."""
    colours = ["#DDDDDD", BLUE, ORANGE, GREEN]
    rows = state(manager)
    for y, (name, table) in enumerate(rows.items()):
        axis.text(-0.3, -y, name, ha="right", va="center")
        for x, number in enumerate(table):
            block = manager.block_pool.blocks[number]
            axis.add_patch(plt.Rectangle((x, -y - 0.4), 0.9, 0.8, color=colours[min(block.ref_cnt, 3)]))
            weight = "bold" if block.block_hash else "normal"
            axis.text(x + 0.45, -y, str(number), ha="center", va="center", weight=weight)
    axis.set(xlim=(-1.6, 8), ylim=(-4, 0.7), title=title)
    axis.axis("off")


SYSTEM = list(range(8))
manager = KVCacheManager(9, 4, 64, hash_root=b"root")  # 8 usable blocks
figure, axes = plt.subplots(2, 2, figsize=(10, 5))
ana = admit(manager, "ana", [*SYSTEM, 10])
ben = admit(manager, "ben", [*SYSTEM, 20, 21, 22, 23])
draw(axes[0][0], manager, "1. ana and ben share blocks 1 and 2")
print("1.", state(manager))
cleo = admit(manager, "cleo", [*SYSTEM, 30, 31, 32, 33, 34])
draw(axes[0][1], manager, "2. cleo joins them")
print("2.", state(manager))
manager.free(ana)
manager.free(cleo)
draw(axes[1][0], manager, "3. ana and cleo have left")
print("3.", state(manager))
cleo = admit(manager, "cleo", [*SYSTEM, 30, 31, 32, 33, 34, 35])
draw(axes[1][1], manager, "4. cleo's next turn finds her block 5 again")
print("4.", state(manager))
for number, colour in ((1, BLUE), (2, ORANGE), (3, GREEN)):
    figure.text(0.12 + 0.2 * number, 0.02, f"■ {number} holder{'s' * (number > 1)}", color=colour)
figure.text(0.12, 0.02, "■ free", color="#999999")
plt.show()

# %% [markdown]
# In picture 3 the free queue shows two rules. Blocks of one table stand in reverse: the tail goes
# first. And a free block in bold is still worth something: in picture 4 it leaves the middle of the
# queue and is block 5 again, contents and all.
#
# ## 4. Hit rate against block size
#
# A chat service with three system prompts. Each conversation has several turns, and each turn sends
# the whole history again. So much is common: system prompts between conversations, histories within.

# %% tags=["todo"] task="N5" title="Tokens that hit"
def hit_tokens(common_tokens: int, num_tokens: int, block_size: int) -> int:
    """Tokens of a prompt that hit if its first `common_tokens` tokens are all cached.

    Hits are whole blocks, and the last token of the prompt is always computed.
    """
    # BEGIN SOLUTION
    return min(common_tokens, num_tokens - 1) // block_size * block_size
    # END SOLUTION

# %% tags=["check"] task="N5"
check(hit_tokens(100, 130, 16), 96, "6 full blocks of 16 lie within the first 100 tokens")
check(hit_tokens(32, 32, 16), 16, "all is cached, but the last token must be computed, and hits are whole blocks")
check(hit_tokens(33, 33, 16), 32, "the 33rd token is computed; two full blocks hit")

# %% tags=["predict"] task="P2" title="Hit rate at block size 256"
guess = predict("P2", 75, "At block size 16 about 92 % of the prompt tokens hit. How many percent at 256?")  # SOLUTION: guess = predict("P2", ..., "At block size 16 about 92 % of the prompt tokens hit. How many percent at 256?")

# %%
def chat_workload(seed: int, conversations: int = 60) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) of every turn, conversations mixed; each prompt is the history so far."""
    rng = random.Random(seed)
    systems = [[1_000 * (k + 1) + i for i in range(n)] for k, n in enumerate((437, 61, 902))]
    fresh = iter(range(1_000_000, 9_000_000))

    def text(median: float, sigma: float) -> list[int]:
        number = max(1, round(rng.lognormvariate(median, sigma)))
        return [next(fresh) for _ in range(min(number, 400))]

    talks = [list(rng.choices(systems, weights=(5, 3, 2))[0]) for _ in range(conversations)]
    turns = [rng.randint(2, 6) for _ in talks]
    order = [talk for talk, number in enumerate(turns) for _ in range(number)]
    rng.shuffle(order)
    requests = []
    for talk in order:
        prompt = talks[talk] + text(3.4, 0.8)
        answer = text(4.6, 0.7)
        talks[talk] = prompt + answer
        requests.append((prompt, answer))
    return requests


def serve(manager: KVCacheManager, requests: list[tuple[list[int], list[int]]]) -> float:
    """Serve one request after the other; the hit rate in percent."""
    looked_up = found = 0
    for number, (prompt, answer) in enumerate(requests):
        request = Request(f"r{number}", prompt, arrival_time=0.0)
        request.set_block_hasher(manager.block_hasher)
        hits, num_hits = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, len(prompt) - num_hits, num_hits, hits) is not None
        request.num_computed_tokens = len(prompt)
        request.append_output_token_ids(list(answer))
        assert manager.allocate_slots(request, len(answer)) is not None
        manager.free(request)
        looked_up, found = looked_up + len(prompt), found + num_hits
    return 100 * found / looked_up


requests = chat_workload(seed=2)
tokens = sum(len(prompt) + len(answer) for prompt, answer in requests)
print(f"{len(requests)} requests, {tokens:,} tokens with answers")
BLOCK_SIZES = [4, 8, 16, 32, 64, 128, 256, 512]
rates = {}
for size in BLOCK_SIZES:
    roomy = KVCacheManager(400_000 // size, size, 1 << 20, hash_root=b"root")
    rates[size] = serve(roomy, requests)
    print(f"block size {size:4}: {rates[size]:5.1f} % of the prompt tokens hit")
score("P2", rates[256])

# %%
figure, axis = plt.subplots()
axis.plot(list(rates), list(rates.values()), "o-", color=BLUE)
axis.set_xscale("log", base=2)
axis.set(xlabel="block size (tokens)", ylabel="prompt tokens that hit (%)", title="Only full blocks are shared", ylim=(0, 100))
plt.show()

# %% [markdown]
# A hit ends at a block's border, so on average half a block of each common beginning is lost. With large
# blocks a short system prompt (61 tokens here) is never shared at all. Small blocks cost in other
# places: more hashes, longer tables, and kernels that like to read many neighbouring tokens at once.
#
# ## 5. Whom to forget?
#
# Now the pool is too small for everything. Three ways to choose the block that is given away:
# the least recently used one with tables freed tail first (yours, and vLLM's), the same with tables
# freed from their head, and any free block at random.

# %% tags=["todo"] task="N6" title="The free queue after a release"
def queue_after(free: list[int], table: list[int]) -> list[int]:
    """The free queue (next to be given away first) after a request with this table has left, if
    no other request shares its blocks. The table is freed tail first."""
    # BEGIN SOLUTION
    return free + table[::-1]
    # END SOLUTION

# %% tags=["check"] task="N6"
check(queue_after([4, 5], [1, 2, 3]), [4, 5, 3, 2, 1], "block 1, the beginning, is given away last")
check(queue_after([], [7]), [7], "one block")
check(queue_after([9], []), [9], "a request without blocks")

# %% tags=["predict"] task="P3" title="What order is worth"
guess = predict("P3", 2, "Pool of 1,000 blocks: by what factor is LRU's hit rate above that of random eviction?")  # SOLUTION: guess = predict("P3", ..., "Pool of 1,000 blocks: by what factor is LRU's hit rate above that of random eviction?")

# %%
from mini_vllm.core.block_pool import FreeKVCacheBlockQueue, KVCacheBlock


class RandomQueue(FreeKVCacheBlockQueue):
    """Gives away any free block."""

    def __init__(self, blocks: list[KVCacheBlock]) -> None:
        for block in blocks:
            block.prev_free = block.next_free = None  # they leave the queue that they stood in
        super().__init__(blocks)
        self.blocks, self.rng = list(blocks), random.Random(0)

    def popleft(self) -> KVCacheBlock:
        while (block := self.rng.choice(self.blocks)).next_free is None:
            pass  # in use: draw again
        self.remove(block)
        return block


class HeadFirst(KVCacheManager):
    """Frees a table from its beginning."""

    def free(self, request: Request) -> None:
        self.num_cached_blocks.pop(request.request_id, None)
        self.block_pool.free_blocks(self.req_to_blocks.pop(request.request_id, []))


def with_policy(policy: str, blocks: int) -> KVCacheManager:
    kind = HeadFirst if policy == "LRU, head first" else KVCacheManager
    manager = kind(blocks + 1, 16, 1 << 20, hash_root=b"root")
    if policy == "random":
        queue = manager.block_pool.free_block_queue
        blocks_in_order = [queue.popleft() for _ in range(blocks)]
        manager.block_pool.free_block_queue = RandomQueue(blocks_in_order)
    return manager


POOLS = [250, 500, 1000, 1500, 2000, 3000, 4000]
policies = {
    name: [serve(with_policy(name, blocks), requests) for blocks in POOLS]
    for name in ("LRU, tail first", "LRU, head first", "random")
}
print("blocks          " + "".join(f"{blocks:8}" for blocks in POOLS))
for name, percents in policies.items():
    print(f"{name:16}" + "".join(f"{percent:7.1f}%" for percent in percents))
at = POOLS.index(1000)
score("P3", policies["LRU, tail first"][at] / policies["random"][at])

# %%
figure, axis = plt.subplots()
for (name, percents), colour, style in zip(policies.items(), (BLUE, ORANGE, PINK), ("o-", "s--", "^:"), strict=True):
    axis.plot(POOLS, percents, style, color=colour, label=name)
axis.axhline(rates[16], color="black", lw=0.8, ls=":")
axis.text(POOLS[0], rates[16] + 1.5, "everything fits")
axis.set(xlabel="usable blocks of 16 tokens", ylabel="prompt tokens that hit (%)", title="Least recently used against random", ylim=(0, 100))
axis.legend(loc="lower right")
plt.show()

# %% [markdown]
# The chain makes order matter. A hole anywhere in a prefix ends the hit there, and random eviction
# makes holes everywhere: it pays for this even when the pool holds nearly everything. Tail first
# against head first decides only about the one talk that is half forgotten at the moment. So it is
# worth little in this workload (compare the two LRU rows), most in the smallest pool. It costs nothing.
#
# ## 6. What O(1) is worth
#
# Every hit on a free block takes a block out of the middle of the free queue. A `deque` must search.

# %%
def microseconds(queue_of, number: int) -> float:
    """One removal from so many blocks, in the best of five runs: whatever else the machine does only adds."""
    seconds = []
    for _ in range(5):
        blocks = [KVCacheBlock(i) for i in range(number)]
        leaving, remove = random.Random(3).sample(blocks, 200), queue_of(blocks).remove
        start = time.perf_counter()
        for block in leaving:
            remove(block)
        seconds.append(time.perf_counter() - start)
    return min(seconds) / 200 * 1e6


NUMBERS = [500, 2_000, 8_000, 32_000]
linked, searched = [], []
for number in NUMBERS:
    searched.append(microseconds(deque, number))
    linked.append(microseconds(FreeKVCacheBlockQueue, number))
    print(f"{number:6} free blocks: linked list 1, deque {searched[-1] / linked[-1]:6.1f} (times per remove, as a ratio)")

# %%
figure, axis = plt.subplots()
axis.loglog(NUMBERS, searched, "s--", color=ORANGE, label="deque.remove")
axis.loglog(NUMBERS, linked, "o-", color=BLUE, label="FreeKVCacheBlockQueue.remove")
axis.set(xlabel="free blocks", ylabel="one removal (µs)", title="A block that knows its neighbours")
axis.legend()
plt.show()

# %% [markdown]
# The `deque` is written in C and still loses as soon as the queue is long: its cost grows with the
# number of free blocks, the list's does not. A prompt that hits 500 free blocks pays that 500 times.
