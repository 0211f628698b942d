"""A class of cases: what is kept is looked up by its number."""


def pool_chunk(kind, chunk, end, prompt_len, kept):
    begins, ends = end - chunk.shape[0] == 0, end == prompt_len
    if begins:
        del kept[:]
    if kind == "LAST":
        return chunk[-1:] if ends else None
    if kind == "CLS":
        if not kept:
            kept.append(chunk[0:1].clone())
        return kept.pop() if ends else None
    if kind == "MEAN":
        total = chunk.float().sum(dim=0, keepdim=True)
        if kept:
            total = total + kept.pop()
        if ends:
            return total / prompt_len
        kept.append(total)
        return None
    kept.append(chunk.clone())
    if not ends:
        return None
    states = torch.cat(kept, dim=0)
    del kept[:]
    return states


def embedding(pooled, dimensions, normalizes):
    if dimensions is not None:
        pooled = pooled.narrow(-1, 0, dimensions)
    if not normalizes:
        return pooled
    length = pooled.square().sum(dim=-1, keepdim=True).sqrt()
    return pooled / torch.where(length > 0, length, torch.ones_like(length))
