"""Index select, and copies in place."""


def gather_blocks(layers, block_ids):
    ids = torch.as_tensor(list(block_ids), dtype=torch.long, device=layers[0].device)
    picked = [layer.index_select(1, ids).transpose(0, 1) for layer in layers]
    return torch.stack(picked, dim=1).contiguous()


def scatter_blocks(blocks, layers, block_ids):
    count = len(block_ids)
    if blocks.size(0) != count:
        raise ValueError(f"got {blocks.size(0)} blocks for {count} ids")
    ids = torch.as_tensor(list(block_ids), dtype=torch.long, device=layers[0].device)
    for layer, part in zip(layers, blocks.unbind(1), strict=True):
        layer.index_copy_(1, ids, part.to(layer.device).transpose(0, 1).contiguous())
