"""Plain loops over what may still happen."""


def take_arrived(state, manager, request):
    if request.num_computed_tokens == 0:
        manager.free(request)
    else:
        manager.cache_blocks(request, request.num_computed_tokens // manager.block_size)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
    for each in (state.loading, state.arrived, state.failed):
        each.discard(request.request_id)


def transfers_of_ended(state, request, connector_keeps):
    name = request.request_id
    kinds = set()
    if name in state.loading and name not in state.arrived:
        kinds.add("recv")
    if connector_keeps:
        kinds.add("send")
    for each in (state.loading, state.arrived, state.failed):
        each.discard(name)
    return kinds


def transfers_over(state, ids, kind):
    free = []
    for name in sorted(set(ids)):
        if name in state.held:
            request, kinds = state.held[name]
            if kind not in kinds:
                continue
            if kinds == {kind}:
                free.append(state.held.pop(name)[0])
            else:
                state.held[name] = request, kinds - {kind}
        elif kind == "recv" and name in state.loading:
            state.arrived.add(name)
    return free


def find_rewinds(requests, invalid_block_ids, tables, num_scheduled_tokens, block_size):
    rewinds = {}
    for request in requests:
        name = request.request_id
        before = request.num_computed_tokens - num_scheduled_tokens.get(name, 0)
        num_blocks = (before + block_size - 1) // block_size
        for index in range(min(num_blocks, len(tables[name]))):
            if tables[name][index] in invalid_block_ids:
                rewinds[name] = index * block_size
                break
    return rewinds
