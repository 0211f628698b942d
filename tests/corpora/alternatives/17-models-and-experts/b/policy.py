"""Heaps: the lightest pack, and the busiest expert, are on top."""


def balanced_packing(loads, num_packs):
    import heapq

    room = len(loads) // num_packs
    if room == 1:
        return np.arange(len(loads), dtype=np.int64)
    heap = [(0.0, pack, 0) for pack in range(num_packs)]
    places = np.zeros(len(loads), dtype=np.int64)
    for index in np.argsort(-loads).tolist():
        load, pack, count = heapq.heappop(heap)
        places[index] = pack * room + count
        if count + 1 < room:
            heapq.heappush(heap, (load + float(loads[index]), pack, count + 1))
    return places


def replicate_experts(loads, num_physical):
    import heapq

    heap = [(-float(load), expert) for expert, load in enumerate(loads)]
    heapq.heapify(heap)
    found, counts = list(range(len(loads))), np.ones(len(loads), dtype=np.int64)
    for _ in range(num_physical - len(loads)):
        _, expert = heapq.heappop(heap)
        found.append(expert)
        counts[expert] += 1
        heapq.heappush(heap, (-float(loads[expert]) / int(counts[expert]), expert))
    return np.array(found, dtype=np.int64), counts


def keep_places(new, old, num_ranks):
    from collections import Counter

    rows = []
    for mine, before in zip(
        new.reshape(num_ranks, -1).tolist(), old.reshape(num_ranks, -1).tolist(), strict=True
    ):
        left, row = Counter(mine), []
        for expert in before:
            stays = left[expert] > 0
            left[expert] -= stays
            row.append(expert if stays else None)
        stayed = Counter(expert for expert in row if expert is not None)
        moving = []
        for expert in mine:
            if stayed[expert] > 0:
                stayed[expert] -= 1
            else:
                moving.append(expert)
        moving.reverse()
        rows.append([moving.pop() if expert is None else expert for expert in row])
    return np.array(rows, dtype=np.int64).reshape(-1)
