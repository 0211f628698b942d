"""Accepted, rejected, and what is left."""


def num_valid_tokens(num_scheduled, num_drafts, num_sampled):
    num_accepted = np.maximum(num_sampled - 1, 0)
    num_rejected = num_drafts - num_accepted
    return num_scheduled - num_rejected
