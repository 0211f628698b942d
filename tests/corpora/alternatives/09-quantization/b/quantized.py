"""Head by head, through numpy's bytes."""


def quantize_kv(x, form, scale=1.0):
    import numpy as np

    x = x.float()
    x = torch.where(x.isnan(), 0.0, x).clamp(-LARGE, LARGE)
    heads = []
    for head in x.flatten(0, -2):
        own = scale
        if form.per_token_head:
            own = float((head.abs().max() / form.largest).clamp(min=MIN_SCALE))
        numbers = (head / own).clamp(-form.largest, form.largest)
        numbers = numbers.round() if form.dtype == torch.int8 else numbers
        parts = [numbers.to(form.dtype).view(torch.int8)]
        if form.per_token_head:
            parts.append(torch.from_numpy(np.array([own], dtype="<f4").view(np.int8).copy()))
        heads.append(torch.cat(parts))
    return torch.stack(heads).view(*x.shape[:-1], -1)


def dequantize_kv(data, form, dtype, scale=1.0):
    import numpy as np

    if not form.per_token_head:
        return (data.contiguous().view(form.dtype).to(torch.float32) * scale).to(dtype)
    held = data.contiguous().numpy()
    scales = np.ascontiguousarray(held[..., -SCALE_BYTES:]).view("<f4")
    numbers = torch.from_numpy(np.ascontiguousarray(held[..., :-SCALE_BYTES])).view(form.dtype)
    return (numbers.float() * torch.from_numpy(scales.copy())).to(dtype)
