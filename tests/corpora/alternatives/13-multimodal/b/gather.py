"""Each request has a mask of its own, and they are joined in the end."""


def part_of(image, computed, scheduled, mask):
    """The range of an image's positions that a step computes, marked in the request's mask."""
    place = image.mm_position
    low, high = max(computed, place.offset), min(computed + scheduled, place.end)
    if low >= high:
        return 0, 0
    embeds = place.is_embed or (True,) * place.length
    for position in range(low, high):
        if embeds[position - place.offset]:
            mask[position - computed] = True
    return place.get_embeds_indices_in_range(low - place.offset, high - place.offset)


def gather_mm_embeddings(features, num_computed, num_scheduled, encoder_cache):
    rows, masks = [], []
    for number, images in enumerate(features):
        mask = torch.zeros(num_scheduled[number], dtype=torch.bool)
        for image in images:
            first, last = part_of(image, num_computed[number], num_scheduled[number], mask)
            if first < last:
                if image.identifier not in encoder_cache:
                    raise KeyError(image.identifier)
                rows.append(encoder_cache[image.identifier][first:last])
        masks.append(mask)
    return rows, torch.cat(masks)


def merge_multimodal_embeddings(inputs_embeds, rows, mask):
    hidden = inputs_embeds.shape[-1]
    values = torch.vstack(list(rows)).type_as(inputs_embeds)
    mask = mask.to(inputs_embeds.device)
    places, given = int(mask.count_nonzero()), len(values)
    if places != given:
        raise ValueError(f"{given} rows do not fit {places} places")
    wide = torch.zeros(len(mask), values.shape[1]).type_as(inputs_embeds)
    wide[mask] = values
    embedding, *levels = wide.split(hidden, dim=1)
    merged = torch.where(mask[:, None], embedding, inputs_embeds)
    empty = torch.zeros(0, *inputs_embeds.shape).type_as(inputs_embeds)
    return merged, torch.stack(levels) if levels else empty
