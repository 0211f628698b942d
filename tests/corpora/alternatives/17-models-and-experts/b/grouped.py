"""A sort by values and indices; products written into slices; a scatter at the end."""


def sort_by_expert(ids, num_experts):
    values, pairs = torch.sort(ids.flatten(), stable=True)
    borders = torch.searchsorted(values, torch.arange(num_experts + 1, device=ids.device))
    return pairs, borders.diff()


def product_by_expert(x, weight, counts):
    ends = counts.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    parts = [x.new_empty(0, weight.shape[1])]
    for expert, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if start < end:
            parts.append(torch.mm(x[start:end], weight[expert].t()))
    return torch.cat(parts, dim=0)


def mix_experts(x, weights, ids, num_experts, run, scales_input=False):
    pairs, counts = sort_by_expert(ids, num_experts)
    tokens = torch.div(pairs, ids.shape[-1], rounding_mode="floor")
    scale = weights.reshape(-1)[pairs].to(dtype=x.dtype).unsqueeze(-1)
    before, after = (scale, 1) if scales_input else (1, scale)
    results = run(x.index_select(0, tokens) * before, counts) * after
    target = torch.zeros_like(x)
    return target.scatter_add(0, tokens[:, None].expand_as(results), results)
