"""Group by group and bit by bit."""


def choose_qparams(weight, bits, group_size, symmetric):
    rows, columns = weight.shape
    count = num_groups(columns, group_size)
    width = columns // count
    scale = torch.ones(rows, count)
    zero = torch.full((rows, count), 2 ** (bits - 1) if symmetric else 0, dtype=torch.int32)
    for row in range(rows):
        for group in range(count):
            numbers = weight[row, group * width : (group + 1) * width].float()
            if symmetric:
                step = numbers.abs().max() / (2 ** (bits - 1) - 1)
            else:
                low, high = min(float(numbers.min()), 0.0), max(float(numbers.max()), 0.0)
                step = (torch.tensor(high) - torch.tensor(low)) / (2**bits - 1)
            if step > 0:
                scale[row, group] = step
                if not symmetric:
                    zero[row, group] = int(torch.round(torch.tensor(-low) / step))
    return scale, zero


def quantize(weight, scale, zero, bits):
    width = weight.shape[1] // scale.shape[1]
    steps = torch.round(weight.float() / scale.float().repeat_interleave(width, 1))
    stored = steps.int() + zero.int().repeat_interleave(width, 1)
    return torch.clamp(stored, min=0, max=2**bits - 1)


def dequantize(stored, scale, zero):
    width = stored.shape[1] // scale.shape[1]
    return (stored - zero.repeat_interleave(width, 1)) * scale.repeat_interleave(width, 1)


def pack_int32(stored, bits, dim):
    if dim % 2 == 0:
        return pack_int32(stored.T, bits, 1).T
    per_word, columns = 32 // bits, stored.shape[1]
    words = torch.zeros(len(stored), -(-columns // per_word), dtype=torch.int64)
    for column in range(columns):
        words[:, column // per_word] |= stored[:, column].long() << (bits * (column % per_word))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack_int32(words, bits, dim, size):
    if dim % 2 == 0:
        return unpack_int32(words.T, bits, 1, size).T
    unsigned, per_word = words.long() % 2**32, 32 // bits
    columns = [
        unsigned[:, column // per_word] // 2 ** (bits * (column % per_word)) % 2**bits
        for column in range(size)
    ]
    return torch.stack(columns, 1).to(torch.int32)


def unpack_awq(words):
    places = [AWQ_ORDER.index(column) for column in range(8)]
    in_file = unpack_int32(words, 4, 1, 8 * words.shape[1])
    order = [8 * (column // 8) + places[column % 8] for column in range(in_file.shape[1])]
    return in_file[:, order]


def unpack_gptq_zeros(words, bits, is_v2):
    zeros = unpack_int32(words, bits, 1, words.shape[1] * 32 // bits)
    if not is_v2:
        zeros = zeros + 1
        zeros[zeros == 2**bits] = 0
    return zeros
