"""Task 00.1: is this request finished?"""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.request import RequestStatus

FINISHED = [status for status in RequestStatus if status.name.startswith("FINISHED_")]


def test_00_1_every_finished_status_is_finished() -> None:
    """Each of the FINISHED statuses is final."""
    for status in FINISHED:
        expect(RequestStatus.is_finished(status), True, at=f"is_finished({status})")


@pytest.mark.parametrize("name", ["WAITING", "RUNNING"])
def test_00_1_waiting_and_running_requests_go_on(name: str) -> None:
    """A request that waits for its turn or runs is not finished."""
    expect(RequestStatus.is_finished(RequestStatus[name]), False, at=f"is_finished({name})")


def test_00_1_a_preempted_request_comes_back() -> None:
    """PREEMPTED is a pause, not an end."""
    at = "is_finished(PREEMPTED): its memory was taken away, it will run again"
    expect(RequestStatus.is_finished(RequestStatus.PREEMPTED), False, at=at)


def test_00_1_a_blocked_request_goes_on() -> None:
    """A request that waits for a grammar, for remote KV or for more input is not finished."""
    for status in RequestStatus:
        if status.name.startswith("WAITING_FOR_"):
            expect(RequestStatus.is_finished(status), False, at=f"is_finished({status})")


def test_00_1_the_request_asks_its_status(tea: Any) -> None:
    """`Request.is_finished` answers for the status that the request has now."""
    request = tea()
    expect(request.is_finished, False, at="a new request", status=str(request.status))
    request.status = RequestStatus.FINISHED_STOPPED
    expect(request.is_finished, True, at="it met a stop", status=str(request.status))
