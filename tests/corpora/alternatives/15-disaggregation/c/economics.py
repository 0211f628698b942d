"""The gain of a token, once."""


def break_even_tokens(bytes_per_token, bandwidth, prefill_rate, fixed_seconds=0.0):
    gain = 1.0 / prefill_rate - bytes_per_token / bandwidth
    return fixed_seconds / gain if gain > 0 else float("inf")
