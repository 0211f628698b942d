"""From places to pairs: each place asks which pair it has."""


def moe_align_block_size(topk_ids, block_size, num_experts):
    flat = topk_ids.flatten().long()
    num_pairs = flat.shape[0]
    most = -(-(num_pairs + num_experts * (block_size - 1)) // block_size)
    num_tiles = most if most < num_pairs else num_pairs
    values, order = flat.sort(stable=True)
    edges = torch.searchsorted(values, torch.arange(num_experts + 1, device=flat.device))
    counts = edges[1:] - edges[:-1]
    tiles = (counts + block_size - 1).div(block_size, rounding_mode="floor")
    ends = tiles.cumsum(0)
    tile = torch.arange(num_tiles, device=flat.device)
    expert = torch.bucketize(tile, ends, right=True)
    is_used = tile < ends[-1]
    safe = expert.clamp(max=num_experts - 1)
    lane = torch.arange(block_size, device=flat.device)
    inside = ((tile - (ends - tiles)[safe]) * block_size)[:, None] + lane
    is_pair = (inside < counts[safe][:, None]) & is_used[:, None]
    at = (edges[:-1][safe][:, None] + inside).clamp(0, num_pairs - 1)
    places = torch.where(is_pair, order[at], num_pairs).flatten()
    return places.int(), torch.where(is_used, expert, -1).int(), (ends[-1:] * block_size).int()
