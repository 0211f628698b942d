"""The head of the line waits for blocks that a request behind it holds, whose KV has come."""

from labkit.maintain.rig import (
    KVConnectorOutput,
    make_connector,
    make_request,
    make_scheduler,
    step,
)


def scene(prompt=72):
    """4 of 8 blocks are held by a request whose KV has come; the head needs 6."""
    scheduler = make_scheduler(num_gpu_blocks=9, enable_prefix_caching=False)
    known = {"head": None, "holder": 64}
    make_connector(scheduler, known, load_async=True)
    scheduler.add_request(make_request("head", 96, max_tokens=2, ignore_eos=True))
    scheduler.add_request(make_request("holder", prompt, max_tokens=2, ignore_eos=True))
    step(scheduler, kv_connector_output=KVConnectorOutput(finished_recving={"holder"}))
    assert scheduler.requests["holder"].status.name == "WAITING_FOR_REMOTE_KVS"
    known["head"] = 0  # now the connector knows: nothing
    return scheduler


def the_bug(draw):
    scheduler = scene(draw.randint(66, 79))
    for _ in range(12):
        step(scheduler)
        if not scheduler.requests:
            return
    raise AssertionError(
        f"after 12 steps: {[(name, r.status.name) for name, r in scheduler.requests.items()]}"
    )


def neighbour_kv_that_has_not_come():
    scheduler = make_scheduler(num_gpu_blocks=20, enable_prefix_caching=False)
    make_connector(scheduler, {"late": 64}, load_async=True)
    scheduler.add_request(make_request("late", 72, max_tokens=2, ignore_eos=True))
    scheduler.add_request(make_request("other", 40, max_tokens=3, ignore_eos=True))
    for _ in range(3):
        plan = step(scheduler)[0]
        assert "late" not in plan.num_scheduled_tokens
    step(scheduler, kv_connector_output=KVConnectorOutput(finished_recving={"late"}))
    assert step(scheduler)[0].num_scheduled_tokens == {"late": 8}


def neighbour_the_order_of_the_others():
    scheduler = make_scheduler(num_gpu_blocks=9, max_num_seqs=1, enable_prefix_caching=False)
    for name in "abc":
        scheduler.add_request(make_request(name, 20, max_tokens=1, ignore_eos=True))
    order = [next(iter(step(scheduler)[0].num_scheduled_tokens)) for _ in range(3)]
    assert order == ["a", "b", "c"]
