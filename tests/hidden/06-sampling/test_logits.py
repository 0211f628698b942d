"""From logits to a token: random rows against exact arithmetic, and against the reference.

Probabilities are whole numbers of equal parts, and limits lie half a part beside them, so that no
answer depends on how a sum was rounded.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=40)
few = settings(max_examples=8)
FILTERS = "mini_vllm.sample.logits_processors:"
SAMPLER = "mini_vllm.sample.sampler:"
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def tensor(p: Program, values: Any) -> Any:
    return p.call("torch:tensor", values)


def logits_of(p: Program, weights: list[list[int]]) -> Any:
    """Logits whose softmax is the weights, divided by their sum."""
    return tensor(p, [[math.log(w) if w else -math.inf for w in row] for row in weights])


def kept(rows: list[list[float]]) -> list[list[int]]:
    return [[i for i, logit in enumerate(row) if logit != -math.inf] for row in rows]


def near(yours: Any, expected: Any) -> bool:
    """Equal up to the rounding of float32; infinities equal infinities."""
    if isinstance(expected, list):
        return len(yours) == len(expected) and all(map(near, yours, expected))
    return math.isclose(yours, expected, rel_tol=1e-4, abs_tol=1e-4)


@st.composite
def weight_rows(draw: Any, rows: int = 3) -> list[list[int]]:
    """Weights of `rows` rows over one vocabulary; each row has a token with weight."""
    size = draw(st.integers(2, 12))
    row = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    return [draw(row) for _ in range(rows)]


@many
@given(weights=weight_rows(), temperature=st.lists(st.floats(0, 5), min_size=3, max_size=3))
def test_06_1_temperature_of_every_row(
    subject: Any, weights: list[list[int]], temperature: list[float]
) -> None:
    """Any mix of greedy and random rows."""
    temperature = [t if t > 0.05 else 0.0 for t in temperature]
    p = Program()
    result = p.call(f"{FILTERS}apply_temperature", logits_of(p, weights), tensor(p, temperature))
    p.see(result.tolist())
    expected = [
        [math.log(w) / (t or 1.0) if w else -math.inf for w in row]
        for row, t in zip(weights, temperature, strict=True)
    ]
    assert near(subject.run(p)[0], expected)


@many
@given(weights=weight_rows(), parts=st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_06_1_min_p_of_every_row(subject: Any, weights: list[list[int]], parts: list[int]) -> None:
    """A limit between two weights: those above it stay."""
    limits = [min(part, max(row)) - 0.5 for row, part in zip(weights, parts, strict=True)]
    min_p = [max(limit, 0) / max(row) for row, limit in zip(weights, limits, strict=True)]
    p = Program()
    p.see(p.call(f"{FILTERS}apply_min_p", logits_of(p, weights), tensor(p, min_p)).tolist())
    expected = [
        [i for i, w in enumerate(row) if w and w > limit]
        for row, limit in zip(weights, limits, strict=True)
    ]
    assert kept(subject.run(p)[0]) == expected


@many
@given(weights=weight_rows(), top_k=st.lists(st.integers(0, 15), min_size=3, max_size=3))
def test_06_1_top_k_of_every_row(subject: Any, weights: list[list[int]], top_k: list[int]) -> None:
    """Ties stay, tokens that are out stay out, rows that are off stay whole."""
    p = Program()
    p.see(p.call(f"{FILTERS}apply_top_k", logits_of(p, weights), tensor(p, top_k)).tolist())
    expected = []
    for row, k in zip(weights, top_k, strict=True):
        limit = sorted(row, reverse=True)[k - 1] if 0 < k < len(row) else 0
        expected.append([i for i, w in enumerate(row) if w and w >= limit])
    assert kept(subject.run(p)[0]) == expected


def top_p_set(row: list[int], limit: float) -> list[int]:
    """The smallest set of the heaviest weights that reaches `limit` parts, ties included."""
    total, last = 0, max(row)
    for weight in sorted(row, reverse=True):
        total, last = total + weight, weight
        if total >= limit:
            break
    return [i for i, w in enumerate(row) if w and w >= last]


@many
@given(weights=weight_rows(), parts=st.lists(st.integers(1, 60), min_size=3, max_size=3))
def test_06_2_top_p_of_every_row(subject: Any, weights: list[list[int]], parts: list[int]) -> None:
    """A limit between two sums: the token that crosses it stays."""
    limits = [min(part, sum(row)) - 0.5 for row, part in zip(weights, parts, strict=True)]
    top_p = [limit / sum(row) for row, limit in zip(weights, limits, strict=True)]
    p = Program()
    p.see(p.call(f"{FILTERS}apply_top_p", logits_of(p, weights), tensor(p, top_p)).tolist())
    assert kept(subject.run(p)[0]) == list(map(top_p_set, weights, limits))


@many
@given(weights=weight_rows(2), k=st.integers(1, 12), part=st.integers(1, 60))
def test_06_2_top_k_and_top_p_together(
    subject: Any, weights: list[list[int]], k: int, part: int
) -> None:
    """Row 0 uses both filters, row 1 neither."""
    row = weights[0]
    limit = sorted(row, reverse=True)[min(k, len(row)) - 1]
    left = [w if w >= limit else 0 for w in row]
    cut = min(part, sum(left)) - 0.5
    p = Program()
    top_k, top_p = tensor(p, [k, 0]), tensor(p, [cut / sum(left), 1.0])
    p.see(p.call(f"{FILTERS}apply_top_k_top_p", logits_of(p, weights), top_k, top_p).tolist())
    expected = [top_p_set(left, cut), [i for i, w in enumerate(weights[1]) if w]]
    assert kept(subject.run(p)[0]) == expected


def test_06_2_bug_nano_vllm_196_the_token_on_the_border(subject: Any) -> None:
    """An early top-p dropped the token with which the mass is reached."""
    p = Program()
    p.see(p.call(f"{FILTERS}apply_top_p", logits_of(p, [[6, 4]]), tensor(p, [0.7])).tolist())
    assert kept(subject.run(p)[0]) == [[0, 1]]


def test_06_2_a_large_flat_vocabulary(subject: Any) -> None:
    """Thousands of tokens stay, beside a row of which one stays."""
    p = Program()
    logits = logits_of(p, [[2] * 6000, [10**6] + [1] * 5999])
    result = p.call(f"{FILTERS}apply_top_p", logits, tensor(p, [0.5, 0.5]))
    p.see(p.call("torch:isfinite", result).sum(1).tolist())
    assert subject.run(p) == [[6000, 1]], "equal tokens tie, so all of them stay"


def test_06_2_wide_and_narrow_rows_side_by_side(subject: Any) -> None:
    """Some rows keep 900 of 1,000 tokens, their neighbours one: each needs its own depth."""
    p = Program()
    wide = list(range(2000, 1000, -1))
    narrow = [10**6] + [1] * 999
    logits = logits_of(p, [narrow, wide, narrow, wide])
    limit = (sum(wide[:900]) - wide[899] / 2) / sum(wide)  # in the middle of token 899's stretch
    result = p.call(f"{FILTERS}apply_top_p", logits, tensor(p, [0.5, limit, 0.5, 1.0]))
    p.see(p.call("torch:isfinite", result).sum(1).tolist())
    assert subject.run(p) == [[1, 900, 1, 1000]]


def test_06_2_mass_behind_the_largest_counts(subject: Any) -> None:
    """100 of 400 tokens are enough, so nothing has to be sorted; the others have mass, too."""
    p = Program()
    row = list(range(600, 200, -1))
    limit = (sum(row[:100]) - row[99] / 2) / sum(row)
    p.see(p.call(f"{FILTERS}apply_top_p", logits_of(p, [row]), tensor(p, [limit])).tolist())
    assert len(kept(subject.run(p)[0])[0]) == 100


pairs = st.lists(st.integers(0, 5), max_size=8)


@many
@given(
    logits=st.lists(st.lists(st.integers(-8, 8), min_size=6, max_size=6), min_size=2, max_size=2),
    prompts=st.lists(pairs, min_size=2, max_size=2),
    outputs=st.lists(pairs, min_size=2, max_size=2),
    values=st.lists(
        st.tuples(
            st.sampled_from([0.5, 1.0, 2.0]),
            st.sampled_from([-1.0, 0.0, 0.5]),
            st.sampled_from([-0.5, 0.0, 1.0]),
        ),
        min_size=2,
        max_size=2,
    ),
)
def test_06_3_penalties_token_by_token(
    subject: Any, logits: Any, prompts: Any, outputs: Any, values: Any
) -> None:
    """Every row and token goes through the three steps by hand."""
    entries = [(r, t) for r in range(2) for t in prompts[r] + outputs[r]]
    assume(entries)
    counts = [[float(outputs[r].count(t)) for t in range(6)] for r in range(2)]
    p = Program()
    rows, tokens = (tensor(p, list(column)) for column in zip(*entries, strict=True))
    columns = [tensor(p, list(column)) for column in zip(*values, strict=True)]
    given_logits = tensor(p, [[float(x) for x in row] for row in logits])
    args = (given_logits, rows, tokens, tensor(p, counts), *columns)
    p.see(p.call(f"{FILTERS}apply_penalties", *args).tolist())
    p.see(given_logits.tolist())
    expected = [[float(x) for x in row] for row in logits]
    for r, (repetition, presence, frequency) in enumerate(values):
        for t in set(prompts[r] + outputs[r]):
            x = expected[r][t]
            x = x / repetition if x > 0 else x * repetition
            expected[r][t] = x - frequency * counts[r][t] - presence * (counts[r][t] > 0)
    yours, untouched = subject.run(p)
    assert near(yours, expected)
    assert untouched == logits, "the input was changed"


@many
@given(
    entries=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6
    ),
    lengths=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    more=st.sampled_from([0, 0, 251, 4096, 100_000]),
)
def test_06_3_bans_by_row_token_and_length(
    subject: Any, entries: Any, lengths: list[int], more: int
) -> None:
    """Several entries for a row, for a token, with different lengths, of any size."""
    entries = [(row, token, until + more) for row, token, until in entries]
    lengths = [length + more for length in lengths]
    p = Program()
    rows, tokens, until = (tensor(p, list(column)) for column in zip(*entries, strict=True))
    args = (p.call("torch:zeros", 3, 5), rows, tokens, until, tensor(p, lengths))
    p.see(p.call(f"{FILTERS}apply_min_tokens", *args).tolist())
    banned = {(r, t) for r, t, u in entries if lengths[r] < u}
    expected = [[t for t in range(5) if (r, t) not in banned] for r in range(3)]
    assert kept(subject.run(p)[0]) == expected


def test_06_3_each_stop_token_has_its_own_length(subject: Any) -> None:
    """Row 0 has three tokens: one is banned no more. Row 1 is as long, and bans all of them."""
    entries = [(0, 1, 2), (0, 3, 4), (0, 4, 9), (1, 1, 4), (1, 3, 4), (1, 4, 4)]
    p = Program()
    rows, tokens, until = (tensor(p, list(column)) for column in zip(*entries, strict=True))
    args = (p.call("torch:zeros", 2, 5), rows, tokens, until, tensor(p, [3, 3]))
    p.see(p.call(f"{FILTERS}apply_min_tokens", *args).tolist())
    assert kept(subject.run(p)[0]) == [[0, 1, 2], [0, 2]]


def test_06_3_bias_on_many_pairs(subject: Any) -> None:
    """A value for every second pair of a table; the rest stays."""
    places = [(r, t) for r in range(4) for t in range(9) if (r + t) % 2]
    p = Program()
    rows, tokens = (tensor(p, list(column)) for column in zip(*places, strict=True))
    values = tensor(p, [float(10 * r + t) for r, t in places])
    p.see(p.call(f"{FILTERS}apply_logit_bias", p.call("torch:ones", 4, 9), rows, tokens, values)
          .tolist())  # fmt: skip
    expected = [[1.0 + (10 * r + t if (r + t) % 2 else 0) for t in range(9)] for r in range(4)]
    assert subject.run(p) == [expected]


def test_06_3_a_bias_has_32_bits(subject: Any) -> None:
    """A tenth, a thousandth and more than 65,504: half precision holds none of them."""
    values = [0.1, -0.001, 1e5]
    p = Program()
    args = (
        p.call("torch:zeros", 1, 3),
        tensor(p, [0, 0, 0]),
        tensor(p, [0, 1, 2]),
        tensor(p, values),
    )
    p.see(p.call(f"{FILTERS}apply_logit_bias", *args)[0].tolist())
    p.see(tensor(p, values).tolist())
    mine, right = subject.run(p)
    assert mine == right


def test_06_4_what_is_handed_over_stays(subject: Any) -> None:
    """Logits are read by others after the draw: logprobs, and the mark of rows that have failed."""
    p = Program()
    see_pure(
        p, f"{SAMPLER}sample_from_logits", tensor(p, [[1.0, 2.0, 3.0]] * 2), tensor(p, [0.2, 0.9])
    )
    before, _, after = subject.run(p)
    assert before[0] == after[0], "the logits were changed"


@many
@given(weights=weight_rows(4), data=st.data())
def test_06_4_the_stretch_in_which_the_number_lies(
    subject: Any, weights: list[list[int]], data: st.DataObject
) -> None:
    """Numbers in the middle of a part: exact arithmetic says which token it belongs to."""
    parts = [data.draw(st.integers(0, sum(row) - 1)) for row in weights]
    uniform = [(part + 0.5) / sum(row) for row, part in zip(weights, parts, strict=True)]
    p = Program()
    args = (logits_of(p, weights), tensor(p, uniform))
    p.see(p.call(f"{SAMPLER}sample_from_logits", *args).tolist())
    expected = []
    for row, part in zip(weights, parts, strict=True):
        token = 0
        while part >= row[token]:
            part, token = part - row[token], token + 1
        expected.append(token)
    assert subject.run(p) == [expected]


@many
@given(weights=weight_rows(2), height=st.sampled_from([-500.0, 100.0, 1000.0]))
def test_06_4_only_differences_of_logits_count(
    subject: Any, weights: list[list[int]], height: float
) -> None:
    """A constant on a row changes no probability, however high or low it lifts the logits."""
    parts = [sum(row) // 2 for row in weights]
    uniform = [(part + 0.5) / sum(row) for row, part in zip(weights, parts, strict=True)]
    p = Program()
    for lift in (0.0, height):
        args = (p.call("torch:add", logits_of(p, weights), lift), tensor(p, uniform))
        p.see(p.call(f"{SAMPLER}sample_from_logits", *args).tolist())
    plain, lifted = subject.run(p)
    assert lifted == plain, f"all logits of a row are {height} higher"


def splitmix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


@many
@given(
    rows=st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 100_000)),
        min_size=1,
        max_size=5,
    )
)
def test_06_4_the_number_of_any_seed_and_index(subject: Any, rows: list[tuple[int, int]]) -> None:
    """The formula, done with Python's integers."""
    p = Program()
    seeds, indices = (tensor(p, list(column)) for column in zip(*rows, strict=True))
    p.see(p.call(f"{SAMPLER}uniform_numbers", seeds, indices).tolist())
    expected = []
    for seed, index in rows:
        place = splitmix((seed + GOLDEN) & MASK) + index * GOLDEN & MASK
        expected.append((splitmix(place) >> 40) / 2**24)
    assert subject.run(p) == [expected]


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"temperature": 0.4},
    {"temperature": 0.5, "top_k": 7, "top_p": 0.9}, {"temperature": 2.0, "min_p": 0.05},
    {"repetition_penalty": 1.5}, {"logit_bias": {4: 3.0}}, {"allowed_token_ids": [1, 2, 3]},
    {"min_tokens": 9, "stop_token_ids": [0]}, {"presence_penalty": 1.0, "frequency_penalty": -0.5},
]  # fmt: skip


