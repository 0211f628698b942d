"""Mistakes in the kernels that features bring: masks, quantization, rejection, adapters."""

from __future__ import annotations

from labkit.kernels.verdict.bugs import Bug

FEATURE_BUGS = (
    # ------------------------------------------------------------ apply_token_bitmask
    Bug(
        "apply_token_bitmask", "allowed and forbidden are exchanged", "& 1) == 0", "& 1) == 1",
        "input_changed", "word",
    ),
    Bug(
        "apply_token_bitmask", "bits are counted from the top", "words[:, None] >> bit[None, :]",
        "words[:, None] >> (31 - bit[None, :])",
        "input_changed", "word",
    ),
    Bug(
        "apply_token_bitmask", "tokens behind the vocabulary are written too",
        "forbidden & (token < vocab_size)", "forbidden", "oob", "one",
    ),
    Bug(
        "apply_token_bitmask", "masks are applied in the order of the batch",
        "tl.load(indices_ptr + row).to(tl.int64)", "row.to(tl.int64)",
        "input_changed", "rows",
    ),
    Bug(
        "apply_token_bitmask", "tokens without a word are allowed",
        "mask=word < num_words, other=0", "mask=word < num_words, other=-1",
        "coverage", "narrow",
    ),
    Bug(
        "apply_token_bitmask", "the address of a row is computed in 32 bits",
        "tl.load(indices_ptr + row).to(tl.int64)", "tl.load(indices_ptr + row)", "oob", "far",
    ),
    Bug(
        "apply_token_bitmask", "forbidden logits are made very small, but can still be drawn",
        '-float("inf")', "-1e4", "values", "word",
    ),
    # ------------------------------------------------------------ per_token_quant_int8
    Bug(
        "per_token_quant_int8", "fractions are cut off", "(x / scale + ROUND) - ROUND", "x / scale",
        "values", "row",
    ),
    Bug(
        "per_token_quant_int8", "numbers are multiplied by 1 / scale", "(x / scale + ROUND)",
        "(x * (1.0 / scale) + ROUND)", "values", "quotients",
    ),
    Bug(
        "per_token_quant_int8", "127 steps make 128", "/ 127.0, MIN_SCALE)\n    quantized",
        "/ 128.0, MIN_SCALE)\n    quantized", "values", "row",
    ),
    Bug(
        "per_token_quant_int8", "the scale is not stored",
        "    tl.store(scale_ptr + token, scale)\n", "", "coverage", "row",
    ),
    Bug(
        "per_token_quant_int8", "the first token's scale serves all",
        "x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)\n"
        "    scale = tl.maximum(tl.max(tl.abs(x), axis=0)",
        "x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)\n"
        "    first = tl.load(x_ptr + column, mask=inside, other=0.0).to(tl.float32)\n"
        "    scale = tl.maximum(tl.max(tl.abs(first), axis=0)", "values", "row",
    ),
    # ------------------------------------------------------------ gemm
    Bug(
        "gemm", "the sum is kept in half precision", "acc=total, input_precision",
        "acc=total.to(tl.bfloat16).to(tl.float32), input_precision", "values", "long",
    ),
    Bug(
        "gemm", "columns behind the last are taken along",
        "is_token[:, None] & inside[None, :], is_row[:, None] & inside[None, :]",
        "is_token[:, None], is_row[:, None]", "oob", "prime",
    ),
    Bug(
        "gemm", "the tokens' stride is taken for K", "token[:, None] * x_stride",
        "token[:, None] * K", "values", "tile",
    ),
    Bug(
        "gemm", "only the first tile of columns is added", "range(0, K, COLUMN_TILE)",
        "range(0, COLUMN_TILE, COLUMN_TILE)", "values", "over",
    ),
    # ------------------------------------------------------------ gemv
    Bug(
        "gemv", "only the last tile of columns counts", "total += ", "total = ", "values", "long",
    ),
    Bug(
        "gemv", "the sum is kept in half precision",
        "total += x.to(tl.float32) * weight.to(tl.float32)",
        "total = (total + x.to(tl.float32) * weight.to(tl.float32)).to(x.dtype).to(tl.float32)",
        "values", "long",
    ),
    Bug(
        "gemv", "products are rounded to the dtype of x",
        "x.to(tl.float32) * weight.to(tl.float32)", "(x * weight).to(tl.float32)",
        "values", "four",
    ),
    Bug(
        "gemv", "columns behind the last are taken along", "mask=is_token & inside",
        "mask=is_token & (column >= 0)", "oob", "one",
    ),
    Bug(
        "gemv", "the tokens' stride is taken for K", "token * x_stride", "token * K", "values",
        "tile",
    ),
    Bug(
        "gemv", "rows behind the last are written", "& (row < N)[None, :]", "& (row >= 0)[None, :]",
        "race", "four",
    ),
    Bug(
        "gemv", "a row's address is computed in 32 bits", "[None, :, None].to(tl.int64)",
        "[None, :, None]", "overflow", "long-weight",
    ),
    Bug(
        "gemv", "a last tile of columns that is not full is left out", "range(0, K, COLUMN_TILE)",
        "range(0, K // COLUMN_TILE * COLUMN_TILE, COLUMN_TILE)", "values", "over",
    ),
    # ------------------------------------------------------------ w8a8_gemm
    Bug(
        "w8a8_gemm", "the sum is kept in half precision", "total.to(tl.float32) * x_scale",
        "total.to(tl.float16).to(tl.float32) * x_scale", "values", "tile",
    ),
    Bug(
        "w8a8_gemm", "the scales of the rows are forgotten", " * weight_scale[None, :]\n", "\n",
        "values", "tile",
    ),
    Bug(
        "w8a8_gemm", "columns behind the last are taken along",
        "is_token[:, None] & inside[None, :], is_row[:, None] & inside[None, :]\n"
        "        x = tl.load(x_ptr + token[:, None] * x_stride + column[None, :], mask=x_mask,"
        " other=0)\n        weight_at = weight_ptr",
        "is_token[:, None], is_row[:, None]\n"
        "        x = tl.load(x_ptr + token[:, None] * x_stride + column[None, :], mask=x_mask,"
        " other=0)\n        weight_at = weight_ptr", "oob", "prime",
    ),
    # ------------------------------------------------------------ w4a16_gemm
    Bug(
        "w4a16_gemm", "numbers are taken from the top of a word", "(column[None, :] % 8 * 4)",
        "(28 - column[None, :] % 8 * 4)", "values", "one",
    ),
    Bug(
        "w4a16_gemm", "the sign of a word comes in", " & 15\n", "\n", "values", "tile",
    ),
    Bug(
        "w4a16_gemm", "a tile has the group of its first column",
        "group = row[:, None] * GROUPS + column[None, :] // (K // GROUPS)",
        "group = row[:, None] * GROUPS + (column[None, :] * 0 + start) // (K // GROUPS)",
        "values", "inside",
    ),
    Bug(
        "w4a16_gemm", "zero is 8, whatever the file says", "(numbers - zero)", "(numbers - 8)",
        "values", "groups",
    ),
    # ------------------------------------------------------------ store_kv_int8
    Bug(
        "store_kv_int8", "fractions are cut off", "(key / scale + ROUND) - ROUND", "key / scale",
        "values", "block",
    ),
    Bug(
        "store_kv_int8", "numbers are multiplied by 1 / scale", "(key / scale + ROUND)",
        "(key * (1.0 / scale) + ROUND)", "values", "quotients",
    ),
    Bug(
        "store_kv_int8", "a slot of -1 is stored",
        "if slot >= 0:\n        column = tl.arange(0, DIM_TILE)",
        "if slot >= -1:\n        column = tl.arange(0, DIM_TILE)", "oob", "padding",
    ),
    Bug(
        "store_kv_int8", "heads are as far apart as their numbers",
        "tl.num_programs(1) + head) * (HEAD_DIM + 4)", "tl.num_programs(1) + head) * HEAD_DIM",
        "input_changed", "block",
    ),
    Bug(
        "store_kv_int8", "the scale's bytes stand in another order", "(8 * byte)) & 255",
        "(24 - 8 * byte)) & 255", "values", "one",
    ),
    Bug(
        "store_kv_int8", "infinity is stored", "finite(tl.load(key_at, mask=inside, other=0.0)"
        ".to(tl.float32))", "tl.load(key_at, mask=inside, other=0.0).to(tl.float32)",
        "values", "odd",
    ),
    # ------------------------------------------------------------ paged_decode_int8
    Bug(
        "paged_decode_int8", "values have no scale", "(weights * value_scale[None, :])",
        "(weights)", "values", "ragged",
    ),
    Bug(
        "paged_decode_int8", "the sum of the weights takes their scales in",
        "tl.sum(weights, axis=1)\n\n        value = tl.load(value_cache_ptr",
        "tl.sum(weights * load_scales(value_cache_ptr, place + HEAD_DIM, visible)[None, :],"
        " axis=1)\n\n        value = tl.load(value_cache_ptr", "values", "ragged",
    ),
    Bug(
        "paged_decode_int8", "one token too many is visible",
        "visible = position < end\n", "visible = position <= end\n", "stale_read", "ragged",
    ),
    Bug(
        "paged_decode_int8", "an offset is computed in 32 bits",
        "block = tl.load(table_entry, mask=visible, other=0).to(tl.int64)",
        "block = tl.load(table_entry, mask=visible, other=0)", "overflow", "big-cache",
    ),
    # ------------------------------------------------------------ rejection_random_sample
    Bug(
        "rejection_random_sample", "u on the border is accepted", "(u * q < p)",
        "(u * q <= p) & (p > 0)", "values", "equal",
    ),
    Bug(
        "rejection_random_sample", "a rejected draft is kept, and what follows it",
        "tl.min(tl.where(accepted, count, place), axis=0)", "count",
        "values", "none",
    ),
    Bug(
        "rejection_random_sample", "accepted drafts are counted across a rejection",
        "tl.min(tl.where(accepted, count, place), axis=0)",
        "tl.sum((is_draft & accepted).to(tl.int32), axis=0)", "values", "ragged",
    ),
    Bug(
        "rejection_random_sample", "the recovered token of the request's first draft",
        "recovered_token_ids_ptr + start + num_accepted", "recovered_token_ids_ptr + start",
        "values", "ragged",
    ),
    Bug(
        "rejection_random_sample", "the bonus comes after a rejection too",
        "if num_accepted < count:", "if count < 0:", "values", "none",
    ),
    Bug(
        "rejection_random_sample", "q is forgotten", "u * q < p", "u < p", "values", "traffic",
    ),
    Bug(
        "rejection_random_sample", "a draft that q cannot have drawn is accepted",
        "(q > 0) & (u * q < p)", "u * q < p",
        "values", "impossible",
    ),
    Bug(
        "rejection_random_sample", "p = 0 is accepted if u is 0", "u * q < p", "u * q <= p",
        "values", "impossible",
    ),
    Bug(
        "rejection_random_sample", "places behind the last token are left as they were",
        "mask=place <= max_drafts", "mask=place <= num_accepted", "coverage", "ragged",
    ),
    Bug(
        "rejection_random_sample", "the address of a row is computed in 32 bits",
        "(start + place).to(tl.int64)", "(start + place)", "oob", "far",
    ),
    # ------------------------------------------------------------ draw_tokens
    Bug(
        "draw_tokens", "the masses of the tiles are not brought to one maximum",
        "mass * tl.exp((largest - top) / divisor)", "mass", "values", "wide",
    ),
    Bug(
        "draw_tokens", "the sum begins anew in the tile that is drawn", "rest = target - before",
        "rest = target", "values", "wide",
    ),
    Bug(
        "draw_tokens", "of tiles with the same maximum the last is taken",
        "chosen = tl.min(tl.where(largest == top, tile, TILES), axis=0)",
        "chosen = tl.max(tl.where(largest == top, tile, 0), axis=0)", "values", "equal-tiles",
    ),
    Bug(
        "draw_tokens", "the last of equal logits is the argmax",
        "picked = tl.min(tl.where(logit == top, token, vocab_size), axis=0)",
        "picked = tl.max(tl.where(logit == top, token, 0), axis=0)", "values", "equal",
    ),
    Bug(
        "draw_tokens", "the temperature is forgotten in the second kernel",
        "tl.exp((logit - top) / divisor)", "tl.exp(logit - top)", "values", "few",
    ),
    Bug(
        "draw_tokens", "greedy rows divide by 0",
        "    return tl.where(temperature == 0, 1.0, temperature)", "    return temperature",
        "values", "both",
    ),
    Bug(
        "draw_tokens", "the index of the token does not matter",
        "index.to(tl.uint64, bitcast=True) * golden", "golden", "values", "few",
    ),
    Bug(
        "draw_tokens", "the last bit of the seed is lost",
        "seed.to(tl.uint64, bitcast=True) + golden",
        "(seed.to(tl.uint64, bitcast=True) >> 1 << 1) + golden", "values", "few",
    ),
    Bug(
        "draw_tokens", "a tile of -inf alone makes NaN",
        'weight = tl.where(logit == -float("inf"), 0.0, tl.exp(\n'
        "        (logit - largest) / _divisor(temperature_ptr, row, GREEDY)\n"
        "    ))  # fmt: skip",
        "weight = tl.exp((logit - largest) / _divisor(temperature_ptr, row, GREEDY))",
        "values", "banned",
    ),
    Bug(
        "draw_tokens", "a logit beyond the limit is drawn from",
        "is_broken = is_broken | (tl.abs(top) > max_logit)",
        'is_broken = is_broken | (tl.abs(top) == float("inf"))', "values", "beyond",
    ),
    Bug(
        "draw_tokens", "a row with NaN is drawn from",
        "is_broken = tl.max((mass != mass).to(tl.int32), axis=0) != 0", "is_broken = num_tiles < 0",
        "values", "nan",
    ),
    Bug(
        "draw_tokens", "a row without a token is called broken",
        'failure = tl.where((top == -float("inf")) & (is_broken == 0), -2, -1)', "failure = -1",
        "values", "all-banned",
    ),
    Bug(
        "draw_tokens", "tokens behind the vocabulary are read",
        'place, mask=token < vocab_size, other=-float("inf")).to(tl.float32)\n'
        "    largest", "place).to(tl.float32)\n    largest", "oob", "one",
    ),
    Bug(
        "draw_tokens", "the address of a row is computed in 32 bits",
        "    row = tl.program_id(0).to(tl.int64)\n    tile = tl.program_id(1)",
        "    row = tl.program_id(0)\n    tile = tl.program_id(1)", "oob", "far",
    ),
    # ------------------------------------------------------------ lora_shrink
    Bug(
        "lora_shrink", "every row gets the adapter of the first slot",
        "slot = tl.load(lora_ids_ptr + segment).to(tl.int64)",
        "slot = tl.load(lora_ids_ptr + segment).to(tl.int64) * 0", "stale_read", "empty",
    ),
    Bug(
        "lora_shrink", "rows behind the segment are taken along",
        "in_segment = position < num_rows", "in_segment = position < ROW_TILE", "race", "segments",
    ),
    Bug(
        "lora_shrink", "rows are taken in order, not through the list",
        "row = tl.load(order_ptr + start + position, mask=in_segment, other=0)",
        "row = (start + position)", "values", "segments",
    ),
    Bug(
        "lora_shrink", "products of TF32", 'tl.dot(x, a.to(x.dtype), acc, input_precision="ieee")',
        "tl.dot(x, a.to(x.dtype), acc)", "values", "segments",
    ),
    # ------------------------------------------------------------ lora_expand
    Bug(
        "lora_expand", "y is overwritten", "y.to(tl.float32) + delta", "delta", "values", "one",
    ),
    Bug(
        "lora_expand", "every slice is as wide as the widest",
        "inside = column < end", "inside = column < begin + OUT_TILE", "race", "uneven",
    ),
    Bug(
        "lora_expand", "all slices use the first one's h",
        "(slice_id * total_tokens + row[:, None])", "row[:, None]", "values", "gqa",
    ),
    # ------------------------------------------------------------ grouped_gemm
    Bug(
        "grouped_gemm", "the rows of a tile are taken as they are sorted",
        "pair = tl.load(sorted_ids_ptr + place).to(tl.int64)", "pair = place", "values", "segments",
    ),
    Bug(
        "grouped_gemm", "an idle tile is computed", "if expert >= 0:", "if expert >= -1:",
        "stale_read", "idle",
    ),
    Bug(
        "grouped_gemm", "a pair takes the row of its own number",
        "pair[:, None] // TOP_K * x_stride", "pair[:, None] * x_stride", "oob", "pairs",
    ),
    Bug(
        "grouped_gemm", "what fills up a tile is taken for a pair", "pair < num_pairs",
        "pair <= num_pairs", "oob", "over",
    ),
    # ------------------------------------------------------------ gdn_decode
    Bug(
        "gdn_decode", "the new state is not written back",
        "    tl.store(state_at, state, mask=in_state)\n", "", "coverage", "two",
    ),
    Bug(
        "gdn_decode", "the state decays behind the correction, not before it",
        "    state = state * tl.exp(tl.load(g_ptr + row))\n"
        "    answer = tl.sum(state * key[:, None], axis=0)\n"
        "    delta = tl.load(beta_ptr + row) * (value - answer)\n"
        "    state = state + key[:, None] * delta[None, :]\n",
        "    answer = tl.sum(state * key[:, None], axis=0)\n"
        "    delta = tl.load(beta_ptr + row) * (value - answer)\n"
        "    state = state + key[:, None] * delta[None, :]\n"
        "    state = state * tl.exp(tl.load(g_ptr + row))\n",
        "values", "two",
    ),
    Bug(
        "gdn_decode", "columns behind the last are written, too", "value_dim < VALUE_DIM",
        "value_dim >= 0", "race", "tail",
    ),
    Bug(
        "gdn_decode", "a new request goes on from what lies in its block",
        "if tl.load(is_new_ptr + request) == 0:", "if True:", "stale_read", "new",
    ),
    Bug(
        "gdn_decode", "a query is answered by the state before the correction",
        "    state = state + key[:, None] * delta[None, :]\n"
        "    output = tl.sum(state * query[:, None], axis=0)\n",
        "    output = tl.sum(state * query[:, None], axis=0)\n"
        "    state = state + key[:, None] * delta[None, :]\n",
        "values", "two",
    ),
    Bug(
        "gdn_decode", "a block's address is computed in 32 bits",
        "block = tl.load(block_ids_ptr + request)",
        "block = tl.load(block_ids_ptr + request).to(tl.int32)", "overflow", "far-states",
    ),
    # ------------------------------------------------------------ mla_decode
    Bug(
        "mla_decode", "scores are not scaled", 'input_precision="ieee") * scale',
        'input_precision="ieee")', "values", "ragged",
    ),
    Bug(
        "mla_decode", "the rotated part is left out of the scores",
        'tl.dot(rope_query, k_r, acc=scores, input_precision="ieee") * scale', "scores * scale",
        "values", "ragged",
    ),
    Bug(
        "mla_decode", "earlier tiles are not rescaled", "acc = acc * rescale[:, None]",
        "acc = acc * 1.0", "values", "tiles",
    ),
    Bug(
        "mla_decode", "rows of the block table are taken for as long as their context",
        "request * table_stride", "request * tl.cdiv(seq_len, BLOCK_SIZE)", "stale_read", "ragged",
    ),
    Bug(
        "mla_decode", "one token too many is visible", "visible = position < end",
        "visible = position <= end", "stale_read", "ragged",
    ),
    Bug(
        "mla_decode", "the mass of a split is its largest score",
        "row_max + tl.log(row_sum_or_1)", "row_max", "values", "splits",
    ),
)  # fmt: skip
