"""A grammar that cannot be compiled ends its own request, not the engine."""

from concurrent.futures import Future

from vllm.sampling_params import StructuredOutputsParams

from labkit.maintain.rig import RequestStatus, make_request, make_scheduler, step


def waiting_for_grammar(name, tokens=20):
    request = make_request(
        name,
        tokens,
        max_tokens=30,
        structured_outputs=StructuredOutputsParams(regex="a+"),
        ignore_eos=True,
    )
    request.structured_output_request.grammar = future = Future()
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    return request, future


def ended(scheduler, steps):
    outputs = [output for _ in range(steps) for output in step(scheduler)[1]]
    return {output.request_id for output in outputs if output.finish_reason is not None}


def the_bug(draw):
    scheduler = make_scheduler()
    for n in range(draw.randint(1, 3)):
        scheduler.add_request(make_request(f"good{n}", 20, max_tokens=30, ignore_eos=True))
    step(scheduler)
    bad, future = waiting_for_grammar("bad", draw.randint(10, 40))
    scheduler.add_request(bad)
    for _ in range(draw.randint(0, 2)):
        step(scheduler)
    future.set_exception(ValueError("this grammar does not compile"))
    assert ended(scheduler, 4) == {"bad"}, "its client must be told that it has ended"
    assert "bad" not in scheduler.requests
    assert all(r.num_output_tokens >= 5 for r in scheduler.requests.values()), "the others go on"


def neighbour_a_grammar_that_compiles_late():
    scheduler = make_scheduler()
    late, future = waiting_for_grammar("late")
    scheduler.add_request(late)
    assert ended(scheduler, 3) == set() and late.num_output_tokens == 0
    future.set_result(object())
    step(scheduler)
    assert late.num_output_tokens == 1


def neighbour_the_scheduler_is_empty_afterwards():
    scheduler = make_scheduler()
    bad, future = waiting_for_grammar("bad")
    scheduler.add_request(bad)
    future.set_exception(RuntimeError("the compiler died"))
    assert ended(scheduler, 3) == {"bad"}
    assert not scheduler.has_unfinished_requests()
