"""Picked by index and stacked; put back block by block."""


def gather_blocks(layers, block_ids):
    index = torch.as_tensor(list(block_ids), dtype=torch.long, device=layers[0].device)
    picked = [layer.index_select(1, index).transpose(0, 1) for layer in layers]
    return torch.stack(picked, dim=1).contiguous()


def scatter_blocks(blocks, layers, block_ids):
    if len(blocks) != len(block_ids):
        raise ValueError(f"{len(blocks)} blocks for {len(block_ids)} ids; there must be as many")
    for place, block_id in enumerate(block_ids):
        for number, layer in enumerate(layers):
            layer[:, block_id].copy_(blocks[place, number])
