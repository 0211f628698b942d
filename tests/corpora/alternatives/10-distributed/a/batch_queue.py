"""Early returns, and a plain loop over the requests."""


def step_with_batch_queue(queue, size, has_requests, submit, finish):
    if len(queue) >= size or not has_requests():
        return finish(queue.pop()) if len(queue) > 0 else None
    newest = submit()
    queue.appendleft(newest)
    if len(queue) < size and newest.plan.num_scheduled_tokens:
        oldest = queue[-1]
        if not oldest.answer.done():
            return None
    return finish(queue.pop())


def new_token_ids(plan, requests):
    cached, found = plan.scheduled_cached_reqs, {}
    for index, req_id in enumerate(cached.req_ids):
        if req_id in cached.resumed_req_ids:
            continue
        start = cached.num_computed_tokens[index]
        stop = start + plan.num_scheduled_tokens[req_id]
        found[req_id] = list(requests[req_id].all_token_ids)[start:stop]
    return found
