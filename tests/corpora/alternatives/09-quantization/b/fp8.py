"""The block of each row and of each column, looked up."""


def quantize_block(weight, block):
    weight = weight.float()
    row_block = torch.arange(weight.shape[0]) // block[0]
    column_block = torch.arange(weight.shape[1]) // block[1]
    shape = (int(row_block[-1]) + 1, int(column_block[-1]) + 1)
    number = row_block[:, None] * shape[1] + column_block
    largest = torch.zeros(shape[0] * shape[1])
    largest.scatter_reduce_(0, number.flatten(), weight.abs().flatten(), "amax")
    scale = torch.clamp_min(largest.view(shape) / 448.0, MIN_SCALE)
    each = scale[row_block][:, column_block]
    return torch.clamp(weight / each, -448.0, 448.0).to(torch.float8_e4m3fn), scale


def dequantize_block(weight, scale, block):
    rows = torch.arange(weight.shape[0]).div(block[0], rounding_mode="floor")
    columns = torch.arange(weight.shape[1]).div(block[1], rounding_mode="floor")
    return torch.mul(weight.float(), scale[rows[:, None], columns[None, :]])
