"""Position by position instead of by slices of ranges."""


def gather_mm_embeddings(features, num_computed, num_scheduled, encoder_cache):
    rows, mask = [], []
    for images, computed, count in zip(features, num_computed, num_scheduled, strict=True):
        takes = [False] * count
        for image in images:
            place = image.mm_position
            mine = [
                p
                for p in range(max(place.offset, computed), min(place.end, computed + count))
                if place.is_embed is None or place.is_embed[p - place.offset]
            ]
            if not mine:
                continue
            for p in mine:
                takes[p - computed] = True
            a, b = place.get_embeds_indices_in_range(
                mine[0] - place.offset, mine[-1] + 1 - place.offset
            )
            rows.append(encoder_cache[image.identifier][a:b])
        mask += takes
    return rows, torch.tensor(mask, dtype=torch.bool)


def merge_multimodal_embeddings(inputs_embeds, rows, mask):
    tokens, width = inputs_embeds.shape
    wanted, found = int(mask.sum()), sum(map(len, rows))
    if wanted != found:
        raise ValueError(f"{wanted} places take a row, and there are {found} rows")
    parts = torch.cat(list(rows)).to(inputs_embeds.dtype).split(width, dim=1)
    layers = [inputs_embeds.clone()] + [torch.zeros_like(inputs_embeds) for _ in parts[1:]]
    for layer, part in zip(layers, parts, strict=True):
        layer[mask] = part
    return layers[0], torch.stack(layers[1:]) if layers[1:] else layers[0].new_zeros(
        0, tokens, width
    )
