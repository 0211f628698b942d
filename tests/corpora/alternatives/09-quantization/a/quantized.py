"""The scale's bytes are written into a tensor that is there already."""


def quantize_kv(x, form, scale=1.0):
    x = torch.nan_to_num(x.float(), nan=0.0, posinf=LARGE, neginf=-LARGE)
    size = x.shape[-1]
    data = torch.empty(*x.shape[:-1], size + form.pad_bytes, dtype=torch.int8)
    if form.per_token_head:
        each = token_head_scales(x, form.largest)
        data[..., size:] = each.view(torch.int8)
    else:
        each = torch.full((1, 1, 1), scale)
    numbers = torch.clamp(x / each, min=-form.largest, max=form.largest)
    if form.dtype is torch.int8:
        data[..., :size] = torch.round(numbers).to(torch.int8)
    else:
        data[..., :size] = numbers.to(form.dtype).view(torch.int8)
    return data


def dequantize_kv(data, form, dtype, scale=1.0):
    each = torch.tensor(scale)
    if form.per_token_head:
        size = data.shape[-1] - SCALE_BYTES
        each = data[..., size:].clone().view(torch.float32)
        data = data[..., :size].clone()
    return torch.mul(data.view(form.dtype).float(), each).to(dtype)