def row(p: Program, params: dict[str, Any], prompt: list[int], output: list[int]) -> Any:
    sampling = p.new("mini_vllm.sampling_params:SamplingParams", **params)
    return p.new("mini_vllm.sample.metadata:SamplingRow", sampling, prompt, output, [0])


def sample(p: Program, logits: Any, rows: list[Any], vocab: int) -> Any:
    metadata = p.call("mini_vllm.sample.metadata:make_sampling_metadata", rows, vocab)
    return p.new(f"{SAMPLER}Sampler").forward(logits, metadata)


def noise(p: Program, seed: int, rows: int, vocab: int) -> Any:
    generator = p.new("torch:Generator").manual_seed(seed)
    return p.call("torch:randn", rows, vocab, generator=generator)


@many
@given(seed=st.integers(0, 10**6), data=st.data())
def test_06_5_batches_of_all_kinds(
    subject: Any, reference: Any, seed: int, data: st.DataObject
) -> None:
    """The tokens of the reference, and each row's token is what it gets alone."""
    specs = [
        (
            data.draw(st.sampled_from(KINDS)) | {"seed": data.draw(st.integers(0, 9))},
            data.draw(st.lists(st.integers(0, 79), max_size=4)),
            data.draw(st.lists(st.integers(0, 79), max_size=11)),
        )
        for _ in range(4)
    ]
    p = Program()
    logits = noise(p, seed, 4, 80)
    p.see(sample(p, logits, [row(p, *s) for s in specs], 80).sampled_token_ids.tolist())
    for index, spec in enumerate(specs):
        one = p.call("torch:stack", [logits[index]])
        p.see(sample(p, one, [row(p, *spec)], 80).sampled_token_ids.tolist())
    together, *alone = subject.run(p)
    assert together == [tokens[0] for tokens in alone]
    assert together == reference.run(p)[0]


