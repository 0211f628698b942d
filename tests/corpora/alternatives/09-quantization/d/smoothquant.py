"""By logarithms, in float64."""


def smooth_scales(x_absmax, w_absmax, alpha=0.5):
    x = x_absmax.double().clamp(min=MIN_MAGNITUDE).log()
    w = w_absmax.double().clamp(min=MIN_MAGNITUDE).log()
    return (alpha * x - (1 - alpha) * w).exp().clamp(min=MIN_MAGNITUDE).to(x_absmax.dtype)


def fold_into_norm(norm_weight, weight, scales):
    norm_weight.copy_(norm_weight / scales)
    weight.copy_(weight * scales)
