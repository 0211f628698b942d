"""Block by block, and layer by layer."""


def gather_blocks(layers, block_ids):
    one = layers[0]
    shape = (len(block_ids), len(layers), 2, *one.shape[2:])
    blocks = torch.empty(shape, dtype=one.dtype, device=one.device)
    for place, block_id in enumerate(block_ids):
        for index, layer in enumerate(layers):
            blocks[place, index] = layer[:, block_id]
    return blocks


def scatter_blocks(blocks, layers, block_ids):
    if blocks.shape[0] != len(block_ids):
        raise ValueError(f"{blocks.shape[0]} blocks cannot go to {len(block_ids)} places")
    for block, block_id in zip(blocks, block_ids, strict=True):
        for index, layer in enumerate(layers):
            layer[:, block_id] = block[index].to(layer.device)