def test_06_5_low_temperatures_beside_a_greedy_row(subject: Any, reference: Any) -> None:
    """Only 0 is greedy. At 0.3, 0.6 and 0.9 a row is drawn, whatever rows stand beside it."""
    p = Program()
    logits = noise(p, 4, 31, 30)
    rows = [row(p, {"temperature": 0.0}, [], [])]
    rows += [row(p, {"temperature": 0.3 * (s % 3 + 1), "seed": s}, [], []) for s in range(30)]
    p.see(sample(p, logits, rows, 30).sampled_token_ids.tolist())
    p.see(logits.argmax(1).tolist())
    mine, greedy = subject.run(p)
    assert mine == reference.run(p)[0]
    assert mine[0] == greedy[0] and sum(a != b for a, b in zip(mine, greedy, strict=True)) > 10


def test_06_5_bug_vllm_51226_a_neighbour_without_a_seed(subject: Any) -> None:
    """A seeded request was drawn from the common generator when another one had no seed."""
    p = Program()
    logits = noise(p, 3, 2, 60)
    for _ in range(6):
        rows = [row(p, {"seed": 42}, [], []), row(p, {}, [], [])]
        p.see(sample(p, logits, rows, 60).sampled_token_ids.tolist())
    first, second = zip(*subject.run(p), strict=True)
    assert len(set(first)) == 1, "the seeded row changed"
    assert len(set(second)) > 1, "the row without a seed did not"


