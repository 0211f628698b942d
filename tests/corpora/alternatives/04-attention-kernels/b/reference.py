"""Slots as flat indices; groups of heads as an axis of their own; torch's own attention."""


def compute_slot_mapping(block_table, request_of_token, positions, block_size):
    width = block_table.shape[1]
    page = torch.div(positions.long(), block_size, rounding_mode="floor")
    entry = request_of_token.long() * width + page
    block = block_table.flatten().index_select(0, entry).long()
    return block * block_size + torch.remainder(positions.long(), block_size)


def gather_kv(kv_cache, block_table, seq_len):
    positions = torch.arange(seq_len, device=kv_cache.device)
    owner = torch.zeros_like(positions)
    slots = compute_slot_mapping(block_table[None], owner, positions, kv_cache.shape[2])
    return kv_cache[0].flatten(0, 1)[slots], kv_cache[1].flatten(0, 1)[slots]


def causal_mask(query_len, seq_len, sliding_window, device="cpu"):
    whole = torch.ones(query_len, seq_len, dtype=torch.bool, device=device)
    mask = whole.tril(seq_len - query_len)
    if sliding_window is None:
        return mask
    return mask.triu(seq_len - query_len - sliding_window + 1)


def attend(query, keys, values, mask, scale):
    group_size = query.shape[1] // keys.shape[1]
    grouped = query.float().unflatten(1, (-1, group_size)).permute(1, 2, 0, 3)
    k, v = (x.float().transpose(0, 1).unsqueeze(1).expand(-1, group_size, -1, -1)
            for x in (keys, values))  # fmt: skip
    answer = torch.nn.functional.scaled_dot_product_attention(
        grouped, k, v, attn_mask=mask, scale=scale
    )
    return answer.permute(2, 0, 1, 3).flatten(1, 2).to(query.dtype)


def paged_attention(query, kv_cache, metadata, scale, sliding_window=None):
    output = torch.empty_like(query)
    starts = metadata.query_start_loc.tolist()
    for request in range(metadata.num_reqs):
        begin, end = starts[request], starts[request + 1]
        seq_len = metadata.seq_lens_cpu[request]
        visible = causal_mask(end - begin, seq_len, sliding_window, query.device)
        context = gather_kv(kv_cache, metadata.block_table[request], seq_len)
        output[begin:end] = attend(query[begin:end], *context, visible, scale)
    return output
