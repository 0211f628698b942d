"""Ids of new blocks are noted for a worker that wants them zeroed; if none does, the list stays short."""

from labkit.maintain.rig import make_request, make_scheduler, step


def the_bug(draw):
    scheduler = make_scheduler(num_gpu_blocks=200, enable_prefix_caching=False)
    for n in range(draw.randint(30, 50)):
        scheduler.add_request(
            make_request(f"r{n}", draw.randint(33, 64), max_tokens=1, ignore_eos=True)
        )
        step(scheduler)
    assert not scheduler.requests
    left = scheduler.kv_cache_manager.take_new_block_ids()
    assert len(left) <= 8, f"{len(left)} block ids are remembered after all requests have ended"


def neighbour_a_worker_that_zeroes_is_told():
    scheduler = make_scheduler()
    scheduler.needs_kv_cache_zeroing = True
    scheduler.add_request(make_request("r", 40, max_tokens=9, ignore_eos=True))
    plan = step(scheduler)[0]
    assert sorted(plan.new_block_ids_to_zero) == sorted(plan.scheduled_new_reqs[0].block_ids[0])
    assert not step(scheduler)[0].new_block_ids_to_zero, "each block once"


def neighbour_no_other_worker_is_told():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", 40))
    assert step(scheduler)[0].new_block_ids_to_zero is None


def the_sibling(draw):
    """Evictions leave nothing behind in an engine that sends no events."""
    scheduler = make_scheduler(num_gpu_blocks=12)
    sizes = []
    for turn in range(8):
        for number in range(3):
            first = draw.randrange(1 << 20)
            scheduler.add_request(
                make_request(f"s{turn}-{number}", [first + i for i in range(100)], max_tokens=1)
            )
            step(scheduler)
        step(scheduler)
        sizes.append(len(scheduler.kv_cache_manager.block_pool.kv_event_queue))
    assert sizes[-1] <= sizes[1], f"events that wait, after each of 8 turns: {sizes}"
