"""Columns stay where they are; `order` says which is next."""


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
    columns = weight.shape[1]
    per_group = columns // num_groups(columns, group_size)
    dead = hessian.diagonal() == 0
    hessian = hessian.float() + torch.diag(dead.float())
    left = weight.float() * ~dead
    order = list(range(columns))
    if act_order:
        order.sort(key=lambda column: -hessian[column, column].item())
    factor = inverse_factor(hessian[order][:, order], damping)
    stored = torch.empty(weight.shape, dtype=torch.int32)
    group_of = torch.empty(columns, dtype=torch.int32)
    scales, zeros = [], []
    for step, column in enumerate(order):
        if step % per_group == 0:
            members = left[:, order[step : step + per_group]]
            scale, zero = choose_qparams(members, bits, -1, symmetric)
            scales.append(scale.to(scale_dtype).float())
            zeros.append(zero)
        now = left[:, [column]]
        rounded = quantize(now, scales[-1], zeros[-1], bits)
        stored[:, [column]] = rounded
        group_of[column] = len(scales) - 1
        error = (now - (rounded - zeros[-1]) * scales[-1]) / factor[step, step]
        later = order[step + 1 :]
        left[:, later] -= error * factor[step, step + 1 :]
    return stored, torch.cat(scales, 1), torch.cat(zeros, 1), group_of