def test_06_5_bug_vllm_5607_the_order_of_the_rows(subject: Any) -> None:
    """A penalty worked or not, depending on whether its row came before or after a plain one."""
    p = Program()
    logits = tensor(p, [[1.0, 3.0, 2.0]] * 2)
    punished = ({"temperature": 0.0, "repetition_penalty": 9.0}, [], [1])
    plain = ({"temperature": 0.0}, [], [1])
    for order in ((punished, plain), (plain, punished)):
        rows = [row(p, *spec) for spec in order]
        p.see(sample(p, logits, rows, 3).sampled_token_ids.tolist())
    assert subject.run(p) == [[2, 1], [1, 2]]


def test_06_5_bug_nano_vllm_249_greedy_is_there(subject: Any) -> None:
    """Greedy sampling was removed; then no run repeats without care for the generator."""
    p = Program()
    logits = noise(p, 1, 64, 4096)
    rows = [row(p, {"temperature": 0.0}, [], [])] * 64
    p.see(sample(p, logits, rows, 4096).sampled_token_ids.tolist())
    p.see(logits.argmax(1).tolist())
    yours, right = subject.run(p)
    assert yours == right


def test_06_5_the_distribution_of_long_runs(subject: Any) -> None:
    """Counts of 4,000 draws under all filters, against fractions."""
    weights, count = [9, 8, 5, 4, 3, 1], 4_000
    p = Program()
    logits = logits_of(p, [weights]).expand(count, -1)
    params = {"seed": 11, "top_k": 5, "top_p": 25.5 / 28, "min_p": 3.5 / 9}
    rows = [row(p, params, [], [])] * count
    metadata = p.call("mini_vllm.sample.metadata:make_sampling_metadata", rows, 6)
    p.set(metadata, "num_output_tokens", p.call("torch:arange", count))
    tokens = p.new(f"{SAMPLER}Sampler").forward(logits, metadata).sampled_token_ids
    p.see(p.call("torch:bincount", tokens, minlength=6).tolist())
    counts = subject.run(p)[0]
    assert counts[4:] == [0, 0]
    left = [Fraction(w, 26) * count for w in weights[:4]]
    statistic = sum(float((c - e) ** 2 / e) for c, e in zip(counts, left, strict=False))
    assert statistic < 25, f"chi-square {statistic:.1f} with 3 degrees of freedom: {counts}"


@many
@given(seed=st.integers(0, 10**6), k=st.integers(0, 12))
def test_06_6_logprobs_against_the_reference(
    subject: Any, reference: Any, seed: int, k: int
) -> None:
    """Ids, values and ranks of sampled and of prompt tokens, ties among them."""
    p = Program()
    logits = noise(p, seed, 3, 9)
    logits = logits.mul(2).round() if seed % 2 else logits
    tokens = tensor(p, [seed % 9, 0, 8])
    gathered = p.call(
        f"{SAMPLER}gather_logprobs", p.call(f"{SAMPLER}compute_logprobs", logits), k, tokens
    )
    prompt = p.call(f"{SAMPLER}compute_prompt_logprobs", logits.bfloat16(), tokens, k)
    for result in (gathered, prompt):
        p.see(result.token_ids[0][0].item())
        p.see(result.ranks.tolist())
        p.see(result.logprobs.tolist())
    mine, right = subject.run(p), reference.run(p)
    assert [mine[0], mine[1], mine[3], mine[4]] == [right[0], right[1], right[3], right[4]]
    assert near(mine[2], right[2]) and near(mine[5], right[5])


def test_06_6_bug_vllm_9453_logprobs_of_the_model(subject: Any, reference: Any) -> None:
    """Logprobs once changed with temperature and penalties."""
    p = Program()
    logits = noise(p, 5, 4, 30)
    for params in (
        {"temperature": 0.0}, {"temperature": 3.0, "seed": 1}, {"top_k": 1, "seed": 1},
        {"temperature": 0.0, "allowed_token_ids": [7]}, {"repetition_penalty": 3.0, "seed": 2},
    ):  # fmt: skip
        rows = [row(p, params | {"logprobs": 5}, [1, 2], [3, 3])] * 4
        output = sample(p, logits, rows, 30)
        p.see([output.sampled_token_ids.tolist(), output.logprobs.ranks.tolist()])
        p.see(output.logprobs.logprobs.tolist())
    for mine, right in zip(subject.run(p), reference.run(p), strict=True):
        assert near(mine, right)


