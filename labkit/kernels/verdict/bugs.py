"""Mistakes in the kernels of a plain forward pass: KV cache, attention, norm, rope, gate.

The first of each spec runs beside every submission; `tests/labkit/kernels` runs them all.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """One edit of the engine's kernels.

    Attributes:
        spec: whose kernel it breaks.
        about: the mistake, in words.
        old, new: the edit; `old` occurs in the engine's file.
        kind: the finding that names it.
        case: a case that shows it.
    """

    spec: str
    about: str
    old: str
    new: str
    kind: str
    case: str

    def apply(self, source: str) -> str:
        """The engine's source with this mistake.

        Raises:
            ValueError: the engine has changed and no longer holds `old`.
        """
        if self.old not in source:
            raise ValueError(
                f"{self.spec}: the kernels no longer hold {self.old!r}; change the bug"
            )
        return source.replace(self.old, self.new)


LAYER_BUGS = (
    # ------------------------------------------------------------ store_kv
    Bug(
        "store_kv", "a slot of -1 is stored", "if slot >= 0:", "if slot >= -1:",
        "oob", "padding",
    ),
    Bug(
        "store_kv", "the offset is computed in 32 bits", "slot * ROW", "slot.to(tl.int32) * ROW",
        "overflow", "big-cache",
    ),
    Bug(
        "store_kv", "the offset is computed in unsigned 32 bits", "slot * ROW",
        "slot.to(tl.uint32) * ROW", "overflow", "big-cache",
    ),
    Bug(
        "store_kv", "a row's tail is written too",
        "tl.store(value_cache_ptr + slot * ROW + column, value, mask=inside)",
        "tl.store(value_cache_ptr + slot * ROW + column, value)",
        "input_changed", "prime",
    ),
    Bug(
        "store_kv", "values are stored as keys", "value_ptr + token * value_stride",
        "key_ptr + token * key_stride", "values", "block",
    ),
    # ------------------------------------------------------------ paged_decode
    Bug(
        "paged_decode", "one token too many is visible", "visible = position < end",
        "visible = position <= end", "stale_read", "ragged",
    ),
    Bug(
        "paged_decode", "earlier tiles are not rescaled", "acc = acc * rescale[:, None]",
        "acc = acc * 1.0", "values", "tiles",
    ),
    Bug(
        "paged_decode", "each key is read twice",
        "        in_page = visible[:, None] & in_head[None, :]\n",
        "        in_page = visible[:, None] & in_head[None, :]\n"
        "        key = tl.load(key_cache_ptr + offsets, mask=in_page, other=0.0)\n",
        "traffic", "traffic-4",
    ),
    Bug(
        "paged_decode", "the accumulator is float16",
        'acc, input_precision="ieee")\n\n    row_sum_or_1',
        'acc, input_precision="ieee").to(tl.float16).to(tl.float32)\n\n    row_sum_or_1',
        "values", "tiles",
    ),
    Bug(
        "paged_decode", "scores are products of TF32",
        'tl.dot(query, tl.trans(key), input_precision="ieee") * scale\n'
        '        scores = tl.where(visible',
        "tl.dot(query, tl.trans(key)) * scale\n        scores = tl.where(visible",
        "values", "tiles",
    ),
    Bug(
        "paged_decode", "a long window is none", "first = tl.maximum(seq_len - window, 0)",
        "first = tl.maximum(seq_len - tl.where(window < 2048, window, seq_len), 0)",
        "stale_read", "wide-window",
    ),
    Bug(
        "paged_decode", "there are 12 key/value heads at most", "kv_head = tl.program_id(1)",
        "kv_head = tl.minimum(tl.program_id(1), 11)", "coverage", "all-heads",
    ),
    Bug(
        "paged_decode", "the maximum begins at -1000",
        'row_max = tl.full([GROUP_TILE], float("-inf"), tl.float32)',
        "row_max = tl.full([GROUP_TILE], -1000.0, tl.float32)", "values", "deep-logits",
    ),
    Bug(
        "paged_decode", "a small rescaling is spared", "acc = acc * rescale[:, None]",
        "acc = acc * tl.where(rescale > 0.999, 1.0, rescale)[:, None]", "values", "creeping",
    ),
    Bug(
        "paged_decode", "the scale is taken for granted",
        "* scale\n        scores = tl.where(visible",
        "* (HEAD_DIM**-0.5)\n        scores = tl.where(visible",
        "values", "other-scale",
    ),
    Bug(
        "paged_decode", "a block has a power of two of tokens",
        "position % BLOCK_SIZE\n        offsets = (slot",
        "(position & (BLOCK_SIZE - 1))\n        offsets = (slot", "values", "many-heads",
    ),
    Bug(
        "paged_decode", "a context has at most 1,024 tokens",
        "end = tl.minimum(begin + stretch, seq_len)",
        "end = tl.minimum(begin + stretch, tl.minimum(seq_len, begin + 1024))", "values", "long",
    ),
    Bug(
        "paged_decode", "the accumulator is rounded at each tile",
        'acc, input_precision="ieee")\n\n    row_sum_or_1',
        'acc, input_precision="ieee").to(query.dtype).to(tl.float32)\n\n    row_sum_or_1',
        "values", "steady",
    ),
    Bug(
        "paged_decode", "the query is rounded after it was scaled",
        'tl.dot(query, tl.trans(key), input_precision="ieee") * scale\n'
        "        scores = tl.where(visible",
        'tl.dot((query * scale).to(query.dtype), tl.trans(key), input_precision="ieee")\n'
        "        scores = tl.where(visible",
        "values", "leaning",
    ),
    Bug(
        "paged_decode", "the order of the requests is not read",
        "tl.load(order_ptr + place // num_kv_heads)",
        "tl.load(order_ptr + place // num_kv_heads) * 0", "coverage", "order",
    ),
    Bug(
        "paged_decode", "a request has the length of the place in which it starts",
        "tl.load(seq_lens_ptr + request)", "tl.load(seq_lens_ptr + tl.program_id(0))",
        "values", "order",
    ),
    Bug(
        "paged_decode", "with an order the head is still that of the grid",
        "        kv_head = place % num_kv_heads\n", "", "coverage", "order",
    ),
    Bug(
        "paged_decode", "the number of a request of the order has 32 bits",
        "tl.load(order_ptr + place // num_kv_heads)",
        "tl.load(order_ptr + place // num_kv_heads).to(tl.int32)", "overflow", "order-far",
    ),
    # ------------------------------------------------------------ reduce_splits
    Bug(
        "reduce_splits", "splits are averaged as equals", "partial * share[:, None], axis=0) / tl",
        "partial, axis=0) / tl", "values", "two",
    ),
    Bug(
        "reduce_splits", "a padding split counts", "other=float(\"-inf\"))", "other=0.0)",
        "values", "odd",
    ),
    # ------------------------------------------------------------ split_decode
    Bug(
        "split_decode", "an empty split leaves its mass unwritten",
        "tl.store(lse_ptr + rows, row_max + tl.log(row_sum_or_1), mask=group < GROUP)",
        "tl.store(lse_ptr + rows, row_max + tl.log(row_sum_or_1),"
        " mask=(group < GROUP) & (row_sum > 0.0))",
        "coverage", "empty",
    ),
    Bug(
        "split_decode", "a sum is kept away from zero before its logarithm",
        "tl.log(row_sum_or_1)", "tl.log(row_sum_or_1 + 1e-4)", "values", "uneven",
    ),
    # ------------------------------------------------------------ paged_prefill
    Bug(
        "paged_prefill", "a token sees the one behind it", "(distance >= 0)", "(distance >= -1)",
        "values", "ragged",
    ),
    Bug(
        "paged_prefill", "every tile reads the whole context",
        "end = num_computed + tl.minimum(row_begin + QUERY_TILE, query_len)",
        "end = num_computed + query_len",
        "flops", "traffic",
    ),
    Bug(
        "paged_prefill", "a long window is none", "row_position = num_computed + row\n",
        "row_position = num_computed + row\n    window = tl.where(window > 100, 1 << 30, window)\n",
        "stale_read", "wide-window",
    ),
    Bug(
        "paged_prefill", "block numbers have 16 bits",
        "other=0).to(tl.int64)\n"
        "        slot = block * BLOCK_SIZE + position % BLOCK_SIZE\n        cache",
        "other=0).to(tl.int16).to(tl.int64)\n"
        "        slot = block * BLOCK_SIZE + position % BLOCK_SIZE\n        cache",
        "stale_read", "big-cache",
    ),
    Bug(
        "paged_prefill", "a small rescaling is spared", "acc = acc * rescale[:, None]",
        "acc = acc * tl.where(rescale > 0.999, 1.0, rescale)[:, None]", "values", "creeping",
    ),
    Bug(
        "paged_prefill", "the maximum begins at -1000",
        'row_max = tl.full([QUERY_TILE], float("-inf"), tl.float32)',
        "row_max = tl.full([QUERY_TILE], -1000.0, tl.float32)", "values", "deep-logits",
    ),
    # ------------------------------------------------------------ tiled_prefill
    Bug(
        "tiled_prefill", "a tile on the diagonal is taken for a whole one",
        "first_position + 1 - middle", "first_position + KEY_TILE - middle", "values", "tiles",
    ),
    Bug(
        "tiled_prefill", "the window's first tiles are taken for whole ones",
        "tl.cdiv(tl.maximum(end - window - begin, 0), KEY_TILE) * KEY_TILE", "0",
        "values", "traffic-window",
    ),
    Bug(
        "tiled_prefill", "weights are powers of 2, scores are not brought to that base",
        "scale * 1.4426950408889634", "scale", "values", "ragged",
    ),
    Bug(
        "tiled_prefill", "earlier tiles are not rescaled", "acc * rescale[:, None]", "acc",
        "values", "long",
    ),
    Bug(
        "tiled_prefill", "all heads of a group have the queries of the first",
        "head[:, None] * HEAD_DIM + dim[None, :]\n    query =",
        "(kv_head * GROUP) * HEAD_DIM + dim[None, :]\n    query =", "values", "ragged",
    ),
    Bug(
        "tiled_prefill", "a group has as many heads as a tile", "& (in_group < GROUP)", "",
        "oob", "odd-group",
    ),
    Bug(
        "tiled_prefill", "a token sees the one behind it", "(distance >= 0)", "(distance >= -1)",
        "values", "ragged",
    ),
    Bug(
        "tiled_prefill", "the slot is computed in 32 bits", "block.to(tl.int64)", "block",
        "overflow", "big-cache",
    ),
    # ------------------------------------------------------------ rms_norm
    Bug(
        "rms_norm", "lanes behind the row count", "+ column, mask=inside, other=0.0)\n    if HAS",
        "+ column, mask=inside)\n    if HAS", "undefined_lane", "almost",
    ),
    Bug(
        "rms_norm", "the output is read before it is written",
        "output = normalised * weight.to(tl.float32)",
        "output = normalised * weight.to(tl.float32)"
        " + tl.load(output_ptr + row * SIZE + column, mask=inside, other=0.0)",
        "uninitialised", "row",
    ),
    Bug(
        "rms_norm", "every program writes the first row",
        "tl.store(output_ptr + row * SIZE + column", "tl.store(output_ptr + column",
        "race", "row",
    ),
    Bug(
        "rms_norm", "one column too many is read from a slice, but not at its end",
        "x = tl.load(x_ptr + token * x_stride + head * SIZE + column, mask=inside",
        "x = tl.load(x_ptr + token * x_stride + head * SIZE + column,"
        " mask=column < SIZE + (token + 1 < tl.num_programs(0)).to(tl.int32)",
        "oob", "heads",
    ),
    Bug(
        "rms_norm", "the residual of the next row, which its program changes, is read",
        "        x = (x.to(tl.float32)",
        "        after = inside & (token + 1 < tl.num_programs(0))\n"
        "        after = tl.load(residual_ptr + (row + 1) * SIZE + column, mask=after, other=0.0)\n"
        "        x = (x.to(tl.float32)",
        "race", "over",
    ),
    Bug(
        "rms_norm", "eps is taken for granted", "/ SIZE + eps", "/ SIZE + 1e-6", "values", "eps",
    ),
    Bug(
        "rms_norm", "the scale of a row is rounded", "/ SIZE + eps)",
        "/ SIZE + eps).to(x.dtype).to(tl.float32)", "values", "heads",
    ),
    Bug(
        "rms_norm", "the row is turned round through memory, without a barrier",
        "    tl.store(output_ptr + row * SIZE + column, output, mask=inside)",
        "    tl.store(output_ptr + row * SIZE + SIZE - 1 - column, output, mask=inside)\n"
        "    back = tl.load(output_ptr + row * SIZE + column, mask=inside, other=0.0)\n"
        "    tl.store(output_ptr + row * SIZE + SIZE - 1 - column, back, mask=inside)",
        "race", "row",
    ),
    # ------------------------------------------------------------ rope
    Bug(
        "rope", "both halves turn the same way", "second * cos + first * sin",
        "second * cos - first * sin", "values", "head",
    ),
    Bug(
        "rope", "all heads are written to the first",
        "tl.store(first_ptr, first", "tl.store(first_ptr - head[:, None] * HEAD_DIM, first",
        "duplicate_store", "odd-heads",
    ),
    Bug(
        "rope", "products are rounded before they are added", "first * cos - second * sin",
        "(first * cos).to(cos_ptr.dtype.element_ty).to(tl.float32) - second * sin",
        "values", "odd-heads",
    ),
    Bug(
        "rope", "two lanes write one number", "    tl.store(first_ptr, first",
        "    tl.store(second_ptr, first, mask=in_tile)\n"
        "    tl.store(second_ptr - 1, first * 0.5, mask=in_tile & (pair[None, :] > 0))\n"
        "    tl.store(first_ptr, first", "duplicate_store", "head",
    ),
    # ------------------------------------------------------------ qk_norm_rope_store
    Bug(
        "qk_norm_rope_store", "values are turned as keys are",
        "tl.where(turns, (a * cos - b * sin).to(first.dtype), first)",
        "(a * cos - b * sin).to(first.dtype)", "values", "two",
    ),
    Bug(
        "qk_norm_rope_store", "a token without a slot is stored",
        "tl.where(slot >= 0, NUM_HEADS + 2 * NUM_KV_HEADS, NUM_HEADS)",
        "NUM_HEADS + 2 * NUM_KV_HEADS", "oob", "padding",
    ),
    Bug(
        "qk_norm_rope_store", "a token without a slot keeps its queries as they were",
        "_store(row_ptr, pair, first, is_query, in_half)",
        "_store(row_ptr, pair, first, is_query & (slot + head >= head), in_half)",
        "coverage", "padding",
    ),
    Bug(
        "qk_norm_rope_store", "eps is left out", "squares / HEAD_DIM + eps", "squares / HEAD_DIM",
        "values", "eps",
    ),
    Bug(
        "qk_norm_rope_store", "the mean is one of the features that turn",
        "squares / HEAD_DIM", "squares / ROTARY_DIM", "values", "partial",
    ),
    Bug(
        "qk_norm_rope_store", "what does not turn is not in the mean",
        " + tl.sum(_square(c), axis=1)", "", "values", "partial",
    ),
    Bug(
        "qk_norm_rope_store", "keys have the weight of queries",
        "tl.where(is_query[:, None], query_weight[None, :], key_weight[None, :])",
        "query_weight[None, :]", "values", "two",
    ),
    Bug(
        "qk_norm_rope_store", "the first half's sin is taken, whose sign is the other",
        "token * ROTARY_DIM + ROTARY_DIM // 2 + pair", "token * ROTARY_DIM + pair",
        "values", "two",
    ),
    Bug(
        "qk_norm_rope_store", "the second half turns with what the first has become",
        "(b * cos + a * sin)", "(b * cos + first.to(tl.float32) * sin)", "values", "two",
    ),
    Bug(
        "qk_norm_rope_store", "the normalised row is not rounded before its weight",
        "(x.to(tl.float32) * scale).to(x.dtype).to(tl.float32)", "x.to(tl.float32) * scale",
        "values", "model",
    ),
    Bug(
        "qk_norm_rope_store", "the features that do not turn are not stored",
        "    _store(key_ptr, rest, tail, is_key, in_rest)\n", "", "coverage", "partial",
    ),
    Bug(
        "qk_norm_rope_store", "a slot's address is computed in 32 bits",
        "slot * NUM_KV_HEADS", "slot.to(tl.int32) * NUM_KV_HEADS", "overflow", "big-cache",
    ),
    Bug(
        "qk_norm_rope_store", "a token's address is computed in 32 bits",
        "tl.program_id(0).to(tl.int64)", "tl.program_id(0)", "oob", "far",
    ),
    # ------------------------------------------------------------ silu_mul
    Bug(
        "silu_mul", "the gate is not squashed", "gate / (1.0 + tl.exp(-gate)) * up", "gate * up",
        "values", "row",
    ),
    Bug(
        "silu_mul", "the first column stays unwritten", "* up, mask=inside)",
        "* up, mask=inside & (column > 0))", "coverage", "row",
    ),
    Bug(
        "silu_mul", "an input is overwritten",
        "    up = tl.load(gate_ptr + SIZE",
        "    tl.store(gate_ptr, -gate, mask=inside)\n    up = tl.load(gate_ptr + SIZE",
        "input_changed", "row",
    ),
    Bug(
        "silu_mul", "the result is rounded twice", "gate / (1.0 + tl.exp(-gate)) * up",
        "(gate / (1.0 + tl.exp(-gate))).to(output_ptr.dtype.element_ty).to(tl.float32) * up",
        "values", "almost",
    ),
    Bug(
        "silu_mul", "a loop without loads does not end", "    up = tl.load(gate_ptr + SIZE",
        "    for _ in range(0, 2000000000):\n        gate = gate + 0.0\n"
        "    up = tl.load(gate_ptr + SIZE", "timeout", "row",
    ),
    Bug(
        "silu_mul", "an `if` asks a tile", "    up = tl.load(gate_ptr + SIZE",
        "    if gate > 0:\n        gate = gate + 0.0\n    up = tl.load(gate_ptr + SIZE", "crash",
        "row",
    ),
    Bug(
        "silu_mul", "the gate is read twice", "    up = tl.load(gate_ptr + SIZE",
        "    gate = tl.load(gate_ptr, mask=inside, other=0.0).to(tl.float32)\n"
        "    up = tl.load(gate_ptr + SIZE", "traffic", "traffic",
    ),
    Bug(
        "silu_mul", "the output is written twice", "* up, mask=inside)",
        "* up, mask=inside)\n    tl.store(output_ptr + token * SIZE + column,"
        " gate / (1.0 + tl.exp(-gate)) * up, mask=inside)", "traffic", "traffic",
    ),
    Bug(
        "silu_mul", "an address is computed wildly", "    up = tl.load(gate_ptr + SIZE",
        "    up = tl.load(gate_ptr + SIZE + (token + 1) * 1000000000000000",
        "oob", "row",
    ),
    Bug(
        "silu_mul", "the row before, which its program writes, is read",
        "    up = tl.load(gate_ptr + SIZE",
        "    tl.load(output_ptr + (token - 1) * SIZE + column, mask=inside & (token > 0))\n"
        "    up = tl.load(gate_ptr + SIZE", "race", "row",
    ),
    Bug(
        "silu_mul", "a loop does not end", "    up = tl.load(gate_ptr + SIZE",
        "    for _ in range(0, 2000000000):\n"
        "        tl.load(gate_ptr, mask=inside)\n    up = tl.load(gate_ptr + SIZE",
        "timeout", "row",
    ),
    Bug(
        "silu_mul", "tiles of two sizes meet", "* up, mask=inside)",
        "* up + tl.arange(0, 2 * TILE), mask=inside)", "crash", "row",
    ),
    Bug(
        "silu_mul", "the last element of a tile belongs to the next tile too",
        "column = tl.program_id(1) * TILE + tl.arange(0, TILE)",
        "column = tl.program_id(1) * (TILE - 1) + tl.arange(0, TILE)",
        "race", "over",
    ),
)  # fmt: skip
