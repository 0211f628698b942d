"""Sums written out: request by request, token by token."""


def step_flops(config, query_lens, seq_lens):
    flops = 0
    for n, length in zip(query_lens, seq_lens, strict=True):
        flops += 2 * config.hidden_size * config.vocab_size
        for j in range(n):
            context = length - n + j + 1
            for _ in range(config.num_hidden_layers):
                flops += 2 * layer_weights(config)
                flops += config.num_attention_heads * context * (2 + 2) * config.head_dim
    return flops


def step_bytes(config, query_lens, seq_lens, itemsize):
    total = config.hidden_size * config.vocab_size * itemsize
    for _ in range(config.num_hidden_layers):
        total += layer_weights(config) * itemsize
        for n, length in zip(query_lens, seq_lens, strict=True):
            for _ in ("keys", "values"):
                row = config.num_key_value_heads * config.head_dim * itemsize
                total += length * row + n * row
    return total


def arithmetic_intensity(cost):
    flops, moved = cost.flops, cost.bytes
    return flops / moved


def least_seconds(cost, machine):
    compute = cost.flops / machine.flops_per_s
    memory = cost.bytes / machine.bytes_per_s
    return compute if compute > memory else memory


def bound_of(cost, machine):
    if cost.bytes / machine.bytes_per_s > cost.flops / machine.flops_per_s:
        return "memory"
    return "compute"