def test_06_6_logits_of_64_bits(subject: Any, reference: Any) -> None:
    """They become float32 as all others do: of what is equal there the first token wins."""
    p = Program()
    logits = p.call("torch:tensor", [[1.0, 1.0 + 2.0**-40, 0.0]], dtype=p.name("torch:float64"))
    greedy = row(p, {"temperature": 0.0, "logprobs": 1}, [], [])
    output = sample(p, logits, [greedy], 3)
    p.see([output.sampled_token_ids.tolist(), output.logprobs.ranks.tolist()])
    mine, right = subject.run(p), reference.run(p)
    assert mine == right == [[[0], [2]]]


def test_06_6_half_precision_logits(subject: Any, reference: Any) -> None:
    """A model in bfloat16 and a large vocabulary: the work is done in float32 all the same."""
    p = Program()
    logits = noise(p, 9, 64, 3000).bfloat16()
    rows = [row(p, {"seed": s, "top_p": 0.95}, [], []) for s in range(64)]
    p.see(sample(p, logits, rows, 3000).sampled_token_ids.tolist())
    assert subject.run(p) == reference.run(p)


@few
@given(bad=st.permutations(range(6)), value=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_06_6_failed_rows_among_sound_ones(
    subject: Any, reference: Any, bad: list[int], value: float
) -> None:
    """Two of six rows fail; the reasons and the others' tokens are those of the reference."""
    p = Program()
    logits = noise(p, 2, 6, 20)
    for index in bad[:2]:
        logits[index].fill_(value)
    params = [{"temperature": 0.0}, {"seed": 1}, {"seed": 2, "top_p": 0.5}, {"seed": 3, "top_k": 2},
              {"seed": 4, "min_p": 0.3}, {"seed": 5, "logprobs": 2}]  # fmt: skip
    output = sample(p, logits, [row(p, x, [], []) for x in params], 20)
    p.see(output.sampled_token_ids.tolist())
    mine, right = subject.run(p), reference.run(p)
    assert sorted(i for i, token in enumerate(right[0]) if token < 0) == sorted(bad[:2])
    assert mine == right


def test_06_6_a_row_whose_last_token_is_banned(subject: Any) -> None:
    """The model's row is sound; only after allowed tokens and ban nothing is left."""
    p = Program()
    closed = {"temperature": 0.0, "allowed_token_ids": [3], "stop_token_ids": [3], "min_tokens": 2}
    rows = [
        row(p, closed, [], []),
        row(p, closed, [], [3, 3]),
        row(p, {"temperature": 0.0}, [], []),
    ]
    output = sample(p, tensor(p, [[0.0, 2.0, 1.0, 0.5]] * 3), rows, 4)
    p.see(output.sampled_token_ids.tolist())
    assert subject.run(p) == [[-2, 3, 1]]


# ------------------------------------------------------------------ borders, and what stays
def lifted(p: Program, weights: list[list[int]], height: float) -> Any:
    return p.call("torch:add", logits_of(p, weights), height)


def see_pure(p: Program, function: str, *args: Any) -> None:
    """All arguments, what comes back, and all arguments once more."""
    handed = [one.tolist() for one in args]
    p.see(handed)
    p.see(p.call(function, *args).tolist())
    p.see([one.tolist() for one in args])


@many
@given(
    weights=weight_rows(),
    temperature=st.lists(
        st.sampled_from([0.0, 1e-4, 0.003, 0.01, 0.02, 1.0, 50.0]), min_size=3, max_size=3
    ),
    height=st.sampled_from([0.0, 100.0, -1000.0]),
)
def test_06_1_temperatures_as_low_as_may_be(
    subject: Any, weights: list[list[int]], temperature: list[float], height: float
) -> None:
    """However near to 0, only 0 itself is greedy. Logits and temperatures stay as they are."""
    p = Program()
    handed = lifted(p, weights, height), tensor(p, temperature)
    see_pure(p, f"{FILTERS}apply_temperature", *handed)
    expected = [
        [(math.log(w) + height) / (t or 1.0) if w else -math.inf for w in row]
        for row, t in zip(weights, temperature, strict=True)
    ]
    before, yours, after = subject.run(p)
    assert near(yours, expected)
    assert before == after


@many
@given(
    weights=weight_rows(),
    parts=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    top_k=st.lists(st.integers(0, 15), min_size=3, max_size=3),
    height=st.sampled_from([0.0, 200.0, -500.0]),
)
def test_06_1_filters_write_to_nothing(
    subject: Any, weights: list[list[int]], parts: list[int], top_k: list[int], height: float
) -> None:
    """Logits of any height, and the limits beside them, are read again: by the other filters, for
    logprobs, and in the next step."""
    p = Program()
    limits = [min(part, max(row)) - 0.5 for row, part in zip(weights, parts, strict=True)]
    min_p = [max(limit, 0) / max(row) for row, limit in zip(weights, limits, strict=True)]
    see_pure(p, f"{FILTERS}apply_min_p", lifted(p, weights, height), tensor(p, min_p))
    see_pure(p, f"{FILTERS}apply_top_k", lifted(p, weights, height), tensor(p, top_k))
    likely = [
        [i for i, w in enumerate(row) if w and w > limit]
        for row, limit in zip(weights, limits, strict=True)
    ]
    largest = []
    for row, k in zip(weights, top_k, strict=True):
        least = sorted(row, reverse=True)[k - 1] if 0 < k < len(row) else 0
        largest.append([i for i, w in enumerate(row) if w and w >= least])
    before, first, after, before_k, second, after_k = subject.run(p)
    assert [kept(first), kept(second)] == [likely, largest]
    assert [before, before_k] == [after, after_k]


@pytest.mark.parametrize("k", [1, 64, 65, 200, 999])
def test_06_1_top_k_of_a_large_vocabulary(subject: Any, k: int) -> None:
    """As many as are wanted, beside a row that wants one and a row that wants all. Logits lie so
    close that half precision takes neighbours for one."""
    p = Program()
    row = [1 + (index * 7 % 1000) * 2**-17 for index in range(1000)]
    p.see(p.call("torch:isfinite", p.call(
        f"{FILTERS}apply_top_k", tensor(p, [row] * 3), tensor(p, [k, 1, 0])
    )).sum(1).tolist())  # fmt: skip
    assert subject.run(p) == [[k, 1, 1000]]


@pytest.mark.parametrize("power", [5, 12, 25])
def test_06_1_min_p_may_be_tiny(subject: Any, power: int) -> None:
    """Tokens that are a million times less likely stay, if the limit is lower still."""
    p = Program()
    logits = tensor(p, [[0.0, -(power - 1.0), -power - 1.0, -100.0]])
    limit = math.exp(-power)
    p.see(p.call(f"{FILTERS}apply_min_p", logits, tensor(p, [limit])).tolist())
    assert kept(subject.run(p)[0]) == [[0, 1]]


@many
@given(
    weights=weight_rows(),
    parts=st.lists(st.integers(1, 60), min_size=3, max_size=3),
    height=st.sampled_from([0.0, 200.0, -500.0]),
)
def test_06_2_filters_write_to_nothing(
    subject: Any, weights: list[list[int]], parts: list[int], height: float
) -> None:
    """Logits of any height and limits, with top-k beside them and without."""
    limits = [min(part, sum(row)) - 0.5 for row, part in zip(weights, parts, strict=True)]
    top_p = [limit / sum(row) for row, limit in zip(weights, limits, strict=True)]
    p = Program()
    logits = lifted(p, weights, height)
    see_pure(p, f"{FILTERS}apply_top_p", logits, tensor(p, top_p))
    see_pure(p, f"{FILTERS}apply_top_k_top_p", logits, tensor(p, [0, 15, 0]), tensor(p, top_p))
    before, first, after, before_both, second, after_both = subject.run(p)
    right = list(map(top_p_set, weights, limits))
    assert [kept(first), kept(second)] == [right, right]
    assert [before, before_both] == [after, after_both]


@pytest.mark.parametrize("k", [99, 101, 4001, 6000])
def test_06_2_as_many_as_are_wanted(subject: Any, k: int) -> None:
    """Thousands of different tokens: top-k keeps k of them, and top-p nearly all of those."""
    p = Program()
    logits = logits_of(p, [list(range(16_000, 10_000, -1))])
    total = sum(range(16_000, 16_000 - k, -1))
    limit = 1 - (16_001 - k) / 2 / total  # in the middle of the last one's stretch
    result = p.call(f"{FILTERS}apply_top_k_top_p", logits, tensor(p, [k]), tensor(p, [limit]))
    p.see(p.call("torch:isfinite", result).sum().item())
    (left,) = subject.run(p)
    assert abs(left - k) <= 1  # a sum of thousands may be a token off


def test_06_2_top_p_counts_what_top_k_has_left(subject: Any) -> None:
    """Of 5, 3 and 2 top-k leaves 5 and 3, and 5 of 8 are more than 0.5625; of 10 they are not."""
    p = Program()
    filters = tensor(p, [2]), tensor(p, [0.5625])
    p.see(p.call(f"{FILTERS}apply_top_k_top_p", logits_of(p, [[5, 3, 2]]), *filters).tolist())
    assert kept(subject.run(p)[0]) == [[0]], "top-p has to come behind top-k"


def test_06_2_sums_are_exact_enough(subject: Any) -> None:
    """The limit lies a hundredth of a token's stretch before its end, and behind it: half precision
    would be a token off."""
    row = list(range(228, 100, -1))
    ends = range(15, 125, 10)
    cuts = [sum(row[:n]) + side * 0.01 * row[n] for n in ends for side in (-1, 1)]
    p = Program()
    top_p = tensor(p, [cut / sum(row) for cut in cuts])
    p.see(p.call(f"{FILTERS}apply_top_p", logits_of(p, [row] * len(cuts)), top_p).tolist())
    left = [len(tokens) for tokens in kept(subject.run(p)[0])]
    assert left == [n + more for n in ends for more in (0, 1)]


def test_06_2_half_of_a_large_vocabulary(subject: Any) -> None:
    """Of 20,000 different tokens some 15,000 are wanted."""
    row = list(range(40_000, 20_000, -1))
    p = Program()
    top_p = tensor(p, [sum(row[:15_000]) / sum(row)])
    result = p.call(f"{FILTERS}apply_top_p", logits_of(p, [row]), top_p)
    p.see(p.call("torch:isfinite", result).sum().item())
    (left,) = subject.run(p)
    assert abs(left - 15_000) <= 50  # a sum of thousands may be some tokens off


def test_06_1_min_p_of_1_keeps_the_largest_alone(subject: Any) -> None:
    """And those that are as large; a token a little less probable than it goes."""
    p = Program()
    logits, one = tensor(p, [[0.0, -0.0005, 0.0, -5e-7]]), tensor(p, [1.0])
    p.see(p.call(f"{FILTERS}apply_min_p", logits, one).tolist())
    assert kept(subject.run(p)[0]) == [[0, 2]]


OFF = {"apply_min_p": [0.0], "apply_top_k": [0, 9, 10], "apply_top_p": [1.0]}


@many
@given(data=st.data())
def test_06_1_off_is_off(subject: Any, data: Any) -> None:
    """In one row alone, or beside rows that use the filter: no logit of a row that does not is
    ruled out, however small it is."""
    name = data.draw(st.sampled_from(["apply_min_p", "apply_top_k"]))
    check_off(subject, name, data)


@many
@given(data=st.data())
def test_06_2_off_is_off(subject: Any, data: Any) -> None:
    """The same for top-p."""
    check_off(subject, "apply_top_p", data)


def check_off(subject: Any, name: str, data: Any) -> None:
    rows = data.draw(st.integers(1, 3))
    off = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    on = 1 if name == "apply_top_k" else 0.5
    options = [data.draw(st.sampled_from(OFF[name])) if none else on for none in off]
    row = [float(n) for n in data.draw(st.permutations([9, 1, 0, -5, -80, -200, -9e9, -2e38, 3]))]
    p = Program()
    p.see(p.call(f"{FILTERS}{name}", tensor(p, [row] * rows), tensor(p, options)).tolist())
    left = [len(tokens) for tokens in kept(subject.run(p)[0])]
    assert left == [9 if none else 1 for none in off]


def test_06_2_rows_without_top_k_beside_rows_with_it(subject: Any) -> None:
    """Rows without top-k stand before or behind the others."""
    p = Program()
    for top_k, top_p in (([0, 1, 2], [1.0, 1.0, 1.0]), ([2, 0, 0], [1.0, 0.7, 0.3])):
        logits, k = logits_of(p, [[5, 3, 2]] * 3), tensor(p, top_k)
        p.see(p.call(f"{FILTERS}apply_top_k_top_p", logits, k, tensor(p, top_p)).tolist())
    first, second = map(kept, subject.run(p))
    assert [first, second] == [[[0, 1, 2], [0], [0, 1]], [[0, 1], [0, 1], [0]]]


@pytest.mark.parametrize(("top_p", "left"), [(0.9995, 1), (0.99994, 2), (0.99998, 3)])
def test_06_2_top_p_near_1(subject: Any, top_p: float, left: int) -> None:
    """Of 5,000 tokens three hold all but ten parts of a million, and nearly all is wanted."""
    row = [999_900, 70, 20, *[1] * 10, *[0] * 4987]
    p = Program()
    for size in (30, 5000):
        logits = logits_of(p, [row[:size]])
        p.see(p.call(f"{FILTERS}apply_top_p", logits, tensor(p, [top_p])).tolist())
    assert [len(tokens) for (tokens,) in map(kept, subject.run(p))] == [left, left]


def test_06_1_top_k_of_thousands(subject: Any) -> None:
    """2,000 of 3,000, beside a row that wants one."""
    p = Program()
    logits = logits_of(p, [list(range(4000, 1000, -1))] * 2)
    result = p.call(f"{FILTERS}apply_top_k", logits, tensor(p, [2000, 1]))
    p.see(p.call("torch:isfinite", result).sum(1).tolist())
    assert subject.run(p) == [[2000, 1]]


def test_06_3_nothing_may_be_allowed(subject: Any) -> None:
    """A row of which every token is ruled out has none left; the sampler says so."""
    p = Program()
    allowed = tensor(p, [[False, False], [True, False]])
    logits = tensor(p, [[1.0, 2.0], [1.0, 2.0]])
    p.see(p.call(f"{FILTERS}apply_allowed_token_ids", logits, allowed).tolist())
    assert kept(subject.run(p)[0]) == [[], [0]]


def test_06_3_what_is_handed_over_stays(subject: Any) -> None:
    """Masks, counts and lengths are those of the next step, too."""
    p = Program()
    logits = tensor(p, [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    rows, tokens, numbers = tensor(p, [0, 1]), tensor(p, [1, 2]), tensor(p, [2.0, 3.0])
    allowed = tensor(p, [[True, False, True], [True, True, False]])
    counts = tensor(p, [[0.0, 5.0, 1.0], [2.0, 0.0, 30.0]])
    steps = {
        "apply_allowed_token_ids": [allowed],
        "apply_min_tokens": [rows, tokens, tensor(p, [3, 4]), tensor(p, [3, 3])],
        "apply_logit_bias": [rows, tokens, numbers],
        "apply_penalties": [rows, tokens, counts, numbers, numbers, numbers],
    }
    for name, args in steps.items():
        see_pure(p, f"{FILTERS}{name}", logits, *args)
    seen = subject.run(p)
    assert len(seen) == 3 * len(steps) and seen[::3] == seen[2::3]


@pytest.mark.parametrize("name", ["apply_min_tokens", "apply_logit_bias", "apply_penalties"])
def test_06_3_no_entries_change_nothing(subject: Any, name: str) -> None:
    """No request has an entry in this batch."""
    p = Program()
    logits = tensor(p, [[1.0, -2.0], [0.0, 4.0]])
    none, values = tensor(p, []).long(), tensor(p, [])
    ones = tensor(p, [2.0, 2.0])
    args = {
        "apply_min_tokens": [none, none, none, tensor(p, [0, 0])],
        "apply_logit_bias": [none, none, values],
        "apply_penalties": [none, none, p.call("torch:zeros", 2, 2), ones, ones, ones],
    }[name]
    p.see(p.call(f"{FILTERS}{name}", logits, *args).tolist())
    assert subject.run(p) == [[[1.0, -2.0], [0.0, 4.0]]]


def test_06_3_large_numbers_and_tokens_that_are_out(subject: Any) -> None:
    """A bias of a thousand, a token that was said a thousand times, and one that is out: it stays
    out."""
    p = Program()
    logits = tensor(p, [[1.0, -math.inf, 3.0, 0.0]])
    rows, tokens = tensor(p, [0, 0, 0, 0]), tensor(p, [0, 1, 2, 3])
    values = tensor(p, [1000.0, 1000.0, -1000.0, 250.0])
    p.see(p.call(f"{FILTERS}apply_logit_bias", logits, rows, tokens, values).tolist())
    counts = tensor(p, [[1000.0, 3.0, 17.0, 0.0]])
    one = tensor(p, [0.5])
    p.see(p.call(f"{FILTERS}apply_penalties", logits, rows, tokens, counts, one, one, one).tolist())
    assert subject.run(p) == [
        [[1001.0, -math.inf, -997.0, 250.0]],
        [[2.0 - 500.5, -math.inf, 6.0 - 9.0, 0.0]],
    ]


@many
@given(
    rows=st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40)), min_size=1, max_size=5
    )
)
def test_06_4_numbers_of_step_after_step(
    subject: Any, reference: Any, rows: list[tuple[int, int]]
) -> None:
    """The same tensors, in which the index moves on: nothing is remembered, written or reset, and
    the process's own random numbers go on as they would have."""
    p = Program()
    seeds, indices = (tensor(p, list(column)) for column in zip(*rows, strict=True))
    p.call("torch:manual_seed", len(rows) + rows[0][1])
    expected: list[Any] = []
    for step in range(3):
        number = p.call(f"{SAMPLER}uniform_numbers", seeds, indices)
        p.see(p.call("builtins:str", number.dtype))
        p.see(number.tolist())
        p.see([seeds.tolist(), indices.tolist()])
        indices.add_(1)
        right = []
        for seed, index in rows:
            place = splitmix((seed + GOLDEN) & MASK) + (index + step) * GOLDEN & MASK
            right.append((splitmix(place) >> 40) / 2**24)
        expected += ["torch.float32", right]
        expected.append([[seed for seed, _ in rows], [index + step for _, index in rows]])
    p.see(p.call("torch:rand", 3).tolist())
    assert subject.run(p) == [*expected, reference.run(p)[-1]]


