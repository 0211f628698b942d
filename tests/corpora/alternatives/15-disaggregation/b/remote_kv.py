"""Small helpers that say what they ask."""


def forget(state, request):
    for group in (state.failed, state.arrived, state.loading):
        if request.request_id in group:
            group.remove(request.request_id)


def take_arrived(state, manager, request):
    forget(state, request)
    num_full, rest = divmod(request.num_computed_tokens, manager.block_size)
    if num_full == rest == 0:
        return manager.free(request)
    manager.cache_blocks(request, num_full_blocks=num_full)
    if request.num_tokens - request.num_computed_tokens == 0:
        request.num_computed_tokens = request.num_tokens - 1


def transfers_of_ended(state, request, connector_keeps):
    still_writes = request.request_id in state.loading
    still_writes = still_writes and request.request_id not in state.arrived
    forget(state, request)
    pending = set()
    if still_writes:
        pending |= {"recv"}
    if connector_keeps:
        pending |= {"send"}
    return pending


def transfers_over(state, ids, kind):
    free = []
    for name in sorted(ids):
        entry = state.held.get(name)
        if entry is None:
            if kind == "recv":
                state.arrived |= state.loading & {name}
            continue
        request, pending = entry
        pending -= {kind}
        if len(pending) == 0:
            state.held.pop(name)
            free.append(request)
    return free


def find_rewinds(requests, invalid_block_ids, tables, num_scheduled_tokens, block_size):
    def first_bad(request):
        name, at = request.request_id, 0
        sound = request.num_computed_tokens - num_scheduled_tokens.get(name, 0)
        for block_id in tables[name]:
            if at >= sound:
                return None
            if block_id in invalid_block_ids:
                return at
            at += block_size
        return None

    cuts = [(request.request_id, first_bad(request)) for request in requests]
    return {name: cut for name, cut in cuts if cut is not None}
