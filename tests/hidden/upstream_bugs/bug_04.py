"""An empty slice of FlatLogprobs is an empty FlatLogprobs."""

import torch
from vllm.logprobs import FlatLogprobs, Logprob
from vllm.multimodal.inputs import PlaceholderRange


def filled(positions):
    flat = FlatLogprobs()
    for token in range(positions):
        flat.append({token: Logprob(-0.5, 1, "a"), token + 50: Logprob(-2.0, 3, "c")})
    return flat


def the_bug(draw):
    size = draw.randint(1, 6)
    at = draw.randint(0, size)
    for part in (filled(size)[at:at], filled(size)[size:], filled(0)[:at]):
        assert isinstance(part, FlatLogprobs) and len(part) == 0


def neighbour_other_slices():
    flat = filled(4)
    assert len(flat[1:3]) == 2 and flat[1:3][0] == flat[1] and flat[1:3][1] == flat[2]


def neighbour_an_empty_slice_can_be_filled():
    flat = filled(2)
    part = flat[2:]
    part.append({7: Logprob(-0.25, 1, "b")})
    assert len(part) == 1 and list(part[0]) == [7]
    assert len(flat) == 2, "the sliced one stays as it is"


def the_sibling(draw):
    """The places of a placeholder that hold embeddings: none, one range, two."""
    offset = draw.randint(0, 50)
    for mask, expected in (([0, 0, 0], []), ([0, 1, 1], [(1, 2)]), ([1, 0, 1], [(0, 0), (2, 2)])):
        place = PlaceholderRange(
            offset=offset, length=3, is_embed=torch.tensor(mask, dtype=torch.bool)
        )
        found = [tuple(pair) for pair in place.extract_embeds_range()]
        assert found == [(a + offset, b + offset) for a, b in expected], found