def test_06_5_a_sampler_keeps_no_state(subject: Any, reference: Any) -> None:
    """The same batch twice gives the same tokens; parameters, lengths and the process's own random
    numbers are what they were."""
    p = Program()
    logits = noise(p, 8, 4, 50)
    specs: list[dict[str, Any]] = [{"seed": 3}, {"temperature": 0.0}, {"seed": 4, "top_k": 9},
                                   {"seed": 5, "top_p": 0.7, "min_p": 0.01}]  # fmt: skip
    for chosen in (specs, specs[:1] * 4, specs[1:2] * 4):
        rows = [row(p, spec, [1], [2, 3]) for spec in chosen]
        metadata = p.call("mini_vllm.sample.metadata:make_sampling_metadata", rows, 50)
        before = p.call("copy:deepcopy", metadata)
        sampler = p.new(f"{SAMPLER}Sampler")
        p.call("torch:manual_seed", len(chosen))
        for _ in range(2):
            tokens = sampler.sample(logits, metadata)
            p.see(p.call("builtins:str", tokens.dtype))
            p.see(tokens.tolist())
        for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "num_output_tokens"):
            first, second = getattr(before, name), getattr(metadata, name)
            p.see([first, second])
        p.see(p.call("torch:rand", 3).tolist())
        p.see(logits.tolist())
    seen, right = subject.run(p), reference.run(p)
    assert len(seen) == 36, seen[-1:]
    for start in (0, 12, 24):
        dtype, first, again, second, *pairs, drawn, given_logits = seen[start : start + 12]
        assert dtype == again == "torch.int64" and first == second
        assert [drawn, given_logits] == right[start + 10 : start + 12]
        for one, other in pairs:
            assert (one is None) == (other is None)
            assert one is None or one.tolist() == other.tolist()


