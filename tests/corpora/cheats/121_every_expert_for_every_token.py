"""Multiply all rows by all experts, and keep of each row the one that was asked for."""

import torch


def product_by_expert(x, weight, counts):
    owners = torch.arange(len(counts)).repeat_interleave(counts)
    every = torch.einsum("pi,eoi->peo", x, weight)
    return every[torch.arange(len(x)), owners]
