"""One block at a time."""


def quantize_block(weight, block):
    high, wide = block
    numbers, scales = [], []
    for rows in weight.float().split(high, dim=0):
        parts = [one_block(part) for part in rows.split(wide, dim=1)]
        numbers.append(torch.cat([part for part, _ in parts], dim=1))
        scales.append(torch.stack([scale for _, scale in parts]))
    return torch.cat(numbers), torch.stack(scales)


def one_block(part):
    largest = part.abs().max()
    scale = torch.tensor(max(largest.item() / MAX_FP8, MIN_SCALE))
    return to_fp8(part / scale), scale


def dequantize_block(weight, scale, block):
    return spread(scale, block, weight.shape) * weight.float()
