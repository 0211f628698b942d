"""Early returns, and sets that are subtracted."""


def take_arrived(state, manager, request):
    mine = {request.request_id}
    state.loading -= mine
    state.arrived -= mine
    state.failed -= mine
    sound = request.num_computed_tokens
    if not sound:
        manager.free(request)
        return
    manager.cache_blocks(request, sound // manager.block_size)
    request.num_computed_tokens = min(sound, request.num_tokens - 1)


def transfers_of_ended(state, request, connector_keeps):
    name = request.request_id
    is_receiving = name in state.loading - state.arrived
    state.loading.discard(name)
    state.arrived.discard(name)
    state.failed.discard(name)
    kinds = (("recv", is_receiving), ("send", connector_keeps))
    return {kind for kind, is_open in kinds if is_open}


def transfers_over(state, ids, kind):
    known = sorted(set(ids))
    held = [name for name in known if name in state.held]
    for name in known:
        if name not in state.held and kind == "recv" and name in state.loading:
            state.arrived.add(name)
    for name in held:
        state.held[name][1].discard(kind)
    return [state.held.pop(name)[0] for name in held if not state.held[name][1]]


def find_rewinds(requests, invalid_block_ids, tables, num_scheduled_tokens, block_size):
    bad, cuts = set(invalid_block_ids), {}
    for request in requests:
        name = request.request_id
        before = request.num_computed_tokens - num_scheduled_tokens.get(name, 0)
        table = tables[name]
        places = [i for i in range(len(table)) if i * block_size < before and table[i] in bad]
        if places:
            cuts[name] = min(places) * block_size
    return cuts
