"""disable_chunked_mm_input: no step ends inside a picture, also if its encoding is in the cache."""

from labkit.maintain.rig import make_request, make_scheduler, picture, step


def begin(whole=True):
    scheduler = make_scheduler(
        max_num_batched_tokens=32,
        enable_prefix_caching=False,
        disable_chunked_mm_input=whole,
        encoder_cache_size=100,
        max_num_encoder_input_tokens=100,
    )
    scheduler.add_request(
        make_request("a", 22, max_tokens=8, pictures=[picture("cat", 0, 20)], ignore_eos=True)
    )
    assert step(scheduler)[0].scheduled_encoder_inputs == {"a": [0]}
    return scheduler


def the_bug(draw):
    scheduler, at = begin(), draw.randint(13, 28)
    scheduler.add_request(
        make_request("b", 60, max_tokens=8, pictures=[picture("cat", at, 20)], ignore_eos=True)
    )
    count = step(scheduler)[0].num_scheduled_tokens["b"]
    assert count == at, f"the step ends {count - at} tokens into the picture"
    plan = step(scheduler)[0]
    assert plan.num_scheduled_tokens["b"] >= 20, "the next has all of it"
    assert not plan.scheduled_encoder_inputs, "from the cache"


def neighbour_a_picture_that_fits():
    scheduler = begin()
    scheduler.add_request(
        make_request("b", 31, max_tokens=8, pictures=[picture("cat", 5, 20)], ignore_eos=True)
    )
    plan = step(scheduler)[0]
    assert plan.num_scheduled_tokens["b"] == 31 and not plan.scheduled_encoder_inputs


def neighbour_where_it_may_be_split():
    scheduler = begin(whole=False)
    scheduler.add_request(
        make_request("b", 60, max_tokens=8, pictures=[picture("cat", 20, 20)], ignore_eos=True)
    )
    assert step(scheduler)[0].num_scheduled_tokens["b"] == 31
