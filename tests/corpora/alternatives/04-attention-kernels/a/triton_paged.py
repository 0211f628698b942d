"""The kernels of the corpus have their softmax inside; this is the graded one: powers of two."""


@triton.jit
def online_softmax(scores, row_max, row_sum):
    to_base_2 = 1.4426950408889634
    new_max = tl.maximum(tl.max(scores, axis=1), row_max)
    shift = tl.where(new_max > float("-inf"), new_max, 0.0)
    weights = tl.exp2((scores - shift[:, None]) * to_base_2)
    rescale = tl.exp2((row_max - shift) * to_base_2)
    return weights, rescale, new_max, tl.sum(weights, axis=1) + rescale * row_sum
