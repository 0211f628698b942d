"""Several stop strings end in one step: the one that is complete first wins."""

from types import SimpleNamespace

from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from vllm.v1.engine.detokenizer import check_stop_strings


def the_bug(draw):
    words = draw.sample(["END", "STOP", "##", "\n\n", "User:"], 3)
    head = "x" * draw.randint(1, 9)
    text = f"{head} {words[1]} and {words[0]}."
    at = len(head) + 1
    found = check_stop_strings(text, len(text) - len(head), words, False)
    assert found == (words[1], at), f"{text!r} is cut by {found}, not by {(words[1], at)}"
    found = check_stop_strings(text, len(text) - len(head), words, True)
    assert found == (words[1], at + len(words[1])), f"with the stop string kept: {found}"


def neighbour_first_complete_not_first_begun():
    # "b" is complete one character before "abc" is, although "abc" begins earlier
    assert check_stop_strings("xabcd", 4, ["abc", "b"], False) == ("b", 2)


def neighbour_one_stop_string_and_ties():
    assert check_stop_strings("a b", 1, ["b"], False) == ("b", 2)
    assert check_stop_strings("a b", 1, ["b"], True) == ("b", -1)
    assert check_stop_strings("xab", 2, ["ab", "b"], False) == ("ab", 1), "a tie: the first listed"
    assert check_stop_strings("xab", 2, ["q"], False) is None


def the_sibling(draw):
    """Whether reasoning has ended is told by the marker that the text shows last."""
    start, end = draw.sample(range(3, 99), 2)
    parser = SimpleNamespace(start_token_id=start, end_token_id=end)
    text = [draw.randint(100, 200) for _ in range(draw.randint(1, 5))]
    ended = BaseThinkingReasoningParser.is_reasoning_end
    assert ended(parser, [start, *text, end, *text])
    assert not ended(parser, [start, *text, end, *text, start, *text]), (
        "a second turn has begun to think, and its reasoning counts as ended"
    )
