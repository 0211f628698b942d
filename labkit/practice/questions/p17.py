"""Questions of phase 17: which layers, which experts, which rows, which rank."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from labkit.practice.question import Question


def dense(rng: Random) -> Question:
    layers, front = rng.randint(6, 10), rng.randint(0, 2)
    key, counted = rng.choice((("decoder_sparse_step", 1), ("moe_layer_freq", 0)))
    every = rng.choice((2, 3))

    def engine() -> str:
        from mini_vllm.model.families.layer_kinds import dense_layers

        config = {"num_hidden_layers": layers, "first_k_dense_replace": front, key: every}
        return " ".join(map(str, dense_layers(config)))

    def by_hand() -> str:
        has_experts = range(every - counted, layers, every) if counted else range(0, layers, every)
        rest = sorted(set(range(layers)) - set(has_experts) | set(range(front)))
        return " ".join(map(str, rest))

    return Question(
        f"A mixture has {layers} layers, first_k_dense_replace {front} and {key} {every}. Which layers"
        " have an MLP and no experts?",
        engine,
        by_hand,
        f"{key} counts from {counted}: each {every}-th has experts. The first {front} have none"
        " whatever it says.",
    )


def rows(rng: Random) -> Question:
    size, expert = rng.choice((3, 4, 5)), rng.randint(0, 5)
    projection, interleaved = rng.choice(("gate_proj", "up_proj")), rng.random() < 0.5

    def engine() -> str:
        from mini_vllm.model.moe.expert_names import expert_parts

        parts = expert_parts(
            "model.layers.0.mlp.experts.gate_up_proj", [6, 2 * size, 8], False, interleaved
        )
        part = parts[f"model.layers.0.mlp.experts.{expert}.{projection}.weight"]
        return " ".join(map(str, range(2 * size)[part.rows]))

    def by_hand() -> str:
        second = projection == "up_proj"
        found = [2 * i + second if interleaved else i + second * size for i in range(size)]
        return " ".join(map(str, found))

    form = "gate and up take turns" if interleaved else "gate lies before up"
    return Question(
        f"gate_up_proj [6, {2 * size}, 8] holds the experts of a layer; {form}. Which rows of expert"
        f" {expert}'s matrix are its {projection}?",
        engine,
        by_hand,
        "Halves: the first is gate. Interleaved: gate has the even rows, up the odd ones.",
    )


def _scores(rng: Random) -> tuple[list[int], list[int]]:
    """Scores in hundredths and biases in tenths of eight experts, no two choices or groups equal."""
    while True:
        scores, bias = rng.sample(range(5, 96), 8), [rng.randint(-8, 3) for _ in range(8)]
        choice = [s + 10 * b for s, b in zip(scores, bias, strict=True)]
        groups = [choice[i] + choice[i + 1] for i in range(0, 8, 2)]
        if len({*choice}) == 8 and len({*groups}) == 4:
            return scores, bias


def _route(scores: list[int], bias: list[int]) -> tuple[Any, Any]:
    import torch

    from mini_vllm.model.moe.routers import grouped_topk

    logits = (torch.tensor([scores]) / 100).logit()
    return grouped_topk(logits, 2, True, 4, 2, "sigmoid", 1.0, torch.tensor(bias) / 10)


def _chosen(scores: list[int], bias: list[int]) -> list[int]:
    """The two experts, the better choice first."""
    choice = {expert: scores[expert] + 10 * bias[expert] for expert in range(8)}
    groups = sorted(range(4), key=lambda group: -choice[2 * group] - choice[2 * group + 1])[:2]
    allowed = [expert for group in groups for expert in (2 * group, 2 * group + 1)]
    return sorted(allowed, key=lambda expert: -choice[expert])[:2]


def _told(scores: list[int], bias: list[int]) -> str:
    return (
        f"Sigmoid gave {', '.join(f'{s / 100:.2f}' for s in scores)} for experts 0 to 7; the biases"
        f" are {', '.join(f'{b / 10:.1f}' for b in bias)}. Groups are {{0, 1}}, {{2, 3}}, {{4, 5}},"
        " {6, 7}; a token may use the best two groups, and its k is 2."
    )


def chosen(rng: Random) -> Question:
    scores, bias = _scores(rng)
    return Question(
        f"{_told(scores, bias)} Which experts are chosen, the better choice first? (DeepSeek V3's rule)",
        lambda: " ".join(map(str, _route(scores, bias)[1][0].tolist())),
        lambda: " ".join(map(str, _chosen(scores, bias))),
        "Choices are scores plus biases. A group is as good as the sum of its two best choices, here"
        " of both; of the best two groups' experts, the best two.",
    )


def weighed(rng: Random) -> Question:
    scores, bias = _scores(rng)

    def by_hand() -> float:
        first, second = (scores[expert] for expert in _chosen(scores, bias))
        return 100 * first / (first + second)

    return Question(
        f"{_told(scores, bias)} Weights are divided by their sum. How much does the first of its experts"
        " count, in percent?",
        lambda: 100 * float(_route(scores, bias)[0][0, 0]),
        by_hand,
        f"The experts are {_chosen(scores, bias)}, the better choice first. Their weights are the"
        " scores, without the biases.",
        tolerance=0.02,
    )


def tiles(rng: Random) -> Question:
    block, counts = rng.choice((2, 4)), [rng.randint(0, 7) for _ in range(4)]
    counts[rng.randrange(4)] += 1

    def engine() -> int:
        import torch

        from mini_vllm.kernels.moe_layout import moe_align_block_size

        experts = [expert for expert, count in enumerate(counts) for _ in range(count)]
        _, expert_ids, _ = moe_align_block_size(torch.tensor(experts)[:, None], block, 4)
        return int((expert_ids >= 0).sum())

    return Question(
        f"Four experts have {counts} pairs in a step. With tiles of {block} rows, how many tiles are"
        " not idle?",
        engine,
        lambda: sum(math.ceil(count / block) for count in counts),
        "Each expert's pairs are padded to whole tiles by themselves.",
    )


def copies(rng: Random) -> Question:
    loads, number = rng.sample(range(5, 100), 4), rng.randint(2, 5)
    asked = rng.randrange(4)

    def engine() -> int:
        import numpy as np

        from mini_vllm.distributed.eplb.policy import replicate_experts

        return int(replicate_experts(np.array(loads, dtype=float), 4 + number)[1][asked])

    def by_hand() -> int:
        """The copies are the largest of all quotients load / 1, load / 2, ..."""
        quotients = [(-load / n, expert) for expert, load in enumerate(loads) for n in range(1, 9)]
        return 1 + sum(expert == asked for _, expert in sorted(quotients)[:number])

    return Question(
        f"Four experts have loads {loads}. EPLB hands out {number} copies. How many places has expert"
        f" {asked} then, its own included?",
        engine,
        by_hand,
        "Each copy goes to the expert whose places have the most to do each: its load divided by its"
        " places.",
    )


def packed(rng: Random) -> Question:
    loads = rng.sample(range(5, 90), 6)

    def engine() -> int:
        import numpy as np

        from mini_vllm.distributed.eplb.policy import balanced_packing

        places = balanced_packing(np.array(loads, dtype=float), 2)
        sums = [0, 0]
        for load, place in zip(loads, places.tolist(), strict=True):
            sums[place // 3] += load
        return max(sums)

    def by_hand() -> int:
        packs: tuple[list[int], list[int]] = ([], [])
        for load in sorted(loads, reverse=True):
            first, second = packs
            to_second = len(first) == 3 or (len(second) < 3 and sum(second) < sum(first))
            packs[to_second].append(load)
        return max(map(sum, packs))

    return Question(
        f"Six experts with loads {loads} go to two ranks, three each, by EPLB's rule. What load has the"
        " busier rank?",
        engine,
        by_hand,
        "The heaviest first, each into the rank with less that is not full, the first of equal ones.",
    )


TRIPLES = ((3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25), (20, 21, 29))


def cut(rng: Random) -> Question:
    (a, b, length), tail = rng.choice(TRIPLES), [rng.randint(1, 40) for _ in range(2)]
    if rng.random() < 0.5:
        a, b = b, a

    def engine() -> float:
        import torch

        from mini_vllm.pooling.seqwise import embedding

        return float(embedding(torch.tensor([[float(a), b, *tail]]), 2, True)[0, 0])

    return Question(
        f"A pooled state is ({a}, {b}, {tail[0]}, {tail[1]}). A client asks for 2 dimensions. What is"
        " the first number of the embedding, which has length 1?",
        engine,
        lambda: a / length,
        f"Cut first: ({a}, {b}), of length {length}. Then divide by it.",
        tolerance=0.01,
    )


KINDS = {
    "dense": dense,
    "rows": rows,
    "chosen": chosen,
    "weighed": weighed,
    "tiles": tiles,
    "copies": copies,
    "packed": packed,
    "cut": cut,
}
