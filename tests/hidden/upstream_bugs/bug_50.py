"""Defaults of the model's generation config count where the request says nothing."""

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest


def both(defaults, **fields):
    for request in (
        ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], **fields),
        CompletionRequest(prompt="hi", **fields),
    ):
        yield type(request).__name__, request.to_sampling_params(10, defaults)


def the_bug(draw):
    stops = sorted(draw.sample(range(1, 99), 2))
    defaults = {
        "stop_token_ids": stops,
        "presence_penalty": draw.choice([0.5, -1.0]),
        "frequency_penalty": draw.choice([0.25, 1.5]),
    }
    for name, params in both(defaults):
        assert sorted(params.stop_token_ids) == stops, (
            f"{name}: stop_token_ids {params.stop_token_ids}, the model's are {stops}"
        )
        found = {
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
        }
        assert found == {key: defaults[key] for key in found}, f"{name}: {found}"


def neighbour_what_the_request_says():
    defaults = {"stop_token_ids": [7, 9], "presence_penalty": 0.5, "frequency_penalty": 0.25}
    for _, params in both(
        defaults, stop_token_ids=[3, 7], presence_penalty=0.0, frequency_penalty=1.0
    ):
        assert sorted(params.stop_token_ids) == [3, 7, 9], (
            "the request's own are added to the model's"
        )
        assert (params.presence_penalty, params.frequency_penalty) == (0.0, 1.0), (
            "a zero that was asked for is a zero"
        )
    assert defaults["stop_token_ids"] == [7, 9], "the defaults stay for the next request"


def neighbour_without_defaults():
    for _, params in both({}):
        assert (params.presence_penalty, params.frequency_penalty, params.stop_token_ids) == (
            0.0,
            0.0,
            [],
        )
    for _, params in both({"temperature": 0.3, "top_p": 0.5}):
        assert (params.temperature, params.top_p) == (0.3, 0.5)


def the_sibling(draw):
    """The third interface reads the model's defaults, too, and the client's word goes first."""
    default, said = draw.choice([0.5, 1.5]), draw.choice([0.25, -0.75])
    for words, expected in (
        ({}, default),
        ({"presence_penalty": said}, said),
        ({"presence_penalty": 0.0}, 0.0),
    ):
        request = ResponsesRequest(input="a", model="m", **words)
        params = request.to_sampling_params(9, {"presence_penalty": default})
        assert params.presence_penalty == expected, f"{words}: {params.presence_penalty}"
