"""The sum is one row more in what is kept, added up at the end of each chunk."""


def pool_chunk(kind, chunk, end, prompt_len, kept):
    if end <= len(chunk):
        kept.clear()
    match kind:
        case "LAST":
            rows = [chunk[len(chunk) - 1 :].clone()] if end == prompt_len else []
        case "CLS":
            rows = kept[:1] if kept else [chunk[:1].detach().clone()]
        case "MEAN":
            rows = [torch.stack([*[k[0] for k in kept], chunk.float().sum(0)]).sum(0)[None]]
        case _:
            rows = [*kept, chunk.clone()]
    if end < prompt_len:
        kept[:] = rows
        return None
    kept.clear()
    whole = torch.cat(rows)
    return whole.div(prompt_len) if kind == "MEAN" else whole


def embedding(pooled, dimensions, normalizes):
    size = pooled.shape[-1] if dimensions is None else dimensions
    part = pooled[..., :size]
    return torch.nn.functional.normalize(part, p=2.0, dim=1) if normalizes else part
