"""min_tokens delays the end token; it does not switch off the limits of length."""

from labkit.maintain.rig import EOS, make_request, make_scheduler, step


def run(scheduler, steps, token=7):
    outputs = []
    for _ in range(steps):
        outputs += step(scheduler, {name: [token] for name in scheduler.requests})[1]
        if not scheduler.requests:
            break
    return [token for output in outputs for token in output.new_token_ids]


def the_bug(draw):
    length, prompt = draw.randint(30, 60), draw.randint(10, 25)
    scheduler = make_scheduler(max_model_len=length)
    scheduler.add_request(make_request("r", prompt, max_tokens=100, min_tokens=80, ignore_eos=True))
    tokens = run(scheduler, length)
    assert not scheduler.requests, (
        f"it still runs, with {len(tokens)} tokens behind {prompt} of {length}"
    )
    assert len(tokens) == length - prompt


def neighbour_min_tokens_delays_the_end_token():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", 20, max_tokens=30, min_tokens=5))
    assert len(run(scheduler, 30, EOS)) == 5


def neighbour_max_tokens_is_a_limit():
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", 20, max_tokens=4, min_tokens=4))
    assert len(run(scheduler, 30)) == 4
