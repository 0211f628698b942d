"""Prompt logprobs need the whole prompt computed: external KV is no help."""

from labkit.maintain.rig import make_connector, make_request, make_scheduler, step


def the_bug(draw):
    scheduler, tokens = make_scheduler(), draw.randint(34, 60)
    make_connector(scheduler, {"a": 32, "b": 32})
    scheduler.add_request(make_request("a", tokens, prompt_logprobs=1))
    scheduler.add_request(make_request("b", tokens))
    counts = scheduler.schedule().num_scheduled_tokens
    assert counts["b"] == tokens - 32, "a request without logprobs uses the connector"
    assert counts["a"] == tokens, f"of {tokens} prompt tokens {counts['a']} are computed"


def neighbour_a_connector_that_loads_beside():
    scheduler = make_scheduler()
    make_connector(scheduler, {"a": 32}, load_async=True)
    scheduler.add_request(make_request("a", 40, prompt_logprobs=1))
    assert step(scheduler)[0].num_scheduled_tokens == {"a": 40}, (
        "it waits for KV that it may not use"
    )


def neighbour_no_logprobs_no_change():
    scheduler = make_scheduler()
    make_connector(scheduler, {"a": 32, "b": 0})
    scheduler.add_request(make_request("a", 40, logprobs=1))
    scheduler.add_request(make_request("b", 40))
    assert step(scheduler)[0].num_scheduled_tokens == {"a": 8, "b": 40}
