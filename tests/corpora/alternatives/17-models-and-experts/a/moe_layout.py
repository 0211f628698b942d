"""Places by rank within the expert; the experts of tiles by repeating."""


def moe_align_block_size(topk_ids, block_size, num_experts):
    flat = topk_ids.reshape(-1).to(torch.int64)
    device, pairs = flat.device, flat.numel()
    tiles = min((pairs + num_experts * (block_size - 1) + block_size - 1) // block_size, pairs)
    number = torch.zeros(num_experts, dtype=torch.int64, device=device)
    number = number.index_add(0, flat, torch.ones_like(flat))
    own_tiles = -(-number // block_size)
    tile_ends = torch.cumsum(own_tiles, 0)
    first_row = (tile_ends - own_tiles) * block_size
    order = torch.argsort(flat, stable=True)
    sorted_experts = flat[order]
    rank = torch.arange(pairs, device=device) - (number.cumsum(0) - number)[sorted_experts]
    sorted_ids = torch.full([tiles * block_size], pairs, dtype=torch.int32, device=device)
    sorted_ids.scatter_(0, first_row[sorted_experts] + rank, order.to(torch.int32))
    tile = torch.arange(tiles, device=device)
    owner = (tile[:, None] >= tile_ends[None, :]).sum(1)
    owner = torch.where(tile < tile_ends[-1], owner, -1)
    return sorted_ids, owner.to(torch.int32), (tile_ends[-1:] * block_size).to(torch.int32)
