"""In one expression behind the plan."""


def step(scheduler, executor):
    if not scheduler.has_requests():
        return list()
    current = scheduler.schedule()
    started = executor.execute_model(current)
    assert started is None
    return scheduler.update_from_output(
        current, executor.sample_tokens(scheduler.get_grammar_bitmask(current)).result()
    )
