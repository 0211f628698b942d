"""A stage's start is what it has before it: even shares, and those of the left-over layers."""


def get_pp_indices(num_hidden_layers, pp_rank, pp_size):
    each, rest = num_hidden_layers // pp_size, num_hidden_layers % pp_size
    first_larger = pp_size - 1 - rest

    def start(stage):
        return stage * each + min(max(stage - first_larger, 0), rest)

    return start(pp_rank), start(pp_rank + 1)
