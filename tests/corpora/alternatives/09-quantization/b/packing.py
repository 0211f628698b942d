"""numpy's bytes where it can, and reductions along a reshaped axis."""


def choose_qparams(weight, bits, group_size, symmetric):
    groups = weight.float().reshape(len(weight), num_groups(weight.shape[1], group_size), -1)
    low, high = groups.min(2).values, groups.max(2).values
    if symmetric:
        scale = torch.maximum(high, -low) / float(2 ** (bits - 1) - 1)
        zero = torch.empty_like(scale).fill_(2 ** (bits - 1))
    else:
        nothing = torch.zeros_like(low)
        low, high = torch.minimum(low, nothing), torch.maximum(high, nothing)
        scale = (high - low) / float(2**bits - 1)
        zero = torch.nan_to_num(torch.round(-low / scale))
    scale[scale == 0] = 1.0
    return scale, zero.to(torch.int32)


def quantize(weight, scale, zero, bits):
    rows, groups = scale.shape
    steps = weight.float().view(rows, groups, -1) / scale.float().view(rows, groups, 1)
    least, most = -zero.float().view(rows, groups, 1), 2**bits - 1 - zero.view(rows, groups, 1)
    kept = torch.minimum(torch.maximum(steps.round(), least), most.float())
    return (kept - least).to(torch.int32).reshape(rows, -1)


def dequantize(stored, scale, zero):
    groups = scale.shape[1]
    parts = [
        (part - zero[:, i : i + 1]) * scale[:, i : i + 1]
        for i, part in enumerate(stored.chunk(groups, dim=1))
    ]
    return torch.cat(parts, dim=1)


def pack_int32(stored, bits, dim):
    import numpy as np

    columns = np.moveaxis(stored.numpy().astype(np.uint8), dim, -1)
    digits = np.unpackbits(columns[..., None], axis=-1, bitorder="little")[..., :bits]
    digits = digits.reshape(*columns.shape[:-1], -1)
    missing = -digits.shape[-1] % 32
    digits = np.pad(digits, [(0, 0)] * (digits.ndim - 1) + [(0, missing)])
    words = np.packbits(digits, axis=-1, bitorder="little").view("<i4")
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, dim)))


def unpack_int32(words, bits, dim, size):
    import numpy as np

    rows = np.ascontiguousarray(np.moveaxis(words.numpy(), dim, -1)).view(np.uint8)
    digits = np.unpackbits(rows, axis=-1, bitorder="little")
    digits = digits.reshape(*digits.shape[:-1], -1, bits)[..., :size, :]
    numbers = (digits.astype(np.int32) << np.arange(bits)).sum(-1).astype(np.int32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(numbers, -1, dim)))


def unpack_awq(words):
    columns = [None] * (8 * words.shape[1])
    for word in range(words.shape[1]):
        for nibble, column in enumerate(AWQ_ORDER):
            columns[8 * word + column] = (words[:, word] >> (4 * nibble)) & 15
    return torch.stack(columns, dim=1)


def unpack_gptq_zeros(words, bits, is_v2):
    count = 32 // bits
    shifts = bits * torch.arange(count, dtype=torch.int32)
    zeros = (words.unsqueeze(-1) >> shifts).bitwise_and(2**bits - 1).reshape(len(words), -1)
    return zeros if is_v2 else (zeros + 1) % 2**bits
