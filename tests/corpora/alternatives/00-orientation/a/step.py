"""Waits for the future before it asks, and names every part."""


def step(scheduler, executor):
    from concurrent.futures import wait

    if scheduler.has_requests():
        plan = scheduler.schedule()
        executor.execute_model(plan)
        masks = scheduler.get_grammar_bitmask(plan)
        answer = executor.sample_tokens(masks)
        wait([answer])
        result = answer.result()
        outputs = scheduler.update_from_output(plan, result)
    else:
        outputs = []
    return outputs
