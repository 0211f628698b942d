"""Block by block."""


def quantize_block(weight, block):
    rows, columns = weight.shape
    across, down = -(-columns // block[1]), -(-rows // block[0])
    quantized, scale = torch.zeros(rows, columns).to(FP8), torch.empty(down, across)
    for i in range(down):
        for j in range(across):
            at = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            scale[i, j] = max(float(weight[at].float().abs().max()) / MAX_FP8, MIN_SCALE)
            quantized[at] = to_fp8(weight[at].float() / scale[i, j])
    return quantized, scale


def dequantize_block(weight, scale, block):
    wide = weight.to(torch.float32)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = wide[i * block[0] : (i + 1) * block[0]]
            part[:, j * block[1] : (j + 1) * block[1]] *= scale[i, j]
    return wide
