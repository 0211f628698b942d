"""What the kernels should have computed, in float64 from the very inputs that they got.

Written from the definitions, in plain torch: no paging tricks, no online softmax, nothing of the
engine. `expected(spec, problem)` gives each judged output by name. Inputs have been rounded to
their dtype; only where the definition itself rounds in between (a residual is stored, a
normalised row takes the dtype of x) does the oracle round too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Problem = Mapping[str, Any]
COMPACT_ABOVE = 2**24
"""An output with more elements is compared only where it had to be written."""


def visible_keys(problem: Problem, request: int, position: int) -> Tensor:
    """Slots of the tokens that a query at `position` sees, in order."""
    block_size = problem["key_cache"].shape[1]
    first = max(position - problem["window"] + 1, 0) if problem["window"] else 0
    positions = torch.arange(first, position + 1)
    blocks = problem["block_table"][request][positions // block_size].long()
    return blocks * block_size + positions % block_size


def meaning(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Heads of bytes `[..., D + 4]`: numbers `[..., D]`, and the float32 scale behind them."""
    numbers, scale = heads.split([heads.shape[-1] - 4, 4], dim=-1)
    bits = scale.clone(memory_format=torch.contiguous_format)  # aligned, wherever it lay
    return numbers.double(), bits.view(torch.float32).double()


def read(cache: Tensor, slots: Tensor) -> Tensor:
    """What lies in some slots of a cache: `[N, Hkv, D]`."""
    found = cache.flatten(0, 1)[slots]
    if found.dtype != torch.int8:
        return found.double()
    numbers, scale = meaning(found)
    return numbers * scale


