"""Logarithms."""


def smooth_scales(x_absmax, w_absmax, alpha=0.5):
    import torch

    x = torch.log(torch.clamp(x_absmax, min=MIN_MAGNITUDE))
    w = torch.log(torch.clamp(w_absmax, min=MIN_MAGNITUDE))
    return torch.clamp(torch.exp(alpha * x - (1 - alpha) * w), min=MIN_MAGNITUDE)


def fold_into_norm(norm_weight, weight, scales):
    for column, scale in enumerate(scales.tolist()):
        weight[:, column] *= scale
    norm_weight *= 1 / scales
