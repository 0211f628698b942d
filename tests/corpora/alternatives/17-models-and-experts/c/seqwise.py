"""What is kept is one tensor, whatever the kind."""


def pool_chunk(kind, chunk, end, prompt_len, kept):
    if end == len(chunk):
        del kept[:]
    before = kept[0] if kept else None
    if kind == "LAST":
        now = None
    elif kind == "CLS":
        now = before if before is not None else chunk[0].clone()
    elif kind == "MEAN":
        now = chunk.sum(0, dtype=torch.float32)
        now = now if before is None else before + now
    else:
        now = chunk.clone() if before is None else torch.cat([before, chunk])
    if end < prompt_len:
        kept[:] = [] if now is None else [now]
        return None
    kept.clear()
    if kind == "LAST":
        return chunk[-1:]
    if kind == "CLS":
        return now[None]
    return now.view(1, -1) / prompt_len if kind == "MEAN" else now


def embedding(pooled, dimensions, normalizes):
    if dimensions is not None:
        pooled, _ = pooled.tensor_split([dimensions], dim=1)
    if not normalizes:
        return pooled
    length = pooled.float().pow(2).sum(1, keepdim=True).sqrt()
    return (pooled.float() / torch.where(length > 0, length, 1.0)).to(pooled.dtype)
