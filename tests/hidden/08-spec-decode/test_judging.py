"""Verification: rows beside a loop, and the exact law of two tokens by adding up all cases.

Probabilities are quarters, so p / q is a multiple of 1/12, and 12 midpoints of the random number
add up acceptance exactly. No statistics are needed, and no bias can hide behind chance.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=20)
few = settings(max_examples=4)
REJECTION = "mini_vllm.sample.rejection_sampler:"
METADATA = "mini_vllm.spec_decode.metadata:"
GAP = -1


def tensor(p: Program, values: Any, kind: str = "int64") -> Any:
    return p.call("torch:tensor", values, dtype=p.name(f"torch:{kind}"))


@many
@given(counts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=6))
def test_08_2_rows_are_those_of_a_loop(subject: Any, counts: list[tuple[int, int]]) -> None:
    """Drafts, and other tokens before the newest one, of each request."""
    rows, targets, bonus, ends, end = [], [], [], [], 0
    for drafts, others in counts:
        end += others + drafts + 1
        ends.append(end)
        for row in range(end - drafts - 1, end):
            (bonus if row == end - 1 else targets).append(len(rows))
            rows.append(row)
    p = Program()
    found = p.call(f"{METADATA}calc_spec_decode_metadata", [c[0] for c in counts], ends)
    for name in ("logits_indices", "target_logits_indices", "bonus_logits_indices"):
        p.see(getattr(found, name).tolist())
    assert subject.run(p) == [rows, targets, bonus]


def test_08_2_counts_in_arrays(subject: Any) -> None:
    """The runner counts in int32 arrays. They stay as they are, and come back as a list."""
    p = Program()
    drafts = p.call("numpy:array", [2, 0, 1], dtype="int32")
    ends = p.call("numpy:array", [3, 9, 12], dtype="int32")
    found = p.call(f"{METADATA}calc_spec_decode_metadata", drafts, ends)
    p.see(p.call("builtins:list", found.num_draft_tokens))
    p.see([found.logits_indices.tolist(), drafts.tolist(), ends.tolist()])
    for name in ("logits_indices", "target_logits_indices", "bonus_logits_indices"):
        p.see(p.call("builtins:str", getattr(found, name).dtype))
    counts, arrays, *kinds = subject.run(p)
    assert counts == [2, 0, 1]
    assert arrays == [[0, 1, 2, 8, 10, 11], [2, 0, 1], [3, 9, 12]]
    assert kinds == ["int64"] * 3


def test_08_2_a_large_batch(subject: Any) -> None:
    """Hundreds of drafts, and more tokens than 16 bits count."""
    p = Program()
    ends = [40_000, 40_001, 70_000]
    found = p.call(f"{METADATA}calc_spec_decode_metadata", [300, 0, 130], ends)
    for name in ("logits_indices", "target_logits_indices", "bonus_logits_indices"):
        p.see(getattr(found, name).tolist())
    rows = [*range(39_699, 40_000), 40_000, *range(69_869, 70_000)]
    assert subject.run(p) == [rows, [*range(300), *range(302, 432)], [300, 301, 432]]


def kept(drafts: list[int], says: list[int], bonus: int) -> list[int]:
    for index, (draft, said) in enumerate(zip(drafts, says, strict=True)):
        if draft != said:
            return says[: index + 1]
    return [*says, bonus]


@many
@given(data=st.data())
def test_08_3_the_longest_right_prefix_and_one_token(subject: Any, data: st.DataObject) -> None:
    """Ragged batches of small numbers, so that drafts are often right by chance."""
    size = data.draw(st.integers(1, 6))
    counts = [data.draw(st.integers(0, 5)) for _ in range(size)]
    small = st.integers(0, 1)
    drafts = [[data.draw(small) for _ in range(n)] for n in counts]
    says = [[data.draw(small) for _ in range(n)] for n in counts]
    bonus = [data.draw(small) for _ in range(size)]
    flat = [[t for row in rows for t in row] for rows in (drafts, says)]
    p = Program()
    output = p.call(
        f"{REJECTION}rejection_greedy_sample",
        tensor(p, flat[0]), counts, tensor(p, flat[1]), tensor(p, bonus),
    )  # fmt: skip
    p.see(output.tolist())
    [rows] = subject.run(p)
    width = max(counts) + 1
    for row, *case in zip(rows, drafts, says, bonus, strict=True):
        expected = kept(*case)
        assert row == expected + [GAP] * (width - len(expected))


def test_08_3_what_stands_behind_the_drafts_does_not_matter(subject: Any) -> None:
    """3, 1, 2 and no drafts; what fills their rows looks accepted, and is not."""
    accepted = [[True, True, False], [True, True, True], [False, True, True], [True, True, True]]
    tokens = [[1, 2, 3], [4, 9, 9], [5, 6, 9], [9, 9, 9]]
    p = Program()
    given_tensors = tensor(p, accepted, "bool"), tensor(p, tokens)
    output = p.call(
        f"{REJECTION}keep_until_rejected", *given_tensors, [3, 1, 2, 0], tensor(p, [7, 8, 3, 2])
    )
    p.see(output.tolist())
    p.see([held.tolist() for held in given_tensors])
    expected = [[1, 2, 3, GAP], [4, 8, GAP, GAP], [5, GAP, GAP, GAP], [2, GAP, GAP, GAP]]
    assert subject.run(p) == [expected, [accepted, tokens]]


def test_08_3_hundreds_of_drafts(subject: Any) -> None:
    """All of 300 are right, 140 of them, or none."""
    counts, right = [300, 300, 200], [300, 140, 0]
    drafts = [list(range(count)) for count in counts]
    says = [[n + (n >= stop) for n in row] for row, stop in zip(drafts, right, strict=True)]
    p = Program()
    output = p.call(
        f"{REJECTION}rejection_greedy_sample", tensor(p, [*itertools.chain(*drafts)]), counts,
        tensor(p, [*itertools.chain(*says)]), tensor(p, [7, 8, 9]),
    )  # fmt: skip
    p.see(output.tolist())
    expected = [kept(*case) for case in zip(drafts, says, [7, 8, 9], strict=True)]
    assert subject.run(p) == [[row + [GAP] * (301 - len(row)) for row in expected]]


def test_08_3_tokens_of_a_large_vocabulary(subject: Any) -> None:
    """Tokens that are equal in 8, 16 or 24 bits are other tokens; they come back as int64."""
    drafts = [5, 5 + 2**8, 7, 7 + 2**16, 2**24, 2**24 + 1]
    says = [5, 5, 7, 7, 2**24 + 1, 2**24 + 1]
    p = Program()
    output = p.call(
        f"{REJECTION}rejection_greedy_sample", tensor(p, drafts), [2, 2, 1, 1], tensor(p, says),
        tensor(p, [1, 2, 3, 2**24 + 3]),
    )  # fmt: skip
    p.see(output.tolist())
    p.see(p.call("builtins:str", output.dtype))
    large = 2**24 + 1
    expected = [[5, 5, GAP], [7, 7, GAP], [large, GAP, GAP], [large, large + 2, GAP]]
    assert subject.run(p) == [expected, "torch.int64"]


@st.composite
def quarters(draw: Any, size: int = 3) -> list[float]:
    cuts = [draw(st.integers(0, size - 1)) for _ in range(4)]
    return [cuts.count(token) / 4 for token in range(size)]


@many
@given(data=st.data())
def test_08_4_the_residual_is_what_is_missing(subject: Any, data: st.DataObject) -> None:
    """Random quarters: max(p - q, 0) over its sum; p without the draft if it was chosen."""
    rows = data.draw(st.integers(1, 4))
    p_rows, q_rows = ([data.draw(quarters(4)) for _ in range(rows)] for _ in range(2))
    drafts = [data.draw(st.integers(0, 3)) for _ in range(rows)]
    p = Program()
    target = tensor(p, p_rows, "float32")
    for draft_probs in (tensor(p, q_rows, "float32"), None):
        found = p.call(f"{REJECTION}recovered_probs", tensor(p, drafts), draft_probs, target)
        p.see(found.tolist())
    p.see(target.tolist())
    drawn, chosen, after = subject.run(p)
    one_hot = [[float(token == draft) for token in range(4)] for draft in drafts]
    for got, taken in ((drawn, q_rows), (chosen, one_hot)):
        for row, ps, qs in zip(got, p_rows, taken, strict=True):
            missing = [max(a - b, 0.0) for a, b in zip(ps, qs, strict=True)]
            total = sum(missing) or 1.0
            assert all(abs(x - m / total) < 1e-5 for x, m in zip(row, missing, strict=True))
    assert after == p_rows


def test_08_4_nothing_is_missing_where_both_agree(subject: Any) -> None:
    """p equal to q, and all of p on the draft that was chosen: rows of zeros, no NaN."""
    agree, certain = [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    p = Program()
    rows = tensor(p, agree, "float32")
    p.see(p.call(f"{REJECTION}recovered_probs", tensor(p, [0, 1]), rows, rows).tolist())
    chosen = tensor(p, certain, "float32")
    p.see(p.call(f"{REJECTION}recovered_probs", tensor(p, [0, 0]), None, chosen).tolist())
    assert subject.run(p) == [[[0.0] * 3] * 2, [[0.0] * 3, [0.0, 1.0, 0.0]]]


@many
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-40, -2))
def test_08_4_however_little_is_missing(subject: Any, seed: int, power: int) -> None:
    """p and q differ by very little: it sums to 1 all the same, and q is left as it is."""
    token = seed % 3
    little = 2.0**power
    q_row = [0.25, 0.25, 0.5]
    p_row = list(q_row)
    p_row[token], p_row[token - 1] = p_row[token] + little, p_row[token - 1] - little
    p = Program()
    q = tensor(p, [q_row], "float64")
    found = p.call(f"{REJECTION}recovered_probs", tensor(p, [0]), q, tensor(p, [p_row], "float64"))
    p.see([found.tolist(), q.tolist()])
    [[[row], kept_q]] = subject.run(p)
    assert all(abs(x - (place == token)) < 1e-9 for place, x in enumerate(row)), row
    assert kept_q == [q_row]


@many
@given(power=st.integers(-120, -70))
def test_08_4_hardly_anything_is_missing(subject: Any, power: int) -> None:
    """What only p allows, and p almost never: it sums to 1 all the same."""
    little = 2.0**power
    p = Program()
    rows = [tensor(p, [x], "float32") for x in ([1.0, 0.0, 0.0], [1.0, little, little])]
    p.see(p.call(f"{REJECTION}recovered_probs", tensor(p, [0]), *rows).tolist())
    p.see(p.call(f"{REJECTION}recovered_probs", tensor(p, [0]), None, rows[1]).tolist())
    assert subject.run(p) == [[[0.0, 0.5, 0.5]]] * 2


def test_08_5_at_the_edges_of_the_question(subject: Any) -> None:
    """(q, p, u, accepted?) of one draft each; q None: it was chosen."""
    drawn = [(0.0, 0.5, 0.25, False), (0.0, 0.5, 0.0, False), (0.5, 0.0, 0.0, False),
             (0.5, 0.25, 0.25, True), (0.5, 0.25, 0.5, False), (0.25, 0.5, 0.75, True),
             (2**-30, 2**-31, 0.25, True), (2**-30, 2**-31, 0.75, False),
             (2**-40, 2**-41, 0.25, True), (2**-40, 2**-41, 0.5, False),
             (0.5, 0.5, 1 - 2**-20, True), (0.7, 0.35, 0.4999, True),
             (0.7, 0.35, 0.5001, False)]  # fmt: skip
    chosen = [(None, 0.5, 0.25, True), (None, 0.5, 0.5, False), (None, 0.0, 0.0, False),
              (None, 1.0, 0.75, True), (None, 0.25, 0.5, False), (None, 0.7, 0.6999, True),
              (None, 0.7, 0.7001, False)]  # fmt: skip
    p = Program()
    numbers = []
    for cases in (drawn, chosen):
        size = len(cases)
        numbers.append(tensor(p, [c[2] for c in cases], "float64"))
        q = None if cases is chosen else tensor(p, [[c[0], 1 - c[0]] for c in cases], "float64")
        output = p.call(
            f"{REJECTION}rejection_random_sample", tensor(p, [0] * size), [1] * size, q,
            tensor(p, [[c[1], 1 - c[1]] for c in cases], "float64"), tensor(p, [7] * size),
            tensor(p, [1] * size), numbers[-1],
        )  # fmt: skip
        p.see(output.tolist())
    p.see([held.tolist() for held in numbers])
    expected = [[[0, 7] if c[3] else [1, GAP] for c in cases] for cases in (drawn, chosen)]
    assert subject.run(p) == [*expected, [[c[2] for c in cases] for cases in (drawn, chosen)]]


@few
@given(data=st.data())
def test_08_5_two_tokens_have_exactly_the_targets_law(subject: Any, data: st.DataObject) -> None:
    """All drafts, numbers and replacements of two places, in one ragged batch."""
    size = 3
    midpoints = [(place + 0.5) / 12 for place in range(12)]
    p1, q1 = data.draw(quarters()), data.draw(quarters())
    p2 = [data.draw(quarters()) for _ in range(size)]
    q2 = [data.draw(quarters()) for _ in range(size)]
    pairs = [(a, b) for a in range(size) for b in range(size) if q1[a] * q2[a][b] > 0]
    p = Program()
    for a, b in pairs:
        rows = [tensor(p, x, "float64") for x in ([q1, q2[a]], [p1, p2[a]])]
        p.see(p.call(f"{REJECTION}recovered_probs", tensor(p, [a, b]), *rows).tolist())
    residuals = dict(zip(pairs, subject.run(p), strict=True))
    law = [[0.0] * size for _ in range(size)]
    p = Program()
    weights = []
    for (a, b), residual in residuals.items():
        cases = list(itertools.product(midpoints, midpoints, range(size), range(size)))
        weights.append([
            q1[a] * q2[a][b] / 144 * (residual[0][r1] or (sum(residual[0]) == 0) / size)
            * (residual[1][r2] or (sum(residual[1]) == 0) / size) for _, _, r1, r2 in cases
        ])  # fmt: skip
        count = len(cases)
        output = p.call(
            f"{REJECTION}rejection_random_sample",
            tensor(p, [a, b] * count), [2] * count, tensor(p, [q1, q2[a]] * count, "float64"),
            tensor(p, [p1, p2[a]] * count, "float64"), tensor(p, [0] * count),
            tensor(p, [t for _, _, r1, r2 in cases for t in (r1, r2)]),
            tensor(p, [u for u1, u2, _, _ in cases for u in (u1, u2)], "float64"),
        )  # fmt: skip
        p.see(output.tolist())
    for rows, shares in zip(subject.run(p), weights, strict=True):
        for (first, second, _), share in zip(rows, shares, strict=True):
            for token in range(size):  # a text that ends after a rejection goes on from p2
                chance = p2[first][token] if second == GAP else float(token == second)
                law[first][token] += share * chance
    for a, b in itertools.product(range(size), repeat=2):
        assert abs(law[a][b] - p1[a] * p2[a][b]) < 1e-6, (law, p1, p2, q1, q2)


@many
@given(data=st.data())
def test_08_6_rows_are_requests_with_their_drafts(
    subject: Any, reference: Any, data: st.DataObject
) -> None:
    """Processed logits of every row: as of a request whose output holds the drafts before it."""
    size, vocabulary = data.draw(st.integers(1, 4)), 8
    token = st.integers(0, vocabulary - 1)
    settings_ = [
        {
            "temperature": 0.0,
            "presence_penalty": data.draw(st.sampled_from((0.0, 0.5))),
            "frequency_penalty": data.draw(st.sampled_from((0.0, 0.25))),
            "repetition_penalty": data.draw(st.sampled_from((1.0, 1.5))),
            "min_tokens": data.draw(st.integers(0, 5)),
            "stop_token_ids": [data.draw(token)],
        }
        for _ in range(size)
    ]
    outputs = [data.draw(st.lists(token, max_size=4)) for _ in range(size)]
    drafts = [data.draw(st.lists(token, max_size=4)) for _ in range(size)]

    def rows_of(p: Program, outputs: list[list[int]], numbers: list[int]) -> Any:
        make = "mini_vllm.sampling_params:SamplingParams"
        rows = [(p.new(make, **settings_[n]), [1], output, ())
                for n, output in zip(numbers, outputs, strict=True)]  # fmt: skip
        return p.call("mini_vllm.sample.metadata:make_sampling_metadata", rows, vocabulary)

    def processed(p: Program, metadata: Any, num_rows: int) -> None:
        values = [
            [((7 * row + 3 * t) % 11) / 2 for t in range(vocabulary)] for row in range(num_rows)
        ]
        logits = tensor(p, values, "float32")
        p.see(
            p.call("mini_vllm.sample.sampler:Sampler.apply_processors", logits, metadata).tolist()
        )
        p.see(metadata.num_output_tokens.tolist())

    longer = [
        (n, outputs[n] + drafts[n][:j]) for n in range(size) for j in range(len(drafts[n]) + 1)
    ]
    p = Program()
    flat = tensor(p, [t for row in drafts for t in row])
    base = rows_of(p, outputs, list(range(size)))
    expanded = p.call(f"{METADATA}expand_to_rows", base, [len(d) for d in drafts], flat)
    processed(p, expanded, len(longer))
    processed(p, base, size)
    yours = subject.run(p)
    p = Program()
    processed(p, rows_of(p, [o for _, o in longer], [n for n, _ in longer]), len(longer))
    processed(p, rows_of(p, outputs, list(range(size))), size)
    assert yours == reference.run(p), "of the rows, or of the requests, which are not changed"


def test_08_6_repeated_drafts_and_no_penalties(subject: Any) -> None:
    """Token 3 stands in the output once, and is drafted twice; then no token has a penalty."""
    p = Program()
    for penalty in (0.5, 0.0):
        params = p.new(
            "mini_vllm.sampling_params:SamplingParams", temperature=0.0, frequency_penalty=penalty
        )
        plain = p.new("mini_vllm.sampling_params:SamplingParams", temperature=0.0)
        rows = [(params, [1], [3], ()), (plain, [1], [2, 2], ())]
        base = p.call("mini_vllm.sample.metadata:make_sampling_metadata", rows, 4)
        expanded = p.call(f"{METADATA}expand_to_rows", base, [2, 0], tensor(p, [3, 3]))
        logits = tensor(p, [[0.0] * 4] * 4, "float32")
        sampler = "mini_vllm.sample.sampler:Sampler.apply_processors"
        p.see(p.call(sampler, logits, expanded).tolist())
        p.see(expanded.num_output_tokens.tolist())
    some, counts, none, same_counts = subject.run(p)
    assert some == [[0, 0, 0, -0.5], [0, 0, 0, -1.0], [0, 0, 0, -1.5], [0, 0, 0, 0]]
    assert none == [[0, 0, 0, 0]] * 4
    assert counts == same_counts == [1, 2, 3, 2]


@many
@given(
    counts=st.lists(
        st.tuples(
            st.integers(0, 5) | st.integers(6, 600),
            st.integers(0, 9) | st.integers(100, 100_000),
            st.booleans(),
        ),
        min_size=1,
    )
)
def test_08_7_what_stays(subject: Any, counts: list[tuple[int, int, bool]]) -> None:
    """Drafts, how many of them were accepted, and whether it was a chunk of a prompt."""
    scheduled, drafts, sampled, stays = [], [], [], []
    for number, others, chunk in counts:
        accepted = 0 if chunk else number // 2
        drafts.append(0 if chunk else number)
        scheduled.append(others + 1 + drafts[-1])
        sampled.append(0 if chunk else accepted + 1)
        stays.append(others + 1 + accepted)
    p = Program()
    arrays = [
        p.call("numpy:array", column, dtype="int32") for column in (scheduled, drafts, sampled)
    ]
    p.see(p.call("mini_vllm.spec_decode.proposer:num_valid_tokens", *arrays).tolist())
    p.see([array.tolist() for array in arrays])
    assert subject.run(p) == [stays, [scheduled, drafts, sampled]]


@many
@example(observed=[], k=0, quarters=(1, 3, 4))
@given(
    observed=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8),
    k=st.integers(0, 40),
    quarters=st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 20)),
)
def test_08_11_counters_and_the_bill(
    subject: Any, observed: list[tuple[int, int]], k: int, quarters: tuple[int, int, int]
) -> None:
    """Totals beside sums, and the formula beside its closed form."""
    acceptance, draft_cost, verify_cost = (number / 4 for number in quarters)
    pairs = [(max(a, b), min(a, b)) for a, b in observed]
    metrics = "mini_vllm.spec_decode.metrics:"
    p = Program()
    stats = p.call(f"{metrics}SpecDecodingStats.new", 6)
    for pair in pairs:
        stats.observe_draft(*pair)
    p.see([stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens])
    p.see(stats.num_accepted_tokens_per_pos)
    p.see(stats.mean_acceptance_length)
    p.see(p.call(f"{metrics}expected_tokens_per_step", acceptance, k))
    p.see(p.call(f"{metrics}speedup", acceptance, k, draft_cost, verify_cost))
    totals, places, mean, expected, gain = subject.run(p)
    accepted = sum(b for _, b in pairs)
    assert totals == [len(pairs), sum(a for a, _ in pairs), accepted]
    assert places == [sum(b > place for _, b in pairs) for place in range(6)]
    assert abs(mean - (1 + accepted / len(pairs) if pairs else 1)) < 1e-9
    wanted = (1 - acceptance ** (k + 1)) / (1 - acceptance)
    assert abs(expected - wanted) < 1e-9
    assert abs(gain - wanted / (k * draft_cost + verify_cost)) < 1e-9


def test_08_11_the_expectation_at_its_ends(subject: Any) -> None:
    """Nothing is ever accepted; everything is, where a closed form would divide by zero; and almost
    everything."""
    p = Program()
    almost = 1 - 2.0**-12
    for acceptance in (0.0, 1.0, 1, almost):
        p.see(p.call("mini_vllm.spec_decode.metrics:expected_tokens_per_step", acceptance, 4))
    *found, last = subject.run(p)
    assert found == [1, 5, 5]
    assert abs(last - sum(almost**place for place in range(5))) < 1e-9


def test_08_11_no_draft_one_draft_two(subject: Any) -> None:
    """The mean with nothing observed, after the first and the second draft, and of one all of
    whose tokens were accepted, as many as there may be."""
    stats_of = "mini_vllm.spec_decode.metrics:SpecDecodingStats.new"
    p = Program()
    for observed in ([], [(4, 2)], [(4, 2), (3, 0)], [(4, 4)]):
        stats = p.call(stats_of, 4)
        for pair in observed:
            stats.observe_draft(*pair)
        p.see([stats.mean_acceptance_length, stats.num_drafts, stats.num_draft_tokens])
        p.see(stats.num_accepted_tokens_per_pos)
    none, one, two, full = ([1.0, 0, 0], [3.0, 1, 4], [2.0, 2, 7], [5.0, 1, 4])
    places = [0] * 4, [1, 1, 0, 0], [1, 1, 0, 0], [1] * 4
    pairs = zip((none, one, two, full), places, strict=True)
    assert subject.run(p) == [seen for pair in pairs for seen in pair]
