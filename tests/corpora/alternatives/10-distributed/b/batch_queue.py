"""One condition for each reason to go on."""


def step_with_batch_queue(queue, size, has_requests, submit, finish):
    if size > len(queue) and has_requests():
        queue.insert(0, submit())
        has_tokens = len(queue[0].plan.num_scheduled_tokens) > 0
        has_room = len(queue) < size
        must_wait = not queue[len(queue) - 1].answer.done()
        if has_tokens and has_room and must_wait:
            return
    if queue:
        return finish(queue.pop())


def new_token_ids(plan, requests):
    cached = plan.scheduled_cached_reqs
    starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=False))
    for resumed in cached.resumed_req_ids:
        starts.pop(resumed, None)

    def tokens(req_id, start):
        wanted = range(start, start + plan.num_scheduled_tokens[req_id])
        every = requests[req_id].all_token_ids
        return [every[at] for at in wanted if at < len(every)]

    return {req_id: tokens(req_id, start) for req_id, start in starts.items()}
