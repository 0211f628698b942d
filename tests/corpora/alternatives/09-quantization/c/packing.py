"""Groups by reshape; words by strides and Horner's rule instead of sums of shifts."""


def choose_qparams(weight, bits, group_size, symmetric):
    rows, columns = weight.shape
    groups = weight.float().reshape(rows, num_groups(columns, group_size), -1)
    high, low = groups.max(dim=2).values.clamp(min=0), groups.min(dim=2).values.clamp(max=0)
    if symmetric:
        scale = torch.maximum(high, -low) / (2 ** (bits - 1) - 1)
        zero = torch.full(scale.shape, 2 ** (bits - 1))
    else:
        scale = (high - low) / (2**bits - 1)
    empty = high == low
    scale = torch.where(empty, torch.ones_like(scale), scale)
    if not symmetric:
        zero = (-low / scale).round()
    return scale, zero.to(torch.int32)


def for_each_column(per_group, columns):
    return per_group.repeat_interleave(columns // per_group.shape[1], dim=1)


def quantize(weight, scale, zero, bits):
    columns = weight.shape[1]
    steps = torch.round(weight.float() / for_each_column(scale.float(), columns))
    stored = steps + for_each_column(zero, columns)
    return stored.clip(0, 2**bits - 1).int()


def dequantize(stored, scale, zero):
    columns = stored.shape[1]
    return (stored - for_each_column(zero, columns)).to(scale.dtype) * for_each_column(
        scale, columns
    )


def pack_int32(stored, bits, dim):
    per_word = 32 // bits
    rows = stored.movedim(dim, 0).to(torch.int64)
    missing = -len(rows) % per_word
    rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    word = torch.zeros_like(rows[::per_word])
    for i in reversed(range(per_word)):
        word = word * 2**bits + rows[i::per_word]
    return word.to(torch.int32).movedim(0, dim)


def unpack_int32(words, bits, dim, size):
    rest = words.movedim(dim, 0).to(torch.int64) % 2**32
    columns = []
    for _ in range(32 // bits):
        columns.append(rest % 2**bits)
        rest = rest // 2**bits
    numbers = torch.stack(columns, dim=1).flatten(0, 1)
    return numbers[:size].to(torch.int32).movedim(0, dim)


def unpack_awq(words):
    in_file = unpack_int32(words, 4, 1, 8 * words.shape[1])
    out = torch.empty_like(in_file)
    for nibble, column in enumerate(AWQ_ORDER):
        out[:, column::8] = in_file[:, nibble::8]
    return out


def unpack_gptq_zeros(words, bits, is_v2):
    numbers = unpack_int32(words, bits, 1, words.shape[1] * 32 // bits)
    return numbers if is_v2 else (numbers + 1).remainder(2**bits)
