"""The geometric way round: one quotient, floors last."""


def smooth_scales(x_absmax, w_absmax, alpha=0.5):
    x, w = (t.clip(min=MIN_MAGNITUDE) for t in (x_absmax, w_absmax))
    return (x.pow(alpha) * w.pow(alpha - 1)).clip(min=MIN_MAGNITUDE)


def fold_into_norm(norm_weight, weight, scales):
    norm_weight[:] = norm_weight / scales
    weight[:] = weight * scales[None, :]
