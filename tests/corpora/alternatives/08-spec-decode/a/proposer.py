"""What goes, instead of what stays."""


def num_valid_tokens(num_scheduled, num_drafts, num_sampled):
    rejected = np.where(num_sampled > 0, num_drafts + 1 - num_sampled, 0)
    return (num_scheduled - rejected).astype(np.int32)
