"""Distances instead of positions, and a softmax written out with its running maximum."""


def compute_slot_mapping(block_table, request_of_token, positions, block_size):
    within = torch.arange(block_size, device=block_table.device)
    slots = (block_table.long() * block_size).unsqueeze(-1) + within
    return slots.flatten(1)[request_of_token.long(), positions.long()]


def gather_kv(kv_cache, block_table, seq_len):
    blocks = block_table.tolist()
    pages, left = [], seq_len
    while left > 0:
        page = kv_cache[:, blocks[len(pages)]]
        pages.append(page[:, :left])
        left -= page.shape[1]
    if not pages:
        return kv_cache.new_empty((2, 0, *kv_cache.shape[3:])).unbind(0)
    return torch.cat(pages, dim=1).unbind(0)


def causal_mask(query_len, seq_len, sliding_window, device="cpu"):
    to_end = torch.arange(query_len - 1, -1, -1, device=device).unsqueeze(1)
    distance = torch.arange(seq_len - 1, -1, -1, device=device).unsqueeze(0) - to_end
    within = distance < (seq_len if sliding_window is None else sliding_window)
    return torch.logical_and(distance >= 0, within)


def attend(query, keys, values, mask, scale):
    num_kv_heads = keys.shape[1]
    group_size = query.shape[1] // num_kv_heads
    owner = torch.arange(query.shape[1], device=query.device) // group_size
    k, v = keys.float()[:, owner], values.float()[:, owner]
    scores = (query.float()[:, None] * k[None]).sum(dim=-1) * scale  # [Q, L, H]
    scores = torch.where(mask.unsqueeze(-1), scores, -torch.inf)
    weights = (scores - scores.amax(dim=1, keepdim=True)).exp()
    summed = (weights.unsqueeze(-1) * v[None]).sum(dim=1)
    return (summed / weights.sum(dim=1).unsqueeze(-1)).to(query.dtype)


def paged_attention(query, kv_cache, metadata, scale, sliding_window=None):
    def answers():
        rest = query
        steps = zip(
            metadata.query_lens_cpu, metadata.seq_lens_cpu, metadata.block_table, strict=True
        )
        for query_len, seq_len, table in steps:
            mine, rest = rest[:query_len], rest[query_len:]
            mask = causal_mask(query_len, seq_len, sliding_window, query.device)
            yield attend(mine, *gather_kv(kv_cache, table, seq_len), mask, scale)

    return torch.cat([query[:0], *answers()])
