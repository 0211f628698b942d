"""Closed formulas: triangles instead of sums, one product for all layers."""


def step_flops(config, query_lens, seq_lens):
    pairs_twice = 0
    for n, length in zip(query_lens, seq_lens, strict=True):
        first, last = length - n + 1, length
        pairs_twice += (first + last) * n
    layers = config.num_hidden_layers
    linear = 2 * sum(query_lens) * layers * layer_weights(config)
    attention = 2 * pairs_twice * layers * config.num_attention_heads * config.head_dim
    return linear + attention + 2 * len(seq_lens) * config.vocab_size * config.hidden_size


def step_bytes(config, query_lens, seq_lens, itemsize):
    numbers = config.vocab_size * config.hidden_size
    numbers += layer_weights(config) * config.num_hidden_layers
    kv = config.head_dim * config.num_key_value_heads * config.num_hidden_layers
    numbers += (kv + kv) * sum(map(sum, (seq_lens, query_lens)))
    return numbers * itemsize


def arithmetic_intensity(cost):
    return next(flops / moved for flops, moved in [(cost.flops, cost.bytes)])


def least_seconds(cost, machine):
    return sorted((cost.flops / machine.flops_per_s, cost.bytes / machine.bytes_per_s))[-1]


def bound_of(cost, machine):
    times = {
        "compute": cost.flops / machine.flops_per_s,
        "memory": cost.bytes / machine.bytes_per_s,
    }
    return max(times, key=lambda name: times[name])
