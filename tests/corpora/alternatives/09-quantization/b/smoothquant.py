"""Column by column."""


def smooth_scales(x_absmax, w_absmax, alpha=0.5):
    import torch

    found = []
    for x, w in zip(x_absmax.tolist(), w_absmax.tolist(), strict=True):
        x, w = max(x, MIN_MAGNITUDE), max(w, MIN_MAGNITUDE)
        found.append(max(x**alpha * w ** (alpha - 1), MIN_MAGNITUDE))
    return torch.tensor(found, dtype=x_absmax.dtype)


def fold_into_norm(norm_weight, weight, scales):
    norm_weight.copy_(norm_weight / scales)
    weight.copy_((weight.T * scales[:, None]).T)
