# ruff: noqa: E501, F821 (the generated first cell imports check, predict and score)
# %% [markdown]
# # Phase 12: valid JSON, always
#
# You watch states multiply, count how many ways there are to write one text in tokens, measure how much of the model's
# probability a mask leaves, and let the bundled model write records, free and held. Before each experiment you write down a guess.
#
# | word | meaning |
# |---|---|
# | NFA, DFA | a machine in many states at once; a machine in one |
# | mask | which tokens may come next |
# | tokenization | one way to cut a text into tokens |

# %% tags=["setup"]
import json
import os
import warnings

os.environ["TRITON_INTERPRET"] = "0"  # no kernel is judged here: the engine at full speed

import matplotlib.pyplot as plt
import numpy as np

warnings.filterwarnings("ignore", message="IProgress")  # no progress bars needed here
plt.rcParams |= {"figure.figsize": (7.5, 3.4), "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}

from mini_vllm import LLM, SamplingParams
from mini_vllm.structured_output.patterns import parse_regex
from mini_vllm.structured_output.pushdown import Pushdown, compile_rules
from mini_vllm.structured_output.regex_automaton import compile_pattern
from mini_vllm.structured_output.token_index import TokenTable, lift_state, token_bytes

# %% [markdown]
# ## 1. States
#
# `(a|b)*a(a|b){n}`: the letter before the last n is an a. The NFA grows by one state for each n.

# %% tags=["predict"] task="P1" title="States for n = 9" why="The automaton must remember which of the last n + 1 letters were an a, since each may become the letter that counts: one bit each, 2 to the power of 10 states for n = 9."
guess = predict("P1", 500, "The letter before the last 9 is an a: how many states has the smallest DFA?")  # SOLUTION: guess = predict("P1", ..., "The letter before the last 9 is an a: how many states has the smallest DFA?")

# %% tags=["todo"] task="N1" title="How many states has the DFA?"
def dfa_states(n):
    """States of the smallest DFA: it must remember which of the last n + 1 letters were an a."""
    # BEGIN SOLUTION
    return 2 ** (n + 1)
    # END SOLUTION

# %% tags=["check"] task="N1"
check(dfa_states(3), 16, "one bit for each of the last four letters")
check(dfa_states(0), 2, "was the last letter an a?")

# %%
sizes = [len(compile_pattern(parse_regex(f"(a|b)*a(a|b){{{n}}}"))) for n in range(10)]
print(sizes)
score("P1", sizes[9])

# %% [markdown]
# ## 2. One text, many tokenizations
#
# A mask must leave every way open to cut a legal text into tokens. How many are there? Let `ways[i]` be the number of ways to write the first i bytes.

# %% tags=["todo"] task="N2" title="Count the ways to cut a text"
def count_ways(text, vocabulary):
    """How many sequences of tokens of `vocabulary`, a set of bytes, spell `text`."""
    # BEGIN SOLUTION
    ways = [1] + [0] * len(text)
    for end in range(1, len(text) + 1):
        ways[end] = sum(ways[start] for start in range(end) if text[start:end] in vocabulary)
    return ways[-1]
    # END SOLUTION

# %% tags=["check"] task="N2"
check(count_ways(b"ab", {b"a", b"b", b"ab"}), 2, "ab, or a and b")
check(count_ways(b"aaa", {b"a", b"aa"}), 3, "aaa = a a a = aa a = a aa")
check(count_ways(b"ac", {b"a"}), 0, "c cannot be written")

# %%
llm = LLM("storyteller", num_gpu_blocks=256, max_num_seqs=16)
texts = token_bytes(llm.tokenizer, 2048)
vocabulary = {text for text in texts if text}
for text in ('{"name": "Ada"}', '{"name": "Ada", "age": 36}'):
    print(f"{text:30} {count_ways(text.encode(), vocabulary):>12,} ways; the tokenizer takes {len(llm.tokenizer.encode(text))} tokens")

# %% [markdown]
# ## 3. How many tokens does a state let through?

# %% tags=["todo"] task="N3" title="Share of the vocabulary that is allowed"
def share_allowed(after):
    """`after`: the state after each token, -1 where it is not allowed. The share that is allowed."""
    # BEGIN SOLUTION
    return float((np.asarray(after) != -1).mean())
    # END SOLUTION

# %% tags=["check"] task="N3"
check(share_allowed([-1, -1, 7, -1]), 0.25, "one of four")
check(share_allowed([3, -1, -1, 0]), 0.5, "two of four; state 0 is a state")

# %%
table = TokenTable(texts)
walk = Pushdown(compile_rules({"root": parse_regex(r'\{"name": "[^"\\\n]*", "age": [0-9]{1,3}\}')}))
state, shares, answer = walk.start, [], b'{"name": "Ada", "age": 36}'
for byte in answer:
    shares.append(share_allowed(lift_state(walk, table, state)))
    state = walk.next(state, byte)
plt.bar(range(len(shares)), shares)
plt.xticks(range(len(shares)), [chr(byte) for byte in answer])
plt.ylabel("share of the vocabulary")
plt.xlabel("the text, byte by byte: tokens allowed before each")
plt.title("Where the text is forced, hardly a token is left")
plt.show()

# %% [markdown]
# ## 4. Free and held
#
# The bundled model is asked for a record, at rising temperature: free, and with the schema in force.

# %% tags=["todo"] task="N4" title="Is it a record?"
def is_record(text):
    """True if `text` is JSON: an object with a name and a city (strings) and an age (an int), no more."""
    # BEGIN SOLUTION
    try:
        record = json.loads(text)
    except ValueError:
        return False
    wanted = {"name": str, "age": int, "city": str}
    return isinstance(record, dict) and {key: type(value) for key, value in record.items()} == wanted
    # END SOLUTION

# %% tags=["check"] task="N4"
check(is_record('{"name": "Ada", "age": 36, "city": "Oslo"}'), True, "a record")
check(is_record('{"name": "Ada", "age": 36, "city": "Oslo"'), False, "it ends too soon")
check(is_record('{"name": "Ada", "age": true, "city": "Oslo"}'), False, "true is no age")
check(is_record('{"name": "Ada", "age": 36, "city": "Oslo", "pet": "owl"}'), False, "one key too many")
check(is_record('[36, "Ada", "Oslo"]'), False, "JSON, but no object")

# %% tags=["predict"] task="P2" title="Valid when free" why="Nothing holds a free answer. Two things go wrong. The prompt does not name the keys, so most answers are JSON with a fourth key, job: at 0.7 as well, where all 8 are JSON and none is a record. And a temperature of 1.5 makes unlikely tokens come more often: some answers are no JSON at all. The held answers cannot leave the grammar at any temperature."
guess = predict("P2", 4, "Of 8 free answers at temperature 1.5, how many are records?")  # SOLUTION: guess = predict("P2", ..., "Of 8 free answers at temperature 1.5, how many are records?")

# %%
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "city": {"type": "string", "maxLength": 20}}, "required": ["name", "age", "city"], "additionalProperties": False}
ASKED = [{"role": "user", "content": "Write a JSON record for a person named Ada."}]
counts = {}

def is_json(text):
    """Can `json.loads` read it, whatever it says?"""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True

for temperature in (0.7, 1.5):
    for name, constraint in (("free", None), ("held", {"json": SCHEMA})):
        params = [SamplingParams(temperature=temperature, seed=seed, max_tokens=96, structured_outputs=constraint) for seed in range(8)]
        outputs = llm.chat([ASKED] * 8, params, use_tqdm=False)
        ended = [o.outputs[0].text for o in outputs if o.outputs[0].finish_reason == "stop"]
        counts[name, temperature] = sum(map(is_record, ended))
        read = sum(map(is_json, ended))
        print(f"{name} at {temperature}: {len(ended)} of 8 ended, {read} are JSON, {counts[name, temperature]} are records; the first: {outputs[0].outputs[0].text[:60]!r}")
score("P2", counts["free", 1.5])

# %% [markdown]
# The grammar holds the shape, not the sense. At 1.5 each held answer is a record, and the one shown has a city of
# exactly 20 characters, where `maxLength` cut it off.
