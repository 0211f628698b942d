"""Take the tokens of all prompts one by one: right to the last digit, and no chunk is used."""

import torch

from mini_vllm.model.mixers.gated_delta import recurrent_gated_delta_rule


def chunk_gated_delta_rule(q, k, v, g, beta, states, chunks):
    members = {}
    for rows, chunk in chunks.rounds:
        numbers = range(len(states))[rows] if isinstance(rows, slice) else rows.tolist()
        for request, tokens in zip(numbers, chunks.sources[chunk].tolist(), strict=True):
            members.setdefault(request, {}).update(dict.fromkeys(tokens))
    lists = [list(members[request]) for request in range(len(states))]
    out, states = v.new_empty(v.shape, dtype=states.dtype), states.clone()
    for place in range(max(map(len, lists))):
        rows = torch.tensor([row for row, own in enumerate(lists) if place < len(own)])
        flat = torch.tensor([own[place] for own in lists if place < len(own)])
        own = (x[flat] for x in (q, k, v, g, beta))
        out[flat], states[rows] = recurrent_gated_delta_rule(*own, states[rows])
    return out, states
