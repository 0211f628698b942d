"""Token by token and head by head."""


def compute_slot_mapping(block_table, request_of_token, positions, block_size):
    slots = []
    for request, position in zip(request_of_token.tolist(), positions.tolist(), strict=True):
        page, offset = divmod(position, block_size)
        slots.append(int(block_table[request, page]) * block_size + offset)
    return torch.tensor(slots, dtype=torch.int64, device=block_table.device)


def gather_kv(kv_cache, block_table, seq_len):
    size = kv_cache.shape[2]
    keys = kv_cache.new_empty((seq_len, *kv_cache.shape[3:]))
    values = torch.empty_like(keys)
    for position in range(seq_len):
        page, offset = int(block_table[position // size]), position % size
        keys[position] = kv_cache[0, page, offset]
        values[position] = kv_cache[1, page, offset]
    return keys, values


def causal_mask(query_len, seq_len, sliding_window, device="cpu"):
    mask = torch.zeros(query_len, seq_len, dtype=torch.bool, device=device)
    for row in range(query_len):
        end = seq_len - query_len + row + 1
        start = 0 if sliding_window is None else max(end - sliding_window, 0)
        mask[row, start:end] = True
    return mask


def attend(query, keys, values, mask, scale):
    output = torch.empty_like(query)
    group_size = query.shape[1] // keys.shape[1]
    for head in range(query.shape[1]):
        k, v = keys[:, head // group_size].float(), values[:, head // group_size].float()
        for row in range(query.shape[0]):
            seen = mask[row]
            scores = k[seen] @ query[row, head].float() * scale
            output[row, head] = scores.softmax(dim=0) @ v[seen]
    return output


def paged_attention(query, kv_cache, metadata, scale, sliding_window=None):
    pieces = []
    queries = query.split(metadata.query_lens_cpu)
    for request, piece in enumerate(queries):
        seq_len = metadata.seq_lens_cpu[request]
        keys, values = gather_kv(kv_cache, metadata.block_table[request], seq_len)
        mask = causal_mask(len(piece), seq_len, sliding_window, query.device)
        pieces.append(attend(piece, keys, values, mask, scale))
    return torch.cat(pieces) if pieces else query.clone()
