"""A bad word that the tokenizer drops altogether is refused in words, not with an IndexError."""

from types import SimpleNamespace

from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from vllm.sampling_params import SamplingParams


class Tokenizer:
    """Drops white space at the ends, as tokenizers with a stripping normalizer do."""

    max_token_id = 999

    def encode(self, text, add_special_tokens=False):
        return [ord(letter) % 1000 for letter in text.strip()]


def the_bug(draw):
    params = SamplingParams(
        bad_words=[
            *draw.sample(["ab", "cd", "x"], draw.randint(0, 2)),
            draw.choice(["\u3000", "\t", "\u2003"]),
        ]
    )
    try:
        params.update_from_tokenizer(Tokenizer())
    except IndexError as error:
        raise AssertionError(f"IndexError: {error}: the client gets a 500") from None
    except Exception as error:
        assert "bad_words" in str(error), f"the message does not name the parameter: {error}"
        return
    raise AssertionError("such a word cannot be kept away, and the client is not told")


def neighbour_words_with_tokens():
    params = SamplingParams(bad_words=["ab", "c"])
    params.update_from_tokenizer(Tokenizer())
    assert params.bad_words_token_ids == [[97, 98], [99]]


def neighbour_a_space_that_makes_another_token():
    class Spaced(Tokenizer):
        def encode(self, text, add_special_tokens=False):
            return [ord(letter) % 1000 for letter in text.replace(" a", "z")]

    params = SamplingParams(bad_words=["ab"])
    params.update_from_tokenizer(Spaced())
    assert params.bad_words_token_ids == [[97, 98], [122, 98]]


def the_sibling(draw):
    """A last delta may have no token at all."""
    start, end, text = draw.sample(range(3, 99), 3)
    parser = SimpleNamespace(
        start_token_id=start, end_token_id=end, start_token="<t>", end_token="</t>"
    )
    extract = BaseThinkingReasoningParser.extract_reasoning_streaming
    said = extract(parser, "<t>", "<t>", "", [start], [start], [])
    assert said is None or not said.content
    assert extract(parser, "", "<t>", "<t>", [], [start], [start]) is None
    assert extract(parser, "<t>", "<t>a", "a", [start], [start, text], [text]).reasoning == "a"
