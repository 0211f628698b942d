"""A stable sort by expert; a pair's rank is how far it stands behind its expert's first."""


def moe_align_block_size(topk_ids, block_size, num_experts):
    flat = topk_ids.reshape(-1).to(torch.int64)
    device, num_pairs = flat.device, flat.numel()
    most = (num_pairs + num_experts * (block_size - 1) + block_size - 1) // block_size
    num_tiles = min(num_pairs, most)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=device)
    counts = counts.index_add(0, flat, torch.ones_like(flat))
    tiles = (counts + block_size - 1) // block_size
    ends = torch.cumsum(tiles, 0)
    of, pairs = torch.sort(flat, stable=True)
    rank = torch.arange(num_pairs, device=device) - (counts.cumsum(0) - counts)[of]
    place = (ends - tiles)[of] * block_size + rank
    sorted_ids = torch.full((num_tiles * block_size,), num_pairs, dtype=torch.int32, device=device)
    sorted_ids[place] = pairs.int()
    tile = torch.arange(num_tiles, device=device)
    expert_ids = torch.searchsorted(ends, tile, right=True)
    expert_ids = torch.where(expert_ids == num_experts, torch.full_like(tile, -1), expert_ids)
    return sorted_ids, expert_ids.to(torch.int32), (tiles.sum() * block_size).reshape(1).int()
