"""einsum for all slots at once; for groups, a delta that is put together and added at the end."""


def apply_dense(x, y, lora_a, lora_b, columns, foreign):
    h = torch_einsum("ti,snri->tsnr", x, lora_a)
    if foreign is not None:
        h = h.masked_fill(foreign[:, :, None, None], 0)
    for index, part in enumerate(columns):
        y[:, part] += torch_einsum("tsr,sro->to", h[:, :, index], lora_b[:, :, part])


def torch_einsum(equation, left, right):
    import torch

    return torch.einsum(equation, left, right)


def apply_grouped(x, y, lora_a, lora_b, columns, groups):
    for slot, rows in groups:
        mine = x.index_select(0, rows)
        for index, part in enumerate(columns):
            delta = mine.matmul(lora_a[slot][index].transpose(0, 1))
            delta = delta.matmul(lora_b[slot][:, part])
            y[rows, part] = y[rows, part] + delta