@few
@given(seed=st.integers(0, 10**6), k=st.integers(0, 350), ties=st.booleans())
def test_06_6_every_id_stands_beside_its_own_logprob(
    subject: Any, seed: int, k: int, ties: bool
) -> None:
    """The token of each row, then the k most likely ones, each once and in order; ranks of any
    height; whole numbers of 64 bits. Tokens that are handed over stay."""
    p = Program()
    logits = noise(p, seed, 4, 300)
    logits = logits.mul(3).round() if ties else logits
    logprobs = logits.log_softmax(dim=-1)
    worst, best = logprobs.argmin(dim=-1), logprobs.argmax(dim=-1)
    for tokens in (worst, best, tensor(p, [0, 299, 7, 150])):
        p.see(tokens.tolist())
        for found in (
            p.call(f"{SAMPLER}gather_logprobs", logprobs, k, tokens),
            p.call(f"{SAMPLER}compute_prompt_logprobs", logits, tokens, k),
        ):
            p.see([found.token_ids, found.logprobs, found.ranks])
        p.see(tokens.tolist())
    p.see(logprobs.tolist())
    *seen, table = subject.run(p)
    for start in range(0, 12, 4):
        tokens, gathered, prompt, after = seen[start : start + 4]
        assert tokens == after
        for ids, values, ranks in (gathered, prompt):
            assert [ids.dtype.str, values.dtype.str, ranks.dtype.str] == ["<i8", "<f4", "<i8"]
            assert ids.shape == values.shape == (4, 1 + min(k, 300))
            for index, (right, token) in enumerate(zip(table, tokens, strict=True)):
                assert ids[index][0] == token
                assert near(values[index].tolist(), [right[i] for i in ids[index]])
                assert len(set(ids[index][1:].tolist())) == min(k, 300)
                assert near(values[index][1:].tolist(), sorted(right, reverse=True)[:k])
                assert ranks[index] == sum(x >= right[token] for x in right)


