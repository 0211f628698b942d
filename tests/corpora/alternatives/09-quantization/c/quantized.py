"""Early returns; the scale's bytes through `view`."""


def quantize_kv(x, form, scale=1.0):
    x = x.float()
    x = torch.where(x.isnan(), 0.0, x).clamp(-LARGE, LARGE)
    if not form.per_token_head:
        return as_bytes(x / scale, form)
    scales = token_head_scales(x, form.largest)
    return torch.cat([as_bytes(x / scales, form), scales.view(torch.int8)], dim=-1)


def as_bytes(x, form):
    x = x.clamp(-form.largest, form.largest)
    return x.round().to(torch.int8) if form.dtype == torch.int8 else x.to(FP8).view(torch.int8)


def dequantize_kv(data, form, dtype, scale=1.0):
    width = data.shape[-1] - form.pad_bytes
    numbers, rest = data.split([width, form.pad_bytes], dim=-1)
    numbers = numbers.contiguous().view(form.dtype).float()
    factor = rest.contiguous().view(torch.float32) if form.per_token_head else scale
    return (numbers * factor).to(dtype)
