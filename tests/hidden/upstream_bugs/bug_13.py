"""A reset preempts running requests between two steps; the next plan names them."""

from labkit.maintain.rig import RequestStatus, answer, make_request, make_scheduler, step


def the_bug(draw):
    scheduler = make_scheduler()
    names = [f"r{n}" for n in range(draw.randint(1, 4))]
    for name in names:
        scheduler.add_request(make_request(name, draw.randint(20, 60), ignore_eos=True))
    step(scheduler)
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    plan = scheduler.schedule()
    assert set(plan.preempted_req_ids or ()) == set(names), (
        f"preempted_req_ids: {plan.preempted_req_ids}"
    )
    scheduler.update_from_output(plan, answer(scheduler, plan))
    assert not scheduler.schedule().preempted_req_ids, "they are named once"


def neighbour_victims_of_a_step():
    scheduler = make_scheduler(num_gpu_blocks=5)
    for n in range(2):
        scheduler.add_request(make_request(f"r{n}", 32, arrival=float(n), ignore_eos=True))
    step(scheduler)
    assert step(scheduler)[0].preempted_req_ids == {"r1"}
    assert not step(scheduler)[0].preempted_req_ids


def neighbour_no_victims():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", 32))
    assert not step(scheduler)[0].preempted_req_ids
    assert not step(scheduler)[0].preempted_req_ids


def the_sibling(draw):
    """A request that was preempted, and is aborted before it runs again, is told to the worker."""
    length = draw.randint(27, 31)
    scheduler = make_scheduler(num_gpu_blocks=6, max_model_len=64)
    for name in ("s1", "s2"):
        scheduler.add_request(make_request(name, length, max_tokens=30))
    for _ in range(30):
        plan, _ = step(scheduler)
        if len(plan.num_scheduled_tokens) == 1:
            break
    (alone,) = plan.num_scheduled_tokens
    (waits,) = {"s1", "s2"} - {alone}
    scheduler.finish_requests(waits, RequestStatus.FINISHED_ABORTED)
    plan, _ = step(scheduler)
    assert waits in plan.finished_req_ids, "the worker keeps the state of an aborted request"
