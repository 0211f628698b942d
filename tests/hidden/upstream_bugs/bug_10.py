"""Each input of a session brings its own max_tokens."""

from types import SimpleNamespace

from vllm.v1.engine.output_processor import RequestState

from labkit.maintain.rig import make_request, make_scheduler, step


def turns(*limits):
    """Tokens that each turn of a session gets."""
    scheduler, found = make_scheduler(), []
    for turn, limit in enumerate(limits):
        tokens = [1000 * turn + i for i in range(20)]
        scheduler.add_request(
            make_request("s", tokens, max_tokens=limit, resumable=True, ignore_eos=True)
        )
        found.append(0)
        for _ in range(12):
            plan, outputs = step(scheduler)
            found[-1] += sum(len(output.new_token_ids) for output in outputs)
            if not plan.num_scheduled_tokens:
                break
    return found


def the_bug(draw):
    first = draw.randint(1, 3)
    limits = [first, first + draw.randint(1, 5), first]
    assert turns(*limits) == limits, f"max_tokens {limits}, tokens {turns(*limits)}"


def neighbour_a_smaller_limit():
    assert turns(5, 2) == [5, 2]


def neighbour_the_same_limit():
    assert turns(3, 3, 3) == [3, 3, 3]


def the_sibling(draw):
    """The front end counts the prompt of a session's later turns, too."""
    first, more = draw.randint(2, 9), draw.randint(2, 9)
    state = SimpleNamespace(
        streaming_input=True,
        prompt="a",
        prompt_token_ids=list(range(first)),
        prompt_len=first,
        stats=None,
        is_prefilling=False,
    )
    update = SimpleNamespace(
        prompt="b", prompt_token_ids=list(range(more)), arrival_time=1.0, final=False
    )
    RequestState.apply_streaming_update(state, update)
    assert state.prompt_len == len(state.prompt_token_ids) == first + more, (
        f"the prompt has {first + more} tokens, and is counted as {state.prompt_len}"
    )
