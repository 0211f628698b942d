"""PyTorch's own convolution over all rows, of which the outputs of tokens are picked."""


def causal_conv(x, weight, bias, tails, rows):
    every = torch.empty(rows.num_rows, x.shape[1], dtype=x.dtype, device=x.device)
    every[rows.tokens] = x
    every[rows.tails] = tails.to(dtype=x.dtype)
    channels, width = weight.shape
    out = torch.nn.functional.conv1d(
        every.T[None], weight[:, None].to(x.dtype), bias, groups=channels
    )
    return out[0].T[rows.tokens - width + 1], every[rows.new_tails]
