"""NumPy's bytes and shifts; scales in float64, rounded to float32 at the end."""


def choose_qparams(weight, bits, group_size, symmetric):
    number = num_groups(weight.shape[1], group_size)
    groups = weight.double().unflatten(1, (number, -1))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if symmetric:
        scale = torch.maximum(-low, high) / (2 ** (bits - 1) - 1)
        zero = torch.full_like(scale, 2 ** (bits - 1))
    else:
        scale = (high - low) / (2**bits - 1)
        zero = torch.where(scale > 0, -low / scale, 0.0).round()
    return torch.where(scale > 0, scale, 1.0).float(), zero.int()


def quantize(weight, scale, zero, bits):
    groups = weight.float().unflatten(1, (scale.shape[1], -1))
    steps = torch.round(groups / scale.float()[..., None]) + zero[..., None]
    return steps.clamp(0, 2**bits - 1).flatten(1).to(torch.int32)


def dequantize(stored, scale, zero):
    groups = stored.unflatten(1, (scale.shape[1], -1))
    return ((groups - zero[..., None]) * scale[..., None]).flatten(1)


def pack_int32(stored, bits, dim):
    import numpy as np

    per_word = 32 // bits
    rows = np.moveaxis(stored.numpy().astype(np.uint32), dim, -1)
    missing = np.zeros((*rows.shape[:-1], -rows.shape[-1] % per_word), np.uint32)
    rows = np.concatenate([rows, missing], -1)
    rows = rows.reshape(*rows.shape[:-1], -1, per_word)
    shifts = np.arange(per_word, dtype=np.uint32) * np.uint32(bits)
    words = np.bitwise_or.reduce(rows << shifts, axis=-1).astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, dim)))


def unpack_int32(words, bits, dim, size):
    words = words.movedim(dim, -1)
    numbers = torch.stack([words >> shift & (1 << bits) - 1 for shift in range(0, 32, bits)], -1)
    return numbers.flatten(-2)[..., :size].movedim(-1, dim)


def unpack_awq(words):
    found = torch.zeros(len(words), words.shape[1], 8, dtype=torch.int32)
    for nibble, column in enumerate(AWQ_ORDER):
        found[:, :, column] = (words >> 4 * nibble) & 15
    return found.view(len(words), -1)


def unpack_gptq_zeros(words, bits, is_v2):
    numbers = torch.stack([words >> shift for shift in range(0, 32, bits)], dim=-1).flatten(1)
    return (numbers + (0 if is_v2 else 1)) & (2**bits - 1)
