"""Counts first, sums afterwards."""


def get_pp_indices(num_hidden_layers, pp_rank, pp_size):
    counts = [num_hidden_layers // pp_size] * pp_size
    for stage in range(num_hidden_layers % pp_size):
        counts[-2 - stage] += 1
    start = sum(counts[:pp_rank])
    return start, start + counts[pp_rank]
