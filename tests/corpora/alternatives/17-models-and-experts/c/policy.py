"""Loads as Python numbers; packs are lists until the end."""


def balanced_packing(loads, num_packs):
    size = len(loads) // num_packs
    if size == 1:
        return np.arange(len(loads))
    packs = [[] for _ in range(num_packs)]
    weights = [0.0] * num_packs
    for thing in np.argsort(-loads):
        open_packs = [pack for pack in range(num_packs) if len(packs[pack]) < size]
        pack = min(open_packs, key=weights.__getitem__)
        packs[pack].append(int(thing))
        weights[pack] += loads[thing].item()
    places = np.empty(len(loads), dtype=np.int64)
    places[[thing for pack in packs for thing in pack]] = np.arange(len(loads))
    return places


def replicate_experts(loads, num_physical):
    load = loads.tolist()
    counts = [1] * len(load)
    experts = list(range(len(load)))
    while len(experts) < num_physical:
        busiest = max(range(len(load)), key=lambda expert: load[expert] / counts[expert])
        counts[busiest] += 1
        experts.append(busiest)
    return np.array(experts), np.array(counts)


def keep_places(new, old, num_ranks):
    size = len(new) // num_ranks
    result = []
    for start in range(0, len(new), size):
        moving = new[start : start + size].tolist()
        before = old[start : start + size].tolist()
        row = [-1] * size
        for place, expert in enumerate(before):
            if expert in moving:
                moving.remove(expert)
                row[place] = expert
        for place in range(size):
            if row[place] < 0:
                row[place] = moving.pop(0)
        result += row
    return np.asarray(result, dtype=np.int64)
