"""Fill, then take; zipped over the cached requests."""


def step_with_batch_queue(queue, size, has_requests, submit, finish):
    if has_requests() and len(queue) < size:
        batch = submit()
        queue.appendleft(batch)
        has_tokens = batch.plan.total_num_scheduled_tokens > 0
        if has_tokens and len(queue) < size and not queue[-1].answer.done():
            return None
    if not queue:
        return None
    oldest = queue.pop()
    return finish(oldest)


def new_token_ids(plan, requests):
    cached = plan.scheduled_cached_reqs
    tokens = {}
    for request_id, start in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        if request_id in cached.resumed_req_ids:
            continue
        count = plan.num_scheduled_tokens[request_id]
        tokens[request_id] = list(requests[request_id].all_token_ids[start : start + count])
    return tokens
