"""Every stage's size is asked for, and added up."""


def get_pp_indices(num_hidden_layers, pp_rank, pp_size):
    def size(stage):
        gets_one_more = pp_size - 1 - num_hidden_layers % pp_size <= stage < pp_size - 1
        return num_hidden_layers // pp_size + gets_one_more

    start = 0
    for stage in range(pp_rank):
        start += size(stage)
    return start, start + size(pp_rank)
