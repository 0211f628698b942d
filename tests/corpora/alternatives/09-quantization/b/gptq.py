"""Errors are kept, and each column takes its share of all before it."""


def gptq_quantize(
    weight,
    hessian,
    bits,
    group_size,
    symmetric,
    act_order=False,
    damping=0.01,
    scale_dtype=torch.float32,
):
    rows, columns = weight.shape
    diagonal = hessian.float().diagonal()
    alive = diagonal != 0
    hessian = hessian.float() + torch.diag((~alive).float())
    weight = torch.where(alive, weight.float(), 0.0)
    order = torch.arange(columns)
    if act_order:
        order = torch.sort(hessian.diagonal(), descending=True, stable=True).indices
    factor = inverse_factor(hessian[order[:, None], order], damping)
    size = columns // num_groups(columns, group_size)
    errors = torch.zeros(rows, columns)
    numbers = torch.zeros(rows, columns, dtype=torch.int32)
    scale, zero = torch.zeros(rows, columns // size), torch.zeros(rows, columns // size).int()
    for i in range(columns):
        if i % size == 0:
            now = weight[:, order[i : i + size]] - errors[:, :i] @ factor[:i, i : i + size]
            chosen, zero[:, i // size : i // size + 1] = choose_qparams(now, bits, size, symmetric)
            scale[:, i // size : i // size + 1] = chosen.to(scale_dtype)
        s, z = scale[:, i // size, None], zero[:, i // size, None]
        wanted = weight[:, order[i], None] - errors[:, :i] @ factor[:i, i, None]
        numbers[:, i, None] = quantize(wanted, s, z, bits)
        meant = (numbers[:, i, None] - z) * s
        errors[:, i, None] = (wanted - meant) / factor[i, i]
    stored, group = torch.empty_like(numbers), torch.empty(columns, dtype=torch.int32)
    stored[:, order] = numbers
    group[order] = torch.arange(columns).div(size, rounding_mode="floor").int()
    return stored, scale, zero, group