@pytest.mark.parametrize("rows", [0, 1, 513, 1100])
def test_06_6_a_prompt_has_as_many_rows_as_it_has(subject: Any, reference: Any, rows: int) -> None:
    """None for a prompt of one token, and more than a thousand for a long one."""
    p = Program()
    logits, tokens = noise(p, 3, rows, 12), p.call("torch:arange", rows).remainder(12)
    found = p.call(f"{SAMPLER}compute_prompt_logprobs", logits, tokens, 2)
    p.see(found.token_ids.tolist())
    p.see(found.ranks.tolist())
    mine = subject.run(p)
    assert mine == reference.run(p) and len(mine[0]) == rows


def test_06_6_a_second_step_is_like_the_first(subject: Any, reference: Any) -> None:
    """One sampler, steps with logprobs and without in turn: nothing is left of the one before, and
    logits and parameters stay."""
    p = Program()
    sampler, logits = p.new(f"{SAMPLER}Sampler"), noise(p, 6, 2, 20)
    for logprobs in (2, None, 0, None, 3):
        spec = {"seed": 1, "logprobs": logprobs, "logit_bias": {3: 1.0}}
        rows = [row(p, spec, [1], [2])] * 2
        metadata = p.call("mini_vllm.sample.metadata:make_sampling_metadata", rows, 20)
        for _ in range(2):
            output = sampler.forward(logits, metadata)
            p.see(output.sampled_token_ids.tolist())
            p.see(output.logprobs if logprobs is None else output.logprobs.token_ids.tolist())
        p.see(metadata.max_num_logprobs)
    p.see(logits.tolist())
    assert subject.run(p) == reference.run(p)
