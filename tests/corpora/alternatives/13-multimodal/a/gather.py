"""Position by position: which of a request's tokens is whose."""


def gather_mm_embeddings(features, num_computed, num_scheduled, encoder_cache):
    rows, flags = [], []
    for images, computed, scheduled in zip(features, num_computed, num_scheduled, strict=True):
        taken = [False] * scheduled
        for image in images:
            place = image.mm_position
            for token in range(scheduled):
                inside = computed + token - place.offset
                if 0 <= inside < place.length:
                    row, behind = place.get_embeds_indices_in_range(inside, inside + 1)
                    if row != behind:
                        rows.append(encoder_cache[image.identifier][row:behind])
                        taken[token] = True
        flags += taken
    return rows, torch.tensor(flags, dtype=torch.bool)


def merge_multimodal_embeddings(inputs_embeds, rows, mask):
    hidden = inputs_embeds.shape[1]
    together = torch.cat(list(rows), dim=0).to(inputs_embeds)
    places = torch.nonzero(mask).flatten().to(inputs_embeds.device)
    if together.shape[0] != places.numel():
        raise ValueError(f"{together.shape[0]} rows for {places.numel()} places")
    num_levels = together.shape[1] // hidden - 1
    merged = inputs_embeds.clone().index_copy(0, places, together[:, :hidden])
    levels = torch.zeros(num_levels, *inputs_embeds.shape).to(inputs_embeds)
    for level in range(num_levels):
        part = together[:, hidden * (level + 1) : hidden * (level + 2)]
        levels[level].index_copy_(0, places, part)
    return merged, levels