def attend(problem: Problem, query: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of one token, `query` `[Hq, D]`, over some slots.

    Returns its output `[Hq, D]` and log(sum(exp(scores))) `[Hq]`; without slots 0 and -inf.
    """
    key, value = (read(problem[f"{name}_cache"], slots) for name in ("key", "value"))
    group = query.shape[0] // key.shape[1]
    key, value = (t.repeat_interleave(group, dim=1) for t in (key, value))
    scores = torch.einsum("hd,nhd->hn", query.double(), key) * problem["scale"]
    if not len(slots):
        return torch.zeros_like(query).double(), torch.full(scores.shape[:1], -torch.inf).double()
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), value), scores.logsumexp(-1)


def paged_decode(problem: Problem, mass: bool = False) -> dict[str, Tensor]:
    """Each request's last token sees its whole context, or its window of it.

    With `mass` log(sum(exp(scores))) instead of the average.
    """
    rows = []
    for request, seq_len in enumerate(problem["seq_lens"].tolist()):
        slots = visible_keys(problem, request, seq_len - 1) if seq_len else torch.empty(0).long()
        rows.append(attend(problem, problem["query"][request], slots)[mass])
    return {"output": torch.stack(rows)}


def condition(spec: str, problem: Problem) -> float:
    """How much attention's sum of magnitudes, sum(w |v|), is larger than its sum, sum(w v).

    Rounding errors are relative to the former (`tolerances.long_sum`).
    """
    attention = paged_prefill if spec.endswith("_prefill") else paged_decode
    magnitudes = attention({**problem, "value_cache": problem["value_cache"].abs()})["output"]
    return float(magnitudes.norm() / attention(problem)["output"].norm())


def paged_prefill(problem: Problem) -> dict[str, Tensor]:
    """Each new token sees what lies before it in its request, and itself.

    A big result is given as the rows of these tokens only.
    """
    rows = []
    starts, seq_lens = problem["query_start_loc"].tolist(), problem["seq_lens"].tolist()
    for request, seq_len in enumerate(seq_lens):
        for token in range(starts[request], starts[request + 1]):
            position = seq_len - (starts[request + 1] - token)
            slots = visible_keys(problem, request, position)
            rows.append(attend(problem, problem["query"][token], slots)[0])
    return {"output": torch.stack(rows)}


def combine(partial: Tensor, lse: Tensor) -> Tensor:
    """Averages over parts of a context into one: each weighs as much as its exp(lse)."""
    largest = lse.double().amax(-1, keepdim=True)
    share = (lse.double() - torch.where(largest.isinf(), 0.0, largest)).exp()[..., None]
    total = share.sum(-2)
    return (partial.double() * share).sum(-2) / torch.where(total == 0, 1.0, total)


def reduce_splits(problem: Problem) -> dict[str, Tensor]:
    return {"output": combine(problem["partial"], problem["lse"])}


def split_decode(problem: Problem) -> dict[str, Tensor]:
    """The parts may be cut anywhere, but together they are the output, and have its mass."""
    output = paged_decode(problem)["output"]
    mass = paged_decode(problem, mass=True)["output"]
    return {"joined partial": output, "output": output, "joined lse": mass}


def store_kv(problem: Problem, names: Sequence[str] = ("key", "value")) -> dict[str, Tensor]:
    """Row t goes to slot_mapping[t]; a big cache is given as its new rows only, by slot."""
    tokens = (problem["slot_mapping"] >= 0).nonzero().flatten()
    slots, order = problem["slot_mapping"][tokens].sort()
    result = {}
    for name in names:
        cache, rows = problem[f"{name}_cache"], problem[name][tokens]
        if cache.numel() > COMPACT_ABOVE:
            result[f"{name}_cache"] = rows[order].flatten()
        else:
            result[f"{name}_cache"] = cache.clone()
            result[f"{name}_cache"].flatten(0, 1)[slots] = rows[order]
    return result


def rms_norm(
    problem: Problem, round_sum: bool = True, round_row: bool = True, spread: bool = False
) -> dict[str, Tensor]:
    """x / sqrt(mean(x^2) + eps) * weight; x first joins the residual, which keeps the sum.

    With infinity in it a row is 0, and NaN where that was; with `spread` it is NaN.
    """
    x, result = problem["x"], {}
    dtype = x.dtype
    if problem["residual"] is not None:
        x = result["residual"] = x.double() + problem["residual"].double()
        x = x.to(dtype) if round_sum else x
    mean_square = x.double().square().mean(-1, keepdim=True)
    if spread:
        mean_square = torch.where(mean_square.isinf(), torch.nan, mean_square)
    normalised = x.double() / (mean_square + problem["eps"]).sqrt()
    normalised = normalised.to(dtype) if round_row else normalised
    return result | {"output": normalised.double() * problem["weight"].double()}


def rope(problem: Problem) -> dict[str, Tensor]:
    """The pair (a, b) of both halves of a head becomes (a cos - b sin, b cos + a sin)."""
    half = problem["x"].shape[-1] // 2
    a, b = problem["x"].double().split(half, dim=-1)
    cos, sin = (problem[name].double()[..., half:] for name in ("cos", "sin"))
    return {"x": torch.cat((a * cos - b * sin, b * cos + a * sin), -1)}


def silu_mul(problem: Problem) -> dict[str, Tensor]:
    gate, up = problem["gate_up"].double().chunk(2, dim=-1)
    return {"output": gate * gate.sigmoid() * up}


def qk_norm_rope_store(problem: Problem) -> dict[str, Tensor]:
    """Queries and keys normalised if there is a weight, then turned in their first features; keys
    and values in their slots. What the norm gives is rounded, its weighted row too.

    A big cache is given as its new rows only, by slot.
    """
    x, turning, kv_heads = problem["qkv"], problem["cos"].shape[-1], problem["key_cache"].shape[2]
    num_heads = x.shape[1] - 2 * kv_heads
    rows, value = x.split([num_heads + kv_heads, kv_heads], dim=1)
    if problem["query_weight"] is not None:
        is_query = torch.arange(num_heads + kv_heads)[:, None] < num_heads
        weight = torch.where(is_query, problem["query_weight"], problem["key_weight"])
        mean_square = rows.double().square().mean(-1, keepdim=True)
        rows = (rows.double() / (mean_square + problem["eps"]).sqrt()).to(x.dtype)
        rows = (rows.double() * weight.double()).to(x.dtype)
    turned = rope({**problem, "x": rows[..., :turning]})["x"]
    turned = torch.cat((turned, rows[..., turning:].double()), -1)
    query, key = turned.split([num_heads, kv_heads], dim=1)
    result = {"qkv": torch.cat((query, x[:, num_heads:].double()), 1)}
    for name, new in (("key", key), ("value", value)):
        cache = problem[f"{name}_cache"]
        if name == "value" or cache.dtype != x.dtype:
            new = new.to(x.dtype).to(cache.dtype)
        if cache.numel() <= COMPACT_ABOVE:
            cache = cache.to(new.dtype)
        result |= store_kv({**problem, name: new, f"{name}_cache": cache}, (name,))
    return result


def decode_inputs(problem: Problem) -> dict[str, Tensor]:
    """The step's rows, each in the first row and column of its static tensor; rows from there to
    the bucket have slot -1 and length 0, and everything else is as it was."""
    num_reqs, width = problem["block_table"].shape
    result = {}
    for name in ("input_ids", "positions", "slot_mapping", "seq_lens", "block_table"):
        result[f"static_{name}"] = static = problem[f"static_{name}"].clone()
        if problem[name] is not None:
            part = static[:num_reqs, :width] if name == "block_table" else static[:num_reqs]
            part.copy_(problem[name])
    result["static_slot_mapping"][num_reqs : problem["bucket"]] = -1
    result["static_seq_lens"][num_reqs : problem["bucket"]] = 0
    return result


def apply_token_bitmask(problem: Problem) -> dict[str, Tensor]:
    """-inf where token t's bit, t % 32 of word t // 32, is 0 or missing; all else as it was.

    A big result is given as the forbidden logits only.
    """
    logits, bitmask = problem["logits"].clone(), problem["bitmask"]
    bits = (bitmask[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1
    missing = max(logits.shape[1] - bits[0].numel(), 0)
    allowed = torch.nn.functional.pad(bits.flatten(1).bool(), (0, missing))
    written = torch.zeros(logits.shape, dtype=torch.bool)
    written[problem["indices"].long()] = ~allowed[:, : logits.shape[1]]
    logits[written] = -torch.inf
    return {"logits": logits[written] if logits.numel() > COMPACT_ABOVE else logits}


def to_int8(x: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """The largest magnitude of a row becomes 127; halves go to the even neighbour."""
    scale = (x.double().abs().amax(-1, keepdim=True) / 127).clamp(min=least)
    return (x.double() / scale).round(), scale


def per_token_quant_int8(problem: Problem) -> dict[str, Tensor]:
    output, scale = to_int8(problem["x"], problem.get("least", 1e-10 / 127))
    return {"output": output, "scale": scale}


def w8a8_gemm(problem: Problem) -> dict[str, Tensor]:
    total = problem["x"].double() @ problem["weight"].double().T
    return {"output": total * problem["x_scale"].double() * problem["weight_scale"].double().T}


def gemm(problem: Problem) -> dict[str, Tensor]:
    return {"output": problem["x"].double() @ problem["weight"].double().T}


def w4a16_gemm(problem: Problem, round_weight: bool = True) -> dict[str, Tensor]:
    """Column k of a row is nibble k % 8 of word k // 8; its group is k // (K / G)."""
    x, scale = problem["x"], problem["scale"]
    column = torch.arange(x.shape[1])
    number = (problem["words"].long()[:, column // 8] >> (4 * (column % 8))) & 15
    group = column // (x.shape[1] // scale.shape[1])
    weight = (number - problem["zero"].long()[:, group]).double() * scale.double()[:, group]
    if round_weight and x.dtype != torch.float32:  # the weight takes the dtype of x
        weight = weight.to(x.dtype).double()
    return {"output": x.double() @ weight.T}


def store_kv_int8(problem: Problem) -> dict[str, Tensor]:
    """Row t, made finite, goes to slot_mapping[t]: numbers and scales apart. A big cache is given
    as its new rows only, by slot."""
    tokens = (problem["slot_mapping"] >= 0).nonzero().flatten()
    slots, order = problem["slot_mapping"][tokens].sort()
    result: dict[str, Tensor] = {}
    for name in ("key", "value"):
        cache = problem[f"{name}_cache"]
        rows = problem[name][tokens][order].double().nan_to_num(0.0, 1e30, -1e30)
        new = to_int8(rows, problem.get("least", 1e-6))
        if cache.numel() > COMPACT_ABOVE:
            numbers, scales = new
        else:
            numbers, scales = meaning(cache)
            numbers.flatten(0, 1)[slots], scales.flatten(0, 1)[slots] = new
        result |= {f"{name}_cache": numbers, f"{name}_scale": scales}
    return result


def rejection_random_sample(problem: Problem) -> dict[str, Tensor]:
    """Each draft with probability min(1, p / q) up to the first rejection, then one token more."""
    output = torch.full_like(problem["output"], -1)
    start = 0
    for request, end in enumerate(problem["draft_ends"].tolist()):
        said = []
        for draft in range(start, end):
            token = int(problem["draft_token_ids"][draft])
            p = float(problem["target_probs"][draft, token])
            q = (
                1.0
                if problem["draft_probs"] is None
                else float(problem["draft_probs"][draft, token])
            )
            if q <= 0 or float(problem["uniform_probs"][draft]) * q >= p:
                said.append(int(problem["recovered_token_ids"][draft]))
                break
            said.append(token)
        else:
            said.append(int(problem["bonus_token_ids"][request]))
        output[request, : len(said)] = torch.tensor(said)
        start = end
    return {"output": output}


def uniform_number(seed: int, index: int) -> float:
    """Of splitmix64's stream that starts at `seed`, the top 24 bits of number `index`."""

    def mix(x: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ x >> shift) * factor % 2**64
        return x ^ x >> 31

    step = 0x9E3779B97F4A7C15
    start = mix((seed + step) % 2**64)
    return (mix((start + index * step) % 2**64) >> 40) / 2**24


def draw_tokens(problem: Problem) -> dict[str, Tensor]:
    """Of each tile its largest number and the sum of exp((logit - largest) / temperature); of each
    row the first of its largest logits, or the token on which its number falls.

    -1 stands for a row with NaN, or beyond `max_logit`; -2 for a row of -inf alone.
    """
    logits, temperature = problem["logits"].double(), problem["temperature"]
    (count, tiles), tile = problem["largest"].shape, 1024  # the tile is a part of the task
    if temperature is None:
        temperature = torch.zeros(count)
    divisor = torch.where(temperature == 0, 1.0, temperature.double())
    missing = tiles * tile - logits.shape[1]
    tiled = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf).view(count, tiles, -1)
    largest = tiled.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(-1)
    weights = ((tiled - largest[..., None]) / divisor[:, None, None]).exp()
    mass = torch.where(tiled == -torch.inf, 0.0, weights).sum(-1)
    top = logits.amax(-1)
    failure = torch.where(top == -torch.inf, -2, -1)
    token_ids = torch.where(top.abs() <= problem["max_logit"], logits.argmax(-1), failure)
    for row in ((token_ids >= 0) & (temperature != 0)).nonzero().flatten().tolist():
        running = ((logits[row] - top[row]) / divisor[row]).exp().cumsum(0)
        u = uniform_number(int(problem["seeds"][row]), int(problem["num_output_tokens"][row]))
        token_ids[row] = torch.searchsorted(running, u * running[-1], right=True)
    return {"token_ids": token_ids, "largest": largest.float(), "mass": mass}


def adapters(problem: Problem) -> list[tuple[int, int]]:
    """Each row that has an adapter, with its slot."""
    lists = zip(problem["lora_ids"].tolist(), problem["num_tokens"].tolist(), strict=True)
    users, place = [], 0
    for slot, count in lists:
        if slot >= 0:
            users += [(row, slot) for row in problem["order"][place : place + count].tolist()]
        place += count
    return users


def lora_shrink(problem: Problem) -> dict[str, Tensor]:
    """Row t of x becomes A x, with the A of its slot, for each slice; other rows stay.

    A big result is given as the rows with an adapter only.
    """
    found = {
        row: problem["lora_a"][slot].double() @ problem["x"][row].double()
        for row, slot in adapters(problem)
    }
    if problem["hidden"].numel() > COMPACT_ABOVE:
        return {"hidden": torch.stack([found[row] for row in sorted(found)], dim=1).flatten()}
    hidden = problem["hidden"].double().clone()
    for row, values in found.items():
        hidden[:, row] = values
    return {"hidden": hidden}


def lora_expand(problem: Problem, round_h: bool = False) -> dict[str, Tensor]:
    """B h is added to row t of y, slice by slice, with the B of its slot; other rows stay.

    A big result is given as the rows with an adapter only, and of these as the slices to which
    something is added.
    """
    starts, found = problem["slice_starts"].tolist(), {}
    is_big = problem["y"].numel() > COMPACT_ABOVE
    for row, slot in adapters(problem):
        parts = []
        for index, (begin, end) in enumerate(pairwise(starts)):
            h = problem["hidden"][index, row]
            if is_big and not h.any():
                continue
            h = h.to(problem["lora_b"].dtype) if round_h else h
            b, y = problem["lora_b"][slot, :, begin:end], problem["y"][row, begin:end]
            parts.append(y.double() + h.double() @ b.double())
        found[row] = torch.cat(parts)
    if is_big:
        return {"y": torch.cat([found[row] for row in sorted(found)])}
    y = problem["y"].double().clone()
    for row, values in found.items():
        y[row] = values
    return {"y": y}


def grouped_gemm(problem: Problem) -> dict[str, Tensor]:
    """Pair p of expert e is row p // top_k of x times the weight of e.

    Of a big result only the columns of a weight that is not 0 are given.
    """
    weight, num_pairs = problem["weight"], len(problem["output"])
    tile = len(problem["sorted_ids"]) // len(problem["expert_ids"])
    is_big = problem["output"].numel() > COMPACT_ABOVE
    column = weight[0].any(-1).nonzero().flatten() if is_big else slice(None)
    rows: dict[int, Tensor] = {}
    for index, expert in enumerate(problem["expert_ids"].tolist()):
        pairs = problem["sorted_ids"][index * tile : (index + 1) * tile].tolist()
        for pair in (pair for pair in pairs if expert >= 0 and pair < num_pairs):
            x = problem["x"][pair // problem["top_k"]].double()
            rows[pair] = weight[expert, column].double() @ x
    return {"output": torch.stack([rows[pair] for pair in sorted(rows)])}


def gdn_decode(problem: Problem) -> dict[str, Tensor]:
    """The gated delta rule for a token of each request; a new one's state is 0."""
    states, rows = problem["states"].double(), []
    for request, block in enumerate(problem["block_ids"].tolist()):
        q, k, v, g, beta = (problem[name][request].double() for name in
                            ("query", "key", "value", "g", "beta"))  # fmt: skip
        old = torch.zeros_like(states[block]) if problem["is_new"][request] else states[block]
        old = old * g.exp()[:, None, None]
        delta = beta[:, None] * (v - torch.einsum("hk,hkv->hv", k, old))
        states[block] = old + k[..., None] * delta[:, None, :]
        rows.append(torch.einsum("hk,hkv->hv", q, states[block]))
    return {"states": states, "output": torch.stack(rows)}


def mla_decode(problem: Problem) -> dict[str, Tensor]:
    """Each head's average of the front parts of its request's latents. Splits may be cut anywhere,
    but together they are that, and have its mass."""
    latents, size = problem["latents"].flatten(0, 1), problem["output"].shape[3]
    rows, masses = [], []
    for request, length in enumerate(problem["seq_lens"].tolist()):
        position = torch.arange(length)
        block_size = problem["latents"].shape[1]
        blocks = problem["block_table"][request][position // block_size].long()
        found = latents[blocks * block_size + position % block_size].double()
        scores = problem["query"][request].double() @ found.T * problem["scale"]
        masses.append(scores.logsumexp(-1))
        rows.append(scores.softmax(-1) @ found[:, :size])
    return {"joined output": torch.stack(rows), "joined lse": torch.stack(masses)}


ORACLES: dict[str, Callable[..., dict[str, Tensor]]] = {
    "store_kv": store_kv,
    "paged_decode": paged_decode,
    "reduce_splits": reduce_splits,
    "split_decode": split_decode,
    "paged_prefill": paged_prefill,
    "tiled_prefill": paged_prefill,
    "rms_norm": rms_norm,
    "rope": rope,
    "silu_mul": silu_mul,
    "qk_norm_rope_store": qk_norm_rope_store,
    "decode_inputs": decode_inputs,
    "apply_token_bitmask": apply_token_bitmask,
    "per_token_quant_int8": per_token_quant_int8,
    "gemm": gemm,
    "gemv": gemm,
    "w8a8_gemm": w8a8_gemm,
    "w4a16_gemm": w4a16_gemm,
    "store_kv_int8": store_kv_int8,
    "paged_decode_int8": paged_decode,
    "rejection_random_sample": rejection_random_sample,
    "draw_tokens": draw_tokens,
    "lora_shrink": lora_shrink,
    "lora_expand": lora_expand,
    "grouped_gemm": grouped_gemm,
    "gdn_decode": gdn_decode,
    "mla_decode": mla_decode,
}


CHOICES: dict[str, tuple[dict[str, bool], ...]] = {
    "rms_norm": (
        dict(round_sum=True, round_row=False),
        dict(round_sum=False, round_row=True),
        dict(round_sum=False, round_row=False),
        dict(spread=True),
        dict(round_row=False, spread=True),
    ),
    "lora_expand": (dict(round_h=True),),
    "w4a16_gemm": (dict(round_weight=False),),
}
"""Where a right kernel may round in between or not, or spread a NaN: what else it may compute."""


def expected(
    spec: str, problem: Problem, rows: Sequence[int] | None = None, **choice: bool
) -> dict[str, Tensor]:
    """The judged outputs of a problem that no kernel has touched yet, by name.

    With `rows` only these rows of every tensor that has them. `choice` is one of the spec's
    `CHOICES`.
    """
    if rows is None:
        return ORACLES[spec](problem, **choice)
    few = {
        k: v[list(rows)] if isinstance(v, Tensor) and len(v) > max(rows) else v
        for k, v in problem.items()
    }
    return ORACLES[spec](few, **choice)


def judged(
    spec: str, outputs: Mapping[str, Tensor], problem: Problem | None = None
) -> dict[str, Tensor]:
    """What of a run's outputs is held against `expected`.

    The parts of a split decode, and their masses, are judged by what they amount to, not by where
    they are cut.
    A cache of bytes is judged by what they mean: a scale's last bit may be rounded either way. Of
    one that is too big only the written bytes come back; `problem` says how they form heads.
    """
    if spec == "store_kv_int8":
        parts: dict[str, Tensor] = {}
        for name in ("key", "value"):
            found = outputs[f"{name}_cache"]
            if problem is not None and found.dim() == 1:
                found = found.view(-1, *problem[f"{name}_cache"].shape[2:])
            numbers, scales = meaning(found)
            parts |= {f"{name}_cache": numbers, f"{name}_scale": scales}
        return parts
    if spec not in ("split_decode", "mla_decode"):
        return dict(outputs)
    lse = outputs["lse"]
    whole = lse.double().logsumexp(-1)
    if spec == "mla_decode":
        partial = outputs["output"]
        output = partial[:, :, 0] if lse.shape[2] == 1 else combine(partial, lse)
        return {"joined output": output, "joined lse": whole}
    joined = {"joined partial": combine(outputs["partial"], lse), "joined lse": whole}
    return {"output": outputs["output"]} | joined
