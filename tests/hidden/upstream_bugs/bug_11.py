"""Nothing to reset is no failure."""

from labkit.maintain.rig import make_connector, make_request, make_scheduler, step


def idle(draw_tokens=40):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", draw_tokens, max_tokens=1, ignore_eos=True))
    step(scheduler)
    return scheduler


def the_bug(draw):
    scheduler = idle(draw.randint(20, 90))
    assert scheduler.reset_prefix_cache(reset_connector=True), (
        "a failure is reported where there is no connector"
    )


def neighbour_a_connector_that_fails():
    scheduler = idle()
    make_connector(scheduler, {}).reset_cache = lambda: False
    assert not scheduler.reset_prefix_cache(reset_connector=True), (
        "a connector that cannot reset is a failure"
    )


def neighbour_a_connector_that_resets():
    scheduler, calls = idle(), []
    make_connector(scheduler, {}).reset_cache = lambda: calls.append(1) or True
    assert scheduler.reset_prefix_cache() and not calls
    assert scheduler.reset_prefix_cache(reset_connector=True) and len(calls) == 1


def the_sibling(draw):
    """A prefix cache that was reset says so, whether or not statistics are kept."""
    for log_stats in (True, False):
        scheduler = make_scheduler(log_stats=log_stats)
        scheduler.add_request(make_request("s", draw.randint(20, 90), max_tokens=1))
        step(scheduler)
        step(scheduler)
        assert scheduler.kv_cache_manager.reset_prefix_cache(), f"log_stats={log_stats}: it says no"
