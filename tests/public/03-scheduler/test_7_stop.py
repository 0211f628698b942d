"""Task 03.7: when does a request end?"""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.request import RequestStatus

STOPPED, CAPPED = RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED
EOS, STOP, WORD = 2, 50, 9


def request_with(chat: Any, output: list[int], **params: Any) -> Any:
    """A request of 4 prompt tokens that has just sampled the last token of `output`."""
    request = chat.request("ana", 4, eos=EOS, **params)
    request.append_output_token_ids(output)
    return request


@pytest.mark.parametrize(
    ("output", "params", "expected"),
    [
        ([WORD], {}, None),
        ([WORD, EOS], {}, STOPPED),
        ([EOS, WORD], {}, None),
        ([WORD, EOS], {"ignore_eos": True}, None),
    ],
)
def test_03_7_eos_as_the_newest_token_stops(
    chat: Any, output: list[int], params: dict[str, Any], expected: RequestStatus | None
) -> None:
    """EOS ends the request if it is the newest token, unless ignore_eos is set."""
    request = request_with(chat, output, **params)
    at = f"EOS is {EOS}; output so far {output}, {params or 'no further parameters'}"
    expect(chat.scheduler().check_stop(request), expected, at=at)


def test_03_7_a_stop_token_stops_and_is_named(chat: Any) -> None:
    """One of stop_token_ids: stopped, and stop_reason is that token. EOS leaves no reason."""
    scheduler, request = chat.scheduler(), request_with(chat, [STOP], stop_token_ids=[STOP, 51])
    expect(scheduler.check_stop(request), STOPPED, at="stop_token_ids [50, 51], newest token 50")
    expect(request.stop_reason, STOP, at="the reason: which token was it?")
    both = request_with(chat, [EOS], stop_token_ids=[EOS])
    expect(scheduler.check_stop(both), STOPPED, at="the newest token is EOS and a stop token")
    expect(both.stop_reason, None, at="EOS is looked at first, and names no reason")
    older = request_with(chat, [STOP, WORD], stop_token_ids=[STOP])
    expect(scheduler.check_stop(older), None, at="a stop token that is not the newest token")


def test_03_7_max_tokens_counts_output_only(chat: Any) -> None:
    """The max_tokens-th output token ends the request; None means no such limit."""
    scheduler = chat.scheduler()
    two, three = [WORD] * 2, [WORD] * 3
    at = "4 prompt tokens, max_tokens 3"
    first = scheduler.check_stop(request_with(chat, two, max_tokens=3))
    expect(first, None, at=f"{at}, 2 output tokens")
    second = scheduler.check_stop(request_with(chat, three, max_tokens=3))
    expect(second, CAPPED, at=f"{at}, 3 output tokens")
    free = scheduler.check_stop(request_with(chat, [WORD] * 40, max_tokens=None))
    expect(free, None, at="max_tokens None, 40 output tokens, max_model_len 64")


def test_03_7_max_model_len_counts_prompt_and_output(chat: Any) -> None:
    """A sequence may reach exactly max_model_len tokens."""
    scheduler = chat.scheduler(max_model_len=10)
    at = "4 prompt tokens, max_model_len 10"
    five = scheduler.check_stop(request_with(chat, [WORD] * 5, max_tokens=99))
    expect(five, None, at=f"{at}, 5 output tokens: 9 in all")
    full = request_with(chat, [WORD] * 6, max_tokens=99)
    expect(scheduler.check_stop(full), CAPPED, at=f"{at}, 6 output tokens: 10 in all")
    expect(full.status, RequestStatus.WAITING, at="check_stop says what comes, and ends nothing")


def test_03_7_eos_on_the_last_permitted_token_is_a_stop(chat: Any) -> None:
    """The answer is complete, so the client must not read "length"."""
    request = request_with(chat, [WORD, WORD, EOS], max_tokens=3)
    expect(chat.scheduler().check_stop(request), STOPPED, at="max_tokens 3, the third token is EOS")


def test_03_7_min_tokens_delays_stops(chat: Any) -> None:
    """Before min_tokens neither EOS nor a stop token ends the request."""
    scheduler = chat.scheduler()
    for token in (EOS, STOP):
        for count, expected in ((2, None), (3, STOPPED)):
            output = [WORD] * (count - 1) + [token]
            request = request_with(chat, output, min_tokens=3, stop_token_ids=[STOP])
            at = f"min_tokens 3, output {output} (EOS is {EOS}, the stop token {STOP})"
            expect(scheduler.check_stop(request), expected, at=at)


def test_03_7_min_tokens_does_not_lift_the_length_limits(chat: Any) -> None:
    """The model's length holds even if min_tokens has not been reached."""
    request = request_with(chat, [WORD] * 6, max_tokens=99, min_tokens=20)
    scheduler = chat.scheduler(max_model_len=10)
    at = "max_model_len 10 is reached; min_tokens asks for 20 output tokens"
    expect(scheduler.check_stop(request), CAPPED, at=at)


def test_03_7_tokens_after_the_stop_are_dropped(chat: Any) -> None:
    """Several tokens come in one step (accepted drafts): the first that ends it is the last."""
    scheduler, request = chat.scheduler(), request_with(chat, [WORD])
    tokens = [11, EOS, 12, 13]
    expect(scheduler._append_until_stop(request, tokens), STOPPED, at=f"sampled {tokens}, EOS 2")
    expect(request.output_token_ids, [WORD, 11, EOS], at="the output of the request")
    expect(tokens, [11, EOS], at="the list itself is cut: it is what the client gets")


def test_03_7_without_a_stop_all_tokens_are_appended(chat: Any) -> None:
    """No token ends it: all stay, and there is no status."""
    scheduler, request = chat.scheduler(), request_with(chat, [WORD])
    tokens = [11, 12]
    expect(scheduler._append_until_stop(request, tokens), None, at="sampled 11 and 12")
    expect(request.output_token_ids, [WORD, 11, 12], at="the output of the request")
    expect(tokens, [11, 12], at="the list stays whole")
