"""A pooling model samples nothing, so a prompt of max_model_len tokens fits, in chunks too."""

from types import SimpleNamespace

import torch
from vllm.pooling_params import PoolingParams
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.request import Request

from labkit.maintain.rig import ModelRunnerOutput, make_request, make_scheduler, step


def pool(prompt, length, budget):
    """Tokens a step, until the request has ended or six steps are over."""
    scheduler = make_scheduler(
        max_model_len=length, max_num_batched_tokens=budget, enable_prefix_caching=False
    )
    scheduler.add_request(
        Request("p", list(range(prompt)), None, PoolingParams(task="embed"), arrival_time=0.0)
    )
    counts = []
    while scheduler.requests and len(counts) < 6:
        plan = scheduler.schedule()
        counts.append(sum(plan.num_scheduled_tokens.values()))
        names = list(plan.num_scheduled_tokens)
        done = [scheduler.requests[name].num_computed_tokens >= prompt for name in names]
        scheduler.update_from_output(plan, ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: row for row, name in enumerate(names)}, sampled_token_ids=[],
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[torch.zeros(4) if d else None for d in done],
        ))  # fmt: skip
    return counts, not scheduler.requests


def the_bug(draw):
    budget = draw.choice([16, 24, 32])
    counts, ended = pool(2 * budget, 2 * budget, budget)
    assert ended and counts == [budget, budget], f"tokens a step: {counts}"


def neighbour_a_shorter_prompt():
    assert pool(40, 64, 32) == ([32, 8], True)


def neighbour_a_generated_token_needs_its_place():
    # drafts may not fill the last place: the token that is sampled behind them needs it
    scheduler = make_scheduler(max_model_len=32, num_speculative_tokens=4)
    request = make_request("r", 28, max_tokens=20, ignore_eos=True)
    scheduler.add_request(request)
    step(scheduler)
    request.spec_token_ids = [7, 7, 7, 7]
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens["r"] == 3, plan.num_scheduled_tokens


def the_sibling(draw):
    """A prompt as long as the model allows is refused only where a token is to follow it."""
    limit = draw.randint(8, 500)
    for runner, length, fits in (
        ("pooling", limit, True),
        ("pooling", limit + 1, False),
        ("generate", limit, False),
        ("generate", limit - 1, True),
    ):
        processor = SimpleNamespace(
            skip_prompt_length_check=False,
            supports_mm_inputs=False,
            mm_encoder_cache_size=0,
            model_config=SimpleNamespace(max_model_len=limit, runner_type=runner),
        )
        try:
            InputProcessor._validate_prompt_len(processor, length, "decoder")
            found = True
        except ValueError:
            found = False
        assert found == fits, (
            f"{runner}: a prompt of {length} tokens at a limit of {limit}: {found}"
        )
