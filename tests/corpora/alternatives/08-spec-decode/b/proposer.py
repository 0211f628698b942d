"""The text's end decides."""


def num_valid_tokens(num_scheduled, num_drafts, num_sampled):
    others = num_scheduled - num_drafts
    return others + np.clip(num_sampled - 1, 0, None)
