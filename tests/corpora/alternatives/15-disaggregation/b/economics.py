"""Rates instead of times: tokens a second that the link is ahead."""


def break_even_tokens(bytes_per_token, bandwidth, prefill_rate, fixed_seconds=0.0):
    carried_rate = bandwidth / bytes_per_token
    if carried_rate <= prefill_rate:
        return math.inf
    return fixed_seconds * prefill_rate * carried_rate / (carried_rate - prefill_rate)
