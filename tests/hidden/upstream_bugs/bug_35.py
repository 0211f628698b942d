"""stop_token_ids are columns of the logits: one outside of the vocabulary is refused."""

from types import SimpleNamespace

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams


def verdict(size, **params):
    """What is said of a request, or "" if it is taken."""
    model = SimpleNamespace(max_logprobs=20, get_vocab_size=lambda: size, logits_processors=None)
    try:
        SamplingParams(**params).verify(model, None, None, None)
    except ValueError as error:
        return str(error)
    return ""


def the_bug(draw):
    size = draw.randint(1000, 200_000)
    for token in (size, size + draw.randint(1, 999), -draw.randint(1, 9)):
        assert verdict(size, stop_token_ids=[5, token], min_tokens=2), (
            f"token {token} of a vocabulary of {size} is taken"
        )


def neighbour_the_first_and_the_last():
    assert (
        verdict(2048, stop_token_ids=[0, 2047]) == ""
        and verdict(2048) == ""
        and verdict(2048, stop_token_ids=[]) == ""
    )


def neighbour_logit_bias_is_checked_as_before():
    assert verdict(2048, logit_bias={2048: 1.0}) and not verdict(2048, logit_bias={2047: 1.0})


def the_sibling(draw):
    """Allowed tokens are columns of the logits, too."""
    size = draw.randint(10, 100)
    for token, fits in ((size - 1, True), (size, False), (size + 7, False), (-1, False), (0, True)):
        try:
            SamplingParams(allowed_token_ids=[1, token])._validate_allowed_token_ids(range(size))
            found = True
        except VLLMValidationError:
            found = False
        assert found == fits, f"token {token} of {size}: {'accepted' if found else 'refused'}"
