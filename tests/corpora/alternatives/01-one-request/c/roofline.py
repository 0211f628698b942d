"""Built from the cost of one request, so that a batch is a sum of parts."""


def step_flops(config, query_lens, seq_lens):
    def of_one(n, length):
        seen = sum(range(length - n + 1, length + 1))
        layer = n * layer_weights(config) + 2 * seen * config.num_attention_heads * config.head_dim
        return 2 * (layer * config.num_hidden_layers + config.hidden_size * config.vocab_size)

    return sum(map(of_one, query_lens, seq_lens))


def step_bytes(config, query_lens, seq_lens, itemsize):
    matrices = [layer_weights(config)] * config.num_hidden_layers
    matrices.append(config.hidden_size * config.vocab_size)

    def moved(tokens):
        return 2 * tokens * config.num_key_value_heads * config.head_dim * config.num_hidden_layers

    read = sum(moved(length) for length in seq_lens)
    written = sum(moved(n) for n in query_lens)
    return (sum(matrices) + read + written) * itemsize


def arithmetic_intensity(cost):
    return (cost.flops) / (cost.bytes)


def least_seconds(cost, machine):
    moving = cost.bytes / machine.bytes_per_s
    if bound_of(cost, machine) == "memory":
        return moving
    return cost.flops / machine.flops_per_s


def bound_of(cost, machine):
    memory_bound = cost.flops / machine.flops_per_s < cost.bytes / machine.bytes_per_s
    return ("compute", "memory")[memory_bound]
