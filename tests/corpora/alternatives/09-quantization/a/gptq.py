"""Columns stay where they are, and are visited in their order."""


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
    weight, hessian = weight.float().clone(), hessian.float().clone()
    columns = weight.shape[1]
    for column in range(columns):
        if hessian[column, column] == 0:
            hessian[column, column] = 1
            weight[:, column] = 0
    order = list(range(columns))
    if act_order:
        order.sort(key=lambda column: -float(hessian[column, column]))
    factor = inverse_factor(hessian[order][:, order], damping)
    size = columns // num_groups(columns, group_size)
    stored = torch.zeros(weight.shape, dtype=torch.int32)
    group = torch.zeros(columns, dtype=torch.int32)
    scales, zeros = [], []
    for place, column in enumerate(order):
        group[column] = place // size
        if place % size == 0:
            members = weight[:, order[place : place + size]]
            scale, zero = choose_qparams(members, bits, size, symmetric)
            scales.append(scale.to(scale_dtype).float())
            zeros.append(zero)
        wanted = weight[:, column : column + 1]
        number = quantize(wanted, scales[-1], zeros[-1], bits)
        stored[:, column : column + 1] = number
        error = (wanted - (number - zeros[-1]) * scales[-1]) / factor[place, place]
        for later in range(place + 1, columns):
            weight[:, order[later]] -= error[:, 0] * factor[place, later]
    return stored, torch.cat(scales, dim=1), torch.cat(zeros, dim=1), group
