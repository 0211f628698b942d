"""A list of moves, each with what the one before has made."""


def run(executor, scheduler, plan):
    import time

    executor.execute_model(plan)
    answer = executor.sample_tokens(scheduler.get_grammar_bitmask(plan))
    while not answer.done():
        time.sleep(0)
    return answer.result()


def step(scheduler, executor):
    told = []
    for _ in range(1 if scheduler.has_requests() else 0):
        plan = scheduler.schedule()
        told.extend(scheduler.update_from_output(plan, run(executor, scheduler, plan)))
    return told
