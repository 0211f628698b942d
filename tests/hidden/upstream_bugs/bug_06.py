"""Priority: a victim that was passed over stands before the index, and takes a place with it."""

from labkit.maintain.rig import answer, make_request, make_scheduler, step


def two_steps(low=2, more=1):
    """ "low" has its last token under way; "b" needs a block more; those behind need none."""
    scheduler = make_scheduler(
        policy="priority", async_scheduling=True, num_gpu_blocks=3 + more, max_num_batched_tokens=64
    )
    scheduler.add_request(make_request("low", 15, max_tokens=low, priority=9, ignore_eos=True))
    first = scheduler.schedule()
    names = ["b", *(f"c{n}" for n in range(more))]
    for n, name in enumerate(names):
        scheduler.add_request(
            make_request(name, 16 if n == 0 else 8, max_tokens=8, arrival=1.0 + n, ignore_eos=True)
        )
    second = scheduler.schedule()
    assert list(second.num_scheduled_tokens) == ["low", *names]
    scheduler.update_from_output(first, answer(scheduler, first, {"low": [7]}))
    return scheduler.schedule().num_scheduled_tokens, names


def the_bug(draw):
    plan, names = two_steps(more=draw.randint(1, 4))
    assert all(plan.get(name) == 1 for name in names), f"of {names} the plan has {list(plan)}"


def neighbour_a_victim_that_was_planned_already():
    scheduler = make_scheduler(policy="priority", num_gpu_blocks=4, max_num_batched_tokens=64)
    for name, size, priority in (("low", 10, 9), ("a", 16, 1), ("b", 8, 1)):
        scheduler.add_request(
            make_request(
                name,
                size,
                max_tokens=8,
                priority=priority,
                arrival=priority + size / 99,
                ignore_eos=True,
            )
        )
    plan = scheduler.schedule()
    assert set(plan.num_scheduled_tokens) == {"low", "a", "b"}
    scheduler.update_from_output(plan, answer(scheduler, plan))
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens == {"a": 1, "b": 1} and plan.preempted_req_ids == {"low"}


def neighbour_a_victim_behind_the_index():
    scheduler = make_scheduler(policy="priority", num_gpu_blocks=4, max_num_batched_tokens=64)
    scheduler.add_request(make_request("a", 15, max_tokens=8, priority=1, ignore_eos=True))
    scheduler.add_request(make_request("low", 8, max_tokens=8, priority=9, ignore_eos=True))
    step(scheduler)
    scheduler.add_request(
        make_request("c", 8, max_tokens=8, priority=1, arrival=1.0, ignore_eos=True)
    )
    assert list(step(scheduler)[0].num_scheduled_tokens) == ["a", "low", "c"]
    plan = (
        scheduler.schedule()
    )  # "a" needs a block, and takes that of "low", which stands behind it
    assert plan.num_scheduled_tokens == {"a": 1, "c": 1} and plan.preempted_req_ids == {"low"}
    assert plan.scheduled_cached_reqs.req_ids == ["a", "c"], "each once"
