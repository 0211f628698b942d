"""Letters instead of reshapes; grouped rows are added through an index."""


def apply_dense(x, y, lora_a, lora_b, columns, foreign):
    import torch

    h = torch.einsum("ti,snri->nstr", x, lora_a)
    if foreign is not None:
        h = torch.where(foreign.T[None, :, :, None], torch.zeros_like(h), h)
    for i, part in enumerate(columns):
        y[:, part] += torch.einsum("str,sro->to", h[i], lora_b[:, :, part])


def apply_grouped(x, y, lora_a, lora_b, columns, groups):
    for slot, rows in groups:
        mine = x.index_select(0, rows)
        for a, part in zip(lora_a[slot], columns, strict=True):
            y[:, part].index_add_(0, rows, (mine @ a.T) @ lora_b[slot][:, part])
