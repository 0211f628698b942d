"""Lists and plain sums in place of arrays."""


def balanced_packing(loads, num_packs):
    room = len(loads) // num_packs
    places = np.arange(len(loads))
    if room == 1:
        return places
    packs = [[] for _ in range(num_packs)]
    sums = [0.0] * num_packs
    for index in np.argsort(-loads):
        open_packs = [pack for pack in range(num_packs) if len(packs[pack]) < room]
        pack = min(open_packs, key=sums.__getitem__)
        places[index] = pack * room + len(packs[pack])
        packs[pack].append(index)
        sums[pack] += loads[index]
    return places


def replicate_experts(loads, num_physical):
    num_experts = len(loads)
    counts = np.ones(num_experts, dtype=np.int64)
    experts = np.empty(num_physical, dtype=np.int64)
    experts[:num_experts] = np.arange(num_experts)
    for place in range(num_experts, num_physical):
        experts[place] = np.argmax(loads / counts)
        counts[experts[place]] += 1
    return experts, counts


def keep_places(new, old, num_ranks):
    room = len(new) // num_ranks
    result = np.full_like(new, -1)
    for begin in range(0, len(new), room):
        coming = new[begin : begin + room].tolist()
        free = []
        for place in range(begin, begin + room):
            if old[place] in coming:
                coming.pop(coming.index(old[place]))
                result[place] = old[place]
            else:
                free.append(place)
        for place, expert in zip(free, coming, strict=True):
            result[place] = expert
    return result
