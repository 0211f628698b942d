"""The same line, solved for tokens by multiplying with both rates."""


def break_even_tokens(bytes_per_token, bandwidth, prefill_rate, fixed_seconds=0.0):
    computing, carrying = 1 / prefill_rate, bytes_per_token / bandwidth
    if not carrying < computing:
        return math.inf
    return fixed_seconds / (computing - carrying)
